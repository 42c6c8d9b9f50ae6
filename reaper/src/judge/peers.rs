//! Messages between nodes in a shared folder: whether a node's part of a job on several nodes is stalled, and how
//! many of its leases are.
//!
//! Each node writes one small file for each job, and one for its counts. So a thousand nodes neither wait for each
//! other nor overwrite each other's data. The job's record in Slurm would be a single text that all nodes read,
//! change and write, without a way to detect changes in between, each time under slurmctld's lock.
//!
//! A file is valid as long as it is written again: the reader sees its number change, by the reader's own clock. If
//! the daemon of a node dies, its file is not written again, and the state of the node counts as unknown.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufrac_core::hostlist::Hostlist;
use gpufrac_core::ids::JobId;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_node::state::private;
use serde::{Deserialize, Serialize};

use crate::judge::breaker::UserCounts;
use crate::key::Key;
use gpufrac_node::clock::{BootTime, Clock};

const VERSION: u32 = 1;
/// The format version of a node's counts; version 2 has them by user.
const COUNT_VERSION: u32 = 2;
const FILE_MODE: u32 = 0o644;

/// A claim: the node's part of a job is stalled.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    version: u32,
    job: JobId,
    restart_count: u32,
    /// A number that changes with each write.
    number: u64,
    stalled_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseCount {
    version: u32,
    at_unix: u64,
    pub users: UserCounts,
    /// When the node last saw the breaker of the cluster open, in seconds since 1970; 0 if never.
    opened_unix: u64,
}

impl LeaseCount {
    /// The current counts. `opened`: when the breaker of the cluster was last open.
    pub fn new(users: UserCounts, opened: Option<BootTime>, clock: &dyn Clock) -> LeaseCount {
        LeaseCount {
            version: COUNT_VERSION,
            at_unix: clock.unix_now(),
            users,
            opened_unix: opened.map_or(0, |opened| clock.unix(opened)),
        }
    }

    /// When the breaker of the cluster was last open. Small differences between the clocks of nodes do no harm.
    pub fn opened(&self, clock: &dyn Clock) -> Option<BootTime> {
        let ago = clock.unix_now().saturating_sub(self.opened_unix);
        (self.opened_unix > 0).then(|| clock.now().before(Duration::from_secs(ago)))
    }
}

/// The reasons why a job on several nodes cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// The nodes of a job must agree, and they have no shared folder.
    /// Cure: Set `[paths] shared`, or accept that such jobs are never ended.
    #[error("it runs on several nodes, but gpufrac.toml names no shared folder (`[paths] shared`)")]
    NoFolder,
    /// The shared folder cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// Slurm's list of the job's nodes cannot be read.
    /// Cure: Report the list.
    #[error("its nodes `{0}` are not a list of nodes")]
    Nodes(String),
    /// Another node of the job carries out the decision.
    /// Cure: Nothing.
    #[error("node {0} decides")]
    Follower(String),
    // The claim of a node may be old, because it was not written again yet.
    /// The other node's report is too old.
    /// Cure: Look at gpufrac-reaperd on that node.
    #[error("node {0} has not confirmed that its part of the job is idle")]
    Unheard(String),
    /// The job is in use on the other node.
    /// Cure: Nothing.
    #[error("node {0} does not report its part of the job as idle")]
    Busy(String),
}

/// Access to the shared folder.
pub struct Peers {
    folder: Option<PathBuf>,
    /// This node.
    pub(crate) node: String,
    /// The last number of each claim, and the time of its last change.
    seen: HashMap<String, (u64, BootTime)>,
    counted: Option<(LeaseCount, BootTime)>,
    /// Whether root alone may enter the folders.
    hides_jobs: bool,
}

impl Peers {
    /// With the folder of the configuration.
    pub fn new(folder: Option<&Path>, node: &str) -> Peers {
        Peers {
            folder: folder.map(Path::to_owned),
            node: node.to_owned(),
            seen: HashMap::new(),
            counted: None,
            hides_jobs: false,
        }
    }

    /// Whether new folders are only for root. Those that exist keep their modes.
    pub fn hide_jobs(&mut self, hides_jobs: bool) {
        self.hides_jobs = hides_jobs;
    }

    fn open(&self, name: &str) -> Result<RootDir, PeerError> {
        let folder = self.folder.as_ref().ok_or(PeerError::NoFolder)?;
        // An admin creates the folder: if its file system is not mounted, it must not be created on another one.
        RootDir::open(folder)?;
        let mode = private::mode(self.hides_jobs);
        Ok(RootDir::create(&folder.join(name), mode)?.0)
    }

