//! Repair: what runs that died left behind on a GPU. Done with the GPU's lock held, so no
//! carving or releasing is under way there. An instance without a lease is somebody else's and
//! stays.

use std::time::{Duration, Instant};

use gpufrac_core::layout::Side;
use gpufrac_core::lease::{Lease, LeaseState};
use slurm_sys::client::JobState;

use crate::job::slurmctld::Slurm;
use crate::node::Node;
use crate::slice::teardown::{Teardown, TeardownError};
use crate::state::leases::{LeaseStore, StoreError};
use gpufrac_host::log::JobLog;
use gpufrac_nvml::Session;

/// Ends every lease of the GPU that a dead run left in `carving` or `releasing`, but that of
/// `except`. What cannot be ended now stays, with its place taken. Gives the leases left.
pub fn repair(
    node: &Node,
    store: &LeaseStore,
    session: &Session,
    gpu_uuid: &str,
    except: Option<u32>,
    log: &JobLog,
) -> Result<Vec<Lease>, StoreError> {
    let mut left = Vec::new();
    for mut lease in store.of_gpu(gpu_uuid)? {
        if lease.state == LeaseState::Active || Some(lease.job_id) == except {
            left.push(lease);
            continue;
        }
        let (job, was) = (lease.job_id, lease.state);
        match end(node, store, session, &mut lease, log) {
            Ok(()) => log.info(format!(
                "ended the lease of job {job}, which was left {was} on {}",
                place(&lease)
            )),
            Err(error) => {
                log.warning(format!(
                    "the lease of job {job}, left {was} on {}, cannot be ended yet: {error}",
                    place(&lease)
                ));
                left.push(lease);
            }
        }
    }
    Ok(left)
}

/// How long others may wait for the GPU while Slurm is asked.
const ASK_LIMIT: Duration = Duration::from_secs(4);

/// A place that a job wants.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// The GPU.
    pub gpu_uuid: &'a str,
    /// The side of it.
    pub side: Side,
    /// The job.
    pub job_id: u32,
}

/// Ends the active leases on one side of the GPU whose jobs are over: their epilog never came.
/// Only where Slurm says so; no answer is no permission, and who did not answer once is not asked
/// again, as the GPU is locked meanwhile. Says how many went.
pub fn evict_finished(
    node: &Node,
    store: &LeaseStore,
    session: &Session,
    wanted: &Wanted<'_>,
    slurm: &dyn Slurm,
    log: &JobLog,
) -> Result<usize, StoreError> {
    let mut gone = 0;
    let start = Instant::now();
    for mut lease in store.of_gpu(wanted.gpu_uuid)? {
        let elsewhere = lease.slice.side != wanted.side || lease.job_id == wanted.job_id;
        if elsewhere || lease.state != LeaseState::Active {
            continue;
        }
        if start.elapsed() > ASK_LIMIT {
            log.warning(
                "Slurm takes long to say which jobs are over; the rest is not asked about now",
            );
            break;
        }
        let job = lease.job_id;
        let over = match slurm.job(job) {
            Ok(None) => true,
            // Completing: its epilog is under way, or will be.
            Ok(Some(info)) => {
                info.state == JobState::Finished || info.restart_count > lease.restart_count
            }
            Err(error) => {
                log.warning(format!(
                    "is job {job} on {} over? No answer: {error}",
                    place(&lease)
                ));
                break;
            }
        };
        if over && end_finished(node, store, session, &mut lease, log) {
            gone += 1;
        }
    }
    Ok(gone)
}

/// Ends the lease of a job that is over by Slurm's own word, with the GPU's lock held. Says whether it went.
pub fn end_finished(
    node: &Node,
    store: &LeaseStore,
    session: &Session,
    lease: &mut Lease,
    log: &JobLog,
) -> bool {
    let job = lease.job_id;
    let ended = end(node, store, session, lease, log);
    match &ended {
        Ok(()) => log.warning(format!(
            "ended the lease of job {job} on {}: Slurm says the job is over, but no epilog came",
            place(lease)
        )),
        Err(error) => log.warning(format!(
            "the lease of job {job}, which is over, cannot be ended yet: {error}"
        )),
    }
    ended.is_ok()
}

/// Ends a lease in whatever state it is, with the GPU's lock held.
fn end(
    node: &Node,
    store: &LeaseStore,
    session: &Session,
    lease: &mut Lease,
    log: &JobLog,
) -> Result<(), TeardownError> {
    let teardown = Teardown::new(node, store);
    let retried = teardown.begin(lease)?;
    teardown.end(session, lease, retried, log)?;
    Ok(())
}

/// Where a slice is, for messages.
pub fn place(lease: &Lease) -> String {
    let slice = &lease.slice;
    let kind = lease.kind();
    match &slice.mig {
        Some(mig) => format!(
            "GPU {} {kind} at {}:{}",
            slice.gpu_index, mig.placement.start, mig.placement.size
        ),
        None => format!("GPU {} {} by {kind}", slice.gpu_index, lease.fraction),
    }
}
