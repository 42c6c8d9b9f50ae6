//! A fake CUDA program: takes the device that CUDA would take, and keeps it.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nvidia_ml::node::compute_mode::{EXCLUSIVE_PROCESS, PROHIBITED};
use nvidia_ml::node::{ComputeInstance, Gpu, GpuInstance, Node};
use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes::{self, Process, Record, Role};
use nvidia_ml::store::{Store, StoreError};
use nvidia_ml::tree::{self, Access, Capability};

use crate::mps::{self, Connection};

/// The reasons why the program cannot run; each has its exit status.
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
        /// The requested memory in MiB.
        asked_mib: u64,
        /// The free memory in MiB.
        free_mib: u64,
        /// The memory of the device in MiB.
        total_mib: u64,
    },
    /// CUDA error 46.
    #[error("all CUDA-capable devices are busy or unavailable ({0})")]
    Unavailable(String),
    /// CUDA errors 806, 807 and 810.
    #[error(transparent)]
    Mps(#[from] mps::MpsError),
    /// The node's folder cannot be used.
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
    /// The exit status: CUDA's error number if there is one, the last eight bits of a larger one.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            ProgramError::NoDevice(_) => 100,
            ProgramError::OutOfMemory { .. } => 2,
            ProgramError::Unavailable(_) => 46,
            ProgramError::Mps(error) => error.number() as u8,
            ProgramError::Store(_) | ProgramError::Signals(_) | ProgramError::NoProc => 1,
        }
    }
}

/// The arguments of the program.
#[derive(Debug, Clone)]
pub struct Plan {
    /// `CUDA_VISIBLE_DEVICES`; `None` when it is not set.
    pub visible: Option<String>,
    /// The memory to allocate in MiB.
    pub memory_mib: u64,
    /// The running time; None until a signal.
    pub time: Option<Duration>,
    /// The pattern of activity.
    pub pattern: Pattern,
    /// The command name in NVML.
    pub name: String,
    /// The variables of MPS.
    pub mps: mps::Settings,
}

/// The memory of an MPS server's context in MiB.
const SERVER_MEMORY_MIB: u64 = 30;

/// The device that the program got.
#[derive(Clone, Copy)]
struct Found<'a> {
    gpu: &'a Gpu,
    mig: Option<(&'a GpuInstance, &'a ComputeInstance)>,
}

fn no_device(reason: impl Into<String>) -> ProgramError {
    ProgramError::NoDevice(reason.into())
}

/// Opens a device node of the driver, as CUDA's library would.
fn open(path: &Path, write: bool) -> Result<(), ProgramError> {
    match tree::probe(path, write) {
        Access::Reached => Ok(()),
        Access::Denied => Err(no_device(format!("{}: not permitted", path.display()))),
        Access::Missing => Err(no_device(format!("{}: no such node", path.display()))),
    }
}

/// Opens the device nodes of an instance. For root, missing nodes are created; for other users the real
/// `nvidia-modprobe` would create them, because it is setuid root.
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
        // Fails for other users than root. For root, the open below reports a missing node.
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

/// The device that CUDA numbers 0.
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
    // Only the first entry matters: CUDA stops at the first entry without a device, and a program that names no
    // device number uses the first one before it.
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
    // The start of a UUID is enough if it is the start of only one device's UUID.
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

/// The size of a device.
#[derive(Debug, Clone)]
pub struct Size {
    /// Its name, as CUDA says it.
    pub name: String,
    /// The UUID of its GPU.
    pub gpu_uuid: String,
    /// Its own UUID, of the GPU or of the MIG device.
    pub uuid: String,
    /// The memory in MiB.
    pub memory_mib: u64,
    /// The multiprocessors.
    pub multiprocessors: u32,
}

fn measure(found: &Found<'_>) -> Result<Size, ProgramError> {
    let model = found.gpu.model();
    let Some((gi, ci)) = found.mig else {
        return Ok(Size {
            name: model.product.to_owned(),
            gpu_uuid: found.gpu.uuid.clone(),
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
        gpu_uuid: found.gpu.uuid.clone(),
        uuid: ci.uuid.clone(),
        memory_mib: profile.memory_mib,
        multiprocessors: compute.multiprocessors,
    })
}

impl Found<'_> {
    fn serials(&self) -> Option<(u64, u64)> {
        self.mig.map(|(gi, ci)| (gi.serial, ci.serial))
    }

    /// Whether a process has memory of the same GPU or GPU instance.
    fn shares_with(&self, process: &Process) -> bool {
        match (self.mig, process.instance) {
            (Some((gi, _)), Some((other, _))) => gi.serial == other,
            (None, None) => process.gpu_uuid == self.gpu.uuid,
            _ => false,
        }
    }

    fn leaked_mib(&self) -> u64 {
        self.mig
            .map_or(self.gpu.leaked_mib, |(gi, _)| gi.leaked_mib)
    }
}

