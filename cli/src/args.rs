//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;
use gpufrac_core::ids::JobId;
use gpufrac_node::version;

/// Fractional GPUs for Slurm.
#[derive(Debug, Parser)]
#[command(name = "gpufrac", version = version::TEXT.as_str(), about = "Fractional GPUs for Slurm")]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make this node ready: folders, placeholder devices, MIG mode. Root, before slurmd starts
    NodeSetup(ConfigArgs),
    /// Check the configuration and Slurm's settings, and on a node of a pool the machine too
    Check(CheckArgs),
    /// Propose gpufrac.toml and the changes of Slurm's files for this node, as a diff
    Init(InitArgs),
    /// Print the lines that belong in gres.conf and slurm.conf
    Conf(ConfArgs),
    /// Show what is shared, free, idle and waited for: on this node, or with --cluster on all
    Status(StatusArgs),
    /// List the leases of this node
    Leases(ConfigArgs),
    /// Print the variables of the slice of the job that the shell is in: eval "$(gpufrac env)"
    Env(EnvArgs),
    /// Print the slice of the job that the shell is in as a device of CDI, the Container Device Interface
    Cdi(JobArgs),
    /// Watch the slices of this node, or of all nodes that share a folder
    Top(TopArgs),
    /// Write static pages and JSON of the cluster into a folder
    Web(WebArgs),
    /// Tell why a job was warned or ended for an idle slice
    Why(WhyArgs),
    /// Sum up usage records: who held what, how it was used, what it costs
    Report(ReportArgs),
    /// Recommend a mechanism, a layout and a menu for a pool
    Advise(AdviseArgs),
    /// Compute what sharing would win on the history of a site
    Plan(Box<gpufrac_plan::command::PlanArgs>),
    /// Collect what Slurm, this node and the records know of a job
    Doctor(DoctorArgs),
    /// Destroy MIG instances that no lease names; root, asks first
    Clean(CleanArgs),
    /// Print the table of gpufrac.toml for a GPU of this node whose model gpufrac does not know
    Geometry(GeometryArgs),
    /// Measure on a GPU of this drained node what gpufrac takes for true; root
    Prove(ProveArgs),
    /// Work on one lease
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Print what a shell needs to complete this command line
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// The commands about a lease.
#[derive(Debug, Subcommand)]
pub enum LeaseCommand {
    /// End the lease of a job that is over, also one that cannot be read; root, asks first
    Drop(LeaseDropArgs),
}

/// The lease to end.
#[derive(Debug, clap::Args)]
pub struct LeaseDropArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The name of its file: the job's id, or `JOBID.N`
    #[arg(value_name = "LEASE")]
    pub name: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Show all nodes of the pools
    #[arg(long, conflicts_with = "node")]
    pub cluster: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `clean`.
#[derive(Debug, clap::Args)]
pub struct CleanArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `prove`.
#[derive(Debug, clap::Args)]
pub struct ProveArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The GPU, by NVML's index
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub gpu: u32,
    /// Switch MIG mode too, where the model does it without a reset
    #[arg(long)]
    pub mode: bool,
    /// Do not ask Slurm whether the node is drained
    #[arg(long)]
    pub without_slurm: bool,
    /// The folder of the two files
    #[arg(short, long, value_name = "FOLDER", default_value = ".")]
    pub output: PathBuf,
    /// Few repetitions, for a simulated GPU
    #[arg(long, hide = true)]
    pub quick: bool,
}

/// Arguments of `geometry`.
#[derive(Debug, clap::Args)]
pub struct GeometryArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The GPU, by NVML's index
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub gpu: u32,
    /// The name of the table [default: made of the name that NVML reports]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

/// Arguments of `doctor`.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Print first what the report of a problem needs: versions, GPUs, `gpufrac check`, Slurm's settings, gpufrac.toml
    #[arg(long)]
    pub bundle: bool,
    /// The job, as `squeue -o %A` and `sacct -o JobIDRaw` print it
    #[arg(value_name = "JOBID", required_unless_present = "bundle")]
    pub job: Option<String>,
}

