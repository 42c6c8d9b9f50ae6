//! Version 1: rules in `devices.deny`.
//!
//! They are added to the job's own group, not to that of a task: Slurm 22.05 gives step and
//! task folders to the job's user, who could make a group beside the task's and move there.
//! A denial in the job's group holds for every group below it at once.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::JobId;
use gpufrac_host::files::DeviceRule;

use super::{DevCgroupError, Mount, has_devices};

/// As [`super::fence`], in the hierarchy of the controller `devices`; None where the process is in no group of the job.
pub fn fence(
    memberships: &str,
    mountinfo: &str,
    job_id: JobId,
    rules: &[DeviceRule],
) -> Result<Option<PathBuf>, DevCgroupError> {
    let Some(group) = group(memberships) else {
        return Ok(None);
    };
    let Some(mount) = Mount::of(Path::new(group), mountinfo, has_devices) else {
        return Ok(None);
    };
    let Some(group) = job_group(group, job_id) else {
        return Ok(None);
    };
    let cgroup = mount.folder(Path::new(&group));
    let path = cgroup.join("devices.deny");
    let mut file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(|source| DevCgroupError::Read {
            path: path.clone(),
            source,
        })?;
    for rule in rules {
        // The kernel takes one rule per write.
        file.write_all(rule.to_string().as_bytes())
            .map_err(|source| DevCgroupError::Deny {
                path: path.clone(),
                rule: *rule,
                source,
            })?;
    }
    Ok(Some(cgroup))
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

/// The part of a cgroup path that ends with `job_<id>`; None if the path is not in this job,
/// so that a wrong pid can never close devices to slurmd or to the machine.
fn job_group(path: &str, job_id: JobId) -> Option<String> {
    let wanted = format!("job_{job_id}");
    let mut group = String::new();
    for part in path.split('/').filter(|part| !part.is_empty()) {
        group.push('/');
        group.push_str(part);
        if part == wanted {
            return Some(group);
        }
    }
    None
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
    fn only_the_jobs_own_group_is_ever_written_to() {
        let path = "/slurm_n1/uid_1000/job_12/step_0/task_0";
        assert_eq!(
            job_group(path, JobId(12)).as_deref(),
            Some("/slurm_n1/uid_1000/job_12")
        );
        assert_eq!(job_group(path, JobId(1)), None);
        assert_eq!(job_group("/system.slice/slurmd.service", JobId(12)), None);
        assert_eq!(job_group("/", JobId(12)), None);
    }
}
