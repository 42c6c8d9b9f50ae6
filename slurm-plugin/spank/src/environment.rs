//! The environment variables of a job about its slice.

use std::ffi::CStr;

use gpufrac_core::lease::visible::{VARIABLE, Visible};
use gpufrac_core::lease::{Lease, variables};
use gpufrac_core::mechanism::Mechanism;
use slurm_sys::spank::{Spank, SpankError};

/// Variables that only gpufrac sets: a job without a slice must not inherit them from the job that submitted it.
const OWN: [&CStr; 6] = [
    c"GPUFRAC_BURST",
    c"GPUFRAC_FRACTION",
    c"GPUFRAC_MECHANISM",
    c"GPUFRAC_PROFILE",
    c"GPUFRAC_MEMORY_MIB",
    HINTED,
];
/// The variable that says that gpufrac, and not the user, set those of [`HINTS`].
const HINTED: &CStr = c"GPUFRAC_HINTS";

/// The variables by which sbatch and salloc pass the job's own options to srun. They would also count for every job
/// that is submitted inside the job.
const OPTIONS: [&CStr; 3] = [
    c"SLURM_SPANK__SLURM_SPANK_OPTION_gpufrac_gpufrac_idle",
    c"SLURM_SPANK__SLURM_SPANK_OPTION_gpufrac_gpufrac_burst",
    c"SLURM_SPANK__SLURM_SPANK_OPTION_gpufrac_gpufrac_visible",
];

/// Variables of MPS: a job in another pool must not look for a control daemon where its submitter had one, or keep
/// the limits of another job.
const MPS: [&CStr; 5] = [
    c"CUDA_MPS_PIPE_DIRECTORY",
    c"CUDA_MPS_LOG_DIRECTORY",
    c"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    c"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    c"CUDA_MPS_SM_PARTITION",
];

/// Variables of HAMi-core.
const HAMI: [&CStr; 3] = [
    c"CUDA_DEVICE_MEMORY_LIMIT",
    c"CUDA_DEVICE_SM_LIMIT",
    c"CUDA_DEVICE_MEMORY_SHARED_CACHE",
];

/// Variables by which frameworks limit themselves to a share: JAX, TensorFlow, CuPy.
const HINTS: [&CStr; 3] = [
    c"XLA_PYTHON_CLIENT_MEM_FRACTION",
    c"TF_FORCE_GPU_ALLOW_GROWTH",
    c"CUPY_GPU_MEMORY_LIMIT",
];

/// The reasons why the variables of a slice cannot be set.
#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    /// The lease is damaged.
    /// Cure: Admins: `gpufrac leases`; submit the job again.
    #[error("the job's lease names no instance")]
    NoInstance,
    /// A variable could not be set.
    /// Cure: Submit the job with a smaller environment.
    #[error("setting {name} failed: {error}")]
    NotSet {
        name: &'static str,
        /// Slurm's message.
        error: SpankError,
    },
}

/// Sets the variables of slices; replaces the user's values. With several slices, which a job of several GPUs has, and
/// the batch script of a job with a slice per task, the task sees all devices in the order of their numbers, and the
/// other variables describe the first slice. `step`: the slices of all tasks of the step, which one container may
/// serve; it equals `task` where the tasks have no slices of their own. `numbers`: those of CUDA for the devices of the
/// task, if the user or the pool asks for them and they are certain. Without a slice nothing is set.
pub fn set(
    spank: Spank,
    task: &[Lease],
    step: &[Lease],
    numbers: Option<String>,
) -> Result<(), EnvironmentError> {
    let Some(lease) = task.first() else {
        return Ok(());
    };
    let all = variables::of(task, step, numbers).ok_or(EnvironmentError::NoInstance)?;
    for (name, value) in all {
        put(spank, name, &value)?;
    }
    match lease.slice.hami() {
        Some(hami) => preload(spank, &hami.library),
        None => Ok(()),
    }
}

/// The value of [`VARIABLE`] for the steps of the job's script, which do not have the option of its command.
pub fn keep_visible(spank: Spank, visible: Visible) -> Result<(), EnvironmentError> {
    put(spank, VARIABLE, visible.name())
}

const PRELOAD: &str = "LD_PRELOAD";

/// Puts a library before those of the user.
fn preload(spank: Spank, library: &str) -> Result<(), EnvironmentError> {
    let others = spank.variable(PRELOAD).unwrap_or_default();
    match others.as_str() {
        "" => put(spank, PRELOAD, library),
        _ if others.split([':', ' ']).next() == Some(library) => Ok(()),
        _ => put(spank, PRELOAD, &format!("{library}:{others}")),
    }
}

fn put(spank: Spank, name: &'static str, value: &str) -> Result<(), EnvironmentError> {
    let set = spank.set_variable(name, value);
    set.map_err(|error| EnvironmentError::NotSet { name, error })
}

/// Removes the variables that a step inherited from another job's slice. Variables that the user set stay, such as
/// those of the user's own MPS daemon. Slurm itself sets or removes `CUDA_VISIBLE_DEVICES`, but not the variable of
/// container runtimes.
pub fn clear(spank: Spank, libraries: &[String]) {
    for option in OPTIONS {
        spank.unset_variable(option);
    }
    if spank.variable("GPUFRAC_HINTS").is_some() {
        for name in HINTS {
            spank.unset_variable(name);
        }
    }
    if let Some(mechanism) = spank.variable("GPUFRAC_MECHANISM") {
        spank.unset_variable(c"NVIDIA_VISIBLE_DEVICES");
        // Whole GPUs have no limits: what is set there is the user's.
        let fraction = spank.variable("GPUFRAC_FRACTION").unwrap_or_default();
        let set: &[&CStr] = match mechanism.parse() {
            _ if fraction.parse::<u32>().is_ok() => &[],
            Ok(Mechanism::Mps | Mechanism::MigMps) => &MPS,
            Ok(Mechanism::Hami) => &HAMI,
            Ok(Mechanism::Mig | Mechanism::Timeslice) | Err(_) => &[],
        };
        for name in set {
            spank.unset_variable(name);
        }
    }
    for name in OWN {
        spank.unset_variable(name);
    }
    let Some(preloaded) = spank.variable(PRELOAD) else {
        return;
    };
    let own = |library: &&str| libraries.iter().any(|own| own == library);
    let (inherited, kept): (Vec<&str>, Vec<&str>) = preloaded.split([':', ' ']).partition(own);
    if inherited.is_empty() {
        return;
    }
    if kept.is_empty() {
        spank.unset_variable(c"LD_PRELOAD");
    } else {
        // If the variable cannot be set, it keeps its value.
        let _ = spank.set_variable(PRELOAD, &kept.join(":"));
    }
}
