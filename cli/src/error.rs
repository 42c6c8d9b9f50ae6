//! The errors that end a command.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use crate::status::StatusError;
use gpufrac_core::config::ConfigErrors;
use gpufrac_core::finding::Finding;
use gpufrac_core::geometry::Geometry;
use gpufrac_core::hostlist::{self, HostlistError};
use gpufrac_core::ids::{GpuIndex, JobId};
use gpufrac_host::files::FileError;
use gpufrac_host::replace::ReplaceError;
use gpufrac_node::job::environment;
use gpufrac_node::node::{Node, NodeError};
use gpufrac_node::setup::SetupError;
use gpufrac_node::slice::teardown::TeardownError;
use gpufrac_node::slice::unleased::CleanError;
use gpufrac_node::state::leases::StoreError;
use gpufrac_node::state::locks::LockError;
use gpufrac_nvml::NvmlError;
use gpufrac_slurm_settings::AskError;
use gpufrac_slurm_settings::gpu_count::GpuCount;

/// `; yours here are 12, 15`, or nothing.
fn of_own(jobs: &[JobId]) -> String {
    if jobs.is_empty() {
        return String::new();
    }
    let mut names: Vec<String> = jobs.iter().map(ToString::to_string).collect();
    names.dedup();
    format!("; yours here are {}", names.join(", "))
}