    fn name(job: JobId, node: &str) -> String {
        format!("{job}.{node}")
    }

    /// Claims that this node's part of a job is stalled.
    pub fn claim(&self, key: Key, stalled: Duration, now: BootTime) -> Result<(), PeerError> {
        let claim = Claim {
            version: VERSION,
            job: key.job_id,
            restart_count: key.restart_count,
            number: now.since(BootTime::default()).as_millis() as u64,
            stalled_ms: stalled.as_millis() as u64,
        };
        let text = serde_json::to_string(&claim).unwrap_or_default();
        let dir = self.open("claims")?;
        Ok(dir.write(&Self::name(key.job_id, &self.node), &text, FILE_MODE)?)
    }

    pub fn withdraw(&mut self, job: JobId) -> Result<(), PeerError> {
        let name = Self::name(job, &self.node);
        self.open("claims")?.remove(&name)?;
        let prefix = format!("{job}.");
        self.seen.retain(|name, _| !name.starts_with(&prefix));
        Ok(())
    }

    /// Removes claims of an earlier run of the daemon about jobs that are no longer on this node.
    pub fn tidy(&self, is_here: impl Fn(JobId) -> bool) -> Result<(), PeerError> {
        let dir = self.open("claims")?;
        for name in dir.names()? {
            let of = name.split_once('.').filter(|(_, node)| *node == self.node);
            let job = of.and_then(|(job, _)| job.parse().ok());
            if job.is_some_and(|job| !is_here(job)) {
                dir.remove(&name)?;
            }
        }
        Ok(())
    }

    /// The time for which all nodes of a job claim that their parts are stalled. `valid`: the greatest age of a
    /// claim. Only the first node of the job gets an answer, because only one node decides.
    /// Errors: a node has no claim, or the claims cannot be read.
    pub fn stalled(
        &mut self,
        key: Key,
        nodes: &str,
        own: Duration,
        now: BootTime,
        valid: Duration,
    ) -> Result<Duration, PeerError> {
        let list = Hostlist::parse(nodes).map_err(|_| PeerError::Nodes(nodes.to_owned()))?;
        let first = list.names().first().cloned().unwrap_or_default();
        let dir = self.open("claims")?;
        let mut stalled = own;
        for node in list.names().iter().filter(|node| **node != self.node) {
            let name = Self::name(key.job_id, node);
            let claim = dir
                .read(&name)?
                .and_then(|text| serde_json::from_str::<Claim>(&text).ok())
                .filter(|claim| claim.version == VERSION)
                .filter(|claim| claim.restart_count == key.restart_count);
            let Some(claim) = claim else {
                self.seen.remove(&name);
                return Err(PeerError::Busy(node.clone()));
            };
            // A claim that is read for the first time may be old.
            let (number, changed) = self
                .seen
                .get(&name)
                .copied()
                .unwrap_or((claim.number, BootTime::default()));
            let changed = if number == claim.number { changed } else { now };
            self.seen.insert(name, (claim.number, changed));
            if changed == BootTime::default() {
                return Err(PeerError::Unheard(node.clone()));
            }
            if now.since(changed) > valid {
                return Err(PeerError::Busy(node.clone()));
            }
            stalled = stalled.min(Duration::from_millis(claim.stalled_ms));
        }
        if first == self.node { Ok(stalled) } else { Err(PeerError::Follower(first)) }
    }

    /// Writes the counts of this node, rarely, because a thousand nodes do so.
    pub fn write_counts(
        &mut self,
        mut count: LeaseCount,
        now: BootTime,
        interval: Duration,
    ) -> Result<(), PeerError> {
        if self.folder.is_none() {
            return Ok(());
        }
        let before = match &self.counted {
            Some((told, _)) => Some(told.clone()),
            // A file from before the node booted, or before its daemon started.
            None => {
                let text = self.open("nodes")?.read(&self.node)?.unwrap_or_default();
                serde_json::from_str(&text).ok()
            }
        };
        let opened_before = before.map_or(0, |count: LeaseCount| count.opened_unix);
        // A wrong clock may have been ahead: readers take no count with a time in the future.
        let newest = count.at_unix + span(interval);
        let opened = [count.opened_unix, opened_before].into_iter();
        count.opened_unix = opened.filter(|unix| *unix <= newest).max().unwrap_or(0);
        if let Some((told, at)) = &self.counted {
            let same = told.users == count.users && told.opened_unix / 60 == count.opened_unix / 60;
            let pause = interval * if same { 30 } else { 6 };
            if now.since(*at) < pause {
                return Ok(());
            }
        }
        let text = serde_json::to_string(&count).unwrap_or_default();
        self.open("nodes")?.write(&self.node, &text, FILE_MODE)?;
        self.counted = Some((count, now));
        Ok(())
    }

