//! From samples to what is due for a job.

pub mod breaker;
pub mod escalation;
pub mod peers;
pub mod stall;
pub mod watch;
