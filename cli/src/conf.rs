//! `gpufrac conf`

use std::path::Path;

use gpufrac_core::config::{Config, Mechanism, Pool};
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::geometry::Geometry;
use gpufrac_core::gres::GresLines;
use gpufrac_core::hostlist::{self, Hostlist};
use gpufrac_core::ids::GpuIndex;
use gpufrac_core::layout::{HEADINGS, Served};
use gpufrac_host::exit::Exit;
use gpufrac_node::node::Node;
use gpufrac_page::table::columns;
use gpufrac_slurm_settings::propose::{self, Gpus};
use gpufrac_slurm_settings::{self as settings, Here, Sources};

use crate::args::ConfArgs;
use crate::error::CliError;
use crate::steps::Steps;
use crate::{init, patch, sizes};

pub fn run(args: &ConfArgs) -> Result<Exit, CliError> {
    if args.json {
        let config = args.config.read()?;
        println!("{:#}", sizes::object(&config));
        return Ok(Exit::Done);
    }
    if args.diff { diff(args) } else { print(args) }
}

/// Prints the differences between these lines and Slurm's files and the running slurmctld.
fn diff(args: &ConfArgs) -> Result<Exit, CliError> {
    let path = args.config.path();
    let node = Node::new(args.config.read_strictly()?, &args.config.node_name());
    let seen = if node.has_pools() { init::gpus_of(&node) } else { None };
    let settings = settings::gather(&Sources {
        slurm_conf: args.slurm_conf.clone(),
        host: args.slurm_conf.is_none(),
        here: node.has_pools().then(|| Here {
            node: &node.name,
            gpus: seen,
            uses_mps: false,
        }),
        ..Sources::default()
    });
    init::are_text(&settings)?;
    if settings.files.is_none() {
        let why = settings.unknown.join("; ");
        return Err(CliError::NoSlurmFiles { why });
    }
    for unknown in &settings.unknown {
        println!("Slurm: {unknown}");
    }
    let gpus = Gpus { told: args.gpus };
    let proposal = init::proposal(&settings, &node.config, gpus)?;
    let running = propose::running_difference(&settings, &node.config, gpus);
    print!("{}", patch::text(&proposal.changes));
    if !running.is_empty() {
        let lines = |lines: &[String]| {
            lines
                .iter()
                .map(|line| format!("{line}\n"))
                .collect::<String>()
        };
        let (is, right) = (lines(&running.is), lines(&running.right));
        let names = [
            "slurmctld, as it runs",
            "slurmctld, as gpufrac.toml needs it",
        ];
        print!("{}", patch::between((names[0], &is), (names[1], &right)));
    }
    init::tell_left(&proposal.left);
    let steps = Steps {
        config: (&path, false),
        proposal: &proposal,
        running: &running.nodes,
        restart: !running.is_empty(),
        written: false,
    };
    steps.print();
    let errors = |finding: &Finding| finding.severity == Severity::Error;
    let differs =
        !proposal.changes.is_empty() || !running.is_empty() || proposal.left.iter().any(errors);
    Ok(if differs { Exit::Broken } else { Exit::Done })
}

fn print(args: &ConfArgs) -> Result<Exit, CliError> {
    let config = args.config.read()?;
    let text = args.config.node_name();
    let nodes = Hostlist::parse(&text).map_err(|source| CliError::Nodes {
        text: text.clone(),
        source,
    })?;
    let mut groups: Vec<(GresLines, Vec<&String>)> = Vec::new();
    let takes_cores = settings::installed_release().is_some_and(settings::takes_cores);
    for node in nodes.names() {
        let lines = lines_of(&config, node, args.gpus, takes_cores)?;
        hostlist::group(&mut groups, lines, node);
    }
    let named = |names: &[&String]| match groups.len() {
        1 => text.clone(),
        _ => hostlist::short(names),
    };
    if !takes_cores {
        println!(
            "# gres.conf has no Cores=: before Slurm 23.11.5 a job of a whole GPU could then get one with fractions on it."
        );
    }
    println!("# gres.conf");
    for (lines, names) in &groups {
        for line in lines.gres_conf(&named(names)) {
            println!("{line}");
        }
    }
    println!("\n# slurm.conf");
    println!("GresTypes={}", config.count_name.gres_types().join(","));
    println!("SelectType=select/cons_tres");
    println!("PrologFlags=Alloc,Contain,DeferBatch");
    for (lines, names) in &groups {
        // The site writes the rest of the node's line (CPUs, memory).
        println!("NodeName={} Gres={}", named(names), lines.gres);
    }
    print!("{}", served(&config, nodes.names()));
    Ok(Exit::Done)
}

