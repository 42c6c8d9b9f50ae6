//! The file that `gpufrac status`, `top` and `web` read: `<run>/reaper/status.json` of the node, and
//! `<shared>/status/NODE.json` where the nodes share a folder.
//!
//! Where Slurm's `PrivateData` hides jobs or nodes, these files have no owners, or root alone may read them. Then each
//! user finds what the user may see in `own/UID/status/NODE.json` of `<run>` and of the shared folder, and root finds
//! all there (`own/0`). A node may have as many users as slices: their files are written when a slice comes or goes,
//! else as seldom as copies; those for all and for root in each round.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use gpufrac_core::ids::UserId;
use gpufrac_core::private_data::PrivateData;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_node::state::private;
use gpufrac_view::NodeStatus;

const FILE: &str = "status.json";
/// The folder in the shared folder.
const SHARED: &str = "status";
const FOLDER_MODE: u32 = 0o755;

/// The most seconds between two copies while no slice comes or goes: the file system of the nodes must not get a write
/// of each node in each round.
const PAUSE: u32 = 60;

/// The reasons why a file was not written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StatusError {
    /// `status.json` in /run/gpufrac/reaper cannot be written.
    /// Cure: Free space on /run; jobs and decisions are not affected.
    #[error("{0}; `gpufrac status` and `top` show the last state that was written")]
    Own(String),
    /// The copy in `shared` of `[paths]` cannot be written, or a write takes longer than a round.
    /// Cure: Mount the folder, or free space, and check the file system; jobs and decisions are not affected.
    #[error("{0}; other hosts show the last state that was written")]
    Shared(String),
}

/// Shows the state of the node to its users.
pub trait Board {
    /// Writes the file of the node, and its copy in the shared folder.
    /// Errors: one of the files could not be written; that of the shared folder perhaps in an earlier call.
    fn show(
        &mut self,
        node: NodeStatus,
        shared: Option<&Path>,
        private: PrivateData,
    ) -> Result<(), StatusError>;
}

/// The part of a node that all users may see, and the mode of its file.
fn for_all(node: &NodeStatus, private: PrivateData) -> (NodeStatus, u32) {
    let mode = if private.nodes { 0o600 } else { 0o644 };
    if private.jobs {
        (without_others(node, None), mode)
    } else {
        (node.clone(), mode)
    }
}

/// The node without the owners of slices, except `user`, and without what may name a job.
fn without_others(node: &NodeStatus, user: Option<UserId>) -> NodeStatus {
    let mut node = node.clone();
    for slice in node.gpus.iter_mut().flat_map(|gpu| &mut gpu.slices) {
        slice.owner = slice.owner.take().filter(|owner| Some(owner.uid) == user);
    }
    // The error of a file, or a process, may name a job.
    for place in &mut node.stuck {
        place.cause = None;
    }
    node
}

/// The view of each user: all for root, the own slices for the others.
fn for_each(node: &NodeStatus, private: PrivateData) -> BTreeMap<UserId, NodeStatus> {
    if !private.jobs && !private.nodes {
        return BTreeMap::new();
    }
    let slices = node.gpus.iter().flat_map(|gpu| &gpu.slices);
    let owners = slices.filter_map(|slice| Some(slice.owner.as_ref()?.uid));
    let of_user = |user: UserId| {
        let mut own = without_others(node, Some(user));
        if private.nodes {
            // Of a hidden node a user sees the own slices alone.
            own.stuck.clear();
            for gpu in &mut own.gpus {
                gpu.slices.retain(|slice| slice.owner.is_some());
                gpu.room.clear();
                gpu.unleased.clear();
            }
            own.gpus.retain(|gpu| !gpu.slices.is_empty());
        }
        (user, own)
    };
    let mut views: BTreeMap<UserId, NodeStatus> = owners.map(of_user).collect();
    views.insert(UserId::ROOT, node.clone());
    views
}

fn texts_for_each(node: &NodeStatus, private: PrivateData) -> BTreeMap<UserId, String> {
    let views = for_each(node, private).into_iter();
    views.map(|(user, node)| (user, text(&node))).collect()
}

fn text(node: &NodeStatus) -> String {
    let mut text = serde_json::to_string(node).unwrap_or_default();
    text.push('\n');
    text
}

/// The files of users in `<run>` or the shared folder.
#[derive(Default)]
struct OwnFiles {
    /// The users who have one; None before the first round.
    users: Option<Vec<UserId>>,
}

