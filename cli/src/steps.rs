//! The order of steps by which a change of Slurm's files takes effect; docs/admin/going-live.md has the reasons.

use std::path::Path;

use gpufrac_core::hostlist;
use gpufrac_slurm_settings::propose::{Change, Proposal};

pub struct Steps<'a> {
    /// The path of gpufrac.toml, and whether it changes.
    pub config: (&'a Path, bool),
    /// The changes of Slurm's files.
    pub proposal: &'a Proposal,
    /// Nodes of pools for which slurmctld has other devices, though the files are right.
    pub running: &'a [String],
    /// Whether slurmctld runs with other settings than the files.
    pub restart: bool,
    /// Whether the files are written already.
    pub written: bool,
}

impl Steps<'_> {
    /// The steps, in order.
    pub fn lines(&self) -> Vec<String> {
        let Proposal { changes, nodes, .. } = self.proposal;
        let (config, config_changes) = self.config;
        let mut lines = Vec::new();
        if names(changes, "gpufrac") {
            lines.push(
                "install the packages gpufrac and gpufrac-plugins-SERIES on every host, login hosts first, and gpufrac-node on the \
                 nodes: where slurm.conf names a plugin that is not there, slurmctld and sbatch do not start"
                    .to_owned(),
            );
        }
        if config_changes {
            let path = config.display();
            lines.push(format!(
                "copy {path} to every host, nodes first; on one of them: gpufrac check --file-only"
            ));
        }
        let mut all: Vec<&String> = nodes.iter().chain(self.running).collect();
        all.sort_unstable();
        all.dedup();
        let all = hostlist::short(&all);
        let drained = !all.is_empty() || self.proposal.concerns_all_nodes;
        let drained_nodes = if self.proposal.concerns_all_nodes { "ALL" } else { all.as_str() };
        if drained {
            let list = if self.proposal.concerns_all_nodes {
                String::new()
            } else {
                format!(" -w {all}")
            };
            lines.push(format!(
                "drain, as jobs do not outlive this change: scontrol update NodeName={drained_nodes} State=DRAIN Reason=gpufrac; wait until this prints nothing: squeue -h -t R,CG,S{list}"
            ));
        }
        if !changes.is_empty() {
            let files: Vec<String> = changes
                .iter()
                .map(|change| change.path.display().to_string())
                .collect();
            let own = hostlist::short(&self.proposal.own_gres_conf);
            let except = if own.is_empty() {
                String::new()
            } else {
                format!(", but gres.conf not on {own}, which keep their own")
            };
            let write = if self.written {
                "on this host they are written; write the same on every other one"
            } else {
                "write them on every host"
            };
            lines.push(format!(
                "{}: {write}{except}; in plugstack.conf a node has `required`, a login host `optional`",
                files.join(", ")
            ));
        }
        if !all.is_empty() {
            lines.push(format!(
                "on each of {all}: gpufrac node-setup && systemctl enable gpufrac-node-setup"
            ));
        }
        if !changes.is_empty() || self.restart || !all.is_empty() {
            lines.push(
                "systemctl restart slurmctld; then on every node: systemctl restart slurmd"
                    .to_owned(),
            );
        } else if config_changes {
            lines.push(
                "scontrol reconfigure; on nodes: systemctl reload gpufrac-reaperd".to_owned(),
            );
        }
        if !lines.is_empty() {
            lines.push("on slurmctld's host and on each node: gpufrac check".to_owned());
        }
        if drained {
            lines.push(format!(
                "scontrol update NodeName={drained_nodes} State=RESUME"
            ));
        }
        lines
    }

    /// Prints the numbered steps.
    pub fn print(&self) {
        let lines = self.lines();
        if lines.is_empty() {
            return;
        }
        println!("\nin this order:");
        for (number, line) in (1..).zip(lines) {
            println!("{number:>3}. {line}");
        }
    }
}

/// Whether a change adds a plugin or program of gpufrac.
fn names(changes: &[Change], word: &str) -> bool {
    let is_new = |change: &Change, line: &str| {
        let before = change.before.as_deref().unwrap_or_default();
        !before.lines().any(|known| known == line)
    };
    let brings = |line: &str| {
        [
            "JobSubmitPlugins",
            "CliFilterPlugins",
            "Prolog=",
            "Epilog=",
            "required ",
            "optional ",
        ]
        .iter()
        .any(|key| line.contains(key))
    };
    changes.iter().any(|change| {
        let mut lines = change.after.lines();
        lines.any(|line| line.contains(word) && brings(line) && is_new(change, line))
    })
}
