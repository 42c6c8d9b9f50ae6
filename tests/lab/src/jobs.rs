//! Jobs and nodes, as Slurm shows them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

pub use gpufrac_core::ids::JobId;

use crate::patience::poll;
use crate::{Lab, LabError, Outcome, User, cgroups, leftovers};

/// One record of `scontrol show job`.
#[derive(Debug, Clone)]
pub struct Job(BTreeMap<String, String>);

impl Job {
    /// A field by scontrol's name; "" if there is none.
    pub fn field(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// PENDING, RUNNING, COMPLETED, ... A job whose prolog has not ended is CONFIGURING here; Slurm 22.05 shows it as
    /// RUNNING with the reason Prolog.
    pub fn state(&self) -> &str {
        match (self.field("JobState"), self.field("Reason")) {
            ("RUNNING", "Prolog") => "CONFIGURING",
            (state, _) => state,
        }
    }

    /// The job's number.
    pub fn id(&self) -> JobId {
        JobId(self.field("JobId").parse().unwrap_or(0))
    }

    /// Whether it holds or releases resources, or may still get some.
    pub fn is_active(&self) -> bool {
        matches!(
            self.state(),
            "PENDING"
                | "CONFIGURING"
                | "RUNNING"
                | "SUSPENDED"
                | "COMPLETING"
                | "STAGE_OUT"
                | "REQUEUED"
        )
    }
}

/// One record of `scontrol show node`.
#[derive(Debug, Clone)]
pub struct NodeView(BTreeMap<String, String>);

impl NodeView {
    /// A field by scontrol's name; "" if there is none.
    pub fn field(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// IDLE, MIXED+DRAIN, ...
    pub fn state(&self) -> &str {
        self.field("State")
    }

    /// Whether the node takes no new jobs.
    pub fn is_drained(&self) -> bool {
        // Compared word by word: a node that is POWERED_DOWN is powered up for new jobs.
        self.state().split('+').any(|word| {
            ["DRAIN", "DOWN", "FAIL", "INVAL"]
                .iter()
                .any(|bad| word.starts_with(bad))
        })
    }
}

/// Parses `scontrol -o show`: one record for each line, with `Key=value` words.
fn records(text: &str) -> Vec<BTreeMap<String, String>> {
    let record = |line: &str| {
        line.split_whitespace()
            .filter_map(|word| word.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    text.lines()
        .filter(|line| line.contains('='))
        .map(record)
        .collect()
}

impl Lab {
    /// Submits a batch job; returns its id. Errors: sbatch refuses it.
    pub fn sbatch(&self, user: &User, args: &[&str]) -> Result<JobId, LabError> {
        let outcome = self.try_sbatch(user, args)?.success()?;
        let first = outcome.stdout.trim().split(';').next().unwrap_or_default();
        first.parse().map(JobId).map_err(|_| LabError::Unexpected {
            what: format!("sbatch --parsable {}", args.join(" ")),
            found: outcome.stdout.clone(),
        })
    }

    /// Submits a batch job; returns sbatch's answer, also a refusal. Errors: sbatch cannot be run.
    pub fn try_sbatch(&self, user: &User, args: &[&str]) -> Result<Outcome, LabError> {
        self.command("sbatch")
            .user(user)
            .args(["--parsable"])
            .args(args)
            .run()
    }

    /// `scontrol update` as root, `JobId=7 Partition=small`.
    ///
    /// slurmctld without accounting may take an old `errno` for the result of a change of partition (`_update_job` of
    /// 24.11 and 26.05, after `_retrieve_new_assoc`); the update is then repeated. Errors: Slurm refuses it.
    pub fn update(&self, change: &[&str]) -> Result<Outcome, LabError> {
        self.try_update(&User::root(), change)?.success()
    }

    /// As [`update`](Self::update) by a user; returns scontrol's answer, also a refusal.
    /// Errors: scontrol cannot be run.
    pub fn try_update(&self, user: &User, change: &[&str]) -> Result<Outcome, LabError> {
        self.wait("scontrol update", Duration::from_secs(60), || {
            let scontrol = self.command("scontrol").user(user);
            let outcome = scontrol.args(["update"]).args(change).run()?;
            let stale = [
                "Resource temporarily unavailable",
                "Interrupted system call",
            ];
            let stale = stale.iter().any(|error| outcome.stderr.contains(error));
            Ok((!stale).then_some(outcome))
        })
    }

    /// The output of `scontrol show job -d` for a job: one record, or one for each member of an array or
    /// heterogeneous job. Errors: Slurm does not know it.
    pub fn show_job(&self, job: JobId) -> Result<Vec<Job>, LabError> {
        let text = self
            .command("scontrol")
            .args(["-d", "-o", "show", "job", &job.to_string()])
            .stdout()?;
        Ok(records(&text).into_iter().map(Job).collect())
    }

    /// A job with one record. Errors: Slurm does not know it.
    pub fn job(&self, job: JobId) -> Result<Job, LabError> {
        self.show_job(job)?
            .into_iter()
            .next()
            .ok_or_else(|| LabError::Unexpected {
                what: format!("scontrol show job {job}"),
                found: String::new(),
            })
    }

    /// All jobs that Slurm still knows. Errors: scontrol fails.
    pub fn jobs(&self) -> Result<Vec<Job>, LabError> {
        let text = self
            .command("scontrol")
            .args(["-d", "-o", "show", "jobs"])
            .stdout()?;
        Ok(records(&text).into_iter().map(Job).collect())
    }

    /// A node as Slurm sees it. Errors: when scontrol fails.
    pub fn node(&self, node: &str) -> Result<NodeView, LabError> {
        let text = self
            .command("scontrol")
            .args(["-d", "-o", "show", "node", node])
            .stdout()?;
        records(&text)
            .into_iter()
            .next()
            .map(NodeView)
            .ok_or_else(|| LabError::Unexpected {
                what: format!("scontrol show node {node}"),
                found: text,
            })
    }

    /// The nodes that take no new jobs, with the reason. Errors: scontrol fails.
    pub fn drained_nodes(&self) -> Result<Vec<String>, LabError> {
        let mut drained = Vec::new();
        for name in self.nodes() {
            let node = self.node(name)?;
            if node.is_drained() {
                drained.push(format!(
                    "{name}: {} ({})",
                    node.state(),
                    node.field("Reason")
                ));
            }
        }
        Ok(drained)
    }

    /// Waits until a job has one of these states. Errors: it has none of them after 60 s.
    pub fn wait_for_state(&self, job: JobId, states: &[&str]) -> Result<Job, LabError> {
        self.wait(
            &format!("job {job} {}", states.join(" or ")),
            Duration::from_secs(60),
            || {
                let seen = self.job(job)?;
                Ok(states.contains(&seen.state()).then_some(seen))
            },
        )
    }

    /// Waits until a job with all of its members has ended, and its nodes have released it.
    /// Errors: that takes more than 120 s.
    pub fn wait_for_end(&self, job: JobId) -> Result<Job, LabError> {
        self.wait(
            &format!("job {job} ended"),
            Duration::from_secs(120),
            || {
                let seen = self.show_job(job)?;
                let over = !seen.is_empty() && !seen.iter().any(Job::is_active);
                Ok(if over { seen.into_iter().next() } else { None })
            },
        )
    }

    /// Waits until `squeue` is empty. Errors: it is not empty after `limit`.
    pub fn wait_until_empty(&self, limit: Duration) -> Result<(), LabError> {
        self.wait("no job in the queue", limit, || {
            let text = self
                .command("squeue")
                .args(["-h", "-o", "%i %t %r"])
                .stdout()?;
            Ok(text.trim().is_empty().then_some(()))
        })
    }

    /// Polls until `probe` returns something. `limit` is the time on an idle machine; the wait may take several times
    /// as long. Errors: the error of the probe, or a deadline error with the ends of all logs.
    pub fn wait<T>(
        &self,
        what: &str,
        limit: Duration,
        probe: impl FnMut() -> Result<Option<T>, LabError>,
    ) -> Result<T, LabError> {
        let _waiting = self.count_wait();
        let found = poll(what, limit, Duration::from_millis(30), probe)?;
        found.ok_or_else(|| self.folder().deadline(what, limit))
    }

    /// The default output file of a batch job. Errors: there is no such file.
    pub fn output(&self, job: JobId) -> Result<String, LabError> {
        let path = self.folder().work().join(format!("slurm-{job}.out"));
        std::fs::read_to_string(&path).map_err(LabError::file("reading", path))
    }

    /// Moves a process to the extern step of a job, as pam_slurm_adopt does.
    /// Errors: the step does not run on the node, or the kernel refuses.
    pub fn put_in_extern_step(&self, node: &str, job: JobId, pid: u32) -> Result<(), LabError> {
        let title = format!("slurmstepd: [{job}.extern]");
        let groups = leftovers::numeric_entries(Path::new("/proc")).into_iter();
        let of_node = self.groups(node);
        let found = groups.flat_map(|stepd| {
            let proc = Path::new("/proc").join(stepd.to_string());
            let line = fs::read(proc.join("cmdline")).unwrap_or_default();
            let memberships = fs::read_to_string(proc.join("cgroup")).unwrap_or_default();
            if line.starts_with(title.as_bytes()) && of_node.hold(&memberships) {
                cgroups::extern_group(&memberships, of_node)
            } else {
                None
            }
        });
        let Some(group) = found.into_iter().next() else {
            return Err(LabError::Unexpected {
                what: format!("the extern step of job {job} on {node}"),
                found: "none".into(),
            });
        };
        let path = group.join("cgroup.procs");
        fs::write(&path, pid.to_string()).map_err(LabError::file("writing", &path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_scontrol_are_split_at_the_first_equals_sign() {
        let text = "JobId=7 JobState=RUNNING JOB_GRES=gpufrac:25,shard:25 Command=a=b\n";
        let jobs: Vec<_> = records(text).into_iter().map(Job).collect();
        assert_eq!(jobs.len(), 1);
        assert_eq!(jobs[0].id(), JobId(7));
        assert_eq!(jobs[0].field("Command"), "a=b");
        assert!(jobs[0].is_active());
    }

    #[test]
    fn a_drained_node_is_seen_as_such() {
        let node = records("NodeName=n1 State=IDLE+DRAIN Reason=x")
            .into_iter()
            .map(NodeView)
            .next();
        assert!(node.is_some_and(|node| node.is_drained()));
    }
}
