//! MPS control daemons, and the jobs that share one.

pub mod answer;
pub mod daemon;
pub mod error;
pub mod process;
pub mod tenants;
pub mod version;
pub mod visit;
