//! Slurm's allocation of the node's GPUs for a step.
//!
//! slurmstepd takes it from the job's credential, and sets variables before it calls a plugin: for the batch script
//! and the interactive step the whole allocation of the job on the node (`gres_g_job_set_env`), for other steps their
//! own (`gres_g_step_set_env`). `SLURM_GPUS_ON_NODE` and the list of indexes are set if a step has devices or shares,
//! and otherwise removed, whatever the user set. `SLURM_SHARDS_ON_NODE` is set with shares, and removed without a
//! device; with a whole device it keeps the user's value.

use gpufrac_node::slice::agreement::step::Given;
use slurm_sys::spank::{Spank, Step};

/// The allocation by the variables of the step that is about to start.
pub fn to_step(spank: Spank) -> Given {
    let list = match spank.step() {
        // The extern step has the job's credential, but slurmstepd sets no variables for it.
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

/// The shares of this step, or the user's value of their variable.
pub fn shards(spank: Spank) -> Option<u32> {
    spank.variable("SLURM_SHARDS_ON_NODE")?.parse().ok()
}
