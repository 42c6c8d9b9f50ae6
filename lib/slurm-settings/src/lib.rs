//! Judges Slurm's settings for `gpufrac check`: settings that fractions and their isolation need, settings that
//! weaken them, and the text to write instead.
//!
//! [`gather()`] reads the settings; [`judge`] judges them without I/O.
#![forbid(unsafe_code)]

mod access;
mod ask;
mod comments;
mod containers;
mod gather;
pub mod gpu_count;
mod gres_lines;
mod host;
mod limits;
mod near;
mod nodes;
mod partitions;
mod pools;
pub mod propose;
mod rules;
mod scripts;
#[cfg(test)]
mod tests;
pub mod trial;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::hostlist::Hostlist;
use gpufrac_core::slurm_release::SlurmRelease;
use gpufrac_slurm_conf::{Partition, Record, Site, SlurmNode};

pub use access::Closed;
pub use ask::{AskError, ask_slurm, installed_release, of_own_cluster, slurm_says};
pub use gather::{Here, Sources, gather};
pub use gpu_count::{Fact, GpuCount};
pub use gpufrac_slurm_conf::{Files, LinePosition, Running};
pub use host::{Role, Trouble};
pub use limits::Limits;
pub use near::takes_cores;
pub use partitions::proposed_per_gpu;
pub use scripts::glob;

/// A program that Slurm runs as Prolog or Epilog, as this host sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// `Prolog` or `Epilog`.
    pub key: &'static str,
    /// The path in slurm.conf, possibly a pattern.
    pub path: String,
    /// Whether the text of the file, or of one file that matches the pattern, names gpufrac's program; None if it
    /// cannot be read.
    pub names_ours: Option<bool>,
}

/// A GPU as NVML shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostGpu {
    /// N of its `/dev/nvidiaN`, which may differ from its index in NVML.
    pub minor: u32,
    /// The name of the product.
    pub product: String,
    /// The cores near the GPU, by Slurm's numbers; None where all are equally near, or NVML does not say it.
    pub cores: Option<String>,
}

/// The GPUs of a node as NVML shows them on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostGpus {
    pub node: String,
    /// The GPUs in the order of NVML's indexes.
    pub gpus: Vec<HostGpu>,
}

impl HostGpus {
    /// The number of GPUs.
    fn count(&self) -> u32 {
        u32::try_from(self.gpus.len()).unwrap_or(u32::MAX)
    }
}

/// The known settings of a Slurm.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The configuration files; None if they cannot be read.
    pub files: Option<Files>,
    /// Slurm's files that are not UTF-8 text. Slurm reads bytes, so that their settings hold, and are not known here.
    pub not_text: Vec<PathBuf>,
    /// The settings of the running slurmctld.
    pub running: Option<Running>,
    /// Whether plugstack.conf exists and is no regular file, such as /dev/null.
    pub plugstack_is_odd: bool,
    /// Prologs and epilogs on this host.
    pub scripts: Vec<Script>,
    /// Programs that slurmctld runs after jobs and that replace `AdminComment`: the place of each setting, and its
    /// path.
    pub comment_writers: Vec<(String, String)>,
    /// `KillMode=` of slurmd's unit, on a node with MPS control daemons.
    pub kill_mode: Option<String>,
    /// The GPUs of this host, if it is a node and NVML answers.
    pub gpus: Option<HostGpus>,
    /// The path of gpufrac.toml, if it is the one in use.
    pub config: Option<PathBuf>,
    /// The limits and reservations; none if they were not asked for.
    pub limits: Limits,
    /// slurmctld's answer about its pools; None if it was not asked or did not answer.
    pub pools: Option<pools::PluginPools>,
    /// The file or folder whose mode keeps slurmctld or users from reading gpufrac.toml.
    pub closed: Option<Closed>,
    /// The only node that was asked about and is judged; None for all.
    pub only: Option<String>,
    /// The function of this host; None if its files were not checked.
    pub role: Option<Role>,
    /// The faults of gpufrac's files on this host.
    pub troubles: Vec<Trouble>,
    /// The reason why slurmctld did not answer, though Slurm is installed here.
    pub no_answer: Option<String>,
    /// The sources that could not be read, with the reason.
    pub unknown: Vec<String>,
}

impl Settings {
    /// Whether no source could be read.
    pub fn is_empty(&self) -> bool {
        self.files.is_none() && self.running.is_none()
    }

