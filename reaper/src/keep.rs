//! Data that outlive a round: the state of the daemon, and the records of jobs.

pub mod evidence;
pub mod records;
pub mod state;
pub mod totals;
