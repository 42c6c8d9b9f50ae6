//! MIG mode of a GPU that nobody has: node-setup switches it on, and so does a prolog that finds it off. A GPU that was busy
//! at node-setup becomes usable with the next job, without an admin.

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::LeaseState;
use gpufrac_nvml::{ErrorClass, Gpu, MigMode, NvmlError};

use crate::cause::{Cause, Caused};
use crate::gpu::locked::LockedGpu;
use crate::slice::{keep, reconcile};
use crate::state::leases::StoreError;

/// Why MIG stays off.
#[derive(Debug, thiserror::Error)]
pub enum StaysOff {
    /// The model has none.
    #[error("{gpu} has no MIG")]
    Unsupported {
        /// The GPU.
        gpu: String,
    },
    /// Before Hopper, switching resets the GPU: that is the admin's decision.
    #[error("{gpu} is not in MIG mode ({mode:?})")]
    Reset {
        /// The GPU.
        gpu: String,
        /// Its mode.
        mode: MigMode,
    },
    /// A job has the GPU, or a part of it.
    #[error("{gpu} is not in MIG mode yet: job {job_id} has a slice of it")]
    Leased {
        /// The GPU.
        gpu: String,
        /// Slurm's id of the job.
        job_id: JobId,
    },
    /// Processes use it.
    #[error("{gpu} is not in MIG mode yet: {} uses it", processes(pids))]
    InUse {
        /// The GPU.
        gpu: String,
        /// Those that the driver names: none, where it is an agent or a display.
        pids: Vec<u32>,
    },
    /// The driver refuses, or does not answer.
    #[error("MIG cannot be switched on: {0}")]
    Nvml(#[from] NvmlError),
    /// Which jobs have the GPU cannot be read.
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
    /// Whether waiting may help.
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

/// Switches MIG on where that needs no reset and nobody has the GPU. Says whether it was off.
///
/// # Errors
/// MIG stays off.
pub fn switch_on(locked: &mut LockedGpu<'_>) -> Result<bool, StaysOff> {
    let mode = locked.gpu.mig_mode()?;
    let gpu = locked.gpu.to_string();
    match mode {
        MigMode::On => return Ok(false),
        MigMode::Unsupported => return Err(StaysOff::Unsupported { gpu }),
        MigMode::Off | MigMode::OnAfterReset if !locked.gpu.mig_switches_without_reset()? => {
            return Err(StaysOff::Reset { gpu, mode });
        }
        // Asked for and not done, as something used the GPU then: it may be idle now.
        MigMode::Off | MigMode::OnAfterReset => {}
    }
    for mut lease in reconcile::repair(locked, None)? {
        let ended = lease.state == LeaseState::Kept && keep::end(locked, &mut lease);
        if !ended {
            let job_id = lease.job_id;
            return Err(StaysOff::Leased { gpu, job_id });
        }
    }
    // Without this look the driver would note the wish, and fulfil it with the next reset.
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
