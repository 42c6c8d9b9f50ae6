//! The daemon's access to the outside, each part behind a small trait, which tests implement by a simulated world.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_node::node::Node;

use crate::act::slices::{NodeSlices, Slices};
use crate::act::witness::Witness;
use crate::keep::books::{Books, NodeBooks};
use crate::keep::private::Privacy;
use crate::keep::records::Records;
use crate::keep::state::Memory;
use crate::keep::status::{Board, StatusFiles};
use crate::measure::sample::Sampler;
use crate::measure::telemetry::Telemetry;
use gpufrac_node::clock::{Clock, SystemClock};
use gpufrac_node::slurm_call::{JobControl, SlurmProcess};

pub struct Outside {
    pub clock: Box<dyn Clock>,
    /// The activity of slices.
    pub sampler: Box<dyn Sampler>,
    pub slices: Box<dyn Slices>,
    /// Slurm: the owners of jobs, and their end.
    pub slurm: Box<dyn JobControl>,
    /// What Slurm said of jobs as their slices were released.
    pub witness: Witness,
    /// The storage of state and records.
    pub memory: Box<dyn Memory>,
    /// Where use is recorded.
    pub books: Box<dyn Books>,
    /// Where users see the state of the node.
    pub board: Box<dyn Board>,
    /// Slurm's `PrivateData`; None where nothing is followed.
    pub privacy: Option<Privacy>,
    /// Jobs that the node gave back and that are not counted yet.
    pub put_back: Arc<AtomicU64>,
    /// The log for admins.
    pub log: JobLog,
}

impl Outside {
    /// The real implementations for this machine. `put_back`: of [`crate::care::follow`].
    /// Errors: a folder cannot be created, or others than root can change it.
    pub fn of(node: &Node, put_back: Arc<AtomicU64>) -> Result<Outside, FileError> {
        let log = JobLog::reaper();
        let witness = Witness::follow(&node.run, SlurmProcess).unwrap_or_else(|error| {
            // The same, or the folder of leases cannot be read. Slurm is asked in each round only. Cure: Follow the
            // text.
            log.warning(format!(
                "{error}; some records will not say that a requeued job was preempted"
            ));
            Witness::default()
        });
        Ok(Outside {
            clock: Box::new(SystemClock),
            sampler: Box::new(Telemetry::new(node)),
            slices: Box::new(NodeSlices),
            slurm: Box::new(SlurmProcess),
            witness,
            memory: Box::new(Records::open(&node.run, &node.state)?),
            books: Box::new(NodeBooks::open(&node.run, &node.state)?),
            board: Box::new(StatusFiles::open(&node.run)?),
            privacy: Some(Privacy::default()),
            put_back,
            log,
        })
    }
}
