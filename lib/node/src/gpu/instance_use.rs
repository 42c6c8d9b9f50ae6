//! Processes and memory on a MIG instance that no job has.

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::lease::MigSlice;
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

/// Asks NVML for the use of a lease's instance; None if the instance does not exist any more, or another one has its
/// ids. Errors: NVML does not answer.
pub fn of(gpu: &Gpu<'_>, mig: &MigSlice) -> Result<Option<InstanceUse>, NvmlError> {
    let Some(instance) = &mig.instance else {
        return Ok(None);
    };
    let standing = gpu.standing(instance.gi_id)?;
    let Some(standing) = standing.filter(|found| found.instance.is_at(mig)) else {
        return Ok(None);
    };
    let device = standing.mig_device(instance.ci_id)?;
    let Some(device) = device.filter(|device| device.uuid == instance.mig_uuid) else {
        return Ok(None);
    };
    Ok(Some(InstanceUse {
        memory: device.memory_used()?,
        pids: processes_on(gpu, instance.gi_id)?,
    }))
}

fn processes_on(gpu: &Gpu<'_>, gi_id: u32) -> Result<Vec<u32>, NvmlError> {
    let processes = gpu.processes()?.into_iter();
    let on_it = processes.filter(|process| process.gi_id == Some(gi_id));
    Ok(on_it.map(|process| process.pid).collect())
}
