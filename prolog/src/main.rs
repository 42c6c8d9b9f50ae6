//! Slurm's Prolog on a compute node: makes the slice of a job. slurmd runs it as root. Exit codes:
//! [`gpufrac_host::exit::Exit`]; slurmd drains the node for every code except 0.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use gpufrac_host::log::JobLog;
use gpufrac_node::job::slurmctld::Controller;
use gpufrac_node::job::start;
use gpufrac_node::slice::carve;
use gpufrac_node::slurm_call;
use gpufrac_node::version;

fn main() -> ExitCode {
    let answered = version::answer("gpufrac-prolog");
    if let Some(answered) = answered.or_else(slurm_call::served) {
        return answered;
    }
    let slurm = Controller::default();
    let (job, node) = match start::prolog(&slurm) {
        Ok(begun) => begun,
        Err(exit) => return exit.into(),
    };
    let log = JobLog::new(job.job_id);
    match node {
        Ok(node) => carve::prolog(&job, &node, &slurm, &log).into(),
        Err(error) => carve::give_back(&job, error, &slurm, &log).into(),
    }
}
