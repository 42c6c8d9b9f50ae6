//! The reasons why a slice could not be made, and the reaction to each.

use std::collections::BTreeSet;

use gpufrac_core::entry::EntryError;
use gpufrac_core::fraction::Units;
use gpufrac_core::ids::{DeviceIndex, GpuIndex, JobId};
use gpufrac_core::layout::{Occupied, Side};
use gpufrac_core::lease::LeaseError;
use gpufrac_core::mechanism::Mechanism;
use gpufrac_core::request::RequestError;

use super::other_pools::OtherPools;
use crate::fault::{Cause, Caused};
use crate::gpu::capability_files::CapsError;
use crate::gpu::compute_mode::ModeError;
use crate::gpu::mig_mode::{self, GpuUser, SwitchError};
use crate::job::plugstack::NoSpank;
use crate::job::slurmctld::SlurmError;
use crate::mps::error::MpsError;
use crate::mps::tenants::ShareError;
use crate::node::{LOCK_PATIENCE, NodeError};
use crate::slice::release::ReleaseError;
use crate::slice::teardown::TeardownError;
use crate::state::leases::StoreError;
use crate::state::locks::LockError;
use crate::state::record::RecordError;
use gpufrac_host::files::FileError;
use gpufrac_nvml::{ErrorClass, MigMode, NvmlError};

/// The reaction to an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaction {
    /// Retry; finally requeue the job. The node stays in use.
    Wait,
    /// Requeue and hold the job: its owner or an admin must change it.
    Hold,
    /// Cancel the job, because its request can never be met. The node stays in use.
    Refuse,
    /// Drain the node: an admin must look at it.
    Drain,
}

/// What of a node cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The device that Slurm gave to the job.
    Device,
    /// All GPUs.
    Node,
}

