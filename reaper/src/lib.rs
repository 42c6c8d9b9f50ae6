//! gpufrac-reaperd: finds jobs that hold a slice without using it, warns their users, and reclaims the slices.
//!
//! Data flow in one direction, once in each interval: [`measure`], [`judge`], [`act`]. [`keep`] stores data that
//! outlive a round or the daemon; [`care`] looks after places that cannot be used; [`report`] shows them to people and
//! to Prometheus.
#![forbid(unsafe_code)]

pub mod act;
pub mod care;
pub mod daemon;
pub mod judge;
pub mod keep;
pub mod key;
pub mod measure;
pub mod outside;
pub mod pages;
pub mod report;
pub mod rhythm;
mod round;
pub mod wait;
