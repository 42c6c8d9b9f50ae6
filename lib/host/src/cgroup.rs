//! Control groups of processes.

/// The group in the unified hierarchy, as an absolute path there, from the text of /proc/PID/cgroup (cgroups(7)); None
/// where the process is in no group of version 2.
pub fn unified(memberships: &str) -> Option<&str> {
    let mut lines = memberships.lines();
    lines.find_map(|line| line.strip_prefix("0::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_the_unified_hierarchy_counts() {
        let text = "4:devices:/slurm/uid_1/job_2\n0::/system.slice/slurmstepd.scope/job_2/step_0/user/task_0\n";
        assert_eq!(
            unified(text),
            Some("/system.slice/slurmstepd.scope/job_2/step_0/user/task_0")
        );
        assert_eq!(unified("5:devices:/a\n0::/b\n"), Some("/b"));
        assert_eq!(unified("4:devices:/slurm\n"), None);
    }
}