/// Arguments of `report`.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The first moment: a date, a time, `today`, or a span before now (7d, 12h)
    #[arg(long, value_name = "TIME", default_value = "7d")]
    pub since: String,
    /// The last moment
    #[arg(long, value_name = "TIME", default_value = "now")]
    pub until: String,
    /// What rows are made by, one or several [default: user]
    #[arg(long, value_name = "WHAT", value_enum, value_delimiter = ',')]
    pub by: Vec<ReportBy>,
    /// Form of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    pub format: ReportFormat,
    /// My own jobs: what they used, and which size would have been enough
    #[arg(long, conflicts_with_all = ["by", "audit"])]
    pub me: bool,
    /// Check that the books balance; exit status 1 if they do not
    #[arg(long)]
    pub audit: bool,
    /// Read these files or folders of records, not those of gpufrac.toml
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub records: Vec<PathBuf>,
    /// Do not ask sacct
    #[arg(long)]
    pub no_sacct: bool,
    /// Write summaries of ended jobs into AdminComment of slurmdbd, where tools of others read them
    #[arg(long, value_name = "TOOL", value_enum, conflicts_with_all = ["by", "me", "audit", "no_sacct", "format"])]
    pub export: Option<Export>,
    /// With --export: print what would be written
    #[arg(long, requires = "export")]
    pub dry_run: bool,
}

/// The form of exported summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Export {
    /// For jobstats, reportseff and job_defense_shield
    Jobstats,
}

/// The key of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReportBy {
    /// The user
    User,
    /// The account
    Account,
    /// The quality of service; needs sacct
    Qos,
    /// The partition
    Partition,
    /// The pool
    Pool,
    /// The node
    Node,
    /// The size of the slice
    Size,
}

/// Form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ReportFormat {
    /// For a terminal
    Table,
    /// One row for each group
    Csv,
    /// One object
    Json,
    /// One page with charts
    Html,
}

/// Which configuration, which node.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfigArgs {
    /// The configuration [default: $GPUFRAC_CONFIG, else /etc/gpufrac/gpufrac.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The node's name in Slurm [default: $SLURMD_NODENAME, else this host's short name]
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// Arguments of `check`.
#[derive(Debug, Default, clap::Args)]
pub struct CheckArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Look at gpufrac.toml alone, not at this machine and not at Slurm
    #[arg(long)]
    pub file_only: bool,
    /// Check Slurm's settings alone, not this machine
    #[arg(long, conflicts_with = "file_only")]
    pub slurm: bool,
    /// Check this slurm.conf and the files beside it, not those of the running Slurm; implies `--slurm`
    #[arg(long, value_name = "FILE", conflicts_with = "file_only")]
    pub slurm_conf: Option<PathBuf>,
    /// Print what changes for users, to paste into an announcement: what ends, what to write instead, limits, prices,
    /// reservations and waiting jobs; exit status 1 if there is anything
    #[arg(long, conflicts_with_all = ["file_only", "quiet"])]
    pub migration: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// For health checks: print errors alone, a line each, and let warnings not count
    #[arg(long, conflicts_with = "json")]
    pub quiet: bool,
}

/// Arguments of `conf`.
#[derive(Debug, clap::Args)]
pub struct ConfArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// How many GPUs each node has [default: what NVML shows here]
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// Print how these lines differ from those of Slurm's files and of slurmctld; exit status 1 if they do
    #[arg(long)]
    pub diff: bool,
    /// Print one JSON object: the sizes that each partition gives, for web forms and other programs
    #[arg(long, conflicts_with_all = ["diff", "gpus"])]
    pub json: bool,
    /// With `--diff`: compare with this slurm.conf and the files beside it, not with the running Slurm
    #[arg(long, value_name = "FILE", requires = "diff")]
    pub slurm_conf: Option<PathBuf>,
}

/// Arguments of `init`.
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Write the files, and keep a copy of each that changes
    #[arg(long)]
    pub write: bool,
    /// Do not try the files with slurmctld and slurmd -G of this host before they are shown
    #[arg(long)]
    pub no_trial: bool,
    /// Change this slurm.conf and the files beside it [default: those of the running Slurm]
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
    /// The nodes of the pool [default: those of this node's line in slurm.conf]
    #[arg(long, value_name = "NAMES")]
    pub nodes: Option<String>,
    /// A partition of the pool; may be given several times [default: those that have only nodes with GPUs]
    #[arg(long = "partition", value_name = "NAME")]
    pub partitions: Vec<String>,
    /// What most jobs of the pool do; as for `advise`
    #[arg(long, default_value = "notebooks")]
    pub workload: AdvisedWorkload,
    /// The model of the GPUs, as gpufrac.toml(5) lists it [default: what NVML shows here]
    #[arg(long, value_name = "MODEL")]
    pub gpu: Option<String>,
    /// How many GPUs each node has [default: what NVML shows here and Slurm counts elsewhere]
    #[arg(long, value_name = "N")]
    pub gpus: Option<u32>,
    /// Driver, memory, users.
    #[command(flatten)]
    pub site: SiteArgs,
}

