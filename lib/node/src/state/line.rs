//! The queue for the lock of a GPU: prologs and epilogs get the lock in the order of their arrival.
//!
//! A waiting program has a ticket, a file in `<run>/locks/gpuN.line`, and holds the kernel's lock on that file.
//! Tickets are numbered by arrival time. A visible ticket was locked before: a ticket without a lock belongs to a
//! killed process, and the next program in the queue removes it. The queue only gives the order. Only the lock of the
//! GPU gives access: if two programs both seem to be first, one of them gets the lock, and checks again whether it is
//! the first.
//!
//! The folder also has notes of epilogs at work. No program waits for a note; it keeps other programs from repairing
//! the leases that the epilog is about to release.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use gpufrac_core::ids::{GpuIndex, JobId};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::time::{ClockId, clock_gettime};

use super::locks::{LockError, Locks};
use gpufrac_host::files::RootDir;
use gpufrac_host::pause::Pause;

/// The pauses between two readings of the queue. The longest is the time that a GPU may be idle between two turns.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);
/// The first part of the name of an epilog's note.
const EPILOG: &str = "epilog";
/// The number of attempts to create a ticket: another process may check it in the moment before it is locked.
const TRIES: u32 = 100;

/// The lock of a GPU, until it is dropped.
#[derive(Debug)]
#[must_use = "the GPU is unlocked when this is dropped"]
pub struct GpuLock {
    // Dropped before the ticket, so that the next program in the queue finds the GPU free.
    file: Flock<File>,
    _ticket: Ticket,
    gpu_index: GpuIndex,
}

impl GpuLock {
    fn new(file: Flock<File>, ticket: Ticket, gpu_index: GpuIndex) -> GpuLock {
        let lock = GpuLock {
            file,
            _ticket: ticket,
            gpu_index,
        };
        lock.step();
        lock
    }

    /// Tells the programs in the queue that a step on the GPU is finished.
    pub fn step(&self) {
        // They compare the time with the last one that they saw, not with a clock. If it cannot be written, they only
        // wait for a shorter time.
        let _ = self.file.set_modified(SystemTime::now());
    }

    pub fn gpu_index(&self) -> GpuIndex {
        self.gpu_index
    }
}

/// A place in the queue of a GPU. It is kept between two turns: a program that returns comes before all later ones.
/// In between there is no ticket, so no program waits for the owner.
#[derive(Debug)]
pub struct Line<'a> {
    locks: &'a Locks,
    tickets: Tickets,
    gpu_index: GpuIndex,
    number: u128,
    turns: u32,
}

/// The state of the queue for a waiting program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The number of programs before it.
    pub ahead: usize,
    /// The time of this wait.
    pub waited: Duration,
    /// How long nothing has changed: no earlier program left or returned, and the program with the GPU made no step.
    pub still: Duration,
}

impl Line<'_> {
    /// The GPU of the queue.
    pub fn gpu_index(&self) -> GpuIndex {
        self.gpu_index
    }

    /// Waits for the turn and locks the GPU. `goes_on` is asked repeatedly whether to continue.
    /// Errors: [`LockError::Timeout`] if `goes_on` says no; or a file cannot be used.
    pub fn turn(&mut self, mut goes_on: impl FnMut(&Wait) -> bool) -> Result<GpuLock, LockError> {
        let ticket = self.ticket()?;
        let (mut gate, path) = self.locks.gate(self.gpu_index)?;
        let start = Instant::now();
        let mut moved = start;
        let mut seen = None;
        let mut pause = Pause::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let ahead = self.tickets.before(&ticket.name)?;
            if !self.tickets.is_any_held(&ahead)? {
                gate = match Flock::lock(gate, FlockArg::LockExclusiveNonblock) {
                    Ok(file) => {
                        // A program with an earlier place may have returned since the queue was read.
                        let ahead = self.tickets.before(&ticket.name)?;
                        if !self.tickets.is_any_held(&ahead)? {
                            return Ok(GpuLock::new(file, ticket, self.gpu_index));
                        }
                        let unlocked = file.unlock();
                        unlocked.map_err(|(_, source)| LockError::Flock {
                            path: path.clone(),
                            source,
                        })?
                    }
                    Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => back,
                    Err((_, source)) => return Err(LockError::Flock { path, source }),
                };
            }
            let now = (ahead, last_step(&gate));
            if seen.as_ref() != Some(&now) {
                moved = Instant::now();
            }
            let wait = Wait {
                ahead: now.0.len(),
                waited: start.elapsed(),
                still: moved.elapsed(),
            };
            seen = Some(now);
            if !goes_on(&wait) {
                return Err(LockError::Timeout {
                    gpu_index: self.gpu_index,
                    path,
                    waited: wait.waited,
                    still: wait.still,
                });
            }
            pause.sleep(LONGEST_PAUSE);
        }
    }

    fn ticket(&mut self) -> Result<Ticket, LockError> {
        let number = format!("{:020}", self.number);
        self.tickets.make(&number, &mut self.turns)
    }
}

