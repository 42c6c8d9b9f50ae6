//! Errors that last for some time: each is logged when it begins or changes, and again when it is over.

use std::collections::BTreeMap;
use std::fmt::Display;

use gpufrac_host::log::JobLog;

/// The subjects of errors, by their words in the log.
pub(crate) mod topic {
    pub(crate) const LEASES: &str = "leases";
    /// Sampling by the driver and dcgm-exporter.
    pub(crate) const DRIVER: &str = "driver";
    pub(crate) const SLURM: &str = "slurm";
    /// The folder that nodes share.
    pub(crate) const SHARED: &str = "shared";
    /// The counts of all nodes.
    pub(crate) const CLUSTER: &str = "cluster";
    pub(crate) const RECORDS: &str = "records";
    /// Removing old records.
    pub(crate) const PURGE: &str = "purge";
    pub(crate) const STATE: &str = "state";
    /// The sums for epilogs.
    pub(crate) const BOOKS: &str = "use of slices";
    pub(crate) const RUNNING: &str = "records of running slices";
    pub(crate) const GPUS: &str = "time of GPUs";
    pub(crate) const ENDS: &str = "ends of slices";
    pub(crate) const SHIPPING: &str = "usage records of all nodes";
    /// Leases in carving or releasing whose program died.
    pub(crate) const OVERDUE: &str = "overdue";
    /// Places that cannot be freed or used.
    pub(crate) const PLACES: &str = "places";
    pub(crate) const PUT_BACK: &str = "jobs put back";
    /// What prologs and epilogs did, for the metrics.
    pub(crate) const OUTCOMES: &str = "counts of prologs and epilogs";
    /// Files of jobs that ended.
    pub(crate) const CDI: &str = "files of CDI";
    pub(crate) const KEPT: &str = "kept instances";
    pub(crate) const OVER_JOBS: &str = "jobs that seem to be over";
    pub(crate) const BURST: &str = "burst";
    /// Instances without a lease.
    pub(crate) const UNLEASED: &str = "unleased";
    /// Processes that compute without limits.
    pub(crate) const UNLIMITED: &str = "processes without limits";
    /// Processes that compute without a lease.
    pub(crate) const STRANGERS: &str = "strangers";
    pub(crate) const STATUS: &str = "state for users";
    /// Slurm's `PrivateData`, and the folders that it closes.
    pub(crate) const PRIVATE: &str = "private data";
    pub(crate) const OWN: &str = "copies of leases for users";
    pub(crate) const OWN_RECORDS: &str = "copies of records for users";
}

/// Errors that were logged and still last.
#[derive(Default)]
pub(crate) struct ErrorReports {
    standing: BTreeMap<&'static str, String>,
}

impl ErrorReports {
    /// Whether the last result for a topic was an error.
    pub(crate) fn has_error(&self, topic: &str) -> bool {
        self.standing.contains_key(topic)
    }

    /// Logs an error when it begins or changes, and its end.
    pub(crate) fn report<T>(
        &mut self,
        log: &JobLog,
        topic: &'static str,
        result: Result<T, impl Display>,
    ) {
        let error = result.err().map(|error| error.to_string());
        match (error, self.standing.get(topic)) {
            (Some(error), Some(known)) if error == *known => {}
            (Some(error), _) => {
                log.error(format!("{topic}: {error}"));
                self.standing.insert(topic, error);
            }
            (None, Some(_)) => {
                // The operation of an earlier error works. Cure: Nothing.
                log.info(format!("{topic}: works again"));
                self.standing.remove(topic);
            }
            (None, None) => {}
        }
    }
}
