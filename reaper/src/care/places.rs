//! Places of this node that cannot be freed or used.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use gpufrac_core::config::{Device, WhenStuck};
use gpufrac_core::fraction::Units;
use gpufrac_core::lease::Lease;
use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_node::gpu::holder_names::Holders;
use gpufrac_node::job::reserve;
use gpufrac_node::node::Node;
use gpufrac_node::serves::can_serve;
use gpufrac_node::slice::hooks;
use gpufrac_node::state::stuck::{self, Lost, Stuck};

use super::units::{Search, Step, Want};
use crate::act::slices::{NodeSlices, Slices};
use gpufrac_node::clock::BootTime;
use gpufrac_node::slurm_call::node_control::{Change, Changed};
use gpufrac_node::slurm_call::{JobControl, NodeControl, SlurmAction, SlurmError};

/// The time between two attempts to free the places.
const BETWEEN_TRIES: Duration = Duration::from_secs(15);
/// The time between two searches for the holders of a place.
const BETWEEN_LOOKS: Duration = Duration::from_secs(60);
/// The time between two runs of the hook for a place.
const BETWEEN_HOOKS: Duration = Duration::from_secs(600);
/// How long more than half of a GPU may be lost before the node is drained.
const LONGEST_LOSS: Duration = Duration::from_secs(600);
/// Units of half of a GPU.
const HALF: u32 = 50;

/// The reasons why a place is not cared for.
#[derive(Debug, thiserror::Error)]
pub(super) enum PlacesError {
    /// The records cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// slurmctld did not answer or refused.
    /// Cure: Check `scontrol ping`; it is tried again.
    #[error("keeping Slurm from stuck places failed: {0}; jobs that start there go to other nodes")]
    Slurm(#[from] SlurmError),
}

/// The state between two looks.
#[derive(Default)]
pub(super) struct Places {
    tried: Option<BootTime>,
    looked: Option<BootTime>,
    /// When the hook ran, by place and first failure.
    hooked: BTreeMap<(String, u64), BootTime>,
    /// Whether slurmctld has confirmed the drain that is noted.
    is_drained: bool,
    search: Search,
}

impl Places {
    /// Looks after the places that fail. Returns whether there are any, or something is left to undo.
    pub(super) fn care(
        &mut self,
        node: &Node,
        slurm: &(impl NodeControl + JobControl),
        now: BootTime,
        log: &JobLog,
    ) -> Result<bool, PlacesError> {
        let mut failing = stuck::list(node)?;
        failing.retain(Stuck::fails);
        if failing.is_empty() {
            // The pause of a search stays: a device that rests and fails again has as little room as before.
            *self = Places {
                search: mem::take(&mut self.search),
                ..Places::default()
            };
        } else if self.run_hooks(node, &failing, now, log) || is_due(self.tried, now, BETWEEN_TRIES)
        {
            self.tried = Some(now);
            try_again(node, &failing, log)?;
        }
        let mut places = stuck::list(node)?;
        places.retain(Stuck::is_stuck);
        let look_again = is_due(self.looked, now, BETWEEN_LOOKS);
        for place in &mut places {
            let is_new = place.holders.is_none();
            if !is_new && !look_again {
                continue;
            }
            self.looked = Some(now);
            name_holders(node, place)?;
            if is_new {
                // A place failed three times, or for two minutes; the text has the answer and who holds it. Cure: Stop
                // or pause what holds it: `gpufrac check`.
                log.error(format!("{} is stuck: {}", place.place, place.cause()));
            }
        }
        self.drain(node, slurm, &places, log)?;
        let reserved = self.take_units(node, slurm, &places, now, log)?;
        let is_drained = stuck::drained(node)?.is_some();
        Ok(!failing.is_empty() || reserved || is_drained)
    }

    /// Runs the hook for places that are stuck, before anything follows from that. Returns whether it ran.
    fn run_hooks(&mut self, node: &Node, failing: &[Stuck], now: BootTime, log: &JobLog) -> bool {
        let mut ran = false;
        for place in failing.iter().filter(|place| place.is_stuck()) {
            let key = (place.place.clone(), place.since);
            if is_due(self.hooked.get(&key).copied(), now, BETWEEN_HOOKS) {
                self.hooked.insert(key, now);
                hooks::stuck(node, place, lease_of(node, place).as_ref(), log);
                ran = true;
            }
        }
        ran
    }

