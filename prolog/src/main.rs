//! Slurm's Prolog on a compute node: carves the slice of a job. slurmd runs it as root. Exit
//! codes: [`gpufrac_node::exit::Exit`]; anything but 0 drains the node.

use std::process::ExitCode;

use gpufrac_node::carve;
use gpufrac_node::exit::Exit;
use gpufrac_node::job_env::{self, JobEnv};
use gpufrac_node::log::JobLog;
use gpufrac_node::node::{Node, NodeError};
use gpufrac_node::slurm::Controller;

fn main() -> ExitCode {
    let lookup = |name: &str| std::env::var_os(name);
    // Most jobs of most clusters end here: no file is read, no library loaded.
    if !job_env::concerns_gpus(lookup) {
        return ExitCode::SUCCESS;
    }
    let job = match JobEnv::read(lookup) {
        Ok(job) => job,
        Err(error) => {
            eprintln!("gpufrac: {error}");
            return Exit::Usage.into();
        }
    };
    let node = match Node::load(&job.config, &job.node) {
        Ok(node) => node,
        // A node that gpufrac was never set up for runs its ordinary GPU jobs.
        Err(NodeError::NoConfig { .. }) if job.entry == Ok(None) => return Exit::Done.into(),
        Err(error) => {
            JobLog::new(job.job_id).error(error);
            // A mistake in the file, which all hosts share, must not drain every node that runs an
            // ordinary GPU job.
            return match job.entry {
                Ok(None) => Exit::Done.into(),
                _ => Exit::Broken.into(),
            };
        }
    };
    if !node.has_pools() {
        return Exit::Done.into();
    }
    let log = JobLog::new(job.job_id);
    carve::prolog(&job, &node, &Controller::new(), &log).into()
}
