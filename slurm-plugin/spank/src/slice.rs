//! What this node knows of the job: its lease, and what is to be closed to it.

use std::path::Path;

use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_node::devcgroup::{self, Fenced};
use gpufrac_node::node::Node;
use gpufrac_node::record::NodeRecord;
use slurm_sys::log;
use slurm_sys::spank::Step;

/// What slurmstepd found when the step began.
pub struct JobSlice {
    job_id: u32,
    /// The slice that the prolog carved, if any.
    pub lease: Option<Lease>,
    /// What `gpufrac node-setup` found; `None` on a node without pools.
    record: Option<NodeRecord>,
}

/// Why a task must not start.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// Slurm allocated a share of a GPU, and there is nothing behind it.
    #[error(
        "job {job_id} was allocated {shards} % of a GPU, but has no slice on this node; the node's syslog says why (grep `gpufrac: job {job_id}:`)"
    )]
    NoSlice {
        /// The job.
        job_id: u32,
        /// What Slurm allocated.
        shards: u32,
    },
    /// The lease is not one that may be used.
    #[error("job {job_id}: its slice is in state {state}, not active")]
    NotActive {
        /// The job.
        job_id: u32,
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
        job_id: u32,
        /// What the lease says.
        slice: u32,
        /// What Slurm allocated.
        shards: u32,
    },
}

impl JobSlice {
    /// Reads configuration, lease and record, all of which only root can write.
    pub fn read(config: &Path, node_name: &str, job_id: u32) -> Result<Self, String> {
        let node = Node::load(config, node_name).map_err(|error| error.to_string())?;
        if !node.has_pools() {
            return Ok(Self {
                job_id,
                lease: None,
                record: None,
            });
        }
        let leases = node.leases().map_err(|error| error.to_string())?;
        let lease = leases.read(job_id).map_err(|error| error.to_string())?;
        let record = node.record().map_err(|error| error.to_string())?;
        Ok(Self {
            job_id,
            lease,
            record: Some(record),
        })
    }

    /// May a task start? `shards`: what Slurm gave to this step (`SLURM_SHARDS_ON_NODE`).
    pub fn check(&self, step: Step, shards: Option<u32>) -> Result<(), Unfit> {
        let job_id = self.job_id;
        match (&self.lease, shards) {
            (None, Some(shards)) if self.record.is_some() => Err(Unfit::NoSlice { job_id, shards }),
            (Some(lease), _) if lease.state != LeaseState::Active => Err(Unfit::NotActive {
                job_id,
                state: lease.state,
            }),
            // A step of srun may have been given less than its job; these have all of it.
            (Some(lease), Some(shards))
                if matches!(step, Step::Batch | Step::Interactive) && lease.units.0 > shards =>
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

    /// Closes every GPU and capability of the pools but the job's own to the whole job.
    pub fn fence(&self, pid: u32) -> Result<(), String> {
        let Some(record) = &self.record else {
            return Ok(());
        };
        let rules = record.rules(self.lease.as_ref());
        match devcgroup::fence(pid, self.job_id, &rules).map_err(|error| error.to_string())? {
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
