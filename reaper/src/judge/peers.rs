//! What nodes tell each other, in a folder that they share: whether their part of a job that runs on
//! several nodes is stalled, and how many of their leases are.
//!
//! One small file for each node and job, written by that node alone: a thousand nodes do not wait for each other
//! and lose nothing. The record of the job in Slurm would be one text that all of them read, change and
//! write back, without a way to see that another did so in between, each time under slurmctld's lock.
//!
//! A file counts as long as it is written again and again: the reader sees its number change by its own clock. A node
//! whose daemon died says nothing any more, and nothing is known of it then.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufrac_core::hostlist::Hostlist;
use gpufrac_core::ids::JobId;
use gpufrac_host::files::{FileError, RootDir};
use serde::{Deserialize, Serialize};

use crate::clock::{BootTime, Clock};
use crate::judge::breaker::UserCounts;
use crate::key::Key;

/// Of a claim.
const VERSION: u32 = 1;
/// Of the count of a node's leases: the second one has them by user.
const COUNT_VERSION: u32 = 2;
/// Of the files.
const FILE_MODE: u32 = 0o644;
const FOLDER_MODE: u32 = 0o755;

/// A node's part of a job is stalled.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    version: u32,
    job: JobId,
    restart_count: u32,
    /// Another one each time that it is written.
    number: u64,
    stalled_ms: u64,
}

/// The leases of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseCount {
    version: u32,
    at_unix: u64,
    /// Those of each user.
    pub users: UserCounts,
    /// When the node last saw the breaker of the cluster open: seconds since 1970, 0 for never.
    opened_unix: u64,
}

impl LeaseCount {
    /// Now. `opened`: when the breaker of the cluster was last seen open.
    pub fn new(users: UserCounts, opened: Option<BootTime>, clock: &dyn Clock) -> LeaseCount {
        LeaseCount {
            version: COUNT_VERSION,
            at_unix: clock.unix_now(),
            users,
            opened_unix: opened.map_or(0, |opened| clock.unix(opened)),
        }
    }

    /// When the breaker of the cluster was last seen open; clocks of nodes that differ a little do no harm.
    pub fn opened(&self, clock: &dyn Clock) -> Option<BootTime> {
        let ago = clock.unix_now().saturating_sub(self.opened_unix);
        (self.opened_unix > 0).then(|| clock.now().before(Duration::from_secs(ago)))
    }
}

/// Why a job on several nodes cannot be judged.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// No folder.
    #[error(
        "it runs on several nodes, and gpufrac.toml names no folder that they share (`[paths] shared`)"
    )]
    NoFolder,
    /// The folder.
    #[error(transparent)]
    File(#[from] FileError),
    /// The nodes of the job are not known.
    #[error("its nodes `{0}` are not a list of nodes")]
    Nodes(String),
    /// Another node decides.
    #[error("node {0} decides")]
    Follower(String),
    /// What a node said may be old: it has not said it again yet.
    #[error("node {0} has not confirmed that its part of the job is idle")]
    Unheard(String),
    /// A node does not report its part as stalled.
    #[error("node {0} does not report its part of the job as idle")]
    Busy(String),
}

/// The shared folder.
pub struct Peers {
    folder: Option<PathBuf>,
    node: String,
    /// The last content of each claim, and the time of its last change.
    seen: HashMap<String, (u64, BootTime)>,
    counted: Option<(LeaseCount, BootTime)>,
}

impl Peers {
    /// With the folder of the configuration.
    pub fn new(folder: Option<&Path>, node: &str) -> Peers {
        Peers {
            folder: folder.map(Path::to_owned),
            node: node.to_owned(),
            seen: HashMap::new(),
            counted: None,
        }
    }

    fn open(&self, name: &str) -> Result<RootDir, PeerError> {
        let folder = self.folder.as_ref().ok_or(PeerError::NoFolder)?;
        // The folder itself is the admin's to make: a file system that is not mounted must not get one.
        RootDir::open(folder)?;
        Ok(RootDir::create(&folder.join(name), FOLDER_MODE)?.0)
    }

