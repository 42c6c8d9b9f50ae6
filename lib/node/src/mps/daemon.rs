//! The MPS control daemon (`nvidia-cuda-mps-control`): start, limits, queries, end.
//!
//! A daemon serves one folder, `<run>/mps/<name>`, with its pipes and logs. All of this needs the lock of the GPU.
//! Commands and answers follow nvidia-cuda-mps-control(1), NVIDIA's MPS guide, and the observed behaviour of versions
//! 535 to 555.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::{GroupId, UserId};

use crate::mps::answer;
use crate::mps::error::MpsError;
use crate::mps::process::{self, AuditSession, Family, MpsProcess, Role};
use crate::mps::visit::{ANSWER_LIMIT, Silences, Visit};
use gpufrac_host::files::RootDir;
use gpufrac_host::subprocess::{self, Outcome, run};

/// How long killed processes may take to end.
const KILL_LIMIT: Duration = Duration::from_secs(4);
/// The space of all logs in bytes: any client can make the daemon write any number of lines.
const LOG_SPACE: u64 = 8 << 20;
/// A longer log is emptied when a job starts, in bytes.
const LOG_BYTES: u64 = 2 << 20;
/// The file in the daemon's folder with its pid.
const PID: &str = "pid";
/// The file in the folder of a private daemon with its audit session; empty if the kernel has no audit.
const SESSION: &str = "session";
/// The environment of a daemon only has this variable and the next.
const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const LOGS: &str = "CUDA_MPS_LOG_DIRECTORY";
/// The folder of logs in the daemon's folder.
const LOG: &str = "log";

/// The options of a daemon's start.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The UUID of its device, a GPU or a MIG device.
    pub device: &'a str,
    /// Whether one server serves all users.
    pub multi_user: bool,
    /// Whether static partitions of multiprocessors are used.
    pub partitions: bool,
    /// The group of servers that run as a user; None for root's group.
    pub group: Option<GroupId>,
}

/// The upper limits of clients, which may choose lower ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Percent of the multiprocessors.
    pub thread_percentage: u32,
    /// Memory of the device, in MiB.
    pub memory: MemoryMib,
}

/// A server of a daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    pub pid: i32,
    /// The status: `ACTIVE`, `INITIALIZING`, `FAULT`.
    pub status: String,
}

impl Server {
    /// Whether a fault of a client made it unusable for all clients.
    pub fn is_faulty(&self) -> bool {
        self.status.contains("FAULT")
    }
}

/// The state of a daemon.
#[derive(Debug)]
pub enum Health {
    /// There is no daemon.
    Absent,
    /// The daemon answers; with its servers.
    Good(Vec<Server>),
    /// The daemon runs, but does not answer.
    Hung(MpsError),
}

/// The daemon of one folder, running or not, during one visit.
#[derive(Debug)]
pub struct ControlDaemon {
    program: PathBuf,
    folder: PathBuf,
    server_user: UserId,
    visit: Visit,
}

impl ControlDaemon {
    /// With its program and folder. `server_user`: the user that its servers may run as, besides root: the job's
    /// user for a private daemon. `silences`: daemons that are not asked.
    pub fn new(
        program: &Path,
        folder: &Path,
        server_user: UserId,
        silences: &Arc<Silences>,
    ) -> ControlDaemon {
        ControlDaemon {
            program: program.to_owned(),
            folder: folder.to_owned(),
            server_user,
            visit: Visit::to(folder, silences),
        }
    }

    fn processes(&self) -> Vec<MpsProcess> {
        let pipe = self.pipe();
        self.family(&pipe).members()
    }

    /// The pid of the control daemon, if it runs. Without a folder no client reaches one, and [`ControlDaemon::kill`]
    /// finds it nevertheless.
    fn control(&self) -> Option<i32> {
        if !self.folder.exists() {
            return None;
        }
        let pipe = self.pipe();
        self.family(&pipe).control()
    }

