//! The node's data about the job: its leases, and the devices to close.

use std::path::{Path, PathBuf};

use gpufrac_core::config::{LAST_GOOD, NODES};
use gpufrac_core::count_name::CountName;
use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::Lease;
use gpufrac_core::lease::visible::{self, Uncertain, Visible};
use gpufrac_fence::{self as fence, Closed, DevCgroupError};
use gpufrac_host::files::FileError;
use gpufrac_node::clock::{Clock, SystemClock};
use gpufrac_node::gpu::memory_limit::{self, LimitError};
use gpufrac_node::node::{Node, NodeError};
use gpufrac_node::slice::agreement::step::{Comparison, Given, Unfit};
use gpufrac_node::state::leases::StoreError;
use gpufrac_node::state::locks::LockError;
use gpufrac_node::state::pools;
use gpufrac_node::state::record::{NodeRecord, RecordError};
use gpufrac_node::state::{usage, without};
use gpufrac_records::usage::SliceKey;

use crate::claim::Claims;

/// The variable with the node's name in slurmstepd's environment.
pub const NODE_NAME: &str = "SLURMD_NODENAME";

/// The step that slurmstepd is about to start.
pub struct StepOf {
    pub job_id: JobId,
    pub user_id: UserId,
    /// The number of tasks on this node, for a step of srun.
    pub tasks: Option<usize>,
    /// Whether the step has everything that the job holds on this node: the batch script and the interactive step.
    pub is_whole_job: bool,
    /// Slurm's allocation for the step.
    pub given: Given,
}

/// The state of the job's slices at the start of the step.
pub struct JobSlice {
    step: StepOf,
    /// The reason why no task of this step may start.
    unfit: Option<Unfit>,
    /// The leases that the prolog wrote: none, one, one for each task of the job on this node, or one for each GPU.
    leases: Vec<Lease>,
    /// The leases of the devices that Slurm gave to this step.
    own: Vec<Lease>,
    /// The slices of this step's tasks, if each task has its own.
    claims: Option<Claims>,
    /// The findings of `gpufrac node-setup`; None on a node without pools.
    record: Option<NodeRecord>,
    /// Whether a node without pools has the folder of placeholders.
    has_placeholders: bool,
    /// The name that counts fractions in Slurm.
    pub count_name: CountName,
    /// Libraries that pools preload, on this node or on the one where the job was submitted.
    pub libraries: Vec<String>,
    run: PathBuf,
    /// How the pool of the job names devices.
    pub pool_visible: Visible,
    nvidia_smi: PathBuf,
}

