//! Sends a pending job to other nodes than the one that could not serve it.

use std::mem::MaybeUninit;
use std::ptr;

use super::{Client, ClientError, JobInfo, c_text};
use crate::raw;

impl Client {
    /// Sets the nodes that a pending job must not get, in place of those before; empty for none.
    /// Errors: slurmctld refused (`ESLURM_JOB_NOT_PENDING`) or did not answer.
    pub fn set_excluded_nodes(&self, job: &JobInfo, nodes: &str) -> Result<(), ClientError> {
        let nodes = c_text(nodes);
        self.update(job, |change| change.exc_nodes = nodes.as_ptr().cast_mut())
    }

    /// Whether a node that is up could start the pending job, now or when its jobs end (`job_start_data` of slurmctld).
    /// A job that no node could start would be held by Slurm, with `BadConstraints`.
    ///
    /// # Errors
    /// The job's last run has not ended on all nodes, a plugin of the site refused the question, or slurmctld did not
    /// answer.
    pub fn could_start(&self, job: &JobInfo) -> Result<bool, ClientError> {
        let mut question = MaybeUninit::<raw::job_desc_msg_t>::zeroed();
        let mut answer: *mut raw::will_run_response_msg_t = ptr::null_mut();
        // SAFETY: all zeros are a job description, and libslurm then sets every field to "no value". The call reads it.
        // slurm.h does not declare the function that frees the answer; this process ends soon.
        let code = unsafe {
            self.library.slurm_init_job_desc_msg(question.as_mut_ptr());
            let question = question.assume_init_mut();
            about(question, job.job_id);
            self.library
                .slurm_job_will_run2(&raw mut *question, &raw mut answer)
        };
        match self.check("slurm_job_will_run2", code) {
            Ok(()) => Ok(true),
            Err(ClientError::Call { code, .. })
                if code == raw::ESLURM_REQUESTED_NODE_CONFIG_UNAVAILABLE as i32 =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Lets a pending job start in the next cycle of the scheduler, without the two minutes after a requeue; a held one
    /// is released if `release` is set. Errors: slurmctld refused or did not answer.
    pub fn start_soon(
        &self,
        job: &JobInfo,
        now_unix: i64,
        release: bool,
    ) -> Result<(), ClientError> {
        self.update(job, |change| {
            change.begin_time = now_unix;
            if job.is_held && release {
                // As `scontrol release`.
                change.priority = raw::GPUFRAC_INFINITE;
            }
        })
    }
}

#[cfg(not(records_by_step_id))]
fn about(question: &mut raw::job_desc_msg_t, job_id: u32) {
    question.job_id = job_id;
}

#[cfg(records_by_step_id)]
fn about(question: &mut raw::job_desc_msg_t, job_id: u32) {
    question.step_id.job_id = job_id;
}

/// The hostlist with one more node.
pub fn with_node(hostlist: &str, node: &str) -> String {
    let rest = without_node(hostlist, node);
    if rest.is_empty() { node.to_owned() } else { format!("{rest},{node}") }
}

/// The hostlist without the items that name this node alone, as [`with_node`] adds them. Ranges stay, which only users
/// write.
pub fn without_node(hostlist: &str, node: &str) -> String {
    let mut depth = 0;
    let items = hostlist.split(|c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    });
    let kept: Vec<&str> = items.filter(|it| !it.is_empty() && *it != node).collect();
    kept.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nodes_that_a_user_excludes_stay() {
        for users in ["", "n2", "n[2,4-6]", "n7,n[1,3]x,m"] {
            let with = with_node(users, "n1");
            assert!(with.ends_with("n1") && with.starts_with(users), "{with}");
            assert_eq!(with_node(&with, "n1"), with);
            assert_eq!(without_node(&with, "n1"), users);
        }
    }
}
