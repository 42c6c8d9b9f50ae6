//! `gpufrac check`: checks the configuration, the machine and Slurm. [`report`] prints the result.

mod activity;
mod jobs;
mod migration;
mod reaper;
mod report;
mod stuck;

use std::path::Path;

use gpufrac_core::config::{Config, Pool};
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::hostlist;
use gpufrac_core::layout::MenuEntry;
use gpufrac_host::files::RootDir;
use gpufrac_node::node::Node;
use gpufrac_node::setup::check;
use gpufrac_slurm_settings::{self as settings, Here, Settings, Sources};

use crate::args::CheckArgs;
use report::{Form, Report, Verdict};

pub fn run(args: &CheckArgs) -> Verdict {
    if args.migration {
        return migration::run(args);
    }
    let form = Form::of(args);
    let path = args.config.path();
    match args.config.read_strictly() {
        Ok(config) => {
            let report = run_checks(args, config);
            report.print(form);
            report.verdict(form)
        }
        Err(error) => {
            report::refused(&path, &error, form);
            Verdict::Errors
        }
    }
}

/// Runs all checks.
fn run_checks(args: &CheckArgs, config: Config) -> Report {
    let path = args.config.path();
    let mut report = Report::of(&path);
    report.lines = summary(&config);
    let node = Node::new(config, &args.config.node_name());
    let slurm_alone = args.slurm || args.slurm_conf.is_some();
    let on_node = !args.file_only && !slurm_alone && node.has_pools();
    if on_node {
        report.node = Some(node.name.clone());
        report.lines.extend(check::notes(&node));
        report.findings.extend(check::check(&node));
        report.findings.extend(no_fence());
        report.findings.extend(reaper::findings(&node));
        report.findings.extend(stuck::findings(&node));
        report.findings.extend(activity::findings(&node));
        // Slurm sends all jobs of the cluster for this; health checks of thousands of nodes must not ask for that.
        if !args.quiet {
            report.findings.extend(jobs::findings(&node));
        }
    }
    let in_use = args.config.config.is_none() && args.slurm_conf.is_none();
    if on_node && in_use {
        report.findings.extend(refused_by_root(&path));
    }
    if args.file_only {
        return report;
    }
    let sources = Sources {
        slurm_conf: args.slurm_conf.clone(),
        config: in_use.then_some(path),
        host: !slurm_alone,
        this_node_alone: args.quiet,
        // A thousand nodes that are checked at a time must not ask slurmdbd.
        limits: !args.quiet && !on_node,
        here: on_node.then(|| here(&node)),
    };
    let settings = settings::gather(&sources);
    let unknown = settings.unknown.iter().chain(&settings.limits.unknown);
    let unknown = unknown.map(|unknown| format!("Slurm: {unknown}"));
    report.lines.extend(unknown);
    report.slurm_is_known = !settings.is_empty();
    report.of_slurm = settings::judge(&settings, &node.config);
    if !on_node && !slurm_alone {
        report.findings.extend(other_name(&settings, &node));
    }
    // An explicit request to check Slurm fails if there is nothing to check.
    if slurm_alone && !report.slurm_is_known && settings.not_text.is_empty() {
        // No slurm.conf was found, and slurmctld did not answer. Cure: Name the file with `--slurm-conf FILE`.
        report.findings.push(Finding::of_machine(
            "no settings of Slurm were found",
            "name its slurm.conf with `--slurm-conf FILE`",
        ));
    }
    report
}

