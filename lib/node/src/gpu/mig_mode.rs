//! MIG mode of a GPU. [`switch`] is the only way to change it, and changes it only while no other job has a lease on
//! the GPU.
//!
//! From Hopper on the driver changes the mode at once, while nothing uses the GPU. Before, the change takes a reset,
//! which is an admin's decision. The mode is not changed back after a job: the next job that needs the other mode does
//! that.

use std::fmt;
use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpufrac_core::ids::DeviceMinor;
use gpufrac_core::lease::Lease;
use gpufrac_nvml::{MigMode, NvmlError};

use crate::fault::{Cause, Caused, Facts};
use crate::gpu::holders;
use crate::gpu::locked::LockedGpu;
use crate::state::leases::StoreError;

/// How many processes a message names.
const MOST_NAMED: usize = 4;
/// The pause between two questions for the fabric.
const FABRIC_PAUSE: Duration = Duration::from_millis(100);

/// A process that may keep the mode as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuUser {
    pub pid: u32,
    /// The name that the process gave itself, with escapes for all that is not printable ASCII.
    pub name: String,
    /// Whether it has a context on the GPU. Else it holds the device node open.
    pub computes: bool,
}

impl GpuUser {
    fn new(pid: u32, computes: bool) -> GpuUser {
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = name.trim_ascii_end().escape_ascii().to_string();
        GpuUser {
            pid,
            name,
            computes,
        }
    }
}

impl fmt::Display for GpuUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let does = if self.computes { "uses it" } else { "holds its device open" };
        write!(f, "process {} (`{}`) {does}", self.pid, self.name)
    }
}

/// Why the mode is not the wanted one.
#[derive(Debug, thiserror::Error)]
pub enum SwitchError {
    /// A process uses the GPU, or the driver refused.
    /// Cure: Stop DCGM, nvidia-persistenced and the display. The next job on the GPU switches MIG on then, and so does
    /// `gpufrac node-setup`.
    #[error("MIG cannot be switched: {0}")]
    Nvml(#[from] NvmlError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The pool needs MIG, and the model has none.
    /// Cure: Take the GPU out of the pool with its `gpus` list, or change the mechanism.
    #[error("{gpu} has no MIG")]
    NoMig { gpu: String },
    /// `is not in MIG mode`: MIG is off. `is in MIG mode`: `whole = "bare"` with a model older than Hopper.
    /// Cure: Run `gpufrac node-setup`, which says how; or write `whole = "mig"` in the pool.
    #[error(
        "{gpu} {} in MIG mode ({mode:?}), and this model needs a reset to change that",
        if *on { "is not" } else { "is" }
    )]
    NeedsReset {
        gpu: String,
        /// The wanted mode.
        on: bool,
        mode: MigMode,
    },
    /// `is not in MIG mode yet`: MIG is off, and a job has the GPU. `is still in MIG mode`: MIG is on, and a job has a
    /// piece. The job goes back to the queue.
    /// Cure: Wait for the end of that job, or cancel it. The next job switches MIG then.
    #[error("{gpu} {} in MIG mode{}: job {job} has a slice of it", words(*on).0, words(*on).1)]
    Leased {
        gpu: String,
        /// The wanted mode.
        on: bool,
        /// The name of the lease.
        job: String,
    },
    /// An instance was made by hand or by another program.
    #[error(
        "{gpu} is still in MIG mode: GPU instance {instances} stands on it, and no lease names it"
    )]
    Instances {
        gpu: String,
        /// The ids of GPU instances.
        instances: String,
    },
    /// A process uses the GPU: its pid follows, and the name that it gave itself. If no process is seen, it is in
    /// another namespace, or the kernel holds the GPU. The job goes back to the queue, the node stays.
    /// Cure: `nvidia-smi` and `fuser -v /dev/nvidia*` show it; end the process, or keep it from these GPUs;
    /// [layouts](../layouts.md#whole-gpus-without-mig-whole--bare).
    #[error("{gpu} {} in MIG mode{}: {}", words(*on).0, words(*on).1, named(users))]
    InUse {
        gpu: String,
        /// The wanted mode.
        on: bool,
        /// Processes that may use the GPU.
        users: Vec<GpuUser>,
    },
    /// The GPU is in an NVSwitch system, and its fabric did not take the GPU in again after MIG was switched off. The
    /// job goes back to the queue, the node stays.
    #[error("{gpu} is not in its NVLink fabric after {} s without MIG", waited.as_secs())]
    Fabric {
        gpu: String,
        /// How long that was waited for.
        waited: Duration,
    },
    /// The driver gave the GPU another device number.
    #[error("{gpu} was device {before} before its MIG mode changed, and is device {now} now")]
    Renumbered {
        gpu: String,
        before: DeviceMinor,
        now: DeviceMinor,
    },
}

/// The words before and behind `in MIG mode`, where the wanted mode is not there yet.
fn words(on: bool) -> (&'static str, &'static str) {
    if on { ("is not", " yet") } else { ("is still", "") }
}

/// What the processes do to the GPU, for a message.
pub(crate) fn named(users: &[GpuUser]) -> String {
    if users.is_empty() {
        return "something uses it that no list of processes shows".to_owned();
    }
    let shown: Vec<String> = users
        .iter()
        .take(MOST_NAMED)
        .map(GpuUser::to_string)
        .collect();
    match users.len().saturating_sub(MOST_NAMED) {
        0 => shown.join(", "),
        more => format!("{}, and {more} more", shown.join(", ")),
    }
}

