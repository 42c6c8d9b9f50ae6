//! Cares for what the node cannot do now: sends jobs that it gave back to other nodes, retries places that cannot be
//! freed, names who holds them, keeps Slurm from starting jobs there, and undoes all of it as soon as the places are
//! free.
//!
//! A thread of its own, because a round of the daemon may wait for the driver, and a job must start elsewhere at once.
//! Prologs and epilogs tell it by files (`state::put_back`, `state::stuck`).

mod jobs;
mod places;
mod units;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use gpufrac_core::config::LAST_GOOD;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_host::log::JobLog;
use gpufrac_node::cdi;
use gpufrac_node::node::Node;
use gpufrac_node::state::{put_back, stuck};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::os::fd::AsFd;

use crate::report::errors::{ErrorReports, topic};
use gpufrac_node::clock::{Clock, SystemClock};
use gpufrac_node::slurm_call::SlurmProcess;
use jobs::Jobs;
use places::Places;

/// The pause between two looks while something fails.
const BUSY: Duration = Duration::from_secs(2);
/// The pause while nothing fails: inotify may lose events.
const IDLE: Duration = Duration::from_secs(60);

/// The reasons why nothing is cared for.
#[derive(Debug, thiserror::Error)]
pub enum CareError {
    /// A folder cannot be made.
    #[error(transparent)]
    File(#[from] FileError),
    /// The limit of inotify is reached.
    /// Cure: Raise it with sysctl, then restart the daemon.
    #[error("watching the folders of failures failed: {0}; raise fs.inotify.max_user_instances")]
    Watch(#[from] io::Error),
}

/// Starts the thread, which runs until this process ends. `config`: the path of the configuration, which is read again
/// for each failure. `put_back`: counts the jobs that the node gave back. Errors: the folders cannot be watched.
pub fn follow(config: &Path, node: &Node, put_back: Arc<AtomicU64>) -> Result<(), CareError> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
    let inotify = inotify.map_err(io::Error::from)?;
    for folder in [stuck::FOLDER, put_back::FOLDER] {
        let path = node.state.join(folder);
        RootDir::create(&path, 0o700)?;
        let flags = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR;
        inotify.add_watch(&path, flags).map_err(io::Error::from)?;
    }
    let mut care = Care {
        config: config.to_owned(),
        name: node.name.clone(),
        jobs: Jobs::counted_in(put_back),
        places: Places::default(),
        reports: ErrorReports::default(),
        log: JobLog::reaper(),
    };
    std::thread::spawn(move || care.run(&inotify));
    Ok(())
}

struct Care {
    config: PathBuf,
    name: String,
    jobs: Jobs,
    places: Places,
    reports: ErrorReports,
    log: JobLog,
}

impl Care {
    fn run(&mut self, inotify: &Inotify) {
        loop {
            let pause = if self.run_once() { BUSY } else { IDLE };
            wait(inotify, pause);
        }
    }

    /// Returns whether something fails.
    fn run_once(&mut self) -> bool {
        // A mistake in the file must not stop the care.
        let served = Node::load_to_serve(&self.config, &self.name, Path::new(LAST_GOOD));
        let Ok(node) = served.map(|served| served.node) else {
            return false;
        };
        let now = SystemClock.now();
        let fails = self.places.care(&node, &SlurmProcess, now, &self.log);
        let failing = *fails.as_ref().unwrap_or(&true);
        self.reports.report(&self.log, topic::PLACES, fails);
        let waiting = self.jobs.care(
            &node,
            &SlurmProcess,
            failing,
            SystemClock.unix_now(),
            &self.log,
        );
        let wait = *waiting.as_ref().unwrap_or(&true);
        self.reports.report(&self.log, topic::PUT_BACK, waiting);
        let swept = cdi::remove_stale(&node);
        self.reports.report(&self.log, topic::CDI, swept);
        failing || wait
    }
}

/// Waits for a new file, `pause` at most. Files that come at the same time are one event.
fn wait(inotify: &Inotify, pause: Duration) {
    let timeout = PollTimeout::try_from(pause).unwrap_or(PollTimeout::MAX);
    let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
    // After an error the next look is early.
    let _ = poll(&mut fds, timeout);
    while inotify.read_events().is_ok_and(|events| !events.is_empty()) {}
}