/// The reasons why the slice of a job is not known.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Leases(#[from] StoreError),
    /// The folder of the locks, or that of jobs without a slice, cannot be opened.
    #[error(transparent)]
    Files(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Record(#[from] RecordError),
    /// slurmstepd of this Slurm does not give the plugin what it needs.
    /// Cure: Admins: install the package of this series.
    #[error("slurmstepd did not pass node, job and user")]
    NotTold,
    /// The lease could not be read.
    /// Cure: Admins: look at slurmd's log and at `gpufrac leases`.
    #[error("this step did not read its lease")]
    NotRead,
}

impl ReadError {
    /// Whether the node has pools. If the configuration cannot be read, the findings of node-setup decide.
    pub fn is_on_node_with_pools(&self) -> bool {
        match self {
            ReadError::Node(_) | ReadError::NotTold | ReadError::NotRead => {
                let node = std::env::var(NODE_NAME).ok();
                pools::has_pools(Path::new(NODES), node.as_deref())
            }
            _ => true,
        }
    }
}

/// The limit of memory could not be set. The tasks start.
/// Cure: Admins: follow the text.
#[derive(Debug, thiserror::Error)]
#[error("job {job_id}: setting the memory limit failed: {reason}")]
pub struct NoMemoryLimit {
    job_id: JobId,
    reason: LimitError,
}

impl JobSlice {
    /// Reads configuration, lease and findings; only root can write these files.
    pub fn read(config: &Path, node_name: &str, step: StepOf) -> Result<Self, ReadError> {
        // The prolog reports a fault of the configuration.
        let node = Node::load_to_serve(config, node_name, Path::new(LAST_GOOD))?.node;
        let pools = node.config.pools.iter();
        let libraries = pools.filter_map(|pool| pool.options.library.clone());
        let libraries = libraries.collect();
        if !node.has_pools() {
            return Ok(Self {
                step,
                unfit: None,
                leases: Vec::new(),
                own: Vec::new(),
                claims: None,
                record: None,
                has_placeholders: node.devices.exists(),
                count_name: node.config.count_name,
                libraries,
                run: node.run,
                pool_visible: Visible::default(),
                nvidia_smi: node.nvidia_smi,
            });
        }
        let mut leases = node.leases()?.of_job(step.job_id)?;
        // Job ids start again if Slurm lost its state, so a lease of another user belongs to another job.
        leases.retain(|lease| lease.user_id == step.user_id);
        let claims = match step.tasks {
            Some(tasks) if are_of_tasks(&leases) => {
                Some(Claims::take(&node.locks()?, &leases, tasks)?)
            }
            _ => None,
        };
        let mut pools = node.config.pools.iter();
        let pool = leases
            .first()
            .and_then(|lease| pools.find(|pool| pool.name == lease.pool));
        let pool_visible = pool.map_or(Visible::default(), |pool| pool.options.visible);
        let record = node.record()?;
        let gpus = u32::try_from(record.gpus.len()).unwrap_or(u32::MAX);
        let comparison = Comparison {
            job_id: step.job_id,
            is_whole_job: step.is_whole_job,
            given: &step.given,
            devices: &node.config.devices_of_node(&node.name, gpus),
            is_to_have_none: leases.is_empty()
                && step.given.is_some()
                && without::is_noted(&node.run, step.job_id, step.user_id)?,
        };
        let is_given = |lease: &&Lease| match &step.given {
            Given::Devices { indexes, .. } => indexes.contains(&lease.slice.device_index),
            Given::Nothing | Given::Untold => true,
        };
        Ok(Self {
            unfit: comparison.unfit(&leases),
            own: leases.iter().filter(is_given).cloned().collect(),
            step,
            leases,
            claims,
            record: Some(record),
            has_placeholders: true,
            count_name: node.config.count_name,
            libraries,
            run: node.run,
            pool_visible,
            nvidia_smi: node.nvidia_smi,
        })
    }

    /// The reason why no task of this step may start.
    pub fn unfit(&self) -> Option<Unfit> {
        self.unfit
    }

    /// Whether the node has no pool, but Slurm may have given the step a part of gpufrac: shares, or a device where
    /// placeholders are. A placeholder that Slurm gives whole is no GPU. Nodes with the site's GPUs alone have no
    /// placeholders, so their jobs ask slurmctld nothing.
    pub fn may_count_in_no_pool(&self) -> bool {
        let Given::Devices { shards, .. } = &self.step.given else {
            return false;
        };
        self.record.is_none() && (shards.is_some() || self.has_placeholders)
    }

    /// Whether the step has nothing of the node's pools: neither a device by Slurm's allocation nor a lease.
    pub fn has_nothing_of_pools(&self) -> bool {
        self.record.is_some() && self.step.given == Given::Nothing && self.leases.is_empty()
    }

    /// Forbids that tasks of this step start.
    pub fn refuse(&mut self, unfit: Unfit) {
        self.unfit = Some(unfit);
    }

    /// The slices that the variables of a task describe; none if Slurm gave the step no device.
    pub fn visible_to(&self, task: Option<usize>) -> &[Lease] {
        if self.is_visible() { self.of_task(task) } else { &[] }
    }

    /// The slices of all tasks of this step together.
    pub fn visible_to_step(&self) -> Vec<Lease> {
        match &self.claims {
            _ if !self.is_visible() => Vec::new(),
            Some(claims) => claims.of_step(&self.leases),
            None => self.own.clone(),
        }
    }

    /// CUDA's numbers of the devices of a task, behind the fence.
    pub fn numbers(&self, task: &[Lease]) -> Result<String, Uncertain> {
        let mut gpus = self.record.iter().flat_map(|record| &record.gpus);
        let all_in_pools = gpus.all(|gpu| gpu.pool.is_some());
        visible::numbers(task, &self.leases, all_in_pools)
    }

    fn is_visible(&self) -> bool {
        self.step.given.is_some() && self.unfit.is_none()
    }

    /// The slices of a task: its own, or all of the step if its tasks have none of their own, or if it is not a task of
    /// srun (`None`).
    fn of_task(&self, task: Option<usize>) -> &[Lease] {
        match (&self.claims, task) {
            (Some(claims), Some(task)) => {
                let position = claims.slice_of(task);
                self.leases.get(position..=position).unwrap_or_default()
            }
            _ => &self.own,
        }
    }

    /// The words for the user about a full slice; None if it was not full just before.
    pub fn told_full(&self, lease: &Lease) -> Option<String> {
        let key = SliceKey::of(lease);
        let filled = usage::measured(&self.run, &key).ok()??.filled?;
        let is_now = SystemClock.now().milliseconds() <= filled.until_boot_ms;
        is_now.then(|| filled.full.told(lease.slice.memory_mib.0, &key.node))
    }

    /// Releases the slice of a task that ended.
    pub fn give_back(&self, task: usize) {
        if let Some(claims) = &self.claims {
            claims.give_back(task);
        }
    }

    /// Limits the memory of a task's control group by the driver, if the lease requires it.
    pub fn limit_memory(&self, pid: u32, task: Option<usize>) -> Result<(), NoMemoryLimit> {
        let leases = self.of_task(task);
        let Some(slice) = leases.first().map(|lease| &lease.slice) else {
            return Ok(());
        };
        if !slice.group_limit {
            return Ok(());
        }
        let memory = leases.iter().map(|lease| lease.slice.memory_mib.0).sum();
        memory_limit::set(&self.nvidia_smi, pid, &slice.gpu_uuid, MemoryMib(memory)).map_err(
            |reason| NoMemoryLimit {
                job_id: self.step.job_id,
                reason,
            },
        )
    }

    /// Closes every GPU and capability of the pools except the job's own to the whole job.
    pub fn fence(&self) -> Result<(), DevCgroupError> {
        let Some(record) = &self.record else {
            return Ok(());
        };
        let closed = Closed {
            to_job: record.rules(self.leases_inside()),
            to_step: record.rules(self.leases_of_step()),
        };
        fence::fence(fence::OWN, self.step.job_id, &closed).map(drop)
    }

    /// The devices that stay open to this step: none of an unconfirmed lease, until a step gets as much from Slurm.
    fn leases_of_step(&self) -> &[Lease] {
        let is_confirmed = self.leases.iter().all(|lease| lease.confirmed);
        let is_compared = self.step.given.is_some() && self.unfit.is_none();
        let inside = self.leases_inside();
        match is_confirmed || is_compared {
            // The step may have some of the GPUs of its job.
            true if is_compared && !inside.is_empty() => &self.own,
            true => inside,
            false => &[],
        }
    }

    /// The devices that stay open inside the fence. On version 1 of control groups the fence is that of the whole
    /// job, so a step with less than its job must not close devices that other steps of the job may use.
    fn leases_inside(&self) -> &[Lease] {
        let is_over = matches!(self.unfit, Some(Unfit::NotActive { .. }));
        let is_of_job = self.step.is_whole_job && !self.step.given.is_some();
        // slurmstepd sets no variables for the extern step, and it has no task that could be refused.
        let is_extern = self.step.given == Given::Untold;
        let is_unfit_job = (self.step.is_whole_job || is_extern) && self.unfit.is_some();
        if is_over || is_of_job || is_unfit_job { &[] } else { &self.leases }
    }
}

/// Whether each lease is for a task: then all are of one device.
fn are_of_tasks(leases: &[Lease]) -> bool {
    let device = |lease: &Lease| lease.slice.device_index;
    match leases {
        [first, second, ..] => device(first) == device(second),
        _ => false,
    }
}
