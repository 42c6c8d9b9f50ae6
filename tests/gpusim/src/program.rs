//! A fake CUDA program: takes the device that CUDA would take, and holds it.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nvidia_ml::node::compute_mode::{EXCLUSIVE_PROCESS, PROHIBITED};
use nvidia_ml::node::{ComputeInstance, Gpu, GpuInstance, Node};
use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes::{self, Process};
use nvidia_ml::store::{Store, StoreError};
use nvidia_ml::tree::{self, Access, Capability};

/// Why the program cannot run; each has its exit status.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// CUDA error 100.
    #[error("no CUDA-capable device is detected ({0})")]
    NoDevice(String),
    /// CUDA error 2.
    #[error(
        "out of memory: asked for {asked_mib} MiB, {free_mib} MiB of {total_mib} MiB are free on {device}"
    )]
    OutOfMemory {
        /// The device.
        device: String,
        /// Memory wanted.
        asked_mib: u64,
        /// Memory left.
        free_mib: u64,
        /// Memory of the device.
        total_mib: u64,
    },
    /// CUDA error 46.
    #[error("all CUDA-capable devices are busy or unavailable ({0})")]
    Unavailable(String),
    /// The node's folder.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A system call failed.
    #[error("waiting for signals: {0}")]
    Signals(#[from] nix::Error),
    /// This process is not in /proc.
    #[error("this process has no /proc/self/stat")]
    NoProc,
}

impl ProgramError {
    /// The exit status: CUDA's error number where there is one.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            ProgramError::NoDevice(_) => 100,
            ProgramError::OutOfMemory { .. } => 2,
            ProgramError::Unavailable(_) => 46,
            ProgramError::Store(_) | ProgramError::Signals(_) | ProgramError::NoProc => 1,
        }
    }
}

/// What the program is to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// `CUDA_VISIBLE_DEVICES`; `None` when it is not set.
    pub visible: Option<String>,
    /// Memory to hold.
    pub memory_mib: u64,
    /// How long to run; without it, until a signal.
    pub time: Option<Duration>,
    /// How busy to be.
    pub pattern: Pattern,
    /// Command that NVML reports.
    pub name: String,
}

/// The device that the program got.
struct Found<'a> {
    gpu: &'a Gpu,
    mig: Option<(&'a GpuInstance, &'a ComputeInstance)>,
}

fn no_device(reason: impl Into<String>) -> ProgramError {
    ProgramError::NoDevice(reason.into())
}

/// Opens a node of the driver, as CUDA's library would.
fn open(path: &Path, write: bool) -> Result<(), ProgramError> {
    match tree::probe(path, write) {
        Access::Reached => Ok(()),
        Access::Denied => Err(no_device(format!("{}: not permitted", path.display()))),
        Access::Missing => Err(no_device(format!("{}: no such node", path.display()))),
    }
}

/// Opens the nodes of an instance. For root missing ones are made, as `nvidia-modprobe` would
/// for everyone, since it is setuid root.
fn open_instance(
    root: &Path,
    gpu: &Gpu,
    gi: &GpuInstance,
    ci: &ComputeInstance,
) -> Result<(), ProgramError> {
    for capability in [
        Capability::GpuInstance(gpu.minor, gi.id),
        Capability::ComputeInstance(gpu.minor, gi.id, ci.id),
    ] {
        // Fails for everyone but root, whom the open below then tells of a missing node.
        let _ = tree::modprobe(root, capability);
        open(&capability.node(root), false)?;
    }
    Ok(())
}

/// The GPUs that the process may open, in CUDA's order.
fn open_gpus<'a>(root: &Path, node: &'a Node) -> Vec<&'a Gpu> {
    let may_open = |gpu: &&Gpu| {
        let path = root.join(format!("dev/nvidia{}", gpu.minor));
        open(&path, true).is_ok()
    };
    node.gpus.iter().filter(may_open).collect()
}

