//! A fake CUDA program: takes the device that CUDA would take, and keeps it.

use std::os::fd::AsFd;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nvidia_ml::node::compute_mode::{EXCLUSIVE_PROCESS, PROHIBITED};
use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes::{self, Process, Record, Role};
use nvidia_ml::store::Store;

pub use crate::device::Size;
use crate::device::{Found, measure, take};
use crate::mps::{self, Connection};
pub use crate::plan::{Plan, ProgramError};

/// The memory of an MPS server's context in MiB.
const SERVER_MEMORY_MIB: u64 = 30;

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

/// The first device that the program sees, as CUDA's start finds it. Errors: as a CUDA program would fail.
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
        own.is_some_and(|own| {
            (own.pid, own.start_ticks) == (record.process.pid, record.process.start_ticks)
        })
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

/// The memory that a registered program may have. Errors: its device is gone.
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
    pub size: Size,
    /// The multiprocessors that it may use.
    pub multiprocessors: u32,
}

/// Takes a device and memory on it. Errors: as a CUDA program would fail.
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
/// SIGINT or SIGHUP arrives. Returns the signal, if there was one. Errors: as a CUDA program would fail.
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
