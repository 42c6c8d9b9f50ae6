//! `gpufrac init`

use std::io;
use std::path::{Path, PathBuf};

use gpufrac_core::advise::{self, Advice, Plan, PoolLocation};
use gpufrac_core::config::{Config, Pool};
use gpufrac_core::finding::Finding;
use gpufrac_core::hostlist::{self, Hostlist};
use gpufrac_host::cores::Cores;
use gpufrac_host::exit::Exit;
use gpufrac_node::job::environment;
use gpufrac_node::node::Node;
use gpufrac_slurm_conf::{ConfFile, Files, counts};
use gpufrac_slurm_settings::gpu_count::{self, GpuCount};
use gpufrac_slurm_settings::propose::{self, Change, Gpus, Proposal, Texts};
use gpufrac_slurm_settings::{self as settings, Here, HostGpu, Settings, Sources, trial};

use crate::args::InitArgs;
use crate::error::CliError;
use crate::steps::Steps;
use crate::{finding, patch};

mod gpus;
mod per_gpu;

/// Proposes the changes, or writes them.
pub fn run(args: &InitArgs) -> Result<Exit, CliError> {
    let path = args.config.path();
    let name = args.config.node_name();
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(CliError::Read { path, source }),
    };
    let parse = |text: &str| Config::parse(text, &path.to_string_lossy()).map_err(CliError::Config);
    let known = before.as_deref().map(parse).transpose()?;
    let node = Node::new(known.clone().unwrap_or_else(Config::empty), &name);
    let settings = gather(args, &node);
    are_text(&settings)?;
    let Some(files) = &settings.files else {
        let why = settings.unknown.join("; ");
        return Err(CliError::NoSlurmFiles { why });
    };
    let gpus = Gpus { told: args.gpus };
    let (config, after) = match known.filter(|_| node.has_pools()) {
        Some(config) => {
            println!(
                "{} has pools on {name}: they stay as they are",
                path.display()
            );
            (config, before.clone().unwrap_or_default())
        }
        None => {
            let pools = with_pools(args, &node, &settings, files, before.as_deref())?;
            let parse = |text: &str| {
                Config::parse(text, &path.to_string_lossy()).map_err(CliError::Proposed)
            };
            let after = per_gpu::add(&settings, &parse(&pools)?, gpus, &pools)?;
            (parse(&after)?, after)
        }
    };
    if args.gpus.is_none() {
        count(&settings, &config)?;
    }
    let proposal = proposal(&settings, &config, gpus)?;
    let mut changes = Vec::new();
    if before.as_ref() != Some(&after) {
        changes.push(Change {
            path: path.clone(),
            before,
            after: after.clone(),
        });
    }
    let config_changes = !changes.is_empty();
    changes.extend(proposal.changes.iter().cloned());
    show(&changes, proposal.left.is_empty());
    tell_left(&proposal.left);
    print_section("\nnot known:", &settings.limits.unknown);
    print_section("\nfor the users of these nodes:", &proposal.consequences);
    if !changes.is_empty() {
        if let Some(finding) = &proposal.refused {
            return Err(CliError::Impossible(Box::new(finding.clone())));
        }
        if !args.no_trial {
            attempt(&settings, &changes, (&config, &after))?;
        }
    }
    write(&changes, args.write)?;
    let steps = Steps {
        config: (&path, config_changes),
        proposal: &proposal,
        running: &[],
        restart: false,
        written: args.write,
    };
    steps.print();
    Ok(Exit::Done)
}

fn gather(args: &InitArgs, node: &Node) -> Settings {
    let seen = gpus_of(node);
    settings::gather(&Sources {
        slurm_conf: args.slurm_conf.clone(),
        host: args.slurm_conf.is_none(),
        limits: true,
        // If `init` runs on slurmctld's host for another node, this host's settings do not count.
        here: (seen.is_some() || environment::host_name() == node.name).then(|| Here {
            node: &node.name,
            gpus: seen,
            uses_mps: false,
        }),
        ..Sources::default()
    })
}

