//! Jobs of root that take the units of a stuck place out of Slurm's count: `<state>/reserved/JOBID`, for root alone.
//!
//! Slurm knows no other way to take shares of one device: `scontrol update Gres=` counts a whole node and is refused
//! for devices, reservations of GRES exist from 24.05 on, need the TRES in `AccountingStorageTRES` and take whichever
//! device Slurm chooses, and a node with a job in an epilog gets no jobs at all. A job counts on exactly one device, on
//! each release, and every admin sees it. Slurm chooses its device, so gpufrac-reaperd submits jobs until one is there.

use std::collections::BTreeSet;

use gpufrac_core::fraction::Units;
use gpufrac_core::ids::{DeviceIndex, JobId, UserId};
use gpufrac_host::files::{FileError, RootDir};
use slurm_sys::client::JobInfo;

use crate::job::environment::JobEnv;
use crate::node::Node;

/// The name of these jobs. Only root's count.
pub const NAME: &str = "gpufrac-stuck";
/// Their script.
pub const SCRIPT: &str = "#!/bin/sh\nexec sleep infinity\n";
const FOLDER: &str = "reserved";
/// The end of the name of a file with a device.
const DEVICE: &str = ".device";

/// Such a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserved {
    pub job_id: JobId,
    /// The units that it asks for.
    pub units: Units,
    /// The device that Slurm gave it; None until its prolog has run.
    pub device: Option<DeviceIndex>,
}

/// Whether this is such a job: it gets no slice.
pub fn is_one(job: &JobEnv, info: &JobInfo) -> bool {
    job.user_id == UserId::ROOT && is_ours(info)
}

/// Whether it is one by Slurm's record.
pub fn is_ours(info: &JobInfo) -> bool {
    info.user_id == UserId::ROOT.0 && info.name == NAME
}

/// Notes a job that gpufrac-reaperd submitted. Errors: the file cannot be written.
pub fn note(node: &Node, job_id: JobId, units: Units) -> Result<(), FileError> {
    let (dir, _) = RootDir::create(&node.state.join(FOLDER), 0o700)?;
    dir.write(&job_id.to_string(), &units.to_string(), 0o600)
}

/// Notes the device of such a job; its prolog may run before [`note`]. Errors: the file cannot be written.
pub fn note_device(node: &Node, job_id: JobId, device: DeviceIndex) -> Result<(), FileError> {
    let (dir, _) = RootDir::create(&node.state.join(FOLDER), 0o700)?;
    dir.write(&of_device(job_id), &device.to_string(), 0o600)
}

/// Removes the notes about a job. Errors: a file cannot be removed.
pub fn forget(node: &Node, job_id: JobId) -> Result<(), FileError> {
    let Some(dir) = RootDir::find(&node.state.join(FOLDER))? else {
        return Ok(());
    };
    dir.remove(&job_id.to_string())?;
    dir.remove(&of_device(job_id)).map(drop)
}

/// The noted jobs. One whose submitter died before [`note`] has no units, and so fits no place.
/// Errors: the folder cannot be read.
pub fn list(node: &Node) -> Result<Vec<Reserved>, FileError> {
    let Some(dir) = RootDir::find(&node.state.join(FOLDER))? else {
        return Ok(Vec::new());
    };
    let number = |name: &str| -> Result<Option<u32>, FileError> {
        let text = dir.read(name)?;
        Ok(text.and_then(|text| text.parse().ok()))
    };
    let names = dir.names()?;
    let ids = names.iter().filter_map(|name| {
        let id = name.strip_suffix(DEVICE).unwrap_or(name);
        id.parse().ok().map(JobId)
    });
    let ids: BTreeSet<JobId> = ids.collect();
    let mut found = Vec::new();
    for job_id in ids {
        found.push(Reserved {
            job_id,
            units: Units(number(&job_id.to_string())?.unwrap_or(0)),
            device: number(&of_device(job_id))?.map(DeviceIndex),
        });
    }
    Ok(found)
}

fn of_device(job_id: JobId) -> String {
    format!("{job_id}{DEVICE}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpufrac_core::config::Config;

    #[test]
    fn a_job_has_a_device_as_soon_as_its_prolog_has_run() {
        let keep = tempfile::tempdir().unwrap();
        let mut node = Node::new(Config::empty(), "n1");
        node.state = keep.path().canonicalize().unwrap();
        forget(&node, JobId(7)).unwrap();
        note_device(&node, JobId(7), DeviceIndex(3)).unwrap();
        let noted = |job, device: Option<u32>| Reserved {
            job_id: JobId(job),
            units: Units(25),
            device: device.map(DeviceIndex),
        };
        let unknown = Reserved {
            units: Units(0),
            ..noted(7, Some(3))
        };
        assert_eq!(list(&node).unwrap(), [unknown]);
        for job in [8, 7] {
            note(&node, JobId(job), Units(25)).unwrap();
        }
        assert_eq!(list(&node).unwrap(), [noted(7, Some(3)), noted(8, None)]);
        forget(&node, JobId(7)).unwrap();
        assert_eq!(list(&node).unwrap(), [noted(8, None)]);
    }
}
