//! Processes and memory on a MIG instance that no job has.

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::lease::Instance;
use gpufrac_nvml::{Gpu, NvmlError};
use serde::{Deserialize, Serialize};

/// The use of an existing instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceUse {
    /// Device memory in use, by processes or left behind.
    pub memory: MemoryMib,
    /// The processes with a context on its GPU instance.
    pub pids: Vec<u32>,
}

/// Asks NVML for the use of an instance; None if the instance does not exist any more.
///
/// # Errors
/// NVML does not answer.
pub fn of(gpu: &Gpu<'_>, instance: &Instance) -> Result<Option<InstanceUse>, NvmlError> {
    let standing = gpu.compute_instance(instance.gi_id, instance.ci_id)?;
    let Some(ours) = standing.filter(|ci| ci.mig_uuid == instance.mig_uuid) else {
        return Ok(None);
    };
    Ok(Some(InstanceUse {
        memory: ours.memory_used()?,
        pids: processes_on(gpu, instance.gi_id)?,
    }))
}

fn processes_on(gpu: &Gpu<'_>, gi_id: u32) -> Result<Vec<u32>, NvmlError> {
    let processes = gpu.processes()?.into_iter();
    let on_it = processes.filter(|process| process.gi_id == Some(gi_id));
    Ok(on_it.map(|process| process.pid).collect())
}
