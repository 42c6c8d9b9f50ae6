//! What the steps share: a control daemon, its clients, and what a client has.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::{GroupId, UserId};
use gpufrac_host::files::RootDir;
use gpufrac_node::mps::daemon::{ControlDaemon, Health, Limits, Start};
use gpufrac_node::mps::error::MpsError;
use gpufrac_node::mps::visit::Silences;

use super::{Got, Outcome, Part, Plan, State};
use crate::client::{Client, Setting};
use crate::order::Failure;

/// The second user: `nobody`, who exists everywhere and owns no files.
pub const SECOND: (UserId, GroupId) = (UserId(65534), GroupId(65534));
/// The shortest time for an answer, near the limit of all steps.
const LEAST: Duration = Duration::from_secs(1);

/// The steps with one kind of servers.
pub struct Stage<'a> {
    pub plan: &'a Plan<'a>,
    /// Whether one server serves all users.
    pub one_server: bool,
    /// The device's memory in MiB, or the reason why it is not known.
    pub total_mib: Result<u64, String>,
    /// The end of all steps.
    pub deadline: Instant,
}

/// The percentage of a client's limits; None for a client without limits of its own.
pub type Percent = Option<u32>;

impl Stage<'_> {
    /// Does a step, unless there is a reason not to.
    pub fn step<T>(&self, work: impl FnOnce(&Self) -> Result<T, String>) -> Outcome<T> {
        let reason = match &self.total_mib {
            _ if (self.plan.stop)() => Some("the run was stopped".to_owned()),
            _ if Instant::now() >= self.deadline => {
                Some("the time of all measurements was over".to_owned())
            }
            Err(reason) => Some(reason.clone()),
            Ok(_) => None,
        };
        match reason {
            Some(reason) => Outcome::NotMeasured(reason),
            None => work(self).map_or_else(Outcome::NotMeasured, Outcome::Measured),
        }
    }

    /// The user that servers may run as, besides root.
    fn server_user(&self) -> UserId {
        if self.one_server { UserId::ROOT } else { SECOND.0 }
    }

    /// The memory of a share in MiB.
    pub fn share_mib(&self, percent: u32) -> u64 {
        let total = self.total_mib.as_ref().copied().unwrap_or_default();
        total * u64::from(percent) / 100
    }

    /// Starts a client; `limit` is the most that an answer may take.
    pub fn start(&self, setting: &Setting, limit: Duration) -> Result<Client, String> {
        let mut client = Client::start(self.plan.program, setting)
            .map_err(|failure| format!("a client did not start: {failure}"))?;
        let left = self.deadline.saturating_duration_since(Instant::now());
        client.limit = limit.min(left.max(LEAST));
        Ok(client)
    }

    /// Starts a client with the variables of a job.
    pub fn client(&self, percent: Percent) -> Result<Client, String> {
        self.start(&self.setting(percent), self.plan.pace.answer)
    }

    /// The variables of a job.
    pub fn setting(&self, percent: Percent) -> Setting {
        let of_mps = |name: &str| self.plan.folder.join(name).display().to_string();
        let setting = Setting::on(self.plan.device)
            .with("CUDA_MPS_PIPE_DIRECTORY", of_mps("pipe"))
            .with("CUDA_MPS_LOG_DIRECTORY", of_mps("log"));
        let Some(percent) = percent else {
            return setting;
        };
        let mib = self.share_mib(percent);
        setting
            .with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", format!("0={mib}M"))
            .with("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", percent.to_string())
    }
}

/// What a new client has; it computes alone for `compute`, unless that is zero.
pub fn part_of(client: &mut Client, compute: Duration) -> Got {
    let begun = client.begin()?;
    Ok(Part {
        multiprocessors: begun.multiprocessors,
        affinity: begun.affinity,
        blocks_on: client.blocks()?,
        memory_mib: begun.memory_mib,
        free_mib: begun.free_mib,
        largest: client.largest()?,
        computed: if compute.is_zero() { None } else { Some(client.compute(compute)?) },
    })
}

/// Forgets what a successful start says.
pub fn begins(client: &mut Client) -> Result<(), Failure> {
    client.begin().map(drop)
}

/// The control daemon of a folder, without a memory of earlier silences: the steps provoke them.
fn control(program: &Path, folder: &Path, user: UserId) -> ControlDaemon {
    ControlDaemon::new(program, folder, user, &Arc::new(Silences::default()))
}

/// A control daemon; it ends with its servers when dropped.
pub struct Daemon<'a> {
    stage: &'a Stage<'a>,
}

impl<'a> Daemon<'a> {
    /// Starts it with limits of so many percent, and lets the second user connect.
    pub fn start(stage: &'a Stage<'a>, percent: u32) -> Result<Daemon<'a>, String> {
        let daemon = Daemon { stage };
        let told = |error: MpsError| error.to_string();
        let start = Start {
            device: stage.plan.device,
            multi_user: stage.one_server,
            partitions: false,
            group: (!stage.one_server).then_some(SECOND.1),
        };
        let (program, folder, user) = (stage.plan.control, stage.plan.folder, stage.server_user());
        // The start of a daemon for one user changes the audit session of its thread, and this one has clients to
        // start.
        let started = std::thread::scope(|scope| {
            let thread = scope.spawn(|| control(program, folder, user).start(start));
            thread.join()
        });
        let started = started.map_err(|_| "starting the control daemon failed: a panic")?;
        started.map_err(told)?;
        let control = daemon.control();
        let limits = Limits {
            thread_percentage: percent,
            memory: MemoryMib(stage.share_mib(percent)),
        };
        // An answer in unknown words is no reason to stop: the clients show what was set.
        control.limit(limits).map_err(told)?;
        control.admit(&[SECOND.0]).map_err(told)?;
        Ok(daemon)
    }

    fn control(&self) -> ControlDaemon {
        let plan = self.stage.plan;
        control(plan.control, plan.folder, self.stage.server_user())
    }

    /// Sends commands; returns whether they were answered in time.
    pub fn takes(&self, commands: &str) -> bool {
        self.control().ask(commands).is_ok()
    }

    /// The pids of the servers; none if it does not answer.
    pub fn servers(&self) -> Vec<i32> {
        let servers = self.control().servers().unwrap_or_default();
        servers.into_iter().map(|server| server.pid).collect()
    }

    /// Whether a server has this client.
    pub fn serves(&self, client: &Client) -> bool {
        let control = self.control();
        let has = |server| control.clients(server).unwrap_or_default();
        let mut clients = self.servers().into_iter().flat_map(has);
        clients.any(|pid| i64::from(pid) == i64::from(client.pid()))
    }

    /// The daemon's own pid, from root's file.
    pub fn pid(&self) -> Option<i32> {
        let folder = RootDir::open(self.stage.plan.folder).ok()?;
        folder.read("pid").ok()??.trim().parse().ok()
    }

    pub fn state(&self) -> State {
        let control = self.control();
        match control.health() {
            Ok(Health::Good(servers)) => State::Answers(
                servers
                    .into_iter()
                    .map(|server| {
                        let clients = control.clients(server.pid).unwrap_or_default();
                        (server.status, clients.len())
                    })
                    .collect(),
            ),
            Ok(Health::Absent) => State::Ended {
                servers: control.has_servers(),
            },
            Ok(Health::Hung(_)) | Err(_) => State::Silent,
        }
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        // What remains is found by the next start in the folder, and by the programs that look for processes of MPS.
        let _ = self.control().end();
    }
}
