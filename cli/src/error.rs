//! What ends a command.

use std::path::PathBuf;

use crate::status::StatusError;
use gpufrac_core::config::ConfigErrors;
use gpufrac_core::hostlist::HostlistError;
use gpufrac_core::ids::JobId;
use gpufrac_node::node::NodeError;
use gpufrac_node::setup::SetupError;
use gpufrac_node::state::leases::StoreError;
use gpufrac_nvml::NvmlError;
use gpufrac_reaper::report::why::WhyError;

/// What ends a command.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The configuration is wrong.
    #[error("the configuration is wrong\n{0}")]
    Config(ConfigErrors),
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
    #[error("no pool has GPUs on node `{node}`")]
    NoPool {
        /// The node.
        node: String,
    },
    /// A list of nodes that is none.
    #[error("`{text}`: {source}")]
    Nodes {
        /// As written.
        text: String,
        /// What is wrong.
        source: HostlistError,
    },
    /// How many GPUs the nodes have is not known.
    #[error("how many GPUs `{node}` has is not known here: {source}")]
    GpuCount {
        /// The node.
        node: String,
        /// Why.
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
        /// Why.
        source: std::io::Error,
    },
    /// Nothing is known of a job.
    #[error("no record of job {job} for node `{node}` in {places}")]
    NoRecord {
        /// The job.
        job: JobId,
        /// The node that was asked about.
        node: String,
        /// The folders, as a list.
        places: String,
    },
}

impl CliError {
    /// What to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            CliError::Read { .. } | CliError::Node(NodeError::NoConfig { .. }) => {
                Some("name the file with `--config FILE` or `GPUFRAC_CONFIG`")
            }
            CliError::NoPool { .. } => {
                Some("the `nodes` of the pools decide; name another node with `--node NAME`")
            }
            CliError::GpuCount { .. } => Some("say it with `--gpus N`"),
            CliError::NoRecord { .. } => Some(
                "nothing was decided about it, or its record is older than `keep` of `[reaper]`, or it ran elsewhere: \
                 without `shared` in `[paths]` records are only on the node where the job ran",
            ),
            CliError::Setup(SetupError::Nvml(_)) => Some("is the NVIDIA driver loaded?"),
            _ => None,
        }
    }
}
