//! What Slurm's `PrivateData` hides from users of what gpufrac shows.
//!
//! | value | Slurm hides | gpufrac hides |
//! |---|---|---|
//! | `jobs` | jobs of others in squeue, sacct, scontrol | leases, records, owners, labels of jobs in metrics |
//! | `usage` | usage of others in sreport and sshare | usage records of others |
//! | `nodes` | nodes in sinfo and scontrol | the files of nodes that `gpufrac status` and `top` read |
//!
//! The other values (`accounts`, `events`, `partitions`, `reservations`, `users`) hide tables of the accounting and of
//! slurmctld that gpufrac does not show: with `users` alone squeue still names the user of each job.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The values of `PrivateData` that matter to gpufrac.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivateData {
    pub jobs: bool,
    pub usage: bool,
    pub nodes: bool,
}

impl PrivateData {
    /// Whether usage records of others are hidden: they name jobs, too.
    pub fn hides_usage(self) -> bool {
        self.jobs || self.usage
    }
}

impl fmt::Display for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.jobs, "jobs"),
            (self.usage, "usage"),
            (self.nodes, "nodes"),
        ];
        let set: Vec<&str> = all
            .iter()
            .filter(|(set, _)| *set)
            .map(|(_, name)| *name)
            .collect();
        if set.is_empty() { f.write_str("none") } else { f.write_str(&set.join(",")) }
    }
}