    /// The counts of all nodes with a recent file; None without a folder. `now_unix` is in seconds since 1970.
    pub fn cluster(
        &self,
        interval: Duration,
        now_unix: u64,
    ) -> Result<Option<LeaseCount>, PeerError> {
        if self.folder.is_none() {
            return Ok(None);
        }
        let dir = self.open("nodes")?;
        let span = span(interval);
        let (oldest, newest) = (now_unix.saturating_sub(span), now_unix + span);
        let mut sum = LeaseCount {
            version: COUNT_VERSION,
            at_unix: now_unix,
            users: UserCounts::default(),
            opened_unix: 0,
        };
        for name in dir.names()? {
            let text = dir.read(&name)?.unwrap_or_default();
            let Ok(count) = serde_json::from_str::<LeaseCount>(&text) else {
                continue;
            };
            // A time in the future comes from a wrong clock, and would stay valid until then.
            let is_known = count.version == COUNT_VERSION;
            if !is_known || count.at_unix > newest || count.opened_unix > newest {
                continue;
            }
            // The time counts even if the file is old.
            sum.opened_unix = sum.opened_unix.max(count.opened_unix);
            if count.at_unix >= oldest {
                sum.users.merge(count.users);
            }
        }
        Ok(Some(sum))
    }

    /// The folder of kept records in the shared folder; None without a shared folder.
    pub fn records(&self) -> Result<Option<RootDir>, PeerError> {
        match self.folder {
            Some(_) => self.open("records").map(Some),
            None => Ok(None),
        }
    }
}

/// Seconds for which a count of a node holds.
fn span(interval: Duration) -> u64 {
    (interval * 90).as_secs().max(10)
}

#[cfg(test)]
mod tests {
    use gpufrac_core::ids::UserId;

    use super::*;
    use crate::judge::breaker::Count;
    use crate::judge::watch::tests::{KEY, at};
    use gpufrac_node::clock::SystemClock;

    const SECOND: Duration = Duration::from_secs(1);

    fn users(leases: u32, stalled: u32) -> UserCounts {
        let mut users = UserCounts::default();
        users.add(UserId(1000), Count { leases, stalled });
        users
    }

    fn two() -> (tempfile::TempDir, Peers, Peers) {
        let keep = tempfile::tempdir().unwrap();
        let path = keep.path().canonicalize().unwrap();
        let peers = |node| Peers::new(Some(&path), node);
        let (one, two) = (peers("n1"), peers("n2"));
        (keep, one, two)
    }

    fn asked(peers: &mut Peers, second: u64) -> Result<Duration, String> {
        let own = 90 * SECOND;
        let answer = peers.stalled(KEY, "n[1-2]", own, at(second), 10 * SECOND);
        answer.map_err(|error| error.to_string())
    }

    #[test]
    fn a_job_is_stalled_when_all_its_nodes_say_so_again_and_again() {
        let (_keep, mut one, mut two) = two();
        let busy = Err("node n2 does not report its part of the job as idle".to_owned());
        assert_eq!(asked(&mut one, 0), busy);
        two.claim(KEY, 50 * SECOND, at(1)).unwrap();
        let unheard = Err("node n2 has not confirmed that its part of the job is idle".to_owned());
        assert_eq!(asked(&mut one, 1), unheard, "it may be an old one");
        two.claim(KEY, 51 * SECOND, at(2)).unwrap();
        assert_eq!(asked(&mut one, 2), Ok(51 * SECOND));
        assert_eq!(asked(&mut one, 12), Ok(51 * SECOND));
        assert_eq!(asked(&mut one, 13), busy, "not written any more");
        two.claim(KEY, 62 * SECOND, at(14)).unwrap();
        assert_eq!(asked(&mut one, 14), Ok(62 * SECOND));
        two.withdraw(KEY.job_id).unwrap();
        assert_eq!(asked(&mut one, 15), busy);
        one.claim(KEY, 90 * SECOND, at(16)).unwrap();
        asked(&mut two, 16).unwrap_err();
        one.claim(KEY, 91 * SECOND, at(17)).unwrap();
        assert_eq!(asked(&mut two, 17), Err("node n1 decides".to_owned()));
    }