/// The reasons why a slice could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CarveError {
    /// The node's gpufrac.toml is missing or has a mistake, and no good copy exists. Jobs are held.
    #[error("the node has no configuration: {0}")]
    Config(NodeError),
    /// slurm.conf gives the node gpufrac or shard, and gpufrac.toml does not name the node.
    #[error("Slurm counts gpufrac on {node}, but gpufrac.toml of that node has no pool there")]
    NoPool { node: String },
    /// plugstack.conf of the node does not load the SPANK plugin. Without it the job would see all GPUs, so it is held.
    /// Cure: Add the line of [install](../install.md) to plugstack.conf, then release the job.
    #[error("slurmstepd would start the job without its slice: {0}")]
    NoSpank(#[from] NoSpank),
    /// The counted units are no size of this node.
    #[error("{0}")]
    OtherPools(OtherPools),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Nvml(#[from] NvmlError),
    #[error(transparent)]
    Lease(#[from] LeaseError),
    #[error(transparent)]
    Caps(#[from] CapsError),
    /// The lease of the job's earlier run could not be removed.
    /// Cure: Follow the text; `gpufrac leases` shows it.
    #[error("removing an older slice of the job failed: {0}")]
    Old(#[from] TeardownError),
    /// An old slice of the same job on another GPU cannot be removed.
    #[error("removing an older slice of the job failed: {0}")]
    Release(#[from] ReleaseError),
    /// The remains of the failed attempt are still there.
    /// Cure: Nothing: the next prolog or epilog removes them.
    #[error(
        "{error}; the next prolog or epilog removes the incomplete slice, because removing it failed now: {cleanup}"
    )]
    Unfinished {
        /// The error during the creation.
        error: Box<CarveError>,
        /// The error during the removal.
        cleanup: TeardownError,
    },
    #[error(transparent)]
    Entry(EntryError),
    /// The programs were built for another series of Slurm.
    /// Cure: Install the packages of this series; [versions](../versions.md).
    #[error("gpufrac was built for another Slurm than the node's: {0}")]
    Foreign(SlurmError),
    /// The job was given several halves or GPUs that are never lent whole, for example by a raw request.
    /// Cure: Submit the job again with one fraction, or with whole GPUs in a partition that lends them.
    #[error(
        "Slurm gave the job the devices {devices:?}, and not all of them are whole GPUs; ask for one part of a GPU, --gres=gpufrac:0.25, or for whole GPUs where there are any, --gres=gpufrac:2",
        devices = numbers(devices)
    )]
    SeveralDevices { devices: Vec<DeviceIndex> },
    /// The request was changed after submission.
    /// Cure: Submit the job again.
    #[error(
        "a fraction was granted, but Slurm allocated no device; submit the job again if its gres was changed by hand"
    )]
    NoDevice,
    /// gres.conf and gpufrac.toml disagree on the number of devices.
    /// Cure: Compare gres.conf with `gpufrac conf`; restart slurmd.
    #[error("Slurm gave the job the devices {devices:?}, but the pools of this node have {count}", devices = numbers(devices))]
    UnknownDevice {
        devices: Vec<DeviceIndex>,
        /// The number of devices in the configuration.
        count: usize,
    },
    /// The pool has a new GPU.
    /// Cure: Drain the node, run `gpufrac node-setup`, resume the node.
    #[error(
        "pool `{pool}` has GPU {gpu_index} by the configuration, but not by the record of node-setup"
    )]
    ConfigChanged { pool: String, gpu_index: GpuIndex },
    /// The request names a mechanism that the pool does not have.
    /// Cure: Change the job (`scontrol update`), or submit it to another partition.
    #[error("the job asks for mechanism {asked}, pool `{pool}` offers {offered}")]
    Mechanism {
        asked: Mechanism,
        pool: String,
        offered: Mechanism,
    },
    /// The job was moved to a partition that does not allow its size.
    /// Cure: Change or move the job, then release it.
    #[error(
        "partition {partition} does not take this job: {rule}; change it with `scontrol update jobid={job_id} {update}` and release it, or cancel it and submit it again"
    )]
    Rule {
        job_id: JobId,
        partition: String,
        rule: String,
        update: String,
    },
    // The job was moved to a partition with shared GPUs, and slurmd would load its user's login environment outside
    // of the fence.
    /// The job came from a partition without shared GPUs, and its environment was fixed there.
    /// Cure: Submit the job again in the new partition.
    #[error(
        "job {job_id} was submitted with --get-user-env or --export=NONE to a partition without shared GPUs, and moved to {partition}; submit it again there, with #!/bin/bash -l in its script"
    )]
    Login {
        job_id: JobId,
        /// The partition to which it was moved.
        partition: String,
    },
    /// The request was changed to one that gpufrac refuses.
    /// Cure: Change the job, then release it.
    #[error(
        "{source}; change the job with `scontrol update jobid={job_id} gres=gpufrac:0.25`, then release it"
    )]
    Ambiguous { job_id: JobId, source: RequestError },
    /// The request and Slurm's allocation differ.
    /// Cure: Change the job, then release it.
    #[error(
        "the job asks for {wanted} {name}, and Slurm allocated {allocated} of them on this node; change it with `scontrol update jobid={job_id} gres=gpufrac:0.25`, then release it"
    )]
    Allocated {
        job_id: JobId,
        /// The counted resource.
        name: String,
        /// The count in the request.
        wanted: u64,
        /// The count that slurmctld allocated.
        allocated: u64,
    },
    /// slurmctld did not answer, or the answer has no devices.
    /// Cure: Check `scontrol show job -d JOBID`. The job is requeued or held.
    #[error("reading the job's allocation on this node from Slurm failed: {why}")]
    Uncounted { why: String },
    // The request counts per node and per task at the same time; job_submit writes only one of them.
    /// The request counts twice.
    /// Cure: Submit the job again with one of the two forms.
    #[error(
        "the job asks for shares of GPUs both per node (`{per_node}`) and per task (`{per_task}`); cancel it, and submit it again with one of them"
    )]
    NodeAndTask { per_node: String, per_task: String },
    /// The device is asked for without an amount.
    /// Cure: Submit the job again with an amount.
    #[error("`{tres}` does not say how much of device {device} the job asks for")]
    NoSize {
        device: DeviceIndex,
        /// The GRES in the record.
        tres: String,
    },
    /// The allocation is smaller than the smallest size.
    /// Cure: Submit the job again; look at the sizes with `gpufrac check`.
    #[error("{units} units are less than the smallest slice of pool `{pool}`")]
    TooSmall {
        pool: String,
        /// The granted units.
        units: Units,
    },
    /// The driver numbers the GPUs in another order than at boot.
    /// Cure: Drain the node, run `gpufrac node-setup`, resume the node.
    #[error("GPU {index} is {found} now, at boot it was {expected}")]
    OtherGpu {
        index: GpuIndex,
        /// UUID at boot.
        expected: String,
        /// UUID now.
        found: String,
    },
    /// MIG was switched off, and gpufrac asks no more of the GPU before it is on.
    #[error("{gpu} is not in MIG mode ({mode:?})")]
    MigOff { gpu: String, mode: MigMode },
    /// The pool names another GPU model than the driver.
    #[error("{gpu} ({model}) does not match pool `{pool}`: {}", differences.join("; "))]
    Geometry {
        gpu: String,
        /// NVML's product name.
        model: String,
        pool: String,
        differences: Vec<String>,
    },
    /// The driver reported that it did not make the instance, with a code that does not exclude that it did.
    #[error("{error}")]
    NotMade {
        /// The driver's answer.
        error: NvmlError,
        /// The ids of the GPU instances that stood before; None if the driver's files do not tell.
        before: Option<BTreeSet<u32>>,
    },
    // The driver did not make the first instance of a GPU: only there it looks whether something uses the GPU
    // (`kmigmgrSetMIGState` of open-gpu-kernel-modules). nvml.h does not say with which code.
    /// The driver did not make the first instance of the GPU, because something uses the GPU: a process whose pid
    /// follows, a display, peer access, memory that a process left. The driver's answer stands at the end. The job goes
    /// back to the queue, the node stays.
    /// Cure: End the process, or keep it from the GPUs of pools with MIG. If no process is named: end displays and
    /// monitoring on this GPU, or reset it while no job uses it.
    #[error(
        "{gpu} has no instance, and is not idle: {}; {error}",
        mig_mode::named(users)
    )]
    NotIdle {
        gpu: String,
        /// Processes that may use the GPU.
        users: Vec<GpuUser>,
        /// The driver's answer.
        error: NvmlError,
    },
    /// No position is free.
    #[error("no position is free for {profile} on {side} of GPU {gpu_index}: {standing}")]
    NoPlace {
        /// The menu entry's profile.
        profile: String,
        side: Side,
        gpu_index: GpuIndex,
        /// The instances on that side.
        standing: String,
    },
    // No position is free, because of an instance without a lease. Without a drain, jobs would return here for ever.
    /// Instances that gpufrac did not make take the place.
    #[error("no position is free for {profile} on {side} of GPU {gpu_index}: {standing}")]
    NotOurs {
        /// The menu entry's profile.
        profile: String,
        side: Side,
        gpu_index: GpuIndex,
        /// The instances without a lease.
        standing: String,
    },
    /// MIG is on, and the pool's mechanism needs it off.
    #[error("{gpu} is in MIG mode, and the pool shares it by {mechanism}")]
    MigOn { gpu: String, mechanism: Mechanism },
    /// Leases of jobs that are ending still count.
    /// Cure: The job waits or is requeued. If it repeats: `gpufrac leases`.
    #[error(
        "no room for {units} units on {side} of GPU {gpu_index}: {taken} of {capacity} are leased"
    )]
    NoRoom {
        /// The granted units.
        units: Units,
        side: Side,
        gpu_index: GpuIndex,
        /// The units of other jobs.
        taken: u32,
        /// The units of the device.
        capacity: u32,
    },
    /// Jobs of the old mechanism still run on the GPU.
    /// Cure: Wait for their end; [change a configuration](../change.md).
    #[error("{gpu} is still shared by {mechanism} with job {job_id}, by an earlier configuration")]
    Earlier {
        gpu: String,
        job_id: JobId,
        /// The mechanism of that job.
        mechanism: Mechanism,
    },
    #[error(transparent)]
    Mode(#[from] ModeError),
    #[error(transparent)]
    Switch(#[from] SwitchError),
    #[error(transparent)]
    Share(#[from] ShareError),
    /// A process holds the file of the free instance.
    /// Cure: End the process that the message names.
    #[error(
        "{holder}, the file of the instance that is free; the job waits for another place or for the end of that process"
    )]
    Held {
        /// The process, in words.
        holder: String,
        place: Occupied,
    },
    /// A process that belongs to no job runs on the new instance.
    /// Cure: End the process; the job is requeued.
    #[error(
        "process {pid} runs on the job's new instance and belongs to no job with this instance"
    )]
    Stranger { pid: u32 },
    /// The driver does not offer the profile of the menu.
    /// Cure: Compare `nvidia-smi mig -lgip` with the menu; remove the size.
    #[error("the GPU has no profile {0}")]
    NoProfile(u32),
}