/// The first instance of a GPU that the process may open.
fn first_instance<'a>(root: &Path, gpu: &'a Gpu) -> Option<Found<'a>> {
    gpu.mig_devices()
        .find(|(gi, ci)| open_instance(root, gpu, gi, ci).is_ok())
        .map(|mig| Found {
            gpu,
            mig: Some(mig),
        })
}

fn whole_or_first<'a>(root: &Path, gpu: &'a Gpu) -> Result<Found<'a>, ProgramError> {
    if gpu.mig {
        first_instance(root, gpu).ok_or_else(|| {
            no_device(format!(
                "{} is in MIG mode and no instance of it can be opened",
                gpu.uuid
            ))
        })
    } else {
        Ok(Found { gpu, mig: None })
    }
}

/// The device that CUDA makes number 0.
fn choose<'a>(
    root: &Path,
    node: &'a Node,
    visible: Option<&str>,
) -> Result<Found<'a>, ProgramError> {
    open(&root.join("dev/nvidiactl"), true)?;
    open(&root.join("dev/nvidia-uvm"), true)?;
    let gpus = open_gpus(root, node);
    let Some(visible) = visible else {
        for gpu in &gpus {
            if let Ok(found) = whole_or_first(root, gpu) {
                return Ok(found);
            }
        }
        return Err(no_device("no GPU and no instance can be opened"));
    };
    // Only the first entry matters: CUDA stops at the first that names nothing, and a program
    // that asks for no device by number uses the first of those before.
    let first = visible.split(',').next().unwrap_or_default().trim();
    if let Ok(index) = first.parse::<usize>() {
        let gpu = gpus
            .get(index)
            .ok_or_else(|| no_device(format!("CUDA_VISIBLE_DEVICES={visible}: no GPU {index}")))?;
        return whole_or_first(root, gpu);
    }
    let unknown = || no_device(format!("CUDA_VISIBLE_DEVICES={visible}: no such device"));
    if let Some(path) = first.strip_prefix("MIG-GPU-") {
        let mut words = path.split('/');
        let uuid = format!("GPU-{}", words.next().unwrap_or_default());
        let mut number = || words.next().and_then(|word| word.parse::<u32>().ok());
        let ids = number().zip(number()).ok_or_else(unknown)?;
        let gpu = gpus
            .iter()
            .find(|gpu| gpu.uuid == uuid)
            .ok_or_else(unknown)?;
        let mut devices = gpu.mig_devices();
        let (gi, ci) = devices
            .find(|(gi, ci)| (gi.id, ci.id) == ids)
            .ok_or_else(unknown)?;
        open_instance(root, gpu, gi, ci)?;
        return Ok(Found {
            gpu,
            mig: Some((gi, ci)),
        });
    }
    // The start of a UUID is enough, as long as it is the start of one device's only.
    if first.starts_with("MIG-") && first.len() > 4 {
        let all = gpus
            .iter()
            .flat_map(|gpu| gpu.mig_devices().map(move |mig| (*gpu, mig)));
        let mut matching = all.filter(|(_, (_, ci))| ci.uuid.starts_with(first));
        let (gpu, (gi, ci)) = matching.next().ok_or_else(unknown)?;
        if matching.next().is_some() {
            return Err(unknown());
        }
        open_instance(root, gpu, gi, ci)?;
        return Ok(Found {
            gpu,
            mig: Some((gi, ci)),
        });
    }
    if first.starts_with("GPU-") && first.len() > 4 {
        let mut matching = gpus.iter().filter(|gpu| gpu.uuid.starts_with(first));
        let gpu = matching.next().ok_or_else(unknown)?;
        if matching.next().is_some() {
            return Err(unknown());
        }
        return whole_or_first(root, gpu);
    }
    Err(unknown())
}

struct Size {
    name: String,
    uuid: String,
    memory_mib: u64,
    multiprocessors: u32,
}

