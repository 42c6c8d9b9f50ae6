//! `cargo xtask lab`: a cluster to play with.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use gpufrac_core::mechanism::Mechanism;
use gpufrac_lab::Lab;

use crate::cargo::{build, root};
use crate::series::Series;
use crate::setup;

#[derive(Subcommand)]
pub(crate) enum LabTask {
    /// Starts a cluster and leaves it running
    Up(Up),
    /// Stops it and removes its folder
    Down {
        /// The lab's folder
        #[arg(long, default_value = FOLDER)]
        folder: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct Up {
    /// Number of nodes
    #[arg(long, default_value_t = 2)]
    nodes: usize,
    /// Simulated GPUs of each node, as MODEL:COUNT
    #[arg(long, default_value = "H100-80:2")]
    gpus: String,
    /// How they are shared: mig, mps, mig+mps or timeslice. MPS has NVIDIA's own control daemon
    #[arg(long, default_value = "mig")]
    mechanism: Mechanism,
    /// The series of Slurm (22.05, 24.11, 26.05); the machine's own unless said
    #[arg(long)]
    slurm: Option<String>,
    /// Plain Slurm, without gpufrac
    #[arg(long)]
    plain: bool,
    /// The lab's folder
    #[arg(long, default_value = FOLDER)]
    folder: PathBuf,
}

const FOLDER: &str = "/tmp/gpufrac-lab";

pub(crate) fn run(task: &LabTask) -> Result<()> {
    match task {
        LabTask::Up(up) => start(up),
        LabTask::Down { folder } => {
            gpufrac_lab::stop_folder(folder)?;
            println!("the lab in {} is gone", folder.display());
            Ok(())
        }
    }
}

fn pool(mechanism: Mechanism, model: &str) -> Result<String> {
    let more = match mechanism {
        Mechanism::Mig | Mechanism::MigMps | Mechanism::Timeslice => "",
        Mechanism::Mps => "tenancy = \"shared\"\n",
        Mechanism::Hami => bail!("HAMi-core's library is not here to try; see gpufrac.toml(5)"),
    };
    Ok(format!(
        "[pool.shared]\nmechanism = \"{mechanism}\"\ngpu = \"{model}\"\n{more}partitions = [\"gpu\"]\nnodes = \"@NODES@\"\n"
    ))
}

fn start(up: &Up) -> Result<()> {
    if up.folder.exists() {
        bail!(
            "{} exists: is a lab running there?\nhint: cargo xtask lab down --folder {0}",
            up.folder.display()
        );
    }
    let Some((model, count)) = up.gpus.split_once(':') else {
        bail!("`{}` is not MODEL:COUNT, for example H100-80:2", up.gpus);
    };
    setup::run()?;
    let series = match &up.slurm {
        Some(name) => Series::prepare(name)?,
        None => Series::own()?,
    };
    build()?;
    series.build()?;
    let mut builder = Lab::builder()
        .quiet()
        .nodes(up.nodes)
        .node_prefix("gn")
        .gpus(model, count.parse()?)
        .mig(up.mechanism.uses_mig())
        .plugins(!up.plain)
        .slurm(series.slurm()?)
        .series_folder(series.build_folder())
        .folder(&up.folder);
    if up.mechanism != Mechanism::Mig {
        builder = builder.pools(&pool(up.mechanism, model)?);
    }
    if up.mechanism.uses_mps() {
        builder = builder.mps_control(gpusim::debian::mps_control(&root().join("target/clients"))?);
    }
    let lab = builder.start()?;
    let nodes = lab.nodes().join(" ");
    let folder = lab.detach();
    println!("a cluster is up, with the nodes {nodes}. To use it from this or another shell:\n");
    println!("  export SLURM_CONF={}", folder.slurm_conf().display());
    println!(
        "  export GPUFRAC_CONFIG={}",
        folder.gpufrac_conf().display()
    );
    println!("  export PATH={}:$PATH", folder.bin().display());
    match folder.namespace() {
        namespace if namespace.exists() => println!(
            "  nsenter --mount={} --wdns={}",
            namespace.display(),
            folder.work().display()
        ),
        _ => println!("  cd {}", folder.work().display()),
    }
    if !up.plain {
        println!("  sbatch --gres=gpufrac:0.25 --wrap 'env | grep -E \"CUDA|GPUFRAC\"'");
    }
    println!(
        "\nlogs: {}\nto stop it: cargo xtask lab down{}",
        folder.log().display(),
        match up.folder.as_path() == Path::new(FOLDER) {
            true => String::new(),
            false => format!(" --folder {}", up.folder.display()),
        }
    );
    Ok(())
}
