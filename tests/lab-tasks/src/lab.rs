//! `cargo xtask lab`: clusters for manual tests.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use gpufrac_core::geometry::Geometry;
use gpufrac_core::mechanism::Mechanism;
use gpufrac_lab::{Folder, Lab, LabBuilder, Listed, stop_folder};
use gpusim::admin::parse_gpus;

use lab_tasks::series::One;
use xtask_front::cargo::root;
use xtask_front::setup;

#[derive(Subcommand)]
pub(crate) enum LabTask {
    /// Starts a cluster and leaves it running
    Up(Up),
    /// Stops a cluster and removes its folder
    Down {
        /// The lab's name
        #[arg(default_value = NAME)]
        name: String,
    },
    /// Lists the clusters that are up
    List,
}

#[derive(Args)]
pub(crate) struct Up {
    /// The lab's name, for several labs at a time
    #[arg(default_value = NAME)]
    name: String,
    /// Number of nodes
    #[arg(long, default_value_t = 2)]
    nodes: usize,
    /// Simulated GPUs of each node, as MODEL:COUNT with a model of gpufrac.toml(5)
    #[arg(long, default_value = "H100-80:2")]
    gpus: String,
    /// How they are shared: mig, mps, mig+mps or timeslice. MPS has NVIDIA's own control daemon
    #[arg(long, default_value = "mig")]
    mechanism: Mechanism,
    #[command(flatten)]
    slurm: One,
    /// slurmdbd on a database of its own, for sacct, sreport and limits
    #[arg(long)]
    accounting: bool,
    /// gpufrac-reaperd on every node, with windows of seconds: an unused slice is warned of and reclaimed in a minute
    #[arg(long, conflicts_with = "plain")]
    reaper: bool,
    /// Plain Slurm, without gpufrac
    #[arg(long)]
    plain: bool,
}

/// The default name of a lab.
const NAME: &str = "lab";

/// Windows short enough to wait for. All slices of a lab may be idle at once, so the breaker is switched off. The
/// port for Prometheus would be the same on all nodes, so metrics are switched off.
const REAPER: &str = "\
[reaper]
mode = \"on\"
interval = \"1s\"
metrics = \"off\"
grace = \"5s\"
never_used = \"40s\"
idle = \"40s\"
warn = [\"30s\", \"15s\"]
reaps_per_hour = 200
breaker = { node_share = 100, cluster_share = 100 }
";

pub(crate) fn run(task: &LabTask) -> Result<()> {
    match task {
        LabTask::Up(up) => start(up),
        LabTask::Down { name } => stop(name),
        LabTask::List => list(),
    }
}

/// The folder of the lab with this name.
fn folder(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gpufrac-lab-{name}"))
}

/// Checks the name of a lab, which becomes part of its nodes' names and of its folder.
fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let right = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(is_plain)
        && name.len() <= 20;
    if !right {
        bail!(
            "`{name}` is not a name for a lab; write a lowercase letter, then at most 19 letters, digits and `-`"
        );
    }
    Ok(())
}

/// The first part of the names of the lab's nodes.
fn node_prefix(name: &str) -> String {
    match name {
        NAME => "gn".to_owned(),
        name => format!("{name}-gn"),
    }
}

/// The model of `--gpus`, and the number of GPUs of each node.
fn gpus(up: &Up) -> Result<(&'static str, u32)> {
    let parsed =
        parse_gpus(&up.gpus).with_context(|| format!("reading `--gpus {}` failed", up.gpus))?;
    let Some(model) = parsed.first().map(|gpu| gpu.model.name) else {
        bail!("`--gpus {}` names no GPU; write MODEL:COUNT", up.gpus);
    };
    if up.mechanism.uses_mig() && !up.plain && Geometry::builtin(model).is_none() {
        bail!(
            "{model} has no MIG, and the mechanism is {}; add `--mechanism mps` or `--mechanism timeslice`, or take one of {}",
            up.mechanism,
            Geometry::builtin_names().join(", ")
        );
    }
    Ok((model, u32::try_from(parsed.len())?))
}