impl OwnFiles {
    /// Writes the files of these users, and removes those of others.
    fn write(
        &mut self,
        above: &Path,
        name: &str,
        views: &BTreeMap<UserId, String>,
    ) -> Result<(), FileError> {
        let before = match self.users.take() {
            Some(users) => users,
            None => private::users(above)?,
        };
        for user in before.iter().filter(|user| !views.contains_key(user)) {
            if let Some(dir) = RootDir::find(&private::own(above, *user).join(SHARED))? {
                dir.remove(name)?;
            }
        }
        for (user, text) in views {
            private::make_own(above, *user, SHARED)?.write(name, text, 0o644)?;
        }
        self.users = Some(views.keys().copied().collect());
        Ok(())
    }

    /// Writes the file of root alone.
    fn write_roots(&self, above: &Path, name: &str, text: &str) -> Result<(), FileError> {
        private::make_own(above, UserId::ROOT, SHARED)?.write(name, text, 0o644)
    }
}

pub struct StatusFiles {
    dir: RootDir,
    run: PathBuf,
    own: OwnFiles,
    own_pace: Pace,
    copies: Copies,
}

impl StatusFiles {
    /// Opens the folder, or creates it. Errors: others than root can change the folder.
    pub fn open(run: &Path) -> Result<StatusFiles, FileError> {
        let (dir, _) = RootDir::create(&run.join("reaper"), FOLDER_MODE)?;
        Ok(StatusFiles {
            dir,
            run: run.to_owned(),
            own: OwnFiles::default(),
            own_pace: Pace::default(),
            copies: Copies::start(),
        })
    }

    /// Writes the files of users if they are due, and that of root.
    fn show_own(
        &mut self,
        node: &NodeStatus,
        name: &str,
        private: PrivateData,
    ) -> Result<(), FileError> {
        if self.own_pace.is_due(node, private) {
            let node = with_pause(node.clone());
            let written = self
                .own
                .write(&self.run, name, &texts_for_each(&node, private));
            if written.is_err() {
                self.own_pace.last = None;
            }
            written
        } else if private.jobs || private.nodes {
            self.own.write_roots(&self.run, name, &text(node))
        } else {
            Ok(())
        }
    }
}

impl Board for StatusFiles {
    fn show(
        &mut self,
        node: NodeStatus,
        shared: Option<&Path>,
        private: PrivateData,
    ) -> Result<(), StatusError> {
        let name = format!("{}.json", node.node);
        let (for_all, mode) = for_all(&node, private);
        let own = self.show_own(&node, &name, private);
        let own = own.and(self.dir.write(FILE, &text(&for_all), mode));
        let copied = match shared {
            Some(shared) if self.copies.are_due(&node, private) => {
                let (shared, node) = (shared.to_owned(), with_pause(node));
                self.copies.send(Copy {
                    shared,
                    node,
                    private,
                })
            }
            _ => Ok(()),
        };
        own.map_err(|error| StatusError::Own(error.to_string()))?;
        copied
    }
}

/// A node for a file that is written less often than in each round: readers take a file of three intervals for stale.
fn with_pause(mut node: NodeStatus) -> NodeStatus {
    node.interval = node.interval.max(PAUSE);
    node
}

/// Says when files are due that are not written in each round.
#[derive(Default)]
struct Pace {
    last: Option<Written>,
}

struct Written {
    /// The node without the use of its slices and the count of failures.
    node: NodeStatus,
    private: PrivateData,
}

impl Pace {
    /// Whether they are due: after a change of the GPUs, their slices, stuck places or PrivateData, and after a pause.
    fn is_due(&mut self, node: &NodeStatus, private: PrivateData) -> bool {
        let mut now = node.clone();
        for slice in now.gpus.iter_mut().flat_map(|gpu| &mut gpu.slices) {
            slice.usage = None;
        }
        for place in &mut now.stuck {
            place.failures = 0;
        }
        let is_known = self.last.as_ref().is_some_and(|last| {
            // A clock that was set back must not keep the files old.
            let waited = now.written.checked_sub(last.node.written);
            (&last.node.gpus, &last.node.stuck) == (&now.gpus, &now.stuck)
                && last.private == private
                && waited.is_some_and(|waited| waited < u64::from(PAUSE))
        });
        if !is_known {
            self.last = Some(Written { node: now, private });
        }
        !is_known
    }
}

/// A copy for the shared folder.
struct Copy {
    shared: PathBuf,
    node: NodeStatus,
    private: PrivateData,
}

impl Copy {
    fn name(&self) -> String {
        format!("{}.json", self.node.node)
    }

    fn write(&self, own: &mut OwnFiles) -> Result<(), FileError> {
        let (shared, node, private) = (&self.shared, &self.node, self.private);
        // An admin creates the folder: if its file system is not mounted, it must not be created on another one.
        RootDir::open(shared)?;
        let copied = own.write(shared, &self.name(), &texts_for_each(node, private));
        let mode = private::mode(private.nodes);
        let (dir, _) = RootDir::create(&shared.join(SHARED), mode)?;
        let text = text(&for_all(node, private).0);
        copied.and(dir.write(&self.name(), &text, 0o644))
    }
}

