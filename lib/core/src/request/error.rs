//! The reasons why an item is refused.

use crate::fraction::{Fraction, FractionError};
use crate::mechanism::UnknownMechanism;

/// The reasons why a `gpufrac` item is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The request names gpufrac without an amount.
    /// Cure: Write `--gres=gpufrac:0.25`.
    #[error("{item:?} does not say how much; write gpufrac:0.25")]
    Missing { item: String },
    /// The amount is not a number from 0.01 to 1.
    /// Cure: Write `--gres=gpufrac:0.25`.
    #[error("{item:?}: {source}; write for example gpufrac:0.25")]
    Fraction { item: String, source: FractionError },
    /// The fraction is written as `1/4` or with another sign.
    /// Cure: Write the decimal of the message.
    #[error("{item:?}: write it as a decimal: gpufrac:{decimal}")]
    Decimal { item: String, decimal: Fraction },
    /// The item is misspelt, but has only one possible meaning.
    #[error("{item:?}: {why}; write {write}")]
    Instead {
        item: String,
        why: &'static str,
        write: String,
    },
    /// The memory is not a whole number with a unit.
    /// Cure: Write `--gres=gpufrac:10G`.
    #[error(
        "{item:?} is not an amount of memory; write a whole number with K, M, G or T, such as gpufrac:10G"
    )]
    Memory { item: String },
    /// The text between the colons is neither a mechanism nor an amount.
    /// Cure: Write `gpufrac:0.25` or `gpufrac:mig:0.25`.
    #[error("{item:?}: {source}; write gpufrac:0.25 or gpufrac:mig:0.25")]
    Mechanism {
        item: String,
        source: UnknownMechanism,
    },
    /// The request has more than a mechanism and an amount.
    /// Cure: Write `gpufrac:mig:0.25`.
    #[error("{item:?} has too many parts; write gpufrac:0.25 or gpufrac:mig:0.25")]
    TooManyParts { item: String },
    /// Slurm and gpufrac could read the request differently, so gpufrac refuses it.
    /// Cure: Write each name once: `--gres=gpufrac:0.25`.
    #[error(
        "{item:?} can be read in two ways: {why}; write each of gpufrac, shard and gpu once, as in --gres=gpufrac:0.25"
    )]
    Ambiguous { item: String, why: &'static str },
    /// Slurm distinguishes capital letters in names of GRES.
    /// Cure: Write `gpufrac` in small letters.
    #[error("{item:?}: names of GRES are in small letters; write gpufrac:0.25")]
    Case { item: String },
}
