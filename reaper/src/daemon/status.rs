//! Describes the node for `gpufrac status`, `top` and `web`.

use gpufrac_core::config::Device;
use gpufrac_core::layout::Side;
use gpufrac_core::lease::{Held, Lease};
use gpufrac_core::policy::Mode;
use gpufrac_node::state::stuck::{Lost, Stuck};
use gpufrac_node::version;
use gpufrac_view::{Gpu, Node, Usage, VERSION, stuck};

use super::Daemon;
use super::watched::WatchedJob;
use crate::report::errors::Topic;
use crate::report::metrics::PoolMetrics;

impl Daemon {
    /// Writes the state of the node for its users.
    pub(super) fn show(&mut self) {
        self.stuck = self.outside.slices.stuck(&self.node);
        let node = self.describe();
        self.pools = PoolMetrics::of(&node.gpus);
        let shared = self.node.shared.as_deref();
        let shown = self.outside.board.show(node, shared, self.hidden());
        self.reports
            .report_once(&self.outside.log, Topic::Status, shown.err());
    }

    fn describe(&self) -> Node {
        let stuck: Vec<_> = self.stuck.iter().map(shown).collect();
        let interval = self.node.config.reaper.interval.as_secs().max(1);
        Node {
            version: VERSION,
            node: self.node.name.clone(),
            written: self.outside.clock.unix_now(),
            interval: u32::try_from(interval).unwrap_or(u32::MAX),
            build: version::TEXT.clone(),
            config_sum: Some(self.config_sum.clone()),
            gpus: self.gpus_of_pools(&stuck),
            stuck,
        }
    }

    /// The GPUs that node-setup found; none if it has not run.
    fn gpus_of_pools(&self, stuck: &[stuck::Stuck]) -> Vec<Gpu> {
        let gpus = self.outside.slices.gpus(&self.node);
        let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
        let config = &self.node.config;
        let devices = config.devices_of_node(&self.node.name, count);
        let gpus = gpus.iter().filter_map(|(index, uuid)| {
            let device = devices.iter().find(|it| it.gpu_index == *index)?;
            let lost = stuck::lost(stuck, *index, &devices);
            Some(self.gpu(uuid, device, lost))
        });
        gpus.collect()
    }

    fn gpu(&self, uuid: &str, device: &Device<'_>, lost: Vec<Side>) -> Gpu {
        let leases = self.leases.iter();
        let leases = leases.filter(|lease| lease.slice.gpu_uuid == uuid);
        let leases: Vec<&Lease> = leases.collect();
        let mut seen = self.cleanup.seen(device.gpu_index);
        // A lease is newer than the last question to the driver.
        seen.mig = mode_of(&leases).or(seen.mig);
        seen.lost = lost;
        let mut described = Gpu::of(device, uuid, &leases, seen);
        for slice in &mut described.slices {
            let owner = slice.owner.as_ref();
            slice.usage = owner.and_then(|owner| {
                let watched = self.watched.get(&owner.job)?;
                self.usage(watched, owner.slice)
            });
        }
        described
    }

    /// How a slice of a job was used; None if no sample was taken.
    fn usage(&self, watched: &WatchedJob, number: u32) -> Option<Usage> {
        let (_, sample) = watched.last_samples().find(|(it, _)| it.number == number)?;
        let now = self.outside.clock.now();
        let policy = self.policy(watched);
        let watch = &watched.watch;
        // A dry run ends no job.
        let acts = policy.mode == Mode::On;
        let stalled = watched.stalled(policy).filter(|_| acts);
        let end = stalled.and_then(|stalled| watch.escalation.announced_end(&stalled, policy));
        Some(Usage {
            activity: sample.busy_share,
            memory_mib: sample.memory.map(|memory| memory.0),
            source: sample.source.name().to_owned(),
            idle: now.since(watch.last_active).as_secs(),
            window: stalled.map(|stalled| stalled.window.as_secs()),
            warnings: if acts { watch.escalation.warnings() } else { 0 },
            ends: end.map(|end| self.outside.clock.unix(end)),
        })
    }
}

/// A stuck place for its users. A process of a user is not named to others.
fn shown(place: &Stuck) -> stuck::Stuck {
    stuck::Stuck {
        place: place.place.clone(),
        gpu: place.gpu_index,
        device: match place.lost {
            Lost::Device(index) => Some(index),
            Lost::Lease(_) | Lost::Node => None,
        },
        since: place.since,
        failures: place.failures,
        cause: Some(if place.by_user { place.answer.clone() } else { place.cause() }),
    }
}

/// Whether the GPU is in MIG mode, by the leases on it.
fn mode_of(leases: &[&Lease]) -> Option<bool> {
    let lease = leases.first()?;
    Some(!matches!(lease.slice.held, Held::Bare))
}
