//! Reports for people and Prometheus: metrics, charts, errors in the log, and the reasons why jobs were ended.

pub mod chart;
pub(crate) mod errors;
pub mod metrics;
pub mod why;
pub(crate) mod words;
