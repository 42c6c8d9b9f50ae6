//! munged, slurmctld and slurmd: how they are started and stopped.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::clients::search_path;
use crate::folder::write;
use crate::process::Process;
use crate::{Folder, LabError, slurm};

/// A daemon that this program started.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub process: Process,
    child: Child,
}

impl Daemon {
    /// Ends it, first politely, and takes its exit status from the kernel.
    pub fn stop(&mut self, signal: Signal) {
        stop(&self.process, signal);
        // It is gone or can not be made to go; either way there is nothing left to do here.
        let _ = self.child.try_wait();
    }
}

/// Ends a process: `signal`, and SIGKILL after five seconds.
pub(crate) fn stop(process: &Process, signal: Signal) {
    process.signal(signal);
    if !process.wait_gone(Duration::from_secs(5)) {
        process.signal(Signal::SIGKILL);
        process.wait_gone(Duration::from_secs(2));
    }
}

/// Variables that the daemons get beside those of every lab.
pub(crate) type Environment = Vec<(String, String)>;

pub(crate) fn start(
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
        .map_err(LabError::file("cannot open", &path))?;
    let errors = log
        .try_clone()
        .map_err(LabError::file("cannot open", &path))?;
    let failed = |reason| LabError::Start {
        program: program.into(),
        reason,
    };
    // The lab's own programs are found by the path of the command, not by that of this process.
    let own = folder.bin().join(program);
    let path = if own.exists() { own } else { program.into() };
    let child = slurm::command(folder, path.as_os_str(), &folder.log(), None)
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
        // Away from the terminal's group: an interrupt must not end the daemons in any order.
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let pid = i32::try_from(child.id()).unwrap_or(i32::MAX);
    match Process::observe(name, pid) {
        Some(process) => Ok(Daemon { process, child }),
        None => Err(LabError::Deadline {
            what: format!("`{program}` ended at once"),
            limit: Duration::ZERO,
            logs: folder.log_tails(15),
        }),
    }
}

/// Starts munged with a key of its own and waits for its socket.
pub(crate) fn munged(folder: &Folder) -> Result<Daemon, LabError> {
    let place = folder.munge();
    let key = place.join("key");
    if !key.exists() {
        let mut bytes = [0_u8; 128];
        read_random(&mut bytes)?;
        write(&key, "", 0o400)?;
        fs::write(&key, bytes).map_err(LabError::file("cannot write", &key))?;
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
    for _ in 0..500 {
        if socket.exists() {
            return Ok(daemon);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(LabError::Deadline {
        what: format!("munged made no socket {}", socket.display()),
        limit: Duration::from_secs(5),
        logs: folder.log_tails(15),
    })
}

fn read_random(bytes: &mut [u8]) -> Result<(), LabError> {
    use std::io::Read;
    let path = Path::new("/dev/urandom");
    fs::File::open(path)
        .and_then(|mut file| file.read_exact(bytes))
        .map_err(LabError::file("cannot read", path))
}

/// Starts slurmctld; it recovers the state that an earlier one left.
pub(crate) fn slurmctld(folder: &Folder, environment: &Environment) -> Result<Daemon, LabError> {
    start(folder, environment, "slurmctld", "slurmctld", &["-D"])
}

/// Starts the slurmd of `node`.
pub(crate) fn slurmd(
    folder: &Folder,
    environment: &Environment,
    node: &str,
) -> Result<Daemon, LabError> {
    let name = format!("slurmd.{node}");
    start(folder, environment, &name, "slurmd", &["-D", "-N", node])
}

/// The name of a node's reaper, also of its log.
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
