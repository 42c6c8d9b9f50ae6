//! gpufrac-reaperd: it finds jobs that hold a slice and do not use it, warns their users, and
//! gives the slices back.
//!
//! Data flows one way, once in each interval: [`measure`], [`judge`], [`act`]. [`keep`] holds what outlives a
//! round or the daemon, [`report`] shows it to people and to Prometheus.
#![forbid(unsafe_code)]

pub mod act;
pub mod clock;
pub mod daemon;
pub mod judge;
pub mod keep;
pub mod key;
pub mod measure;
pub mod outside;
pub mod report;
pub mod rhythm;
pub mod wait;