/// The order of slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// By node, GPU and position, as a tree
    Place,
    /// The busiest first
    Busy,
    /// The most memory in use first
    Memory,
    /// The longest idle first
    Idle,
    /// The next to be ended first
    Warned,
    /// By name of the user
    User,
}

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Show slices of users whose name contains this text, or of jobs whose id begins with it
    #[arg(long, value_name = "TEXT")]
    pub user: Option<String>,
    /// Show own slices only
    #[arg(long)]
    pub me: bool,
    /// The order of slices
    #[arg(long, value_enum, default_value_t = Sort::Place)]
    pub sort: Sort,
    /// Seconds between two readings of the files
    #[arg(short, long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub delay: u16,
    /// Print the slices once, and end; also without a terminal that can show a screen
    #[arg(long)]
    pub once: bool,
    /// Read these files or folders of files, not those of gpufrac.toml
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub from: Vec<PathBuf>,
}

/// Arguments of `web`.
#[derive(Debug, clap::Args)]
pub struct WebArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The folder of the pages: a new one, an empty one, or one of an earlier export
    #[arg(long, value_name = "DIR")]
    pub export: PathBuf,
    /// Read these files or folders of files of nodes, not those of gpufrac.toml
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub from: Vec<PathBuf>,
    /// Do not ask squeue for waiting requests
    #[arg(long)]
    pub no_slurm: bool,
}

/// Arguments of `why`.
#[derive(Debug, clap::Args)]
pub struct WhyArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The job, as `squeue -o %A` and `sacct -o JobIDRaw` print it
    #[arg(value_name = "JOBID")]
    pub job: String,
    /// Write a chart of the last record; `-` for stdout, then without the text
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// Arguments of `advise`.
#[derive(Debug, clap::Args)]
pub struct AdviseArgs {
    /// What most jobs of the pool do
    #[arg(long)]
    pub workload: AdvisedWorkload,
    /// The model of the GPUs, as gpufrac.toml(5) lists it
    #[arg(long, value_name = "MODEL")]
    pub gpu: String,
    /// Driver, memory, users.
    #[command(flatten)]
    pub site: SiteArgs,
}

/// Arguments of `init` and `advise`.
#[derive(Debug, clap::Args)]
pub struct SiteArgs {
    /// The major version of the driver, such as 580 [default: `init`: that of this node, `advise`: before 555]
    #[arg(long, value_name = "VERSION")]
    pub driver: Option<u32>,
    /// Memory of one GPU in MiB, for a vGPU or a model that gpufrac does not know
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u64>,
    /// Users may try to exceed their limits
    #[arg(long)]
    pub untrusted: bool,
    /// The GPU is a vGPU in a virtual machine
    #[arg(long)]
    pub vgpu: bool,
}

/// A job of the user on this node.
#[derive(Debug, clap::Args)]
pub struct JobArgs {
    /// Which configuration, which node.
    #[command(flatten)]
    pub config: ConfigArgs,
    /// A job of yours on this node [default: that of the shell's control group]
    #[arg(long, value_name = "ID")]
    pub job: Option<JobId>,
}

/// Arguments of `env`.
#[derive(Debug, clap::Args)]
pub struct EnvArgs {
    /// Which job.
    #[command(flatten)]
    pub job: JobArgs,
    /// The form of the commands
    #[arg(long, value_enum, default_value = "sh")]
    pub shell: EnvShell,
}

/// Whose commands set the variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EnvShell {
    /// sh, bash, zsh
    Sh,
    /// csh, tcsh
    Csh,
    Fish,
    /// One JSON object
    Json,
}

/// The kind of work that most jobs of a pool do.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum AdvisedWorkload {
    /// Interactive sessions, idle most of the time
    Notebooks,
    /// Training that fits in a part of a GPU
    Training,
    /// Servers with a goal for their latency
    Inference,
    /// Many small jobs that end by themselves
    Batch,
    /// Courses: many users with the same small size
    Teaching,
    /// Jobs of whole GPUs and small ones, in turns by demand
    Mixed,
}

#[cfg(test)]
mod tests;
