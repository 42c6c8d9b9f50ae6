//! Slurm's configuration, read as Slurm reads it: the lines of its files, the nodes and partitions that slurmctld makes
//! of them, the answers of `scontrol show`, tables of sacct and sacctmgr, and changes of single values. Pure: callers
//! read and write the files.
#![forbid(unsafe_code)]

mod conf;
pub mod edit;
mod files;
pub mod jobstats;
mod running;
mod site;
pub mod table;
pub mod value;

pub use conf::{ConfFile, Line, LinePosition, Read, read_conf};
pub use files::{Files, Glob, PluginLine};
pub use gpufrac_core::slurm_text::{Counts, counts, number};
pub use running::{Record, Running, reservations};
pub use site::{Entry, Partition, Site, SlurmNode};
