//! What a job held on each of its nodes: GPUs, or a part of one.

use super::value::{self, Devices};
use crate::shares_per_gpu::SharesPerGpu;

/// What a job held on each of its nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeldPerNode {
    /// Number of nodes.
    pub nodes: u32,
    /// GPUs: whole ones, or one of which the job had a part.
    pub gpus: u32,
    /// The part; None for whole GPUs.
    pub share: Option<f32>,
    /// How many GPUs it filled. Instances count by their compute, so that those of one GPU are no more than one.
    pub filled: f64,
}

impl HeldPerNode {
    /// Of devices that are not empty, on `nodes` nodes named `list`. None where nothing says what part of a GPU a shard
    /// is.
    ///
    /// Instances, shards and MPS of a job on a node count as their sum, which is the most that the job can need. A sum
    /// above one GPU counts as whole GPUs: no piece has as much.
    pub fn of(
        devices: &Devices<'_>,
        nodes: u32,
        list: &str,
        shares_per_gpu: &SharesPerGpu,
    ) -> Option<HeldPerNode> {
        let all = devices.gpus + devices.instances + devices.shards + devices.mps;
        let nodes = nodes.clamp(1, all);
        // Where Slurm counts `gpu` alone, the node says that these are instances.
        let untyped = Some(devices.gpus).filter(|gpus| *gpus > 0 && devices.gpu_type.is_empty());
        let instance = untyped.and(shares_per_gpu.instance(list));
        if devices.gpus > 0 && instance.is_none() {
            let gpus = devices.all_gpus().div_ceil(nodes);
            return Some(HeldPerNode {
                nodes,
                gpus,
                share: None,
                filled: gpus.into(),
            });
        }
        let mut shared = f64::from(devices.mps) / shares_per_gpu.mps(list);
        shared += f64::from(devices.gpus) * instance.unwrap_or(0.0);
        if devices.shards > 0 {
            shared += f64::from(devices.shards) / shares_per_gpu.shards(list)?;
        }
        let each = |sum: f64| sum / f64::from(nodes);
        let share = percents(each(devices.part.share())) + each(shared);
        let gpus = value::gpus_of_share(share).max(1);
        Some(HeldPerNode {
            nodes,
            gpus,
            share: (gpus == 1).then_some(share as f32),
            filled: each(devices.part.compute + shared),
        })
    }
}

/// A part of a GPU in whole percents, rounded down: a seventh is 14 units in our layouts, too.
fn percents(share: f64) -> f64 {
    const ROUNDED: f64 = 1e-6;
    (share * 100.0 + ROUNDED).floor() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::nodes;

    /// GPUs and percents of one on each node.
    fn held(
        tres: &str,
        nodes: u32,
        shares_per_gpu: &SharesPerGpu,
    ) -> Option<(u32, u32, Option<f32>)> {
        let held = HeldPerNode::of(&Devices::of(tres).unwrap(), nodes, "gn03", shares_per_gpu)?;
        Some((held.nodes, held.gpus, held.share.map(|share| share * 100.0)))
    }

    #[test]
    fn instances_are_a_part_of_a_gpu_and_their_sum() {
        for (tres, nodes, expected) in [
            ("gres/gpu:a100_3g.20gb=1", 1, (1, 1, Some(50.0))),
            ("gres/gpu=2,gres/gpu:a100_1g.5gb=2", 1, (1, 1, Some(28.0))),
            ("gpu:a100_1g.5gb:1", 1, (1, 1, Some(14.0))),
            ("gres/gpu:h100_2g.20gb=1", 1, (1, 1, Some(28.0))),
            ("gres/gpu:a30_1g.6gb=1", 1, (1, 1, Some(25.0))),
            (
                "gres/gpu:3g.20gb=1,gres/gpu:4g.20gb=1",
                1,
                (1, 1, Some(100.0)),
            ),
            ("gres/gpu:1g.10gb=7", 1, (1, 1, Some(100.0))),
            ("gres/gpu:1g.10gb=2", 2, (2, 1, Some(14.0))),
            ("gres/gpu:1g.10gb=2", 4, (2, 1, Some(14.0))),
            // No GPU holds two of these.
            ("gres/gpu:4g.20gb=2", 1, (1, 2, None)),
            ("gres/gpu:a100=1,gres/gpu:1g.5gb=2", 1, (1, 2, None)),
            ("gres/gpu:a100=4", 2, (2, 2, None)),
        ] {
            assert_eq!(
                held(tres, nodes, &SharesPerGpu::default()),
                Some(expected),
                "{tres}"
            );
        }
    }

    #[test]
    fn shards_and_mps_are_parts_of_a_gpu_of_their_node() {
        let none = SharesPerGpu::default();
        let cluster = nodes::read("NodeName=gn03 Gres=gpu:a100:4,shard:32,mps:200\n").unwrap();
        let known = SharesPerGpu::of(&cluster);
        for (tres, nodes, without, with) in [
            ("gres/shard=1", 1, None, Some((1, 1, Some(12.5)))),
            ("shard:8", 1, None, Some((1, 1, Some(100.0)))),
            ("gres/shard=12", 1, None, Some((1, 2, None))),
            ("gres/shard=4", 2, None, Some((2, 1, Some(25.0)))),
            (
                "gres/mps=25",
                1,
                Some((1, 1, Some(25.0))),
                Some((1, 1, Some(50.0))),
            ),
            ("mps:100", 1, Some((1, 1, Some(100.0))), Some((1, 2, None))),
        ] {
            assert_eq!(held(tres, nodes, &none), without, "{tres}");
            assert_eq!(held(tres, nodes, &known), with, "{tres}");
        }
    }

    #[test]
    fn a_gpu_without_a_type_is_an_instance_on_a_node_of_instances() {
        let text =
            "NodeName=gn03 Gres=gpu:a100_3g.20gb:4,gpu:a100_1g.5gb:14\nNodeName=gn02 Gres=gpu:4\n";
        let cluster = nodes::read(text).unwrap();
        let known = SharesPerGpu::of(&cluster);
        assert_eq!(held("gres/gpu=1", 1, &known), Some((1, 1, Some(50.0))));
        assert_eq!(held("gres/gpu=3", 1, &known), Some((1, 2, None)));
        assert_eq!(held("gres/gpu:a100=1", 1, &known), Some((1, 1, None)));
        assert_eq!(
            held("gres/gpu=1", 1, &SharesPerGpu::default()),
            Some((1, 1, None))
        );
        assert_eq!(known.instance("gn[02-03]"), None, "one may be a whole GPU");
        assert_eq!(known.instance(""), None);
    }

    #[test]
    fn the_instances_of_a_gpu_fill_no_more_than_it() {
        let devices = Devices::of("gres/gpu:3g.20gb=1,gres/gpu:1g.5gb=4").unwrap();
        let held = HeldPerNode::of(&devices, 1, "", &SharesPerGpu::default()).unwrap();
        assert_eq!(value::gpus_of_share(held.filled), 1, "{held:?}");
    }
}
