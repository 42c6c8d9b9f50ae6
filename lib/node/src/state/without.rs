//! Jobs that hold devices of a pool and get no slice: `<run>/without/<jobid>`, written by root, readable by all.
//!
//! Slurm gives a job with `--exclusive` every device of the node, whether it asks for one or not. The prolog notes
//! such a job. For every other job with a device and without a lease the prolog did not do its work.

use std::path::Path;

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_host::files::{FileError, RootDir};

const FOLDER: &str = "without";

/// Notes that a job gets no slice. Errors: a file cannot be written.
pub fn note(run: &Path, job_id: JobId, user_id: UserId) -> Result<(), FileError> {
    let (dir, _) = RootDir::create(&run.join(FOLDER), 0o755)?;
    dir.write(&job_id.to_string(), &format!("{user_id}\n"), 0o644)
}

/// Whether this user's job was noted. Errors: a file cannot be read.
pub fn is_noted(run: &Path, job_id: JobId, user_id: UserId) -> Result<bool, FileError> {
    let Some(dir) = RootDir::find(&run.join(FOLDER))? else {
        return Ok(false);
    };
    let text = dir.read(&job_id.to_string())?;
    // Job ids start again if Slurm lost its state, so a note of another user is about another job.
    Ok(text.is_some_and(|text| text.trim_end() == user_id.to_string()))
}

/// Removes the note about a job, if there is one. Errors: a file cannot be removed.
pub fn forget(run: &Path, job_id: JobId) -> Result<(), FileError> {
    let Some(dir) = RootDir::find(&run.join(FOLDER))? else {
        return Ok(());
    };
    dir.remove(&job_id.to_string()).map(drop)
}

/// Removes all notes after a reboot. Errors: a file cannot be removed.
pub fn forget_all(run: &Path) -> Result<(), FileError> {
    let Some(dir) = RootDir::find(&run.join(FOLDER))? else {
        return Ok(());
    };
    for name in dir.names()? {
        dir.remove(&name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_noted_for_its_user_until_it_is_forgotten() {
        let keep = tempfile::tempdir().unwrap();
        let run = keep.path().canonicalize().unwrap();
        let noted = |job, user| is_noted(&run, JobId(job), UserId(user)).unwrap();
        assert!(!noted(7, 1000));
        forget(&run, JobId(7)).unwrap();
        for job in [7, 8] {
            note(&run, JobId(job), UserId(1000)).unwrap();
        }
        assert!(noted(7, 1000) && !noted(7, 1001) && !noted(9, 1000));
        forget(&run, JobId(7)).unwrap();
        assert!(!noted(7, 1000) && noted(8, 1000));
        forget_all(&run).unwrap();
        assert!(!noted(8, 1000));
    }
}
