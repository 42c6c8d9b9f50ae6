//! Slurm's Epilog on a compute node: takes the slice of a job down. slurmd runs it as root,
//! sometimes twice. Exit codes: [`gpufrac_node::exit::Exit`]; anything but 0 drains the node.

use std::process::ExitCode;

use gpufrac_node::log::JobLog;
use gpufrac_node::release;
use gpufrac_node::start::start;

fn main() -> ExitCode {
    match start() {
        Ok((job, node)) => release::epilog(&node, job.job_id, &JobLog::new(job.job_id)).into(),
        Err(exit) => exit.into(),
    }
}