fn pool(mechanism: Mechanism, model: &str) -> Result<String> {
    let more = match mechanism {
        Mechanism::Mig | Mechanism::MigMps | Mechanism::Timeslice => "",
        Mechanism::Mps => "tenancy = \"shared\"\n",
        Mechanism::Hami => bail!(
            "`--mechanism hami` needs HAMi-core's library, and the lab has none; take another mechanism"
        ),
    };
    Ok(format!(
        "[pool.shared]\nmechanism = \"{mechanism}\"\ngpu = \"{model}\"\n{more}partitions = [\"gpu\"]\nnodes = \"@NODES@\"\n"
    ))
}

fn start(up: &Up) -> Result<()> {
    check_name(&up.name)?;
    let folder = folder(&up.name);
    if folder.exists() {
        bail!(
            "the lab `{}` is in {} already; stop it with `{}`, or start another one: cargo xtask lab up NAME",
            up.name,
            folder.display(),
            down(&up.name)
        );
    }
    let (model, count) = gpus(up)?;
    let pool = pool(up.mechanism, model)?;
    let mut packages = up.slurm.packages();
    packages.extend(up.accounting.then_some(setup::ACCOUNTING));
    setup::run(&packages)?;
    let series = up.slurm.prepare()?;
    series.build()?;
    let mut builder = series
        .give(Lab::builder())
        .quiet()
        .name(&up.name, &node_prefix(&up.name))
        .nodes(up.nodes)
        .gpus(model, count)
        .mig(up.mechanism.uses_mig())
        .plugins(!up.plain)
        .folder(&folder);
    if up.mechanism != Mechanism::Mig {
        builder = builder.pools(&pool);
    }
    if up.mechanism.uses_mps() {
        builder = builder.mps_control(debian::mps_control(&root().join("target/clients"))?);
    }
    let lab = with_services(builder, up).start().with_context(|| {
        format!(
            "starting the lab `{}` failed; nothing of it is left",
            up.name
        )
    })?;
    let nodes = lab.nodes().to_vec();
    let folder = lab.detach();
    explain(up, &nodes, &folder);
    Ok(())
}

fn with_services(mut builder: LabBuilder, up: &Up) -> LabBuilder {
    if up.accounting {
        builder = builder.accounting();
    }
    if up.reaper {
        builder = builder.reaper(REAPER);
    }
    builder
}

fn down(name: &str) -> String {
    match name {
        NAME => "cargo xtask lab down".to_owned(),
        name => format!("cargo xtask lab down {name}"),
    }
}

/// Prints how to use the lab, in lines that can be copied.
fn explain(up: &Up, nodes: &[String], folder: &Folder) {
    println!(
        "a cluster is up, with the nodes {}. To use it from this or another shell:\n",
        nodes.join(" ")
    );
    println!("  export SLURM_CONF={}", folder.slurm_conf().display());
    if !up.plain {
        println!(
            "  export GPUFRAC_CONFIG={}",
            folder.gpufrac_conf().display()
        );
    }
    let programs = folder.programs();
    let programs: Vec<_> = programs
        .iter()
        .map(|place| place.display().to_string())
        .collect();
    println!("  export PATH={}:$PATH", programs.join(":"));
    match folder.namespace() {
        namespace if namespace.exists() => println!(
            "  nsenter --mount={} --wdns={}",
            namespace.display(),
            folder.work().display()
        ),
        _ => println!("  cd {}", folder.work().display()),
    }
    println!("\nTo try:\n");
    if up.plain {
        println!("  srun --gres=shard:25 env | grep SLURM_JOB_GPUS");
    } else {
        println!("  srun --gres=gpufrac:0.25 env | grep -E 'CUDA|GPUFRAC'");
        let node = nodes.first().map_or("NODE", String::as_str);
        println!("  gpufrac status --node {node}");
    }
    if up.reaper {
        // A user who submits this job sees the warnings in the job's output.
        println!(
            "\nA job that does not use its slice is warned after 10 s and 25 s, and cancelled after 40 s:\n"
        );
        println!("  JOB=$(sbatch --parsable --gres=gpufrac:0.25 --wrap 'sleep 600')");
        println!("  tail -f slurm-$JOB.out");
        println!(
            "  gpufrac why $JOB --node {}",
            nodes.first().map_or("NODE", String::as_str)
        );
        println!("\nA job that uses its slice runs on:\n");
        println!(
            "  sbatch --gres=gpufrac:0.25 --wrap 'gpusim --root {}/$SLURMD_NODENAME run --pattern busy --seconds 300'",
            folder.root().join("gpus").display()
        );
    }
    if up.accounting {
        println!("\nWhat was used, of all jobs that ended:\n");
        println!("  sacct -a -X -o JobID,User,State,Elapsed,AllocTRES%60");
    }
    println!(
        "\nlogs: {}\nto stop it: {}",
        folder.log().display(),
        down(&up.name)
    );
}

