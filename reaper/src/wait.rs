//! Waiting: for the next round, for signals, and for leases that are about to end.
#![expect(clippy::disallowed_methods, reason = "waits for real time")]

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::daemon::Rhythm;
use crate::telemetry::SHORTEST_LOOK;

/// Why waiting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The time is over, or a lease changed.
    None,
    /// SIGHUP.
    Reload,
    /// SIGTERM or SIGINT.
    End,
}

/// Blocks the signals that a [`Waiter`] waits for, in this thread and those that it starts.
///
/// # Errors
/// The kernel refuses.
pub fn block_signals() -> io::Result<SigSet> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block()?;
    Ok(signals)
}

/// The clock of the rounds.
pub struct Waiter {
    signals: SignalFd,
    leases: Inotify,
    folder: PathBuf,
    rhythm: Rhythm,
    began: Instant,
    /// Whether the look of this round was cut short.
    cut: bool,
    /// Whether a lease changed since the last round began.
    changed: bool,
    event: Event,
}

impl Waiter {
    /// Takes the signals that were blocked, and watches the folder of leases.
    ///
    /// # Errors
    /// The folder is not there: `gpufrac node-setup` makes it.
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
            event: Event::None,
        })
    }

    /// A round begins; whether a lease changed since the last one did.
    pub fn begin(&mut self, rhythm: Rhythm) -> bool {
        self.rhythm = rhythm;
        self.began = Instant::now();
        self.event = Event::None;
        self.cut = false;
        self.is_one_ending();
        std::mem::replace(&mut self.changed, false)
    }

    /// Waits while activity is measured. When a lease is about to end the driver is let go of at once, as for a signal.
    /// Says whether the measurement was long enough.
    pub fn observe(&mut self) -> bool {
        let began = Instant::now();
        let end = began + self.rhythm.look;
        self.wait(end, true);
        self.cut = Instant::now() < end;
        began.elapsed() >= SHORTEST_LOOK
    }

    /// Waits until the next round is due.
    pub fn rest(&mut self) -> Event {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.began);
        let next = now + self.rhythm.rest(passed, self.cut, fastrand::f64());
        if self.event == Event::None {
            self.wait(next, false);
        }
        self.event
    }

    fn wait(&mut self, end: Instant, for_leases: bool) {
        while self.event == Event::None {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            if for_leases {
                fds.push(PollFd::new(self.leases.as_fd(), PollFlags::POLLIN));
            }
            let ready = poll(&mut fds, timeout(left));
            let is_ready = |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::any).unwrap_or(false);
            let (signal, lease) = (is_ready(fds.first()), is_ready(fds.get(1)));
            if ready.is_err() {
                // Interrupted: look at the clock again.
                continue;
            }
            if signal {
                self.take_signal();
            }
            if lease && self.is_one_ending() {
                return;
            }
        }
    }

    fn take_signal(&mut self) {
        if let Ok(Some(info)) = self.signals.read_signal() {
            self.event = match Signal::try_from(info.ssi_signo as i32) {
                Ok(Signal::SIGHUP) => Event::Reload,
                _ => Event::End,
            };
        }
    }

    /// Whether one of the leases that changed since the last call is being released.
    fn is_one_ending(&mut self) -> bool {
        let mut ending = false;
        while let Ok(events) = self.leases.read_events() {
            self.changed = true;
            let whole = |event: &&InotifyEvent| event.mask.contains(AddWatchFlags::IN_MOVED_TO);
            for name in events
                .iter()
                .filter(whole)
                .filter_map(|event| event.name.as_ref())
            {
                let text = fs::read_to_string(self.folder.join(name)).unwrap_or_default();
                ending |= text.contains("state = \"releasing\"");
            }
        }
        ending
    }
}

/// Rounded up, so as not to spin through the last millisecond.
fn timeout(left: Duration) -> PollTimeout {
    let ms = left.as_millis().saturating_add(1).min(i32::MAX as u128);
    PollTimeout::try_from(ms as i32).unwrap_or(PollTimeout::MAX)
}
