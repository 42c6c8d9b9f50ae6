//! Slurm's Prolog on a compute node: carves the slice of a job. slurmd runs it as root. Exit
//! codes: [`gpufrac_host::exit::Exit`]; anything but 0 drains the node.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use gpufrac_host::log::JobLog;
use gpufrac_node::job::slurmctld::Controller;
use gpufrac_node::job::start::start;
use gpufrac_node::slice::carve;
use gpufrac_node::version;

fn main() -> ExitCode {
    if let Some(answered) = version::answer("gpufrac-prolog") {
        return answered;
    }
    match start() {
        Ok((job, node)) => {
            let log = JobLog::new(job.job_id);
            carve::prolog(&job, &node, &Controller::new(), &log).into()
        }
        Err(exit) => exit.into(),
    }
}
