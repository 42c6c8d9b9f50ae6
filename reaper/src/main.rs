//! `gpufrac-reaperd`: arguments, signals, the loop.

#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::Parser;
use gpufrac_core::config;
use gpufrac_host::exit::Exit;
use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_node::gpu::shared_session;
use gpufrac_node::job::environment;
use gpufrac_node::node::{Node, NodeError};
use gpufrac_node::slurm_call;
use gpufrac_node::state::locks::{DaemonLock, LockError, Locks};
use gpufrac_node::version;
use gpufrac_reaper::care;
use gpufrac_reaper::daemon::Daemon;
use gpufrac_reaper::outside::Outside;
use gpufrac_reaper::pages::{Pages, Settings};
use gpufrac_reaper::report::metrics::{Server, Snapshot};
use gpufrac_reaper::wait::{self, Waiter, Wake};
use nix::sys::signal::{SigSet, Signal};

/// Finds stalled jobs that hold slices of GPUs, warns their users, reclaims
#[derive(Debug, Parser)]
#[command(name = "gpufrac-reaperd", version = version::TEXT.as_str())]
struct Args {
    /// The configuration [default: $GPUFRAC_CONFIG, else /etc/gpufrac/gpufrac.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The node's name in Slurm [default: $SLURMD_NODENAME, else this host's short name]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

/// How long a child process of a killed daemon, started just before, may still hold the daemon's lock.
const LONGEST_LOCK_RELEASE: Duration = Duration::from_secs(2);

/// The time between two notes to systemd's watchdog while no rounds take place.
const PERIOD_OF_WATCHDOG: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    if let Some(served) = slurm_call::served() {
        return served;
    }
    // clap ends with 2 on a wrong command line, which is Exit::Usage.
    let args = Args::parse();
    let log = JobLog::reaper();
    match run(&args, &log) {
        Ok(()) => Exit::Done.into(),
        Err(error) => {
            log.error(error);
            Exit::Broken.into()
        }
    }
}

impl Args {
    fn path(&self) -> PathBuf {
        let default = || environment::config_path(|name| std::env::var_os(name));
        self.config.clone().unwrap_or_else(default)
    }

    fn load(&self) -> Result<Node, StartError> {
        let lookup = |name: &str| std::env::var_os(name);
        let path = self.path();
        let name = self
            .node
            .clone()
            .unwrap_or_else(|| environment::node_name(lookup));
        Ok(Node::load(&path, &name)?)
    }
}

