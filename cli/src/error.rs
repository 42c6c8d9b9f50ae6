//! What ends a command.

use std::path::PathBuf;

use crate::status::StatusError;
use gpufrac_core::config::ConfigErrors;
use gpufrac_core::hostlist::{self, HostlistError};
use gpufrac_core::ids::JobId;
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
use gpufrac_reaper::report::why::WhyError;
use gpufrac_slurm_settings::AskError;

/// What ends a command.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The configuration is wrong.
    #[error("the configuration is wrong\n{0}")]
    Config(ConfigErrors),
    /// The configuration that `init` would propose.
    #[error("no pool can be proposed for these GPUs\n{0}")]
    Proposed(ConfigErrors),
    /// The configuration as text.
    #[error(transparent)]
    Toml(toml_edit::TomlError),
    /// As above, in root's programs.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// There is no advice.
    #[error("advice failed: {0}")]
    Advise(#[from] gpufrac_core::advise::AdviseError),
    /// Setting up failed.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The leases cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no status.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// No pool has GPUs on the node.
    #[error(
        "no pool has GPUs on node `{node}`, so that it has no leases; the nodes of the pools are {nodes}"
    )]
    NoPool {
        /// The node.
        node: String,
        /// Those that have GPUs of pools, as Slurm writes them.
        nodes: String,
        /// One of them.
        one: String,
    },
    /// Leases and records are on their node.
    #[error("the leases and records of node `{node}` are on `{node}`, and this host is `{host}`")]
    Elsewhere {
        /// The node.
        node: String,
        /// This host.
        host: String,
    },
    /// Root's work.
    #[error("only root may do this")]
    NotRoot,
    /// Nobody can answer.
    #[error("stdin is not a terminal, and nothing is destroyed without a confirmation")]
    NobodyToAsk,
    /// No such lease.
    #[error("no lease `{name}` on this node")]
    NoLease {
        /// The value as it stands in the request or file.
        name: String,
    },
    /// The job may use it.
    #[error("job {job} is {state} on this node: its lease stays")]
    JobIsThere {
        /// Slurm's id of the job.
        job: JobId,
        /// Its state.
        state: String,
    },
    /// Jobs whose instances are not known.
    #[error("nothing is destroyed: no lease is known of {} on node {node}; one of these instances may belong to them", in_words(.jobs))]
    JobsWithoutLease {
        /// The node.
        node: String,
        /// The jobs.
        jobs: Vec<JobId>,
    },
    /// Nothing to destroy.
    #[error("nothing is destroyed: each of these instances is in use")]
    AllInUse,
    /// Whether jobs are over is not known.
    #[error("nothing is destroyed: asking Slurm for its jobs failed: {0}")]
    SlurmIsSilent(AskError),
    /// A file of root's.
    #[error(transparent)]
    File(#[from] FileError),
    /// A GPU is locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// An instance stays.
    #[error(transparent)]
    Clean(#[from] CleanError),
    /// A slice stays.
    #[error("the slice cannot be removed yet: {0}")]
    Teardown(#[from] TeardownError),
    /// A list of nodes that is none.
    #[error("`{text}`: {source}")]
    Nodes {
        /// The value as it stands in the request or file.
        text: String,
        /// What is wrong.
        source: HostlistError,
    },
    /// How many GPUs the nodes have is not known.
    #[error("counting the GPUs of `{node}` failed: {source}")]
    GpuCount {
        /// The node.
        node: String,
        /// The cause.
        source: NvmlError,
    },
    /// Not the id of a job.
    #[error(transparent)]
    Why(#[from] WhyError),
    /// A file could not be written.
    #[error("cannot write `{}`: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A file of the site could not be changed.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// No GPU to share.
    #[error("this node shows no GPU: {source}")]
    NoGpu {
        /// The cause.
        source: NvmlError,
    },
    /// NVML shows none.
    #[error("NVML shows no GPU on this node")]
    NoGpus,
    /// A model without a table.
    #[error("GPU {index} is `{product}` with {memory} MiB, a model that gpufrac does not know")]
    UnknownGpu {
        /// Its index.
        index: u32,
        /// What NVML calls it.
        product: String,
        /// Its memory.
        memory: u64,
    },
    /// Slurm's files are not here.
    #[error("Slurm's files are not found: {why}")]
    NoSlurmFiles {
        /// The cause.
        why: String,
    },
    /// slurm.conf lacks what a pool needs.
    #[error("{} has no {what}", path.display())]
    NotInSlurmConf {
        /// slurm.conf.
        path: PathBuf,
        /// What is missing.
        what: String,
        /// The option that says it.
        option: &'static str,
    },
    /// They are sent by slurmctld.
    #[error("`{}` is a copy that slurmctld sent: nothing was written", path.display())]
    SentFile {
        /// The file.
        path: PathBuf,
    },
    /// Nothing is known of a job.
    #[error("no record of job {job} for node `{node}` in {places}")]
    NoRecord {
        /// Slurm's id of the job.
        job: JobId,
        /// The node that was asked about.
        node: String,
        /// Where the job runs or ran by Slurm, if that is elsewhere.
        nodes: Vec<String>,
        /// The folders, as a list.
        places: String,
    },
}

impl CliError {
    /// Says it on stderr.
    pub fn print(&self) {
        eprintln!("gpufrac: {self}");
        if let Some(hint) = self.hint() {
            eprintln!("hint: {hint}");
        }
    }

    /// For a node without pools.
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

    /// For another host's node.
    pub fn elsewhere(node: &Node) -> CliError {
        CliError::Elsewhere {
            node: node.name.clone(),
            host: environment::host_name(),
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        let there = |node: &str| {
            format!(
                "run it there: `ssh {node} gpufrac ...`, or in a job: `srun -w {node} gpufrac ...`"
            )
        };
        let text = match self {
            CliError::Read { .. } | CliError::Node(NodeError::NoConfig { .. }) => {
                "name the file with `--config FILE` or `GPUFRAC_CONFIG`"
            }
            CliError::NoPool { one, .. } => return Some(there(one)),
            CliError::Elsewhere { node, .. } => return Some(there(node)),
            CliError::GpuCount { .. } => "say it with `--gpus N`",
            CliError::NoGpu { .. } | CliError::NoGpus => {
                "run it on a node with GPUs whose driver is loaded, or say what they are: `--gpu MODEL --gpus N`"
            }
            CliError::UnknownGpu { .. } => {
                "say what it is: `--gpu MODEL` for a model of gpufrac.toml(5), or `--gpu NAME --memory MIB` for any other"
            }
            CliError::Proposed(_) => {
                "choose other partitions or another workload: `--partition NAME`, `--workload WORKLOAD`"
            }
            CliError::NoSlurmFiles { .. } => "name slurm.conf: `--slurm-conf FILE`",
            CliError::NotInSlurmConf { option, .. } => {
                return Some(format!("say it with `{option}`"));
            }
            CliError::SentFile { .. } => {
                "make these changes in the files of slurmctld's host: `gpufrac init` there with `--node`, `--gpu` and `--gpus`, \
                 and copy gpufrac.toml to every host"
            }
            CliError::NotRoot => "run it with sudo, on the node",
            CliError::NobodyToAsk => "run it in a terminal, or with `--yes`",
            CliError::NoLease { .. } => {
                "`gpufrac leases` lists them, on the node where the job ran"
            }
            CliError::JobIsThere { job, .. } => {
                return Some(format!(
                    "`scancel {job}`: its epilog ends the lease. A node that does not answer: wait until Slurm has ended the job"
                ));
            }
            CliError::JobsWithoutLease { jobs, .. } => {
                return Some(format!(
                    "cancel them with `scancel {}` or wait for their end, and try again",
                    jobs.iter()
                        .map(JobId::to_string)
                        .collect::<Vec<_>>()
                        .join(" ")
                ));
            }
            CliError::AllInUse => "end these processes, and try again",
            CliError::SlurmIsSilent(_) => {
                "try again when slurmctld answers; by hand and at your own risk: `nvidia-smi mig -i GPU -dci -gi ID`, then `-dgi`"
            }
            CliError::Clean(CleanError::Store(error)) | CliError::Store(error) => {
                return Some(error.fix());
            }
            CliError::NoRecord { nodes, job, .. } => match nodes.first() {
                Some(node) => {
                    return Some(format!(
                        "Slurm says that it is of {}: `ssh {node} gpufrac why {job}`; with `shared` in `[paths]` every host has the records",
                        nodes.join(", ")
                    ));
                }
                None => {
                    "nothing was decided about it, or its record is older than `keep` of `[reaper]`, or it ran elsewhere: \
                     without `shared` in `[paths]` records are only on the node where the job ran"
                }
            },
            CliError::Setup(SetupError::Nvml(_)) => "is the NVIDIA driver loaded?",
            _ => return None,
        };
        Some(text.to_owned())
    }
}

fn in_words(jobs: &[JobId]) -> String {
    let ids: Vec<String> = jobs.iter().map(JobId::to_string).collect();
    match ids.len() {
        1 => format!("job {}", ids.join("")),
        _ => format!("jobs {}", ids.join(", ")),
    }
}
