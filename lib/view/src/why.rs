//! The evidence of a job as people see it, in mail and in `gpufrac why`: what was measured, what was decided, a chart.

pub mod chart;
mod explain;
pub mod words;

pub use explain::explain;
