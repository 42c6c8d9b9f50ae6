//! Jobs that this node gave back to Slurm: `<state>/put-back/JOBID`, written by the prolog, read by gpufrac-reaperd,
//! which sends them to other nodes and lets them come back later. The folder survives a reboot, as `ExcNodeList` of the
//! jobs does.

use gpufrac_core::ids::JobId;
use gpufrac_host::files::{FileError, RootDir};
use serde::{Deserialize, Serialize};

use crate::node::{Node, now_unix};

/// The folder in `<state>`.
pub const FOLDER: &str = "put-back";

/// A job that went back to the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutBack {
    pub job_id: JobId,
    /// Slurm's count of requeues, before this one.
    pub restart_count: u32,
    /// When: seconds since 1970.
    pub unix: u64,
    /// Whether the job was held, because no node may have a right configuration.
    pub held: bool,
    /// Whether gpufrac has excluded this node for the job.
    pub excluded: bool,
}

impl PutBack {
    /// A job that goes back now.
    pub fn now(job_id: JobId, restart_count: u32, held: bool) -> PutBack {
        PutBack {
            job_id,
            restart_count,
            unix: now_unix(),
            held,
            excluded: false,
        }
    }
}

/// Notes a job. Errors: the file cannot be written.
pub fn note(node: &Node, job: &PutBack) -> Result<(), FileError> {
    let (dir, _) = RootDir::create(&node.state.join(FOLDER), 0o700)?;
    // The type has no map and no number that JSON lacks.
    let text = serde_json::to_string(job).unwrap_or_default();
    dir.write(&job.job_id.to_string(), &text, 0o600)
}

/// Removes a note, unless a prolog wrote another about the job meanwhile. Errors: the file cannot be read or removed.
pub fn forget(node: &Node, job: &PutBack) -> Result<(), FileError> {
    let Some(dir) = folder(node)? else {
        return Ok(());
    };
    let name = job.job_id.to_string();
    match dir.read(&name)?.as_deref().and_then(parse) {
        Some(noted) if noted == *job => dir.remove(&name).map(drop),
        _ => Ok(()),
    }
}

fn folder(node: &Node) -> Result<Option<RootDir>, FileError> {
    RootDir::find(&node.state.join(FOLDER))
}

fn parse(text: &str) -> Option<PutBack> {
    serde_json::from_str(text).ok()
}

/// The noted jobs. Errors: the folder cannot be read.
pub fn list(node: &Node) -> Result<Vec<PutBack>, FileError> {
    let Some(dir) = folder(node)? else {
        return Ok(Vec::new());
    };
    let mut found = Vec::new();
    // A temporary file belongs to a prolog that writes it now.
    let names = dir.names()?.into_iter();
    for name in names.filter(|name| !RootDir::is_temporary(name)) {
        let text = dir.read(&name)?;
        match text.as_deref().and_then(parse) {
            Some(job) => found.push(job),
            // Only a killed writer of another build leaves such a file.
            None => drop(dir.remove(&name)?),
        }
    }
    Ok(found)
}

/// Removes what killed prologs left of notes, after a reboot: no prolog runs then. Errors: a file cannot be removed.
pub fn forget_unfinished(node: &Node) -> Result<(), FileError> {
    let Some(dir) = folder(node)? else {
        return Ok(());
    };
    let names = dir.names()?.into_iter();
    for name in names.filter(|name| RootDir::is_temporary(name)) {
        dir.remove(&name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpufrac_core::config::Config;

    #[test]
    fn a_job_is_noted_until_it_is_forgotten() {
        let keep = tempfile::tempdir().unwrap();
        let mut node = Node::new(Config::empty(), "n1");
        node.state = keep.path().canonicalize().unwrap();
        assert!(list(&node).unwrap().is_empty());
        let job = PutBack::now(JobId(7), 2, true);
        forget(&node, &job).unwrap();
        note(&node, &job).unwrap();
        assert_eq!(list(&node).unwrap(), std::slice::from_ref(&job));
        std::fs::write(node.state.join(FOLDER).join("8"), "{").unwrap();
        let again = PutBack::now(JobId(7), 3, true);
        note(&node, &again).unwrap();
        forget(&node, &job).unwrap();
        assert_eq!(list(&node).unwrap(), std::slice::from_ref(&again));
        forget(&node, &again).unwrap();
        assert!(list(&node).unwrap().is_empty());
        assert!(!node.state.join(FOLDER).join("8").exists());
    }

    #[test]
    fn a_note_that_a_prolog_writes_now_stays() {
        let keep = tempfile::tempdir().unwrap();
        let mut node = Node::new(Config::empty(), "n1");
        node.state = keep.path().canonicalize().unwrap();
        forget_unfinished(&node).unwrap();
        let job = PutBack::now(JobId(7), 2, true);
        note(&node, &job).unwrap();
        let text = serde_json::to_string(&PutBack::now(JobId(8), 0, false)).unwrap();
        let unfinished = node.state.join(FOLDER).join(RootDir::temporary("8"));
        for text in [&text, "{"] {
            std::fs::write(&unfinished, text).unwrap();
            assert_eq!(list(&node).unwrap(), std::slice::from_ref(&job));
            assert!(unfinished.exists());
        }
        forget_unfinished(&node).unwrap();
        assert!(!unfinished.exists());
        assert_eq!(list(&node).unwrap(), [job]);
    }
}
