//! The messages for users whose request is refused.

use std::fmt;

use super::burst::BurstRefusal;
use crate::fraction::{Fraction, Units};
use crate::mechanism::Mechanism;
use crate::request::RequestError;
use crate::rounding::MAX_LISTED_SIZES;

/// The option with the fraction. `Display` writes everything before the size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FractionOption {
    /// `--gres`: a slice on each node.
    Gres,
    /// `--tres-per-task`: a slice for each task.
    TresPerTask,
}

impl fmt::Display for FractionOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FractionOption::Gres => "--gres=gpufrac:",
            FractionOption::TresPerTask => "--tres-per-task=gres/gpufrac:",
        })
    }
}

/// The reason of a refusal, and the text to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The text after the name says the cause.
    /// Cure: Look for the text after `gpufrac:` on these pages.
    #[error("gpufrac: {0}")]
    Request(#[from] RequestError),
    /// A ceiling of compute that the pools do not lend.
    #[error(transparent)]
    Burst(#[from] BurstRefusal),
    /// A job has one slice on each node.
    /// Cure: Write a single fraction.
    #[error(
        "gpufrac: two fractions in one request; a job gets one slice on each node: write a single --gres=gpufrac:0.25"
    )]
    TwoFractions,
    /// An integer asks for whole GPUs, and no node of the pool has as many; or a percentage was meant.
    /// Cure: Write what the message shows: more nodes, or a decimal such as 0.25.
    #[error("gpufrac: {text:?} is more whole GPUs than a job can have of a node; write {}", fewer_gpus(*most, *meant))]
    TooManyGpus {
        /// The item as written.
        text: String,
        /// The most GPUs of a pool on a node, if whole GPUs can be meant.
        most: Option<u32>,
        /// The fraction, if the number can be meant as a percentage.
        meant: Option<Fraction>,
    },
    // The request is for several whole GPUs of a pool that also lends parts of them, and Slurm could give GPUs that are
    // in use.
    /// Slurm before 23.11.5 forgets that parts of a GPU are in use.
    /// Cure: Ask for one GPU on each node, for all GPUs of a node, use a partition of GPUs that are never shared, or
    /// update Slurm to 23.11.5 or later.
    #[error(
        "gpufrac: this Slurm (before 23.11.5) cannot count several whole GPUs of {destination}, whose GPUs are shared too: it gives a GPU whole while jobs still have parts of it; write --gres=gpufrac:1, on several nodes with --nodes{}{}",
        all.iter().map(|all| format!(", or --gres=gpufrac:{all} for all GPUs of a node")).collect::<String>(),
        partitions_of_gpus(elsewhere)
    )]
    SeveralTooEarly {
        /// Where the job may run.
        destination: String,
        /// The number of GPUs that are all of a node.
        all: Option<u32>,
        /// Partitions with GPUs that are only lent whole.
        elsewhere: Vec<String>,
    },
    /// A job has either a slice or whole GPUs of another kind.
    /// Cure: Remove `gpu` from the request.
    #[error(
        "gpufrac: gpufrac and gpu cannot be in one request; leave gpu out, and write only --gres=gpufrac:{amount}"
    )]
    WithGpu {
        /// The value of gpufrac as written.
        amount: String,
    },
    /// `none` and a fraction contradict each other.
    /// Cure: Remove `none`.
    #[error(
        "gpufrac: a fraction and none cannot be in one request; leave none out, and write only --gres=gpufrac:0.25"
    )]
    WithNone,
    /// gpufrac writes `shard` itself, and its GPUs have no `mps` of Slurm.
    /// Cure: Write only the fraction.
    #[error("gpufrac: leave {name} out of the request; write only --gres=gpufrac:{amount}")]
    WithShares {
        /// `shard` or `mps`.
        name: &'static str,
        /// The value of gpufrac as written.
        amount: String,
    },
    /// The option changes how Slurm counts GPUs.
    /// Cure: Remove the option.
    #[error(
        "gpufrac: gpufrac cannot be combined with {option}; write only {with}{amount}{}",
        if *option == "--gpus" { ", without SBATCH_GPUS, SALLOC_GPUS and SLURM_GPUS in the environment" } else { "" }
    )]
    GpuElsewhere {
        option: &'static str,
        with: FractionOption,
        /// The value of gpufrac as written.
        amount: String,
    },
    /// Slurm gives an exclusive job no shares.
    /// Cure: Remove `--exclusive`, or use `--exclusive=user`.
    #[error(
        "gpufrac: a fraction cannot be combined with --exclusive (Slurm then gives no shares of GPUs); leave --exclusive out, or keep other users away with --exclusive=user"
    )]
    Exclusive,
    /// With these options Slurm gives the job whole nodes and no shares.
    /// Cure: Remove the option.
    #[error(
        "gpufrac: a fraction cannot be combined with --core-spec or --thread-spec (Slurm then gives the job its nodes alone, and no shares of GPUs); leave it out"
    )]
    CoreSpec,
    /// The option counts per job, task or socket, and a fraction is per node.
    /// Cure: Write `--gres=gpufrac:0.25`.
    #[error(
        "gpufrac: a fraction is given per node, and {option} does not count per node; write --gres=gpufrac:0.25"
    )]
    NotPerNode { option: &'static str },
    /// The series of Slurm cannot count per task.
    /// Cure: Use `--gres`, or upgrade Slurm.
    #[error(
        "gpufrac: a fraction for each task needs Slurm 23.11 or later; write --gres=gpufrac:0.25, a slice on each node that all tasks there share"
    )]
    TasksTooEarly,
    /// The option takes whole numbers only.
    /// Cure: Use `--tres-per-task=gres/gpufrac:0.25`.
    #[error(
        "gpufrac: --gpus-per-task takes no fraction; write --tres-per-task=gres/gpufrac:0.25 for a slice for each task"
    )]
    GpusPerTask,
    /// The request counts twice.
    /// Cure: Use one of the two forms.
    #[error(
        "gpufrac: GPUs are asked for both per node and per task; write either --gres=gpufrac:0.25 (a slice on each node) or --tres-per-task=gres/gpufrac:0.25 (a slice for each task)"
    )]
    NodeAndTask,
    /// A whole GPU was asked for each task.
    /// Cure: Ask for the GPUs of a node; each task chooses its own ([job.md](../../user/job.md)).
    #[error(
        "gpufrac: whole GPUs are given to a job on each of its nodes, not to each task; write for example --gres=gpufrac:2 --ntasks-per-node=2 for two tasks with two GPUs, or a smaller fraction"
    )]
    WholePerTask,
    /// The tasks need more than one device on a node.
    /// Cure: Use the number of nodes of the message, or a smaller fraction.
    #[error(
        "gpufrac: {tasks} tasks with {units}% of a GPU each do not fit: all slices of a job on a node are of one device, which has {most}; write {} (at most {most} tasks on a node), or a smaller fraction",
        if nodes <= there { format!("--nodes={nodes} --ntasks={tasks}") } else { format!("--nodes={there} --ntasks={} on all {there} nodes with these GPUs", most.saturating_mul(*there)) }
    )]
    TooManyTasks {
        /// The number of tasks.
        tasks: u32,
        /// The size for each task, in units.
        units: Units,
        /// The number of tasks that fit on a device.
        most: u32,
        /// The number of nodes that are needed.
        nodes: u32,
        /// The number of nodes of the pools.
        there: u32,
    },
    /// A change of a job cannot change its tasks' slices.
    /// Cure: Cancel the job and submit it again.
    #[error(
        "gpufrac: the share of each task of a job cannot be changed; cancel the job and submit it again"
    )]
    TasksChanged,
    // After the update Slurm would still count GRES that the job no longer asks for.
    /// Slurm 22.05 and 24.11 keep the old counts of a changed job.
    /// Cure: Write all that the job needs in one `TresPerNode`, or submit the job again.
    #[error(
        "gpufrac: this Slurm cannot remove GRES from a job; write all GRES that the job needs in one TresPerNode, or cancel the job and submit it again"
    )]
    CountsStay,
    /// Slurm takes the option for whole GPUs only, or its value is no number for a GPU.
    /// Cure: Leave `--gpu-freq` out; write a number for a GPU into the other options, or use `--cpus-per-task` and
    /// `--mem`.
    #[error(
        "gpufrac: gpufrac cannot be combined with {option}{}",
        if *option == "--gpu-freq" {
            " (Slurm refuses it for shares of GPUs); leave it out"
        } else {
            " here; write one number for a GPU when the job is submitted, or use --cpus-per-task or --mem"
        }
    )]
    PerGpu { option: &'static str },
    /// The job asks for more CPUs than `max_cpus_per_gpu` of its partition gives to the fraction.
    /// Cure: Ask for the CPUs of the message, or for a larger fraction.
    #[error(
        "gpufrac: {cpus} CPUs are more than {part} may have in partition {partition}, at most {most}; {}",
        fewer_cpus(*most, *tasks)
    )]
    TooManyCpus {
        part: String,
        partition: String,
        cpus: u64,
        most: u64,
        /// The tasks on a node.
        tasks: u64,
    },
    /// The job asks for more memory than `max_memory_per_gpu` of its partition gives to the fraction.
    /// Cure: Ask for the memory of the message, or for a larger fraction.
    #[error(
        "gpufrac: {} more than {part} may have in partition {partition}, at most {most} MB; write --mem={most}M, or ask for a larger fraction",
        memory.map_or_else(|| "all memory of a node is".to_owned(), |mib| format!("{mib} MB of memory are"))
    )]
    TooMuchNodeMemory {
        part: String,
        partition: String,
        /// MiB on a node; None for all memory of the node.
        memory: Option<u64>,
        most: u64,
    },
    /// No pool serves the partition.
    /// Cure: Submit to one of the partitions of the message.
    #[error(
        "gpufrac: partition {partition:?} has no fractions of GPUs; {}",
        served_by(served)
    )]
    NotServed {
        /// The partition of the request.
        partition: String,
        /// The partitions that have pools.
        served: Vec<String>,
    },
    /// The pool shares its GPUs by another mechanism.
    /// Cure: Leave the mechanism out, or write the one of the message.
    #[error(
        "gpufrac: {destination} has no fractions by {mechanism}, only by {}; write {option}0.25",
        words(there)
    )]
    NoMechanism {
        option: FractionOption,
        /// The partition for messages.
        destination: String,
        /// The requested mechanism.
        mechanism: Mechanism,
        /// The mechanisms of the partition.
        there: Vec<Mechanism>,
    },
    // Slurm accepts only one Type of device, and no Type belongs to the right pools alone.
    /// Slurm could choose a device of a pool that does not serve the partition.
    /// Cure: Follow the message: name the Type, or another partition.
    #[error(
        "gpufrac: Slurm could give a job of {destination} GPUs of pool {other} that are not for it; {way}"
    )]
    WhichType {
        /// The partition for messages.
        destination: String,
        /// A pool that must not serve the job.
        other: String,
        /// The cure for the user.
        way: &'static str,
    },
    /// The smallest share could be taken of a GPU that is not shared.
    /// Cure: Write `gpufrac:0.02`.
    #[error(
        "gpufrac: {destination} has several kinds of GPUs, and Slurm could allocate 0.01 of a GPU that is not shared; write gpufrac:0.02"
    )]
    OneUnit {
        /// The partition for messages.
        destination: String,
    },
    /// The pool has no whole GPU.
    /// Cure: Ask for a size that the message lists.
    #[error(
        "gpufrac: {destination} offers no whole GPU; {}",
        ways(*option, sizes, elsewhere)
    )]
    NoWhole {
        option: FractionOption,
        /// The partition for messages.
        destination: String,
        /// The sizes there.
        sizes: Vec<Fraction>,
        /// Partitions that lend whole GPUs.
        elsewhere: Vec<String>,
    },
    /// The amount is larger than the largest size of the pool.
    /// Cure: Write a size of the message, or another partition.
    #[error(
        "gpufrac: {text} is more than {destination} gives of one GPU; {}",
        ways(*option, sizes, elsewhere)
    )]
    TooLarge {
        option: FractionOption,
        /// The value as written.
        text: String,
        /// The partition for messages.
        destination: String,
        /// The sizes there.
        sizes: Vec<Fraction>,
        /// Partitions that lend whole GPUs.
        elsewhere: Vec<String>,
    },
    /// The amount of memory is larger than one GPU of the partition has.
    /// Cure: Ask for less memory, or another partition.
    #[error(
        "gpufrac: {text} is more than {destination} gives of one GPU{}{}",
        largest.iter().map(|size| format!("; its largest size is {size}")).collect::<String>(),
        partitions(elsewhere)
    )]
    TooMuchMemory {
        /// The value as written.
        text: String,
        /// The partition for messages.
        destination: String,
        /// The largest size there.
        largest: Option<String>,
        /// Partitions that can give as much.
        elsewhere: Vec<String>,
    },
    /// The job counts units that no size has, for example in a REST request.
    /// Cure: Write a size of the message.
    #[error("gpufrac: {text} units are not a size of {destination}; {}", ways(*option, sizes, &[]))]
    NotOnMenu {
        option: FractionOption,
        /// The value as written.
        text: String,
        /// The partition for messages.
        destination: String,
        /// The sizes there.
        sizes: Vec<Fraction>,
    },
    /// The pools of the partitions have different menus.
    /// Cure: Name one partition, or a size that all have.
    #[error("gpufrac: the pools of {destination} ({}) have no common size for {text}; {}{}", pools.join(", "), ways_here(*option, sizes, *named, *one), with_mechanism(*option, by, text))]
    NothingInCommon {
        option: FractionOption,
        /// The value as written.
        text: String,
        /// The partition for messages.
        destination: String,
        /// The names of the pools.
        pools: Vec<String>,
        /// The sizes that all pools have.
        sizes: Vec<Fraction>,
        /// The mechanisms that have a size for the request.
        by: Vec<Mechanism>,
        /// Whether the request names its partition.
        named: bool,
        /// Whether the request is for a single partition.
        one: bool,
    },
    /// The admin limits the sizes in this partition.
    /// Cure: Write a size of the message, or another partition.
    #[error("gpufrac: partition {partition} does not give {size} of a GPU; {}", ways_here(*option, sizes, *named, true))]
    OutsideRules {
        option: FractionOption,
        partition: String,
        /// The size that the pools would have given.
        size: Fraction,
        /// The sizes that the partition gives.
        sizes: Vec<Fraction>,
        /// Whether the request names its partition.
        named: bool,
    },
    /// GPUs of this partition are devices of gpufrac.
    /// Cure: Ask for a fraction, or for whole GPUs: `gpufrac:1`, `gpufrac:4`.
    #[error(
        "gpufrac: GPUs of partition {partition} are shared, and {name} cannot be asked for by itself{reason}; {}{}",
        ways(FractionOption::Gres, sizes, elsewhere),
        several(*gpus, sizes)
    )]
    Raw {
        /// `shard`, `mps` or `gpu`.
        name: &'static str,
        partition: String,
        reason: RawReason,
        /// The number of whole GPUs on a node that can be requested instead.
        gpus: u64,
        /// The sizes where the job may run.
        sizes: Vec<Fraction>,
        /// Partitions that lend whole GPUs, if this one does not.
        elsewhere: Vec<String>,
    },
    /// The Type does not exist in this cluster.
    /// Cure: Ask for a fraction; `sinfo -o '%P %G'` lists Types.
    #[error(
        "gpufrac: no GPU of this cluster has the Type {type_name:?}, and those of {destination} are shared; {}",
        ways(FractionOption::Gres, sizes, elsewhere)
    )]
    NoSuchType {
        /// The Type as written.
        type_name: String,
        /// The partition for messages.
        destination: String,
        /// The sizes where the job may run.
        sizes: Vec<Fraction>,
        /// Partitions that lend whole GPUs, if this one does not.
        elsewhere: Vec<String>,
    },
    /// In this partition Slurm would give a device of a pool for the name.
    /// Cure: Name the partition in the same request, or ask for a fraction.
    #[error(
        "gpufrac: {name} cannot be asked for in partitions with shared GPUs; write gpufrac:0.25, or, for a job of another partition, name this partition in the same request"
    )]
    RawUnknownPartition {
        /// `shard`, `mps` or `gpu`.
        name: &'static str,
    },
}

