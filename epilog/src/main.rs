//! Slurm's Epilog on a compute node: removes the slice of a job. slurmd runs it as root, sometimes twice. Exit codes:
//! [`gpufrac_host::exit::Exit`]; slurmd drains the node for every code except 0.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use gpufrac_host::log::JobLog;
use gpufrac_node::job::slurmctld::Controller;
use gpufrac_node::job::start;
use gpufrac_node::slice::release;
use gpufrac_node::slurm_call;
use gpufrac_node::version;

fn main() -> ExitCode {
    let answered = version::answer("gpufrac-epilog");
    if let Some(answered) = answered.or_else(slurm_call::served) {
        return answered;
    }
    match start::epilog() {
        Ok((job, node)) => {
            let log = JobLog::new(job.job_id);
            release::epilog(&node, job.job_id, &Controller::default(), &log).into()
        }
        Err(exit) => exit.into(),
    }
}
