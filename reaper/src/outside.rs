//! What the daemon takes from outside, each behind a small trait: tests put a simulated world here.

use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_node::node::Node;

use crate::act::slices::{NodeSlices, Slices};
use crate::act::slurm::{JobControl, SlurmProcess};
use crate::clock::{Clock, SystemClock};
use crate::keep::records::Records;
use crate::keep::state::Memory;
use crate::measure::sample::Sampler;
use crate::measure::telemetry::Telemetry;

/// The world of a daemon.
pub struct Outside {
    /// Which time it is.
    pub clock: Box<dyn Clock>,
    /// What slices do.
    pub sampler: Box<dyn Sampler>,
    /// Which slices there are.
    pub slices: Box<dyn Slices>,
    /// Whose they are, and how a job ends.
    pub slurm: Box<dyn JobControl>,
    /// What an earlier run of the daemon left, and the next one is to find.
    pub memory: Box<dyn Memory>,
    /// What an admin reads.
    pub log: JobLog,
}

impl Outside {
    /// The real one, of this machine.
    ///
    /// # Errors
    /// A folder cannot be made, or is not root's alone.
    pub fn of(node: &Node) -> Result<Outside, FileError> {
        Ok(Outside {
            clock: Box::new(SystemClock),
            sampler: Box::new(Telemetry::new(node)),
            slices: Box::new(NodeSlices),
            slurm: Box::new(SlurmProcess),
            memory: Box::new(Records::open(&node.run, &node.state)?),
            log: JobLog::reaper(),
        })
    }
}
