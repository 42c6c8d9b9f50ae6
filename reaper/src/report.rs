//! What people and Prometheus see: metrics, charts, errors in the log, and why a job ended.

pub mod chart;
pub(crate) mod errors;
pub mod metrics;
pub mod why;
pub(crate) mod words;
