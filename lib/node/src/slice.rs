//! The life of a slice: made by the prolog, released by the epilog, repaired by the next program that takes the lock.

pub mod agreement;
pub mod carve;
mod drain;
pub mod failpoint;
pub mod hooks;
pub mod keep;
pub mod mig_mode;
pub mod reconcile;
pub mod release;
pub mod remains;
pub mod teardown;
pub mod unleased;
mod waiting;