/// The device that an MPS client numbers 0, and the server's number of it. The client names one of the server's
/// devices, or its number.
fn choose_of_server<'a>(
    root: &Path,
    node: &'a Node,
    visible: Option<&str>,
    devices: &[String],
) -> Result<(Found<'a>, usize), ProgramError> {
    let of_server = |number: usize| choose(root, node, Some(&devices[number]));
    let first = visible.map(|text| text.split(',').next().unwrap_or_default().trim());
    if let Some(number) = first.map_or(Some(0), |first| first.parse().ok()) {
        if number >= devices.len() {
            return Err(no_device(format!("the MPS server has no device {number}")));
        }
        return Ok((of_server(number)?, number));
    }
    let wanted = choose(root, node, visible)?;
    let is_it =
        |found: Found<'_>| found.gpu.uuid == wanted.gpu.uuid && found.serials() == wanted.serials();
    let number = (0..devices.len()).find(|number| of_server(*number).is_ok_and(is_it));
    let number = number.ok_or_else(|| no_device("the MPS server does not have this device"))?;
    Ok((wanted, number))
}

/// The device, and its number in memory limits.
fn take<'a>(
    root: &Path,
    node: &'a Node,
    plan: &Plan,
    server: Option<&mps::Server>,
) -> Result<(Found<'a>, usize), ProgramError> {
    let visible = plan.visible.as_deref();
    match server {
        Some(server) if !server.devices.is_empty() => {
            choose_of_server(root, node, visible, &server.devices)
        }
        _ => {
            let found = choose(root, node, visible)?;
            let mut gpus = node.gpus.iter();
            let number = gpus.position(|gpu| gpu.uuid == found.gpu.uuid);
            Ok((found, number.unwrap_or_default()))
        }
    }
}

/// Whether the compute mode admits the program besides those that are there.
fn admitted(found: &Found<'_>, others: &[&Record], server: Option<&mps::Server>) -> bool {
    let is_other = |record: &&Record| server.is_none_or(|server| record.worker() != server.pid);
    match found.gpu.compute_mode {
        PROHIBITED => false,
        // The server is the only process that has the GPU.
        EXCLUSIVE_PROCESS => !others.iter().copied().any(|other| is_other(&other)),
        _ => true,
    }
}

/// A process on the device, not registered yet.
fn process(
    pid: u32,
    name: &str,
    found: &Found<'_>,
    memory_mib: u64,
    pattern: Pattern,
) -> Result<Process, ProgramError> {
    Ok(Process {
        pid,
        start_ticks: processes::start_ticks(pid).ok_or(ProgramError::NoProc)?,
        name: name.to_owned(),
        gpu_uuid: found.gpu.uuid.clone(),
        instance: found.serials(),
        memory_mib,
        pattern,
        began_us: processes::now_us(),
    })
}

/// The first device that the program sees, as CUDA's start finds it.
///
/// # Errors
/// As a CUDA program would fail.
pub fn look(
    store: &Store,
    plan: &Plan,
    server: Option<&mps::Server>,
) -> Result<Size, ProgramError> {
    let node = store.node()?;
    let (found, _) = take(store.root(), &node, plan, server)?;
    measure(&found)
}

/// The memory that a program may take, in MiB.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// What it has and what is free, within its limits.
    pub free_mib: u64,
    /// The memory of the device.
    pub total_mib: u64,
}

/// The processes on a device besides one.
fn others<'a>(found: &Found<'_>, present: &'a [Record], own: Option<&Process>) -> Vec<&'a Record> {
    let is_own = |record: &Record| {
        own.is_some_and(|own| (own.pid, own.start_ticks) == (record.process.pid, record.process.start_ticks))
    };
    let present = present.iter().filter(|record| !is_own(record));
    present
        .filter(|record| found.shares_with(&record.process))
        .collect()
}