/// Checks that Slurm's files could be read. Errors: one of them is not UTF-8 text.
pub fn are_text(settings: &Settings) -> Result<(), CliError> {
    settings.not_text.first().map_or(Ok(()), |path| {
        Err(CliError::Read {
            path: path.clone(),
            source: io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"),
        })
    })
}

/// The GPUs of this host; None if NVML does not answer.
pub fn gpus_of(node: &Node) -> Option<Vec<HostGpu>> {
    let session = node.nvml().ok()?;
    let gpus = session.gpus().ok()?;
    let cores = Cores::read(&node.driver_root).ok();
    let gpus = (0..).zip(&gpus).map(|(index, gpu)| HostGpu {
        minor: gpu.minor_now().map_or(index, |minor| minor.0),
        product: gpu.name(),
        cores: cores.as_ref().and_then(|cores| {
            let near = gpu.near_threads(cores.last_thread()?).ok()?;
            cores.near(&near)
        }),
    });
    Some(gpus.collect::<Vec<_>>())
}

/// Says which nodes are taken to have as many GPUs as this one.
/// Errors: the number of GPUs of a node is not known, or two facts do not agree about it.
fn count(settings: &Settings, config: &Config) -> Result<(), CliError> {
    let mut assumed: Vec<String> = Vec::new();
    for name in config.pools.iter().flat_map(|pool| pool.nodes.names()) {
        match gpu_count::of(settings, config, name) {
            GpuCount::Known(_) => {}
            GpuCount::Assumed(_) if assumed.contains(name) => {}
            GpuCount::Assumed(_) => assumed.push(name.clone()),
            count => {
                return Err(CliError::Gpus {
                    node: name.clone(),
                    count,
                });
            }
        }
    }
    if let (Some(host), false) = (&settings.gpus, assumed.is_empty()) {
        println!(
            "{}: taken to have {} GPUs, as many as {}, which stands in the same line of slurm.conf; --gpus N says another number",
            hostlist::short(&assumed),
            host.gpus.len(),
            host.node
        );
    }
    Ok(())
}

/// The changes of Slurm's files for the configuration.
pub fn proposal(settings: &Settings, config: &Config, gpus: Gpus) -> Result<Proposal, CliError> {
    let texts = Texts {
        read: &|path: &Path| std::fs::read_to_string(path),
        glob: &settings::glob,
    };
    let path = || match &settings.files {
        Some(files) => files.slurm.path.clone(),
        None => PathBuf::from("slurm.conf"),
    };
    propose::propose(settings, config, texts, gpus).map_err(|source| CliError::Read {
        path: path(),
        source,
    })
}

const NOTHING: &str = "nothing to change: gpufrac.toml and Slurm's files are right";
const NOTHING_HERE: &str = "nothing to change but what is left to you";

/// Prints the diff. `is_all`: whether nothing is left to the admin.
fn show(changes: &[Change], is_all: bool) {
    if changes.is_empty() {
        println!("{}", if is_all { NOTHING } else { NOTHING_HERE });
        return;
    }
    println!();
    print!("{}", patch::text(changes));
    println!();
}

/// Tries the changes with the Slurm of this host. Errors: Slurm speaks against them.
fn attempt(
    settings: &Settings,
    changes: &[Change],
    config: (&Config, &str),
) -> Result<(), CliError> {
    let trial = trial::run(settings, changes, config);
    if !trial.against.is_empty() {
        return Err(CliError::Trial {
            said: trial.against,
        });
    }
    if !trial.readers.is_empty() {
        println!(
            "tried with copies of the files: nothing against them from {} of this host",
            trial.readers.join(" and ")
        );
    }
    for why in &trial.untried {
        println!("not tried: {why}");
    }
    Ok(())
}

/// Writes the changes if the user says so.
fn write(changes: &[Change], is_told: bool) -> Result<(), CliError> {
    if changes.is_empty() {
        return Ok(());
    }
    if !is_told {
        println!("nothing was written; `gpufrac init --write` with the same options writes this");
        return Ok(());
    }
    // slurmd writes these files again at each start.
    let sent = changes
        .iter()
        .find(|change| change.path.starts_with("/run"));
    if let Some(change) = sent {
        return Err(CliError::SentFile {
            path: change.path.clone(),
        });
    }
    patch::write(changes)
}

