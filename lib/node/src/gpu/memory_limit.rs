//! The driver's own memory limit for the control groups of a job: drivers r615 and later, cgroup v2 (`nvidia-smi
//! memory-limits`, NVIDIA's MPS guide, memory partitioning). The limit applies to the processes of one leaf group, so
//! it is set for each task's group.

use std::fs;
use std::path::Path;

use gpufrac_core::fraction::MemoryMib;

use crate::gpu::nvidia_smi::{SmiError, run_nvidia_smi};
use gpufrac_host::cgroup;

/// The major number of the first driver with this limit.
const SINCE: u32 = 615;
const MOUNT: &str = "/sys/fs/cgroup";

/// The reason why a node does not have it; None if it has.
pub fn missing(driver_version: &str) -> Option<String> {
    missing_with(driver_version, Path::new(MOUNT))
}

fn missing_with(driver_version: &str, mount: &Path) -> Option<String> {
    let major: Option<u32> = driver_version
        .split('.')
        .next()
        .and_then(|n| n.parse().ok());
    if major.is_none_or(|major| major < SINCE) {
        return Some(format!(
            "driver {driver_version} has none (r{SINCE} and later do)"
        ));
    }
    let path = mount.join("cgroup.controllers");
    let controllers = fs::read_to_string(&path).unwrap_or_default();
    let usable = controllers
        .split_whitespace()
        .any(|name| matches!(name, "dmem" | "misc"));
    (!usable).then(|| {
        let path = path.display();
        format!("`{path}` has neither dmem nor misc (cgroup v2 is needed)")
    })
}

/// The reasons why the memory of a control group was not limited.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    #[error(transparent)]
    Read(#[from] std::io::Error),
    /// The job is not in a control group of version 2.
    /// Cure: Use `proctrack/cgroup` with version 2, or do without the limit.
    #[error("it is in no group of cgroup v2")]
    NoGroup,
    #[error(transparent)]
    Smi(#[from] SmiError),
}

/// Limits the memory of a process's group on one GPU.
/// Errors: the process has no group in the unified hierarchy, or nvidia-smi does not set the limit.
pub fn set(
    nvidia_smi: &Path,
    pid: u32,
    gpu_uuid: &str,
    memory: MemoryMib,
) -> Result<(), LimitError> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let group = cgroup::unified(&text).ok_or(LimitError::NoGroup)?;
    let (group, limit) = (format!("{MOUNT}{group}"), memory.0.to_string());
    let arguments = [
        "memory-limits",
        "--set",
        "-n",
        &group,
        "--hard-limit",
        &limit,
        "-i",
        gpu_uuid,
    ];
    Ok(run_nvidia_smi(nvidia_smi, &arguments)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Promise (admins): memory limits of control groups: what a node lacks is named, nvidia-smi is told group, limit
    /// and GPU.
    /// With `nvidia_smi_is_told_group_limit_and_gpu`.
    #[test]
    fn a_missing_driver_version_or_controller_is_named() {
        let keep = tempfile::tempdir().unwrap();
        let why = missing_with("550.163.01", keep.path()).unwrap();
        assert!(why.contains("550.163.01") && why.contains("r615"), "{why}");
        assert!(missing_with("unknown", keep.path()).is_some());
        let why = missing_with("615.10", keep.path()).unwrap();
        assert!(why.contains("dmem"), "{why}");
        fs::write(keep.path().join("cgroup.controllers"), "cpu memory dmem\n").unwrap();
        assert_eq!(missing_with("615.10", keep.path()), None);
    }

    #[test]
    fn nvidia_smi_is_told_group_limit_and_gpu() {
        let keep = tempfile::tempdir().unwrap();
        let (program, record) = (keep.path().join("smi"), keep.path().join("record"));
        let script = format!("#!/bin/sh\necho \"$@\" >{}\n", record.display());
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let own = std::process::id();
        let text = fs::read_to_string(format!("/proc/{own}/cgroup")).unwrap();
        let done = set(&program, own, "GPU-1", MemoryMib(4096));
        match cgroup::unified(&text) {
            None => assert!(done.unwrap_err().to_string().contains("cgroup v2")),
            Some(group) => {
                done.unwrap();
                let told = fs::read_to_string(record).unwrap();
                let expected =
                    format!("memory-limits --set -n {MOUNT}{group} --hard-limit 4096 -i GPU-1\n");
                assert_eq!(told, expected);
            }
        }
        fs::write(&program, "#!/bin/sh\necho no such thing; exit 3\n").unwrap();
        if cgroup::unified(&text).is_some() {
            assert_eq!(
                set(&program, own, "GPU-1", MemoryMib(1))
                    .unwrap_err()
                    .to_string(),
                "no such thing"
            );
        }
    }
}
