//! Root's files on a node: leases, locks, the record of its GPUs, the usage of slices, jobs without a slice.

pub mod last_good;
pub mod leases;
pub mod line;
pub mod locks;
pub mod pools;
pub mod private;
pub mod record;
pub mod usage;
pub mod without;