/// A warning if this host is a node of a pool under another name: then nothing of the machine was checked.
fn other_name(settings: &Settings, node: &Node) -> Option<Finding> {
    let known = settings.node_on(&node.name)?;
    node.config
        .pools
        .iter()
        .find(|pool| pool.nodes.contains(&known))?;
    // The node's name in Slurm is not the host's short name (`NodeHostname=`). Cure: `gpufrac check --node NAME`; in
    // both units `Environment=SLURMD_NODENAME=NAME`.
    Some(Finding {
        // Where slurmctld and slurmd share a host, this may be asked for slurmctld's part.
        severity: if settings.is_of_controller() { Severity::Note } else { Severity::Warning },
        place: None,
        what: format!(
            "slurm.conf calls this host {known}, and gpufrac took it for {}: this machine was not looked at",
            node.name
        ),
        fix: format!(
            "`gpufrac check --node {known}`; `gpufrac node-setup` and gpufrac-reaperd need it too: \
             `systemctl edit` both units, and write Environment=SLURMD_NODENAME={known} in [Service]"
        ),
    })
}

/// An error if root's programs refuse the configuration because others than root could change it.
fn refused_by_root(path: &Path) -> Option<Finding> {
    let (folder, name) = (path.parent()?, path.file_name()?.to_str()?);
    let error = RootDir::open(folder)
        .and_then(|dir| dir.has_file(name))
        .err()?;
    let fix = error.cure().unwrap_or_else(|| {
        "put the file itself there, root's, in folders that only root can change".to_owned()
    });
    // A user could change the file or a folder above it. Cure: Follow the hint: owner root, mode without write for
    // others.
    Some(Finding {
        severity: Severity::Error,
        place: Some(path.display().to_string()),
        what: format!("prolog, epilog and node-setup refuse this file: {error}"),
        fix,
    })
}

/// An error if jobs could not be fenced on this machine.
fn no_fence() -> Option<Finding> {
    // Other users may not load BPF programs, so the check needs root.
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let fix = "jobs on this node could not be fenced, and would not start: a kernel with CONFIG_CGROUP_BPF, and a memlock \
               limit for slurmd (LimitMEMLOCK=infinity) before Linux 5.11";
    let error = gpufrac_fence::probe().err()?;
    Some(Finding::of_machine(error, fix))
}

fn here(node: &Node) -> Here<'_> {
    let pools = node.config.pools_of_node(&node.name);
    Here {
        node: &node.name,
        gpus: crate::init::gpus_of(node),
        uses_mps: pools.iter().any(|pool| pool.mechanism.uses_mps()),
    }
}

/// The pools with their sizes.
fn summary(config: &Config) -> Vec<String> {
    let mut lines = Vec::new();
    for pool in &config.pools {
        lines.push(format!(
            "pool {}: {} on {}, {} for partition {} on {}",
            pool.name,
            pool.mechanism,
            pool.geometry.model,
            pool.layout.kind,
            pool.partitions.join(","),
            hostlist::short(pool.nodes.names())
        ));
        let columns = gpufrac_page::table::columns(&menu(pool));
        lines.extend(columns.into_iter().map(|line| format!("  {line}")));
        let count = pool.layout.menu.len();
        if count > MAX_LISTED_SIZES {
            lines.push(format!("  {count} sizes in all"));
        }
    }
    lines
}

/// The most sizes of a menu that are listed.
const MAX_LISTED_SIZES: usize = 12;

fn menu(pool: &Pool) -> Vec<Vec<String>> {
    let mut rows = vec![
        ["FRACTION", "UNITS", "PROFILE", "MEMORY"]
            .map(str::to_owned)
            .into(),
    ];
    let menu = &pool.layout.menu;
    // Of a menu of every percent the first size, the last one and the whole GPU are enough.
    let shown = |position: usize, entry: &MenuEntry| {
        menu.len() <= MAX_LISTED_SIZES
            || position == 0
            || position + 2 >= menu.len()
            || entry.units.0.is_multiple_of(25)
    };
    for (_, entry) in menu
        .iter()
        .enumerate()
        .filter(|(at, entry)| shown(*at, entry))
    {
        rows.push(vec![
            entry.fraction.to_string(),
            entry.units.to_string(),
            entry.profile_name.clone(),
            entry.memory.to_string(),
        ]);
    }
    rows
}
