//! What is asked of [`decide`](super::decide), and what it answers.

use crate::entry::Entry;
use crate::request::{self, GresForm};

/// When the question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Occasion {
    /// A job is submitted.
    Submit,
    /// A pending job is changed: only what is changed is in the request.
    Modify,
    /// A step starts inside a job's allocation.
    Step,
}

/// What a job asks for, in Slurm's own texts; `None` where it says nothing.
///
/// For the options `--gpus`, `--gpus-per-*` the text is what Slurm makes of it: `gres:gpu:TEXT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobRequest<'a> {
    /// The partitions as given: names with commas between.
    pub partitions: Option<&'a str>,
    /// Where a job goes that names no partition.
    pub default_partition: Option<&'a str>,
    /// Whether it names a reservation. Where it names no partition, that of the reservation comes before the default one
    /// (`_get_job_parts` of `job_mgr.c`), and Slurm alone knows whether there is one.
    pub reserved: bool,
    /// How this Slurm marks a GRES; used for what is added and for items without a mark.
    pub form: GresForm,
    /// Whether the texts are those that slurmctld counts, with a mark before each GRES. In the options of a command they are
    /// as the user wrote them, and Slurm marks them later.
    pub marked: bool,
    /// Whether an update takes the counts of a job away with the texts that name them.
    pub updates_take_counts: bool,
    /// `--gres` and `--gpus-per-node`.
    pub tres_per_node: Option<&'a str>,
    /// The Types of GPUs that Slurm counts on any node, where all of them are known.
    pub gpu_types: Option<&'a [String]>,
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
    /// `--ntasks-per-gpu`: Slurm derives GPUs from it after the job was submitted.
    pub tasks_per_gpu: bool,
    /// `--exclusive`: Slurm then gives the job every GRES of its nodes but the shared ones.
    pub exclusive: bool,
    /// `--core-spec` or `--thread-spec`, where the site takes them: such a job is exclusive.
    pub core_spec: bool,
    /// `--ntasks`.
    pub tasks: Option<u32>,
    /// `--ntasks-per-node`.
    pub tasks_per_node: Option<u32>,
    /// The most nodes of `--nodes`.
    pub max_nodes: Option<u32>,
}

impl JobRequest<'_> {
    /// Whether any part of it speaks of fractions, well-formed or not.
    #[must_use]
    pub fn names_fraction(&self) -> bool {
        self.tres().any(request::means_fraction)
    }

    /// The texts in which GRES can be named.
    pub(super) fn tres(&self) -> impl Iterator<Item = &str> {
        let parts = [self.tres_per_node, self.tres_per_task];
        parts.into_iter().flatten().chain(self.tres_of_gpus())
    }

    /// Those of them that gpufrac never writes.
    pub(super) fn tres_of_gpus(&self) -> impl Iterator<Item = &str> {
        let parts = [self.tres_per_job, self.tres_per_socket];
        parts.into_iter().flatten()
    }
}

/// What is to be done with the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: it is not gpufrac's.
    Untouched,
    /// A fraction is given.
    Rewritten {
        /// The new text of `tres_per_node`, or of `tres_per_task` where the entry is one per task; the same as before
        /// when it was rewritten already.
        text: String,
        /// What the node must know.
        entry: Entry,
        /// What the user should know: that it was rounded up.
        note: Option<String>,
    },
}