/// Prints the settings that an admin must change by hand.
pub fn tell_left(left: &[Finding]) {
    if left.is_empty() {
        return;
    }
    println!("\nleft to you:");
    for one in left {
        println!(
            "  - {}; {}",
            finding::line(one),
            one.fix.replace('\n', "\n    ")
        );
    }
}

/// Prints sentences under a title.
fn print_section(title: &str, sentences: &[String]) {
    if !sentences.is_empty() {
        println!("{title}");
    }
    for sentence in sentences {
        println!("  - {sentence}");
    }
}

/// Checks that no node has GPUs of several models. Errors: Slurm counts GPUs of several Types on a node.
fn of_one_type(settings: &Settings, node: &Node, nodes: &str) -> Result<(), CliError> {
    for name in hostlist(nodes)?.names() {
        let types = gpu_count::types(settings, &node.config, name);
        if types.len() > 1 {
            return Err(CliError::Types {
                node: name.clone(),
                types: types.into_iter().collect(),
            });
        }
    }
    Ok(())
}

/// gpufrac.toml with pools for the GPUs of this node.
fn with_pools(
    args: &InitArgs,
    node: &Node,
    settings: &Settings,
    files: &Files,
    before: Option<&str>,
) -> Result<String, CliError> {
    let seen = gpus::of_node(args, node)?;
    let nodes = nodes(args, node, files)?;
    if seen.told && args.gpus.is_none() {
        of_one_type(settings, node, &nodes)?;
    }
    let partitions = if args.partitions.is_empty() {
        partitions(settings, files, &nodes)?
    } else {
        args.partitions.clone()
    };
    let mut models: Vec<(&str, Vec<u32>)> = Vec::new();
    for gpu in &seen.gpus {
        hostlist::group(&mut models, &gpu.model, gpu.index);
    }
    let mut text = before.map_or_else(|| new_file(&files.slurm), str::to_owned);
    let mut names: Vec<String> = node
        .config
        .pools
        .iter()
        .map(|pool| pool.name.clone())
        .collect();
    for (model, indexes) in &models {
        let gpus = (models.len() > 1 || seen.has_others).then_some(indexes.as_slice());
        if let Some(pool) = pool_of(&node.config, model, gpus) {
            text = with_nodes(&text, pool, &nodes)?;
            println!(
                "pool {}: {} on {model}, and now on {nodes} too",
                pool.name, pool.mechanism
            );
            continue;
        }
        let advice = advise(args, model, seen.driver)?;
        let pool = pool_name(model, &names);
        let place = PoolLocation {
            pool: &pool,
            partitions: &partitions,
            nodes: &nodes,
            gpus,
        };
        println!(
            "pool {pool}: {} on {model}, nodes {nodes}, partitions {}; --nodes, --partition and --workload choose others",
            advice.mechanism,
            partitions.join(", ")
        );
        for reason in &advice.reasons {
            println!("  - {reason}");
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push('\n');
        text += &advice.pool(&place);
        names.push(pool);
    }
    Ok(text)
}

/// The beginning of a new gpufrac.toml. Other tools read a count whose name begins with `gpu` as one of whole GPUs
/// (docs/admin/neighbours.md), so a cluster that does not count fractions yet gets another name.
fn new_file(slurm: &ConfFile) -> String {
    let known = slurm.last("GresTypes").map_or("", |(_, types)| types);
    let is_taken = known
        .split(',')
        .any(|name| ["frac", "gpufrac"].contains(&name.trim()));
    if is_taken {
        "version = 1\n".to_owned()
    } else {
        "version = 1\n\n[gres]\nname = \"frac\"\n".to_owned()
    }
}

/// The pool of the file with the same model and GPUs on other nodes.
fn pool_of<'a>(config: &'a Config, model: &str, gpus: Option<&[u32]>) -> Option<&'a Pool> {
    let mut pools = config.pools.iter();
    pools.find(|pool| {
        let own: Option<Vec<u32>> = pool
            .gpus
            .as_ref()
            .map(|gpus| gpus.iter().map(|gpu| gpu.0).collect());
        pool.geometry.model == model && own.as_deref() == gpus
    })
}

