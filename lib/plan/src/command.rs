//! The command `gpufrac plan`, which is also a program of its own, `gpufrac-plan`: it needs nothing of gpufrac on its
//! host.

mod explain;
mod options;

use std::path::{Path, PathBuf};

use gpufrac_core::config::ConfigErrors;
use gpufrac_core::layout::LayoutError;

use crate::candidate::UnknownCandidate;
use crate::cluster::Cluster;
use crate::job::History;
use crate::limits::{Assigned, Limits};
use crate::read::{self, ReadError};
use crate::render::Forecast;
use crate::search;
use crate::shares_per_gpu::SharesPerGpu;

/// Arguments of `plan`.
#[derive(Debug, Clone, clap::Args)]
pub struct PlanArgs {
    /// The history: output of sacct -P with a header, usage records, or a trace (openb, philly); `-` is stdin
    #[arg(value_name = "FILE", required = true)]
    pub history: Vec<PathBuf>,
    /// The fields of a history of sacct without a header, separated by commas
    #[arg(long, value_name = "NAMES")]
    pub fields: Option<String>,
    /// Telemetry as CSV with the columns job, time, utilisation (percent), memory (MiB)
    #[arg(long, value_name = "FILE")]
    pub telemetry: Vec<PathBuf>,
    /// The nodes: slurm.conf, output of `scontrol -o show node` and `show partition`, or nodes of openb [default: those
    /// of the history]
    #[arg(long, value_name = "FILE")]
    pub cluster: Option<PathBuf>,
    /// Limits of accounts and QOS: output of `sacctmgr -P show qos` and `sacctmgr -P show assoc`, with the fields of
    /// gpufrac(1)
    #[arg(long, value_name = "FILE")]
    pub limits: Vec<PathBuf>,
    /// Number of nodes, in place of --cluster
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "cluster",
        requires = "gpus_per_node"
    )]
    pub nodes: Option<u32>,
    /// GPUs of each node
    #[arg(long, value_name = "N", requires = "nodes")]
    pub gpus_per_node: Option<u32>,
    /// Plan for the nodes and jobs of this partition alone
    #[arg(long, value_name = "NAME")]
    pub partition: Option<String>,
    /// The model of the GPUs, as gpufrac.toml(5) lists it
    #[arg(long, value_name = "MODEL", default_value = "H100-80")]
    pub gpu: String,
    /// The greatest memory in use times this must fit into the size
    #[arg(long, value_name = "FACTOR", default_value_t = 1.1)]
    pub margin: f64,
    /// Measured speeds as CSV with the columns slice and speed_against_7g
    #[arg(long, value_name = "FILE")]
    pub speeds: Option<PathBuf>,
    /// A job is slowed if its time grows by more than this: percent
    #[arg(long, value_name = "PERCENT", default_value_t = 25.0)]
    pub slow: f64,
    /// How often the history is resampled for the bands
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub samples: u32,
    /// Seed of the resampling
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// How many ways of lending are shown
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub best: usize,
    /// Compare these ways of lending alone: halves+2, uniform:1/4, mps, ...
    #[arg(long, value_name = "LAYOUT", value_delimiter = ',')]
    pub layouts: Vec<String>,
    /// Change the plan: reaper.idle=1h, reaper.never_used=30m, layout=uniform:1/2, margin=1.5, cpus=off
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',')]
    pub what_if: Vec<String>,
    /// Say why this job gets its size
    #[arg(long, value_name = "JOBID")]
    pub explain: Option<String>,
    /// The price of a GPU-hour
    #[arg(long, value_name = "PRICE")]
    pub rate: Option<f64>,
    /// The currency of the price
    #[arg(long, value_name = "NAME", default_value = "EUR")]
    pub currency: String,
    /// Write a page with charts, too
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the proposed gpufrac.toml, too; nothing where there is no gain
    #[arg(long, value_name = "FILE")]
    pub toml: Option<PathBuf>,
    /// Print no progress
    #[arg(long)]
    pub quiet: bool,
}

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The folder does not exist, is full, or is not writable.
    /// Cure: Name another file.
    #[error("writing {} failed: {source}; choose another place", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The history has no `NodeList`.
    /// Cure: Name slurm.conf, or the numbers.
    #[error(
        "the history names no nodes; say what the cluster is with --cluster FILE, or with --nodes and --gpus-per-node"
    )]
    NoCluster,
    /// No line has `NodeName=` with `Gres=gpu:`.
    /// Cure: Name the file with the nodes; files that it includes are not read.
    #[error("reading {} failed: it has no node with GPUs; name slurm.conf, or the output of scontrol -o show node", path.display())]
    NoNodes {
        /// The file.
        path: PathBuf,
    },
    /// gpufrac has no table of this model.
    /// Cure: Write the name of a model, or of a similar one.
    #[error("the model {0} is not known; write one of gpufrac.toml(5), such as H100-80")]
    Model(String),
    /// A way of lending is not known.
    #[error(transparent)]
    Candidate(#[from] UnknownCandidate),
    /// A word of `--what-if` is wrong.
    /// Cure: Write it as the message says.
    #[error(
        "`{0}` is no change; write reaper.idle=1h, reaper.never_used=30m, layout=uniform:1/2, margin=1.5 or cpus=off"
    )]
    Change(String),
    /// `--explain` names a job that was not read.
    /// Cure: Write the id as sacct prints it: `123_4` for a task of an array.
    #[error("the history has no job {0} with a GPU; write its id as in the file")]
    NoJob(String),
    /// A number is out of range.
    /// Cure: Correct it.
    #[error("--margin must be above 0, --slow at least 0, and --best at least 1")]
    Range,
    /// The model cannot be cut as `--layouts` says; the text says why.
    /// Cure: Choose another layout, or leave `--layouts` out.
    #[error("planning failed: {0}")]
    Layout(#[from] LayoutError),
    /// A mistake of gpufrac.
    /// Cure: Report it.
    #[error("the proposed gpufrac.toml is wrong; report it with the options of this command\n{0}")]
    Proposal(#[from] ConfigErrors),
}

/// Plans, and returns the text for stdout. `progress` gets a line at a time, without its end.
/// Errors: see [`PlanError`].
pub fn run(args: &PlanArgs, progress: &mut dyn FnMut(&str)) -> Result<String, PlanError> {
    let mut say = |text: &str| {
        if !args.quiet {
            progress(text);
        }
    };
    // What part of a GPU a shard is, the nodes say.
    let known = cluster(args)?;
    let shares_per_gpu = known.as_ref().map(|(cluster, _)| SharesPerGpu::of(cluster));
    let mut history = history(args, shares_per_gpu.unwrap_or_default(), &mut say)?;
    let (mut cluster, mut from) = match known {
        Some(known) => known,
        None => seen(&history)?,
    };
    if let Some(name) = &args.partition {
        cluster = cluster.only_partition(name);
        from = format!("partition {name} of {from}");
        let names = &history.partitions;
        history.jobs.retain(|job| names.name(job.partition) == name);
    }
    let limits = limits(args, &mut history, &cluster)?;
    has_jobs(&history)?;
    let mut options = options::options(args)?;
    if let Some(id) = &args.explain {
        return explain::text(id, &history, &options);
    }
    options.limits = limits;
    let plan = search::plan(&history, &cluster, &options, &mut say)?;
    let rate = args.rate.map(|rate| (rate, args.currency.clone()));
    let forecast = Forecast::new(
        &plan,
        &options,
        &history,
        (&cluster, from),
        names(&args.history),
        rate,
    )?;
    let page = forecast.page();
    if let Some(path) = &args.html {
        write(path, &page.html())?;
    }
    if let Some(path) = args.toml.as_ref().filter(|_| !forecast.file.is_empty()) {
        write(path, &forecast.file)?;
    }
    Ok(page.text())
}

fn write(path: &Path, text: &str) -> Result<(), PlanError> {
    std::fs::write(path, text).map_err(|source| PlanError::Write {
        path: path.to_owned(),
        source,
    })
}

fn history(
    args: &PlanArgs,
    shares_per_gpu: SharesPerGpu,
    say: &mut dyn FnMut(&str),
) -> Result<History, PlanError> {
    let mut history = History {
        shares_per_gpu,
        ..History::default()
    };
    for path in &args.history {
        let name = path.display();
        let mut lines = |lines: u64| say(&format!("reading {name}: {lines} lines"));
        read::history(path, args.fields.as_deref(), &mut history, &mut lines)?;
    }
    for path in &args.telemetry {
        say(&format!("reading {}", path.display()));
        read::telemetry::read(&path.display().to_string(), read::open(path)?, &mut history)
            .map_err(|error| ReadError::io(path, error))?;
    }
    history.sort();
    Ok(history)
}

fn has_jobs(history: &History) -> Result<(), ReadError> {
    match (history.jobs.is_empty(), history.skipped.with_shards) {
        (false, _) => Ok(()),
        (true, 0) => Err(ReadError::Empty),
        (true, jobs) => Err(ReadError::OnlyShards(jobs)),
    }
}

/// The limits of each job; none without a file of them.
fn limits(
    args: &PlanArgs,
    history: &mut History,
    cluster: &Cluster,
) -> Result<Assigned, ReadError> {
    if args.limits.is_empty() {
        return Ok(Assigned::default());
    }
    let (mut limits, mut name) = (Limits::default(), None);
    for path in &args.limits {
        let file = read::open(path)?;
        read::limits::read(path, file, &mut limits, &mut name, &mut history.skipped)?;
    }
    Ok(Assigned::new(
        &limits,
        &names(&args.limits),
        history,
        cluster,
    ))
}

fn names(files: &[PathBuf]) -> String {
    let names: Vec<String> = files
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    names.join(", ")
}

/// The nodes on which the history ran, and how they are called.
fn seen(history: &History) -> Result<(Cluster, String), PlanError> {
    has_jobs(history)?;
    let seen = history.cluster().ok_or(PlanError::NoCluster)?;
    let from = format!(
        "the nodes of the history ({}), each with the most GPUs that its jobs held at a time",
        seen.nodes.len()
    );
    Ok((seen, from))
}

/// The cluster of the arguments, and where it comes from; None where they name none.
fn cluster(args: &PlanArgs) -> Result<Option<(Cluster, String)>, PlanError> {
    if let (Some(nodes), Some(gpus)) = (args.nodes, args.gpus_per_node) {
        let from = format!("{nodes} nodes with {gpus} each");
        return Ok(Some((Cluster::uniform(nodes, gpus), from)));
    }
    let Some(path) = &args.cluster else {
        return Ok(None);
    };
    let text = std::fs::read_to_string(path).map_err(|error| ReadError::io(path, error))?;
    let cluster = if text.starts_with("sn,cpu_milli") {
        read::openb::cluster(text.as_bytes()).map_err(|error| ReadError::io(path, error))?
    } else {
        read::nodes::read_file(path, &text, &|path| std::fs::read_to_string(path))
            .ok_or_else(|| PlanError::NoNodes { path: path.clone() })?
    };
    let from = format!("{} nodes of {}", cluster.nodes.len(), path.display());
    Ok(Some((cluster, from)))
}
