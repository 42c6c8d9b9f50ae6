//! Data that outlive a round: the state of the daemon, the records of jobs, and the books of the node.

pub mod books;
pub mod gpus;
pub mod hooks;
pub mod meter;
pub mod own;
pub mod private;
pub mod records;
pub mod shipping;
pub mod state;
pub mod status;
pub mod totals;
