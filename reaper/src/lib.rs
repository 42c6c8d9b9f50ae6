//! gpufrac-reaperd: it finds jobs that hold a slice and do not use it, warns their users, and
//! gives the slices back.
//!
//! Data flows one way, once in each interval: leases and telemetry become [`sample::Sample`]s.

#![forbid(unsafe_code)]

pub mod breaker;
pub mod chart;
pub mod cpu;
pub mod daemon;
pub mod dcgm;
pub mod evidence;
pub mod ladder;
pub mod mail;
pub mod metrics;
pub mod moment;
pub mod outside;
pub mod overdue;
pub mod peers;
mod post;
mod reap;
pub mod records;
pub mod sample;
pub mod slurm;
pub mod state;
pub mod telemetry;
pub mod wait;
pub mod watch;
pub mod why;
mod words;
