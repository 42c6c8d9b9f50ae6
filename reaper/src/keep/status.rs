//! The file that `gpufrac status`, `top` and `web` read: `<run>/reaper/status.json` of the node, and
//! `<shared>/status/NODE.json` where the nodes share a folder.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use gpufrac_host::files::{FileError, RootDir};
use gpufrac_view::Node;

/// The file in `<run>/reaper`.
const FILE: &str = "status.json";
/// The folder in the shared folder.
const SHARED: &str = "status";
const FOLDER_MODE: u32 = 0o755;

/// The reasons why a file was not written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StatusError {
    /// The file of the node.
    #[error("{0}; `gpufrac status` and `top` show the last state that was written")]
    Own(String),
    /// The copy in the shared folder.
    #[error("{0}; other hosts show the last state that was written")]
    Shared(String),
}

/// Shows the state of the node to its users.
pub trait Board {
    /// Writes the file of the node, and its copy in the shared folder.
    ///
    /// # Errors
    /// One of the files could not be written; that of the shared folder perhaps in an earlier call.
    fn show(&mut self, node: Node, shared: Option<&Path>) -> Result<(), StatusError>;
}

/// What all users may see of a node, and the mode of its file.
fn for_all(node: Node) -> (Node, u32) {
    (node, 0o644)
}

/// The files of this node.
pub struct StatusFiles {
    dir: RootDir,
    copies: Copies,
}

impl StatusFiles {
    /// Opens the folder, or creates it.
    ///
    /// # Errors
    /// Others than root can change the folder.
    pub fn open(run: &Path) -> Result<StatusFiles, FileError> {
        let (dir, _) = RootDir::create(&run.join("reaper"), FOLDER_MODE)?;
        Ok(StatusFiles {
            dir,
            copies: Copies::start(),
        })
    }
}

impl Board for StatusFiles {
    fn show(&mut self, node: Node, shared: Option<&Path>) -> Result<(), StatusError> {
        let (node, mode) = for_all(node);
        let mut text = serde_json::to_string(&node).unwrap_or_default();
        text.push('\n');
        let own = self.dir.write(FILE, &text, mode);
        let copied = match shared {
            None => Ok(()),
            Some(shared) => self.copies.send(Copy {
                shared: shared.to_owned(),
                name: format!("{}.json", node.node),
                text,
                mode,
            }),
        };
        own.map_err(|error| StatusError::Own(error.to_string()))?;
        copied
    }
}

/// A copy for the shared folder.
struct Copy {
    shared: PathBuf,
    name: String,
    text: String,
    mode: u32,
}

impl Copy {
    fn write(&self) -> Result<(), FileError> {
        // An admin creates the folder: if its file system is not mounted, it must not be created on another one.
        RootDir::open(&self.shared)?;
        let (dir, _) = RootDir::create(&self.shared.join(SHARED), FOLDER_MODE)?;
        dir.write(&self.name, &self.text, self.mode)
    }
}

/// Writes copies on a thread: a file system of others that hangs must not stop the rounds.
struct Copies {
    out: SyncSender<Copy>,
    /// Why the last copy was not written.
    failed: Arc<Mutex<Option<StatusError>>>,
}

impl Copies {
    fn start() -> Copies {
        // One copy may wait while the thread writes another.
        let (out, inbox) = sync_channel(1);
        let failed = Arc::default();
        let outcome = Arc::clone(&failed);
        // The thread ends with the sender. The daemon does not wait for it, because a write may never end.
        std::thread::spawn(move || write_all(inbox, &outcome));
        Copies { out, failed }
    }

    /// Hands a copy over, unless an earlier one still waits. Returns the outcome of the last one.
    fn send(&self, copy: Copy) -> Result<(), StatusError> {
        match self.out.try_send(copy) {
            Ok(()) => {}
            Err(TrySendError::Full(copy) | TrySendError::Disconnected(copy)) => {
                let at = copy.shared.join(SHARED).join(copy.name);
                let slow = format!(
                    "writing `{}` failed: an earlier write has not ended after a round; check the file system",
                    at.display()
                );
                return Err(StatusError::Shared(slow));
            }
        }
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.clone().map_or(Ok(()), Err)
    }
}

fn write_all(inbox: Receiver<Copy>, failed: &Mutex<Option<StatusError>>) {
    for copy in inbox {
        let error = copy.write().err();
        let error = error.map(|error| StatusError::Shared(error.to_string()));
        *failed.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn node(written: u64) -> Node {
        let mut node = test_examples::nodes(1, 1).remove(0);
        node.written = written;
        node
    }

    fn read(path: &Path) -> Option<Node> {
        let text = fs::read_to_string(path).ok()?;
        Some(Node::parse(&text).unwrap())
    }

    #[test]
    fn the_file_and_its_copy_are_written_whole_in_each_round() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let shared = folder.path().join("shared");
        fs::create_dir(&shared).unwrap();
        let mut files = StatusFiles::open(&run).unwrap();
        let copy = shared.join("status/gn0001.json");
        for written in [1_000, 1_010] {
            // The copy of the round before may still be being written.
            while files.show(node(written), Some(&shared)).is_err() {}
            assert_eq!(read(&run.join("reaper/status.json")), Some(node(written)));
            while read(&copy) != Some(node(written)) {
                std::thread::yield_now();
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
            let shown = files.show(node(1_000), Some(&shared));
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
        while files.show(node(1_010), Some(&shared)).is_err() {}
    }
}
