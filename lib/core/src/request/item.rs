//! The items of a tres string.

use crate::fraction::{Fraction, MemoryMib};
use crate::mechanism::Mechanism;

/// The mark before a GRES in a tres string.
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

/// The amount behind `gpufrac`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A part of a GPU.
    Fraction(Fraction),
    /// A part of a GPU, as a whole number behind `percent`.
    Percent(Fraction),
    /// At least this much memory.
    Memory(MemoryMib),
    /// An integer above one: whole GPUs, or units, which gpufrac wrote earlier.
    Integer(u64),
}

/// One item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item<'a> {
    pub text: &'a str,
    /// The mark of the item; None without a mark.
    pub form: Option<GresForm>,
    pub kind: Kind<'a>,
}

/// The meaning of an item, as far as gpufrac needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// A fraction of a GPU.
    Gpufrac {
        mechanism: Option<Mechanism>,
        amount: Amount,
    },
    /// `shard`, Slurm's own share of a GPU.
    Shard(Count<'a>),
    /// `mps`, Slurm's own percentage of a GPU.
    Mps(Count<'a>),
    /// `gpu`, whole devices.
    Gpu(Count<'a>),
    /// `none`: no GRES.
    None,
    /// Any other item.
    Other,
}

/// `[type:]count` as Slurm reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count<'a> {
    pub type_name: Option<&'a str>,
    /// The count; 1 if none is written. None if the text is not a number that gpufrac can read.
    pub count: Option<u64>,
}