/// The errors that end a command.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// A file cannot be opened.
    /// Cure: Correct the path (`--config FILE`), or run the command as root.
    #[error("reading `{}` failed: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    /// gpufrac.toml has the mistakes that follow, each with file and line.
    /// Cure: Correct each line (`gpufrac check --file-only`); [messages about gpufrac.toml](configuration.md) has the
    /// causes.
    #[error("the configuration is wrong\n{0}")]
    Config(ConfigErrors),
    /// The advice has no mechanism for this model and workload.
    #[error("no pool can be proposed for these GPUs\n{0}")]
    Proposed(ConfigErrors),
    /// This host has no records.
    /// Cure: Follow the text; [Reports](../report.md) says where records are.
    #[error(
        "reading usage records failed: there are none; name their files or folders with --records, or run this on a node, or set `[paths] shared` in gpufrac.toml so that gpufrac-reaperd collects the records of all nodes"
    )]
    NoRecords,
    #[error(transparent)]
    Period(#[from] gpufrac_report::period::PeriodError),
    /// The report has no such form.
    /// Cure: Choose another `--format`.
    #[error("writing the report failed: {0}; choose another --format")]
    Json(#[from] serde_json::Error),
    /// A report cannot be written as CSV.
    #[error("writing the report failed: {0}; choose another --format")]
    Csv(#[from] gpufrac_report::render::csv::Error),
    /// slurmdbd or its database hangs; sacct was killed.
    /// Cure: Follow the text.
    #[error(
        "reading the output of sacct failed: it printed nothing for {} s; repeat the command when slurmdbd answers, or leave sacct out with --no-sacct",
        silence.as_secs()
    )]
    Sacct {
        /// How long it was waited for.
        silence: Duration,
    },
    /// slurmdbd or its database hangs; summaries that were written stay.
    /// Cure: Follow the text.
    #[error(
        "writing the summary of job {id} failed: sacctmgr did not answer within {} s; repeat the command when slurmdbd answers",
        limit.as_secs()
    )]
    Sacctmgr { id: String, limit: Duration },
    /// `--export` needs slurmdbd.
    /// Cure: Follow the text.
    #[error(
        "writing summaries failed: sacct has no accounting; they are stored in slurmdbd, so run this where sacct shows jobs"
    )]
    NoAccounting,
    // sacctmgr would spoil the summaries.
    /// `sacctmgr modify job` of Slurm 22.05 and earlier changes capitals.
    /// Cure: Follow the text, or update Slurm.
    #[error(
        "writing summaries failed: sacctmgr before Slurm 23.02 writes AdminComment in small letters, in which no tool can read them; use --dry-run, which prints a summary for each job, and store these in jobstats' own database"
    )]
    SmallLetters,
    /// The user id has no name here.
    /// Cure: Follow the text.
    #[error(
        "finding the name of the user failed: this host does not know the user id; use --by user on a host that does"
    )]
    NoName,
    /// A job has a slice here, another program has the GPU's lock, or a file or the driver cannot be used.
    /// Cure: Follow the `hint:` line.
    #[error("measuring the GPU failed: {0}")]
    Prove(#[from] gpufrac_prove::ProveError),
    /// sinfo or squeue did not answer.
    #[error("measuring the GPU failed: {0}, so it is not known whether the node is drained")]
    ProveSlurm(gpufrac_slurm_settings::AskError),
    /// Slurm may start a job on the node.
    #[error("measuring the GPU failed: node `{node}` is `{state}` with {jobs} jobs, not drained")]
    NotDrained {
        node: String,
        state: String,
        /// How many jobs it has.
        jobs: usize,
    },
    #[error(transparent)]
    Plan(#[from] gpufrac_plan::command::PlanError),
    #[error(transparent)]
    Toml(toml_edit::TomlError),
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The question has no answer; the text says why.
    /// Cure: Follow the text.
    #[error("advice failed: {0}")]
    Advise(#[from] gpufrac_core::advise::AdviseError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Status(#[from] StatusError),
    /// The node is in no pool.
    /// Cure: Add the node to `nodes` of a pool, or name another node with `--node`.
    #[error(
        "no pool has GPUs on node `{node}`, so that it has no leases; the nodes of the pools are {nodes}"
    )]
    NoPool {
        node: String,
        /// The nodes of the pools, a hostlist.
        nodes: String,
        /// One of these nodes.
        one: String,
    },
    /// Leases and records are files of their node.
    /// Cure: Run the command on that node: `ssh NODE gpufrac ...`, or `srun -w NODE gpufrac ...` in a job.
    #[error("the leases and records of node `{node}` are on `{node}`, and this host is `{host}`")]
    Elsewhere { node: String, host: String },
    /// The command changes files of root.
    #[error("only root may do this")]
    NotRoot,
    /// `clean` and `lease drop` ask before they destroy.
    #[error("stdin is not a terminal, and nothing is destroyed without a confirmation")]
    NobodyToAsk,
    /// The name is not in `gpufrac leases`.
    #[error("no lease `{name}` on this node")]
    NoLease { name: String },
    /// The shell is in no control group of a job of the user with a slice on this node.
    /// Cure: Log in where pam_slurm_adopt puts the shell into a job, or name the job with `--job`.
    #[error("this shell is in no job with a slice{}", of_own(jobs))]
    NoJobHere {
        /// The user's own jobs with slices on this node.
        jobs: Vec<JobId>,
    },
    /// The job has no lease on this node, is another user's, or is being prepared.
    #[error("job {job} is none of yours with a slice on this node")]
    NoSliceHere { job: JobId },
    /// Slurm says that the job is on the node.
    #[error("job {job} is {state} on this node: its lease stays")]
    JobIsThere { job: JobId, state: String },
    /// A running job with a fraction has no lease, so an instance without a lease may be its own.
    #[error("nothing is destroyed: no lease is known of {} on node {node}; one of these instances may belong to them", in_words(.jobs))]
    JobsWithoutLease { node: String, jobs: Vec<JobId> },
    /// A process uses each instance without a lease.
    #[error("nothing is destroyed: each of these instances is in use")]
    AllInUse,
    /// slurmctld did not answer, so gpufrac cannot know which jobs have ended.
    #[error("nothing is destroyed: asking Slurm for its jobs failed: {0}")]
    SlurmIsSilent(AskError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Clean(#[from] CleanError),
    /// The driver or a process keeps the slice.
    /// Cure: Follow the text after the colon; the lease stays until then.
    #[error("the slice cannot be removed yet: {0}")]
    Teardown(#[from] TeardownError),
    /// The value is not a list of nodes.
    #[error("`{text}`: {source}")]
    Nodes {
        /// The value as written.
        text: String,
        source: HostlistError,
    },
    /// The command ran on a host without the GPUs and without a driver.
    /// Cure: Give the number with `--gpus N`, or run `gpufrac conf` on the node.
    #[error("counting the GPUs of `{node}` failed: {source}")]
    GpuCount { node: String, source: NvmlError },
    /// Nothing says how many GPUs a node of a pool has, or NVML, gres.conf and `Gres=` do not agree; MIG instances,
    /// shards and mps do not count GPUs.
    /// Cure: Correct what is wrong, or give `--gpus N`.
    #[error("counting the GPUs of {node} failed: {}", why_gpus(count))]
    Gpus {
        node: String,
        /// What is known.
        count: GpuCount,
    },
    /// `--gpu` names one model for all GPUs of a node, NVML does not answer, and Slurm counts GPUs of several Types
    /// there.
    /// Cure: Run the command on the node, or write the pools into gpufrac.toml with `gpus`; where all GPUs are of this
    /// model give `--gpus N`.
    #[error(
        "telling the GPUs of {node} apart failed: Slurm counts GPUs of the Types {} there, and `--gpu` names one model",
        types.join(", ")
    )]
    Types { node: String, types: Vec<String> },
    /// The text is not one job's number.
    /// Cure: Write the number that `squeue -o %A` prints.
    #[error(
        "`{text}` is not the id of one job: write the id that `squeue -o %A` and `sacct -o JobIDRaw` print, also for tasks of an array and components of a het job"
    )]
    NotAJob { text: String },
    /// The folder of the file does not exist or is full, or the user may not write there.
    /// Cure: Name another file, or free space.
    #[error("writing `{}` failed: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The driver is not loaded, or the node has no GPU.
    #[error("this node shows no GPU: {source}")]
    NoGpu { source: NvmlError },
    /// The node has no GPU, or the driver does not show it.
    #[error("NVML shows no GPU on this node")]
    NoGpus,
    /// The GPU has no MIG, or MIG mode is off and the driver does not tell the profiles.
    #[error("NVML shows no MIG profile of GPU {gpu} ({product})")]
    NoProfiles { gpu: GpuIndex, product: String },
    /// The name of the table has other characters than letters, digits, `-` and `_`.
    /// Cure: Give another `--name`.
    #[error("`{name}` is no name of a table; use letters, digits, `-` and `_`")]
    TableName { name: String },
    /// The model is not built in.
    #[error("GPU {index} is `{product}` with {memory} MiB, a model that gpufrac does not know")]
    UnknownGpu {
        index: u32,
        /// NVML's product name.
        product: String,
        /// Memory of the GPU in MiB.
        memory: u64,
    },
    /// slurm.conf is not in a usual place.
    #[error("Slurm's files are not found: {why}")]
    NoSlurmFiles { why: String },
    /// The running Slurm could not work with the changes.
    /// Cure: Follow the hint.
    #[error("proposing changes of Slurm failed: {}; nothing was written", .0.what)]
    Impossible(Box<Finding>),
    /// slurmctld or `slurmd -G` of this host refuses the proposed files, or they change more than the pools' devices;
    /// the lines below are theirs.
    #[error(
        "trying the proposal with Slurm failed; nothing was written:\n{}",
        said.join("\n")
    )]
    Trial {
        /// What slurmctld, `slurmd -G` and the comparison say.
        said: Vec<String>,
    },
    /// slurm.conf lacks a setting that a pool needs.
    #[error("{} has no {what}", path.display())]
    NotInSlurmConf {
        /// The path of slurm.conf.
        path: PathBuf,
        /// The missing setting.
        what: String,
        /// The option that gives the value instead.
        option: &'static str,
    },
    // slurmctld sends the files to this host, so a change here would be lost.
    /// A configless node has copies of slurmctld's files.
    #[error("`{}` is a copy that slurmctld sent: nothing was written", path.display())]
    SentFile { path: PathBuf },
    /// gpufrac-reaperd does not run on this host, and gpufrac.toml has no `[paths] shared`, or no node has written
    /// there yet.
    #[error("finding the files of nodes failed: there is none")]
    NoNodeFile,
    /// PrivateData in slurm.conf has `nodes`: the pages would show hidden nodes to all readers.
    #[error(
        "exporting pages failed: only root may read the files of the nodes, because Slurm's PrivateData hides nodes"
    )]
    HiddenNodes,
    /// The folder of `--export` or `[web] folder` has files that no earlier export wrote; an export removes old pages,
    /// so it does not use such a folder.
    /// Cure: Name another folder.
    #[error("writing pages to `{}` failed: the folder has files of others; name a new folder or an empty one", path.display())]
    NotPages { path: PathBuf },
    /// The terminal is gone, or cannot be switched.
    /// Cure: Use another terminal, or `--once`.
    #[error("using the terminal failed: {0}; print the slices once with `--once`")]
    Terminal(std::io::Error),
    /// The reaper wrote no record of this job on this node, or the record is older than `[reaper] keep`.
    /// Cure: Run the command on the node that the hint names. Without `[reaper]` in gpufrac.toml there are no records.
    #[error("no record of job {job} for node `{node}` in {places}")]
    NoRecord {
        job: JobId,
        node: String,
        /// What Slurm knows of the job.
        known: JobWhereabouts,
        /// The searched folders, separated by commas.
        places: String,
    },
}