    /// Drains the node if too much is lost, and takes that back. Asks again until slurmctld confirms it.
    fn drain(
        &mut self,
        node: &Node,
        slurm: &impl NodeControl,
        places: &[Stuck],
        log: &JobLog,
    ) -> Result<(), PlacesError> {
        let noted = stuck::drained(node)?;
        let reason = reason_to_drain(node.config.stuck, places, noted.as_deref());
        match (noted, reason) {
            (noted, Some(reason)) if !self.is_drained => {
                let reason = noted.unwrap_or(reason);
                // Noted first: a daemon that is killed in between takes the drain back, too.
                stuck::note_drain(node, Some(&reason))?;
                let done = slurm.change(&node.name, Change::Drain(reason.clone()))?;
                self.is_drained = done == Changed::Node(true);
                if self.is_drained {
                    // `stuck = "drain"`, or more than half of a GPU was lost for ten minutes. Cure: As of a stuck
                    // place; the node is resumed by itself.
                    log.error(format!("drained the node: {reason}"));
                } else {
                    // Another reason stands there already.
                    stuck::note_drain(node, None)?;
                }
            }
            (Some(reason), None) => {
                let done = slurm.change(&node.name, Change::Undrain(reason))?;
                stuck::note_drain(node, None)?;
                self.is_drained = false;
                if done == Changed::Node(true) {
                    // The drain was taken back. Cure: Nothing.
                    log.info("the places are free again: the node takes jobs");
                }
            }
            (None, None) | (_, Some(_)) => {}
        }
        Ok(())
    }