    fn family<'a>(&self, pipe: &'a Path) -> Family<'a> {
        let folder = RootDir::open(&self.folder).ok();
        let noted = |name| {
            let text = folder.as_ref()?.read(name).ok()??;
            Some(text.trim().to_owned())
        };
        Family {
            pipe,
            server_user: self.server_user,
            last: noted(PID).and_then(|pid| pid.parse().ok()),
            audit: noted(SESSION)
                .and_then(|number| number.parse().ok())
                .map(AuditSession),
        }
    }

    /// The pipe directory for clients.
    pub fn pipe(&self) -> PathBuf {
        self.folder.join("pipe")
    }

    fn log(&self) -> PathBuf {
        self.folder.join(LOG)
    }

    /// The state of the daemon.
    pub fn health(&self) -> Result<Health, MpsError> {
        if self.control().is_none() {
            return Ok(Health::Absent);
        }
        let was_silent = self.visit.is_over();
        let mut servers = self.servers();
        if let Err(MpsError::Silent { .. } | MpsError::Absent { .. }) = servers
            && !was_silent
        {
            // Any client can fill the pipe of the daemon's log; the daemon then waits for ever.
            self.drain_log();
            self.visit.resume();
            servers = self.servers();
        }
        match servers {
            Err(error @ (MpsError::Silent { .. } | MpsError::Absent { .. })) => {
                Ok(Health::Hung(error))
            }
            other => other.map(Health::Good),
        }
    }

    fn drain_log(&self) {
        if let Ok(Some(mut log)) = RootDir::open(&self.pipe()).and_then(|dir| dir.fifo("log")) {
            let mut buffer = [0; 1 << 16];
            // A full pipe holds one buffer. A client that goes on writing must not keep this program.
            for _ in 0..4 {
                if !matches!(log.read(&mut buffer), Ok(1..)) {
                    break;
                }
            }
        }
    }

    /// Whether a server process lives, with or without its daemon.
    pub fn has_servers(&self) -> bool {
        let found = self.processes();
        found.iter().any(|process| process.role != Role::Control)
    }

    /// Whether it did not answer in this visit, or in one shortly before.
    pub fn is_silent(&self) -> bool {
        self.visit.is_over()
    }

    /// Asks it again after the cause of its silence was removed.
    pub fn ask_again(&self) {
        self.visit.resume();
    }

    /// Starts it in a folder that no user can enter until its limits are set ([`ControlDaemon::admit`]).
    pub fn start(&self, start: Start<'_>) -> Result<(), MpsError> {
        let (folder, _) = RootDir::create(&self.folder, 0o711)?;
        let (pipe, _) = RootDir::create(&self.pipe(), 0o700)?;
        // No program uses the files of an earlier daemon, because it has ended.
        pipe.let_pass(&[])?;
        for name in pipe.names()? {
            pipe.remove_all(&name)?;
        }
        folder.confine(LOG, LOG_SPACE, 0o755)?;
        self.visit.restart();
        let mut options = vec!["-d"];
        if start.multi_user {
            options.insert(0, "-multiuser-server");
        }
        if start.partitions {
            options.insert(0, "-S");
        }
        let mut command = self.command();
        command.env("CUDA_VISIBLE_DEVICES", start.device);
        command.args(&options);
        if let Some(group) = start.group {
            // A server changes only its user. With root's group, a user who may trace the server would get that group.
            command.uid(UserId::ROOT.0).gid(group.0);
            // Before the start, so that its servers can be identified even if this program ends.
            let session = AuditSession::begin(self.server_user);
            let number = session.map_or(String::new(), |AuditSession(number)| number.to_string());
            folder.write(SESSION, &number, 0o644)?;
        }
        let outcome = run(&mut command, b"", ANSWER_LIMIT).map_err(|e| self.cannot_run(e))?;
        match outcome {
            Outcome::Ended(ended) if ended.status.success() => self.write_pid(),
            Outcome::Ended(ended) => Err(MpsError::Start {
                program: self.program.clone(),
                options: options.join(" "),
                reason: ended.text(),
            }),
            Outcome::Silent => Err(MpsError::Silent {
                folder: self.folder.clone(),
                command: "-d".into(),
            }),
        }
    }

    /// For people, and to identify the servers of a dead daemon. The daemon's own pid file is writable for users, so
    /// no program of gpufrac reads it.
    fn write_pid(&self) -> Result<(), MpsError> {
        let Some(control) = self.control() else {
            return Err(MpsError::Absent {
                folder: self.folder.clone(),
            });
        };
        let folder = RootDir::open(&self.folder)?;
        Ok(folder.write(PID, &format!("{control}\n"), 0o644)?)
    }

    /// Lets only these users connect.
    pub fn admit(&self, users: &[UserId]) -> Result<(), MpsError> {
        let pipe = RootDir::open(&self.pipe())?;
        // The daemon makes both files writable for all users, so every user could fill the memory of /run. Changed
        // here and not at the start, because the prolog that started it may have been killed right after.
        for name in ["control_lock", "nvidia-cuda-mps-control.pid"] {
            pipe.close(name)?;
        }
        Ok(pipe.let_pass(users)?)
    }

    /// Removes the access of all other users. A closed folder stays closed, because its daemon has no limits yet.
    pub fn keep(&self, users: &[UserId]) -> Result<(), MpsError> {
        match RootDir::find(&self.pipe())? {
            Some(pipe) if pipe.is_passable()? => Ok(pipe.let_pass(users)?),
            _ => Ok(()),
        }
    }

    /// Sets the limits of servers that start from now on, and of new clients of running servers; then reads them
    /// back. Returns a warning if the answer cannot be parsed.
    pub fn limit(&self, limits: Limits) -> Result<Option<String>, MpsError> {
        let Limits {
            thread_percentage: percentage,
            memory: MemoryMib(memory),
        } = limits;
        // One front end for all commands, because starting it is most of the cost. A server that starts later has the
        // new defaults.
        let said = self.ask(&format!(
            "set_default_active_thread_percentage {percentage}\nset_default_device_pinned_mem_limit 0 {memory}M\nget_server_list\nget_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0"
        ))?;
        let commands: String = answer::pids(&said)
            .map(|pid| {
                format!(
                    "set_active_thread_percentage {pid} {percentage}\nset_device_pinned_mem_limit {pid} 0 {memory}M\n"
                )
            })
            .collect();
        if !commands.is_empty() {
            self.ask(&commands)?;
        }
        let mut last = said.lines().rev().map(|line| line.trim().to_owned());
        let said_memory = last.next().unwrap_or_default();
        let said_percentage = last.next().unwrap_or_default();
        let differs = |what, wanted: String, found: &str| {
            Err(MpsError::Limit {
                folder: self.folder.clone(),
                what,
                wanted,
                found: found.to_owned(),
            })
        };
        let (Ok(percent), Some(mib)) =
            (said_percentage.parse::<f64>(), answer::memory(&said_memory))
        else {
            // Another version may answer in another form; the command was sent.
            return Ok(Some(format!(
                "the control daemon of `{}` says its limits in words that are not known: `{said_percentage}`, `{said_memory}`",
                self.folder.display()
            )));
        };
        if (percent - f64::from(percentage)).abs() >= 0.05 {
            let wanted = percentage.to_string();
            return differs("thread percentage", wanted, &said_percentage);
        }
        // The daemon prints whole GiB from 1 GiB on, rounded down.
        if mib > memory || memory - mib >= 1024 {
            return differs("memory limit", format!("{memory}M"), &said_memory);
        }
        Ok(None)
    }

    /// Empties long logs: a daemon that always has a job never ends.
    pub fn trim_logs(&self) -> Result<(), MpsError> {
        let Some(dir) = RootDir::find(&self.log())? else {
            return Ok(());
        };
        for name in ["control.log", "server.log"] {
            dir.trim(name, LOG_BYTES)?;
        }
        Ok(())
    }

    pub fn servers(&self) -> Result<Vec<Server>, MpsError> {
        let server = |pid| {
            let status = self.ask(&format!("get_server_status {pid}"))?;
            let status = status.trim().to_owned();
            Ok(Server { pid, status })
        };
        answer::pids(&self.ask("get_server_list")?)
            .map(server)
            .collect()
    }

    /// The clients of a server, by pid.
    pub fn clients(&self, server: i32) -> Result<Vec<i32>, MpsError> {
        let list = self.ask(&format!("get_client_list {server}"))?;
        Ok(answer::pids(&list).collect())
    }

    /// Ends a client in the only way that does not disturb the running work of others (MPS guide).
    pub fn terminate(&self, server: i32, client: i32) -> Result<(), MpsError> {
        self.ask(&format!("terminate_client {server} {client}"))?;
        Ok(())
    }

    /// Ends a server with its remaining clients.
    pub fn shut_down(&self, server: i32) -> Result<(), MpsError> {
        let told = self.ask(&format!("shutdown_server {server} -f"));
        let start = Instant::now();
        while told.is_ok() && process::is_alive(server) && start.elapsed() < KILL_LIMIT {
            sleep(Duration::from_millis(10));
        }
        process::signal(server, |pid| self.processes().iter().any(|p| p.pid == pid));
        told.map(drop)
    }

    /// Creates a static partition of `chunks` chunks; returns its name for clients, `UUID/ID`.
    pub fn add_partition(&self, device: &str, chunks: u32) -> Result<String, MpsError> {
        let answer = self.ask(&format!("sm_partition add {device} {chunks}"))?;
        let name = answer.split_whitespace().find(|word| word.contains('/'));
        name.map(str::to_owned).ok_or_else(|| MpsError::Partition {
            folder: self.folder.clone(),
            chunks,
            found: answer.trim().to_owned(),
        })
    }

    /// Removes a static partition.
    pub fn remove_partition(&self, name: &str) -> Result<(), MpsError> {
        self.ask(&format!("sm_partition rm {name}"))?;
        Ok(())
    }

    /// Ends the daemon and its servers, by its own command or by signals; then removes its folder. Returns the number
    /// of remaining processes of its user, as [`ControlDaemon::kill`].
    pub fn end(&self) -> Result<usize, MpsError> {
        if self.control().is_some() {
            // The remaining processes show whether it obeyed.
            let _ = self.ask("quit -t 1");
        }
        let left = self.kill()?;
        let (Some(parent), Some(name)) = (
            self.folder.parent(),
            self.folder.file_name().and_then(|name| name.to_str()),
        ) else {
            return Ok(left);
        };
        let Some(folder) = RootDir::find(&self.folder)? else {
            return Ok(left);
        };
        folder.remove_all("pipe")?;
        folder.unconfine(LOG)?;
        folder.remove_all(LOG)?;
        RootDir::open(parent)?.remove_all(name)?;
        Ok(left)
    }

    /// Kills the daemon and its servers; the folder stays. Returns the number of remaining processes that its user
    /// made of a server; they do not block any program of root.
    pub fn kill(&self) -> Result<usize, MpsError> {
        let pipe = self.pipe();
        let left = self.family(&pipe).kill(KILL_LIMIT);
        if left.of_root.is_empty() {
            return Ok(left.of_user);
        }
        Err(MpsError::Undead {
            folder: self.folder.clone(),
            stuck: left.of_root.iter().any(|pid| process::is_stuck(*pid)),
            pids: left.of_root,
        })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env_clear()
            .env("PATH", subprocess::PATH)
            .env(PIPE, self.pipe())
            .env(LOGS, self.log());
        command
    }

    /// Sends commands, one on each line; returns the output.
    pub fn ask(&self, commands: &str) -> Result<String, MpsError> {
        let mut text = commands.to_owned();
        if !text.ends_with('\n') {
            text.push('\n');
        }
        let silent = || MpsError::Silent {
            folder: self.folder.clone(),
            command: commands.lines().next().unwrap_or_default().to_owned(),
        };
        let limit = self.visit.patience().ok_or_else(silent)?;
        let outcome =
            run(&mut self.command(), text.as_bytes(), limit).map_err(|e| self.cannot_run(e))?;
        match outcome {
            Outcome::Ended(ended) if ended.status.success() => Ok(ended.text()),
            Outcome::Ended(_) => Err(MpsError::Absent {
                folder: self.folder.clone(),
            }),
            Outcome::Silent => {
                self.visit.end();
                Err(silent())
            }
        }
    }

    fn cannot_run(&self, source: std::io::Error) -> MpsError {
        MpsError::Run {
            program: self.program.clone(),
            source,
        }
    }
}