impl CliError {
    /// Prints the error to stderr.
    pub fn print(&self) {
        eprintln!("gpufrac: {self}");
        if let Some(hint) = self.hint() {
            eprintln!("hint: {hint}");
        }
    }

    /// The error for a node without pools.
    pub fn no_pool(node: &Node) -> CliError {
        let pools = node.config.pools.iter();
        let mut names: Vec<&str> = pools
            .flat_map(|pool| pool.nodes.names())
            .map(String::as_str)
            .collect();
        names.sort_unstable();
        names.dedup();
        CliError::NoPool {
            node: node.name.clone(),
            nodes: hostlist::short(&names),
            one: names.first().copied().unwrap_or_default().to_owned(),
        }
    }

    /// The error for a node that is not this host.
    pub fn elsewhere(node: &Node) -> CliError {
        CliError::Elsewhere {
            node: node.name.clone(),
            host: environment::host_name(),
        }
    }

    /// What to do next. An arm with a literal text is the last cell of the message's row in docs/admin/messages too,
    /// unless the message's comment has its own `Cure:`.
    pub fn hint(&self) -> Option<String> {
        let there = |node: &str| {
            cure(format!(
                "run it there: `ssh {node} gpufrac ...`, or in a job: `srun -w {node} gpufrac ...`"
            ))
        };
        match self {
            CliError::Read { path, source } if source.kind() == ErrorKind::InvalidData => {
                let path = path.display();
                cure(format!(
                    "save it as UTF-8, for example: `iconv -f latin1 -t utf-8 {path} > {path}.new`"
                ))
            }
            CliError::Read { .. } | CliError::Node(NodeError::NoConfig { .. }) => {
                cure("name the file with `--config FILE` or `GPUFRAC_CONFIG`")
            }
            CliError::NoPool { one, .. } => there(one),
            CliError::Elsewhere { node, .. } => there(node),
            CliError::NoNodeFile => cure(
                "gpufrac-reaperd writes them: run this on a node with fractional GPUs, or set `[paths] shared` in gpufrac.toml so \
                 that every host sees the files of all nodes, or name them with `--from`",
            ),
            CliError::HiddenNodes => {
                cure("remove `nodes` from PrivateData in slurm.conf, or leave the pages out")
            }
            CliError::GpuCount { .. } => cure("say it with `--gpus N`"),
            CliError::Gpus { .. } => {
                cure("say how many GPUs each node of the pool has: `--gpus N`")
            }
            CliError::Types { node, .. } => cure(format!(
                "run it on {node}, where NVML says which GPU is of which model, or write the pools into gpufrac.toml, each with its \
                 `gpus = [...]`; if all GPUs are of this model, say their number: `--gpus N`"
            )),
            CliError::NoGpu { .. } | CliError::NoGpus => cure(
                "run it on a node with GPUs whose driver is loaded, or say what they are: `--gpu MODEL --gpus N`",
            ),
            CliError::NoProfiles { gpu, .. } => cure(format!(
                "drain the node and switch MIG mode on, `nvidia-smi -i {gpu} -mig 1`, then repeat; a GPU without MIG needs no table: \
                 mechanism `mps`, `timeslice` or `hami`, with `memory`"
            )),
            CliError::UnknownGpu {
                product, memory, ..
            } => {
                let name = Geometry::name_of_product(product);
                cure(format!(
                    "say what it is: `--gpu MODEL` for a model of gpufrac.toml(5); without MIG any name with its memory, \
                     `--gpu {name} --memory {memory}`; with MIG `gpufrac geometry` prints a table for gpufrac.toml"
                ))
            }
            CliError::Proposed(_) => cure(
                "choose other partitions or another workload: `--partition NAME`, `--workload WORKLOAD`",
            ),
            CliError::Impossible(finding) => cure(&finding.fix),
            CliError::Trial { .. } => cure(
                "correct what is named, and run `gpufrac init` again; `--no-trial` writes the files as they are",
            ),
            CliError::NoSlurmFiles { .. } => cure("name slurm.conf: `--slurm-conf FILE`"),
            CliError::NotInSlurmConf { option, .. } => cure(format!("say it with `{option}`")),
            CliError::SentFile { .. } => cure(
                "make these changes in the files of slurmctld's host: `gpufrac init` there with `--node`, `--gpu` and `--gpus`, \
                 and copy gpufrac.toml to every host",
            ),
            CliError::Prove(error) => cure(error.hint()),
            CliError::ProveSlurm(_) => cure(
                "run it on a node of Slurm, or with `--without-slurm` on a host that Slurm does not use",
            ),
            CliError::NotDrained { node, .. } => cure(format!(
                "`scontrol update nodename={node} state=drain reason=measuring`, and wait until its jobs have ended"
            )),
            CliError::NotRoot => cure("run it with sudo, on the node"),
            CliError::NobodyToAsk => cure("run it in a terminal, or with `--yes`"),
            CliError::NoJobHere { jobs } if jobs.is_empty() => {
                cure("`squeue --me` shows where your jobs run")
            }
            CliError::NoJobHere { .. } => cure("name the job with --job ID"),
            CliError::NoSliceHere { .. } => {
                cure("`squeue --me` shows your jobs and where they run")
            }
            CliError::NoLease { .. } => {
                cure("`gpufrac leases` lists them, on the node where the job ran")
            }
            CliError::JobIsThere { job, .. } => cure(format!(
                "`scancel {job}`: its epilog ends the lease. A node that does not answer: wait until Slurm has ended the job"
            )),
            CliError::JobsWithoutLease { jobs, .. } => {
                let ids: Vec<_> = jobs.iter().map(JobId::to_string).collect();
                let jobs = ids.join(" ");
                cure(format!(
                    "cancel them with `scancel {jobs}` or wait for their end, and try again"
                ))
            }
            CliError::AllInUse => cure("end these processes, and try again"),
            CliError::SlurmIsSilent(_) => cure(
                "try again when slurmctld answers; by hand and at your own risk: `nvidia-smi mig -i GPU -dci -gi ID`, then `-dgi`",
            ),
            CliError::Clean(CleanError::Store(error)) | CliError::Store(error) => cure(error.fix()),
            CliError::NoRecord { known, job, .. } => cure(known.hint(*job)),
            CliError::Setup(SetupError::Nvml(_)) => {
                cure("load the NVIDIA driver; `nvidia-smi` must work")
            }
            _ => None,
        }
    }
}

