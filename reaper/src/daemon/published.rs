//! What is published: the state of the node for `gpufrac status`, `top` and `web`, metrics, and mail.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use gpufrac_core::lease::{Held, Lease};
use gpufrac_core::private_data::PrivateData;
use gpufrac_node::node::Node;
use gpufrac_node::state::stuck::{Lost, Stuck};
use gpufrac_node::version;
use gpufrac_view::{GpuStatus, Owner, VERSION, stuck};

use super::decisions::Findings;
use crate::act::mail::Message;
use crate::act::mail_queue::MailQueue;
use crate::report::errors::topic;
use crate::report::metrics::{PoolMetrics, Snapshot, lost_units};
use crate::round::Round;

pub(super) struct Published {
    /// The metrics, which a thread serves.
    snapshot: Arc<Mutex<Snapshot>>,
    mail_queue: MailQueue,
    /// `Config::sum` of the node's configuration.
    config_sum: String,
    /// The pools at the end of the last round.
    pools: Vec<PoolMetrics>,
    /// The places that were stuck then.
    stuck: Vec<Stuck>,
}

impl Published {
    pub(super) fn new(node: &Node, snapshot: Arc<Mutex<Snapshot>>) -> Published {
        Published {
            snapshot,
            mail_queue: MailQueue::new(),
            config_sum: node.config.sum(),
            pools: Vec::new(),
            stuck: Vec::new(),
        }
    }

    /// The pools at the end of the last round.
    pub(super) fn pools(&self) -> &[PoolMetrics] {
        &self.pools
    }

    pub(super) fn reload(&mut self, node: &Node) {
        self.config_sum = node.config.sum();
    }

    pub(super) fn send(&self, round: &Round, mails: impl IntoIterator<Item = Message>) {
        for message in mails {
            self.mail_queue.send(&round.settings().mail, message);
        }
    }

    /// Writes the state of the node for its users.
    pub(super) fn show(
        &mut self,
        round: &mut Round,
        leases: &[Lease],
        findings: &Findings<'_>,
        hidden: PrivateData,
    ) {
        let Round { node, outside, .. } = &*round;
        self.stuck = outside.slices.stuck(node);
        let stuck: Vec<_> = self.stuck.iter().map(shown).collect();
        let interval = node.config.reaper.interval.as_secs().max(1);
        let view = gpufrac_view::NodeStatus {
            version: VERSION,
            node: node.name.clone(),
            written: outside.clock.unix_now(),
            interval: u32::try_from(interval).unwrap_or(u32::MAX),
            build: version::TEXT.clone(),
            config_sum: Some(self.config_sum.clone()),
            gpus: gpus_of_pools(round, leases, findings, &stuck),
            stuck,
        };
        self.pools = PoolMetrics::of(&view.gpus);
        let Round { node, outside, .. } = round;
        let shown = outside.board.show(view, node.shared.as_deref(), hidden);
        round.report(topic::STATUS, shown);
    }

    /// Gives the metrics to the thread that serves them.
    pub(super) fn publish(&self, round: &mut Round, findings: Findings<'_>, hidden: PrivateData) {
        round.totals.mail_errors += self.mail_queue.failed();
        round.totals.jobs_put_back += round.outside.put_back.swap(0, Ordering::Relaxed);
        // Root's folder cannot be read; the metrics lack the jobs of this time. Cure: Follow the text.
        let outcomes = round.outside.slices.outcomes(&round.node);
        round.report(topic::OUTCOMES, outcomes.as_ref());
        for outcome in outcomes.iter().flatten() {
            round.totals.hooks.add(outcome);
        }
        let snapshot = Snapshot {
            slices: findings.slices,
            totals: round.totals.clone(),
            node_breaker: findings.breakers.node,
            cluster_breaker: findings.breakers.cluster,
            unleased_instances: findings.cleanup.unleased.len() as u32,
            overdue_leases: findings.cleanup.overdue,
            stuck_places: self.stuck.len() as u32,
            stuck_units: lost_units(&self.stuck, &self.pools),
            pools: self.pools.clone(),
            hides_jobs: hidden.jobs,
            strangers: findings.cleanup.strangers.len() as u32,
        };
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    pub(super) fn stop(&mut self) {
        self.mail_queue.finish();
    }
}

/// The GPUs that node-setup found; none if it has not run.
fn gpus_of_pools(
    Round { node, outside, .. }: &Round,
    leases: &[Lease],
    findings: &Findings<'_>,
    stuck: &[stuck::Stuck],
) -> Vec<GpuStatus> {
    let gpus = outside.slices.gpus(node);
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    let devices = node.config.devices_of_node(&node.name, count);
    let gpus = gpus.iter().filter_map(|(index, uuid)| {
        let device = devices.iter().find(|it| it.gpu_index == *index)?;
        let leases = leases.iter();
        let leases: Vec<&Lease> = leases.filter(|it| it.slice.gpu_uuid == *uuid).collect();
        let mut seen = findings.cleanup.seen(*index);
        // A lease is newer than the last question to the driver.
        seen.mig = mode_of(&leases).or(seen.mig);
        seen.lost = stuck::lost(stuck, *index, &devices);
        let mut gpu = GpuStatus::of(device, uuid, &leases, seen);
        for slice in &mut gpu.slices {
            let of_slice = |owner: &Owner| {
                let usage = findings.usage.get(&(owner.job, owner.slice));
                usage.cloned()
            };
            slice.usage = slice.owner.as_ref().and_then(of_slice);
        }
        Some(gpu)
    });
    gpus.collect()
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
