//! Slurm's record of a job, and in it slurmctld's allocation on one node.
//!
//! No variable of Prolog has it, and the request is a text that Slurm and gpufrac may read differently. Slurm's record
//! has the allocation, in a text for each of its nodes:
//! `gpu:half:0(IDX:),gpufrac(CNT:50),shard:half:50(IDX:3)` up to 23.02 (`gres_ctld_job_build_details`),
//! `gpufrac(CNT:50),shard:half:50(50/50,0/50)` from 23.11 on (`_build_shared_gres_details`). A node with devices of
//! several Types has an item for each of these, most of them with a count of 0.

use std::thread::sleep;
use std::time::Duration;

use gpufrac_core::config::Device;
use gpufrac_core::count_name::CountName;
use gpufrac_core::fraction::Units;
use gpufrac_core::hostlist::Hostlist;
use gpufrac_core::ids::DeviceIndex;
use gpufrac_core::slurm_text::items;
use slurm_sys::client::{JobInfo, JobState};

use super::asked::{Asked, all_of};
use crate::job::environment::JobEnv;
use crate::job::slurmctld::{Slurm, SlurmError};
use crate::slice::carve::times::LONGEST_PAUSE;

/// None if Slurm does not know the job.
type RecordAnswer = Result<Option<JobRecord>, SlurmError>;

/// Slurm's record of a job, with fractions called `gpufrac` whatever Slurm counts them as.
#[derive(Debug)]
pub struct JobRecord {
    pub info: JobInfo,
    /// The request in the record.
    pub asked: Asked,
    /// The allocation on one node; None if the record has none that can be parsed.
    pub held: Option<Allocated>,
}

impl JobRecord {
    /// `name`: what Slurm counts fractions as.
    pub fn of(mut info: JobInfo, node: &str, name: &CountName) -> Self {
        let texts = info
            .tres_per_node
            .iter_mut()
            .chain(&mut info.tres_per_task)
            .chain(&mut info.tres_elsewhere)
            .chain(&mut info.gres_of_nodes);
        for text in texts {
            *text = name.read(text).into_owned();
        }
        Self {
            asked: Asked::from(&info),
            held: Allocated::on(&info, node),
            info,
        }
    }

    /// Asks Slurm for the job, and again for the time that `patience` gives to the answer.
    pub(super) fn ask(
        job: &JobEnv,
        name: &CountName,
        slurm: &dyn Slurm,
        patience: impl Fn(&RecordAnswer) -> Duration,
    ) -> RecordAnswer {
        let start = slurm.now();
        loop {
            let answer = slurm.job(job.job_id);
            let answer = answer.map(|info| info.map(|info| Self::of(info, &job.node, name)));
            if slurm.now().duration_since(start) >= patience(&answer) {
                return answer;
            }
            sleep(LONGEST_PAUSE);
        }
    }

    /// Whether the allocation is missing, or cannot be parsed, though the job runs with a part of a GPU.
    pub(super) fn lacks_count(&self) -> bool {
        let empty = self.info.gres_of_nodes.iter().all(String::is_empty);
        let is_shared = self.asked.names_fraction() || self.asked.shares() != (None, None);
        (empty || self.held.is_none()) && self.info.state == JobState::Running && is_shared
    }

    /// The shares that the job holds on the node.
    pub fn shards(&self) -> u64 {
        self.held.as_ref().map_or(0, |held| held.shards)
    }

    /// Whether Slurm counts gpufrac on the node for the job. One with `--exclusive` holds every GRES of the node except
    /// shares, whether it asks for it or not.
    pub fn has_count(&self) -> bool {
        let counted = self.held.as_ref().map_or(0, |held| held.gpufrac);
        counted > 0 && (self.shards() > 0 || self.asked.names_fraction())
    }
}

/// The GPUs and shares that a job holds on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocated {
    /// Shares of all Types together.
    pub shards: u64,
    /// Slurm's indexes of devices that it holds as whole devices.
    devices: Vec<DeviceIndex>,
    /// The count of `gres/gpufrac`, to which limits apply.
    pub gpufrac: u64,
}

impl Allocated {
    /// The allocation in Slurm's record for `node`. None if the record has none: the job has no nodes yet, the texts
    /// do not match the nodes, or cannot be parsed.
    pub fn on(info: &JobInfo, node: &str) -> Option<Allocated> {
        if let [only] = &info.gres_of_nodes[..]
            && info.nodes == node
        {
            return read(only);
        }
        let nodes = Hostlist::parse(&info.nodes).ok()?;
        if nodes.names().len() != info.gres_of_nodes.len() {
            return None;
        }
        let position = nodes.names().iter().position(|name| name == node)?;
        read(info.gres_of_nodes.get(position)?)
    }

    /// Whether the job holds the device itself, and not shares of it.
    pub fn is_device(&self, device: &Device<'_>) -> bool {
        self.devices.contains(&device.index)
    }