    /// The node that Slurm runs on a host of this name, where it has another name (`NodeHostname=`).
    pub fn node_on(&self, host: &str) -> Option<String> {
        let files = self.files.as_ref()?;
        let mut lines = files.slurm.starting("NodeName");
        let node = lines.find_map(|line| {
            let nodes = Hostlist::as_slurm(line.get("NodeName")?).ok()?;
            let hosts = Hostlist::as_slurm(line.get("NodeHostname")?).ok()?;
            let mut names = hosts.names().iter();
            let at = names.position(|name| name.split('.').next() == Some(host))?;
            nodes.names().get(at).cloned()
        });
        node.filter(|node| node != host)
    }

    /// The nodes and partitions: those of the running slurmctld, otherwise those of slurm.conf.
    pub fn site(&self) -> Site {
        let running = self.running.as_ref().filter(|it| !it.partitions.is_empty());
        let written = self.files.as_ref().map(|files| &files.site);
        match running {
            Some(running) => Site::of_running(running, written),
            None => written.cloned().unwrap_or_default(),
        }
    }

    /// Whether slurmctld, or its backup, runs on this host.
    pub fn is_of_controller(&self) -> bool {
        access::controls(self)
    }

    /// A value of slurm.conf: the running one, otherwise the one in the file.
    fn value(&self, key: &str) -> Option<&str> {
        let written = || Some(self.files.as_ref()?.slurm.last(key)?.1);
        self.running_value(key).or_else(written)
    }

    /// The release of the running Slurm.
    fn release(&self) -> Option<SlurmRelease> {
        self.running.as_ref()?.release()
    }

    /// A node in slurm.conf.
    fn line_of_node(&self, name: &str) -> Option<&SlurmNode> {
        self.files.as_ref()?.site.node(name)
    }

    /// A node in the running slurmctld.
    fn record_of_node(&self, name: &str) -> Option<&Record> {
        self.running.as_ref()?.nodes.get(name)
    }

    /// A partition in slurm.conf.
    fn line_of_partition(&self, name: &str) -> Option<&Partition> {
        self.files.as_ref()?.site.partition(name)
    }

    /// A value of the running slurmctld.
    fn running_value(&self, key: &str) -> Option<&str> {
        self.running.as_ref()?.get(key)
    }

    /// The path of slurm.conf, for findings without a line.
    fn slurm_conf(&self) -> String {
        let path = self.files.as_ref().map(|files| &files.slurm.path);
        path.map_or("slurm.conf".into(), |path| path.display().to_string())
    }
}

/// The findings about limits, prices and reservations alone, which a site announces to its users.
pub fn limits_and_prices(settings: &Settings, config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    rules::accounting(settings, config, &mut found);
    let names = config.pools.iter().flat_map(|pool| &pool.partitions);
    for name in names.collect::<BTreeSet<_>>() {
        partitions::billing::judge(settings, config, name, &mut found);
    }
    limits::judge(settings, config, &mut found);
    limits::judge_reservations(settings, config, &mut found);
    found
}

/// The finding about a file that is not UTF-8 text.
fn not_text(path: &Path) -> Finding {
    let path = path.display();
    // A file of Slurm, such as an included one, is not UTF-8 text. Cure: `iconv -f latin1 -t utf-8 FILE`.
    Finding {
        severity: Severity::Error,
        place: Some(path.to_string()),
        what: "it is not UTF-8 text, and nothing of Slurm is judged without it".into(),
        fix: format!(
            "save it as UTF-8, for example: `iconv -f latin1 -t utf-8 {path} > {path}.new`"
        ),
    }
}

/// Judges the settings against the pools. The findings are sorted: errors, warnings, notes.
pub fn judge(settings: &Settings, config: &Config) -> Vec<Finding> {
    let mut found = Vec::new();
    if !settings.not_text.is_empty() {
        return settings
            .not_text
            .iter()
            .map(|path| not_text(path))
            .collect();
    }
    if settings.is_empty() {
        rules::no_answer(settings, &mut found);
        return found;
    }
    rules::judge(settings, config, &mut found);
    found.extend(settings.closed.as_ref().map(Closed::finding));
    found.extend(settings.troubles.iter().map(Trouble::finding));
    pools::judge(settings, config, &mut found);
    nodes::judge(settings, config, &mut found);
    if settings.only.is_none() {
        partitions::judge(settings, config, &mut found);
        comments::judge(settings, &mut found);
        limits::judge(settings, config, &mut found);
        limits::judge_reservations(settings, config, &mut found);
    }
    // A wrong line explains both, and a correct one ends both.
    let slurm_conf = settings.slurm_conf();
    let is_of_file = |place: &String| place.starts_with(&slurm_conf);
    let faults = found.iter().filter(|it| it.severity != Severity::Note);
    let mut places = faults.filter_map(|finding| finding.place.as_ref());
    if !places.any(is_of_file) {
        rules::no_answer(settings, &mut found);
        rules::other_slurm_conf(settings, &mut found);
    }
    found.sort_by_key(|finding| finding.severity);
    found
}