/// Writes copies on a thread: a file system of others that hangs must not stop the rounds.
struct Copies {
    out: SyncSender<Copy>,
    /// Why the last copy was not written.
    failed: Arc<Mutex<Option<StatusError>>>,
    pace: Pace,
}

impl Copies {
    fn start() -> Copies {
        // One copy may wait while the thread writes another.
        let (out, inbox) = sync_channel(1);
        let failed = Arc::default();
        let outcome = Arc::clone(&failed);
        // The thread ends with the sender. The daemon does not wait for it, because a write may never end.
        std::thread::spawn(move || write_all(inbox, &outcome));
        Copies {
            out,
            failed,
            pace: Pace::default(),
        }
    }

    /// Whether a copy is due, also after a failure.
    fn are_due(&mut self, node: &NodeStatus, private: PrivateData) -> bool {
        self.pace.is_due(node, private) || self.outcome().is_some()
    }

    fn outcome(&self) -> Option<StatusError> {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.clone()
    }

    /// Hands a copy over, unless an earlier one still waits. Returns the outcome of the last one.
    fn send(&mut self, copy: Copy) -> Result<(), StatusError> {
        match self.out.try_send(copy) {
            Ok(()) => {}
            Err(TrySendError::Full(copy) | TrySendError::Disconnected(copy)) => {
                self.pace.last = None;
                let at = copy.shared.join(SHARED).join(copy.name());
                let slow = format!(
                    "writing `{}` failed: an earlier write has not ended after a round; check the file system",
                    at.display()
                );
                return Err(StatusError::Shared(slow));
            }
        }
        self.outcome().map_or(Ok(()), Err)
    }
}