fn numbers(devices: &[DeviceIndex]) -> Vec<u32> {
    devices.iter().map(|device| device.0).collect()
}

/// What follows from an error, for its job and for the node.
#[derive(Clone, Copy)]
struct Verdict {
    reaction: Reaction,
    cause: Cause,
    fault: Option<Fault>,
    /// Whether another node may serve the job.
    leaves_node: bool,
    /// Whether the cause is only what the driver or a lock says, which do not know users.
    by_driver: bool,
    cure: Option<&'static str>,
}

impl Verdict {
    fn new(reaction: Reaction, cause: Cause) -> Verdict {
        Verdict {
            reaction,
            cause,
            fault: None,
            leaves_node: reaction == Reaction::Wait,
            by_driver: false,
            cure: None,
        }
    }

    fn of(error: &impl Caused) -> Verdict {
        let facts = error.facts();
        let reaction = match facts.class {
            ErrorClass::Transient => Reaction::Wait,
            ErrorClass::Broken => Reaction::Drain,
        };
        Verdict {
            cure: facts.cure,
            ..Verdict::new(reaction, facts.cause)
        }
    }

    fn loses(self, fault: Fault) -> Verdict {
        Verdict {
            fault: Some(fault),
            ..self
        }
    }

    fn elsewhere(self) -> Verdict {
        Verdict {
            leaves_node: true,
            ..self
        }
    }

