//! What a node holds for its jobs, as three parties see it: Slurm, the leases, the simulator.

use std::time::Duration;

use gpufrac_core::lease::{Lease, LeaseState};

use crate::{Instance, JobId, Lab, LabError};

/// A job's slice: the lease, and the instance for which it stands.
#[derive(Debug, Clone)]
pub struct HeldSlice {
    /// What gpufrac wrote down.
    pub lease: Lease,
    /// What the simulator holds.
    pub instance: Instance,
}

impl Lab {
    /// The slice of a running job on `node`.
    ///
    /// # Errors
    /// When there is no active lease, or the simulator holds no such instance.
    pub fn slice(&self, node: &str, job: JobId) -> Result<HeldSlice, LabError> {
        let missing = |output: String| LabError::Unexpected {
            what: format!("the slice of job {job} on {node}"),
            found: format!("{output}\n{}", self.folder().log_tails(15)),
        };
        let lease = self
            .lease(node, job)?
            .ok_or_else(|| missing("no lease".into()))?;
        if lease.state != LeaseState::Active {
            return Err(missing(format!("the lease is {}", lease.state)));
        }
        let instances = self.instances(node)?;
        let found = instances.iter().find(|instance| matches(instance, &lease));
        match found {
            Some(instance) => Ok(HeldSlice {
                instance: instance.clone(),
                lease,
            }),
            None => Err(missing(format!(
                "{:?} is not among {instances:?}",
                lease.slice
            ))),
        }
    }

    /// Waits until the queue is empty and takes whatever is left then as an error.
    ///
    /// # Errors
    /// What is left.
    pub fn expect_nothing_left(&self) -> Result<(), LabError> {
        self.wait_until_empty(Duration::from_secs(40))?;
        let left = self.leftovers()?;
        if left.is_empty() {
            return Ok(());
        }
        Err(LabError::Unexpected {
            what: "what is left when no job runs".into(),
            found: format!("{}\n{}", left.join("\n"), self.folder().log_tails(20)),
        })
    }

    /// What should not be there when no job runs: leases, instances, drained nodes, ended daemons.
    ///
    /// # Errors
    /// When one of the parties can not be asked.
    pub fn leftovers(&self) -> Result<Vec<String>, LabError> {
        let mut left = self.drained_nodes()?;
        left.extend(
            self.ended_daemons()
                .into_iter()
                .map(|name| format!("{name} ended")),
        );
        for node in self.nodes() {
            let leases = self.leases(node)?;
            left.extend(
                leases
                    .iter()
                    .map(|l| format!("{node}: lease of job {} ({})", l.job_id, l.state)),
            );
            left.extend(
                self.instances(node)?
                    .iter()
                    .map(|i| format!("{node}: instance {i:?}")),
            );
        }
        Ok(left)
    }
}

/// Whether `instance` is the one for which `lease` stands.
pub(crate) fn matches(instance: &Instance, lease: &Lease) -> bool {
    let slice = &lease.slice;
    let Some(made) = &slice.instance else {
        return false;
    };
    instance.gpu == slice.gpu_index as usize
        && instance.id == made.gi_id
        && instance.profile == slice.profile_id
        && instance.start == u32::from(slice.placement.start)
        && instance.size == u32::from(slice.placement.size)
        && instance.uuids == [made.mig_uuid.clone()]
}
