//! The slices of a node's jobs, as Slurm, the leases and the simulator show them.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use gpufrac_core::lease::{Lease, LeaseState};

use crate::{ComputeMode, Instance, JobId, Lab, LabError, mps};

/// A job's MIG slice: the lease, and its instance.
#[derive(Debug, Clone)]
pub struct HeldSlice {
    /// gpufrac's record.
    pub lease: Lease,
    /// The instance in the simulator.
    pub instance: Instance,
}

impl Lab {
    /// The MPS daemons of a node, and their servers.
    pub fn mps_processes(&self, node: &str) -> Vec<mps::MpsProcess> {
        mps::below(&self.folder().mps(node))
    }

    /// The slice of a running job on `node`, in a pool with MIG; other jobs only have a [`Lab::lease`].
    /// Errors: there is no active lease, or the simulator has no such instance.
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

    /// Waits until the queue is empty; anything that is left then is an error. Errors: something is left.
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

    /// Things that must not exist when no job runs: leases, instances, compute modes, MPS daemons, folders of MPS and
    /// HAMi, drained nodes, ended daemons. Errors: the state cannot be read.
    pub fn leftovers(&self) -> Result<Vec<String>, LabError> {
        let mut left = self.drained_nodes()?;
        left.extend(
            self.ended_daemons()
                .into_iter()
                .map(|name| format!("{name} ended")),
        );
        left.extend(self.too_many_starts());
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
            for (gpu, mode) in self.compute_modes(node)?.into_iter().enumerate() {
                if mode != ComputeMode::Default {
                    left.push(format!("{node}: GPU {gpu} has compute mode {mode:?}"));
                }
            }
            let mps = self.mps_processes(node);
            left.extend(mps.iter().map(|process| format!("{node}: {process:?}")));
            let folder = self.folder();
            let modes = folder.run(node).join("modes");
            for place in [folder.mps(node), folder.hami(node), modes] {
                let entries = fs::read_dir(place).into_iter().flatten().flatten();
                left.extend(entries.map(|entry| format!("{node}: {}", entry.path().display())));
            }
        }
        Ok(left)
    }
}

impl Lab {
    /// Jobs that a node gave back more than [`MOST_STARTS`] times while another node could have served them, by the
    /// logs of gpufrac-reaperd.
    fn too_many_starts(&self) -> Vec<String> {
        let mut found = Vec::new();
        for node in self.nodes() {
            let log = self.reaper_log(node).unwrap_or_default();
            let mut starts: BTreeMap<&str, u32> = BTreeMap::new();
            for line in log.lines().filter(|line| line.contains(GOES_ELSEWHERE)) {
                let job = line.split_once("job ").map_or(line, |(_, rest)| rest);
                *starts.entry(job).or_default() += 1;
            }
            let often = starts.into_iter().filter(|(_, count)| *count > MOST_STARTS);
            found.extend(often.map(|(job, count)| format!("{node}: {count} times: {job}")));
        }
        found
    }
}

/// How often a job may start on a node that cannot serve it while another could.
const MOST_STARTS: u32 = 3;
/// The words of the log about such a start.
const GOES_ELSEWHERE: &str = "goes to other nodes";

/// Whether `instance` is the one of `lease`, which other leases may share.
pub(crate) fn matches(instance: &Instance, lease: &Lease) -> bool {
    let Some(mig) = lease.slice.mig() else {
        return false;
    };
    let Some(made) = &mig.instance else {
        return false;
    };
    instance.gpu == lease.slice.gpu_index.position()
        && instance.id == made.gi_id
        && instance.profile == mig.profile_id
        && instance.start == u32::from(mig.placement.start)
        && instance.size == u32::from(mig.placement.size)
        && instance.uuids == [made.mig_uuid.clone()]
}
