//! Errors that last for some time: each is logged when it begins or changes, and again when it is over.

use std::collections::BTreeMap;
use std::fmt::Display;

use gpufrac_host::log::JobLog;

/// The subject of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Topic {
    /// Reading the leases of the node.
    Leases,
    /// Sampling by the driver and dcgm-exporter.
    Driver,
    /// Questions and actions by Slurm.
    Slurm,
    /// The folder that nodes share.
    Shared,
    /// The counts of all nodes.
    Cluster,
    /// Writing the records of jobs.
    Records,
    /// Removing old records.
    Purge,
    /// The saved state of the daemon.
    State,
    /// The sums of use for epilogs.
    Books,
    /// The usage records of running slices.
    Running,
    /// The records of the time of GPUs.
    Gpus,
    /// The records of why slices ended.
    Ends,
    /// The copies of usage records for all nodes.
    Shipping,
    /// Leases in carving or releasing whose program died.
    Overdue,
    /// Places that cannot be freed or used.
    Places,
    /// Jobs that the node gave back to Slurm.
    PutBack,
    /// Kept instances.
    Kept,
    /// Leases of jobs that seem to have ended.
    OverJobs,
    /// The limits of HAMi-core.
    Burst,
    /// Instances without a lease.
    Unleased,
    /// Processes that compute without a lease.
    Strangers,
    /// The state of the node for its users.
    Status,
    /// Slurm's `PrivateData`, and the folders that it closes.
    Private,
    /// The copies of leases for their users.
    Own,
    /// The copies of records for the users of their jobs.
    OwnRecords,
}

impl Topic {
    /// The words in the log.
    fn name(self) -> &'static str {
        match self {
            Topic::Leases => "leases",
            Topic::Places => "places",
            Topic::PutBack => "jobs put back",
            Topic::Driver => "driver",
            Topic::Slurm => "slurm",
            Topic::Shared => "shared",
            Topic::Cluster => "cluster",
            Topic::Records => "records",
            Topic::Purge => "purge",
            Topic::State => "state",
            Topic::Books => "use of slices",
            Topic::Running => "records of running slices",
            Topic::Gpus => "time of GPUs",
            Topic::Ends => "ends of slices",
            Topic::Shipping => "usage records of all nodes",
            Topic::Overdue => "overdue",
            Topic::Kept => "kept instances",
            Topic::OverJobs => "jobs that seem to be over",
            Topic::Burst => "burst",
            Topic::Unleased => "unleased",
            Topic::Strangers => "strangers",
            Topic::Status => "state for users",
            Topic::Private => "private data",
            Topic::Own => "copies of leases for users",
            Topic::OwnRecords => "copies of records for users",
        }
    }
}

/// Errors that were logged and still last.
#[derive(Default)]
pub(crate) struct ErrorReports {
    standing: BTreeMap<Topic, String>,
}

impl ErrorReports {
    /// Whether the last call for a topic had an error.
    pub(crate) fn has_error(&self, topic: Topic) -> bool {
        self.standing.contains_key(&topic)
    }

    /// Logs an error when it begins or changes; None: its end.
    pub(crate) fn report_once(&mut self, log: &JobLog, topic: Topic, error: Option<impl Display>) {
        let about = topic.name();
        let error = error.map(|error| error.to_string());
        match (error, self.standing.get(&topic)) {
            (Some(error), Some(known)) if error == *known => {}
            (Some(error), _) => {
                log.error(format!("{about}: {error}"));
                self.standing.insert(topic, error);
            }
            (None, Some(_)) => {
                log.info(format!("{about}: works again"));
                self.standing.remove(&topic);
            }
            (None, None) => {}
        }
    }
}
