//! Proposes changes of Slurm's files for the pools, as text: for `gpufrac init` and `gpufrac conf --diff`.
//!
//! Only gpufrac's own settings that `gpufrac check` finds wrong are changed: a few settings, the lines of GPUs and
//! shares of the pools' nodes, the line of the SPANK plugin. A right setting stays in its form, so that a second run
//! changes nothing. [`Proposal::left`] has the other findings.

mod consequences;
mod devices;
mod own_files;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::slurm_release::SlurmSeries;

pub use super::gpu_count::Gpus;
use super::scripts::HOOKS;
use super::{Settings, containers, host, nodes, rules};
use gpufrac_slurm_conf::{Files, Glob, Read, edit};

/// The settings of slurm.conf that may be changed, in the order in which new ones are added.
const SETTINGS: [&str; 9] = [
    "GresTypes",
    "SelectType",
    "SelectTypeParameters",
    "PrologFlags",
    "JobSubmitPlugins",
    "CliFilterPlugins",
    "ProctrackType",
    "TaskPlugin",
    "PrEpPlugins",
];
/// The settings of cgroup.conf that may be changed.
const CGROUP_SETTINGS: [&str; 1] = ["ConstrainDevices"];
/// After a change of one of these, slurmctld and slurmd do not recognise running jobs. Therefore no job may run on
/// any node.
const FOR_ALL_NODES: [&str; 3] = ["SelectType", "ProctrackType", "TaskPlugin"];
/// The first series whose slurm.conf may have several lines of Prolog and Epilog, all of which are run.
const SEVERAL_PROLOGS: SlurmSeries = SlurmSeries::new(24, 5);

/// A file before and after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub path: PathBuf,
    /// The text before; None if the file does not exist.
    pub before: Option<String>,
    /// The text after the change.
    pub after: String,
}

/// The changes of Slurm's files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Proposal {
    /// The changes, one for each file.
    pub changes: Vec<Change>,
    /// Findings that remain: settings that are not gpufrac's to change, or that are not in these files.
    pub left: Vec<Finding>,
    /// The nodes of pools whose devices change.
    pub nodes: Vec<String>,
    /// The nodes with a gres.conf of their own: this one names other GPUs than their `Gres=`.
    pub own_gres_conf: Vec<String>,
    /// Whether a changed setting requires that no job runs on any node.
    pub concerns_all_nodes: bool,
    /// What makes the changes impossible with the running Slurm; None if they are possible.
    pub refused: Option<Finding>,
    /// What changes for the users and the programs of the site, a sentence each.
    pub consequences: Vec<String>,
    /// GPUs without a pool that Slurm no longer finds, as their Types are not known: the node, and N of `/dev/nvidiaN`.
    lost: Vec<(String, u32)>,
}

/// How files are read and listed.
#[derive(Clone, Copy)]
pub struct Texts<'a> {
    /// Reads a file.
    pub read: Read<'a>,
    /// Lists the files of a pattern.
    pub glob: Glob<'a>,
}

/// Computes the changes of Slurm's files for the pools. Errors: slurm.conf cannot be read.
pub fn propose(
    settings: &Settings,
    config: &Config,
    texts: Texts<'_>,
    gpus: Gpus,
) -> io::Result<Proposal> {
    let Some(files) = &settings.files else {
        return Ok(Proposal::default());
    };
    let mut draft = Draft {
        slurm_conf: files.slurm.path.clone(),
        settings: settings.clone(),
        config,
        texts,
        changed: BTreeMap::new(),
        proposal: Proposal::default(),
    };
    draft.settings_of_slurm_conf()?;
    draft.hooks()?;
    draft.cgroup_conf()?;
    draft.plugstack()?;
    draft.devices(gpus)?;
    let mut left = draft.left();
    let refused = nodes::refused(&draft.settings, config);
    let after = draft.files().site;
    let mut proposal = draft.proposal;
    left.extend(devices::lost(&proposal.lost, &settings.slurm_conf()));
    left.extend(own_files::left(
        &proposal.own_gres_conf,
        &files.gres.path.display().to_string(),
    ));
    proposal.left = left;
    proposal.refused = proposal.refused.or(refused);
    proposal.consequences = consequences::of(settings, &after, config, &proposal.nodes);
    let changes = draft.changed.into_values();
    proposal.changes = changes
        .filter(|change| change.before.as_ref() != Some(&change.after))
        .collect();
    Ok(proposal)
}

