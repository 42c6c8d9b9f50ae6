//! Switches on the MIG mode of a GPU without jobs: in node-setup, and in a prolog that finds MIG mode off. So a GPU
//! that was in use during node-setup becomes usable with the next job, without an admin.

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::LeaseState;
use gpufrac_nvml::{ErrorClass, Gpu, MigMode, NvmlError};

use crate::cause::{Cause, Caused};
use crate::gpu::locked::LockedGpu;
use crate::slice::{keep, reconcile};
use crate::state::leases::StoreError;

/// Why MIG mode stays off.
#[derive(Debug, thiserror::Error)]
pub enum StaysOff {
    /// The GPU's model has no MIG.
    #[error("{gpu} has no MIG")]
    Unsupported {
        /// Name of the GPU in messages.
        gpu: String,
    },
    /// Before Hopper the switch resets the GPU, which only an admin may decide.
    #[error("{gpu} is not in MIG mode ({mode:?})")]
    Reset {
        /// Name of the GPU in messages.
        gpu: String,
        /// The present mode.
        mode: MigMode,
    },
    /// A job has the GPU or a part of it.
    #[error("{gpu} is not in MIG mode yet: job {job_id} has a slice of it")]
    Leased {
        /// Name of the GPU in messages.
        gpu: String,
        /// Slurm's id of the job.
        job_id: JobId,
    },
    /// Processes use the GPU.
    #[error("{gpu} is not in MIG mode yet: {} uses it", processes(pids))]
    InUse {
        /// Name of the GPU in messages.
        gpu: String,
        /// Pids that the driver names. Empty if only an agent or a display uses the GPU.
        pids: Vec<u32>,
    },
    /// The driver refused or did not answer.
    #[error("MIG cannot be switched on: {0}")]
    Nvml(#[from] NvmlError),
    /// The leases of the GPU cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn processes(pids: &[u32]) -> String {
    let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
    match pids.is_empty() {
        true => "something".to_owned(),
        false => format!("process {}", pids.join(", ")),
    }
}

impl StaysOff {
    /// Whether a later attempt may succeed.
    pub fn class(&self) -> ErrorClass {
        match self {
            StaysOff::Unsupported { .. } | StaysOff::Reset { .. } => ErrorClass::Broken,
            StaysOff::Leased { .. } | StaysOff::InUse { .. } => ErrorClass::Transient,
            StaysOff::Nvml(error) => error.class(),
            StaysOff::Store(error) => error.class(),
        }
    }
}

impl Caused for StaysOff {
    fn cause(&self) -> Cause {
        match self {
            StaysOff::Unsupported { .. } | StaysOff::Reset { .. } => Cause::Root,
            // A process can outlive its job.
            StaysOff::Leased { .. } | StaysOff::InUse { .. } => Cause::User,
            StaysOff::Nvml(error) => error.cause(),
            StaysOff::Store(error) => error.cause(),
        }
    }
}

/// Switches MIG mode on if that needs no reset and no job has the GPU. Returns whether the mode was off.
///
/// # Errors
/// If MIG mode stays off.
pub fn switch_on(locked: &mut LockedGpu<'_>) -> Result<bool, StaysOff> {
    let mode = locked.gpu.mig_mode()?;
    let gpu = locked.gpu.to_string();
    match mode {
        MigMode::On => return Ok(false),
        MigMode::Unsupported => return Err(StaysOff::Unsupported { gpu }),
        MigMode::Off | MigMode::OnAfterReset if !locked.gpu.mig_switches_without_reset()? => {
            return Err(StaysOff::Reset { gpu, mode });
        }
        // MIG mode was requested but not switched, because the GPU was in use; it may be idle now.
        MigMode::Off | MigMode::OnAfterReset => {}
    }
    for mut lease in reconcile::repair(locked, None)? {
        let ended = lease.state == LeaseState::Kept && keep::end(locked, &mut lease);
        if !ended {
            let job_id = lease.job_id;
            return Err(StaysOff::Leased { gpu, job_id });
        }
    }
    // With a process on the GPU the driver would store the request and switch at the next reset.
    let pids = pids(&locked.gpu)?;
    if !pids.is_empty() {
        return Err(StaysOff::InUse { gpu, pids });
    }
    match locked.gpu.switch_mig_on()? {
        MigMode::On => Ok(true),
        _ => Err(StaysOff::InUse { gpu, pids }),
    }
}

fn pids(gpu: &Gpu<'_>) -> Result<Vec<u32>, NvmlError> {
    Ok(gpu.processes()?.iter().map(|it| it.pid).collect())
}