impl Locks {
    /// Locks the GPU with this NVML index: waits in its queue as long as the queue moves, and gives up if nothing has
    /// changed for `patience`.
    pub fn gpu(&self, gpu_index: GpuIndex, patience: Duration) -> Result<GpuLock, LockError> {
        self.line(gpu_index)?.turn(|wait| wait.still < patience)
    }

    /// A place at the end of the queue of a GPU.
    pub fn line(&self, gpu_index: GpuIndex) -> Result<Line<'_>, LockError> {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_err(|source| LockError::Flock {
            path: self.path().to_owned(),
            source,
        })?;
        Ok(Line {
            locks: self,
            tickets: self.tickets(gpu_index)?,
            gpu_index,
            number: Duration::from(now).as_nanos(),
            turns: 0,
        })
    }

    /// Notes that the epilog of a job is about to release what the job has on a GPU.
    pub fn note_epilog(&self, gpu_index: GpuIndex, job_id: JobId) -> Result<Epilog, LockError> {
        let note = self.tickets(gpu_index)?;
        let note = note.make(&format!("{EPILOG}{job_id}"), &mut 0)?;
        Ok(Epilog { _note: note })
    }

    /// The jobs whose epilogs work on a GPU, or wait for it.
    pub fn epilogs(&self, gpu_index: GpuIndex) -> Result<BTreeSet<JobId>, LockError> {
        let tickets = self.tickets(gpu_index)?;
        let mut jobs = BTreeSet::new();
        for name in tickets.dir.names()? {
            let job = name.strip_prefix(EPILOG);
            let job = job.and_then(|rest| rest.split('.').next()?.parse().ok());
            if let Some(job) = job
                && tickets.is_held(&name)?
            {
                jobs.insert(job);
            }
        }
        Ok(jobs)
    }

    fn tickets(&self, gpu_index: GpuIndex) -> Result<Tickets, LockError> {
        let path = self.path().join(format!("gpu{gpu_index}.line"));
        let (dir, _) = RootDir::create(&path, 0o700)?;
        Ok(Tickets { dir: Arc::new(dir) })
    }
}

/// A ticket, until it is dropped.
#[derive(Debug)]
pub(super) struct Ticket {
    dir: Arc<RootDir>,
    name: String,
    _file: Flock<File>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // A ticket that remains is not locked; the next program removes it.
        let _ = self.dir.remove(&self.name);
    }
}

/// The note of a running epilog, until it is dropped.
#[derive(Debug)]
pub struct Epilog {
    _note: Ticket,
}

/// The folder with the tickets of a GPU.
#[derive(Debug)]
struct Tickets {
    dir: Arc<RootDir>,
}

impl Tickets {
    /// Creates a ticket. It is locked before it gets its visible name, and names are never reused, so that a program
    /// that removes the ticket of a killed process never removes another one.
    fn make(&self, title: &str, turns: &mut u32) -> Result<Ticket, LockError> {
        let dir = &self.dir;
        for _ in 0..TRIES {
            *turns += 1;
            let name = format!("{title}.{}.{turns}", std::process::id());
            let hidden = format!(".{name}");
            let file = dir.lock_file(&hidden)?;
            // A program that removes leftovers may have locked it for a moment.
            if let Ok(file) = Flock::lock(file, FlockArg::LockExclusiveNonblock)
                && dir.rename(&hidden, &name)?
            {
                return Ok(Ticket {
                    dir: Arc::clone(dir),
                    name,
                    _file: file,
                });
            }
        }
        Err(LockError::Flock {
            path: dir.path().to_owned(),
            source: Errno::EAGAIN,
        })
    }

    /// The tickets before `own`, in order. Removes incomplete ones.
    fn before(&self, own: &str) -> Result<Vec<String>, LockError> {
        let mut names = self.dir.names()?;
        for unfinished in names.iter().filter(|name| name.starts_with('.')) {
            self.is_held(unfinished)?;
        }
        let is_number = |name: &str| name.starts_with(|c: char| c.is_ascii_digit());
        names.retain(|name| is_number(name) && name.as_str() < own);
        Ok(names)
    }

    /// Whether one of these is held. Checked from the end, because it is mostly the last one.
    fn is_any_held(&self, names: &[String]) -> Result<bool, LockError> {
        for name in names.iter().rev() {
            if self.is_held(name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a program holds a ticket; a ticket without a holder is removed.
    fn is_held(&self, name: &str) -> Result<bool, LockError> {
        let Some(file) = self.dir.existing_lock_file(name)? else {
            return Ok(false);
        };
        // A shared lock, so that two programs that check at the same time do not take each other for the owner.
        match Flock::lock(file, FlockArg::LockSharedNonblock) {
            Ok(_free) => {
                self.dir.remove(name)?;
                Ok(false)
            }
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => Ok(true),
            Err((_, source)) => Err(LockError::Flock {
                path: self.dir.path().join(name),
                source,
            }),
        }
    }
}

/// When the program with the GPU last finished a step.
fn last_step(gate: &File) -> Option<SystemTime> {
    gate.metadata().and_then(|data| data.modified()).ok()
}

#[cfg(test)]
mod tests;