fn write_all(inbox: Receiver<Copy>, failed: &Mutex<Option<StatusError>>) {
    let mut own = OwnFiles::default();
    for copy in inbox {
        let error = copy.write(&mut own).err();
        let error = error.map(|error| StatusError::Shared(error.to_string()));
        *failed.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const OPEN: PrivateData = PrivateData {
        jobs: false,
        usage: false,
        nodes: false,
    };

    fn node(written: u64) -> NodeStatus {
        let mut node = test_examples::nodes(1, 1).remove(0);
        node.written = written;
        node
    }

    fn read(path: &Path) -> Option<NodeStatus> {
        let text = fs::read_to_string(path).ok()?;
        Some(NodeStatus::parse(&text).unwrap())
    }

    #[test]
    fn the_file_is_written_in_each_round_and_its_copy_when_a_slice_changes_or_after_a_pause() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let shared = folder.path().join("shared");
        fs::create_dir(&shared).unwrap();
        let mut files = StatusFiles::open(&run).unwrap();
        let copy = || read(&shared.join("status/gn0001.json"));
        let copied = |mut node: NodeStatus| {
            node.interval = 60;
            Some(node)
        };
        let mut other = node(1_070);
        other.gpus[0].slices.clear();
        let mut copies = Vec::new();
        for (round, is_copied) in [
            (node(1_000), true),
            (node(1_010), false),
            (node(1_060), true),
            (other.clone(), true),
            // The clock was set back.
            (
                NodeStatus {
                    written: 900,
                    ..other
                },
                true,
            ),
        ] {
            files.show(round.clone(), Some(&shared), OPEN).unwrap();
            assert_eq!(read(&run.join("reaper/status.json")).as_ref(), Some(&round));
            if is_copied {
                copies.push(round.written);
                while copy() != copied(round.clone()) {
                    std::thread::yield_now();
                }
            } else {
                // The thread has nothing to write.
                assert_eq!(
                    files
                        .copies
                        .pace
                        .last
                        .as_ref()
                        .map(|last| last.node.written),
                    copies.last().copied()
                );
            }
        }
    }

    #[test]
    fn a_shared_folder_that_is_gone_is_reported_and_the_node_still_shown() {
        let folder = tempfile::tempdir().unwrap();
        let shared = folder.path().join("not-mounted");
        let mut files = StatusFiles::open(&folder.path().join("run")).unwrap();
        let mut told = None;
        while told.is_none() {
            let shown = files.show(node(1_000), Some(&shared), OPEN);
            told = shown
                .err()
                .filter(|error| !error.to_string().contains("has not ended"));
        }
        let told = told.map(|error| error.to_string()).unwrap_or_default();
        assert!(told.contains("not-mounted"), "{told}");
        assert!(told.ends_with("; other hosts show the last state that was written"));
        assert!(read(&folder.path().join("run/reaper/status.json")).is_some());
        assert!(!shared.exists());
        // Mounted again.
        fs::create_dir(&shared).unwrap();
        while files.show(node(1_010), Some(&shared), OPEN).is_err() {}
    }

    #[test]
    fn where_jobs_or_nodes_are_hidden_each_user_sees_the_own_slices() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let run = folder.join("run");
        let mut files = StatusFiles::open(&run).unwrap();
        let node = test_examples::nodes(50, 1)
            .into_iter()
            .find(|node| owners(node).len() > 1);
        let mut node = node.unwrap();
        node.stuck = vec![test_examples::stuck()];
        let user = owners(&node)[0];
        let own = |user: UserId| read(&run.join(format!("own/{user}/status/{}.json", node.node)));
        let for_all = || read(&run.join("reaper/status.json")).unwrap();
        let jobs = PrivateData { jobs: true, ..OPEN };
        files.show(node.clone(), None, jobs).unwrap();
        assert_eq!(owners(&for_all()), []);
        assert_eq!(for_all().gpus.len(), node.gpus.len());
        // Its cause may name a job.
        assert_eq!(for_all().stuck[0].cause, None);
        assert_eq!(own(UserId::ROOT), Some(with_pause(node.clone())));
        assert_eq!(owners(&own(user).unwrap()), [user]);
        assert_eq!(own(user).unwrap().gpus.len(), node.gpus.len());

        let nodes = PrivateData {
            nodes: true,
            ..jobs
        };
        files.show(node.clone(), None, nodes).unwrap();
        let meta = fs::metadata(run.join("reaper/status.json")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&meta.permissions());
        assert_eq!(mode & 0o777, 0o600);
        let seen = own(user).unwrap();
        assert_eq!(owners(&seen), [user]);
        assert_eq!(seen.stuck, []);
        let gpus = &seen.gpus;
        assert!(
            gpus.iter()
                .all(|gpu| gpu.room.is_empty() && !gpu.slices.is_empty())
        );

        // The user's jobs are over.
        let mut idle = node.clone();
        idle.gpus.iter_mut().for_each(|gpu| gpu.slices.clear());
        files.show(idle.clone(), None, jobs).unwrap();
        assert_eq!(
            (own(user), own(UserId::ROOT)),
            (None, Some(with_pause(idle)))
        );
        files.show(node.clone(), None, OPEN).unwrap();
        assert_eq!((own(user), own(UserId::ROOT)), (None, None));
        assert_eq!(for_all(), node);
    }

    #[test]
    fn files_of_users_are_written_when_a_slice_changes_or_after_a_pause() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().canonicalize().unwrap().join("run");
        let mut files = StatusFiles::open(&run).unwrap();
        let nodes = test_examples::nodes(50, 1).into_iter();
        let mut node = nodes.max_by_key(|node| owners(node).len()).unwrap();
        let users = owners(&node);
        assert!(users.len() > 1);
        let jobs = PrivateData { jobs: true, ..OPEN };
        let name = node.node.clone();
        // A file that is written is a new one, which is renamed.
        let files_of = |users: &[UserId]| -> Vec<u64> {
            let paths = users.iter().map(|user| {
                let path = run.join(format!("own/{user}/status/{name}.json"));
                std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap())
            });
            paths.collect()
        };
        let before = node.written;
        let mut round = |node: &NodeStatus| {
            let known = users
                .iter()
                .all(|user| run.join(format!("own/{user}")).exists());
            let old = if known { files_of(&users) } else { Vec::new() };
            files.show(node.clone(), None, jobs).unwrap();
            let new = files_of(&users);
            assert_eq!(
                read(&run.join("reaper/status.json")).unwrap().written,
                node.written
            );
            let root = run.join(format!("own/0/status/{}.json", node.node));
            assert_eq!(read(&root).unwrap().written, node.written);
            new != old
        };
        assert!(round(&node));
        node.written = before + 10;
        for slice in node.gpus.iter_mut().flat_map(|gpu| &mut gpu.slices) {
            if let Some(usage) = &mut slice.usage {
                usage.idle += 10;
            }
        }
        assert!(!round(&node), "only the use of slices changed");
        node.written = before + 60;
        assert!(round(&node));
        node.written = before + 70;
        node.gpus[0].mig = Some(!node.gpus[0].mig.unwrap_or_default());
        assert!(round(&node));
        node.written = before + 80;
        assert!(!round(&node));
    }

    fn owners(node: &NodeStatus) -> Vec<UserId> {
        let slices = node.gpus.iter().flat_map(|gpu| &gpu.slices);
        let owners = slices.filter_map(|slice| Some(slice.owner.as_ref()?.uid));
        let mut owners: Vec<UserId> = owners.collect();
        owners.sort_unstable();
        owners.dedup();
        owners
    }
}
