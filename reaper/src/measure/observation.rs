//! Makes a sample from a lease and the data of its GPU.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use gpufrac_core::fraction::{Fraction, MemoryMib};
use gpufrac_core::ids::UserId;
use gpufrac_core::lease::Lease;
use gpufrac_core::mechanism::Mechanism;
use gpufrac_core::policy::Policy;
use gpufrac_host::sight::{self, Sight};
use gpufrac_node::mps::process;
use gpufrac_nvml::telemetry::{Process, Utilization};
use gpufrac_records::evidence::Source;

use super::owners::Owners;
use super::sample::{Activity, Excess, Sample};
use super::view::View;
use crate::key::SliceId;
use gpufrac_node::gpu::dcgm::InstanceId;

/// Memory of a context besides its program's allocations: NVML counts it, MPS limits do not.
const CONTEXT_OVERHEAD: MemoryMib = MemoryMib(600);
/// A process of a user may have a root that does not answer.
pub(crate) const LONGEST_SIGHT: Duration = Duration::from_millis(200);

/// A lease with all data that were collected for it.
pub(super) struct Observation<'a> {
    pub(super) lease: &'a Lease,
    pub(super) view: &'a View,
    /// All leases on the GPU, with this one.
    pub(super) neighbours: &'a [&'a Lease],
    pub(super) dcgm: Option<&'a HashMap<InstanceId, f64>>,
    /// The jobs of processes that were seen earlier.
    pub(super) owners: &'a Owners,
    pub(super) policy: &'a Policy,
    /// CPU cores that the job kept busy.
    pub(super) cores: Option<f64>,
}

