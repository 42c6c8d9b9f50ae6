//! What Slurm gave to a step of the node's GPUs.
//!
//! slurmstepd has it from the job's credential and tells it by variables, before it calls any plugin: to the batch script and the
//! interactive step all that the job holds here (`gres_g_job_set_env`), to other steps what they hold themselves
//! (`gres_g_step_set_env`). `SLURM_GPUS_ON_NODE` and the list of indexes are set where a step has devices or shares, and
//! else removed, whatever the user had there. `SLURM_SHARDS_ON_NODE` is set with shares and removed without a
//! device; with a whole device it stays what the user had there.

use gpufrac_node::slice::fit::Given;
use slurm_sys::spank::{Spank, Step};

/// By the variables of the step that Slurm is about to start.
pub fn to_step(spank: Spank) -> Given {
    let list = match spank.step() {
        // Its credential is the job's, and no variable is set.
        Some(Step::Extern) => return Given::Untold,
        Some(Step::Batch | Step::Interactive) => "SLURM_JOB_GPUS",
        Some(Step::Numbered(_)) | None => "SLURM_STEP_GPUS",
    };
    if spank.variable("SLURM_GPUS_ON_NODE").is_none() {
        return Given::Nothing;
    }
    let list = spank.variable(list).unwrap_or_default();
    let indexes = list.split(',').filter_map(|index| index.parse().ok());
    Given::Devices {
        indexes: indexes.collect(),
        shards: shards(spank),
    }
}

/// The shares of this step, or what the user has in their variable.
pub fn shards(spank: Spank) -> Option<u32> {
    spank.variable("SLURM_SHARDS_ON_NODE")?.parse().ok()
}
