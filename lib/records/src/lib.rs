//! The records of jobs that outlive them: what a slice was used for ([`usage`]), and why the reaper warned or ended its
//! job ([`evidence`]). Node, reaper and reports share nothing else about a job of the past.
#![forbid(unsafe_code)]

pub mod evidence;
pub mod find;
pub mod usage;
