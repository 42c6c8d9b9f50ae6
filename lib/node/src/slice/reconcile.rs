//! Repair: removes the remains of killed programs on a GPU. Because the GPU is locked, no other program makes or
//! releases slices there. An instance without a lease is not gpufrac's and stays.

use std::time::{Duration, Instant};

use gpufrac_core::ids::JobId;
use gpufrac_core::layout::Side;
use gpufrac_core::lease::{Lease, LeaseState};

use crate::gpu::locked::LockedGpu;
use crate::job::slurmctld::{Slurm, is_over_on_node};
use crate::slice::teardown::{self, TeardownError};
use crate::slice::{keep, release};
use crate::state::leases::StoreError;

/// Ends every lease of the GPU that a killed program left in `carving` or `releasing`, except those of `except` and
/// of running epilogs; also kept instances whose pool no longer keeps them. A lease that cannot be ended stays, with
/// its place taken. Returns the remaining leases.
pub fn repair(locked: &mut LockedGpu<'_>, except: Option<JobId>) -> Result<Vec<Lease>, StoreError> {
    let log = locked.log;
    let epilogs = locked.epilogs();
    let mut left = Vec::new();
    for mut lease in locked.leases()? {
        let stays = match lease.state {
            LeaseState::Active => true,
            LeaseState::Kept => keep::is_of_pool(locked.node, &lease),
            // Its epilog has its own turn; until then Slurm counts it, too.
            LeaseState::Releasing => epilogs.contains(&lease.job_id),
            LeaseState::Carving => false,
        };
        if stays || Some(lease.job_id) == except {
            left.push(lease);
            continue;
        }
        let (job, was) = (lease.job_id, lease.state);
        // An epilog had died. The lease is removed. Cure: Nothing.
        match end(locked, &mut lease) {
            Ok(()) => log.info(format!(
                "ended the lease of job {job}, which was left {was} on {}",
                lease.place()
            )),
            Err(error) => {
                // The slice of an ended job cannot be removed yet. Cure: Follow the text; it is tried again.
                log.warning(format!(
                    "ending the lease of job {job}, left {was} on {}, failed for now: {error}",
                    lease.place()
                ));
                release::count_failure(locked.node, &lease, &error, log);
                left.push(lease);
            }
        }
    }
    Ok(left)
}

/// How long others may wait for the GPU while Slurm is asked.
const ASK_LIMIT: Duration = Duration::from_secs(4);

/// Ends the active leases on one side of the GPU whose jobs have ended without an epilog, except that of `except`;
/// only if Slurm says so. Without an answer no lease is ended, and Slurm is not asked again, because the GPU is
/// locked meanwhile. Returns the number of ended leases.
pub fn evict_finished(
    locked: &mut LockedGpu<'_>,
    side: Side,
    except: JobId,
    slurm: &dyn Slurm,
) -> Result<usize, StoreError> {
    let log = locked.log;
    let mut gone = 0;
    let start = Instant::now();
    for mut lease in locked.leases()? {
        let elsewhere = lease.slice.side != side || lease.job_id == except;
        if elsewhere || lease.state != LeaseState::Active {
            continue;
        }
        if start.elapsed() > ASK_LIMIT {
            // slurmctld is slow. Cure: Nothing: the rest is checked later.
            log.warning("Slurm answers slowly; the jobs of the other leases are checked later");
            break;
        }
        let job = lease.job_id;
        let over = match slurm.job(job) {
            Ok(None) => true,
            Ok(Some(info)) => is_over_on_node(&info, &lease),
            Err(error) => {
                // slurmctld did not answer, so the lease stays. Cure: Check `scontrol ping`; it is tried again.
                log.warning(format!(
                    "asking Slurm whether job {job} on {} has ended failed: {error}",
                    lease.place()
                ));
                break;
            }
        };
        if over && end_finished(locked, &mut lease) {
            gone += 1;
        }
    }
    Ok(gone)
}

/// Ends the lease of a job that has ended by Slurm's answer. Returns whether it was ended.
pub fn end_finished(locked: &mut LockedGpu<'_>, lease: &mut Lease) -> bool {
    let log = locked.log;
    let job = lease.job_id;
    let ended = end(locked, lease);
    match &ended {
        // The job's epilog did not run, for example after a power loss. Cure: Nothing.
        Ok(()) => log.warning(format!(
            "ended the lease of job {job} on {}: Slurm reports that the job has ended, but its epilog did not run",
            lease.place()
        )),
        // The slice of an ended job cannot be removed yet. Cure: Follow the text; it is tried again.
        Err(error) => log.warning(format!(
            "ending the lease of job {job}, which has ended, failed for now: {error}"
        )),
    }
    ended.is_ok()
}

/// Ends a lease in any state. Errors: the slice cannot be removed; the lease then stays.
pub fn end(locked: &mut LockedGpu<'_>, lease: &mut Lease) -> Result<(), TeardownError> {
    let retried = teardown::begin(locked.store, locked.lock(), lease)?;
    teardown::end(locked, lease, retried)?;
    Ok(())
}
