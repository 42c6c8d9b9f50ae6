//! Waits for the next round, for signals, and for leases that are being released.
#![expect(clippy::disallowed_methods, reason = "waits for real time")]

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::measure::telemetry::SHORTEST_LOOK;
use crate::rhythm::{LookScope, Rhythm};

/// The reason why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The time is over, or a lease changed.
    Due,
    Reload,
    /// SIGTERM or SIGINT.
    End,
}

/// Blocks the signals that a [`Waiter`] waits for, in this thread and in threads that it starts.
/// Errors: the kernel refuses.
pub fn block_signals() -> io::Result<SigSet> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    Ok(signals)
}

/// Waits for one of the blocked signals; `each` is called at each `period` of waiting. Errors: the kernel refuses.
pub fn signal(signals: &SigSet, period: Duration, mut each: impl FnMut()) -> io::Result<Signal> {
    let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
    let signals = SignalFd::with_flags(signals, flags)?;
    let period = PollTimeout::try_from(period).unwrap_or(PollTimeout::MAX);
    loop {
        if let Some(found) = signals.read_signal()? {
            let number = i32::try_from(found.ssi_signo).unwrap_or_default();
            return Ok(Signal::try_from(number)?);
        }
        match poll(
            &mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)],
            period,
        ) {
            Ok(0) => each(),
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The clock of the rounds.
pub struct Waiter {
    signals: SignalFd,
    leases: Inotify,
    folder: PathBuf,
    rhythm: Rhythm,
    began: Instant,
    /// Whether the measurement of this round was interrupted.
    cut: bool,
    /// Whether a lease changed since the last round began.
    changed: bool,
    wake: Wake,
}

impl Waiter {
    /// Takes the blocked signals, and watches the folder of leases.
    /// Errors: the folder does not exist; `gpufrac node-setup` creates it.
    pub fn new(signals: SigSet, leases: &Path) -> io::Result<Waiter> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let changes = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_CLOSE_WRITE;
        let flags = changes | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(leases, flags).map_err(|error| {
            let why = io::Error::from(error);
            let hint = "run `gpufrac node-setup` first";
            io::Error::new(why.kind(), format!("`{}`: {why}; {hint}", leases.display()))
        })?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Waiter {
            signals: SignalFd::with_flags(&signals, flags)?,
            leases: inotify,
            folder: leases.to_owned(),
            rhythm: Rhythm {
                interval: SHORTEST_LOOK,
                look: SHORTEST_LOOK,
            },
            began: Instant::now(),
            cut: false,
            changed: true,
            wake: Wake::Due,
        })
    }

    /// Starts a round; returns whether a lease changed since the start of the last one.
    pub fn begin(&mut self, rhythm: Rhythm) -> bool {
        self.rhythm = rhythm;
        self.began = Instant::now();
        self.wake = Wake::Due;
        self.cut = false;
        self.take_changes();
        std::mem::replace(&mut self.changed, false)
    }

    /// Waits while activity is measured. If a lease is being released, or a signal arrives, the wait ends at once, so
    /// that the session with the driver is closed; a measurement of some slices also ends when a lease was removed.
    /// Returns whether the measurement was long enough.
    pub fn observe(&mut self, scope: LookScope) -> bool {
        let began = Instant::now();
        let end = began + self.rhythm.look;
        self.wait(end, Some(scope));
        self.cut = Instant::now() < end;
        began.elapsed() >= SHORTEST_LOOK
    }

    pub fn rest(&mut self) -> Wake {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.began);
        let next = now + self.rhythm.rest(passed, self.cut, fastrand::f64());
        if self.wake == Wake::Due {
            self.wait(next, None);
        }
        self.wake
    }

    /// `look`: the slices that are being measured, if changes of leases may end the wait.
    fn wait(&mut self, end: Instant, look: Option<LookScope>) {
        while self.wake == Wake::Due {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            if look.is_some() {
                fds.push(PollFd::new(self.leases.as_fd(), PollFlags::POLLIN));
            }
            let ready = poll(&mut fds, timeout(left));
            let is_ready = |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::any).unwrap_or(false);
            let (signal, lease) = (is_ready(fds.first()), is_ready(fds.get(1)));
            if ready.is_err() {
                // poll(2) was interrupted by a signal; compute the remaining time again.
                continue;
            }
            if signal {
                self.take_signal();
            }
            if lease {
                let Changes { ending, gone } = self.take_changes();
                if ending || (gone && look == Some(LookScope::OtherGpus)) {
                    return;
                }
            }
        }
    }

    fn take_signal(&mut self) {
        if let Ok(Some(info)) = self.signals.read_signal() {
            self.wake = match Signal::try_from(info.ssi_signo as i32) {
                Ok(Signal::SIGHUP) => Wake::Reload,
                _ => Wake::End,
            };
        }
    }

    /// The changes of leases since the last call.
    fn take_changes(&mut self) -> Changes {
        let mut changes = Changes::default();
        while let Ok(events) = self.leases.read_events() {
            self.changed = true;
            for event in &events {
                let is_whole = event.mask.contains(AddWatchFlags::IN_MOVED_TO);
                changes.gone |= event.mask.contains(AddWatchFlags::IN_DELETE);
                if let Some(name) = event.name.as_ref().filter(|_| is_whole) {
                    let text = fs::read_to_string(self.folder.join(name)).unwrap_or_default();
                    changes.ending |= text.contains("state = \"releasing\"");
                }
            }
        }
        changes
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    /// A lease is being released.
    ending: bool,
    /// A lease was removed.
    gone: bool,
}

/// The rest as a timeout for poll(2), rounded up, so that the last millisecond does not spin.
fn timeout(left: Duration) -> PollTimeout {
    let ms = left.as_millis().saturating_add(1).min(i32::MAX as u128);
    PollTimeout::try_from(ms as i32).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use nix::sys::signal::SigSet;

    use super::{Rhythm, Waiter};
    use crate::rhythm::LookScope;

    /// A waiter with a folder of one lease, whose measurement takes `look`.
    fn waiter(look: Duration) -> (tempfile::TempDir, Waiter) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("1.toml"), "state = \"releasing\"").unwrap();
        let mut waiter = Waiter::new(SigSet::empty(), folder.path()).unwrap();
        let interval = look;
        waiter.begin(Rhythm { interval, look });
        (folder, waiter)
    }

    /// The measurement would take an hour; the test would show if it did not end.
    #[test]
    fn sampling_some_gpus_ends_when_a_lease_is_removed() {
        let (folder, mut waiter) = waiter(Duration::from_secs(3600));
        fs::remove_file(folder.path().join("1.toml")).unwrap();
        waiter.observe(LookScope::OtherGpus);
        assert!(waiter.cut);
    }

    #[test]
    fn sampling_all_gpus_continues_when_a_lease_is_removed() {
        let (folder, mut waiter) = waiter(Duration::from_millis(300));
        fs::remove_file(folder.path().join("1.toml")).unwrap();
        assert!(waiter.observe(LookScope::All));
        assert!(!waiter.cut);
    }

    #[test]
    fn sampling_ends_when_a_lease_begins_to_end() {
        let (folder, mut waiter) = waiter(Duration::from_secs(3600));
        let path = |name: &str| folder.path().join(name);
        fs::rename(path("1.toml"), path("2.toml")).unwrap();
        waiter.observe(LookScope::All);
        assert!(waiter.cut);
    }
}
