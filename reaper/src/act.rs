//! Actions on stalled slices, and on slices that earlier jobs left.

pub mod mail;
pub(crate) mod mail_queue;
pub(crate) mod overdue;
pub(crate) mod refusal;
pub mod slices;
pub mod witness;
