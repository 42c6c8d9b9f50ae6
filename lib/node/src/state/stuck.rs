//! Places that cannot be freed or used: `<state>/stuck/NAME`, for root alone.
//!
//! A failure that passes in seconds leaves no trace for others. A place that goes on failing takes jobs from Slurm and
//! gives them back, so the programs of the node count its failures here: the first success removes the file. The folder
//! survives a reboot because `<run>` may be the file system that is full; a file of an earlier boot counts for nothing.

use std::time::Duration;

use gpufrac_core::ids::{DeviceIndex, GpuIndex};
use gpufrac_core::lease::Lease;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_host::log::JobLog;
use serde::{Deserialize, Serialize};

use crate::node::{Node, now_boot_ms, now_unix};
use crate::state::record::boot_id;

/// The folder in `<state>`.
pub const FOLDER: &str = "stuck";
/// The file there with the reason of a drain.
const DRAINED: &str = "drained";
/// Failures after which a place is stuck: the release of its job, the next job's prolog and gpufrac-reaperd.
const FAILURES: u32 = 3;
/// A program retries for some seconds. Failures that are not so far apart count once.
const APART: Duration = Duration::from_secs(4);
/// A device on which nothing failed for so long may be tried again: only a job can show whether it works. A failure
/// then counts with those before, so one job in this time starts in vain.
const RETRIAL: Duration = Duration::from_secs(120);
/// The time after the first failure after which it is stuck, however seldom it was tried.
const PATIENCE: Duration = Duration::from_secs(120);

/// What cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lost {
    /// The slice of a lease whose job has ended, by the lease's name.
    Lease(String),
    /// A device of Slurm, on which no slice can be made.
    Device(DeviceIndex),
    /// All GPUs of the node.
    Node,
}

/// A place that fails.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stuck {
    /// The boot of the failures.
    boot_id: String,
    /// What is lost.
    pub lost: Lost,
    /// The place in words, such as `GPU 0 1g.10gb at 3:1`.
    pub place: String,
    /// NVML's index of the GPU; None for the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_index: Option<GpuIndex>,
    /// The UUID of the GPU, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_uuid: Option<String>,
    /// The device of Slurm; None for the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<DeviceIndex>,
    /// Units that are lost on the GPU, of 100; 0 for the node, which has lost all.
    pub units: u32,
    /// A partition of the place's jobs.
    pub partition: String,
    /// The first failure: seconds since 1970.
    pub since: u64,
    /// The first failure: milliseconds since the boot.
    since_boot_ms: u64,
    /// The last failure: milliseconds since the boot.
    last_boot_ms: u64,
    /// How often the place failed; failures within four seconds count once.
    pub failures: u32,
    /// The last error: what the driver, a file or a program answered.
    pub answer: String,
    /// Who holds the place, in words; None until somebody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holders: Option<String>,
    /// Whether a process of a user is the cause. Then the node is not drained.
    #[serde(default)]
    pub by_user: bool,
    /// Whether a user's process, which could not be searched, may be the cause. The node is not drained meanwhile.
    #[serde(default)]
    pub may_be_users: bool,
}

impl Lost {
    fn file(&self) -> String {
        match self {
            Lost::Lease(name) => format!("lease-{name}"),
            Lost::Device(index) => format!("device-{index}"),
            Lost::Node => "node".to_owned(),
        }
    }
}

impl Stuck {
    /// The slice of a lease that cannot be removed.
    pub fn of_lease(lease: &Lease, answer: String) -> Stuck {
        Stuck {
            lost: Lost::Lease(lease.name()),
            place: lease.place(),
            gpu_index: Some(lease.slice.gpu_index),
            gpu_uuid: Some(lease.slice.gpu_uuid.clone()),
            device: Some(lease.slice.device_index),
            units: lease.units.0,
            partition: lease.partition.clone(),
            ..Stuck::of_node(String::new(), answer)
        }
    }

    /// A node that can serve no job. `partition`: of the job that it could not serve.
    pub fn of_node(partition: String, answer: String) -> Stuck {
        Stuck {
            // It exists since Linux 2.4.
            boot_id: boot_id().unwrap_or_default(),
            lost: Lost::Node,
            place: "the node".to_owned(),
            gpu_index: None,
            gpu_uuid: None,
            device: None,
            units: 0,
            partition,
            since: now_unix(),
            since_boot_ms: now_boot_ms(),
            last_boot_ms: now_boot_ms(),
            failures: 1,
            answer,
            holders: None,
            by_user: false,
            may_be_users: false,
        }
    }