    fn name(job: JobId, node: &str) -> String {
        format!("{job}.{node}")
    }

    /// Says that this node's part of a job is stalled.
    ///
    /// # Errors
    /// The folder cannot be written.
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

    /// Takes it back.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn withdraw(&mut self, job: JobId) -> Result<(), PeerError> {
        let name = Self::name(job, &self.node);
        self.open("claims")?.remove(&name)?;
        let prefix = format!("{job}.");
        self.seen.retain(|name, _| !name.starts_with(&prefix));
        Ok(())
    }

    /// Takes back all that a run before this one said of jobs that are not here any more.
    ///
    /// # Errors
    /// The folder cannot be read or written.
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

    /// For how long all nodes of a job say that their parts are stalled. `valid`: how old a word may be. Only the first
    /// node of the job gets an answer: one decides.
    ///
    /// # Errors
    /// A node does not say so, or that cannot be read.
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
            // A claim that is seen for the first time may be an old one.
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
        match first == self.node {
            true => Ok(stalled),
            false => Err(PeerError::Follower(first)),
        }
    }

    /// Tells the others how many leases are stalled here; seldom, as a thousand nodes do so.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn tell(
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
            // From before this node was booted, or its daemon started.
            None => {
                let text = self.open("nodes")?.read(&self.node)?.unwrap_or_default();
                serde_json::from_str(&text).ok()
            }
        };
        let opened_before = before.map_or(0, |count: LeaseCount| count.opened_unix);
        count.opened_unix = count.opened_unix.max(opened_before);
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

    /// The leases of the cluster, as far as its nodes said lately; None without a folder. `now_unix`: seconds since 1970.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn cluster(
        &self,
        interval: Duration,
        now_unix: u64,
    ) -> Result<Option<LeaseCount>, PeerError> {
        if self.folder.is_none() {
            return Ok(None);
        }
        let dir = self.open("nodes")?;
        let span = (interval * 90).as_secs().max(10);
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
            // A time in the future is from a wrong clock, and would stay valid until then.
            let is_known = count.version == COUNT_VERSION;
            if !is_known || count.at_unix > newest || count.opened_unix > newest {
                continue;
            }
            // However old the word is.
            sum.opened_unix = sum.opened_unix.max(count.opened_unix);
            if count.at_unix >= oldest {
                sum.users.merge(count.users);
            }
        }
        Ok(Some(sum))
    }

    /// The folder of kept records, if there is one.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn records(&self) -> Result<Option<RootDir>, PeerError> {
        match self.folder {
            Some(_) => self.open("records").map(Some),
            None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use gpufrac_core::ids::UserId;

    use super::*;
    use crate::clock::SystemClock;
    use crate::judge::breaker::Count;
    use crate::judge::watch::tests::{KEY, at};

    const SECOND: Duration = Duration::from_secs(1);

    /// Of one user.
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
        // A folder that is not there is not made: it may be a file system that is not mounted.
        let gone = Peers::new(Some(Path::new("/nonexistent/shared")), "n1");
        assert!(gone.claim(KEY, SECOND, at(0)).is_err());
    }

    #[test]
    fn the_leases_of_all_nodes_are_added() {
        let (_keep, mut one, mut two) = two();
        let count = |peers: &mut Peers, leases, stalled, second| {
            peers
                .tell(
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
        two.tell(count, at(12), SECOND).unwrap();
        let sum = one
            .cluster(SECOND, SystemClock.unix_now())
            .unwrap()
            .unwrap();
        let heard = sum.opened(&SystemClock).unwrap();
        // The file has whole seconds.
        assert!(heard.since(open) <= 2 * SECOND && open.since(heard) <= 2 * SECOND);
        // A boot of the node does not take it back.
        let mut again = Peers::new(two.folder.as_deref(), "n2");
        again
            .tell(
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
        // A clock that is wrong by a year does not count.
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
    }
}