fn measure(found: &Found<'_>) -> Result<Size, ProgramError> {
    let model = found.gpu.model();
    let Some((gi, ci)) = found.mig else {
        return Ok(Size {
            name: model.product.to_owned(),
            uuid: found.gpu.uuid.clone(),
            memory_mib: found.gpu.usable_memory_mib(),
            multiprocessors: model.multiprocessors,
        });
    };
    let broken = |code| no_device(format!("{}: {code}", ci.uuid));
    let profile = found.gpu.profile_of(gi).map_err(broken)?;
    let compute = found.gpu.compute_profiles(gi).map_err(broken)?;
    let compute = compute.into_iter().find(|known| known.id == ci.profile);
    let compute = compute.ok_or_else(|| no_device(format!("{}: unknown profile", ci.uuid)))?;
    Ok(Size {
        name: format!("{} MIG {}", model.product, compute.name),
        uuid: ci.uuid.clone(),
        memory_mib: profile.memory_mib,
        multiprocessors: compute.multiprocessors,
    })
}

/// Takes a device and memory on it. The answer is the registered process and the line that
/// tells what it got.
fn start(store: &Store, plan: &Plan) -> Result<(Process, String), ProgramError> {
    let root = store.root();
    // No instance comes or goes from the look at it until the process is on the list.
    let lock = store.lock()?;
    let node = store.node()?;
    let found = choose(root, &node, plan.visible.as_deref())?;
    let size = measure(&found)?;
    let live = processes::live(root)?;
    let serials = found.mig.map(|(gi, ci)| (gi.serial, ci.serial));
    let on_it = |process: &&Process| match (serials, process.instance) {
        (Some((gi, _)), Some((other, _))) => gi == other,
        (None, None) => process.gpu_uuid == found.gpu.uuid,
        _ => false,
    };
    let others: Vec<&Process> = live.iter().filter(on_it).collect();
    let mode = found.gpu.compute_mode;
    if mode == PROHIBITED || (mode == EXCLUSIVE_PROCESS && !others.is_empty()) {
        return Err(ProgramError::Unavailable(format!(
            "compute mode of {}",
            found.gpu.uuid
        )));
    }
    let used: u64 = others.iter().map(|process| process.memory_mib).sum();
    let free_mib = size.memory_mib.saturating_sub(used);
    if plan.memory_mib > free_mib {
        return Err(ProgramError::OutOfMemory {
            device: size.uuid,
            asked_mib: plan.memory_mib,
            free_mib,
            total_mib: size.memory_mib,
        });
    }
    let pid = std::process::id();
    let process = Process {
        pid,
        start_ticks: processes::start_ticks(pid).ok_or(ProgramError::NoProc)?,
        name: plan.name.clone(),
        gpu_uuid: found.gpu.uuid.clone(),
        instance: serials,
        memory_mib: plan.memory_mib,
        pattern: plan.pattern.clone(),
        began_us: processes::now_us(),
    };
    process.register(root)?;
    drop(lock);
    let line = format!(
        "device=\"{}\" uuid={} memory_mib={} sms={} holding_mib={} pid={pid}",
        size.name, size.uuid, size.memory_mib, size.multiprocessors, plan.memory_mib
    );
    Ok((process, line))
}

/// Runs the program: takes the device, tells `report` what it got, and stays until its time is
/// over or SIGTERM, SIGINT or SIGHUP comes. Answers the signal, if one came.
///
/// # Errors
/// As a CUDA program would fail.
pub fn run(
    store: &Store,
    plan: &Plan,
    report: impl FnOnce(&str),
) -> Result<Option<i32>, ProgramError> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    let (process, line) = start(store, plan)?;
    report(&line);
    let end = plan.time.map(|time| Instant::now() + time);
    let signal = wait(&signals, end);
    process.remove(store.root())?;
    signal
}

fn wait(signals: &SignalFd, end: Option<Instant>) -> Result<Option<i32>, ProgramError> {
    loop {
        let timeout = match end {
            None => PollTimeout::NONE,
            Some(end) => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(None);
                }
                // Rounded up, so as not to spin through the last millisecond.
                let ms = left.as_millis().saturating_add(1).min(i32::MAX as u128);
                PollTimeout::try_from(ms as i32).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) | Err(nix::Error::EINTR) => {}
            Ok(_) => {
                if let Some(info) = signals.read_signal()? {
                    return Ok(Some(info.ssi_signo as i32));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}
