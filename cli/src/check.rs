//! `gpufrac check`

use gpufrac_core::config::{Config, Pool};
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::hostlist;
use gpufrac_core::layout::MenuEntry;
use gpufrac_host::exit::Exit;
use gpufrac_node::node::Node;
use gpufrac_node::setup::check;
use gpufrac_slurm_settings::{self as settings, Here, Settings, Sources};

use crate::args::CheckArgs;
use crate::error::CliError;
use crate::finding;
use crate::status;

pub fn run(args: &CheckArgs) -> Result<Exit, CliError> {
    let path = args.config.path();
    let config = match args.config.read() {
        Err(CliError::Config(errors)) => {
            // Errors of the file are what this command is for: they go out as they are, one
            // line each, for editors.
            eprintln!("{errors}");
            return Ok(Exit::Broken);
        }
        other => other?,
    };
    summary(&config);
    let node = Node::new(config, &args.config.node_name());
    let slurm_alone = args.slurm || args.slurm_conf.is_some();
    let on_node = !args.file_only && !slurm_alone && node.has_pools();
    let mut wrong = false;
    if on_node {
        for note in check::notes(&node) {
            println!("{note}");
        }
        let mut problems = check::check(&node);
        problems.extend(no_fence());
        problems.iter().for_each(finding::print);
        wrong = !problems.is_empty();
    }
    let mut judged = false;
    if !args.file_only {
        let in_use = args.config.config.is_none() && args.slurm_conf.is_none();
        let sources = Sources {
            slurm_conf: args.slurm_conf.clone(),
            config: in_use.then(|| path.clone()),
            here: on_node.then(|| here(&node)),
        };
        let settings = settings::gather(&sources);
        judged = !settings.is_empty();
        wrong |= slurm(&settings, &node.config);
        // What was asked for by name must be there.
        if slurm_alone && !judged {
            eprintln!(
                "gpufrac: nothing is known of Slurm\nhint: name its slurm.conf with `--slurm-conf FILE`"
            );
            wrong = true;
        }
    }
    if wrong {
        return Ok(Exit::Broken);
    }
    let mut ok = format!("{}: ok", path.display());
    if on_node {
        ok.push_str(&format!("; node {}: ok", node.name));
    }
    if judged {
        ok.push_str("; Slurm: ok");
    }
    println!("{ok}");
    Ok(Exit::Done)
}

/// Whether jobs could not be fenced here.
fn no_fence() -> Option<Finding> {
    // Others may load no programs.
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let fix = "jobs on this node could not be fenced, and would not start: a kernel with CONFIG_CGROUP_BPF, and a memlock \
               limit for slurmd (LimitMEMLOCK=infinity) before Linux 5.11";
    let error = gpufrac_fence::probe().err()?;
    Some(Finding::of_machine(error, fix))
}

fn here(node: &Node) -> Here<'_> {
    let gpus = node.nvml().and_then(|session| session.gpu_count());
    let pools = node.config.pools_of_node(&node.name);
    Here {
        node: &node.name,
        gpus: gpus.ok(),
        uses_mps: pools.iter().any(|pool| pool.mechanism.uses_mps()),
    }
}

/// Tells what is wrong with Slurm's settings. Gives whether anything must be changed.
fn slurm(settings: &Settings, config: &Config) -> bool {
    for unknown in &settings.unknown {
        println!("Slurm: {unknown}");
    }
    let found = settings::judge(settings, config);
    found.iter().for_each(finding::print);
    let wrong = found
        .iter()
        .any(|finding| finding.severity == Severity::Error);
    if wrong {
        eprintln!(
            "hint: after a change of Slurm's files: restart slurmctld, then slurmd on every node"
        );
    }
    wrong
}

fn summary(config: &Config) {
    for pool in &config.pools {
        println!(
            "pool {}: {} on {}, {} for partition {} on {}",
            pool.name,
            pool.mechanism,
            pool.geometry.model,
            pool.layout.kind,
            pool.partitions.join(","),
            nodes(pool)
        );
        for line in status::columns(&menu(pool)) {
            println!("  {line}");
        }
        let count = pool.layout.menu.len();
        if count > MAX_LISTED_SIZES {
            println!("  {count} sizes in all");
        }
    }
}

fn nodes(pool: &Pool) -> String {
    let names: Vec<&str> = pool.nodes.names().iter().map(String::as_str).collect();
    hostlist::short(&names)
}

/// A menu of more sizes than this is shortened.
const MAX_LISTED_SIZES: usize = 12;

fn menu(pool: &Pool) -> Vec<Vec<String>> {
    let mut rows = vec![
        ["FRACTION", "UNITS", "PROFILE", "MEMORY"]
            .map(str::to_owned)
            .into(),
    ];
    let menu = &pool.layout.menu;
    // Any whole percent: its ends, and the whole GPU, say it all.
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