/// The text with further nodes in a pool; everything else stays as written.
fn with_nodes(text: &str, pool: &Pool, nodes: &str) -> Result<String, CliError> {
    let more = hostlist(nodes)?;
    let mut names = pool.nodes.names().to_vec();
    names.extend(more.names().iter().cloned());
    let mut file: toml_edit::DocumentMut = text.parse().map_err(CliError::Toml)?;
    let table = file
        .get_mut("pool")
        .and_then(|pools| pools.get_mut(&pool.name));
    let old = table
        .and_then(|pool| pool.get_mut("nodes"))
        .and_then(toml_edit::Item::as_value_mut);
    if let Some(old) = old {
        let mut new = toml_edit::Value::from(hostlist::short(&names));
        *new.decor_mut() = old.decor().clone();
        *old = new;
    }
    Ok(file.to_string())
}

fn hostlist(text: &str) -> Result<Hostlist, CliError> {
    Hostlist::parse(text).map_err(|source| CliError::Nodes {
        text: text.to_owned(),
        source,
    })
}

fn advise(args: &InitArgs, model: &str, driver: Option<u32>) -> Result<Advice, CliError> {
    let told = crate::advise::plan(args.workload, model, &args.site);
    let driver = told.driver.or(driver);
    Ok(advise::advise(&Plan { driver, ..told })?)
}

/// `h100` for H100-80; with the memory if that name is taken.
fn pool_name(model: &str, taken: &[String]) -> String {
    let plain = |text: &str| -> String {
        let small = text.to_ascii_lowercase();
        small
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect()
    };
    let short = model.rsplit_once('-').map_or(model, |(name, _)| name);
    let first = [plain(short), plain(model)];
    let more = (2..).map(|number| format!("{}-{number}", plain(model)));
    let mut names = first.into_iter().chain(more);
    names
        .find(|name| !taken.contains(name))
        .unwrap_or_else(|| plain(model))
}

/// The nodes of the pool, a hostlist.
fn nodes(args: &InitArgs, node: &Node, files: &Files) -> Result<String, CliError> {
    if let Some(text) = &args.nodes {
        let list = hostlist(text)?;
        return Ok(hostlist::short(list.names()));
    }
    let Some(own) = files.site.node(&node.name) else {
        // slurm.conf has no line of this node. Cure: Add the line, or give `--node NAME`.
        return Err(CliError::NotInSlurmConf {
            path: files.slurm.path.clone(),
            what: format!("line NodeName= with {}", node.name),
            option: "--node NAME",
        });
    };
    // Nodes of other pools stay in their pools.
    let names = files.site.beside(own).map(|node| node.name.clone());
    let free = names.filter(|name| node.config.pools_of_node(name).is_empty());
    Ok(hostlist::short(&free.collect::<Vec<_>>()))
}

/// The partitions of these nodes: those in which each node has GPUs, otherwise all.
fn partitions(settings: &Settings, files: &Files, nodes: &str) -> Result<Vec<String>, CliError> {
    let wanted = hostlist(nodes)?;
    let site = settings.site();
    let has_gpus = |name: &String| {
        let gres = site.node(name).and_then(|node| node.gres());
        counts(gres.unwrap_or_default())
            .keys()
            .any(|(name, _)| name == "gpu")
    };
    let partitions = site.partitions.iter();
    let (with_gpus, others): (Vec<_>, Vec<_>) = partitions
        .filter(|partition| partition.nodes.iter().any(|name| wanted.contains(name)))
        .partition(|partition| partition.nodes.iter().all(has_gpus));
    let found = if with_gpus.is_empty() { others } else { with_gpus };
    if found.is_empty() {
        // slurm.conf has no partition with these nodes. Cure: Add the partition, or give `--partition NAME`.
        Err(CliError::NotInSlurmConf {
            path: files.slurm.path.clone(),
            what: format!("partition of {nodes}"),
            option: "--partition NAME",
        })
    } else {
        Ok(found
            .iter()
            .map(|partition| partition.name.clone())
            .collect())
    }
}
