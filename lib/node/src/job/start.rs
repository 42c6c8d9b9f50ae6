//! The start of prolog and epilog: the variables of slurmd, and the node's configuration.

use std::path::Path;

use gpufrac_core::config::{Config, LAST_GOOD};

use crate::job::environment::{self, JobEnv};
use crate::node::{Node, NodeError, Served};
use crate::state::last_good;
use gpufrac_host::exit::Exit;
use gpufrac_host::log::JobLog;

/// The job of a prolog, and its node; no node where a fraction was granted and the configuration cannot be used. Else how the
/// program ends without doing anything.
pub fn prolog() -> Result<(JobEnv, Result<Node, NodeError>), Exit> {
    let job = job()?;
    let is_granted = !job.devices.is_empty() && matches!(job.entry, Ok(Some(_)));
    match load(&job) {
        // What is counted on a node of no pool is looked at.
        Ok(node) if node.has_pools() || is_granted => Ok((job, Ok(node))),
        Ok(_) => Err(Exit::Done),
        // A node that gpufrac was never set up for runs its ordinary GPU jobs, and those that had a fraction before
        // they were moved there: what job_submit granted stays with a job.
        Err(NodeError::NoConfig { .. }) if job.entry == Ok(None) || job.devices.is_empty() => {
            Err(Exit::Done)
        }
        Err(error) => {
            JobLog::new(job.job_id).error(&error);
            match job.entry {
                // A mistake in the file, which all hosts share, must not stop every ordinary GPU job.
                Ok(None) => Err(Exit::Done),
                _ => Ok((job, Err(error))),
            }
        }
    }
}

/// The job of an epilog, and its node: the lease has all that is needed, and where it is says the last good configuration, or
/// where leases are unless a file says otherwise. Else how the program ends without doing anything.
pub fn epilog() -> Result<(JobEnv, Node), Exit> {
    let job = job()?;
    let node = load(&job).unwrap_or_else(|error| {
        if !matches!(error, NodeError::NoConfig { .. }) {
            JobLog::new(job.job_id).error(&error);
        }
        Node::new(Config::empty(), &job.node)
    });
    Ok((job, node))
}

fn job() -> Result<JobEnv, Exit> {
    let lookup = |name: &str| std::env::var_os(name);
    // Most jobs of most clusters end here: no file is read, no library loaded.
    if !environment::concerns_gpus(lookup) {
        return Err(Exit::Done);
    }
    JobEnv::read(lookup).map_err(|error| {
        eprintln!("gpufrac: {error}");
        Exit::Usage
    })
}

/// The node by its configuration, or by the last good copy of that; one without a mistake becomes the copy.
fn load(job: &JobEnv) -> Result<Node, NodeError> {
    let Served {
        node,
        complaint,
        text,
    } = Node::load_to_serve(&job.config, &job.node, Path::new(LAST_GOOD))?;
    let log = JobLog::new(job.job_id);
    if let Some(complaint) = complaint {
        log.error(complaint);
    }
    if let Some(text) = text.filter(|_| node.has_pools())
        && let Err(error) = last_good::keep(Path::new(LAST_GOOD), &job.config, &job.node, &text)
    {
        log.warning(format!("no copy of the configuration is kept: {error}"));
    }
    Ok(node)
}
