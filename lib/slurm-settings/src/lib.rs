//! Slurm's settings, as `gpufrac check` judges them: what must be there for a fraction to work and to be fenced,
//! what takes something away from it, and what to write instead.
//!
//! [`gather()`] reads, [`judge`] judges and does no I/O.
#![forbid(unsafe_code)]

mod access;
pub mod conf;
mod edit;
mod gather;
mod gres_lines;
mod host;
mod nodes;
mod partitions;
mod pools;
pub mod propose;
mod rules;
pub mod running;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use gpufrac_core::config::Config;
use gpufrac_core::finding::Finding;

pub use access::Closed;
pub use conf::{Files, Place};
pub use gather::{AskError, Here, Sources, ask_slurm, files_named, gather};
pub use host::{Role, Trouble};
pub use running::Running;

/// A program that Slurm runs as Prolog or Epilog, seen from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Its path as slurm.conf has it; a pattern, maybe.
    pub path: String,
    /// Whether its text, or that of one file that the pattern matches, names gpufrac's program; None where it
    /// cannot be read.
    pub names_ours: Option<bool>,
}

/// All that is known of a Slurm.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// Its files, where they could be read.
    pub files: Option<Files>,
    /// What its controller says.
    pub running: Option<Running>,
    /// Prologs and epilogs as this host has them.
    pub scripts: Vec<Script>,
    /// `KillMode=` of slurmd's unit, on a node of a pool with control daemons.
    pub kill_mode: Option<String>,
    /// This host's node and how many GPUs NVML shows there.
    pub gpus: Option<(String, u32)>,
    /// gpufrac.toml, where it is the one in use.
    pub config: Option<PathBuf>,
    /// What slurmctld says of its pools; None where it was not asked or said nothing.
    pub pools: Option<pools::Answer>,
    /// What keeps slurmctld or users from reading gpufrac.toml.
    pub closed: Option<Closed>,
    /// The one node that was asked about, and is judged.
    pub only: Option<String>,
    /// The daemons or users that this host serves; None where nothing was looked at.
    pub role: Option<Role>,
    /// What this host lacks.
    pub troubles: Vec<Trouble>,
    /// What could not be asked or read, and why.
    pub unknown: Vec<String>,
}

impl Settings {
    /// Whether anything is known at all.
    pub fn is_empty(&self) -> bool {
        self.files.is_none() && self.running.is_none()
    }

    /// A value of slurm.conf: the running one, else the written one.
    fn value(&self, key: &str) -> Option<&str> {
        let running = self.running.as_ref().and_then(|running| running.get(key));
        let written = || Some(self.files.as_ref()?.slurm.last(key)?.1);
        running.or_else(written)
    }

    /// slurm.conf, for what is in no line of it.
    fn slurm_conf(&self) -> String {
        let path = self.files.as_ref().map(|files| &files.slurm.path);
        path.map_or("slurm.conf".into(), |path| path.display().to_string())
    }
}

/// Judges a Slurm against the pools: errors first, then warnings, then notes.
pub fn judge(settings: &Settings, config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    if settings.is_empty() {
        return found;
    }
    rules::judge(settings, config, &mut found);
    found.extend(settings.closed.as_ref().map(Closed::finding));
    found.extend(settings.troubles.iter().map(Trouble::finding));
    pools::judge(settings, config, &mut found);
    nodes::judge(settings, config, &mut found);
    if settings.only.is_none() {
        partitions::judge(settings, config, &mut found);
    }
    found.sort_by_key(|finding| finding.severity);
    found
}
