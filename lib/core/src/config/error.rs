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
    /// The path of the file.
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
    /// This version of gpufrac does not know the key.
    #[error("unknown key; known here: {known}")]
    UnknownKey {
        /// The keys that this table can have.
        known: String,
    },
    /// A required key is missing.
    #[error("missing; write {example}")]
    Missing {
        /// A line to write, as an example.
        example: &'static str,
    },
    /// The value has the wrong TOML type.
    #[error("must be {expected}, not {found}")]
    WrongType {
        /// The expected type, in words.
        expected: &'static str,
        /// TOML's name of the type in the file.
        found: &'static str,
    },
    /// The file has another format version.
    #[error("version {found} is unknown; this gpufrac reads version {VERSION}")]
    Version {
        /// The version as written.
        found: String,
    },
    /// A required value is empty.
    #[error("must not be empty")]
    Empty,
    /// Slurm does not accept such a name.
    #[error("{name:?} cannot be a name; use letters, digits, '-', '_' and '.'")]
    Name { name: String },
    #[error(
        "{name:?} cannot be the name under which Slurm counts fractions: {source}; write for example name = \"frac\""
    )]
    CountName { name: String, source: NoCountName },
    /// The path is relative, so its meaning would depend on the working directory.
    #[error("{value:?} must be an absolute path")]
    RelativePath { value: String },
    /// The path has a `%` that is not `%n`, the name of the node.
    #[error("{value:?}: only %n (the node's name) is known")]
    Percent { value: String },
    /// Not a price.
    #[error("{value} is not a price; write a number with at most six decimals, such as 1.25")]
    Price {
        /// The value as it stands in the file.
        value: String,
    },
    /// The value is not a fraction.
    #[error("{text}: {source}; write 0.25 or \"1/4\"")]
    Fraction {
        /// The value as written.
        text: String,
        source: FractionError,
    },
    /// No mechanism has this name.
    #[error(transparent)]
    Mechanism(#[from] UnknownMechanism),
    /// The key has no meaning for the pool's mechanism or layout.
    #[error("this key has no meaning for {of}; leave it out")]
    Meaningless {
        /// The mechanism or the layout.
        of: String,
    },
    /// The value is not one of the allowed words.
    #[error("unknown word {word:?}; known are {known}")]
    UnknownWord {
        /// The word as written.
        word: String,
        /// All allowed words.
        known: String,
    },
    /// LD_PRELOAD cannot name this path.
    #[error("{value:?} cannot be preloaded: write an absolute path without blanks and colons")]
    LibraryPath { value: String },
    /// The value is not a count.
    #[error("{value} is not a number from 1 to 255")]
    Count {
        /// The value as written.
        value: String,
    },
    /// The value is not an amount of memory.
    #[error("{value} is not a GPU's memory in MiB, such as 46068")]
    Memory {
        /// The value as written.
        value: String,
    },
    /// Slurm could give a job a GPU of another pool, because both pools have the same Type.
    #[error(
        "Slurm could allocate GPUs of pool {other} to jobs of partition {partition}: the pool is on the same nodes, but does not serve the partition; let the pool serve it too, or give the pool other nodes"
    )]
    SameType {
        /// The name of the other pool.
        other: String,
        /// The name of the partition.
        partition: String,
    },
    /// No layout has this name, or the mechanism cannot have it.
    #[error("unknown layout {word:?}; mechanism {mechanism} has {known}")]
    UnknownLayout {
        /// The word as written.
        word: String,
        /// The pool's mechanism.
        mechanism: Mechanism,
        /// The layouts of this mechanism.
        known: String,
    },
    /// The GPU model has no MIG.
    #[error("{name} has no MIG; use mechanism mps, timeslice or hami, or one of {known}")]
    NoMig {
        /// The name of the model.
        name: String,
        /// The models that have MIG.
        known: String,
    },
    /// gpufrac knows no GPU model of this name.
    #[error("unknown GPU {name:?}; known are {known}, or {}", if *memory_is_enough {
        "write its memory beside it, in MiB: memory = 46068".to_owned()
    } else {
        format!("describe it in [geometry.{name}]")
    })]
    UnknownGpu {
        /// The name of the model.
        name: String,
        /// The names of built-in models and of tables in the file.
        known: String,
        /// Whether the mechanism needs only the GPU's memory, so that `memory` is enough.
        memory_is_enough: bool,
    },
    /// A `[gpu.NAME]` table of the file has the name of a built-in model.
    #[error("{name} is built in; choose another name")]
    BuiltinName { name: String },
    /// The GPU cannot have this layout with this menu.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The value is not a list of nodes.
    #[error(transparent)]
    Hostlist(#[from] HostlistError),
    /// A list has the same value twice.
    #[error("{value} is written twice; remove one of them")]
    Twice { value: String },
    /// The GPU index is out of range.
    #[error("{value} is not an index of a GPU; write NVML's, from 0 to 255")]
    GpuIndex {
        /// The value as written.
        value: String,
    },
    /// The file has no pool.
    #[error("no pool: write at least one [pool.NAME]")]
    NoPool,
    /// Two pools have the same GPU.
    #[error("pool {other} has {gpus} of node {node} already; give each pool its own `gpus`")]
    Overlap {
        /// The name of the other pool.
        other: String,
        /// The GPU, or `all GPUs`.
        gpus: String,
        /// One node on which both pools have this GPU.
        node: String,
    },
    /// There are rules for a partition that no pool serves.
    #[error("no pool serves partition {name:?}; served are {served}")]
    UnservedPartition {
        /// The name of the partition.
        name: String,
        /// The partitions that pools serve.
        served: String,
    },
    #[error("min {min} is more than max {max}")]
    MinOverMax {
        /// The value of `min`.
        min: Fraction,
        /// The value of `max`.
        max: Fraction,
    },
    /// No size of the menu is between `min` and `max`.
    #[error("no size of the partition's pools is between min and max; the sizes are {sizes}")]
    NothingAllowed {
        /// The sizes of the menu.
        sizes: String,
    },
    /// No pool can give the size in `default`.
    #[error("{fraction} cannot be given here: {reason}")]
    Default {
        /// The value of `default`.
        fraction: Fraction,
        reason: String,
    },
    #[error(
        "{value:?} is not a duration; write it with its unit, such as \"10s\", \"20m\", \"4h\", \"14d\""
    )]
    Duration {
        /// The value as written.
        value: String,
        /// Whether `off` is allowed, too.
        or_off: bool,
    },
    /// The value of `reuse` is out of range.
    #[error(
        "an instance cannot be kept for {value}; write a time from \"1s\" to \"1h\", or leave the key out"
    )]
    Reuse {
        /// The value as written.
        value: String,
    },
    /// A default of nothing.
    #[error("this key needs burst_max, the most that a job may ask for; write it beside")]
    BurstWithoutMax,
    /// A ceiling that the mechanism cannot have.
    #[error("{value} cannot be the ceiling of {of}; write {write}")]
    BurstMax {
        value: String,
        /// The possible values.
        write: &'static str,
        of: &'static str,
    },
    /// More than the most.
    #[error("{default} does not go with burst_max {max}; write {max}, or leave the key out")]
    BurstDefault {
        default: String,
        /// The most.
        max: String,
    },
    /// The value is not a percentage.
    #[error("{value} is not a percentage; write a number from 0 to 100")]
    Percentage {
        /// The value as written.
        value: String,
    },
    /// The percentage must be a whole number.
    #[error("{value} has decimals; write a whole number from 0 to 100")]
    WholePercentage {
        /// The value as written.
        value: String,
    },
    /// The time between samples is out of range.
    #[error("{value} cannot be the time between samples; write 200ms to 1m")]
    Interval {
        /// The value as written.
        value: String,
    },
    /// The value is not an address to listen at.
    #[error(
        "{value:?} is not an address; write one with its port, such as \"127.0.0.1:9835\", or \"off\""
    )]
    Address {
        /// The value as written.
        value: String,
    },
    /// The value is not a URL with a numeric loopback address and a path.
    #[error("{value:?} is not the address of an exporter; write \"http://127.0.0.1:9400/metrics\"")]
    Url {
        /// The value as written.
        value: String,
    },
    /// The value cannot be in the header of a mail message.
    #[error(
        "{value:?} cannot be in an address; write it without blanks, and not with - at its start"
    )]
    MailWord {
        /// The value as written.
        value: String,
    },
    /// The rule has no conditions, so it would hold for every job.
    #[error("a rule needs a condition: one of {known}; settings for all jobs belong in [reaper]")]
    ForEverybody {
        /// The conditions that a rule can have.
        known: String,
    },
    /// The window is too short for the time between samples.
    #[error(
        "{key} is {window}, and samples are {interval} apart: too few to judge by; make it longer"
    )]
    ShortWindow {
        /// The key of the window.
        key: &'static str,
        /// The length of the window.
        window: String,
        /// The time between samples.
        interval: String,
    },
    /// The first warning would be before the window begins.
    #[error(
        "{key} is {window}, and the first warning is {warning} before its end; make the warning shorter or the window longer"
    )]
    LateWarning {
        /// The key of the window.
        key: &'static str,
        /// The length of the window.
        window: String,
        /// The time of the first warning before the end of the window.
        warning: String,
    },
    #[error(
        "pools {pools} of partition {partition} have no size in common, so users could not request a fraction there; give them menus with a common size, or separate partitions"
    )]
    NothingInCommon {
        /// The names of the pools.
        pools: String,
        /// The name of the partition.
        partition: String,
    },
}