impl Caused for SwitchError {
    fn facts(&self) -> Facts {
        match self {
            SwitchError::Nvml(error) => error.facts(),
            SwitchError::Store(error) => error.facts(),
            SwitchError::Leased { .. } => Facts::passes(Cause::User),
            SwitchError::InUse { .. } => Facts::passes(Cause::User)
                .cure("end the process, or keep it from the GPUs whose MIG mode changes"),
            SwitchError::NoMig { .. } | SwitchError::NeedsReset { on: true, .. } => {
                Facts::lasts(Cause::Root).cure("`gpufrac node-setup` switches MIG on, or says how")
            }
            SwitchError::NeedsReset { on: false, .. } => Facts::lasts(Cause::Root)
                .cure("write whole = \"mig\" in the pool of this GPU"),
            SwitchError::Instances { .. } => Facts::lasts(Cause::Root).cure(
                "`gpufrac clean` on the node shows the instances without a lease and destroys those that nothing uses",
            ),
            SwitchError::Fabric { .. } => Facts::passes(Cause::Hardware)
                .cure("look at `nvidia-smi -q`, section Fabric, and at nvidia-fabricmanager"),
            SwitchError::Renumbered { .. } => Facts::lasts(Cause::Hardware)
                .cure("drain the node and run `gpufrac node-setup` again"),
        }
    }
}

/// Switches MIG mode on or off, unless it is so already; says whether it was switched. `own`: the lease for which this
/// is done, written before, so that a later run finds what this one began. Without one nobody has the GPU.
/// Errors: the GPU stays as it is: another lease names it, the model needs a reset, or the driver refuses.
pub fn switch(
    locked: &mut LockedGpu<'_>,
    on: bool,
    own: Option<&Lease>,
) -> Result<bool, SwitchError> {
    let gpu = locked.gpu.to_string();
    let mode = locked.gpu.mig_mode()?;
    match mode {
        MigMode::Unsupported => return Err(SwitchError::NoMig { gpu }),
        mode if (mode == MigMode::On) == on => return Ok(false),
        _ => {}
    }
    if !locked.gpu.mig_switches_without_reset()? {
        return Err(SwitchError::NeedsReset { gpu, on, mode });
    }
    let is_own = |lease: &Lease| own.is_some_and(|own| own.is_same(lease));
    if let Some(other) = locked.leases()?.iter().find(|lease| !is_own(lease)) {
        let job = other.name();
        return Err(SwitchError::Leased { gpu, on, job });
    }
    // By the driver's files, as a call for each profile takes its time. The driver refuses as well.
    let standing = locked.node.caps().gpu_instances(locked.gpu.minor);
    if let Some(standing) = standing.filter(|standing| !on && !standing.is_empty()) {
        let ids: Vec<String> = standing.iter().map(u32::to_string).collect();
        let instances = ids.join(", ");
        return Err(SwitchError::Instances { gpu, instances });
    }
    // Without this look the driver would note the wish, and fulfil it with the next reset.
    let users = on_it(locked)?;
    if !users.is_empty() {
        return Err(SwitchError::InUse { gpu, on, users });
    }
    let start = Instant::now();
    let mode = locked.gpu.switch_mig(on)?;
    // Those in line see that the work goes on.
    locked.lock().step();
    if (mode == MigMode::On) != on {
        let users = users_of(locked)?;
        return Err(SwitchError::InUse { gpu, on, users });
    }
    let (before, now) = (locked.gpu.minor, locked.gpu.minor_now()?);
    if before != now {
        return Err(SwitchError::Renumbered { gpu, before, now });
    }
    // A job needed the GPU in the other mode: MIG was switched off, the GPU was busy at node-setup, or the pool has
    // `whole = "bare"`. Cure: Nothing.
    locked.log.info(format!(
        "switched MIG {} for {gpu} in {} ms",
        if on { "on" } else { "off" },
        start.elapsed().as_millis()
    ));
    Ok(true)
}

/// Waits until a GPU without MIG is in its NVSwitch fabric: the driver leaves it for MIG, and comes back later
/// (`kernel_mig_manager.c` of open-gpu-kernel-modules). Until then CUDA's first call fails with 802.
/// Errors: the fabric does not come in the node's time, or the driver does not answer.
pub fn wait_for_fabric(locked: &LockedGpu<'_>) -> Result<(), SwitchError> {
    let (start, limit) = (Instant::now(), locked.node.fabric_patience);
    while !locked.gpu.fabric_is_ready()? {
        if start.elapsed() >= limit {
            let gpu = locked.gpu.to_string();
            return Err(SwitchError::Fabric { gpu, waited: limit });
        }
        // Those in line see that the work goes on.
        locked.lock().step();
        sleep(FABRIC_PAUSE);
    }
    Ok(())
}

/// The processes that the driver shows on a GPU.
fn on_it(locked: &LockedGpu<'_>) -> Result<Vec<GpuUser>, NvmlError> {
    let processes = locked.gpu.processes()?;
    let users = processes.iter().map(|it| GpuUser::new(it.pid, true));
    Ok(users.collect())
}

/// The same; where the driver shows none, those that hold the GPU's device open, as monitoring does.
pub(crate) fn users_of(locked: &LockedGpu<'_>) -> Result<Vec<GpuUser>, NvmlError> {
    let users = on_it(locked)?;
    if !users.is_empty() {
        return Ok(users);
    }
    let Ok(device) = locked.node.caps().gpu_device(locked.gpu.minor) else {
        return Ok(users);
    };
    let found = holders::of_devices(|held| held == device, holders::FEW);
    let pids = holders::pids_of(&found.holders).into_iter();
    let users = pids.filter_map(|pid| Some(GpuUser::new(u32::try_from(pid).ok()?, false)));
    Ok(users.collect())
}
