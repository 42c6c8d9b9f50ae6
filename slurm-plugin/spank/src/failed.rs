//! A task that failed while its slice was full: its program's own words are "out of memory". slurmctld takes no comment
//! on a job that ended, so slurmstepd writes the comment before.

use std::sync::atomic::{AtomicBool, Ordering};

use gpufrac_core::lease::Lease;
use gpufrac_node::job::admin_comment::full_in;
use slurm_sys::client::{Client, ClientError};
use slurm_sys::log;
use slurm_sys::spank::Spank;

use crate::slice::JobSlice;

/// Whether this step's tasks need no further comment.
static IS_EXPLAINED: AtomicBool = AtomicBool::new(false);

/// Signals by which people and Slurm end tasks.
const ENDED_BY_OTHERS: [i32; 3] = [libc::SIGINT, libc::SIGKILL, libc::SIGTERM];

/// Whether a task with this status, as of `waitpid`, failed by itself.
fn failed(status: i32) -> bool {
    if libc::WIFSIGNALED(status) {
        !ENDED_BY_OTHERS.contains(&libc::WTERMSIG(status))
    } else {
        status != 0
    }
}

/// Comments on the job, where the task of the hook failed and one of its slices was full.
pub fn explain(spank: Spank, slice: &JobSlice, leases: &[Lease]) {
    if IS_EXPLAINED.load(Ordering::Relaxed) || !spank.task_status().is_some_and(failed) {
        return;
    }
    let Some(told) = leases.iter().find_map(|lease| slice.told_full(lease)) else {
        return;
    };
    IS_EXPLAINED.store(true, Ordering::Relaxed);
    let Some(job_id) = spank.job_id() else {
        return;
    };
    let comment = |client: &Client| -> Result<(), ClientError> {
        let job = client.known_job(job_id)?;
        match full_in(&job.admin_comment, &told) {
            Some(comment) => client.set_admin_comment(&job, &comment),
            None => Ok(()),
        }
    };
    match Client::of_host().and_then(|client| comment(&client)) {
        // A task failed, and its slice was full. Cure: Submit with the size that the line names.
        Ok(()) => log::info(&format!(
            "gpufrac: job {job_id}: a task failed with a full slice: {told}"
        )),
        // slurmctld did not take the comment on a job that failed with a full slice. Cure: Nothing; `gpufrac why` tells
        // the user the same.
        Err(refused) => log::info(&format!(
            "gpufrac: commenting on job {job_id} failed: {refused}; `gpufrac why {job_id}` tells the same"
        )),
    }
}
