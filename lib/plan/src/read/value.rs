//! Values as Slurm writes them.

use gpufrac_core::mig_type::{GpuPart, MigType};
use gpufrac_core::slurm_text::items;
pub use gpufrac_slurm_conf::value::bytes;
pub(super) use gpufrac_slurm_conf::value::span;
pub use gpufrac_slurm_conf::value::{LONGEST, limit, time, tres};

/// No job has more GPUs, and no node more shards.
pub const MOST_GPUS: u32 = 1 << 20;

/// Seconds of a number with decimals.
pub fn seconds(number: f64) -> u64 {
    (number.max(0.0) as u64).min(LONGEST)
}

/// Bytes.
pub const MIB: f64 = 1024.0 * 1024.0;

pub fn mib(text: &str) -> Option<f64> {
    Some(bytes(text)? / MIB)
}

/// The GPUs, and the parts of GPUs, in a list of GRES or TRES of any version: `cpu=8,gres/gpu:a100=2,gres/gpu=2`,
/// `gpu:a100:2(IDX:0-1)`, `gpu:4,shard:32`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Devices<'a> {
    /// Whole GPUs.
    pub gpus: u32,
    /// MIG instances.
    pub instances: u32,
    /// What the instances take of their GPUs.
    pub part: GpuPart,
    pub shards: u32,
    /// Percents of MPS.
    pub mps: u32,
    /// The first Type of `gpu`; empty without.
    pub gpu_type: &'a str,
}

impl<'a> Devices<'a> {
    /// Reads a list.
    pub fn of(text: &'a str) -> Result<Devices<'a>, ()> {
        let mut devices = Devices::default();
        let mut sums = [[0_u32; 2]; NAMES.len()];
        for item in items(text).filter_map(Item::of) {
            let count = item.count.parse().map_err(drop)?;
            let sum = &mut sums[item.name][usize::from(item.is_sum)];
            *sum = sum.checked_add(count).ok_or(())?;
            if *sum > MOST_GPUS {
                return Err(());
            }
            if NAMES[item.name] != "gpu" {
                continue;
            }
            if devices.gpu_type.is_empty() {
                devices.gpu_type = item.type_name;
            }
            if let Some(mig_type) = MigType::of(item.type_name) {
                devices.instances += count;
                devices.part.add(mig_type.part(), count);
            }
        }
        [devices.gpus, devices.shards, devices.mps] =
            sums.map(|[of_items, written]| of_items.max(written));
        devices.gpus -= devices.instances;
        Ok(devices)
    }

    /// The whole GPUs, and those that the instances fill; shards and MPS count not at all.
    pub fn all_gpus(&self) -> u32 {
        self.gpus + gpus_of_share(self.part.share())
    }

    /// Whether there is neither a GPU nor a part of one.
    pub fn is_empty(&self) -> bool {
        self.gpus + self.instances + self.shards + self.mps == 0
    }
}

/// The fewest GPUs that hold parts of this sum.
pub fn gpus_of_share(share: f64) -> u32 {
    // Seven sevenths are a little more than one.
    const ROUNDED: f64 = 1e-6;
    (share - ROUNDED).ceil().max(0.0) as u32
}

/// What lists call GPUs and their shares.
const NAMES: [&str; 3] = ["gpu", "shard", "mps"];

/// One device of a list.
struct Item<'a> {
    /// Its place in [`NAMES`].
    name: usize,
    type_name: &'a str,
    count: &'a str,
    /// Slurm's TRES have the sum of all Types, too: `gres/gpu=2`.
    is_sum: bool,
}