fn labs() -> Result<Vec<Listed>> {
    Ok(gpufrac_lab::list(&std::env::temp_dir())?)
}

fn stop(name: &str) -> Result<()> {
    check_name(name)?;
    let folder = folder(name);
    if !folder.exists() {
        let names: Vec<_> = labs()?.into_iter().map(|lab| lab.name).collect();
        if names.is_empty() {
            bail!("no lab is up; start one with `cargo xtask lab up`")
        } else {
            bail!(
                "there is no lab `{name}`; those that are up: {}",
                names.join(", ")
            )
        }
    }
    stop_folder(&folder).with_context(|| format!("stopping the lab `{name}` failed"))?;
    println!(
        "the lab `{name}` is stopped, and {} is removed",
        folder.display()
    );
    Ok(())
}

fn list() -> Result<()> {
    let labs = labs()?;
    if labs.is_empty() {
        println!("no lab is up; start one with `cargo xtask lab up`");
    }
    for lab in labs {
        let state = if lab.ended.is_empty() {
            "up".to_owned()
        } else {
            format!("these daemons ended: {}", lab.ended.join(", "))
        };
        println!(
            "{}: nodes {}; {state}; SLURM_CONF={}",
            lab.name,
            lab.nodes.join(" "),
            lab.folder.slurm_conf().display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use gpufrac_core::config::Config;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        task: LabTask,
    }

    fn up(words: &[&str]) -> Up {
        let line = [&["xtask", "up"], words].concat();
        match Line::try_parse_from(line).map(|line| line.task) {
            Ok(LabTask::Up(up)) => up,
            _ => panic!("{words:?}"),
        }
    }

    #[test]
    fn gpus_have_the_names_of_the_configuration() {
        assert_eq!(gpus(&up(&[])).unwrap(), ("H100-80", 2));
        let l40s = |mechanism| up(&["two", "--gpus", "L40S-48:1", "--mechanism", mechanism]);
        for mechanism in ["mps", "timeslice"] {
            assert_eq!(gpus(&l40s(mechanism)).unwrap(), ("L40S-48", 1));
        }
        let without_mig = gpus(&l40s("mig")).unwrap_err().to_string();
        assert!(without_mig.contains("--mechanism mps"), "{without_mig}");
        let unknown = format!("{:#}", gpus(&up(&["--gpus", "L40S:1"])).unwrap_err());
        assert!(unknown.contains("L40S-48"), "{unknown}");
    }

    #[test]
    fn the_windows_of_the_reaper_are_valid() {
        for mechanism in [Mechanism::Mps, Mechanism::MigMps, Mechanism::Timeslice] {
            let pool = pool(mechanism, "H100-80")
                .unwrap()
                .replace("@NODES@", "gn[1-2]");
            let text = format!("version = 1\n{pool}\n{REAPER}");
            Config::parse(&text, "gpufrac.toml").unwrap();
        }
    }

    #[test]
    fn the_first_lab_and_others_have_different_nodes() {
        assert_eq!(node_prefix(NAME), "gn");
        assert_eq!(node_prefix("two"), "two-gn");
        for wrong in ["", "Two", "2", "a/b", "a b", "a-name-that-is-far-too-long"] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
        check_name("my-lab2").unwrap();
    }
}
