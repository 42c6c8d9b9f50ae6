//! The reasons why an item is refused.

use crate::fraction::{Fraction, FractionError};
use crate::mechanism::UnknownMechanism;

/// The reasons why a `gpufrac` item is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// `gpufrac` or `gpufrac:` without an amount.
    #[error("{item:?} does not say how much; write gpufrac:0.25")]
    Missing {
        /// The item as written.
        item: String,
    },
    /// The value is not a fraction.
    #[error("{item:?}: {source}; write for example gpufrac:0.25")]
    Fraction {
        /// The item as written.
        item: String,
        source: FractionError,
    },
    /// The value is a ratio or a percentage.
    #[error("{item:?}: write it as a decimal: gpufrac:{decimal}")]
    Decimal {
        /// The item as written.
        item: String,
        /// The decimal to write instead.
        decimal: Fraction,
    },
    /// The item is misspelt, but has only one possible meaning.
    #[error("{item:?}: {why}; write {write}")]
    Instead {
        /// The item as written.
        item: String,
        why: &'static str,
        /// The text to write instead.
        write: String,
    },
    /// The amount of memory is not a whole number, or too large.
    #[error(
        "{item:?} is not an amount of memory; write a whole number with K, M, G or T, such as gpufrac:10G"
    )]
    Memory {
        /// The item as written.
        item: String,
    },
    /// No mechanism has this name.
    #[error("{item:?}: {source}; write gpufrac:0.25 or gpufrac:mig:0.25")]
    Mechanism {
        /// The item as written.
        item: String,
        /// The word in place of a mechanism.
        source: UnknownMechanism,
    },
    /// The item has more parts than mechanism and amount.
    #[error("{item:?} has too many parts; write gpufrac:0.25 or gpufrac:mig:0.25")]
    TooManyParts {
        /// The item as written.
        item: String,
    },
    /// Slurm could read the item in another way.
    #[error(
        "{item:?} can be read in two ways: {why}; write each of gpufrac, shard and gpu once, as in --gres=gpufrac:0.25"
    )]
    Ambiguous {
        /// The item as written.
        item: String,
        why: &'static str,
    },
    /// The name is in capital letters.
    #[error("{item:?}: names of GRES are in small letters; write gpufrac:0.25")]
    Case {
        /// The item as written.
        item: String,
    },
}
