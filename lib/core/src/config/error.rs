//! What can be wrong with a configuration file.

use std::fmt;

use super::tables::VERSION;
use crate::fraction::{Fraction, FractionError};
use crate::hostlist::HostlistError;
use crate::layout::LayoutError;
use crate::mechanism::{Mechanism, UnknownMechanism};

/// One mistake, where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ConfigError {
    /// The file.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// The key with its tables: `pool.h100.menu`; empty for a mistake of the file itself.
    pub key: String,
    /// What is wrong.
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

/// What is wrong at a place of the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// Not TOML.
    #[error("{0}")]
    Syntax(String),
    /// A key that this version does not know.
    #[error("unknown key; known here: {known}")]
    UnknownKey {
        /// The keys that are known there.
        known: String,
    },
    /// A key that must be there.
    #[error("missing; write {example}")]
    Missing {
        /// What to write, as an example.
        example: &'static str,
    },
    /// A value of another type.
    #[error("must be {expected}, not {found}")]
    WrongType {
        /// What it must be.
        expected: &'static str,
        /// TOML's name of the type that was found.
        found: &'static str,
    },
    /// Another version of the file.
    #[error("version {found} is unknown; this gpufrac reads version {VERSION}")]
    Version {
        /// The number as written.
        found: String,
    },
    /// Nothing where something must be.
    #[error("must not be empty")]
    Empty,
    /// A name that Slurm could not have.
    #[error("{name:?} cannot be a name; use letters, digits, '-', '_' and '.'")]
    Name {
        /// The name.
        name: String,
    },
    /// A path that depends on the working directory.
    #[error("{value:?} must be an absolute path")]
    RelativePath {
        /// The path.
        value: String,
    },
    /// A `%` of something else than the node.
    #[error("{value:?}: only %n (the node's name) is known")]
    Percent {
        /// The path.
        value: String,
    },
    /// Not a fraction.
    #[error("{text}: {source}; write 0.25 or \"1/4\"")]
    Fraction {
        /// The value as it stands in the request or file.
        text: String,
        /// Why not.
        source: FractionError,
    },
    /// A word that names no mechanism.
    #[error(transparent)]
    Mechanism(#[from] UnknownMechanism),
    /// A key that means nothing for the pool's mechanism or layout.
    #[error("this key means nothing for {of}; leave it out")]
    Meaningless {
        /// The mechanism or the layout.
        of: String,
    },
    /// A word that is not one of a few.
    #[error("unknown word {word:?}; known are {known}")]
    UnknownWord {
        /// The word.
        word: String,
        /// All of them.
        known: String,
    },
    /// A library that cannot be preloaded.
    #[error("{value:?} cannot be preloaded: write an absolute path without blanks and colons")]
    LibraryPath {
        /// The path.
        value: String,
    },
    /// Not a count.
    #[error("{value} is not a number from 1 to 255")]
    Count {
        /// What is there.
        value: String,
    },
    /// Not an amount of memory.
    #[error("{value} is not a GPU's memory in MiB, such as 46068")]
    Memory {
        /// What is there.
        value: String,
    },
    /// Pools that Slurm could not tell apart.
    #[error(
        "Slurm could give jobs of partition {partition} GPUs of pool {other}, which does not serve it and is on the same nodes; let it serve the partition too, or give it nodes of its own"
    )]
    SameType {
        /// The other pool.
        other: String,
        /// The partition.
        partition: String,
    },
    /// A word that names no layout.
    #[error("unknown layout {word:?}; mechanism {mechanism} has {known}")]
    UnknownLayout {
        /// The word.
        word: String,
        /// The pool's mechanism.
        mechanism: Mechanism,
        /// The layouts that it can have.
        known: String,
    },
    /// A GPU model that has no MIG.
    #[error("{name} has no MIG; use mechanism mps, timeslice or hami, or one of {known}")]
    NoMig {
        /// The name.
        name: String,
        /// The models that have.
        known: String,
    },
    /// A GPU model without a table.
    #[error("unknown GPU {name:?}; known are {known}, or {}", if *memory_is_enough {
        "write its memory beside it, in MiB: memory = 46068".to_owned()
    } else {
        format!("describe it in [geometry.{name}]")
    })]
    UnknownGpu {
        /// The name.
        name: String,
        /// The built-in names, and those of the file.
        known: String,
        /// Whether the mechanism needs no more than the memory.
        memory_is_enough: bool,
    },
    /// A table of the file that has the name of a built-in one.
    #[error("{name} is built in; choose another name")]
    BuiltinName {
        /// The name.
        name: String,
    },
    /// A GPU that cannot be shared as asked.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Not a list of nodes.
    #[error(transparent)]
    Hostlist(#[from] HostlistError),
    /// The same value twice in a list.
    #[error("{value} is there twice")]
    Twice {
        /// The value.
        value: String,
    },
    /// A GPU index out of range.
    #[error("{value} is not an index of a GPU; write NVML's, from 0 to 255")]
    GpuIndex {
        /// The value as it stands in the request or file.
        value: String,
    },
    /// No pool in the file.
    #[error("no pool: write at least one [pool.NAME]")]
    NoPool,
    /// Two pools want the same GPU.
    #[error("pool {other} has {gpus} of node {node} already; give each pool its own `gpus`")]
    Overlap {
        /// The other pool.
        other: String,
        /// The GPU, or all of them.
        gpus: String,
        /// A node for which it is so.
        node: String,
    },
    /// Rules for a partition that no pool names.
    #[error("no pool serves partition {name:?}; served are {served}")]
    UnservedPartition {
        /// The partition.
        name: String,
        /// The partitions that are.
        served: String,
    },
    /// `min` is over `max`.
    #[error("min {min} is more than max {max}")]
    MinOverMax {
        /// The least.
        min: Fraction,
        /// The most.
        max: Fraction,
    },
    /// No size lies between `min` and `max`.
    #[error("no size of the partition's pools is between min and max; the sizes are {sizes}")]
    NothingAllowed {
        /// The sizes.
        sizes: String,
    },
    /// `default` cannot be given.
    #[error("{fraction} cannot be given here: {reason}")]
    Default {
        /// The default.
        fraction: Fraction,
        /// Why not.
        reason: String,
    },
    /// Not a length of time.
    #[error(
        "{value:?} is not a duration; write it with its unit, such as \"10s\", \"20m\", \"4h\", \"14d\""
    )]
    Duration {
        /// The value as it stands in the request or file.
        value: String,
        /// Whether there may be none.
        or_off: bool,
    },
    /// An instance cannot be kept for so long.
    #[error(
        "an instance cannot be kept for {value}; write a time from \"1s\" to \"1h\", or leave the key out"
    )]
    Reuse {
        /// The time.
        value: String,
    },
    /// Not a percentage.
    #[error("{value} is not a percentage; write a number from 0 to 100")]
    Percentage {
        /// The value as it stands in the request or file.
        value: String,
    },
    /// A percentage with decimals.
    #[error("{value} has decimals; write a whole number from 0 to 100")]
    WholePercentage {
        /// The value as it stands in the request or file.
        value: String,
    },
    /// Samples too close together or too far apart.
    #[error("{value} cannot be the time between samples; write 200ms to 1m")]
    Interval {
        /// The value as it stands in the request or file.
        value: String,
    },
    /// Not an address to listen at.
    #[error(
        "{value:?} is not an address; write one with its port, such as \"127.0.0.1:9835\", or \"off\""
    )]
    Address {
        /// The value as it stands in the request or file.
        value: String,
    },
    /// Not a loopback address in figures, with a path.
    #[error("{value:?} is not the address of an exporter; write \"http://127.0.0.1:9400/metrics\"")]
    Url {
        /// The value as it stands in the request or file.
        value: String,
    },
    /// What cannot be in the header of a mail.
    #[error(
        "{value:?} cannot be in an address; write it without blanks, and not with - at its start"
    )]
    MailWord {
        /// The value as it stands in the request or file.
        value: String,
    },
    /// A rule without conditions.
    #[error("a rule needs a condition: one of {known}; settings for all jobs belong in [reaper]")]
    ForEverybody {
        /// The conditions.
        known: String,
    },
    /// A window that cannot hold enough samples.
    #[error(
        "{key} is {window}, and samples are {interval} apart: too few to judge by; make it longer"
    )]
    ShortWindow {
        /// Which window.
        key: &'static str,
        /// Its length.
        window: String,
        /// Time between samples.
        interval: String,
    },
    /// A warning that would come before the window begins.
    #[error(
        "{key} is {window}, and the first warning is {warning} before its end; make the warning shorter or the window longer"
    )]
    LateWarning {
        /// Which window.
        key: &'static str,
        /// Its length.
        window: String,
        /// The warning.
        warning: String,
    },
    /// Pools of a partition that have no size in common.
    #[error(
        "pools {pools} of partition {partition} have no size in common, so users could ask for no fraction there; give them menus that share a size, or partitions of their own"
    )]
    NothingInCommon {
        /// The pools.
        pools: String,
        /// The partition.
        partition: String,
    },
}
