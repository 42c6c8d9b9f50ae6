//! Shared resources of jobs on one device under MPS: the daemon, its limits, its access list.

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::UserId;
use gpufrac_core::lease::{Instance, Lease, LeaseState, MpsSlice};

use crate::fault::{Caused, Facts};
use crate::gpu::locked::LockedGpu;
use crate::mps::daemon::{ControlDaemon, Health, Limits, Server, Start};
use crate::mps::error::MpsError;
use crate::mps::process;
use crate::node::Node;
use crate::state::leases::StoreError;
use gpufrac_host::log::JobLog;

/// The reasons why a job could not be added to a daemon or removed from it.
#[derive(Debug, thiserror::Error)]
pub enum ShareError {
    #[error(transparent)]
    Mps(#[from] MpsError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl ShareError {
    /// Whether processes of root do not end because they wait for a driver; the GPU then has a fault.
    pub fn is_undead(&self) -> bool {
        matches!(self, ShareError::Mps(MpsError::Undead { stuck: true, .. }))
    }
}

impl Caused for ShareError {
    fn facts(&self) -> Facts {
        match self {
            ShareError::Mps(error) => error.facts(),
            ShareError::Store(error) => error.facts(),
        }
    }
}

/// A lease with its daemon, and the other leases that use it.
pub struct Tenants<'a> {
    lease: &'a Lease,
    mps: &'a MpsSlice,
    daemon: ControlDaemon,
    others: Vec<Lease>,
    log: &'a JobLog,
}

