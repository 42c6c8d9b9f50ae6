//! The lines of gres.conf and slurm.conf that belong to a node.

use std::path::Path;

use crate::count_name::CountName;
use crate::ids::GpuIndex;
use crate::layout::LayoutKind;
use crate::pool::Device;

/// A line of gres.conf, without its `NodeName=`.
#[derive(Debug, Clone, PartialEq, Eq)]
enum GresLine {
    /// Devices of one Type.
    Gpu {
        type_name: &'static str,
        files: String,
        /// The cores near the GPUs, in Slurm's numbers; None where they are not known.
        cores: Option<String>,
    },
    /// Shares of these devices.
    Shard {
        type_name: &'static str,
        count: u32,
        files: String,
    },
    /// The GRES that counts fractions.
    Fractions { name: CountName, count: u32 },
}

impl GresLine {
    fn text(&self, nodes: &str) -> String {
        match self {
            GresLine::Gpu {
                type_name,
                files,
                cores,
            } => {
                let cores = cores.as_deref().map(|cores| format!(" Cores={cores}"));
                let cores = cores.unwrap_or_default();
                format!("NodeName={nodes} Name=gpu Type={type_name} File={files}{cores}")
            }
            GresLine::Shard {
                type_name,
                count,
                files,
            } => {
                format!("NodeName={nodes} Name=shard Type={type_name} Count={count} File={files}")
            }
            GresLine::Fractions { name, count } => {
                format!("NodeName={nodes} Name={name} Count={count}")
            }
        }
    }
}

/// The lines for a node, or for several nodes with the same devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GresLines {
    gres_conf: Vec<GresLine>,
    /// The name under which fractions are counted.
    pub name: CountName,
    /// The `Gres=` of the node's line in slurm.conf; empty for a node without devices.
    pub gres: String,
}

impl GresLines {
    /// The lines for the devices of a node, in Slurm's order. `folder` is the folder of the placeholders. `name` is the
    /// name that counts fractions. `cores` has the `Cores=` of a GPU, if they are known and Slurm can have them.
    ///
    /// - Every gpu line has a Type: without it, Slurm before 23.11.5 gives shared devices to whole-GPU jobs.
    /// - A shard line names its files, because devices have different numbers of shares, and the Type: without it,
    ///   Slurm forgets the Type that a job asked for and refuses the steps of the job.
    /// - A device that is only lent whole has one share, which is smaller than any fraction: if a Type has no share,
    ///   Slurm since 23.11 refuses the node (`gres/shard type (whole) reported but not configured`).
    pub fn of(
        devices: &[Device<'_>],
        folder: &Path,
        name: &CountName,
        cores: &dyn Fn(GpuIndex) -> Option<String>,
    ) -> GresLines {
        let (mut gpu_lines, mut shard_lines) = (Vec::new(), Vec::new());
        let (mut gpus, mut shards) = (Vec::new(), Vec::new());
        let mut fractions = 0;
        for run in devices.chunk_by(|a, b| a.type_name == b.type_name) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else {
                continue;
            };
            let type_name = first.type_name;
            let files = files(folder, first, last);
            let units: u32 = run.iter().map(|device| device.pool.layout.capacity.0).sum();
            fractions += units;
            let count = match first.pool.layout.kind {
                LayoutKind::Whole => u32::try_from(run.len()).unwrap_or(u32::MAX),
                _ => units,
            };
            gpus.push(format!("gpu:{type_name}:{}", run.len()));
            shards.push(format!("shard:{type_name}:{count}"));
            let near = |device: &Device<'_>| cores(device.gpu_index);
            for side in run.chunk_by(|a, b| near(a) == near(b)) {
                if let (Some(first), Some(last)) = (side.first(), side.last()) {
                    gpu_lines.push(GresLine::Gpu {
                        type_name,
                        files: self::files(folder, first, last),
                        cores: near(first),
                    });
                }
            }
            shard_lines.push(GresLine::Shard {
                type_name,
                count,
                files,
            });
        }
        let (mut gres_conf, mut gres) = (gpu_lines, gpus);
        gres_conf.extend(shard_lines);
        gres.extend(shards);
        if fractions > 0 {
            gres.push(format!("{name}:{fractions}"));
            gres_conf.push(GresLine::Fractions {
                name: name.clone(),
                count: fractions,
            });
        }
        GresLines {
            gres_conf,
            name: name.clone(),
            gres: gres.join(","),
        }
    }

    /// The lines of gres.conf for `nodes` (a hostlist), in the order by which Slurm numbers the devices.
    pub fn gres_conf(&self, nodes: &str) -> Vec<String> {
        self.gres_conf.iter().map(|line| line.text(nodes)).collect()
    }
}

/// `/dev/gpufrac/half[0-7]`
fn files(folder: &Path, first: &Device<'_>, last: &Device<'_>) -> String {
    let numbers = if first.index == last.index {
        first.index.to_string()
    } else {
        format!("[{}-{}]", first.index, last.index)
    };
    let path = folder.join(format!("{}{numbers}", first.type_name));
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

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
        GresLines::of(
            &devices,
            Path::new("/dev/gpufrac"),
            &config.count_name,
            &|_| None,
        )
    }

    /// Promise (placement): both halves of a GPU are near the same cores.
    #[test]
    fn gpus_of_two_sockets_have_the_cores_of_their_socket() {
        let config = config(&[("halves", "")]);
        let cores = |gpu: GpuIndex| Some(if gpu.0 < 2 { "0-15" } else { "16-31" }.to_owned());
        let devices = config.devices_of_node("n1", 4);
        let lines = GresLines::of(
            &devices,
            Path::new("/dev/gpufrac"),
            &config.count_name,
            &cores,
        );
        assert_eq!(
            lines.gres_conf("n1"),
            [
                "NodeName=n1 Name=gpu Type=half File=/dev/gpufrac/half[0-3] Cores=0-15",
                "NodeName=n1 Name=gpu Type=half File=/dev/gpufrac/half[4-7] Cores=16-31",
                "NodeName=n1 Name=shard Type=half Count=400 File=/dev/gpufrac/half[0-7]",
                "NodeName=n1 Name=gpufrac Count=400",
            ]
        );
        assert_eq!(lines.gres, "gpu:half:8,shard:half:400,gpufrac:400");
    }

    #[test]
    fn eight_gpus_are_sixteen_halves() {
        let lines = of(&config(&[("halves", "")]), 8);
        assert_eq!(
            lines.gres_conf("n1"),
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
            lines.gres_conf("n1"),
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
    fn fractions_are_counted_by_the_name_of_the_file() {
        let mut config = config(&[("halves", "")]);
        config.count_name = "frac".parse().unwrap();
        let lines = of(&config, 1);
        assert_eq!(lines.gres_conf("n1")[2], "NodeName=n1 Name=frac Count=100");
        assert_eq!(lines.gres, "gpu:half:2,shard:half:100,frac:100");
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
            lines.gres_conf("n1")[..2],
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