impl<'a> Item<'a> {
    /// None for other things than GPUs and their shares.
    fn of(text: &'a str) -> Option<Item<'a>> {
        let text = text.split('(').next().unwrap_or(text).trim();
        let bare = text.strip_prefix("gres/").or(text.strip_prefix("gres:"));
        let text = bare.unwrap_or(text);
        let is_count = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (device, count) = text.split_once('=').unwrap_or_else(|| {
            let pair = text.rsplit_once(':');
            pair.filter(|(_, count)| !count.is_empty() && is_count(count))
                .unwrap_or((text, "1"))
        });
        let (name, type_name) = device.split_once(':').unwrap_or((device, ""));
        Some(Item {
            name: NAMES.iter().position(|known| *known == name)?,
            type_name,
            count,
            is_sum: type_name.is_empty() && text.contains('='),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole GPUs, instances, shards and percents of MPS.
    fn counts(text: &str) -> Result<[u32; 4], ()> {
        let all = Devices::of(text)?;
        Ok([all.gpus, all.instances, all.shards, all.mps])
    }

    #[test]
    fn devices_are_read_from_the_texts_of_all_versions() {
        for (text, expected) in [
            (
                "billing=32,cpu=32,gres/gpu:a100=2,gres/gpu=2,mem=128G",
                [2, 0, 0, 0],
            ),
            ("cpu=1,gres/gpu:a100=1,gres/gpu:v100=3", [4, 0, 0, 0]),
            ("cpu=1,mem=4G", [0; 4]),
            ("gpu:4", [4, 0, 0, 0]),
            ("gpu", [1, 0, 0, 0]),
            ("gpu:a100", [1, 0, 0, 0]),
            ("gpu:a100:2(IDX:0,3),lustre:1", [2, 0, 0, 0]),
            ("gpu:2(IDX:0-1)", [2, 0, 0, 0]),
            ("gres:gpu:2", [2, 0, 0, 0]),
            ("gres/gpu:2", [2, 0, 0, 0]),
            ("", [0; 4]),
            ("gres/gpumem=12G,gres/gpuutil=55", [0; 4]),
            ("cpu=8,mem=30G,gres/gpu:a100_3g.20gb=1", [0, 1, 0, 0]),
            (
                "cpu=4,gres/gpu=2,gres/gpu:a100_1g.5gb=2,mem=20G",
                [0, 2, 0, 0],
            ),
            (
                "gres/gpu:1g.10gb=2,gres/gpu:a100=1,gres/gpu=3",
                [1, 2, 0, 0],
            ),
            ("gpu:a100_1g.5gb:1", [0, 1, 0, 0]),
            ("gpu:1g.12gb+me", [0, 1, 0, 0]),
            ("gpu:nvidia_h100_80gb_hbm3_1g.10gb:3(IDX:0-2)", [0, 3, 0, 0]),
            ("cpu=4,gres/shard=8,mem=16G", [0, 0, 8, 0]),
            ("gres/shard:a100=8,gres/shard=8", [0, 0, 8, 0]),
            ("shard:8(2/8,0/8)", [0, 0, 8, 0]),
            ("cpu=4,gres/mps=50,mem=16G", [0, 0, 0, 50]),
            ("mps:50", [0, 0, 0, 50]),
        ] {
            assert_eq!(counts(text), Ok(expected), "{text}");
        }
        for text in ["gres/gpu=many", "gres/gpu=4000000000", "gres/shard=-1"] {
            assert_eq!(counts(text), Err(()), "{text}");
        }
    }

    fn gpus_of_node(gres: &str) -> Result<u32, ()> {
        Ok(Devices::of(gres)?.all_gpus())
    }

    #[test]
    fn gpus_of_a_node_are_those_that_its_instances_fill() {
        for (gres, expected) in [
            ("gpu:a100_3g.20gb:4,gpu:a100_1g.5gb:14", 4),
            ("gpu:a100:4", 4),
            ("gpu:a100:4(S:0-1),shard:32,mps:400", 4),
            ("gpu:2,gpu:a100:4", 6),
            ("gpu:a100:2,gpu:a100_2g.10gb:6", 4),
            ("gpu:1g.5gb:7", 1),
            ("gpu:1g.5gb:8", 2),
            ("gpu:a30_1g.6gb:8", 2),
            // Two of these fill the memory of a GPU.
            ("gpu:a100_3g.20gb:16(S:0-1)", 8),
            ("shard:8", 0),
            ("(null)", 0),
        ] {
            assert_eq!(gpus_of_node(gres), Ok(expected), "{gres}");
        }
    }

    #[test]
    fn the_type_of_gpus_is_read_from_the_texts_of_all_versions() {
        for (text, expected) in [
            ("cpu=32,gres/gpu:a100=2,gres/gpu=2", "a100"),
            ("gres/gpu:2080ti=1", "2080ti"),
            ("gpu:2080ti:1", "2080ti"),
            ("gpu:a100:2(IDX:0,3),lustre:1", "a100"),
            ("gpu:2(IDX:0,3)", ""),
            ("gpu:a100", "a100"),
            ("gpu:1g.5gb:2", "1g.5gb"),
            ("gres:gpu:2", ""),
            ("gpu", ""),
            ("cpu=1,gres/gpu=1,gres/gpumem=1G", ""),
        ] {
            let devices = Devices::of(text).unwrap();
            assert_eq!(devices.gpu_type, expected, "{text}");
        }
    }

    #[test]
    fn memory_is_read_with_its_unit() {
        assert_eq!(mib("2G"), Some(2048.0));
        assert_eq!(mib("1048576"), Some(1.0));
        assert_eq!(mib("12X"), None);
        assert_eq!(mib("-4M"), None);
    }
}
