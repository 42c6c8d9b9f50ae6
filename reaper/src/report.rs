//! What people and Prometheus see: metrics, charts, and why a job ended.

pub mod chart;
pub mod metrics;
pub mod why;
pub(crate) mod words;
