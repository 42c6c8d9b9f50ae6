//! The node's data about the job: its leases, and the devices to close.

use std::path::{Path, PathBuf};

use gpufrac_core::config::{LAST_GOOD, NODES};
use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::Lease;
use gpufrac_fence::{self as fence, Closed, DevCgroupError};
use gpufrac_host::files::FileError;
use gpufrac_node::gpu::memory_limit::{self, LimitError};
use gpufrac_node::node::{Node, NodeError};
use gpufrac_node::slice::fit::{Comparison, Given, Unfit};
use gpufrac_node::state::leases::StoreError;
use gpufrac_node::state::locks::LockError;
use gpufrac_node::state::pools;
use gpufrac_node::state::record::{NodeRecord, RecordError};
use gpufrac_node::state::without;

use crate::claim::Claims;

/// What slurmd calls the node, in slurmstepd's environment.
pub const NODE_NAME: &str = "SLURMD_NODENAME";

/// The step that slurmstepd is about to start.
pub struct StepOf {
    /// Its job.
    pub job_id: JobId,
    /// The job's user.
    pub user_id: UserId,
    /// How many tasks it has here, if it is one of srun.
    pub tasks: Option<usize>,
    /// Whether it has all that the job holds here: the batch script and the interactive step.
    pub is_whole_job: bool,
    /// What Slurm gave to it.
    pub given: Given,
}

/// What slurmstepd found when the step began.
pub struct JobSlice {
    step: StepOf,
    /// Why no task of this step may start.
    unfit: Option<Unfit>,
    /// The slices that the prolog carved: none, one, or one for each task of the job here.
    leases: Vec<Lease>,
    /// Which of them the tasks of this step have, where there are several.
    claims: Option<Claims>,
    /// What `gpufrac node-setup` found; `None` on a node without pools.
    record: Option<NodeRecord>,
    /// What pools preload, on this node or on the one where the job was submitted.
    pub libraries: Vec<String>,
    nvidia_smi: PathBuf,
}

/// Why it is not known which slice a job has.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The configuration.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The leases.
    #[error(transparent)]
    Leases(#[from] StoreError),
    /// The folder of the locks, or that of jobs without a slice.
    #[error(transparent)]
    Files(#[from] FileError),
    /// The lock of a slice.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// What node-setup found.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Slurm does not say which job this is.
    #[error("slurmstepd did not pass node, job and user")]
    NotTold,
    /// The hook that reads it did not come to its end.
    #[error("this step did not read its lease")]
    NotRead,
}

impl ReadError {
    /// Whether the node has pools: what node-setup left says so where the configuration cannot.
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

/// The driver did not limit the memory of a task.
#[derive(Debug, thiserror::Error)]
#[error("job {job_id}: no memory limit: {reason}")]
pub struct NoMemoryLimit {
    job_id: JobId,
    reason: LimitError,
}

impl JobSlice {
    /// Reads configuration, lease and record, all of which only root can write.
    pub fn read(config: &Path, node_name: &str, step: StepOf) -> Result<Self, ReadError> {
        // The prolog complains.
        let node = Node::load_to_serve(config, node_name, Path::new(LAST_GOOD))?.node;
        let pools = node.config.pools.iter();
        let libraries = pools.filter_map(|pool| pool.options.library.clone());
        let libraries = libraries.collect();
        if !node.has_pools() {
            return Ok(Self {
                step,
                unfit: None,
                leases: Vec::new(),
                claims: None,
                record: None,
                libraries,
                nvidia_smi: node.nvidia_smi,
            });
        }
        let mut leases = node.leases()?.of_job(step.job_id)?;
        // Ids start again where Slurm lost its state: another user's lease is another job's.
        leases.retain(|lease| lease.user_id == step.user_id);
        let claims = match step.tasks {
            Some(tasks) if leases.len() > 1 => Some(Claims::take(&node.locks()?, &leases, tasks)?),
            _ => None,
        };
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
        Ok(Self {
            unfit: comparison.unfit(&leases),
            step,
            leases,
            claims,
            record: Some(record),
            libraries,
            nvidia_smi: node.nvidia_smi,
        })
    }

    /// Why no task of this step may start.
    pub fn unfit(&self) -> Option<Unfit> {
        self.unfit
    }

    /// Whether the node has no pool, and slurmstepd tells of shares of one of its devices.
    pub fn has_shares_of_no_pool(&self) -> bool {
        let has_shares = matches!(
            self.step.given,
            Given::Devices {
                shards: Some(_),
                ..
            }
        );
        self.record.is_none() && has_shares
    }

    /// No task of this step may start.
    pub fn refuse(&mut self, unfit: Unfit) {
        self.unfit = Some(unfit);
    }

    /// The slices that a task is told about; none where Slurm gave the step no device.
    pub fn visible_to(&self, task: Option<usize>) -> &[Lease] {
        match self.step.given.is_some() && self.unfit.is_none() {
            true => self.of_task(task),
            false => &[],
        }
    }

    /// The slices of a task: its own, or all of the job where it is no task of a step (`None`).
    fn of_task(&self, task: Option<usize>) -> &[Lease] {
        match (&self.claims, task) {
            (Some(claims), Some(task)) => {
                let position = claims.slice_of(task);
                self.leases.get(position..=position).unwrap_or_default()
            }
            _ => &self.leases,
        }
    }

    /// A task ended.
    pub fn give_back(&self, task: usize) {
        if let Some(claims) = &self.claims {
            claims.give_back(task);
        }
    }

    /// Has the driver limit the memory of a task's control group, where the lease says so.
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

    /// Closes every GPU and capability of the pools but the job's own to the whole job.
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

    /// What stays open to this step: nothing of a lease that nobody confirmed, until a step was told that Slurm counted as
    /// much.
    fn leases_of_step(&self) -> &[Lease] {
        let is_confirmed = self.leases.iter().all(|lease| lease.confirmed);
        let is_compared = self.step.given.is_some() && self.unfit.is_none();
        match is_confirmed || is_compared {
            true => self.leases_inside(),
            false => &[],
        }
    }

    /// What stays open inside of the fence. On version 1 of control groups the fence is the whole job's, so that a step with
    /// less than its job does not close more than the job's other steps may have closed.
    fn leases_inside(&self) -> &[Lease] {
        let is_over = matches!(self.unfit, Some(Unfit::NotActive { .. }));
        let is_of_job = self.step.is_whole_job && !self.step.given.is_some();
        // The extern step, of which nobody tells what it has, has no task that could be refused.
        let is_extern = self.step.given == Given::Untold;
        let is_unfit_job = (self.step.is_whole_job || is_extern) && self.unfit.is_some();
        match is_over || is_of_job || is_unfit_job {
            true => &[],
            false => &self.leases,
        }
    }
}
