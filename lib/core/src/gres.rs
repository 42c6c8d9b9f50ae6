//! The lines of gres.conf and slurm.conf that belong to a node.

use std::path::Path;

use crate::config::Device;
use crate::layout::LayoutKind;

/// The lines for one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GresLines {
    /// For gres.conf, in the order that gives Slurm's indexes.
    pub gres_conf: Vec<String>,
    /// The `Gres=` of the node's line in slurm.conf.
    pub gres: String,
}

/// Lines for the devices of `node`, whose placeholders lie in `folder`.
///
/// Every gpu line has a Type: without one Slurm before 23.11.5 lets whole-GPU jobs onto shared
/// devices. Shard lines name their files, because devices have different numbers of shares, and the Type: without
/// it Slurm forgets the Type of shares that a job asked for and refuses the steps of the job. A device
/// that is lent whole has one share, which no fraction fits in: where there are none of its Type, Slurm since 23.11
/// refuses the node (`gres/shard type (whole) reported but not configured`).
pub fn lines(node: &str, folder: &Path, devices: &[Device<'_>]) -> GresLines {
    let mut gres_conf = Vec::new();
    let mut shard_lines = Vec::new();
    let mut gpu_counts: Vec<(&str, usize)> = Vec::new();
    let mut shards: Vec<(&str, u32)> = Vec::new();
    let mut fractions = 0;
    for run in devices.chunk_by(|a, b| a.type_name == b.type_name) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else {
            continue;
        };
        let numbers = match first.index == last.index {
            true => first.index.to_string(),
            false => format!("[{}-{}]", first.index, last.index),
        };
        let file = folder.join(format!("{}{numbers}", first.type_name));
        let file = file.display();
        gres_conf.push(format!(
            "NodeName={node} Name=gpu Type={} File={file}",
            first.type_name
        ));
        match gpu_counts
            .iter_mut()
            .find(|(name, _)| *name == first.type_name)
        {
            Some((_, count)) => *count += run.len(),
            None => gpu_counts.push((first.type_name, run.len())),
        }
        let units: u32 = run.iter().map(|device| device.pool.layout.capacity.0).sum();
        fractions += units;
        let shares = match first.pool.layout.kind {
            LayoutKind::Whole => u32::try_from(run.len()).unwrap_or(u32::MAX),
            _ => units,
        };
        shards.push((first.type_name, shares));
        shard_lines.push(format!(
            "NodeName={node} Name=shard Type={} Count={shares} File={file}",
            first.type_name
        ));
    }
    gres_conf.extend(shard_lines);
    if fractions > 0 {
        gres_conf.push(format!("NodeName={node} Name=gpufrac Count={fractions}"));
    }
    let mut gres: Vec<String> = gpu_counts
        .iter()
        .map(|(name, count)| format!("gpu:{name}:{count}"))
        .collect();
    gres.extend(
        shards
            .iter()
            .map(|(name, units)| format!("shard:{name}:{units}")),
    );
    if fractions > 0 {
        gres.push(format!("gpufrac:{fractions}"));
    }
    GresLines {
        gres_conf,
        gres: gres.join(","),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    use super::*;

    fn config(pools: &[(&str, &str)]) -> Config {
        let mut text = "version = 1\n".to_owned();
        for (index, (layout, gpus)) in pools.iter().enumerate() {
            text.push_str(&format!(
                "[pool.p{index}]\nmechanism = \"mig\"\nlayout = \"{layout}\"\ngpu = \"H100-80\"\npartitions = [\"{layout}\"]\nnodes = \"n1\"\n{gpus}\n"
            ));
        }
        Config::parse(&text, "test").unwrap()
    }

    fn of(config: &Config, gpus: u32) -> GresLines {
        let devices = config.devices_of_node("n1", gpus);
        lines("n1", Path::new("/dev/gpufrac"), &devices)
    }

    #[test]
    fn eight_gpus_are_sixteen_halves() {
        let lines = of(&config(&[("halves", "")]), 8);
        assert_eq!(
            lines.gres_conf,
            [
                "NodeName=n1 Name=gpu Type=half File=/dev/gpufrac/half[0-15]",
                "NodeName=n1 Name=shard Type=half Count=800 File=/dev/gpufrac/half[0-15]",
                "NodeName=n1 Name=gpufrac Count=800",
            ]
        );
        assert_eq!(lines.gres, "gpu:half:16,shard:half:800,gpufrac:800");
    }

    #[test]
    fn whole_gpus_have_one_share_and_count_as_gpufrac() {
        let lines = of(
            &config(&[("halves", "gpus = [0]"), ("whole", "gpus = [1]")]),
            2,
        );
        assert_eq!(
            lines.gres_conf,
            [
                "NodeName=n1 Name=gpu Type=half File=/dev/gpufrac/half[0-1]",
                "NodeName=n1 Name=gpu Type=whole File=/dev/gpufrac/whole2",
                "NodeName=n1 Name=shard Type=half Count=100 File=/dev/gpufrac/half[0-1]",
                "NodeName=n1 Name=shard Type=whole Count=1 File=/dev/gpufrac/whole2",
                "NodeName=n1 Name=gpufrac Count=200",
            ]
        );
        assert_eq!(
            lines.gres,
            "gpu:half:2,gpu:whole:1,shard:half:100,shard:whole:1,gpufrac:200"
        );
    }

    #[test]
    fn pools_of_one_type_are_numbered_together_as_slurm_does() {
        let lines = of(
            &config(&[
                ("halves", "gpus = [0]"),
                ("slices", "gpus = [1]"),
                ("halves", "gpus = [2]"),
            ]),
            3,
        );
        assert_eq!(
            &lines.gres_conf[..2],
            [
                "NodeName=n1 Name=gpu Type=half File=/dev/gpufrac/half[0-3]",
                "NodeName=n1 Name=gpu Type=slices File=/dev/gpufrac/slices4",
            ]
        );
        assert_eq!(
            lines.gres,
            "gpu:half:4,gpu:slices:1,shard:half:200,shard:slices:100,gpufrac:300"
        );
    }
}