/// The reasons why a request counts as one for `shard`, `mps` or `gpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawReason {
    /// The request names it.
    Plain,
    /// The request looks rewritten, but its counts differ.
    Unequal,
    /// The request has `gpu:0.25`, which was meant as a fraction.
    MeantFraction,
}

impl fmt::Display for RawReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RawReason::Plain => "",
            RawReason::Unequal => " (the counts of gpufrac and shard do not belong together)",
            RawReason::MeantFraction => " (Slurm counts gpu in whole numbers)",
        })
    }
}

fn words(mechanisms: &[Mechanism]) -> String {
    let words: Vec<&str> = mechanisms.iter().map(|m| m.name()).collect();
    words.join(", ")
}

fn ways(option: FractionOption, sizes: &[Fraction], elsewhere: &[String]) -> String {
    let mut text = match sizes {
        [] => "nothing can be asked for there".to_owned(),
        // A menu of every percent is too long to list.
        [first, .., before, Fraction::ONE] if sizes.len() > MAX_LISTED_SIZES => {
            format!("write {option}F with F from {first} to {before}, or {option}1")
        }
        [first, .., last] if sizes.len() > MAX_LISTED_SIZES => {
            format!("write {option}F with F from {first} to {last}")
        }
        sizes => {
            let way = |size: &Fraction| format!("{option}{size}");
            let ways: Vec<String> = sizes.iter().map(way).collect();
            format!("write {}", ways.join(" or "))
        }
    };
    if !elsewhere.is_empty() {
        let partitions = elsewhere.join(" or --partition=");
        text.push_str(&format!(
            "; for a whole GPU {option}1 --partition={partitions}"
        ));
    }
    text
}

