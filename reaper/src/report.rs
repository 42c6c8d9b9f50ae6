//! Reports for people and Prometheus: metrics, and errors in the log.

pub(crate) mod errors;
pub mod metrics;