    #[test]
    fn another_run_of_the_job_is_another_job() {
        let (_keep, mut one, two) = two();
        let before = Key {
            restart_count: 3,
            ..KEY
        };
        for second in 0..3 {
            two.claim(before, 50 * SECOND, at(second)).unwrap();
            assert!(asked(&mut one, second).is_err());
        }
        two.tidy(|job| job == KEY.job_id).unwrap();
        assert_eq!(two.open("claims").unwrap().names().unwrap(), ["7.n2"]);
        one.tidy(|_| false).unwrap();
        assert_eq!(two.open("claims").unwrap().names().unwrap(), ["7.n2"]);
        two.tidy(|_| false).unwrap();
        assert!(two.open("claims").unwrap().names().unwrap().is_empty());
    }

    #[test]
    fn without_a_folder_nothing_is_known() {
        let mut alone = Peers::new(None, "n1");
        assert!(matches!(
            alone.stalled(KEY, "n[1-2]", SECOND, at(0), SECOND),
            Err(PeerError::NoFolder)
        ));
        assert_eq!(alone.cluster(SECOND, SystemClock.unix_now()).unwrap(), None);
        // A missing folder is not created, because its file system may not be mounted.
        let gone = Peers::new(Some(Path::new("/nonexistent/shared")), "n1");
        assert!(gone.claim(KEY, SECOND, at(0)).is_err());
    }

    #[test]
    fn the_leases_of_all_nodes_are_added() {
        let (_keep, mut one, mut two) = two();
        let count = |peers: &mut Peers, leases, stalled, second| {
            peers
                .write_counts(
                    LeaseCount::new(users(leases, stalled), None, &SystemClock),
                    at(second),
                    SECOND,
                )
                .unwrap();
        };
        count(&mut one, 4, 1, 0);
        count(&mut two, 5, 0, 0);
        count(&mut two, 5, 5, 1);
        let sum = one
            .cluster(SECOND, SystemClock.unix_now())
            .unwrap()
            .unwrap();
        assert_eq!(sum.users, users(9, 1), "not told that often");
        count(&mut two, 5, 5, 6);
        let sum = one
            .cluster(SECOND, SystemClock.unix_now())
            .unwrap()
            .unwrap();
        assert_eq!(sum.users, users(9, 6));

        let now = SystemClock.now();
        assert_eq!(sum.opened(&SystemClock), None);
        let open = now.before(300 * SECOND);
        let count = LeaseCount::new(users(5, 0), Some(open), &SystemClock);
        two.write_counts(count, at(12), SECOND).unwrap();
        let sum = one
            .cluster(SECOND, SystemClock.unix_now())
            .unwrap()
            .unwrap();
        let heard = sum.opened(&SystemClock).unwrap();
        // The file has whole seconds.
        assert!(heard.since(open) <= 2 * SECOND && open.since(heard) <= 2 * SECOND);
        // A reboot of the node does not change it.
        let mut again = Peers::new(two.folder.as_deref(), "n2");
        again
            .write_counts(
                LeaseCount::new(UserCounts::default(), None, &SystemClock),
                at(1),
                SECOND,
            )
            .unwrap();
        let sum = one
            .cluster(SECOND, SystemClock.unix_now())
            .unwrap()
            .unwrap();
        assert!(sum.opened_unix.abs_diff(SystemClock.unix(open)) <= 2);
        // A clock that is wrong by a year is ignored.
        let text = |dir: &RootDir| dir.read("n2").unwrap().unwrap();
        let dir = two.open("nodes").unwrap();
        let mut wrong: LeaseCount = serde_json::from_str(&text(&dir)).unwrap();
        wrong.opened_unix += 365 * 86400;
        wrong.users = users(100, 0);
        dir.write("n2", &serde_json::to_string(&wrong).unwrap(), FILE_MODE)
            .unwrap();
        let sum = one
            .cluster(SECOND, SystemClock.unix_now())
            .unwrap()
            .unwrap();
        assert_eq!((sum.users, sum.opened_unix), (users(4, 1), 0));
        // Its daemon, started again after the clock was set, counts again.
        let mut again = Peers::new(two.folder.as_deref(), "n2");
        let count = LeaseCount::new(users(5, 0), None, &SystemClock);
        again.write_counts(count, at(1), SECOND).unwrap();
        let sum = one.cluster(SECOND, SystemClock.unix_now()).unwrap();
        assert_eq!(sum.unwrap().users, users(9, 1));
    }
}
