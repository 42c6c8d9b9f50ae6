//! What only newer drivers have: static partitions of multiprocessors (CUDA 13.1) and memory limits of control
//! groups (driver r615, cgroup v2).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// The version of CUDA whose control daemon has `-S` and `sm_partition`, as `-v` says it.
const PARTITIONS_SINCE: u32 = 13_010;
/// The driver whose `nvidia-smi memory-limits` sets limits of control groups.
const MEMORY_LIMITS_SINCE: u32 = 615;
const CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.controllers";

/// What a control daemon's program says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlVersion {
    /// CUDA's version, 1000 times the major plus 10 times the minor; None before it was told.
    pub cuda: Option<u32>,
}

impl ControlVersion {
    /// Whether it can make static partitions.
    pub fn has_partitions(self) -> bool {
        self.cuda.is_some_and(|version| version >= PARTITIONS_SINCE)
    }
}

/// Asks the program: `nvidia-cuda-mps-control -v`. Those of drivers 535 to 555 print no number.
pub fn control_version(program: &Path) -> Result<ControlVersion, String> {
    let output = Command::new(program)
        .arg("-v")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run `{}`: {error}", program.display()))?;
    Ok(version_of(&String::from_utf8_lossy(&output.stdout)))
}

fn version_of(text: &str) -> ControlVersion {
    let numbers = text.split(|c: char| !c.is_ascii_digit());
    // Years of the copyright have four digits.
    let cuda = numbers
        .filter(|word| word.len() == 5)
        .find_map(|word| word.parse().ok());
    ControlVersion { cuda }
}

/// Why a node has no memory limits of control groups; None if it has.
pub fn memory_limits_missing(driver_version: &str) -> Option<String> {
    let major: Option<u32> = driver_version
        .split('.')
        .next()
        .and_then(|n| n.parse().ok());
    if major.is_none_or(|major| major < MEMORY_LIMITS_SINCE) {
        return Some(format!(
            "driver {driver_version} has none (r{MEMORY_LIMITS_SINCE} and later do)"
        ));
    }
    let controllers = fs::read_to_string(CONTROLLERS).unwrap_or_default();
    let usable = controllers
        .split_whitespace()
        .any(|name| matches!(name, "dmem" | "misc"));
    (!usable).then(|| format!("`{CONTROLLERS}` has neither dmem nor misc (cgroup v2 is needed)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_where_they_are_told() {
        assert!(version_of("13010").has_partitions());
        assert!(version_of("CUDA MPS Control binary version: 13030\n").has_partitions());
        assert!(!version_of("12090").has_partitions());
        let old =
            "CUDA MPS Control for Linux/Unix.\nCopyright (C) 2003 - 2024 NVIDIA Corporation.\n";
        assert_eq!(version_of(old).cuda, None);
    }

    #[test]
    fn an_old_driver_is_named() {
        let why = memory_limits_missing("550.163.01").unwrap();
        assert!(why.contains("550.163.01") && why.contains("r615"), "{why}");
        assert!(memory_limits_missing("unknown").is_some());
    }
}
