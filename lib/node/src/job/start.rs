//! How prolog and epilog begin: what slurmd told them, and the node's configuration.

use crate::job::environment::{self, JobEnv};
use crate::node::{Node, NodeError};
use gpufrac_host::exit::Exit;
use gpufrac_host::log::JobLog;

/// The job and its node; else how the program ends without doing anything.
pub fn start() -> Result<(JobEnv, Node), Exit> {
    let lookup = |name: &str| std::env::var_os(name);
    // Most jobs of most clusters end here: no file is read, no library loaded.
    if !environment::concerns_gpus(lookup) {
        return Err(Exit::Done);
    }
    let job = JobEnv::read(lookup).map_err(|error| {
        eprintln!("gpufrac: {error}");
        Exit::Usage
    })?;
    match Node::load(&job.config, &job.node) {
        Ok(node) if node.has_pools() => Ok((job, node)),
        Ok(_) => Err(Exit::Done),
        // A node that gpufrac was never set up for runs its ordinary GPU jobs, and those that had a fraction before
        // they were moved there: what job_submit granted stays with a job.
        Err(NodeError::NoConfig { .. }) if job.entry == Ok(None) || job.devices.is_empty() => {
            Err(Exit::Done)
        }
        Err(error) => {
            JobLog::new(job.job_id).error(error);
            // A mistake in the file, which all hosts share, must not drain every node that has an
            // ordinary GPU job.
            Err(match job.entry {
                Ok(None) => Exit::Done,
                _ => Exit::Broken,
            })
        }
    }
}
