//! Type and count of an item, if all versions of Slurm read them in the same way.
//!
//! Sources: `_get_next_gres` and `_is_valid_number` in src/common/gres.c of 22.05, `slurm_get_next_tres` in
//! src/common/slurm_protocol_defs.c of 24.11, `suffix_mult` in src/common/read_config.c.

use super::item::GresForm;
use super::value::{self, is_type, is_type_alone};

/// Type and count of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted<'a> {
    pub(super) type_name: Option<&'a str>,
    pub(super) count: u64,
}

/// Reads `[:TYPE][:COUNT]`, the text behind the name. None if versions of Slurm differ, or if a word could be either.
pub(super) fn read(rest: &str, form: GresForm) -> Option<Counted<'_>> {
    // From 23.11 on a `=` may stand before the count.
    let (rest, last) = match rest.split_once('=') {
        Some((head, last)) if form == GresForm::Slash => (head, Some(last)),
        Some(_) => return None,
        None => (rest, None),
    };
    let words: Vec<&str> = match rest {
        "" => Vec::new(),
        rest => rest.strip_prefix(':')?.split(':').collect(),
    };
    let (type_name, count) = match (words.as_slice(), last) {
        ([], None) => (None, 1),
        ([], Some(last)) => (None, number_of(last)?),
        ([word], None) => match number_of(word) {
            Some(count) => (None, count),
            None if is_type_alone(word) => (Some(*word), 1),
            None => return None,
        },
        ([type_name], Some(last)) => (Some(*type_name), number_of(last)?),
        ([type_name, last], None) => (Some(*type_name), number_of(last)?),
        _ => return None,
    };
    let is_right = type_name.is_none_or(is_type);
    is_right.then_some(Counted { type_name, count })
}

/// The number by which Slurm compares names of Types (`gres_build_id` in src/common/gres.c): each byte is added to
/// the next of four bytes in turn. For ASCII names only, because Slurm's chars are signed.
pub(super) fn number(name: &str) -> u32 {
    let bytes = name.bytes().enumerate();
    bytes.fold(0, |sum: u32, (place, byte)| {
        sum.wrapping_add(u32::from(byte) << (8 * (place % 4)))
    })
}

/// A number with one of Slurm's suffixes. Slurm gives the two greatest values another meaning (NO_VAL64, INFINITE64).
fn number_of(text: &str) -> Option<u64> {
    value::number_of(text).filter(|count| *count < u64::MAX - 1)
}