fn room(
    (found, number): (&Found<'_>, usize),
    plan: &Plan,
    server: Option<&mps::Server>,
    others: &[&Record],
    of_server: u64,
) -> Result<Room, ProgramError> {
    let total_mib = measure(found)?.memory_mib;
    let used: u64 = others.iter().map(|record| record.process.memory_mib).sum();
    let used = used + found.leaked_mib() + of_server;
    let free = total_mib.saturating_sub(used);
    let limit = server.and_then(|server| plan.mps.limit_mib(server, number));
    Ok(Room {
        free_mib: limit.map_or(free, |limit| limit.min(free)),
        total_mib,
    })
}

/// The memory that a registered program may have.
///
/// # Errors
/// Its device is gone.
pub fn room_of(
    store: &Store,
    plan: &Plan,
    server: Option<&mps::Server>,
    process: &Process,
) -> Result<Room, ProgramError> {
    let node = store.node()?;
    let (found, number) = take(store.root(), &node, plan, server)?;
    let present = processes::present(store.root())?;
    let others = others(&found, &present, Some(process));
    room((&found, number), plan, server, &others, 0)
}

/// A program on its device.
pub struct Started {
    /// The registered process.
    pub process: Process,
    /// Its role in MPS.
    pub role: Role,
    /// The device.
    pub size: Size,
    /// The multiprocessors that it may use.
    pub multiprocessors: u32,
}

/// Takes a device and memory on it.
///
/// # Errors
/// As a CUDA program would fail.
pub fn start(
    store: &Store,
    plan: &Plan,
    server: Option<&mps::Server>,
) -> Result<Started, ProgramError> {
    let root = store.root();
    // Locked, so that no instance is created or destroyed until the process is registered.
    let lock = store.lock()?;
    let node = store.node()?;
    let (found, number) = take(root, &node, plan, server)?;
    let size = measure(&found)?;
    let present = processes::present(root)?;
    let others = others(&found, &present, None);
    if !admitted(&found, &others, server) {
        return Err(ProgramError::Unavailable(format!(
            "compute mode of {}",
            found.gpu.uuid
        )));
    }
    // The daemon knows nothing of simulated GPUs, so the first client registers the server.
    let new_server = server.filter(|server| {
        let mut known = present.iter();
        !known.any(|record| record.role == Role::Server && record.process.pid == server.pid)
    });
    let of_server = new_server.map_or(0, |_| SERVER_MEMORY_MIB);
    let Room {
        free_mib,
        total_mib,
    } = room((&found, number), plan, server, &others, of_server)?;
    if plan.memory_mib > free_mib {
        return Err(ProgramError::OutOfMemory {
            device: size.uuid,
            asked_mib: plan.memory_mib,
            free_mib,
            total_mib,
        });
    }
    if let Some(server) = new_server {
        process(server.pid, mps::SERVER, &found, of_server, Pattern::Idle)?
            .register_as(root, Role::Server)?;
    }
    let process = process(
        std::process::id(),
        &plan.name,
        &found,
        plan.memory_mib,
        plan.pattern.clone(),
    )?;
    let role = server.map_or(Role::Alone, |it| Role::Client(it.pid));
    process.register_as(root, role)?;
    drop(lock);
    let multiprocessors = match server {
        Some(server) => plan.mps.multiprocessors(server, size.multiprocessors),
        None => size.multiprocessors,
    };
    Ok(Started {
        process,
        role,
        size,
        multiprocessors,
    })
}

impl Started {
    /// The line with the result.
    fn line(&self) -> String {
        let Started {
            process,
            role,
            size,
            multiprocessors,
        } = self;
        let mut line = format!(
            "device=\"{}\" uuid={} memory_mib={} sms={multiprocessors} holding_mib={} pid={}",
            size.name, size.uuid, size.memory_mib, process.memory_mib, process.pid
        );
        if let Role::Client(server) = role {
            line.push_str(&format!(" mps_server={server}"));
        }
        line
    }
}

/// Runs the program: takes the device, passes the result to `report`, and runs until its time is over or SIGTERM,
/// SIGINT or SIGHUP arrives. Returns the signal, if there was one.
///
/// # Errors
/// As a CUDA program would fail.
pub fn run(
    store: &Store,
    plan: &Plan,
    report: impl FnOnce(&str),
) -> Result<Option<i32>, ProgramError> {
    // This may wait for long; a signal then ends it like any program.
    let mps = Connection::open(&plan.mps)?;
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    let server = mps.as_ref().map(Connection::server);
    let started = start(store, plan, server)?;
    report(&started.line());
    let process = started.process;
    let end = plan.time.map(|time| Instant::now() + time);
    let signal = wait(&signals, end, || {
        if let Some(mps) = &mps {
            mps.check()?;
        }
        // The node may have been created again, which must not end the program.
        let _ = process.beat(store.root());
        Ok(())
    });
    process.remove(store.root())?;
    signal
}

/// Waits for a signal or the end, and reports activity after every [`processes::BEAT`].
fn wait(
    signals: &SignalFd,
    end: Option<Instant>,
    look: impl Fn() -> Result<(), ProgramError>,
) -> Result<Option<i32>, ProgramError> {
    loop {
        let left = end.map_or(processes::BEAT, |end| {
            end.saturating_duration_since(Instant::now())
        });
        if left.is_zero() {
            return Ok(None);
        }
        // Rounded up, so that the last millisecond does not spin.
        let ms = left.min(processes::BEAT).as_millis() as i32 + 1;
        let timeout = PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX);
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
        look()?;
    }
}