    fn by_driver(self) -> Verdict {
        Verdict {
            by_driver: true,
            ..self
        }
    }

    fn cure(self, cure: &'static str) -> Verdict {
        Verdict {
            cure: Some(cure),
            ..self
        }
    }
}

impl CarveError {
    /// The table of reactions, causes and cures. No error that a user can cause drains a node.
    fn verdict(&self) -> Verdict {
        use Cause::{Hardware, Root, User};
        use Fault::{Device, Node};
        use Reaction::{Drain, Hold, Refuse, Wait};
        let new = Verdict::new;
        match self {
            CarveError::Config(_) => new(Hold, Root).cure(
                "correct the file (`gpufrac check --file-only`), run `gpufrac node-setup`, then release the job",
            ),
            CarveError::NoPool { .. } => new(Hold, Root).loses(Node).elsewhere().cure(
                "add the node to `nodes` of its pool in gpufrac.toml, or take gpufrac and shard out of its Gres= in slurm.conf; then release the job",
            ),
            CarveError::NoSpank(_) => new(Hold, Root).elsewhere().cure("then release the job"),
            CarveError::OtherPools(_) => new(Hold, Root).elsewhere(),
            // The file was changed since node-setup.
            CarveError::ConfigChanged { .. } => new(Hold, Root).loses(Node).elsewhere().cure(
                "correct gpufrac.toml, or drain the node and run `gpufrac node-setup` again; then release the job",
            ),
            CarveError::Geometry { .. } => new(Hold, Root).loses(Device).elsewhere().cure(
                "set `gpu` of the pool to this model, or describe it in a [geometry.NAME] table; then release the job",
            ),
            CarveError::UnknownDevice { .. } => new(Hold, User)
                .elsewhere()
                .cure("gres.conf and gpufrac.toml do not agree: compare with `gpufrac conf`"),
            // The allocation does not differ from node to node.
            CarveError::Rule { .. }
            | CarveError::Login { .. }
            | CarveError::Ambiguous { .. }
            | CarveError::Allocated { .. }
            | CarveError::NodeAndTask { .. } => new(Hold, User),
            // An admin downgrades the cluster, or upgrades it in another order.
            CarveError::Entry(_) => new(Hold, Root)
                .elsewhere()
                .cure("install the same packages on slurmctld's host and the nodes; then release the job"),
            CarveError::SeveralDevices { .. }
            | CarveError::NoDevice
            | CarveError::Mechanism { .. }
            | CarveError::NoSize { .. }
            | CarveError::TooSmall { .. } => new(Refuse, User),
            CarveError::Record(error) => Verdict::of(error).loses(Node),
            // The node works for all jobs when the leases of that build have ended.
            CarveError::Store(error) if error.is_of_newer_build() => Verdict::of(error),
            CarveError::Store(error) => Verdict::of(error).loses(Node),
            CarveError::File(error) => Verdict::of(error).loses(Node),
            // The queue moves.
            CarveError::Lock(error @ LockError::Timeout { still, .. }) if *still < LOCK_PATIENCE => {
                Verdict::of(error).by_driver()
            }
            CarveError::Lock(error @ LockError::Timeout { .. }) => {
                Verdict::of(error).loses(Device).by_driver()
            }
            CarveError::Lock(error) => Verdict::of(error).loses(Node).by_driver(),
            CarveError::Nvml(error) | CarveError::NotMade { error, .. } => {
                let fault = match self {
                    CarveError::Nvml(NvmlError::Start { .. } | NvmlError::Missing { .. }) => Node,
                    _ => Device,
                };
                Verdict {
                    cure: error.hint(),
                    ..Verdict::of(error).loses(fault).by_driver()
                }
            }
            CarveError::Lease(error) => Verdict::of(error),
            CarveError::Caps(error) => Verdict::of(error).loses(Device),
            CarveError::Old(error) => Verdict::of(error).loses(Device).by_driver(),
            CarveError::Release(error) => Verdict::of(error).loses(Device).by_driver(),
            CarveError::Mode(error @ ModeError::Nvml(_)) => {
                Verdict::of(error).loses(Device).by_driver()
            }
            CarveError::Mode(error) => Verdict::of(error).loses(Device),
            // A job on the GPU is ending.
            CarveError::Switch(error @ SwitchError::Leased { .. }) => Verdict::of(error).by_driver(),
            CarveError::Switch(error) => Verdict::of(error).loses(Device).by_driver(),
            CarveError::Share(
                error @ ShareError::Mps(MpsError::Start { .. } | MpsError::Run { .. }),
            ) => Verdict::of(error).loses(Device).cure(
                "install the driver's nvidia-cuda-mps-control (a multi-user server needs driver 555 or later; older ones can do tenancy \"private\"), or set mps_control in [paths]",
            ),
            CarveError::Share(error) => Verdict::of(error).loses(Device),
            // Parts that were made stay for a later run in any case.
            CarveError::Unfinished { error, .. } => {
                let verdict = error.verdict();
                Verdict {
                    leaves_node: verdict.reaction == Wait,
                    by_driver: false,
                    ..verdict
                }
            }
            CarveError::NoPlace { .. } | CarveError::NoRoom { .. } => new(Wait, User),
            CarveError::Held { .. } | CarveError::Stranger { .. } => new(Wait, User).loses(Device),
            CarveError::Earlier { .. } => new(Wait, Root).loses(Device),
            CarveError::NotIdle { .. } => new(Wait, Root)
                .loses(Device)
                .by_driver()
                .cure("end the process, or keep it from the GPUs of pools with MIG"),
            // Slurm is silent, and not the node at fault.
            CarveError::Uncounted { .. } => Verdict {
                leaves_node: false,
                ..new(Wait, User)
            },
            CarveError::Foreign(_) => new(Drain, Root).cure(
                "rebuild gpufrac for the series of this Slurm with `cargo xtask dist --slurm-include FOLDER`; where Slurm is not in the system's folders, let ldconfig know its libslurm",
            ),
            CarveError::NotOurs { .. } => new(Drain, Root).cure(
                "`gpufrac clean` on the node shows the instances without a lease and destroys those that nothing uses",
            ),
            CarveError::OtherGpu { .. } => {
                new(Drain, Hardware).cure("drain the node and run `gpufrac node-setup` again")
            }
            CarveError::MigOff { .. } => {
                new(Drain, Root).cure("`gpufrac node-setup` switches MIG on, or says how")
            }
            CarveError::MigOn { .. } => new(Drain, Root).cure(
                "switch MIG off with `nvidia-smi -i N -mig 0`, or give the pool mechanism mig or mig+mps",
            ),
            CarveError::NoProfile(_) => new(Drain, Root),
        }
    }

