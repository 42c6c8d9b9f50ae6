//! The start of prolog and epilog: the variables of slurmd, and the node's configuration.

use std::path::Path;

use gpufrac_core::config::{Config, LAST_GOOD};

use crate::job::environment::{self, JobEnv};
use crate::job::slurmctld::Slurm;
use crate::node::{Node, NodeError, Served};
use crate::state::last_good;
use gpufrac_host::exit::Exit;
use gpufrac_host::log::JobLog;

/// The job of a prolog, and its node; without a node if a fraction was granted and the configuration cannot be used.
/// The error is the exit code of a program that has nothing to do.
pub fn prolog(slurm: &dyn Slurm) -> Result<(JobEnv, Result<Node, NodeError>), Exit> {
    let job = job()?;
    let is_granted = !job.devices.is_empty() && matches!(job.entry, Ok(Some(_)));
    if is_granted {
        // The answer takes longer than all that the prolog does until it needs it.
        slurm.prefetch(job.job_id);
    }
    match load(&job) {
        // On a node without a pool Slurm's count is checked.
        Ok(node) if node.has_pools() || is_granted => Ok((job, Ok(node))),
        Ok(_) => Err(Exit::Done),
        // A node without gpufrac runs ordinary GPU jobs, and jobs with a fraction that were moved there, because an
        // entry stays with its job.
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

/// The job of an epilog, and its node. The lease has all data that are needed; its path comes from the last valid
/// configuration, or is the default one. The error is the exit code of a program that has nothing to do.
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
    // Most jobs of most clusters end here: no file is read, no library is loaded.
    if !environment::concerns_gpus(lookup) {
        return Err(Exit::Done);
    }
    JobEnv::read(lookup).map_err(|error| {
        eprintln!("gpufrac: {error}");
        Exit::Usage
    })
}

/// The node by its configuration, or by the last valid copy; a valid configuration becomes the copy.
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
        // The last good copy could not be written. Cure: Free space in /var/lib/gpufrac.
        log.warning(format!(
            "keeping a copy of the configuration failed: {error}"
        ));
    }
    Ok(node)
}