/// The request for fewer GPUs, or for a part of one.
fn fewer_gpus(most: Option<u32>, meant: Option<Fraction>) -> String {
    let whole =
        most.map(|most| format!("at most --gres=gpufrac:{most}, with --nodes for several nodes"));
    let part = meant.map(|meant| {
        format!(
            "--gres=gpufrac:{meant} for {}% of a GPU",
            meant.ceil_of(100)
        )
    });
    let ways: Vec<String> = whole.into_iter().chain(part).collect();
    ways.join(", or ")
}

/// The request for several whole GPUs, if the sizes include a whole one.
fn several(gpus: u64, sizes: &[Fraction]) -> String {
    if gpus > 1 && sizes.last() == Some(&Fraction::ONE) {
        format!("; for {gpus} whole GPUs write --gres=gpufrac:{gpus}")
    } else {
        String::new()
    }
}

fn partitions_of_gpus(partitions: &[String]) -> String {
    match partitions {
        [] => String::new(),
        names => format!(
            ", or use GPUs that are never shared: --partition={}",
            names.join(" or --partition=")
        ),
    }
}

fn served_by(partitions: &[String]) -> String {
    match partitions {
        [] => "no other partition of this cluster has any: ask the admin for the pools of gpufrac.toml".to_owned(),
        names => format!("use --partition={}", names.join(" or --partition=")),
    }
}