    /// The units of these devices that the job holds: all units of those that it holds as devices, otherwise its
    /// shares.
    pub fn units_of(&self, devices: &[Device<'_>]) -> u64 {
        let held = devices.iter().filter(|device| self.is_device(device));
        match all_of(held) {
            Units(0) => self.shards,
            units => units.0.into(),
        }
    }

    /// The number of slices of these units in its shares; None if that is not a whole number.
    pub fn slices(&self, units: Units) -> Option<u32> {
        let units = u64::from(units.0);
        let whole = units > 0 && self.shards > 0 && self.shards.is_multiple_of(units);
        whole.then(|| u32::try_from(self.shards / units).ok())?
    }
}

/// Parses the items of a text; None if one item about GPUs cannot be parsed.
fn read(gres: &str) -> Option<Allocated> {
    let mut allocated = Allocated::default();
    for item in items(gres) {
        let (head, detail) = item.split_once('(').unwrap_or((item, ""));
        let detail = detail.strip_suffix(')');
        let mut words = head.split(':');
        match words.next()? {
            // The numbers in use follow. Without them the text was cut short, and the count may be wrong.
            "shard" => {
                detail?;
                let count = words.next_back()?.parse().ok()?;
                allocated.shards = allocated.shards.saturating_add(count);
            }
            "gpu" => allocated
                .devices
                .extend(indexes(detail?.strip_prefix("IDX:")?)?),
            "gpufrac" => {
                let count = detail?.strip_prefix("CNT:")?.parse().ok()?;
                allocated.gpufrac = allocated.gpufrac.saturating_add(count);
            }
            _ => {}
        }
    }
    Some(allocated)
}

/// Parses `0-2,5`, Slurm's notation of a bit map.
fn indexes(text: &str) -> Option<Vec<DeviceIndex>> {
    let mut found = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        // A node has no more devices than this. Checked before the range is expanded.
        if last < first || last > u32::from(u16::MAX) {
            return None;
        }
        found.extend((first..=last).map(DeviceIndex));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use gpufrac_core::config::Config;
    use proptest::prelude::*;

    use super::*;

    fn held(shards: u64, devices: &[u32], gpufrac: u64) -> Option<Allocated> {
        Some(Allocated {
            shards,
            devices: devices.iter().copied().map(DeviceIndex).collect(),
            gpufrac,
        })
    }

    #[test]
    fn counts_are_read_from_slurms_text() {
        for (text, expected) in [
            (
                "gpufrac(CNT:50),shard:50(50/50,0/50,0/50,0/50)",
                held(50, &[], 50),
            ),
            (
                "shard:half:26(26/50,0/50),gpufrac(CNT:26)",
                held(26, &[], 26),
            ),
            ("shard:half:25(IDX:3),gpufrac(CNT:25)", held(25, &[], 25)),
            // An item for each Type of the node.
            (
                "gpu:half:0(IDX:),shard:half:0(IDX:),shard:mps:40(IDX:4),gpufrac(CNT:40)",
                held(40, &[], 40),
            ),
            ("gpu:whole:1(IDX:2),gpufrac(CNT:100)", held(0, &[2], 100)),
            ("gpu:half:3(IDX:0-1,5)", held(0, &[0, 1, 5], 0)),
            ("tmpdisk(CNT:5),shard:1((null))", held(1, &[], 0)),
            ("gpufrac(CNT:50)", held(0, &[], 50)),
            ("", held(0, &[], 0)),
            ("shard:39", None),
            ("shard:(50/50)", None),
            ("shard:-1(1/2)", None),
            ("gpu:half:1", None),
            ("gpu:half:2(IDX:5-1)", None),
            ("gpu:half:2(IDX:0-4294967295)", None),
            ("gpufrac:50", None),
        ] {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn a_text_that_was_cut_short_says_no_other_number() {
        let text = "gpufrac(CNT:50),shard:half:50(50/50,0/50)";
        for end in 0..text.len() {
            let shards = read(&text[..end]).map_or(0, |held| held.shards);
            assert_eq!(shards, 0, "{}", &text[..end]);
        }
    }

    #[test]
    fn a_device_is_all_of_its_units_and_shares_are_slices() {
        let text = "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"n1\"\n";
        let config = Config::parse(text, "test").unwrap();
        let device = config.devices_of_node("n1", 1)[1];
        let units = |text: &str| read(text).unwrap().units_of(&[device]);
        assert_eq!(units("gpu:half:1(IDX:1)"), 50);
        assert_eq!(units("gpu:half:1(IDX:0)"), 0);
        assert_eq!(units("shard:half:1(IDX:1)"), 1);
        let all = config.devices_of_node("n1", 1);
        let both = read("gpu:half:2(IDX:0-1)").unwrap();
        assert_eq!(both.units_of(&all), 100);
        assert_eq!(both.units_of(&all[..1]), 50);
        let slices = |text: &str| read(text).unwrap().slices(Units(25));
        assert_eq!(slices("shard:half:50(50/50,0/50)"), Some(2));
        assert_eq!(slices("shard:half:51(51/100)"), None);
        assert_eq!(slices("gpu:half:1(IDX:1)"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "[a-d(),:/0-9-]{0,40}|(gpu|shard|gpufrac)[:(]{1,2}[0-9a-zA-Z:,/()-]{0,30}") {
            let _ = read(&text);
        }
    }
}