/// The reasons why the daemon does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    /// gpufrac.toml is missing or has a mistake.
    /// Cure: Correct the file, or name it as the message says.
    #[error("{0}; name the file with `--config FILE` or `{name}`", name = config::PATH_ENV)]
    Config(#[from] NodeError),
    #[error(transparent)]
    File(#[from] FileError),
    /// Signals could not be set up, or the folder of leases does not exist.
    #[error(transparent)]
    Wait(#[from] std::io::Error),
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The unit runs already.
    /// Cure: `systemctl status gpufrac-reaperd`; end the one that you started by hand.
    #[error("another gpufrac-reaperd runs on node {node} (`{}` is locked); end that one first", path.display())]
    Locked { node: String, path: PathBuf },
}

fn run(args: &Args, log: &JobLog) -> Result<(), StartError> {
    // Before anything else: a SIGHUP must not end the daemon. Threads that start later inherit the mask.
    let signals = wait::block_signals()?;
    let node = args.load()?;
    let mut pages = Pages::follow(None, pages_of(args, &node));
    if !node.has_pools() && pages.is_some() {
        return only_pages(args, pages, signals, log);
    }
    if !node.has_pools() {
        // The unit may be enabled on every node of a cluster, so a node without pools is no error.

        // The node is in no pool. Cure: Nothing, or add the node to a pool.
        log.info(format!(
            "no pool has GPUs on node {}: nothing to do",
            node.name
        ));
        notify(&[sd_notify::NotifyState::Ready]);
        return Ok(());
    }
    let _alone = alone(&node)?;
    answer_questions(&node, log);
    let put_back = Arc::default();
    if let Err(error) = care::follow(&args.path(), &node, Arc::clone(&put_back)) {
        // The text before it says why nothing is sent away. Cure: Follow the text.
        log.error(format!(
            "{error}; jobs that the node gives back may start on it again"
        ));
    }
    let mut waiter = Waiter::new(signals, &node.run.join("leases"))?;
    let snapshot = Arc::new(Mutex::new(Snapshot::default()));
    let mut endpoint = Endpoint::open(&node, &snapshot, log);
    let name = node.name.clone();
    let run = node.run.clone();
    set_watchdog(node.config.reaper.interval);
    let outside = Outside::of(&node, put_back)?;
    let mut daemon = Daemon::start(node, outside, Arc::clone(&snapshot))?;
    // The daemon has started. Cure: Nothing.
    log.info(format!("watching the slices of node {name}"));
    notify(&[sd_notify::NotifyState::Ready]);
    loop {
        let rhythm = daemon.rhythm();
        let changed = waiter.begin(rhythm);
        daemon.round(changed, |scope| waiter.observe(scope));
        notify(&[sd_notify::NotifyState::Watchdog]);
        match waiter.rest() {
            Wake::Due => {}
            Wake::End => break,
            Wake::Reload => {
                if let Some(node) = reload(args, Some(&run), log) {
                    endpoint = endpoint.follow(&node, &snapshot, log);
                    pages = Pages::follow(pages, pages_of(args, &node));
                    set_watchdog(node.config.reaper.interval);
                    daemon.reload(node);
                    // The daemon has the new configuration. Cure: Nothing.
                    log.info("the daemon read its configuration again");
                }
                notify(&[sd_notify::NotifyState::Ready]);
            }
        }
    }
    notify(&[sd_notify::NotifyState::Stopping]);
    daemon.stop();
    drop(endpoint);
    drop(pages);
    log.info("ends");
    Ok(())
}

/// The settings for the pages of the cluster; None without `[web]`.
fn pages_of(args: &Args, node: &Node) -> Option<Settings> {
    let web = node.config.web.clone()?;
    Some(Settings {
        web,
        config: args.path(),
        node: node.name.clone(),
    })
}

/// On a host without GPUs the daemon only writes the pages of the cluster.
fn only_pages(
    args: &Args,
    mut pages: Option<Pages>,
    signals: SigSet,
    log: &JobLog,
) -> Result<(), StartError> {
    // The host is that of `[web]`, and in no pool. Cure: Nothing.
    log.info("no pool has GPUs on this host: the daemon only writes the pages of the cluster");
    notify(&[sd_notify::NotifyState::Ready]);
    while wait::signal(&signals, PERIOD_OF_WATCHDOG, || {
        notify(&[sd_notify::NotifyState::Watchdog]);
    })? == Signal::SIGHUP
    {
        if let Some(node) = reload(args, None, log) {
            pages = Pages::follow(pages, pages_of(args, &node));
        }
        notify(&[sd_notify::NotifyState::Ready]);
    }
    notify(&[sd_notify::NotifyState::Stopping]);
    drop(pages);
    Ok(())
}

/// Takes questions of prologs about kept instances, until this process ends. The daemon also works without it, and so
/// do they.
fn answer_questions(node: &Node, log: &JobLog) {
    // The folder `session` in `/run/gpufrac` cannot be made, or others than root can enter it. Cure: Remove the folder,
    // then restart the daemon. Jobs are not affected; those that take an instance over start a few tenths of a second
    // later.
    match shared_session::Server::bind(&node.run, &node.nvml, node.caps()) {
        Ok(mut server) => {
            std::thread::spawn(move || server.serve());
        }
        Err(error) => log.error(format!(
            "taking questions of prologs failed: {error}; each prolog starts NVML itself"
        )),
    }
}

/// Ensures that only one daemon runs for a node.
#[expect(clippy::disallowed_methods, reason = "waits for a real process")]
fn alone(node: &Node) -> Result<DaemonLock, StartError> {
    let locks = Locks::create(&node.run)?;
    let began = Instant::now();
    loop {
        if let Some(lock) = locks.daemon()? {
            return Ok(lock);
        }
        if began.elapsed() >= LONGEST_LOCK_RELEASE {
            return Err(StartError::Locked {
                node: node.name.clone(),
                path: locks.daemon_path(),
            });
        }
        std::thread::sleep(LONGEST_LOCK_RELEASE / 20);
    }
}

/// The current configuration; None if it cannot be used. `run`: the folder in which the daemon works.
fn reload(args: &Args, run: Option<&Path>, log: &JobLog) -> Option<Node> {
    notify(&[sd_notify::NotifyState::Reloading]);
    let why = match args.load() {
        Ok(node) if run.is_none_or(|run| node.run == run) => return Some(node),
        Ok(_) => "`[paths] run` is another, which needs a restart".to_owned(),
        Err(error) => error.to_string(),
    };
    // gpufrac.toml has a mistake. Cure: Correct the file, then `systemctl reload gpufrac-reaperd`.
    log.error(format!(
        "reading the configuration failed, the daemon keeps the old one: {why}"
    ));
    None
}

/// The endpoint for Prometheus; the daemon also works without it.
struct Endpoint {
    /// The address in the configuration.
    address: Option<SocketAddr>,
    server: Option<Server>,
}

impl Endpoint {
    fn open(node: &Node, snapshot: &Arc<Mutex<Snapshot>>, log: &JobLog) -> Endpoint {
        let address = node.config.reaper.metrics;
        let start = |address| match Server::start(address, node.name.clone(), Arc::clone(snapshot))
        {
            Ok(server) => {
                // Prometheus can read the metrics there. Cure: Nothing.
                log.info(format!("metrics at http://{}/metrics", server.address()));
                Some(server)
            }
            Err(error) => {
                // The address is in use or not of this node. Cure: Change `metrics` in `[reaper]`; then reload.
                log.error(format!("serving metrics at {address} failed: {error}"));
                None
            }
        };
        Endpoint {
            address,
            server: address.and_then(start),
        }
    }

    /// Moves to the address of a new configuration.
    fn follow(self, node: &Node, snapshot: &Arc<Mutex<Snapshot>>, log: &JobLog) -> Endpoint {
        if node.config.reaper.metrics == self.address && self.server.is_some() {
            return self;
        }
        // The old endpoint may use the same port.
        drop(self);
        Endpoint::open(node, snapshot, log)
    }
}

/// Sets the watchdog: the time of the unit for the work of a round, plus the longest wait of the configuration. From
/// the end of one round to the end of the next, measurement and rest take nearly two intervals.
fn set_watchdog(interval: Duration) {
    if let Some(unit) = sd_notify::watchdog_enabled() {
        let limit = (unit + 2 * interval).as_micros();
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        notify(&[sd_notify::NotifyState::WatchdogUsec(limit)]);
    }
}

fn notify(states: &[sd_notify::NotifyState<'_>]) {
    // Without systemd no process reads the notification.
    let _ = sd_notify::notify(states);
}