impl<'a> Tenants<'a> {
    /// None for a lease without MPS.
    pub fn of(locked: &LockedGpu<'a>, lease: &'a Lease) -> Result<Option<Tenants<'a>>, StoreError> {
        let Some(mps) = lease.slice.mps() else {
            return Ok(None);
        };
        let mut others = locked.store.list()?;
        others.retain(|other| {
            let folder = other.slice.mps().map(|mps| &mps.folder);
            !other.is_same(lease) && folder == Some(&mps.folder)
        });
        Ok(Some(Tenants {
            lease,
            mps,
            daemon: daemon_of(locked.node, lease.user_id, mps),
            others,
            log: locked.log,
        }))
    }

    /// Adds the job: the daemon runs, has its limits, and the job's user may connect. A daemon that died, hangs, or
    /// has a server with a client's fault is replaced.
    pub fn enter(&self, start: Start<'_>) -> Result<(), ShareError> {
        if let Err(error) = self.daemon.trim_logs() {
            self.log.warning(error);
        }
        match self.daemon.health()? {
            Health::Good(servers) => self.replace_faulty(&servers),
            Health::Absent if self.others.is_empty() => self.start(start)?,
            Health::Absent => self.replace("the control daemon died".into(), start)?,
            Health::Hung(error) => self.replace(error.to_string(), start)?,
        }
        let limits = ceiling(self.others.iter().chain([self.lease]));
        if let Some(warning) = self.daemon.limit(limits)? {
            self.log.warning(warning);
        }
        self.daemon.admit(&self.users(true))?;
        Ok(())
    }

    /// Creates the job's static partition; returns its name.
    pub fn add_partition(&self, device: &str, chunks: u32) -> Result<String, ShareError> {
        Ok(self.daemon.add_partition(device, chunks)?)
    }

    /// Removes the job: its remaining clients are ended. The daemon ends with the last job.
    pub fn leave(&self) -> Result<(), ShareError> {
        let entered = self.lease.state != LeaseState::Carving || self.mps.sm_partition.is_some();
        if !entered && !self.others.is_empty() {
            // The prolog failed. It may have set limits for the job; a daemon that does not run cannot be asked.
            if matches!(self.daemon.health()?, Health::Good(_)) {
                self.give_back();
            }
            return Ok(self.daemon.keep(&self.users(false))?);
        }
        let health = self.daemon.health()?;
        if let Health::Good(servers) = &health {
            for server in servers {
                if let Err(error) = self.end_clients(server) {
                    self.log.warning(error);
                }
            }
        }
        if self.others.is_empty() {
            self.note_left(self.daemon.end()?);
            return Ok(());
        }
        let is_limited = match health {
            Health::Good(_) => self.give_back(),
            // The next job replaces it.
            Health::Absent => {
                // The control daemon died. Jobs on it lost their contexts. Cure: Nothing: the next job gets a new one.
                self.log.error(format!(
                    "the control daemon of `{}` died; it is replaced with the next job",
                    self.mps.folder
                ));
                false
            }
            Health::Hung(error) => {
                // The daemon is unusable; the text before says why. Cure: Nothing: it is replaced with the next job.
                self.log
                    .error(format!("{error}; it is replaced with the next job"));
                false
            }
        };
        let others = self.users(false);
        if is_limited {
            self.daemon.admit(&others)?
        } else {
            self.daemon.keep(&others)?
        }
        Ok(())
    }

    /// Returns the job's resources to the other jobs. Returns whether the daemon keeps their limits now; the job is
    /// removed in any case, because the next job sets the limits again.
    fn give_back(&self) -> bool {
        if let Some(name) = &self.mps.sm_partition
            && let Err(error) = self.daemon.remove_partition(name)
        {
            self.log.error(error);
        }
        match self.daemon.limit(ceiling(self.others.iter())) {
            Ok(warning) => {
                if let Some(warning) = warning {
                    self.log.warning(warning);
                }
                true
            }
            Err(error) => {
                self.log.error(error);
                false
            }
        }
    }

    fn start(&self, start: Start<'_>) -> Result<(), MpsError> {
        // A server may have outlived a daemon that no job uses any more.
        self.note_left(self.daemon.kill()?);
        self.daemon.start(start)
    }

    fn note_left(&self, count: usize) {
        if count > 0 {
            // Processes of the user's MPS server hang. Cure: Nothing, unless they stay: then look for Xid errors.
            self.log.warning(format!(
                "{count} processes that user {} created from the job's MPS server have not ended yet; gpufrac does not wait for them",
                self.lease.user
            ));
        }
    }

    /// Contexts of other jobs are in the server, not in the daemon: while one lives, the server is needed.
    fn replace(&self, what: String, start: Start<'_>) -> Result<(), MpsError> {
        let mut shares = self.others.iter().filter_map(|other| other.slice.mps());
        // Static partitions are lost with the daemon, too.
        let partitioned = shares.any(|mps| mps.sm_partition.is_some());
        if !self.others.is_empty() && (partitioned || self.daemon.has_servers()) {
            let jobs = self.jobs();
            return Err(MpsError::Occupied { what, jobs });
        }
        self.log.error(if self.others.is_empty() {
            format!("{what}; it is replaced")
        } else {
            format!("{what}; it is replaced, jobs {} use it", self.jobs())
        });
        self.start(start)
    }

    /// All clients of a server in FAULT have lost their contexts, and it accepts no new ones before the last of them
    /// ends (MPS guide, error containment), so ending it loses nothing.
    fn replace_faulty(&self, servers: &[Server]) {
        for server in servers.iter().filter(|server| server.is_faulty()) {
            // A client caused a fault, and MPS ends all clients of a server together. Cure: Tell the users of the jobs;
            // a private daemon (`tenancy = "private"`) avoids it.
            self.log.error(format!(
                "MPS server {} is in state {}: a client of one of the jobs {} caused a fault, and all of them lost their contexts; the server is replaced",
                server.pid,
                server.status,
                self.jobs()
            ));
            if let Err(error) = self.daemon.shut_down(server.pid) {
                self.log.warning(error);
                // The signals ended the processes that it may have waited for.
                self.daemon.ask_again();
            }
        }
    }

    fn end_clients(&self, server: &Server) -> Result<(), MpsError> {
        for client in self.daemon.clients(server.pid)? {
            if self.is_own(client) {
                // A process of the ended job was still a client. Cure: Nothing: it is terminated.
                self.log.warning(format!(
                    "process {client} of the job is still a client of MPS: terminated"
                ));
                // A client with an endless kernel may keep the daemon from answering; the signal follows in any case,
                // and all other processes only get signals.
                if !self.daemon.is_silent()
                    && let Err(error) = self.daemon.terminate(server.pid, client)
                {
                    self.log.warning(error);
                }
                process::signal(client, |pid| self.is_own(pid));
            }
        }
        Ok(())
    }

    /// Whether a client belongs to the job: it is in the job's control group, or belongs to the job's user who has no
    /// other job here. False for an ended process.
    fn is_own(&self, pid: i32) -> bool {
        let user = self.lease.user_id;
        let elsewhere = || self.others.iter().any(|other| other.user_id == user);
        match process::owner(pid) {
            Some(owner) if owner == user => {
                let group = process::job_group(pid);
                group.is_some_and(|group| self.lease.is_group(&group)) || !elsewhere()
            }
            Some(_) => false,
            None => true,
        }
    }

    fn users(&self, with_own: bool) -> Vec<UserId> {
        let own = with_own.then_some(self.lease.user_id);
        let others = self.others.iter().map(|other| other.user_id);
        others.chain(own).collect()
    }

    fn jobs(&self) -> String {
        let mut jobs: Vec<String> = self.others.iter().map(|l| l.job_id.to_string()).collect();
        jobs.dedup();
        jobs.join(", ")
    }
}

/// The users of the leases on an instance.
pub fn users_of_instance(leases: &[Lease], instance: &Instance) -> Vec<UserId> {
    let on_it = leases
        .iter()
        .filter(|lease| lease.slice.instance() == Some(instance));
    on_it.map(|lease| lease.user_id).collect()
}

/// The daemon of a lease.
pub fn daemon_of(node: &Node, user: UserId, mps: &MpsSlice) -> ControlDaemon {
    let server_user = if mps.private { user } else { UserId::ROOT };
    let folder = mps.folder.as_ref();
    ControlDaemon::new(&node.mps_control, folder, server_user, &node.silences)
}

/// The limits of a client that removed its variables. The daemon knows limits of all clients, not of one: they are
/// those of the highest ceiling of compute and of the largest share of memory on this device. A pool's `burst_max` is a
/// right of all its jobs, so a client gets no more compute than its job could have asked for.
fn ceiling<'l>(leases: impl Iterator<Item = &'l Lease>) -> Limits {
    let shares = leases.filter_map(|lease| lease.slice.mps());
    let none = Limits {
        thread_percentage: 1,
        memory: MemoryMib(1),
    };
    shares.fold(none, |limits, share| Limits {
        thread_percentage: limits.thread_percentage.max(share.ceiling()),
        memory: limits.memory.max(share.memory_limit_mib),
    })
}
