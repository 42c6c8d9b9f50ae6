//! The environment variables that describe slices to programs.

use super::Lease;
use crate::fraction::Fraction;

/// The list of the devices of slices.
fn devices(leases: &[Lease]) -> Option<String> {
    let mut devices: Vec<&str> = Vec::new();
    for lease in leases {
        let device = lease.slice.cuda_device()?;
        // Shares of one GPU have the same device.
        if !devices.contains(&device) {
            devices.push(device);
        }
    }
    Some(devices.join(","))
}

/// The variables of a task with the slices `task`, of the slices `step` of all tasks of its step, with those of its
/// library alone where it has one. `numbers`: CUDA's numbers of the devices of the task, in place of their UUIDs. None
/// without a slice, and where a lease names no instance.
pub fn of(
    task: &[Lease],
    step: &[Lease],
    numbers: Option<String>,
) -> Option<Vec<(&'static str, String)>> {
    let lease = task.first()?;
    let slice = &lease.slice;
    let memory = slice.memory_mib.0;
    let mut variables = vec![
        (
            "CUDA_VISIBLE_DEVICES",
            devices(task).map(|uuids| numbers.unwrap_or(uuids))?,
        ),
        // What a container gets: pyxis starts one for all tasks of a step, with the variables of any of them.
        ("NVIDIA_VISIBLE_DEVICES", devices(step)?),
        ("GPUFRAC_FRACTION", fraction(lease, task)),
        ("GPUFRAC_MECHANISM", lease.mechanism().to_string()),
        ("GPUFRAC_PROFILE", lease.kind()),
        ("GPUFRAC_MEMORY_MIB", memory.to_string()),
    ];
    if let Some(burst) = lease.burst() {
        variables.push(("GPUFRAC_BURST", burst.fraction().to_string()));
    }
    if let Some(mps) = slice.mps() {
        variables.push(("CUDA_MPS_PIPE_DIRECTORY", mps.pipe()));
        variables.push(("CUDA_MPS_LOG_DIRECTORY", mps.log()));
        // Clients of the daemon see its only device as device 0.
        let limit = format!("0={}M", mps.memory_limit_mib.0);
        variables.push(("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit));
        variables.push(match &mps.sm_partition {
            Some(partition) => ("CUDA_MPS_SM_PARTITION", partition.clone()),
            None => (
                "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                mps.ceiling().to_string(),
            ),
        });
    }
    if let Some(hami) = slice.hami() {
        variables.push(("CUDA_DEVICE_MEMORY_LIMIT", format!("{memory}m")));
        variables.push(("CUDA_DEVICE_SM_LIMIT", hami.sm_limit.to_string()));
        variables.push(("CUDA_DEVICE_MEMORY_SHARED_CACHE", hami.cache.clone()));
    }
    if slice.hints {
        let part = match slice.mps() {
            Some(mps) => f64::from(mps.thread_percentage) / 100.0,
            None => f64::from(lease.units.0) / 100.0,
        };
        // JAX takes the fraction of all memory that it sees; with HAMi-core or a group limit it only sees the share.
        if slice.hami().is_none() && !slice.group_limit {
            variables.push(("XLA_PYTHON_CLIENT_MEM_FRACTION", part.to_string()));
        }
        variables.push(("TF_FORCE_GPU_ALLOW_GROWTH", "true".to_owned()));
        variables.push(("CUPY_GPU_MEMORY_LIMIT", (memory << 20).to_string()));
        variables.push(("GPUFRAC_HINTS", "1".to_owned()));
    }
    Some(variables)
}

/// The variables of a process beside Slurm's steps, with the slices of a whole job and with its library. `numbers`: as
/// in [`of`].
pub fn of_job(leases: &[Lease], numbers: Option<String>) -> Vec<(&'static str, String)> {
    let mut variables = of(leases, leases, numbers).unwrap_or_default();
    let library = leases.first().and_then(|lease| lease.slice.hami());
    variables.extend(library.map(|hami| ("LD_PRELOAD", hami.library.clone())));
    variables
}

/// The fraction of a slice, or the number of whole GPUs.
fn fraction(lease: &Lease, all: &[Lease]) -> String {
    if lease.fraction == Fraction::ONE {
        all.len().to_string()
    } else {
        lease.fraction.to_string()
    }
}