    /// Whether the place cannot be used now.
    pub fn fails(&self) -> bool {
        let rests = now_boot_ms().saturating_sub(self.last_boot_ms);
        let is_on_trial = u128::from(rests) >= RETRIAL.as_millis();
        !is_on_trial || !matches!(self.lost, Lost::Device(_))
    }

    /// Whether the failures are more than a job that is slow to end.
    pub fn is_stuck(&self) -> bool {
        self.fails() && (self.failures >= FAILURES || self.age() >= PATIENCE)
    }

    /// The time since the first failure.
    pub fn age(&self) -> Duration {
        Duration::from_millis(now_boot_ms().saturating_sub(self.since_boot_ms))
    }

    /// The same place, that failed first so long ago.
    pub fn aged(self, age: Duration) -> Stuck {
        let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        Stuck {
            since_boot_ms: now_boot_ms().saturating_sub(age),
            ..self
        }
    }

    /// The place, its failure and its holders in one line.
    pub fn reason(&self) -> String {
        format!("{}: {}", self.place, self.cause())
    }

    /// The failure and the holders.
    pub fn cause(&self) -> String {
        match &self.holders {
            Some(holders) => format!("{}; {holders}", self.answer),
            None => self.answer.clone(),
        }
    }

    fn again(self, next: Stuck) -> Stuck {
        let apart = next.last_boot_ms.saturating_sub(self.last_boot_ms);
        let counts = apart >= APART.as_millis() as u64;
        Stuck {
            failures: self.failures.saturating_add(counts.into()),
            last_boot_ms: if counts { next.last_boot_ms } else { self.last_boot_ms },
            answer: next.answer,
            by_user: self.by_user || next.by_user,
            ..self
        }
    }

    fn is_of_this_boot(&self) -> bool {
        boot_id().is_ok_and(|boot| boot == self.boot_id)
    }
}

/// Counts a failure of a place. The time of the first failure and the holders stay.
/// Errors: the file cannot be read or written.
pub fn fail(node: &Node, failure: Stuck) -> Result<Stuck, FileError> {
    let (dir, _) = RootDir::create(&node.state.join(FOLDER), 0o700)?;
    let name = failure.lost.file();
    let counted = match parse(dir.read(&name)?) {
        Some(before) => before.again(failure),
        None => failure,
    };
    write(&dir, &counted)?;
    Ok(counted)
}

/// Writes what was learned of a place, unless it was freed meanwhile. Errors: the file cannot be read or written.
pub fn note(node: &Node, stuck: &Stuck) -> Result<(), FileError> {
    let Some(dir) = folder(node)? else {
        return Ok(());
    };
    if dir.exists(&stuck.lost.file())? { write(&dir, stuck) } else { Ok(()) }
}

/// These places can be used again. Costs one system call on a node on which nothing failed.
/// Errors: a file cannot be removed.
pub fn work(node: &Node, lost: impl IntoIterator<Item = Lost>) -> Result<(), FileError> {
    let Some(dir) = folder(node)? else {
        return Ok(());
    };
    for lost in lost {
        dir.remove(&lost.file())?;
    }
    Ok(())
}

/// As [`work`], where nothing depends on it.
pub fn forget(node: &Node, lost: impl IntoIterator<Item = Lost>, log: &JobLog) {
    if let Err(error) = work(node, lost) {
        // `/var/lib/gpufrac` cannot be written, so a place that works is still known as failing. Cure: Free space, or
        // mount it writable.
        log.warning(format!("forgetting earlier failures failed: {error}"));
    }
}

/// The places that failed last time they were tried, by name. Damaged files, those of an earlier boot and
/// those of leases that are gone are left out. Errors: the folder cannot be read.
pub fn list(node: &Node) -> Result<Vec<Stuck>, FileError> {
    let Some(dir) = folder(node)? else {
        return Ok(Vec::new());
    };
    // `names` sorts. A temporary file belongs to a program that writes it now.
    let names = dir
        .names()?
        .into_iter()
        .filter(|name| !RootDir::is_temporary(name));
    let texts: Result<Vec<_>, _> = names.map(|name| dir.read(&name)).collect();
    let store = node.leases().ok();
    let stands = |stuck: &Stuck| match (&stuck.lost, &store) {
        // A damaged lease keeps its place, too.
        (Lost::Lease(name), Some(store)) => !matches!(store.one(name), Ok(None)),
        _ => true,
    };
    Ok(texts?
        .into_iter()
        .filter_map(parse)
        .filter(stands)
        .collect())
}

/// Forgets the failures of an earlier boot. A drain is still to be taken back. Errors: a file cannot be removed.
pub fn forget_all(node: &Node) -> Result<(), FileError> {
    let Some(dir) = folder(node)? else {
        return Ok(());
    };
    for name in dir.names()?.iter().filter(|name| *name != DRAINED) {
        dir.remove(name)?;
    }
    Ok(())
}

