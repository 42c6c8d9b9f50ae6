//! The configuration: `gpufrac.toml`, the same file on every host.
//!
//! [`Config::parse`] reports every mistake of the file at once, each with its line and key, and
//! proves the layout of every pool, so that a configuration that could start jobs for which there
//! is no place is never used.

mod checks;
mod error;
mod options;
mod read;
mod reaper;
mod sections;
mod tables;
#[cfg(test)]
mod tests;

use crate::crc64::crc64;
pub use crate::mechanism::Mechanism;
pub use crate::pool::{Device, Pool, PoolOptions, Tenancy, TimesliceLength};
pub use error::{ConfigError, ConfigErrors, Problem};
pub use tables::{Config, PartitionRules, Paths, VERSION};

/// Where the configuration is on every host.
pub const PATH: &str = "/etc/gpufrac/gpufrac.toml";
/// The variable that names another one. Users may set it for their own commands only: what runs
/// as root or in slurmctld gets its environment from an admin.
pub const PATH_ENV: &str = "GPUFRAC_CONFIG";
/// Where node-setup notes which nodes of the machine have pools, for whoever cannot read the configuration.
pub const NODES: &str = "/run/gpufrac/nodes";
/// Where a machine keeps, for each of its nodes, the last configuration without a mistake: for prolog, epilog and steps, while
/// the file has one. It survives a reboot, so that a mistake does not keep a node from coming back.
pub const LAST_GOOD: &str = "/var/lib/gpufrac/last-good";

/// The name of a node's copy there. Another file of configuration has another copy.
pub fn last_good_name(node: &str, path: &str) -> String {
    format!("{node}-{:016x}", crc64(path.as_bytes()))
}
