//! The compute mode of a GPU while jobs share it, and its earlier mode.
//!
//! A shared MPS control daemon needs EXCLUSIVE_PROCESS, so that no program bypasses it. The earlier mode is first
//! written to `<run>/modes`, and restored when the last lease of the GPU is removed.

use gpufrac_core::fraction::Units;
use gpufrac_core::lease::Lease;

use crate::fault::{Caused, Facts};
use crate::gpu::locked::LockedGpu;
use crate::node::Node;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_nvml::{ComputeMode, Gpu, NvmlError};

/// The reasons why a mode could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum ModeError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Nvml(#[from] NvmlError),
}

impl Caused for ModeError {
    fn facts(&self) -> Facts {
        match self {
            ModeError::File(error) => error.facts(),
            ModeError::Nvml(error) => error.facts(),
        }
    }
}

const WORDS: [(ComputeMode, &str); 4] = [
    (ComputeMode::Default, "default"),
    (ComputeMode::ExclusiveThread, "exclusive_thread"),
    (ComputeMode::Prohibited, "prohibited"),
    (ComputeMode::ExclusiveProcess, "exclusive_process"),
];

/// The mode that a share needs; None for a MIG instance and a whole GPU, which use the mode of the site.
pub fn of_share(lease: &Lease) -> Option<ComputeMode> {
    if lease.slice.mig().is_some() || lease.units >= Units::WHOLE {
        return None;
    }
    let has_shared_daemon = lease.slice.mps().is_some_and(|mps| !mps.private);
    Some(if has_shared_daemon {
        // No program may bypass the daemon.
        ComputeMode::ExclusiveProcess
    } else {
        ComputeMode::Default
    })
}

/// The compute mode as `nvidia-smi -c` takes it.
pub fn name_of(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "DEFAULT",
        ComputeMode::ExclusiveThread => "EXCLUSIVE_THREAD",
        ComputeMode::Prohibited => "PROHIBITED",
        ComputeMode::ExclusiveProcess => "EXCLUSIVE_PROCESS",
    }
}

fn folder(node: &Node) -> Result<RootDir, FileError> {
    RootDir::create(&node.run.join("modes"), 0o755).map(|(dir, _)| dir)
}

/// By UUID, because the indexes change when a GPU falls off the bus.
fn name(gpu: &Gpu<'_>) -> String {
    gpu.uuid.clone()
}

/// Sets the mode of a GPU with a lease. `first`: there is no other lease on it, so its current mode is the earlier one.
/// Errors: the driver refused, or a file could not be changed.
pub fn hold(locked: &mut LockedGpu<'_>, wanted: ComputeMode, first: bool) -> Result<(), ModeError> {
    let gpu = &mut locked.gpu;
    let found = gpu.compute_mode()?;
    if found == wanted {
        return Ok(());
    }
    let dir = folder(locked.node)?;
    if first || !dir.exists(&name(gpu))? {
        let word = WORDS.iter().find(|(mode, _)| *mode == found);
        let word = word.map_or("default", |(_, word)| word);
        dir.write(&name(gpu), word, 0o644)?;
    }
    Ok(gpu.set_compute_mode(wanted)?)
}

/// Restores the earlier mode of a GPU without leases, if it was changed.
/// Errors: the driver refused, or a file could not be changed.
pub fn restore(locked: &mut LockedGpu<'_>) -> Result<(), ModeError> {
    let gpu = &mut locked.gpu;
    let Some(dir) = RootDir::find(&locked.node.run.join("modes"))? else {
        return Ok(());
    };
    let Some(word) = dir.read(&name(gpu))? else {
        return Ok(());
    };
    let before = WORDS.iter().find(|(_, known)| *known == word.trim());
    let before = before.map_or(ComputeMode::Default, |(mode, _)| *mode);
    if gpu.compute_mode()? != before {
        gpu.set_compute_mode(before)?;
    }
    dir.remove(&name(gpu))?;
    Ok(())
}

/// Removes the notes of earlier modes after a boot, because the driver has lost the modes, too.
pub fn forget(node: &Node) -> Result<(), FileError> {
    let dir = folder(node)?;
    for name in dir.names()? {
        dir.remove(&name)?;
    }
    Ok(())
}