    pub fn reaction(&self) -> Reaction {
        self.verdict().reaction
    }

    pub fn cause(&self) -> Cause {
        self.verdict().cause
    }

    /// What of the node cannot be used while the error lasts. None for errors of the job, and for those that another
    /// place causes, which is counted by itself: a slice that cannot be removed, a slow predecessor.
    pub fn fault(&self) -> Option<Fault> {
        self.verdict().fault
    }

    /// Whether a user is known to be the cause. An instance in use is decided by who holds it.
    pub fn is_users(&self) -> bool {
        let verdict = self.verdict();
        !verdict.by_driver && verdict.cause == Cause::User
    }

    /// Whether another node may serve the job. Files differ from node to node, and the allocation of a job does not.
    pub fn leaves_node(&self) -> bool {
        self.verdict().leaves_node
    }

    /// The place to avoid in a further attempt.
    pub(super) fn held_place(&self) -> Option<Occupied> {
        match self {
            CarveError::Held { place, .. } => Some(*place),
            _ => None,
        }
    }

    /// The cure for an admin.
    pub fn hint(&self) -> Option<&'static str> {
        self.verdict().cure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_by_their_bare_numbers() {
        let devices = vec![DeviceIndex(0), DeviceIndex(3)];
        let unknown = CarveError::UnknownDevice {
            devices: devices.clone(),
            count: 2,
        };
        let several = CarveError::SeveralDevices { devices };
        for error in [unknown, several] {
            let text = error.to_string();
            assert!(text.contains("the devices [0, 3]"), "{text}");
        }
    }
}
