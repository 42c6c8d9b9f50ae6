//! Takes a sample of each lease from the driver, dcgm-exporter and control groups.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use gpufrac_core::ids::UserId;
use gpufrac_core::lease::Lease;
use gpufrac_core::policy::Policy;
use gpufrac_node::node::Node;
use gpufrac_nvml::Loaded;
use gpufrac_records::evidence::Source;

use super::cpu::JobGroups;
use super::observation::Observation;
use super::owners::Owners;
use super::sample::{Activity, NodeSamples, Sample, Sampler};
use super::view::{NoHistory, View, views};
use crate::key::{Key, SliceId};
use gpufrac_node::clock::{BootTime, Clock, SystemClock};
use gpufrac_node::gpu::dcgm::{Dcgm, InstanceId};

/// The shortest time between two readings of an instance's counters (nvml.h, GPM).
pub const SHORTEST_LOOK: Duration = Duration::from_millis(100);
/// The largest drift between wall clock and boot clock from one sample to the next.
const LARGEST_CLOCK_DRIFT: Duration = Duration::from_secs(1);

/// How long the driver keeps the activity of processes. nvml.h does not say how long; this is a cautious value.
const SHORTEST_DRIVER_HISTORY: Duration = Duration::from_secs(20);

/// CPU cores that jobs kept busy, read once for each job in a sample, because a job may have several slices.
type Cores = HashMap<Key, Option<f64>>;

/// The data that are kept from sample to sample.
pub struct Telemetry {
    clock: SystemClock,
    /// The loaded library of the driver, without a session.
    _library: Option<Loaded>,
    groups: JobGroups,
    dcgm: Option<Dcgm>,
    /// The time of the last sample by both clocks.
    last: Option<(BootTime, u64)>,
    /// The slices that were sampled before.
    seen: HashSet<(Key, SliceId)>,
    /// The users with slices on the node.
    tenants: BTreeSet<UserId>,
    owners: Owners,
}

impl Telemetry {
    pub fn new(node: &Node) -> Telemetry {
        let exporter = node.config.reaper.dcgm_exporter.clone();
        Telemetry {
            clock: SystemClock,
            _library: Loaded::keep(&node.nvml),
            groups: JobGroups::find(&node.name),
            dcgm: exporter.map(Dcgm::new),
            last: None,
            seen: HashSet::new(),
            tenants: BTreeSet::new(),
            owners: Owners::default(),
        }
    }
}

impl Sampler for Telemetry {
    fn sample_all<'p>(
        &mut self,
        node: &Node,
        leases: &[&Lease],
        observe: &mut dyn FnMut() -> bool,
        policy: &dyn Fn(&Lease) -> &'p Policy,
    ) -> NodeSamples {
        let mut found = NodeSamples::default();
        let keys: HashSet<Key> = leases.iter().map(|lease| Key::of(lease)).collect();
        self.groups.look(|key| keys.contains(key));
        self.seen.retain(|(key, _)| keys.contains(key));
        self.tenants = leases.iter().map(|lease| lease.user_id).collect();
        if leases.is_empty() {
            self.last = None;
            return found;
        }
        let before = self.last;
        let interval = self.interval();
        let views = views(node, leases, observe, interval, &mut found.errors);
        let Some(views) = views else {
            // The driver's records since then were not read, so the next sample must begin there.
            self.last = before;
            return found;
        };
        let energy = views
            .iter()
            .filter_map(|(gpu, view)| Some((gpu.clone(), view.energy_mj?)));
        found.energy = energy.collect();
        let now = self.clock.now();
        let dcgm = self.read_dcgm(now, &mut found.errors);
        let mut cores = Cores::new();
        for lease in leases {
            let gpu = &lease.slice.gpu_uuid;
            let neighbours: Vec<&Lease> = leases
                .iter()
                .filter(|other| other.slice.gpu_uuid == *gpu)
                .copied()
                .collect();
            let view = views.get(gpu);
            let dcgm = dcgm.as_ref();
            let sample = self.sample(lease, view, &neighbours, dcgm, policy(lease), &mut cores);
            let id = SliceId::of(lease);
            let is_first = self.seen.insert((Key::of(lease), id));
            if !(is_first && compares_looks(&sample)) {
                found.samples.insert(id, sample);
            }
        }
        // A process may end right after a sample. As samples overlap by up to a second, two of them report it then.
        let kept = node.config.reaper.interval * 2 + LARGEST_CLOCK_DRIFT * 2;
        self.owners.update(&views, now, kept);
        found
    }

    fn sample_again(
        &mut self,
        node: &Node,
        leases: &[&Lease],
        neighbours: &[&Lease],
        policy: &Policy,
    ) -> Vec<Sample> {
        let observe = || {
            #[expect(clippy::disallowed_methods, reason = "waits for real counters")]
            std::thread::sleep(SHORTEST_LOOK);
            true
        };
        let before = self.last;
        let interval = self.interval();
        // The next sample of all slices must begin where the last one ended.
        self.last = before;
        let mut errors = Vec::new();
        // Only the job's own instances, because another one may be in release.
        let views = views(node, leases, observe, interval, &mut errors).unwrap_or_default();
        let dcgm = self.read_dcgm(self.clock.now(), &mut errors);
        let mut cores = Cores::new();
        let mut sample = |lease: &Lease| {
            let view = views.get(&lease.slice.gpu_uuid);
            self.sample(lease, view, neighbours, dcgm.as_ref(), policy, &mut cores)
        };
        leases.iter().map(|lease| sample(lease)).collect()
    }

    fn has_processes(&self, lease: &Lease) -> bool {
        self.groups.has_processes(lease)
    }

    fn is_suspended(&self, lease: &Lease) -> bool {
        self.groups.is_frozen(lease)
    }

    fn reload(&mut self, node: &Node) {
        *self = Telemetry::new(node);
    }
}