/// The comment before lines that a run adds.
const MARK: &str = "# gpufrac";

/// The files with the changes so far.
struct Draft<'a> {
    slurm_conf: PathBuf,
    /// [`Settings::files`] has the changed texts.
    settings: Settings,
    config: &'a Config,
    texts: Texts<'a>,
    changed: BTreeMap<PathBuf, Change>,
    proposal: Proposal,
}

impl Draft<'_> {
    fn files(&self) -> Files {
        self.settings.files.clone().unwrap_or_default()
    }

    /// Changes the text of a file.
    fn edit(&mut self, path: &Path, how: impl FnOnce(&mut String)) -> io::Result<()> {
        if !self.changed.contains_key(path) {
            let before = match (self.texts.read)(path) {
                Ok(text) => Some(text),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            let change = Change {
                path: path.to_owned(),
                after: before.clone().unwrap_or_default(),
                before,
            };
            self.changed.insert(path.to_owned(), change);
        }
        if let Some(change) = self.changed.get_mut(path) {
            how(&mut change.after);
        }
        let changed = &self.changed;
        let read = |path: &Path| match changed.get(path) {
            Some(change) => Ok(change.after.clone()),
            None => (self.texts.read)(path),
        };
        let files = Files::read(&self.slurm_conf, &read, self.texts.glob)?;
        self.settings.files = Some(files);
        Ok(())
    }

    /// Adds a line to a file, after a comment that names gpufrac.
    fn append(&mut self, path: &Path, line: &str) -> io::Result<()> {
        let known = self.changed.get(path);
        // One run writes the comment once before all lines that it adds.
        let added = known.is_some_and(|change| {
            let mut before = change.before.iter().flat_map(|text| text.lines());
            let mut after = change.after.lines();
            after.any(|line| line == MARK) && !before.any(|line| line == MARK)
        });
        self.edit(path, |text| {
            if !added && !text.lines().any(|line| line == MARK) {
                edit::append(text, MARK);
            }
            edit::append(text, line);
        })
    }

    fn settings_of_slurm_conf(&mut self) -> io::Result<()> {
        for key in SETTINGS {
            let Some(wrong) = rules::wrong_in_files(&self.settings, self.config, key) else {
                continue;
            };
            self.proposal.concerns_all_nodes |= FOR_ALL_NODES.contains(&key) && wrong.is.is_some();
            let files = self.files();
            self.set(&files.slurm, key, &wrong.right)?;
        }
        Ok(())
    }

    fn cgroup_conf(&mut self) -> io::Result<()> {
        for key in CGROUP_SETTINGS {
            if let Some(wrong) = rules::wrong_in_files(&self.settings, self.config, key) {
                let files = self.files();
                self.set(&files.cgroup, key, &wrong.right)?;
            }
        }
        Ok(())
    }

    /// Sets a key in the last line that has it, or in a new line.
    fn set(
        &mut self,
        file: &gpufrac_slurm_conf::ConfFile,
        key: &str,
        value: &str,
    ) -> io::Result<()> {
        match file.last(key) {
            Some((place, _)) => {
                self.edit(&place.file, |text| edit::set(text, place.line, key, value))
            }
            None => self.append(&file.path, &format!("{key}={value}")),
        }
    }

    /// Sets Prolog and Epilog. A site's own script is not changed.
    fn hooks(&mut self) -> io::Result<()> {
        for (key, program) in HOOKS {
            if self.faults_of_hook(key, program).is_empty() {
                continue;
            }
            let files = self.files();
            let release = self.settings.release();
            let several = release.is_some_and(|release| release.series >= SEVERAL_PROLOGS);
            let absolute = files
                .slurm
                .all(key)
                .iter()
                .all(|(_, value)| *value != program);
            if files.slurm.last(key).is_none() || (several && absolute) {
                let path = files.slurm.path.clone();
                self.append(&path, &format!("{key}=/usr/sbin/{program}"))?;
            }
        }
        Ok(())
    }

    /// The findings about Prolog or Epilog in the files.
    fn faults_of_hook(&self, key: &str, program: &str) -> Vec<Finding> {
        let of_files = Settings {
            running: None,
            ..self.settings.clone()
        };
        let mut found = Vec::new();
        rules::prolog::script(&of_files, key, program, &mut found);
        found
    }

    /// The findings about the changed files, without the running Slurm.
    fn left(&self) -> Vec<Finding> {
        let mut settings = self.settings.clone();
        if let Some(role) = settings.role {
            (_, settings.troubles) = host::inspect(&settings, role.is_node);
        }
        let mut left = super::judge(&settings, self.config);
        left.retain(|finding| {
            let place = finding.place.as_deref().unwrap_or_default();
            finding.severity != Severity::Note && !place.starts_with("scontrol ")
        });
        // Nothing else names a script that cannot be read here, and without gpufrac's program no slice is made.
        let hooks = HOOKS.into_iter();
        let unseen = hooks.flat_map(|(key, program)| self.faults_of_hook(key, program));
        left.extend(unseen.filter(|finding| finding.severity == Severity::Note));
        left
    }

    fn plugstack(&mut self) -> io::Result<()> {
        if let Some(unfit) = rules::plugins::unfit(&self.settings) {
            self.proposal.refused = Some(unfit);
            return Ok(());
        }
        let files = self.files();
        let is_node = self.settings.role.is_none_or(|role| role.is_node);
        let word = if is_node { "required" } else { "optional" };
        let lines = || files.plugins.iter().flatten();
        let ours = lines().find(|line| containers::is_ours(line));
        let container = lines().find(|line| containers::starts_containers(line));
        let new = format!("{word} spank_gpufrac.so");
        match ours {
            None => match container {
                Some(container) => self.edit(&files.plugstack, |text| {
                    edit::insert(text, container.top, &format!("{MARK}\n{new}"));
                }),
                None => self.append(&files.plugstack, &new),
            },
            Some(line) if !line.required && is_node => self.edit(&line.place.file, |text| {
                let raw = edit::raw(text, line.place.line);
                let right = raw.replacen("optional", "required", 1);
                edit::replace(text, line.place.line, &right);
            }),
            Some(_) => Ok(()),
        }
    }
}

