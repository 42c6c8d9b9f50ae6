//! A job of root that takes shares of a node out of Slurm's count.

use std::mem::MaybeUninit;
use std::ptr;

use super::{Client, ClientError, c_text};
use crate::raw;

/// The request of such a job.
#[derive(Debug, Clone, Copy)]
pub struct Reserve<'a> {
    /// The name of the job.
    pub name: &'a str,
    pub node: &'a str,
    /// A partition of the node.
    pub partition: &'a str,
    /// The GRES as `--gres` takes it: `gpufrac:0.25`.
    pub gres: &'a str,
    /// Shown by `scontrol show job`.
    pub comment: &'a str,
    /// The job's script.
    pub script: &'a str,
}

/// Before all jobs of users. Root may set the priority of a job; the largest values have other meanings (`NO_VAL`,
/// `INFINITE`).
const PRIORITY: u32 = 0x7fff_ffff;

impl Client {
    /// Submits the job; returns its id.
    /// Errors: slurmctld refused (`DisableRootJobs`, no association of root, a limit, a plugin) or did not answer.
    pub fn reserve(&self, request: &Reserve<'_>) -> Result<u32, ClientError> {
        let texts = [
            request.name,
            request.node,
            request.partition,
            request.comment,
            request.script,
        ];
        let [name, node, partition, comment, script] = texts.map(c_text);
        let sign = if crate::gres_with_slash() { '/' } else { ':' };
        let tres = c_text(&format!("gres{sign}{}", request.gres));
        let (folder, output) = (c"/", c"/dev/null");
        // slurmctld refuses a batch job without an environment.
        let mut environment = [c"PATH=/usr/bin:/bin".as_ptr().cast_mut()];
        let mut job = MaybeUninit::<raw::job_desc_msg_t>::zeroed();
        let mut answer: *mut raw::submit_response_msg_t = ptr::null_mut();
        // SAFETY: all zeros are a job description, and libslurm then sets every field to "no value". All texts outlive
        // the call, which reads them; nothing of the description is freed by it. The answer is freed.
        unsafe {
            self.library.slurm_init_job_desc_msg(job.as_mut_ptr());
            let job = job.assume_init_mut();
            job.name = name.as_ptr().cast_mut();
            job.req_nodes = node.as_ptr().cast_mut();
            job.partition = partition.as_ptr().cast_mut();
            job.comment = comment.as_ptr().cast_mut();
            job.script = script.as_ptr().cast_mut();
            job.tres_per_node = tres.as_ptr().cast_mut();
            job.work_dir = folder.as_ptr().cast_mut();
            job.std_out = output.as_ptr().cast_mut();
            job.std_err = output.as_ptr().cast_mut();
            job.environment = environment.as_mut_ptr();
            job.env_size = 1;
            (job.user_id, job.group_id) = (0, 0);
            (job.min_nodes, job.num_tasks, job.requeue) = (1, 1, 0);
            // In MiB. Without it a job gets the node's memory where `DefMemPerNode` is not set, and a node without
            // `RealMemory` has no more. Slurm limits no control group to less than `MinRAMSpace`.
            job.pn_min_memory = 1;
            job.priority = PRIORITY;
            let code = self
                .library
                .slurm_submit_batch_job(&raw mut *job, &raw mut answer);
            let submitted = self.check("slurm_submit_batch_job", code);
            let id = answer.as_ref().map_or(0, id_of);
            if !answer.is_null() {
                self.library.slurm_free_submit_response_response_msg(answer);
            }
            submitted.map(|()| id)
        }
    }
}

#[cfg(not(records_by_step_id))]
fn id_of(answer: &raw::submit_response_msg_t) -> u32 {
    answer.job_id
}

#[cfg(records_by_step_id)]
fn id_of(answer: &raw::submit_response_msg_t) -> u32 {
    answer.step_id.job_id
}