fn partitions(elsewhere: &[String]) -> String {
    if elsewhere.is_empty() {
        return String::new();
    }
    format!("; use --partition={}", elsewhere.join(" or --partition="))
}

fn with_mechanism(option: FractionOption, mechanisms: &[Mechanism], text: &str) -> String {
    let way = |mechanism: &Mechanism| format!(", or {option}{mechanism}:{text}");
    mechanisms.iter().map(way).collect()
}

/// As [`ways`], with the proposal to name a partition, or a single one.
fn ways_here(option: FractionOption, sizes: &[Fraction], named: bool, one: bool) -> String {
    let partition = match (named, one) {
        (true, true) => return ways(option, sizes, &[]),
        (true, false) => "name a single partition",
        (false, _) => "name the job's partition in the same request",
    };
    if sizes.is_empty() {
        partition.to_owned()
    } else {
        format!("{}, or {partition}", ways(option, sizes, &[]))
    }
}

/// `write --cpus-per-task=2, or ask for a larger fraction`.
fn fewer_cpus(most: u64, tasks: u64) -> String {
    match most / tasks {
        0 => format!("write at most --ntasks-per-node={most}, or ask for a larger fraction"),
        per_task => format!("write --cpus-per-task={per_task}, or ask for a larger fraction"),
    }
}
