//! The items of a tres string.

use crate::fraction::{Fraction, MemoryMib};
use crate::mechanism::Mechanism;

/// How a GRES is marked in a tres string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum GresForm {
    /// `gres:`, up to Slurm 23.02.
    Colon,
    /// `gres/`, from Slurm 23.11.
    #[default]
    Slash,
}

impl GresForm {
    /// The mark itself.
    pub fn prefix(self) -> &'static str {
        match self {
            GresForm::Colon => "gres:",
            GresForm::Slash => "gres/",
        }
    }
}

/// What stands after `gpufrac`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A part of a GPU.
    Fraction(Fraction),
    /// At least that much memory.
    Memory(MemoryMib),
    /// An integer above one: units that were counted before.
    Units(u64),
}

/// One item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    /// As it stands in the list.
    pub text: &'a str,
    /// The mark it has.
    pub form: Option<GresForm>,
    /// What it asks for.
    pub kind: Kind<'a>,
}

/// What an item asks for, as far as gpufrac cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A fraction of a GPU.
    Gpufrac {
        /// The mechanism, if named.
        mechanism: Option<Mechanism>,
        /// How much.
        amount: Amount,
    },
    /// Slurm's own share of a GPU.
    Shard(Count<'a>),
    /// Whole devices.
    Gpu(Count<'a>),
    /// `none`: no GRES at all.
    None,
    /// Anything else.
    Other,
}

/// `[type:]count` as Slurm reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count<'a> {
    /// The type, if named.
    pub type_name: Option<&'a str>,
    /// The count; 1 where none is written. `None` when it is not a number that we can read.
    pub count: Option<u64>,
}
