//! Stops a lab whose program was killed.
//!
//! A lab starts its keeper first. The keeper reads from a pipe whose other end only the lab's program has: the kernel
//! closes that end when the program ends in any way.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::process::spawn;
use crate::{Folder, LabError, artifacts, ending, patience};

/// The message of a lab that needs its keeper no longer.
const GOODBYE: &[u8] = b"goodbye\n";

/// How long a keeper tries to stop a lab.
const LIMIT: Duration = Duration::from_secs(10);

/// A running keeper, with the pipe to it.
#[derive(Debug)]
pub(crate) struct Keeper(Child);

impl Keeper {
    /// Starts a keeper for the lab in `folder`.
    pub fn start(build: &Path, folder: &Folder) -> Result<Self, LabError> {
        let program = artifacts::keeper(build)?;
        let mut command = Command::new(&program);
        command
            .arg(folder.root())
            // The write end is close-on-exec, so that no daemon of any lab inherits it.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // An interrupt from the terminal ends the lab's program, not the keeper.
            .process_group(0);
        spawn(&mut command)
            .map(Self)
            .map_err(|reason| LabError::Start {
                program: program.display().to_string(),
                reason,
            })
    }

    /// Ends the keeper: the lab is stopped, or continues without its program.
    pub fn dismiss(mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            // A keeper that has ended cannot read it, and need not.
            let _ = pipe.write_all(GOODBYE);
        }
        let _ = self.0.wait();
    }
}

/// The work of the program `lab-keeper`: waits until the program of the lab in `root` ends, and stops the lab unless
/// that program said goodbye. Errors: the pipe cannot be read, or the lab cannot be stopped.
pub fn keep(mut pipe: impl Read, root: &Path) -> Result<(), LabError> {
    let mut words = Vec::new();
    match pipe.read_to_end(&mut words) {
        Ok(_) if words == GOODBYE => return Ok(()),
        Ok(_) => {}
        Err(reason) => return Err(LabError::file("reading the pipe of", root)(reason)),
    }
    let mut failure = None;
    // Processes that the lab's program started just before may still write to the folder.
    patience::poll_until(
        "the end of a lab",
        LIMIT,
        Duration::from_millis(200),
        || {
            failure = stop(root).err();
            failure.is_none()
        },
    );
    failure.map_or(Ok(()), Err)
}

fn stop(root: &Path) -> Result<(), LabError> {
    if !root.exists() {
        return Ok(());
    }
    if Folder::new(root).record().exists() {
        return ending::stop_recorded(root, ending::keeps_folders());
    }
    // The program was killed before the lab had written or started anything; only an empty folder can be its own.
    match std::fs::remove_dir(root) {
        Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
            Err(LabError::file("removing", root)(error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_lab_goes_only_if_it_is_empty() {
        let place = tempfile::tempdir().unwrap();
        let (empty, full) = (place.path().join("empty"), place.path().join("full"));
        std::fs::create_dir_all(&empty).unwrap();
        std::fs::create_dir_all(full.join("etc")).unwrap();
        keep(io::empty(), &empty).unwrap();
        keep(io::empty(), &full).unwrap();
        keep(io::empty(), &place.path().join("never")).unwrap();
        assert!(!empty.exists() && full.exists());
    }

    #[test]
    fn after_a_goodbye_the_folder_stays() {
        let place = tempfile::tempdir().unwrap();
        keep(GOODBYE, place.path()).unwrap();
        assert!(place.path().exists());
    }
}
