//! The configuration: `gpufrac.toml`, the same file on every host.
//!
//! [`Config::parse`] reports all mistakes of the file at once, each with its line and key. It also proves the layout
//! of every pool, so that Slurm never starts a job for which the GPU has no place.

mod checks;
mod error;
mod keys;
mod options;
#[cfg(test)]
mod page_tests;
mod read;
mod reaper;
mod report;
mod schema;
mod sections;
mod tables;
#[cfg(test)]
mod tests;
mod values;

use crate::crc64::crc64;
pub use crate::mechanism::Mechanism;
pub use crate::pool::{Burst, Device, Pool, PoolOptions, Tenancy, TimesliceLength, WholeGpu};
pub use error::{ConfigError, ConfigErrors, Problem};
pub use keys::of_page as keys_of_page;
pub use schema::DocumentedKey;
pub use tables::{AboveMax, Config, Hooks, PartitionRules, Paths, VERSION, Web, WhenStuck};

/// The path of the configuration on every host.
pub const PATH: &str = "/etc/gpufrac/gpufrac.toml";
/// The environment variable with another path of the configuration. A user can set it only for the user's own
/// commands: root's programs and slurmctld get their environment from an admin.
pub const PATH_ENV: &str = "GPUFRAC_CONFIG";
/// The file in which node-setup lists the nodes of this machine that have pools. Programs read it when the
/// configuration cannot be read.
pub const NODES: &str = "/run/gpufrac/nodes";
/// The folder with the last valid configuration of each node of this machine. Prolog, epilog and steps use it while
/// gpufrac.toml has a mistake. It is in /var, so that a node with a mistake in its file works after a reboot, too.
pub const LAST_GOOD: &str = "/var/lib/gpufrac/last-good";

/// The file name of a node's copy in [`LAST_GOOD`]. The name also depends on the path of the configuration, so that
/// each configuration file has its own copy.
pub fn last_good_name(node: &str, path: &str) -> String {
    format!("{node}-{:016x}", crc64(path.as_bytes()))
}