/// The sizes that the layouts of these nodes' GPU models serve, as comments.
fn served(config: &Config, nodes: &[String]) -> String {
    let mut pools: Vec<&Pool> = Vec::new();
    for pool in nodes.iter().flat_map(|node| config.pools_of_node(node)) {
        if pool.mechanism == Mechanism::Mig && !pools.iter().any(|known| known.name == pool.name) {
            pools.push(pool);
        }
    }
    let mut text = String::new();
    let mut models: Vec<&str> = Vec::new();
    for pool in &pools {
        let model = pool.geometry.model.as_str();
        if models.contains(&model) {
            continue;
        }
        models.push(model);
        text.push_str(&format!(
            "\n# What each layout serves on {model}: pieces of one size on a full GPU. halves mixes its sizes, uniform lends\n\
             # whole GPUs and pieces of one size from the same GPUs; docs/admin/layouts.md\n"
        ));
        let own = pools.iter().filter(|pool| pool.geometry.model == model);
        let own: Vec<&Pool> = own.copied().collect();
        text.push_str(&table(&pool.geometry, &own));
    }
    text
}

/// A line for each size of each layout, with the pools that have it.
fn table(geometry: &Geometry, pools: &[&Pool]) -> String {
    let has = |pool: &&&Pool, row: &Served| {
        let mut sizes = pool.layout.menu.iter();
        pool.layout.kind == row.kind && sizes.any(|size| size.fraction == row.size)
    };
    let names = |row: &Served| -> String {
        let of = pools.iter().filter(|pool| has(pool, row));
        of.map(|pool| pool.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let heading = HEADINGS.map(str::to_owned).into_iter();
    let mut lines = vec![heading.chain(["pools".to_owned()]).collect::<Vec<_>>()];
    for row in Served::table(geometry) {
        lines.push(row.cells().into_iter().chain([names(&row)]).collect());
    }
    comments(&lines)
}

/// Lines of cells as comments, each column as wide as its widest cell.
pub fn comments(lines: &[Vec<String>]) -> String {
    let lines = columns(lines).into_iter();
    lines.map(|line| format!("# {line}\n")).collect()
}

fn lines_of(
    config: &Config,
    name: &str,
    gpus: Option<u32>,
    takes_cores: bool,
) -> Result<GresLines, CliError> {
    let node = Node::new(config.clone(), name);
    if !node.has_pools() {
        return Err(CliError::no_pool(&node));
    }
    let every_gpu_named = config
        .pools_of_node(name)
        .iter()
        .all(|pool| pool.gpus.is_some());
    let count = match gpus {
        Some(count) => count,
        None if every_gpu_named => 0,
        None => node
            .nvml()
            .and_then(|session| session.gpu_count())
            .map_err(|source| CliError::GpuCount {
                node: name.into(),
                source,
            })?,
    };
    let devices = config.devices_of_node(name, count);
    let folder: &Path = &node.devices;
    let seen = if takes_cores { init::gpus_of(&node) } else { None };
    let cores = |gpu: GpuIndex| seen.as_ref()?.get(gpu.position())?.cores.clone();
    Ok(GresLines::of(&devices, folder, &config.count_name, &cores))
}
