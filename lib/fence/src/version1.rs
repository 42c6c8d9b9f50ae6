//! Version 1: rules in `devices.deny`.
//!
//! The rules are added to the job's own group, not to a task's group: Slurm 22.05 gives step and task folders to the
//! job's user, who could make a further group there and move to it. A denial in the job's group applies to every group
//! below it at once. Devices that only one step must not have are denied in the step's own group, which applies to the
//! groups below it, also the user's.
//!
//! The kernel keeps a list of rules for each group. It walks through the list for each new rule and when a device is
//! opened, and copies it into each new group below. So a device that works only together with a closed one gets no
//! rule.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::JobId;
use gpufrac_host::files::DeviceRule;

use super::{Closed, DevCgroupError, Mount, has_devices};

/// As [`super::fence`], in the hierarchy of the controller `devices`; None if the process is in no group of the job.
pub fn fence(
    memberships: &str,
    mountinfo: &str,
    job_id: JobId,
    closed: &Closed,
) -> Result<Option<PathBuf>, DevCgroupError> {
    let Some(group) = group(memberships) else {
        return Ok(None);
    };
    let Some(mount) = Mount::of(Path::new(group), mountinfo, has_devices) else {
        return Ok(None);
    };
    let Some(groups) = Groups::of(group, job_id) else {
        return Ok(None);
    };
    let job = mount.folder(&groups.job);
    if closed.to_step != closed.to_job {
        deny(&mount.folder(&groups.step), &closed.to_step)?;
    }
    deny(&job, &closed.to_job)?;
    Ok(Some(job))
}

fn deny(cgroup: &Path, rules: &[DeviceRule]) -> Result<(), DevCgroupError> {
    let path = cgroup.join("devices.deny");
    let mut file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(|source| DevCgroupError::Read {
            path: path.clone(),
            source,
        })?;
    for rule in rules.iter().filter(|rule| rule.is_alone()) {
        // The kernel takes one rule per write.
        file.write_all(rule.to_string().as_bytes())
            .map_err(|source| DevCgroupError::Deny {
                path: path.clone(),
                rule: *rule,
                source,
            })?;
    }
    Ok(())
}

/// The path of the `devices` hierarchy in the text of /proc/PID/cgroup.
fn group(memberships: &str) -> Option<&str> {
    memberships.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        controllers
            .split(',')
            .any(|controller| controller == "devices")
            .then_some(path)
    })
}

/// The groups of a process of a job, as paths in the hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Groups {
    /// The group of the job.
    job: PathBuf,
    /// The group of the step; that of the job if the process is in no step.
    step: PathBuf,
}

impl Groups {
    /// The parts of a path up to `job_<id>`, and up to the name below it. None if the path is not in this job, so
    /// that a wrong pid can never close devices to slurmd or to the whole machine.
    fn of(path: &str, job_id: JobId) -> Option<Self> {
        let wanted = format!("job_{job_id}");
        let mut job = PathBuf::from("/");
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        parts.by_ref().find(|part| {
            job.push(part);
            *part == wanted
        })?;
        let step = parts
            .next()
            .map_or_else(|| job.clone(), |step| job.join(step));
        Some(Self { job, step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_devices_hierarchy_alone_or_mounted_together() {
        let text = "5:devices:/slurm_n1/uid_1/job_7/step_0/task_0\n0::/\n";
        assert_eq!(group(text), Some("/slurm_n1/uid_1/job_7/step_0/task_0"));
        assert_eq!(group("3:cpu,devices:/a:b\n"), Some("/a:b"));
        assert_eq!(group("0::/system.slice/slurmd.service\n"), None);
        assert_eq!(group("4:mydevices:/x\n"), None);
    }

    #[test]
    fn only_groups_of_the_job_are_ever_written_to() {
        let found = |path: &str, job_id| {
            let groups = Groups::of(path, JobId(job_id))?;
            let text = |path: PathBuf| path.to_string_lossy().into_owned();
            Some([text(groups.job), text(groups.step)])
        };
        let job = "/slurm_n1/uid_1000/job_12";
        let own = |step: &str| Some([job.to_owned(), format!("{job}{step}")]);
        assert_eq!(found(&format!("{job}/step_0/task_0"), 12), own("/step_0"));
        assert_eq!(
            found(&format!("{job}/step_extern"), 12),
            own("/step_extern")
        );
        assert_eq!(found(job, 12), own(""));
        assert_eq!(found(&format!("{job}/step_0/task_0"), 1), None);
        assert_eq!(found("/system.slice/slurmd.service", 12), None);
        assert_eq!(found("/", 12), None);
    }
}
