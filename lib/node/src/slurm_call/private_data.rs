//! Slurm's `PrivateData`, from this host's slurm.conf as libslurm reads it, as slurmd does. slurmctld is not asked,
//! because each node would ask it all the time.

use std::path::PathBuf;

use gpufrac_core::private_data::PrivateData;
use slurm_sys::client;

use super::{SlurmError, slurm_private_data};

/// Where slurm.conf is, unless `SLURM_CONF` says it: in Debian's packages, and where slurmd keeps the file that it got
/// from slurmctld.
const FILES: [&str; 2] = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"];

/// Why `PrivateData` is not known.
#[derive(Debug, thiserror::Error)]
pub enum PrivateDataError {
    /// slurm.conf is elsewhere, or a configless slurmd has not started yet.
    /// Cure: Set `SLURM_CONF` in the unit, or start slurmd.
    #[error(
        "learning `PrivateData` failed: this host has no slurm.conf (`SLURM_CONF`, {}); leases and records stay as open or closed as they are",
        FILES.join(", ")
    )]
    NoFile,
    /// libslurm cannot read slurm.conf.
    /// Cure: Follow the text.
    #[error(
        "learning `PrivateData` failed: {0}; leases and records stay as open or closed as they are"
    )]
    Slurm(#[from] SlurmError),
}

/// This host's slurm.conf.
pub fn conf_file() -> Option<PathBuf> {
    let named = std::env::var_os("SLURM_CONF").filter(|name| !name.is_empty());
    if let Some(named) = named {
        return Some(PathBuf::from(named)).filter(|path| path.exists());
    }
    let of_prefix = client::prefix().map(|prefix| prefix.join("etc/slurm.conf"));
    let files = of_prefix.into_iter().chain(FILES.map(PathBuf::from));
    files.into_iter().find(|path| path.exists())
}

/// The values of `PrivateData`. Errors: there is no slurm.conf, or libslurm cannot read it.
pub fn private_data() -> Result<PrivateData, PrivateDataError> {
    conf_file().ok_or(PrivateDataError::NoFile)?;
    let values = slurm_private_data()?;
    Ok(PrivateData {
        jobs: values.jobs,
        usage: values.usage,
        nodes: values.nodes,
    })
}
