//! What this node knows of the job: its leases, and what is to be closed to it.

use std::path::{Path, PathBuf};

use gpufrac_core::fraction::{MemoryMib, Units};
use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_fence::{self, DevCgroupError, Fenced};
use gpufrac_host::files::FileError;
use gpufrac_node::gpu::memory_limit::{self, LimitError};
use gpufrac_node::node::{Node, NodeError};
use gpufrac_node::state::leases::StoreError;
use gpufrac_node::state::locks::LockError;
use gpufrac_node::state::record::{NodeRecord, RecordError};
use slurm_sys::log;

use crate::claim::Claims;

/// What slurmstepd found when the step began.
pub struct JobSlice {
    job_id: JobId,
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
    /// The folder of the locks.
    #[error(transparent)]
    Locks(#[from] FileError),
    /// The lock of a slice.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// What node-setup found.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Slurm does not say which job this is.
    #[error("slurmstepd does not tell node, job and user")]
    NotTold,
    /// The hook that reads it did not come to its end.
    #[error("this step did not read its lease")]
    NotRead,
}

/// The driver did not limit the memory of a task.
#[derive(Debug, thiserror::Error)]
#[error("job {job_id}: no memory limit: {reason}")]
pub struct NoMemoryLimit {
    job_id: JobId,
    reason: LimitError,
}

/// Why a task must not start.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// The lease is not one that may be used.
    #[error("job {job_id}: its slice is in state {state}, not active")]
    NotActive {
        /// The job.
        job_id: JobId,
        /// The lease's state.
        state: LeaseState,
    },
    /// The slice is greater than what Slurm allocated: the request was changed while the
    /// prolog could not ask Slurm.
    #[error(
        "job {job_id}: its slice is {slice} % of a GPU and Slurm allocated {shards} %; submit it again"
    )]
    Greater {
        /// The job.
        job_id: JobId,
        /// What the lease says.
        slice: u32,
        /// What Slurm allocated.
        shards: u32,
    },
}

impl JobSlice {
    /// Reads configuration, lease and record, all of which only root can write.
    /// `tasks`: how many tasks of a step want a slice each; None where there is no such step.
    pub fn read(
        config: &Path,
        node_name: &str,
        (job_id, user_id): (JobId, UserId),
        tasks: Option<usize>,
    ) -> Result<Self, ReadError> {
        let node = Node::load(config, node_name)?;
        let pools = node.config.pools.iter();
        let libraries = pools.filter_map(|pool| pool.options.library.clone());
        let libraries = libraries.collect();
        if !node.has_pools() {
            return Ok(Self {
                job_id,
                leases: Vec::new(),
                claims: None,
                record: None,
                libraries,
                nvidia_smi: node.nvidia_smi,
            });
        }
        let mut leases = node.leases()?.of_job(job_id)?;
        // Ids start again where Slurm lost its state: another user's lease is another job's.
        leases.retain(|lease| lease.user_id == user_id);
        let claims = match tasks {
            Some(tasks) if leases.len() > 1 => Some(Claims::take(&node.locks()?, &leases, tasks)?),
            _ => None,
        };
        let record = node.record()?;
        Ok(Self {
            job_id,
            leases,
            claims,
            record: Some(record),
            libraries,
            nvidia_smi: node.nvidia_smi,
        })
    }

    /// The slices of a task: its own, or all of the job where it is no task of a step (`None`).
    pub fn of_task(&self, task: Option<usize>) -> &[Lease] {
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

    /// May a task start? `shards`: what Slurm gave to this step (`SLURM_SHARDS_ON_NODE`).
    ///
    /// That variable is the user's own wherever Slurm allocated a whole device or none at all (it
    /// then neither sets nor removes it), so it decides only where nothing better is known: the
    /// prolog could not ask Slurm, and made what the entry said.
    pub fn check(&self, shards: Option<u32>) -> Result<(), Unfit> {
        let job_id = self.job_id;
        let mut leases = self.leases.iter();
        if let Some(lease) = leases.find(|lease| lease.state != LeaseState::Active) {
            return Err(Unfit::NotActive {
                job_id,
                state: lease.state,
            });
        }
        // Several slices are only made on Slurm's word.
        let Some(lease) = self.leases.first() else {
            return Ok(());
        };
        match shards {
            // A whole device is not counted in shards.
            Some(shards)
                if !lease.confirmed && lease.units < Units::WHOLE && shards < lease.units.0 =>
            {
                Err(Unfit::Greater {
                    job_id,
                    slice: lease.units.0,
                    shards,
                })
            }
            _ => Ok(()),
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
                job_id: self.job_id,
                reason,
            },
        )
    }

    /// Closes every GPU and capability of the pools but the job's own to the whole job.
    pub fn fence(&self, pid: u32) -> Result<(), DevCgroupError> {
        let Some(record) = &self.record else {
            return Ok(());
        };
        let rules = record.rules(&self.leases);
        match gpufrac_fence::fence(pid, self.job_id, &rules)? {
            Fenced::Closed { .. } => Ok(()),
            Fenced::PermissionsOnly(reason) => {
                log::info(&format!(
                    "gpufrac: job {}: fenced by file permissions alone: {reason}",
                    self.job_id
                ));
                Ok(())
            }
        }
    }
}
