//! A forecast of what sharing GPUs would win on a site's own history.
//!
//! [`read`] turns accounting, traces and telemetry into [`job::Job`]s. [`candidate`] has the ways of lending GPUs, made
//! by the product's own [`gpufrac_core::layout::Layout`]; [`size`] chooses the size of each job, [`queue`] plays the
//! history on a cluster as Slurm would, with the [`limits`] of accounts and QOS, [`search`] compares the candidates and
//! gives each figure its band, and [`render`] shows them.
//!
//! All of it is pure, except for [`read`] and [`command`], which read files.
#![forbid(unsafe_code)]

pub mod candidate;
pub mod cluster;
pub mod command;
pub mod job;
pub mod limits;
pub mod place;
pub mod proposal;
pub mod queue;
pub mod read;
pub mod render;
pub mod search;
pub mod shares_per_gpu;
pub mod size;
pub mod speed;
pub mod sums;
