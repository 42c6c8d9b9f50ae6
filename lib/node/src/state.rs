//! Root's files on a node: leases, locks, the record of its GPUs, the usage of slices, jobs without a slice, places
//! that cannot be used, the jobs that went elsewhere for them, and how prologs and epilogs ended.

pub mod last_good;
pub mod leases;
pub mod line;
pub mod locks;
pub mod outcomes;
pub mod pools;
pub mod private;
pub mod put_back;
pub mod record;
pub mod stuck;
pub mod usage;
pub mod without;
