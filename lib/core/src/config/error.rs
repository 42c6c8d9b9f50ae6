//! The mistakes of a configuration file.

use std::fmt;

use super::tables::VERSION;
use crate::count_name::NoCountName;
use crate::fraction::{Fraction, FractionError};
use crate::hostlist::HostlistError;
use crate::layout::LayoutError;
use crate::mechanism::{Mechanism, UnknownMechanism};

/// One mistake with its place in the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    pub path: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The key with its tables: `pool.h100.menu`; empty for a mistake of the file itself.
    pub key: String,
    #[source]
    pub problem: Problem,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: ", self.path, self.line)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        self.problem.fmt(f)
    }
}

/// All mistakes of a file, by line; never empty. `Display` is one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, error) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The kinds of mistakes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file is not TOML; the text is that of the TOML parser.
    #[error("{0}")]
    Syntax(String),
    /// The key is misspelled, or stands in the wrong table.
    /// Cure: Write one of the keys that the message lists.
    #[error("unknown key; known here: {known}")]
    UnknownKey { known: String },
    /// The table needs this key.
    /// Cure: Add the line that the message shows.
    #[error("missing; write {example}")]
    Missing { example: String },
    /// The value has the wrong type, for example text in place of a list.
    /// Cure: Write the type that the message names.
    #[error("must be {expected}, not {found}")]
    WrongType {
        expected: &'static str,
        /// TOML's name of the type in the file.
        found: &'static str,
    },
    /// The file is for another gpufrac.
    /// Cure: Write `version = 1`, or install the gpufrac that reads this version.
    #[error("version {found} is unknown; this gpufrac reads version {VERSION}")]
    Version { found: String },
    /// The list or text has nothing in it.
    /// Cure: Write at least one value, or remove the key.
    #[error("must not be empty")]
    Empty,
    /// Names of pools, partitions and nodes have few allowed characters.
    /// Cure: Rename it.
    #[error("{name:?} cannot be a name; use letters, digits, '-', '_' and '.'")]
    Name { name: String },
    /// `[gres] name` is not of Slurm's form, or means something else; the reason follows.
    /// Cure: Write for example `name = "frac"`.
    #[error(
        "{name:?} cannot be the name under which Slurm counts fractions: {source}; write for example name = \"frac\""
    )]
    CountName { name: String, source: NoCountName },
    // The path is relative, so its meaning would depend on the working directory.
    /// A path does not begin with `/`.
    /// Cure: Write the whole path.
    #[error("{value:?} must be an absolute path")]
    RelativePath { value: String },
    /// A pattern other than `%n` stands in a path.
    /// Cure: Use `%n`, or write the name.
    #[error("{value:?}: only %n (the node's name) is known")]
    Percent { value: String },
    /// A price or a factor of `[report]` is not a decimal number.
    /// Cure: Write digits with a point.
    #[error("{value} is not a price; write a number with at most six decimals, such as 1.25")]
    Price { value: String },
    /// The value is not a fraction.
    /// Cure: Write `0.25` or `"1/4"`.
    #[error("{text}: {source}; write 0.25 or \"1/4\"")]
    Fraction { text: String, source: FractionError },
    /// No mechanism has this name.
    #[error(transparent)]
    Mechanism(#[from] UnknownMechanism),
    /// The key belongs to another mechanism or layout.
    /// Cure: Remove the key.
    #[error("this key has no meaning for {of}; leave it out")]
    Meaningless { of: String },
    /// The value is not one of the allowed words.
    /// Cure: Write one of the words that the message lists.
    #[error("unknown word {word:?}; known are {known}")]
    UnknownWord { word: String, known: String },
    /// A path for LD_PRELOAD cannot have blanks or colons.
    /// Cure: Move the library to a path without them.
    #[error("{value:?} cannot be preloaded: write an absolute path without blanks and colons")]
    LibraryPath { value: String },
    /// The number is outside of the range.
    /// Cure: Write a number from 1 to 255.
    #[error("{value} is not a number from 1 to 255")]
    Count { value: String },
    /// The default is more than the ceiling.
    /// Cure: Write a smaller default, or a higher ceiling.
    #[error("is more than {max}")]
    AboveMax { max: &'static str },
    /// The memory of a GPU is not a plausible number of MiB.
    /// Cure: Write what `nvidia-smi` prints for the GPU.
    #[error("{value} is not a GPU's memory in MiB, such as 46068")]
    Memory { value: String },
    /// The number of CPUs for a GPU is outside of the range.
    /// Cure: Write a number from 1 to 65000.
    #[error("{value} is no number of CPUs from 1 to 65000")]
    CpusPerGpu { value: String },
    /// The memory for a GPU is no amount.
    /// Cure: Write MiB, or a text such as `"60G"`.
    #[error("{value} is no amount of memory, such as \"60G\"")]
    MemoryPerGpu { value: String },
    // Slurm could give a job a GPU of another pool, because both pools have the same Type.
    /// Slurm chooses devices by Type and node. It could take a device of the other pool.
    /// Cure: Let the pool serve the partition, or give the pool nodes of its own.
    #[error(
        "Slurm could allocate GPUs of pool {other} to jobs of partition {partition}: the pool is on the same nodes, but does not serve the partition; let the pool serve it too, or give the pool other nodes"
    )]
    SameType { other: String, partition: String },
    /// The mechanism does not have this layout.
    /// Cure: Write one of the layouts of the message; [mechanisms](../mechanisms.md).
    #[error("unknown layout {word:?}; mechanism {mechanism} has {known}")]
    UnknownLayout {
        word: String,
        mechanism: Mechanism,
        known: String,
    },
    /// The GPU model has no MIG.
    /// Cure: Choose another mechanism, or correct `gpu`.
    #[error("{name} has no MIG; use mechanism mps, timeslice or hami, or one of {known}")]
    NoMig { name: String, known: String },
    /// The GPU model is unknown.
    /// Cure: Write a known model, or describe it in a `[geometry.NAME]` table.
    #[error("unknown GPU {name:?}; known are {known}, or {}", if *memory_is_enough {
        "write its memory beside it, in MiB: memory = 46068".to_owned()
    } else {
        format!("describe it in [geometry.{name}]")
    })]
    UnknownGpu {
        name: String,
        known: String,
        /// Whether the mechanism needs only the GPU's memory, so that `memory` is enough.
        memory_is_enough: bool,
    },
    /// A `[geometry]` table has the name of a built-in model.
    /// Cure: Rename the table.
    #[error("{name} is built in; choose another name")]
    BuiltinName { name: String },
    /// The GPU cannot have this layout with this menu.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The value is not a list of nodes.
    #[error(transparent)]
    Hostlist(#[from] HostlistError),
    /// A list has a value more than once.
    /// Cure: Remove one of the two.
    #[error("{value} is written twice; remove one of them")]
    Twice { value: String },
    /// A GPU is not given by NVML's index.
    /// Cure: Write the index that `nvidia-smi -L` prints.
    #[error("{value} is not an index of a GPU; write NVML's, from 0 to 255")]
    GpuIndex { value: String },
    /// The file has no pool, so gpufrac serves nothing.
    /// Cure: Add a `[pool.NAME]` table.
    #[error("no pool: write at least one [pool.NAME]")]
    NoPool,
    /// Two pools have the same GPU of a node.
    /// Cure: Give each pool its own `gpus`.
    #[error("pool {other} has {gpus} of node {node} already; give each pool its own `gpus`")]
    Overlap {
        other: String,
        /// The GPU, or `all GPUs`.
        gpus: String,
        /// One node on which both pools have this GPU.
        node: String,
    },
    /// A `[partition]` table names a partition without a pool.
    /// Cure: Correct the name, or add it to `partitions` of a pool.
    #[error("no pool serves partition {name:?}; served are {served}")]
    UnservedPartition { name: String, served: String },
    /// The limits of the partition contradict each other.
    /// Cure: Exchange `min` and `max`.
    #[error("min {min} is more than max {max}")]
    MinOverMax { min: Fraction, max: Fraction },
    /// The limits leave no size.
    /// Cure: Change `min`, `max` or the menu.
    #[error("no size of the partition's pools is between min and max; the sizes are {sizes}")]
    NothingAllowed { sizes: String },
    /// The size of the rule is not in the partition's pools.
    /// Cure: Write one of the sizes of the message.
    #[error("{fraction} cannot be given here: {reason}")]
    Default { fraction: Fraction, reason: String },
    /// A time has no unit.
    /// Cure: Write `"10s"`, `"20m"`, `"4h"` or `"14d"`.
    #[error(
        "{value:?} is not a duration; write it with its unit, such as \"10s\", \"20m\", \"4h\", \"14d\""
    )]
    Duration {
        value: String,
        /// Whether `off` is allowed, too.
        or_off: bool,
    },
    /// `reuse` is too short or too long.
    /// Cure: Write a time from `"1s"` to `"1h"`, or remove the key.
    #[error(
        "an instance cannot be kept for {value}; write a time from \"1s\" to \"1h\", or leave the key out"
    )]
    Reuse { value: String },
    /// `burst_default` is the ceiling of jobs that ask for none.
    /// Cure: Write `burst_max` too.
    #[error("this key needs burst_max, the most that a job may ask for; write it beside")]
    BurstWithoutMax,
    /// A half of a GPU and HAMi-core have ceilings of their own.
    /// Cure: Write the value of the message.
    #[error("{value} cannot be the ceiling of {of}; write {write}")]
    BurstMax {
        value: String,
        write: &'static str,
        of: &'static str,
    },
    /// The default is more than a job may ask for.
    /// Cure: Lower `burst_default`, or raise `burst_max`.
    #[error("{default} does not go with burst_max {max}; write {max}, or leave the key out")]
    BurstDefault { default: String, max: String },
    /// The value is outside of 0 to 100.
    /// Cure: Write a whole number from 0 to 100.
    #[error("{value} is not a percentage; write a number from 0 to 100")]
    Percentage { value: String },
    /// Percentages are whole numbers.
    /// Cure: Round the number.
    #[error("{value} has decimals; write a whole number from 0 to 100")]
    WholePercentage { value: String },
    /// Samples would be too rare or too frequent.
    /// Cure: Write a time from 200ms to 1m.
    #[error("{value} cannot be the time between samples; write 200ms to 1m")]
    Interval { value: String },
    /// An address needs a host and a port.
    /// Cure: Write `"127.0.0.1:9835"`, or `"off"`.
    #[error(
        "{value:?} is not an address; write one with its port, such as \"127.0.0.1:9835\", or \"off\""
    )]
    Address { value: String },
    /// The exporter must be on the node itself.
    /// Cure: Write `"http://127.0.0.1:9400/metrics"` with the port of your exporter.
    #[error("{value:?} is not the address of an exporter; write \"http://127.0.0.1:9400/metrics\"")]
    Url { value: String },
    /// The address contains blanks or begins with `-`.
    /// Cure: Write a plain mail address.
    #[error(
        "{value:?} cannot be in an address; write it without blanks, and not with - at its start"
    )]
    MailWord { value: String },
    // The rule has no conditions, so it would hold for every job.
    /// A `[reaper.rule]` table names no job.
    /// Cure: Add one of the conditions, or move its settings to `[reaper]`.
    #[error("a rule needs a condition: one of {known}; settings for all jobs belong in [reaper]")]
    ForEverybody { known: String },
    /// A window holds too few samples for a decision.
    /// Cure: Make the window longer.
    #[error(
        "{key} is {window}, and samples are {interval} apart: too few to judge by; make it longer"
    )]
    ShortWindow {
        key: &'static str,
        window: String,
        interval: String,
    },
    /// The first warning would come before the window begins.
    /// Cure: Make the warning shorter, or the window longer.
    #[error(
        "{key} is {window}, and the first warning is {warning} before its end; make the warning shorter or the window longer"
    )]
    LateWarning {
        key: &'static str,
        window: String,
        warning: String,
    },
    /// A request in this partition could go to either pool, and no size exists in both.
    /// Cure: Give the pools a common size, or separate partitions.
    #[error(
        "pools {pools} of partition {partition} have no size in common, so users could not request a fraction there; give them menus with a common size, or separate partitions"
    )]
    NothingInCommon { pools: String, partition: String },
}