impl Telemetry {
    fn sample(
        &mut self,
        lease: &Lease,
        view: Option<&View>,
        neighbours: &[&Lease],
        dcgm: Option<&HashMap<InstanceId, f64>>,
        policy: &Policy,
        cores: &mut Cores,
    ) -> Sample {
        let Some(view) = view else {
            return Sample::missing("the driver does not answer for its GPU");
        };
        let measured = lease.slice.mps().is_none() && view.measures(lease, dcgm.is_some());
        Observation {
            lease,
            view,
            neighbours,
            dcgm,
            owners: &self.owners,
            policy,
            cores: if measured {
                // Not read, because it takes longer than everything else.
                None
            } else {
                *cores
                    .entry(Key::of(lease))
                    .or_insert_with(|| self.groups.cores(lease, self.clock.now()))
            },
        }
        .sample()
    }

    /// The start of the time for which the driver's records are read, in microseconds of the wall clock, which the
    /// driver uses. An error if the wall clock was set since the last sample, because the records cannot be assigned
    /// then.
    fn interval(&mut self) -> Result<u64, NoHistory> {
        let (now, wall) = (self.clock.now(), self.clock.unix_now());
        let Some((then, wall_then)) = self.last.replace((now, wall)) else {
            return Err(NoHistory::FirstLook);
        };
        let passed = now.since(then);
        let by_wall = Duration::from_secs(wall.saturating_sub(wall_then));
        let by_wall = if wall < wall_then { return Err(NoHistory::ClockSetBack) } else { by_wall };
        // Whole seconds of the wall clock are inexact by one in both directions.
        if by_wall.abs_diff(passed) > LARGEST_CLOCK_DRIFT + Duration::from_secs(1) {
            return Err(NoHistory::ClockSet);
        }
        if passed > SHORTEST_DRIVER_HISTORY {
            return Err(NoHistory::TooShort);
        }
        let passed = passed.as_micros() as u64;
        Ok((wall * 1_000_000).saturating_sub(passed))
    }

    fn read_dcgm(
        &mut self,
        now: BootTime,
        errors: &mut Vec<String>,
    ) -> Option<HashMap<InstanceId, f64>> {
        let read = self.dcgm.as_mut()?.read(now, &self.tenants);
        Some(read.unwrap_or_else(|error| {
            errors.push(format!("dcgm-exporter: {error}"));
            HashMap::new()
        }))
    }
}

/// Whether a sample has no result because there is no earlier sample to compare with. This does not count as
/// activity; otherwise no job could ever be found that never used its slice.
fn compares_looks(sample: &Sample) -> bool {
    let compares = match sample.source {
        Source::Processes | Source::ProcessUtilization | Source::MpsClients => true,
        Source::Gpm | Source::Dcgm | Source::Missing => false,
    };
    compares && matches!(sample.activity, Activity::Unknown(_))
}
