//! Why an item is refused.

use crate::fraction::{Fraction, FractionError};
use crate::mechanism::UnknownMechanism;

/// Why a `gpufrac` item is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// `gpufrac` or `gpufrac:` alone.
    #[error("{item:?} does not say how much; write gpufrac:0.25")]
    Missing {
        /// The item.
        item: String,
    },
    /// A value that is no fraction.
    #[error("{item:?}: {source}; write for example gpufrac:0.25")]
    Fraction {
        /// The item.
        item: String,
        /// Why not.
        source: FractionError,
    },
    /// A ratio or a percentage.
    #[error("{item:?}: write it as a decimal: gpufrac:{decimal}")]
    Decimal {
        /// The item.
        item: String,
        /// What to write.
        decimal: Fraction,
    },
    /// What can only be meant in one way.
    #[error("{item:?}: {why}; write {write}")]
    Instead {
        /// The item.
        item: String,
        /// What is wrong with it.
        why: &'static str,
        /// What to write.
        write: String,
    },
    /// Memory that is no whole number, or too much of it.
    #[error(
        "{item:?} is not an amount of memory; write a whole number with K, M, G or T, such as gpufrac:10G"
    )]
    Memory {
        /// The item.
        item: String,
    },
    /// A word that names no mechanism.
    #[error("{item:?}: {source}; write gpufrac:0.25 or gpufrac:mig:0.25")]
    Mechanism {
        /// The item.
        item: String,
        /// The word.
        source: UnknownMechanism,
    },
    /// More words than mechanism and amount.
    #[error("{item:?} has too many parts; write gpufrac:0.25 or gpufrac:mig:0.25")]
    TooManyParts {
        /// The item.
        item: String,
    },
    /// Slurm would read it otherwise.
    #[error(
        "{item:?} can be read in two ways: {why}; write each of gpufrac, shard and gpu once, as in --gres=gpufrac:0.25"
    )]
    Ambiguous {
        /// The item.
        item: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Capital letters.
    #[error("{item:?}: names of GRES are in small letters; write gpufrac:0.25")]
    Case {
        /// The item.
        item: String,
    },
}
