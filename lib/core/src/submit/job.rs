//! The input and output of [`decide`](super::decide).

use std::fmt;

use crate::entry::Entry;
use crate::fraction::Units;
use crate::nodes_gres::NodesGres;
use crate::per_gpu::PerGpu;
use crate::request::{self, GresForm};

/// The event for which a decision is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Occasion {
    /// A job is submitted.
    Submit,
    /// A pending job is changed: the request contains only the changes.
    Modify,
    /// A step starts inside a job's allocation.
    Step,
}

/// Whether Slurm has a partition of this name. Called only for a refusal that recommends one.
#[derive(Clone, Copy)]
pub struct Existing<'a>(pub &'a dyn Fn(&str) -> bool);

impl fmt::Debug for Existing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Existing")
    }
}

/// What Slurm gives for each GPU in a partition. Only slurmctld knows it.
#[derive(Clone, Copy)]
pub struct SitePerGpu<'a>(pub &'a dyn Fn(&str) -> PerGpu);

impl fmt::Debug for SitePerGpu<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SitePerGpu")
    }
}

/// An amount of memory in MiB, as a job asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// `--mem`; 0 is all memory of the node.
    PerNode(u64),
    /// `--mem-per-cpu`.
    PerCpu(u64),
}

/// The CPUs and the memory to write into the job; None leaves what the job has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// `--mincpus`: CPUs on each node.
    pub cpus_per_node: Option<u32>,
    pub cpus_per_task: Option<u32>,
    pub memory: Option<Memory>,
    /// Values of `--cpus-per-gpu` and `--mem-per-gpu`, for GPUs that Slurm counts as devices.
    pub per_gpu: PerGpu,
    /// Whether `--cpus-per-gpu` and `--mem-per-gpu` of the job are removed, because the other values replace them.
    pub replaces_options: bool,
}

/// The request of a job, in Slurm's own texts; `None` for an option that is not given.
///
/// For the options `--gpus` and `--gpus-per-*` the text is the one that Slurm makes of the value: `gres:gpu:TEXT`.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobRequest<'a> {
    /// The partitions as given: names separated by commas.
    pub partitions: Option<&'a str>,
    /// The partition of a job that names none.
    pub default_partition: Option<&'a str>,
    /// Whether the job names a reservation. If the job names no partition, the reservation's partition takes
    /// precedence over the default one (`_get_job_parts` of `job_mgr.c`); only Slurm knows whether the reservation
    /// has one.
    pub reserved: bool,
    /// The mark of GRES in this Slurm, for items that gpufrac adds and for items without a mark.
    pub form: GresForm,
    /// Whether the texts are those that slurmctld counts, with a mark before each GRES. Options of a command are as
    /// the user wrote them; Slurm marks them later.
    pub marked: bool,
    /// Whether this Slurm forgets that shares of a GPU are in use when the first of their jobs ends (before 23.11.5,
    /// `_job_dealloc` of `gres_ctld.c`), and then gives the GPU whole to another job.
    pub forgets_shares: bool,
    /// Whether an update of the texts also removes counts of the job that the texts no longer name.
    pub updates_take_counts: bool,
    /// `--gres` and `--gpus-per-node`.
    pub tres_per_node: Option<&'a str>,
    /// Tells whether Slurm has a partition: gpufrac.toml may name others, which no refusal recommends then.
    pub existing: Option<Existing<'a>>,
    /// The GRES of the cluster's nodes; None if they are not all known, as in clients.
    pub nodes: Option<&'a NodesGres>,
    /// `--gpus`.
    pub tres_per_job: Option<&'a str>,
    /// `--gpus-per-socket`.
    pub tres_per_socket: Option<&'a str>,
    /// `--gpus-per-task`, `--tres-per-task`.
    pub tres_per_task: Option<&'a str>,
    /// `--cpus-per-gpu`.
    pub cpus_per_tres: Option<&'a str>,
    /// `--mem-per-gpu`.
    pub mem_per_tres: Option<&'a str>,
    /// `--gpu-freq`.
    pub tres_freq: Option<&'a str>,
    /// `--ntasks-per-gpu`; Slurm derives GPUs from it after the submission.
    pub tasks_per_gpu: bool,
    /// `--exclusive`; Slurm then gives the job every GRES of its nodes except shared ones.
    pub exclusive: bool,
    /// `--core-spec` or `--thread-spec`, if the site allows them: such a job is exclusive.
    pub core_spec: bool,
    /// `--ntasks`.
    pub tasks: Option<u32>,
    /// `--ntasks-per-node`.
    pub tasks_per_node: Option<u32>,
    /// `--cpus-per-task`.
    pub cpus_per_task: Option<u32>,
    /// `--mincpus`.
    pub cpus_per_node: Option<u32>,
    pub memory: Option<Memory>,
    /// What the cluster gives to a job that names no memory, where Slurm gives none for a GPU; None where it is not
    /// known. A partition may give something else.
    pub default_memory: Option<Memory>,
    /// What Slurm gives for a GPU.
    pub per_gpu: Option<SitePerGpu<'a>>,
    /// The minimum of `--nodes`.
    pub min_nodes: Option<u32>,
    /// The maximum of `--nodes`.
    pub max_nodes: Option<u32>,
    /// `--gpufrac-burst`: the ceiling of compute.
    pub burst: Option<Units>,
}

impl JobRequest<'_> {
    /// Whether a text of the request names a fraction, well-formed or not.
    pub fn names_fraction(&self) -> bool {
        self.tres().any(request::means_fraction)
    }

    /// All texts that can name GRES.
    pub(super) fn tres(&self) -> impl Iterator<Item = &str> {
        let parts = [self.tres_per_node, self.tres_per_task];
        parts.into_iter().flatten().chain(self.tres_of_gpus())
    }

    /// The texts that can name GRES and that gpufrac never writes.
    pub(super) fn tres_of_gpus(&self) -> impl Iterator<Item = &str> {
        let parts = [self.tres_per_job, self.tres_per_socket];
        parts.into_iter().flatten()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request is not about gpufrac; it stays as it is.
    Untouched,
    /// A fraction is granted.
    Rewritten {
        /// The new text of `tres_per_node`, or of `tres_per_task` if the entry is per task; unchanged if gpufrac
        /// rewrote it before.
        text: String,
        /// The entry for the node.
        entry: Entry,
        /// The CPUs and the memory that come with the fraction.
        share: Share,
        /// A message for the user: that the fraction was rounded up, and what comes with it.
        note: Option<String>,
    },
}