/// The difference between the running Slurm and the pools' needs, as lines of slurm.conf.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunningDifference {
    /// The lines of the running slurmctld.
    pub is: Vec<String>,
    /// The lines that it needs.
    pub right: Vec<String>,
    /// The nodes whose devices slurmctld counts differently.
    pub nodes: Vec<String>,
}

impl RunningDifference {
    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        self.right.is_empty()
    }
}

/// Compares the settings of the running slurmctld; empty if slurmctld does not answer.
pub fn running_difference(settings: &Settings, config: &Config, gpus: Gpus) -> RunningDifference {
    let mut found = RunningDifference::default();
    let Some(running) = &settings.running else {
        return found;
    };
    for key in SETTINGS.into_iter().chain(CGROUP_SETTINGS) {
        // If no plugin reads cgroup.conf, slurmctld has no values of it.
        if CGROUP_SETTINGS.contains(&key) && running.get(key).is_none() {
            continue;
        }
        if let Some(wrong) = rules::wrong_in_running(settings, config, key) {
            found.is.extend(wrong.is.map(|is| format!("{key}={is}")));
            found.right.push(format!("{key}={}", wrong.right));
        }
    }
    for (key, program) in HOOKS {
        if running.all(key).is_empty() {
            found.right.push(format!("{key}=/usr/sbin/{program}"));
        }
    }
    for node in nodes::of_pools(config) {
        let Some(record) = running.nodes.get(node) else {
            continue;
        };
        let Some(wanted) = nodes::wanted(settings, config, node, gpus) else {
            continue;
        };
        let gres = record.get("Gres");
        if nodes::is_wrong_in_running(&wanted, gres) {
            let gres = gres.map_or(String::new(), |gres| format!(" Gres={gres}"));
            found.is.push(format!("NodeName={node}{gres}"));
            found.nodes.push(node.to_owned());
            found
                .right
                .push(format!("NodeName={node} Gres={}", wanted.gres));
        }
    }
    found
}
