//! From samples to due actions.

pub mod breaker;
pub mod escalation;
pub mod lend;
pub mod peers;
pub mod stall;
pub mod watch;
