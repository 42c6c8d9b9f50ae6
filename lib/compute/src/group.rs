//! A control group as that of a job, for a client.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use gpufrac_core::ids::JobId;
use gpufrac_fence::{Closed, DevCgroupError, fence};
use gpufrac_host::cgroup::{MOUNTS, Mount, has_devices};
use gpufrac_host::pause::Pause;

/// The job of the group; Slurm's first job has the number 1.
const JOB: JobId = JobId(0);

/// The reasons why a process could not be fenced.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// Neither version has the devices controller here, so no program can be fenced for the measurement.
    /// Cure: Mount the controllers, as Slurm needs them too.
    #[error("no control groups are mounted")]
    NoHierarchy,
    /// The group could not be made or joined.
    #[error("{action} `{}` failed: {source}", path.display())]
    Group {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// The devices could not be closed.
    #[error(transparent)]
    Fence(#[from] DevCgroupError),
}

/// A control group, removed when dropped, after its process has ended.
#[derive(Debug)]
pub struct Group {
    /// The folders, the innermost first.
    folders: Vec<PathBuf>,
}

impl Group {
    /// Moves a process into a new group and closes devices to it, as the SPANK plugin does for a job's step: by rules
    /// of version 1 if its hierarchy is mounted, otherwise by a program of version 2. Errors: the kernel refused.
    pub fn around(pid: u32, closed: &Closed) -> Result<Group, GroupError> {
        let failed = |action, path: &Path| {
            let path = path.to_owned();
            move |source| GroupError::Group {
                action,
                path,
                source,
            }
        };
        let mounts = fs::read_to_string(MOUNTS).map_err(failed("reading", Path::new(MOUNTS)))?;
        let root = Path::new("/");
        let mount = Mount::of(root, &mounts, has_devices)
            .or_else(|| Mount::of(root, &mounts, |kind, _| kind == "cgroup2"))
            .ok_or(GroupError::NoHierarchy)?;
        // The names by which the fence recognises a step of a job.
        let scope = mount
            .point
            .join(format!("gpufrac-prove-{pid}_slurmstepd.scope"));
        let job = scope.join(format!("job_{JOB}"));
        let step = job.join("step_0");
        fs::create_dir_all(&step).map_err(failed("making", &step))?;
        let group = Group {
            folders: vec![step.clone(), job, scope],
        };
        let members = step.join("cgroup.procs");
        fs::write(&members, pid.to_string()).map_err(failed("joining", &step))?;
        fence(&pid.to_string(), JOB, closed)?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let mut pause = Pause::new(Duration::from_millis(1), Duration::from_millis(50));
        // The kernel counts a process for a moment after its end.
        for folder in &self.folders {
            for _ in 0..20 {
                if fs::remove_dir(folder).is_ok() {
                    break;
                }
                pause.sleep(Duration::MAX);
            }
        }
    }
}