impl Observation<'_> {
    pub(super) fn sample(&self) -> Sample {
        let own = self.own_processes();
        let contexts = own.as_ref().map(|own| own.len() as u32);
        let by_processes = own.as_ref().and_then(|own| {
            let memory = own.iter().map(|process| Some(process.memory?.0));
            memory.sum::<Option<u64>>().map(MemoryMib)
        });
        let (source, busy_share, activity) = match self.lease.slice.instance() {
            Some(instance) => {
                if !self.view.standing.contains(&SliceId::of(self.lease)) {
                    return Sample::missing("its instance does not stand");
                }
                self.instance(instance.gi_id, contexts)
            }
            None => self.whole(contexts),
        };
        Sample {
            source,
            activity,
            busy_share,
            contexts,
            memory: match contexts {
                // The driver cannot name the process that holds the memory, either.
                Some(0) => self.left_behind().or(by_processes),
                _ => by_processes,
            },
            excess: own.as_ref().and_then(|own| self.excess(own, by_processes)),
        }
    }

    /// The job's processes with a context; None if the job of one of them is not known.
    fn own_processes(&self) -> Option<Vec<Process>> {
        let instance = self.lease.slice.instance();
        let on_it = self.view.processes.iter().filter(|process| match instance {
            Some(instance) => process.gi_id == Some(instance.gi_id),
            None => true,
        });
        let alone = instance.is_some() && self.lease.slice.mps().is_none();
        let mut own = Vec::new();
        for process in on_it {
            let pid = process.pid as i32;
            if alone {
                own.push(*process);
                continue;
            }
            if self.is_server(pid) {
                continue;
            }
            let group = process::job_group(pid);
            match group.and_then(|group| self.lease.owns_group(&group, self.neighbours)) {
                // A user with own control groups can easily make a group with this name.
                Some(true) if process::owner(pid) == Some(self.lease.user_id) => {
                    own.push(*process);
                }
                Some(_) => {}
                // The process has ended, or is in a control group of its own.
                None if process::is_alive(pid) => return None,
                None => {}
            }
        }
        Some(own)
    }

    /// Whether a process is an MPS server, on a GPU that is shared by MPS. It runs as root, or as any tenant, because
    /// each private daemon has one. On other GPUs the name of a program is not trusted.
    fn is_server(&self, pid: i32) -> bool {
        let mut neighbours = self.neighbours.iter();
        // A process in a job is a program of the job's user, whatever its name.
        let outside =
            || process::owner(pid) == Some(UserId::ROOT) || process::job_group(pid).is_none();
        neighbours.any(|lease| {
            lease.slice.mps().is_some() && process::is_mps(pid, lease.user_id) && outside()
        })
    }

    fn left_behind(&self) -> Option<MemoryMib> {
        let id = SliceId::of(self.lease);
        self.view.left_behind.get(&id).copied()
    }

    /// The activity of a slice with MIG.
    fn instance(&self, gi_id: u32, contexts: Option<u32>) -> (Source, Option<f64>, Activity) {
        let (source, measured) = match (self.view.busy_shares.get(&gi_id), self.dcgm) {
            (Some(share), _) if self.view.has_gpm => (Source::Gpm, share.clone()),
            (_, Some(dcgm)) => {
                let gpu = self.lease.slice.gpu_uuid.clone();
                let value = dcgm.get(&(gpu, gi_id)).copied();
                let missing = || "dcgm-exporter has no fresh value for it".to_owned();
                (Source::Dcgm, value.ok_or_else(missing))
            }
            _ => return (Source::Processes, None, self.by_processes(contexts)),
        };
        let share = match measured {
            Ok(share) => share,
            Err(why) => return (source, None, Activity::Unknown(why)),
        };
        if !self.is_busy(share) {
            return (source, Some(share), Activity::Idle);
        }
        if self.lease.slice.mps().is_some() && self.is_shared_with_others(Some(gi_id)) {
            return (Source::MpsClients, None, self.among_tenants(contexts));
        }
        (source, Some(share), Activity::Busy)
    }

    /// The activity of a slice of a GPU without MIG.
    fn whole(&self, contexts: Option<u32>) -> (Source, Option<f64>, Activity) {
        let source = match self.lease.slice.mps() {
            Some(_) => Source::MpsClients,
            None => Source::ProcessUtilization,
        };
        let unknown = |why: String| (source, None, Activity::Unknown(why));
        let used = match &self.view.utilization {
            Some(Ok(used)) => used,
            Some(Err(why)) => return unknown(why.to_string()),
            None => return unknown("the GPU is in MIG mode".to_owned()),
        };
        let mine = |process: &&Utilization| self.is_mine(process.pid) == Some(true);
        let own = used
            .iter()
            .filter(mine)
            .map(|process| process.percent)
            .max();
        let share = f64::from(own.unwrap_or(0).min(100)) / 100.0;
        if self.is_busy(share) {
            return (source, Some(share), Activity::Busy);
        }
        let whose = |process: &Utilization| self.is_mine(process.pid).is_none();
        if used.iter().any(whose) {
            // An MPS server, or a process that started and ended between two samples.
            (source, None, self.among_tenants(contexts))
        } else {
            (source, Some(share), Activity::Idle)
        }
    }

    /// Whether the work of a process belongs to the job; None if that is unknown.
    fn is_mine(&self, pid: u32) -> Option<bool> {
        if self
            .neighbours
            .iter()
            .all(|lease| self.is_of_same_job(lease))
        {
            return Some(true);
        }
        if let Some(group) = self.owners.group(pid) {
            return self.lease.owns_group(&group, self.neighbours);
        }
        let pid = pid as i32;
        // The server of a private daemon runs as the user of its job.
        let user = process::owner(pid).filter(|user| *user != UserId::ROOT)?;
        let mut private = self.neighbours.iter().filter(|lease| {
            let mps = lease.slice.mps();
            lease.user_id == user && mps.is_some_and(|mps| mps.private)
        });
        let first = private.next()?;
        let is_only_job = private.all(|lease| lease.job_id == first.job_id);
        is_only_job.then(|| self.is_of_same_job(first))
    }

    /// The activity if a process computed and the driver does not say which one: a job was certainly not active only
    /// if it has no context and used no CPU time.
    fn among_tenants(&self, contexts: Option<u32>) -> Activity {
        match (contexts, self.by_processes(contexts)) {
            (Some(0), Activity::Idle) => Activity::Idle,
            (_, Activity::Busy) => Activity::Busy,
            _ => Activity::Unknown(
                "its GPU is busy, and the driver does not say which process causes the work".into(),
            ),
        }
    }

    /// The activity without any figure of the driver.
    fn by_processes(&self, contexts: Option<u32>) -> Activity {
        let Some(cores) = self.cores else {
            return Activity::Unknown("the CPU time of the job is not known yet".into());
        };
        match contexts {
            None => Activity::Unknown("not all processes on the GPU are known".into()),
            Some(_) if cores * 100.0 > self.policy.cpu_busy_above => Activity::Busy,
            Some(_) => Activity::Idle,
        }
    }

    fn is_busy(&self, share: f64) -> bool {
        share * 100.0 > self.policy.busy_above
    }

    /// Whether other jobs have leases on the instance.
    fn is_shared_with_others(&self, gi_id: Option<u32>) -> bool {
        let on_it = |lease: &&Lease| lease.slice.instance().map(|i| i.gi_id) == gi_id;
        let mut others = self.neighbours.iter();
        others.any(|lease| on_it(lease) && !self.is_of_same_job(lease))
    }

    fn is_of_same_job(&self, lease: &Lease) -> bool {
        lease.job_id == self.lease.job_id
    }

    /// Memory that the job may use in all of its shares, because it is not known which of its processes uses which
    /// share.
    fn memory_share(&self) -> MemoryMib {
        let own = self
            .neighbours
            .iter()
            .filter(|lease| self.is_of_same_job(lease));
        MemoryMib(own.map(|lease| lease.slice.memory_mib.0).sum())
    }

    fn excess(&self, own: &[Process], memory: Option<MemoryMib>) -> Option<Excess> {
        let slice = &self.lease.slice;
        let shares =
            self.lease.mechanism() != Mechanism::Mig && self.lease.fraction < Fraction::ONE;
        if !shares {
            return None;
        }
        if let Some(hidden) = self.hidden(own) {
            return Some(hidden);
        }
        if slice.mps().is_some() {
            let outside = own.iter().filter(|process| !process.mps_client);
            let pids: Vec<u32> = outside.map(|process| process.pid).collect();
            if !pids.is_empty() {
                return Some(Excess::OutsideMps { pids });
            }
        }
        let held = memory?;
        let share = self.memory_share();
        let contexts = CONTEXT_OVERHEAD.0 * own.len() as u64;
        (held.0 > share.0 + contexts).then_some(Excess::Memory { held, share })
    }

    /// Processes that cannot see what limits them. A client of MPS may see its daemon's folder at another path.
    fn hidden(&self, own: &[Process]) -> Option<Excess> {
        let limiter = self.lease.slice.limiter()?;
        let is_hidden = |process: &&Process| {
            !process.mps_client
                && matches!(
                    sight::of_in_time(process.pid, Path::new(&limiter), LONGEST_SIGHT),
                    Sight::Hidden
                )
        };
        let pids: Vec<u32> = own
            .iter()
            .filter(is_hidden)
            .map(|process| process.pid)
            .collect();
        (!pids.is_empty()).then_some(Excess::Hidden { pids, limiter })
    }
}
