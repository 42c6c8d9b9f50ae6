//! The CPU time of a cluster, whose daemons and their child processes are in a control group.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

/// The mount of version 1 of control groups with the CPU time.
const ACCOUNTS: &str = "/sys/fs/cgroup/cpuacct";
/// The name of this controller in /proc/self/cgroup.
const CONTROLLER: &str = "cpuacct";

/// A control group whose CPU time is counted.
pub(super) struct Meter(PathBuf);

impl Meter {
    /// Runs `start` in a new group, which all its child processes share. None if version 1 of control groups does not
    /// count CPU time.
    pub fn around<T>(name: &str, start: impl FnOnce() -> Result<T>) -> Result<(Option<Meter>, T)> {
        let memberships = fs::read_to_string("/proc/self/cgroup")?;
        let Some(own) = own_group(&memberships).filter(|_| Path::new(ACCOUNTS).is_dir()) else {
            return Ok((None, start()?));
        };
        let own = Path::new(ACCOUNTS).join(own);
        let meter = Meter(own.join(format!("gpufrac-bench-{}-{name}", std::process::id())));
        fs::create_dir(&meter.0)
            .with_context(|| format!("creating {} failed", meter.0.display()))?;
        enter(&meter.0)?;
        let started = start();
        enter(&own)?;
        Ok((Some(meter), started?))
    }

    /// The CPU time since the group was made.
    pub fn used(&self) -> Result<Duration> {
        let text = fs::read_to_string(self.0.join("cpuacct.usage"))?;
        Ok(Duration::from_nanos(text.trim().parse()?))
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        // The kernel does not remove a group with processes; it then stays without harm.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Moves this process into a group.
fn enter(group: &Path) -> Result<()> {
    let path = group.join("cgroup.procs");
    fs::write(&path, std::process::id().to_string())
        .with_context(|| format!("writing {} failed", path.display()))
}

/// This process's group in the text of /proc/self/cgroup, below the mount.
fn own_group(memberships: &str) -> Option<&str> {
    memberships.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let mut controllers = controllers.split(',');
        controllers
            .any(|name| name == CONTROLLER)
            .then(|| path.trim_start_matches('/'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_that_of_the_controller() {
        assert_eq!(own_group("7:cpuacct:/a/b\n0::/c\n"), Some("a/b"));
        assert_eq!(own_group("7:cpu,cpuacct:/\n"), Some(""));
        assert_eq!(own_group("7:cpu:/a\n0::/c\n"), None);
    }
}
