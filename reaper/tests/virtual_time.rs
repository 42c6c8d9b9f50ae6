//! The daemon in virtual time: ten thousand random jobs, and a month of days, in seconds of real time on a simulated
//! node. The end-to-end tests check real Slurm and real counters.
//!
//! Each run has a new seed and prints it. `GPUFRAC_TEST_SEED=SEED cargo test -p gpufrac-reaper --test virtual_time`
//! repeats a run; a seed that ever failed belongs in `FAILED`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "virtual_time/directed.rs"]
mod directed;
#[path = "virtual_time/month.rs"]
mod month;
#[path = "virtual_time/oracle.rs"]
mod oracle;
#[path = "virtual_time/patterns.rs"]
mod patterns;
#[path = "virtual_time/plans.rs"]
mod plans;
#[path = "virtual_time/play.rs"]
mod play;
#[path = "virtual_time/simulated.rs"]
mod simulated;
#[path = "virtual_time/site.rs"]
mod site;
#[path = "virtual_time/world.rs"]
mod world;