fn cure(text: impl Into<String>) -> Option<String> {
    Some(text.into())
}

/// What Slurm knows of a job without a record.
#[derive(Debug)]
pub enum JobWhereabouts {
    /// It runs or ran on this node.
    Here,
    /// It has not started.
    NotStarted,
    /// It runs or ran on these other nodes.
    On(Vec<String>),
    /// slurmctld does not have it now.
    Nowhere,
    /// slurmctld did not answer.
    Unasked,
}

impl JobWhereabouts {
    fn hint(&self, job: JobId) -> String {
        match self {
            JobWhereabouts::Here => "nothing was decided about it: its slice did not look idle so far, or gpufrac-reaperd does not run here".to_owned(),
            JobWhereabouts::NotStarted => format!("it has not started: `squeue -j {job}` has the reason"),
            JobWhereabouts::On(nodes) => format!(
                "Slurm says that it is of {}: `ssh {} gpufrac why {job}`; with `shared` in `[paths]` every host has the records",
                nodes.join(", "),
                nodes.first().map_or("NODE", String::as_str)
            ),
            JobWhereabouts::Nowhere => format!(
                "Slurm has no job {job} now; `sacct -j {job} -o NodeList` names the node where it ran, which has its record for as long as `keep` of `[reaper]` says"
            ),
            JobWhereabouts::Unasked => "nothing was decided about it, or its record is older than `keep` of `[reaper]`, or it ran elsewhere: \
                 without `shared` in `[paths]` records are only on the node where the job ran"
                .to_owned(),
        }
    }
}

fn in_words(jobs: &[JobId]) -> String {
    let ids: Vec<String> = jobs.iter().map(JobId::to_string).collect();
    match ids.len() {
        1 => format!("job {}", ids.join("")),
        _ => format!("jobs {}", ids.join(", ")),
    }
}

/// Why the number of GPUs of a node is not known.
fn why_gpus(count: &GpuCount) -> String {
    match count {
        GpuCount::Differs([one, other]) => format!(
            "{} says {} and {} says {}",
            one.source, one.count, other.source, other.count
        ),
        GpuCount::Unknown { instances } if !instances.is_empty() => {
            format!("Slurm counts MIG instances there ({instances}), and not their GPUs")
        }
        _ => "neither NVML nor Slurm's files say it".to_owned(),
    }
}