    /// Lets jobs of root take the units of stuck places. Returns whether there are such jobs.
    fn take_units(
        &mut self,
        node: &Node,
        slurm: &(impl NodeControl + JobControl),
        places: &[Stuck],
        now: BootTime,
        log: &JobLog,
    ) -> Result<bool, PlacesError> {
        let mut have = reserve::list(node)?;
        if !have.is_empty() {
            let ids: Vec<_> = have.iter().map(|job| job.job_id).collect();
            for (id, info) in ids.iter().zip(slurm.jobs(&ids)?) {
                let is_over = info.is_none_or(|info| info.has_ended_run(info.restart_count));
                if is_over {
                    reserve::forget(node, *id)?;
                    have.retain(|job| job.job_id != *id);
                }
            }
        }
        let count = node.record().map_or(0, |record| record.gpus.len());
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let devices = node.config.devices_of_node(&node.name, count);
        // Nothing starts on a drained node, and a job of root would keep an admin's drain or reboot waiting.
        let has_any = !places.is_empty() || !have.is_empty();
        let is_emptied = self.is_drained
            || has_any && slurm.change(&node.name, Change::AskIfEmptied)? == Changed::Node(true);
        let open = places.iter().filter(|_| !is_emptied);
        let wanted: Vec<Want> = open.filter_map(want).collect();
        for step in self.search.steps(&wanted, &have, devices.len(), now) {
            match step {
                Step::Cancel(job) => {
                    slurm.act(job, 0, vec![SlurmAction::Cancel])?;
                }
                Step::Submit(want) => {
                    let Some(request) = request(node, &devices, places, want) else {
                        continue;
                    };
                    match slurm.change(&node.name, request) {
                        Ok(Changed::Reserved(job)) => {
                            if let Err(error) = reserve::note(node, job, want.units) {
                                self.search.pause(want.device, now);
                                // A job that no note names would never end.
                                slurm.act(job, 0, vec![SlurmAction::Cancel])?;
                                return Err(error.into());
                            }
                        }
                        Ok(Changed::Preempts) => {
                            self.search.pause(want.device, now);
                            // A job of root could end users' jobs, and lose the units to one. Cure: Nothing.
                            log.info("Slurm preempts jobs here, so no job of root takes the units of a stuck place; each job that starts there goes to another node");
                        }
                        Ok(_) => {}
                        Err(error) => {
                            self.search.pause(want.device, now);
                            // Slurm refuses jobs of root: `DisableRootJobs`, no association of root, a limit. Cure:
                            // Nothing, or allow root's jobs in the partition.
                            log.warning(format!(
                                "taking the units of a stuck place out of Slurm's count failed: {error}; each job that starts there goes to another node"
                            ));
                        }
                    }
                }
            }
        }
        Ok(!have.is_empty() || !wanted.is_empty())
    }
}

fn is_due(last: Option<BootTime>, now: BootTime, pause: Duration) -> bool {
    last.is_none_or(|last| now.since(last) >= pause)
}

fn lease_of(node: &Node, place: &Stuck) -> Option<Lease> {
    match &place.lost {
        Lost::Lease(name) => node.leases().ok()?.one(name).ok()?,
        Lost::Device(_) | Lost::Node => None,
    }
}

/// Tries to free the places: slices are removed, the node is looked at. Only a job can show whether a device works.
fn try_again(node: &Node, failing: &[Stuck], log: &JobLog) -> Result<(), FileError> {
    let leases: Vec<Lease> = failing
        .iter()
        .filter_map(|place| lease_of(node, place))
        .collect();
    for lease in &leases {
        hooks::before_destroy(node, lease, log);
    }
    if !leases.is_empty()
        && let Err(error) = NodeSlices.repair(node, &leases, log)
    {
        // The text has the driver's answer. Cure: Nothing: it is tried again after 15 s.
        log.warning(format!("freeing a place failed: {error}"));
    }
    if failing.iter().any(|place| place.lost == Lost::Node) && can_serve(node) {
        stuck::work(node, [Lost::Node])?;
        // What kept the whole node from it is gone. Cure: Nothing.
        log.info("the node can serve jobs again");
    }
    Ok(())
}

/// Writes who holds the place.
fn name_holders(node: &Node, place: &mut Stuck) -> Result<(), FileError> {
    let lease = lease_of(node, place);
    let record = node.record().ok();
    let gpu = |index: gpufrac_core::ids::GpuIndex| {
        record
            .as_ref()?
            .gpus
            .get(index.position())
            .map(|gpu| gpu.minor)
    };
    let holders = match (&lease, place.gpu_index.and_then(gpu)) {
        (Some(lease), _) => {
            Holders::of_place(&node.caps(), lease.slice.gpu_minor, lease.slice.instance())
        }
        (None, Some(minor)) => Holders::of_gpu(&node.caps(), minor),
        (None, None) => return Ok(()),
    };
    place.by_user |= holders.is_users();
    place.may_be_users = holders.may_be_users();
    place.holders = Some(holders.to_string());
    stuck::note(node, place)
}

/// Why the node is drained; None if it is not. `noted`: the reason of the drain that gpufrac asked for.
fn reason_to_drain(when: WhenStuck, places: &[Stuck], noted: Option<&str>) -> Option<String> {
    // What a user can cause drains no node. If a later search for the holders of the same place gives up, its drain
    // stays: the node would take jobs and be drained again in turn.
    let drained_for = |place: &Stuck| {
        noted.is_some_and(|noted| noted.starts_with(&format!("stuck: {}: ", place.place)))
    };
    let is_users = |place: &&Stuck| place.by_user || (place.may_be_users && !drained_for(place));
    let mut by_node = places.iter().filter(|place| !is_users(place));
    let first: &Stuck = match when {
        WhenStuck::Drain => by_node.next()?,
        WhenStuck::Avoid => {
            let old: Vec<&Stuck> = by_node
                .filter(|place| place.age() >= LONGEST_LOSS)
                .collect();
            let lost = |of: &Stuck| -> u32 {
                let same = old.iter().filter(|place| place.gpu_index == of.gpu_index);
                same.map(|place| place.units).sum()
            };
            let is_much = |place: &&&Stuck| place.lost == Lost::Node || lost(place) > HALF;
            *old.iter().find(is_much)?
        }
    };
    Some(format!(
        "stuck: {}; gpufrac resumes the node when it is free",
        first.reason()
    ))
}

/// The units that Slurm must not give away. None for a whole node.
fn want(place: &Stuck) -> Option<Want> {
    Some(Want {
        device: place.device?,
        units: Units(place.units),
    })
}

fn request(node: &Node, devices: &[Device<'_>], places: &[Stuck], wanted: Want) -> Option<Change> {
    let place = places.iter().find(|place| want(place) == Some(wanted))?;
    let device = devices
        .iter()
        .find(|device| device.index == wanted.device)?;
    let pool = device.pool;
    let mut menu = pool.layout.menu.iter();
    let fraction = menu.find(|entry| entry.units == wanted.units)?.fraction;
    let mut partitions = place.partition.split(',');
    // The job may have named several.
    let partition = partitions
        .find(|name| pool.serves(name))
        .or(pool.partitions.first().map(String::as_str))?;
    Some(Change::Reserve {
        partition: partition.to_owned(),
        gres: format!("{}:{fraction}", node.config.count_name),
        comment: format!("stuck: {}", place.reason()),
    })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use gpufrac_core::config::Config;
    use gpufrac_core::ids::{DeviceIndex, GpuIndex};

    use super::*;

    fn place(gpu: u32, units: u32, seconds: u64, by_user: bool) -> Stuck {
        let mut place = Stuck::of_node("gpu".to_owned(), "in use (19)".to_owned());
        place.lost = Lost::Device(DeviceIndex(gpu));
        place.gpu_index = Some(GpuIndex(gpu));
        place.units = units;
        place.by_user = by_user;
        place.aged(Duration::from_secs(seconds))
    }

    /// Promise (admins): a node is drained for stuck places if more than half of a GPU is lost for ten minutes, or at
    /// once if the site says so, and never for what a user holds.
    /// With `a_site_can_have_the_node_drained_at_once`, `what_a_user_holds_drains_no_node`.
    #[test]
    fn a_node_is_drained_if_more_than_half_of_a_gpu_is_lost_for_ten_minutes() {
        let drains = |places: &[Stuck]| reason_to_drain(WhenStuck::Avoid, places, None).is_some();
        assert!(!drains(&[place(0, 50, 9000, false)]));
        assert!(!drains(&[
            place(0, 50, 9000, false),
            place(1, 50, 9000, false)
        ]));
        assert!(drains(&[
            place(0, 50, 601, false),
            place(0, 13, 601, false)
        ]));
        assert!(!drains(&[
            place(0, 50, 601, false),
            place(0, 13, 599, false)
        ]));
        let mut node = place(0, 0, 601, false);
        node.lost = Lost::Node;
        assert!(drains(&[node]));
    }

    #[test]
    fn what_a_user_holds_drains_no_node() {
        let places = [place(0, 100, 9000, true)];
        assert_eq!(reason_to_drain(WhenStuck::Avoid, &places, None), None);
        let reason = |place: &Stuck, noted: Option<&str>| {
            reason_to_drain(WhenStuck::Drain, std::slice::from_ref(place), noted)
        };
        let mut unknown = place(0, 100, 9000, false);
        let noted = reason(&unknown, None).unwrap();
        unknown.may_be_users = true;
        unknown.holders = Some("processes that were not looked at".to_owned());
        assert_eq!(reason(&unknown, None), None);
        // A node that is drained for this place stays so, and for no other one.
        assert!(reason(&unknown, Some(&noted)).is_some());
        assert_eq!(reason(&unknown, Some("stuck: GPU 7: in use (19)")), None);
        assert_eq!(reason(&places[0], None), None);
        assert_eq!(reason(&places[0], Some(&noted)), None);
    }

    /// A slurmctld that is down at first.
    #[derive(Default)]
    struct Restarting {
        asked: RefCell<Vec<Change>>,
    }

    impl NodeControl for Restarting {
        fn change(&self, _: &str, change: Change) -> Result<Changed, SlurmError> {
            self.asked.borrow_mut().push(change);
            match self.asked.borrow().len() {
                1 => Err(SlurmError::TooSlow),
                _ => Ok(Changed::Node(true)),
            }
        }
    }

    #[test]
    fn a_drain_is_asked_for_until_slurm_confirms_it() {
        let keep = tempfile::tempdir().unwrap();
        let mut node = Node::new(Config::empty(), "n1");
        node.state = keep.path().canonicalize().unwrap();
        node.config.stuck = WhenStuck::Drain;
        let (slurm, log) = (Restarting::default(), JobLog::reaper());
        let stuck = [place(0, 13, 0, false)];
        let mut places = Places::default();
        assert!(places.drain(&node, &slurm, &stuck, &log).is_err());
        assert!(!places.is_drained);
        for _ in 0..2 {
            places.drain(&node, &slurm, &stuck, &log).unwrap();
            assert!(places.is_drained);
        }
        let asked = slurm.asked.take();
        assert!(matches!(&asked[..], [Change::Drain(one), Change::Drain(other)] if one == other));
        // The daemon is started again, and the place is freed.
        let mut places = Places::default();
        places.drain(&node, &slurm, &stuck, &log).unwrap_err();
        places.drain(&node, &slurm, &[], &log).unwrap();
        assert!(matches!(slurm.asked.borrow()[1], Change::Undrain(_)));
        assert_eq!(stuck::drained(&node).unwrap(), None);
    }

    #[test]
    fn a_site_can_have_the_node_drained_at_once() {
        let reason = reason_to_drain(WhenStuck::Drain, &[place(0, 13, 0, false)], None).unwrap();
        assert!(reason.contains("in use (19)"), "{reason}");
    }
}
