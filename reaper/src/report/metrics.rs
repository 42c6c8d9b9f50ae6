//! The metrics for Prometheus.
#![expect(
    clippy::disallowed_methods,
    reason = "the server waits for its clients, beside the rounds"
)]

use std::collections::BTreeMap;

use gpufrac_records::evidence::Source;
use gpufrac_view::GpuStatus;

use crate::keep::totals::Totals;
use gpufrac_core::ids::{GpuIndex, JobId};
use gpufrac_node::state::stuck::{Lost, Stuck};

mod answer;
mod client;
mod server;
mod text;

pub use server::{Server, ServerError};
pub use text::render;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// The leases of this node.
    pub slices: Vec<SliceMetrics>,
    /// The counters since the daemon's state began.
    pub totals: Totals,
    pub node_breaker: bool,
    /// Whether the breaker of the cluster is open, as this node sees it.
    pub cluster_breaker: bool,
    /// Instances without a lease on GPUs of the pools.
    pub unleased_instances: u32,
    /// Leases, in any state, whose job has ended.
    pub overdue_leases: u32,
    pub stuck_places: u32,
    /// Units that are lost with them; 100 are a GPU.
    pub stuck_units: u32,
    /// Processes that compute although their job has no lease.
    pub strangers: u32,
    pub pools: Vec<PoolMetrics>,
    /// Whether the labels of jobs are hidden, as Slurm's `PrivateData` has `jobs`.
    pub hides_jobs: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolMetrics {
    pub pool: String,
    /// GPUs that node-setup found.
    pub gpus: u32,
    /// Of these, GPUs that cannot be used.
    pub faulty: u32,
    /// For each size of the menu, as users write it, the jobs of this size that have room.
    pub room: BTreeMap<String, u32>,
}

impl PoolMetrics {
    /// The pools of these GPUs.
    pub(crate) fn of(gpus: &[GpuStatus]) -> Vec<PoolMetrics> {
        let mut pools: BTreeMap<&str, PoolMetrics> = BTreeMap::new();
        for gpu in gpus {
            let pool = pools.entry(&gpu.pool).or_insert_with(|| PoolMetrics {
                pool: gpu.pool.clone(),
                ..PoolMetrics::default()
            });
            pool.gpus += 1;
            pool.faulty += u32::from(gpu.fault.is_some());
            for room in &gpu.room {
                *pool.room.entry(room.fraction.clone()).or_default() += room.jobs;
            }
        }
        pools.into_values().collect()
    }
}

/// The units of stuck places: of each GPU at most 100, because a device may be stuck with the slices on it.
pub(crate) fn lost_units(stuck: &[Stuck], pools: &[PoolMetrics]) -> u32 {
    if stuck.iter().any(|place| place.lost == Lost::Node) {
        return pools.iter().map(|pool| 100 * pool.gpus).sum();
    }
    let mut lost: BTreeMap<Option<GpuIndex>, u32> = BTreeMap::new();
    for place in stuck {
        *lost.entry(place.gpu_index).or_default() += place.units;
    }
    lost.into_values().map(|units| units.min(100)).sum()
}

#[derive(Clone, Debug, PartialEq)]
pub struct SliceMetrics {
    pub job: JobId,
    pub user: String,
    /// The account; empty if there is none.
    pub account: String,
    pub partition: String,
    pub pool: String,
    /// The UUID of the GPU.
    pub gpu: String,
    /// The UUID of the MIG device, otherwise that of the GPU.
    pub device: String,
    /// The fraction of the GPU, 0 to 1.
    pub fraction: f64,
    /// The busy part of the time in the last sample, 0 to 1.
    pub busy_share: Option<f64>,
    pub memory_bytes: Option<u64>,
    /// Memory that the job may use, in bytes.
    pub memory_limit_bytes: u64,
    /// Seconds since the slice was last active, or may have been.
    pub idle_seconds: f64,
    pub source: Source,
}

#[cfg(test)]
mod tests {
    use gpufrac_core::ids::DeviceIndex;

    use super::*;

    #[test]
    fn no_gpu_loses_more_than_it_has() {
        let pools = [2, 1].map(|gpus| PoolMetrics {
            gpus,
            ..PoolMetrics::default()
        });
        let node = || Stuck::of_node("gpu".to_owned(), "in use (19)".to_owned());
        let on = |gpu: u32, units: u32| {
            let mut place = node();
            place.lost = Lost::Device(DeviceIndex(gpu));
            (place.gpu_index, place.units) = (Some(GpuIndex(gpu)), units);
            place
        };
        assert_eq!(lost_units(&[], &pools), 0);
        assert_eq!(lost_units(&[on(0, 25), on(1, 100), on(1, 13)], &pools), 125);
        assert_eq!(lost_units(&[on(0, 25), node()], &pools), 300);
    }
}
