//! The configuration in slurmctld. A thread of the plugin reads it at start and after a reconfigure, and replaces it
//! whole; job_submit reads it without waiting.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use gpufrac_core::config::{self, Config, ConfigErrors};
use gpufrac_core::nodes_gres::NodesGres;
use slurm_sys::{host, log};

/// The interval at which the thread compares the time of slurmctld's last read of slurm.conf.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

/// The reasons why there is no configuration.
pub type NoConfig = host::ConfigurationError<ConfigErrors>;

/// The files by which decisions are made.
pub struct SiteFiles {
    /// gpufrac.toml.
    pub config: Config,
    /// The GRES of nodes in slurm.conf; None if they are not all known.
    pub nodes: Option<NodesGres>,
}

/// The current files, or the reason why there are none.
pub type Settings = Result<SiteFiles, Arc<NoConfig>>;

static CURRENT: LazyLock<ArcSwapOption<Settings>> = LazyLock::new(ArcSwapOption::empty);
static WATCHER: Mutex<Option<JoinHandle<()>>> = Mutex::new(None);
/// The path belongs to slurmctld, and only at the start no other thread writes to it.
static SLURM_CONF: OnceLock<Option<PathBuf>> = OnceLock::new();
static STOP: AtomicBool = AtomicBool::new(false);

/// The settings in force; `None` before [`start`].
pub fn current() -> Option<Arc<Settings>> {
    CURRENT.load_full()
}

/// Reads the configuration, and starts the thread that reads it again after a reconfigure. Returns whether the file
/// is valid.
///
/// An invalid file does not keep slurmctld from starting: jobs that ask for a fraction are refused with the file's
/// error, all others are accepted.
pub fn start() -> bool {
    // SAFETY: slurmctld loads its plugins before it reads slurm.conf again.
    SLURM_CONF.get_or_init(|| unsafe { host::slurm_conf_path() });
    let settings = read();
    let good = settings.is_ok();
    if let Err(error) = &settings {
        log::error(&format!("gpufrac: {error}"));
    }
    CURRENT.store(Some(Arc::new(settings)));
    STOP.store(false, Ordering::Release);
    let mut watcher = WATCHER.lock().unwrap_or_else(PoisonError::into_inner);
    if watcher.is_none() {
        // The thread could not be started. Cure: Restart slurmctld after each change of gpufrac.toml; look for limits
        // of threads (`TasksMax`).
        match thread::Builder::new()
            .name("gpufrac-conf".into())
            .spawn(watch)
        {
            Ok(handle) => *watcher = Some(handle),
            Err(error) => log::error(&format!(
                "gpufrac: no thread to watch for `scontrol reconfigure` ({error}): \
                 restart slurmctld after a change of gpufrac.toml"
            )),
        }
    }
    good
}

/// Ends the thread. Slurm then unmaps the plugin, so no code of it may still run.
pub fn stop() {
    STOP.store(true, Ordering::Release);
    let watcher = WATCHER
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(watcher) = watcher {
        watcher.thread().unpark();
        // A panic of the thread needs no further action, because the thread has ended.
        let _ = watcher.join();
    }
}

fn watch() {
    let mut seen = host::slurm_conf_read_at();
    while !STOP.load(Ordering::Acquire) {
        thread::park_timeout(WATCH_INTERVAL);
        let now = host::slurm_conf_read_at();
        if now == seen {
            continue;
        }
        seen = now;
        // The new file has a mistake. Cure: Correct the file and run `scontrol reconfigure` again.
        match read() {
            Ok(known) => {
                CURRENT.store(Some(Arc::new(Ok(known))));
                // The pools of the new file are in force. Cure: Nothing.
                log::info("gpufrac: configuration read again");
            }
            // The old configuration stays in force: a typing mistake must not stop a running cluster.
            Err(error) if in_force() => log::error(&format!(
                "gpufrac: reconfigure keeps the old pools: {error}"
            )),
            Err(error) => {
                log::error(&format!("gpufrac: {error}"));
                CURRENT.store(Some(Arc::new(Err(error))));
            }
        }
    }
}

/// Whether a valid configuration is in force.
fn in_force() -> bool {
    current().is_some_and(|settings| settings.is_ok())
}

fn read() -> Settings {
    let config = host::read_configuration(config::PATH_ENV, config::PATH, Config::parse)?;
    let nodes = nodes(&config);
    Ok(SiteFiles { config, nodes })
}

fn nodes(config: &Config) -> Option<NodesGres> {
    let slurm_conf = SLURM_CONF.get()?.as_ref()?;
    let text = std::fs::read_to_string(slurm_conf).ok()?;
    NodesGres::of_slurm_conf(&text, &config.count_name, &|name| {
        std::fs::read_to_string(slurm_conf.parent()?.join(name)).ok()
    })
}
