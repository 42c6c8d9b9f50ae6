//! `gpufrac clean`: shows the MIG instances that no lease names, asks, and destroys them.

use gpufrac_core::ids::JobId;
use gpufrac_host::exit::Exit;
use gpufrac_host::log::JobLog;
use gpufrac_node::gpu::locked::LockedGpu;
use gpufrac_node::job::reserve;
use gpufrac_node::node::Node;
use gpufrac_node::slice::unleased::{self, CleanError, Unleased};
use gpufrac_node::slurm_call::{JobControl, SlurmProcess};
use gpufrac_nvml::Session;

use crate::admin;
use crate::args::CleanArgs;
use crate::error::CliError;
use crate::slurm;

pub fn run(args: &CleanArgs) -> Result<Exit, CliError> {
    let node = admin::node(&args.config)?;
    let session = node.nvml().map_err(CleanError::from)?;
    let found = unleased::of_node(&node, &session)?;
    if found.is_empty() {
        println!(
            "each MIG instance of the pools on node {} has a lease",
            node.name
        );
        return Ok(Exit::Done);
    }
    found.iter().for_each(|it| println!("{it}"));
    let jobs = without_lease(&node)?;
    if !jobs.is_empty() {
        return Err(CliError::JobsWithoutLease {
            node: node.name,
            jobs,
        });
    }
    let free = found.iter().filter(|it| it.pids.is_empty()).count();
    if free == 0 {
        return Err(CliError::AllInUse);
    }
    if !admin::confirm(
        &format!("destroy the {free} that nothing runs on?"),
        args.yes,
    )? {
        println!("nothing was destroyed");
        return Ok(Exit::Done);
    }
    let log = JobLog::command("clean");
    let mut exit = Exit::Done;
    for it in &found {
        match destroy(&node, &session, &log, it) {
            Ok(true) => println!(
                "destroyed MIG instance {} of GPU {}",
                it.instance.gi_id, it.gpu_index
            ),
            Ok(false) => println!(
                "MIG instance {} of GPU {} went by itself",
                it.instance.gi_id, it.gpu_index
            ),
            Err(error) => {
                error.print();
                exit = Exit::Broken;
            }
        }
    }
    Ok(exit)
}

fn destroy(
    node: &Node,
    session: &Session,
    log: &JobLog,
    wanted: &Unleased,
) -> Result<bool, CliError> {
    let store = node.leases()?;
    let locks = node.locks().map_err(CliError::File)?;
    let lock = locks.gpu(wanted.gpu_index, node.lock_patience)?;
    let gpu = session.gpu(wanted.gpu_index).map_err(CleanError::from)?;
    let locked = LockedGpu::new(lock, node, &store, gpu, log);
    let gone = unleased::destroy(&locked, wanted)?;
    if gone {
        // The instance without a lease is gone. Cure: Nothing.
        log.warning(format!("{wanted}: destroyed"));
    }
    Ok(gone)
}

/// Whether this job of root takes the units of a stuck place, and so has no slice. In doubt false.
fn takes_units(job: JobId) -> bool {
    let info = SlurmProcess.job(job);
    info.is_ok_and(|info| info.is_some_and(|info| reserve::is_ours(&info)))
}

/// Jobs that hold fractions on this node and have no lease. An instance without a lease may belong to them, even if
/// no process uses it now.
fn without_lease(node: &Node) -> Result<Vec<JobId>, CliError> {
    let leases = node.leases()?.list()?;
    let mut lost = Vec::new();
    for job in slurm::jobs_on(&node.name).map_err(CliError::SlurmIsSilent)? {
        let is_leased = leases.iter().any(|lease| lease.job_id == job.id);
        if !is_leased
            && slurm::has_fractions(job.id, &node.config.count_name)
                .map_err(CliError::SlurmIsSilent)?
            && !takes_units(job.id)
        {
            lost.push(job.id);
        }
    }
    Ok(lost)
}
