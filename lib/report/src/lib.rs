//! Reports of usage records: sums by user, account, pool and others, what they cost, which sizes would have been
//! enough, and whether the books balance.
//!
//! ```text
//! lines of records --ledger--> times in a period --sums--> rows --render--> table, CSV, JSON, HTML
//! rows of sacct ----^                            \--own--> a user's jobs
//!                                                 \-audit-> the balance of each GPU
//! ```
//!
//! Everything is counted in whole unit-seconds: a GPU has 100 units, so an hour of a GPU is 360,000 of them. No figure
//! is rounded before it is printed.
#![forbid(unsafe_code)]

pub mod audit;
pub mod days;
pub mod hints;
pub mod jobstats;
pub mod ledger;
pub mod money;
pub mod own;
pub mod period;
pub mod render;
pub mod sacct;
pub mod sums;