/// The reason for which gpufrac drained this node because of stuck places; None if it did not.
/// Errors: the file cannot be read.
pub fn drained(node: &Node) -> Result<Option<String>, FileError> {
    folder(node)?.map_or(Ok(None), |dir| dir.read(DRAINED))
}

/// Notes the reason, or that the drain was taken back. Errors: the file cannot be written or removed.
pub fn note_drain(node: &Node, reason: Option<&str>) -> Result<(), FileError> {
    let (dir, _) = RootDir::create(&node.state.join(FOLDER), 0o700)?;
    match reason {
        Some(reason) => dir.write(DRAINED, reason, 0o600),
        None => dir.remove(DRAINED).map(drop),
    }
}

fn folder(node: &Node) -> Result<Option<RootDir>, FileError> {
    RootDir::find(&node.state.join(FOLDER))
}

fn parse(text: Option<String>) -> Option<Stuck> {
    let stuck: Option<Stuck> = serde_json::from_str(&text?).ok();
    stuck.filter(Stuck::is_of_this_boot)
}

fn write(dir: &RootDir, stuck: &Stuck) -> Result<(), FileError> {
    // The type has no map and no number that JSON lacks.
    let text = serde_json::to_string(stuck).unwrap_or_default();
    dir.write(&stuck.lost.file(), &text, 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpufrac_core::config::Config;

    fn node(keep: &tempfile::TempDir) -> Node {
        let mut node = Node::new(Config::empty(), "n1");
        node.state = keep.path().canonicalize().unwrap();
        node
    }

    fn failure() -> Stuck {
        Stuck {
            lost: Lost::Device(DeviceIndex(3)),
            ..Stuck::of_node("gpu".to_owned(), "in use (19)".to_owned())
        }
    }

    /// Promise (admins): a place is stuck at its third failure or after two minutes, and works again at the first
    /// success.
    /// With `a_place_that_works_again_is_forgotten`.
    #[test]
    fn a_place_is_stuck_at_its_third_failure_or_after_two_minutes() {
        let keep = tempfile::tempdir().unwrap();
        let node = node(&keep);
        let after = |seconds: u64| Stuck {
            last_boot_ms: failure().last_boot_ms + 1000 * seconds,
            ..failure()
        };
        let first = fail(&node, failure()).unwrap();
        assert!(!first.is_stuck());
        for (seconds, failures) in [(1, 1), (3, 1), (5, 2), (7, 2)] {
            assert_eq!(fail(&node, after(seconds)).unwrap().failures, failures);
        }
        let third = fail(&node, after(10)).unwrap();
        assert!(third.is_stuck() && third.since_boot_ms == first.since_boot_ms);
        assert!(failure().aged(PATIENCE).is_stuck());
    }

    #[test]
    fn a_device_that_rests_is_tried_again_and_the_next_failure_counts_at_once() {
        let keep = tempfile::tempdir().unwrap();
        let node = node(&keep);
        let rests = u64::try_from(RETRIAL.as_millis()).unwrap();
        let before = Stuck {
            last_boot_ms: now_boot_ms().saturating_sub(rests),
            failures: 3,
            ..failure()
        };
        assert!(!fail(&node, before.clone()).unwrap().is_stuck());
        let slice = Stuck {
            lost: Lost::Lease("7".to_owned()),
            ..before
        };
        assert!(slice.is_stuck());
        let next = fail(&node, failure()).unwrap();
        assert!(next.is_stuck() && next.failures == 4);
    }

    #[test]
    fn a_place_that_works_again_is_forgotten() {
        let keep = tempfile::tempdir().unwrap();
        let node = node(&keep);
        work(&node, [failure().lost]).unwrap();
        assert!(list(&node).unwrap().is_empty());
        fail(&node, failure()).unwrap();
        assert_eq!(list(&node).unwrap().len(), 1);
        work(&node, [failure().lost, Lost::Node]).unwrap();
        // Somebody looked for the holders meanwhile.
        note(&node, &failure()).unwrap();
        assert!(list(&node).unwrap().is_empty());
    }

    #[test]
    fn failures_of_an_earlier_boot_count_for_nothing() {
        let keep = tempfile::tempdir().unwrap();
        let node = node(&keep);
        let earlier = Stuck {
            boot_id: "another".to_owned(),
            failures: 7,
            ..failure()
        };
        fail(&node, earlier).unwrap();
        assert!(list(&node).unwrap().is_empty());
        assert_eq!(fail(&node, failure()).unwrap().failures, 1);
    }
}
