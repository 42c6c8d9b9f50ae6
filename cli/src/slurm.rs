//! Questions to Slurm by its own programs. No user can influence the text that is read here.

use gpufrac_core::count_name::CountName;
use gpufrac_core::hostlist::Hostlist;
use gpufrac_core::ids::JobId;
use gpufrac_slurm_settings::{AskError, ask_slurm};

/// A job in Slurm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    pub id: JobId,
    /// The state, in squeue's spelling: `RUNNING`.
    pub state: String,
    /// The nodes on which the job runs, or ran.
    pub nodes: Vec<String>,
    /// Why the job waits, in squeue's spelling: `Prolog` while its prologs run, `None`.
    pub reason: String,
}

/// States of jobs that hold no resources, in squeue's spelling.
const HOLDS_NOTHING: [&str; 15] = [
    "PENDING",
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
    "REVOKED",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
];

impl Job {
    /// Whether the job runs, and its prologs have ended.
    pub fn has_begun(&self) -> bool {
        self.state == "RUNNING" && self.reason != "Prolog"
    }

    /// Whether the job may hold something on a node. In doubt true, because an epilog may still run.
    pub fn is_on(&self, node: &str) -> bool {
        let holds = !HOLDS_NOTHING.contains(&self.state.as_str());
        holds && (self.nodes.is_empty() || self.nodes.iter().any(|known| known == node))
    }
}

/// The fields that [`parse`] reads.
const FORMAT: &str = "%A|%T|%N|%r";

/// The job with this id; None if slurmctld knows none.
pub fn job(id: JobId) -> Result<Option<Job>, AskError> {
    let number = id.to_string();
    let said = ask_slurm("squeue", &["-h", "-t", "all", "-j", &number, "-o", FORMAT]);
    match said {
        Ok(text) => Ok(parse(&text).into_iter().find(|job| job.id == id)),
        Err(AskError::Refused(_, why)) if why.contains("Invalid job id") => Ok(None),
        Err(error) => Err(error),
    }
}

/// The jobs that may hold something on a node.
pub fn jobs_on(node: &str) -> Result<Vec<Job>, AskError> {
    let text = ask_slurm("squeue", &["-h", "-w", node, "-o", FORMAT])?;
    let jobs = parse(&text).into_iter();
    Ok(jobs.filter(|job| job.is_on(node)).collect())
}

/// Whether a job has fractions; in doubt true. A job with a whole GPU of a pool has no shares, only the count.
pub fn has_fractions(id: JobId, name: &CountName) -> Result<bool, AskError> {
    let text = ask_slurm("scontrol", &["-d", "show", "job", &id.to_string()])?;
    // An earlier file may have had the default name.
    let names = [name.as_str(), "gpufrac", "shard"];
    Ok(names.iter().any(|known| text.contains(known)))
}

fn parse(text: &str) -> Vec<Job> {
    let jobs = text.lines().filter_map(|line| {
        let mut fields = line.split('|').map(str::trim);
        let id = fields.next()?.parse().ok()?;
        let state = fields.next()?.to_owned();
        let nodes = Hostlist::parse(fields.next()?).ok();
        Some(Job {
            id,
            state,
            reason: fields.next().unwrap_or_default().to_owned(),
            nodes: nodes.map_or_else(Vec::new, |list| list.names().to_vec()),
        })
    });
    jobs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_holds_something_until_its_epilogs_are_over() {
        let jobs = parse(
            "12|RUNNING|gn[01-02]|None\n13|COMPLETING|gn02|None\n14|PENDING||Priority\n15|FAILED|gn01|None\n16|RUNNING|gn03|Prolog\nx\n",
        );
        assert_eq!(jobs.len(), 5);
        let begun: Vec<bool> = jobs.iter().map(Job::has_begun).collect();
        assert_eq!(begun, [true, false, false, false, false]);
        let on = |node: &str| -> Vec<u32> {
            jobs.iter()
                .filter(|job| job.is_on(node))
                .map(|job| job.id.0)
                .collect()
        };
        assert_eq!(on("gn01"), [12]);
        assert_eq!(on("gn02"), [12, 13]);
        assert_eq!(on("gn03"), [16]);
        assert!(on("gn04").is_empty());
    }
}
