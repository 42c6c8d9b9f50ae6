//! Starts and stops munged, slurmctld and slurmd.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clients::search_path;
use crate::folder::write;
use crate::patience::poll;
use crate::process::{Process, spawn};
use crate::{Folder, LabError, User, slurm};

/// A daemon that this program started.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub process: Process,
    child: Child,
}

impl Daemon {
    /// Ends the daemon, first with `signal`, and reads its exit status.
    pub fn stop(&mut self, signal: Signal) {
        stop(&self.process, signal);
        // It has ended or cannot be ended; nothing remains to be done here.
        let _ = self.child.try_wait();
    }
}

/// Ends a process by `signal`, and by SIGKILL after five seconds.
pub(crate) fn stop(process: &Process, signal: Signal) {
    process.signal(signal);
    if !process.wait_gone(Duration::from_secs(5)) {
        process.signal(Signal::SIGKILL);
        process.wait_gone(Duration::from_secs(2));
    }
}

/// Further environment variables of the daemons.
pub(crate) type Environment = Vec<(String, String)>;

/// Differences from a Slurm that runs as root with the lab's files.
#[derive(Debug, Default)]
pub(crate) struct Way {
    /// The user of slurmctld.
    pub slurm_user: Option<User>,
    /// The slurmctld, as `HOST:PORT`, from which nodes get their files; they then have none of their own.
    pub conf_server: Option<String>,
}

pub(crate) fn start(
    folder: &Folder,
    environment: &Environment,
    name: &str,
    program: &str,
    args: &[&str],
) -> Result<Daemon, LabError> {
    start_as(None, folder, environment, name, program, args)
}

fn start_as(
    user: Option<&User>,
    folder: &Folder,
    environment: &Environment,
    name: &str,
    program: &str,
    args: &[&str],
) -> Result<Daemon, LabError> {
    let path = folder.log().join(format!("{name}.out"));
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(LabError::file("opening", &path))?;
    let errors = log.try_clone().map_err(LabError::file("opening", &path))?;
    let failed = |reason| LabError::Start {
        program: program.into(),
        reason,
    };
    // The lab's own programs are found by the command's PATH, not by this process's.
    let own = folder.bin().join(program);
    let path = if own.exists() { own } else { program.into() };
    let user = user.map(|user| (user.uid, user.gid));
    let mut command = slurm::command(folder, path.as_os_str(), &folder.log(), user);
    command
        .args(args)
        .env_clear()
        .env("PATH", search_path(folder))
        .env("SLURM_CONF", folder.slurm_conf())
        .env("GPUFRAC_CONFIG", folder.gpufrac_conf())
        .env("LC_ALL", "C.UTF-8")
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        // In its own process group: an interrupt from the terminal must not end the daemons in any order.
        .process_group(0);
    let child = spawn(&mut command).map_err(failed)?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    match Process::observe(name, pid) {
        Some(process) => Ok(Daemon { process, child }),
        None => Err(LabError::Ended {
            daemon: name.into(),
            logs: folder.log_tails(15),
        }),
    }
}

/// Starts munged with its own key and waits for its socket.
pub(crate) fn munged(folder: &Folder) -> Result<Daemon, LabError> {
    let place = folder.munge();
    let key = place.join("key");
    if !key.exists() {
        let mut bytes = [0_u8; 128];
        read_random(&mut bytes)?;
        write(&key, "", 0o400)?;
        fs::write(&key, bytes).map_err(LabError::file("writing", &key))?;
    }
    let option = |name: &str, file: &str| format!("--{name}={}", place.join(file).display());
    let socket = place.join("socket");
    let daemon = start(
        folder,
        &Environment::new(),
        "munged",
        "munged",
        &[
            "--foreground",
            &option("key-file", "key"),
            &option("socket", "socket"),
            &option("pid-file", "pid"),
            &option("log-file", "log"),
            &option("seed-file", "seed"),
        ],
    )?;
    wait_until_ready(folder, &daemon, Duration::from_secs(5), || socket.exists())?;
    Ok(daemon)
}

/// Waits until a daemon is ready, or ended.
pub(crate) fn wait_until_ready(
    folder: &Folder,
    daemon: &Daemon,
    limit: Duration,
    ready: impl Fn() -> bool,
) -> Result<(), LabError> {
    let name = &daemon.process.name;
    let ended = || LabError::Ended {
        daemon: name.clone(),
        logs: folder.log_tails(15),
    };
    let what = format!("the start of {name}");
    let step = Duration::from_millis(10);
    let found = poll(&what, limit, step, || match ready() {
        true => Ok(Some(())),
        false if daemon.process.is_alive() => Ok(None),
        false => Err(ended()),
    })?;
    found.ok_or_else(|| folder.deadline(&what, limit))
}

fn read_random(bytes: &mut [u8]) -> Result<(), LabError> {
    use std::io::Read;
    let path = Path::new("/dev/urandom");
    fs::File::open(path)
        .and_then(|mut file| file.read_exact(bytes))
        .map_err(LabError::file("reading", path))
}

/// Starts slurmctld, which recovers the state of an earlier one.
pub(crate) fn slurmctld(
    folder: &Folder,
    environment: &Environment,
    way: &Way,
) -> Result<Daemon, LabError> {
    let user = way.slurm_user.as_ref();
    start_as(user, folder, environment, "slurmctld", "slurmctld", &["-D"])
}

/// Starts a slurmd without any file of Slurm. `/run` is the node's own, because slurmd and commands use files at
/// fixed paths there; munge's socket is at its default path, too.
const CONFIGLESS: &str = "\
mount -t tmpfs -o mode=0755 tmpfs /run && mkdir /run/munge &&
ln -s \"$1/munge/socket\" /run/munge/munge.socket.2 &&
cp \"$1/etc/gpufrac.toml\" /run/kept && mount -t tmpfs -o mode=0755 tmpfs \"$1/etc\" &&
mv /run/kept \"$1/etc/gpufrac.toml\" || exit 1
unset SLURM_CONF
exec slurmd -D -N \"$2\" --conf-server \"$3\"";

/// Starts the slurmd of `node`.
pub(crate) fn slurmd(
    folder: &Folder,
    environment: &Environment,
    way: &Way,
    node: &str,
) -> Result<Daemon, LabError> {
    let name = format!("slurmd.{node}");
    if let Some(server) = &way.conf_server {
        let root = folder.root().display().to_string();
        let own = ["--mount", "--propagation", "private", "sh", "-c"];
        let args = [&own[..], &[CONFIGLESS, "sh", &root, node, server]].concat();
        return start(folder, environment, &name, "unshare", &args);
    }
    start(folder, environment, &name, "slurmd", &["-D", "-N", node])
}

/// The name of a node's reaper, and of its log.
pub(crate) fn reaper_name(node: &str) -> String {
    format!("reaperd.{node}")
}

/// Starts the reaper of `node`.
pub(crate) fn reaper(
    folder: &Folder,
    environment: &Environment,
    node: &str,
) -> Result<Daemon, LabError> {
    let name = reaper_name(node);
    start(
        folder,
        environment,
        &name,
        "gpufrac-reaperd",
        &["--node", node],
    )
}
