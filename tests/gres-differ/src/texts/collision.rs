//! Types with different names that Slurm does not distinguish, because it compares a sum of their bytes
//! (`gres_build_id`).

use test_seed::Dice;

/// The characters that gpufrac accepts in a Type.
const PLAIN: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

/// The number by which Slurm compares a Type; 0 is that of no Type.
pub(crate) fn type_id(name: &[u8]) -> u32 {
    let bytes = name.iter().enumerate();
    // Slurm's `char` is signed.
    let value = |byte: u8| i32::from(byte.cast_signed()).cast_unsigned();
    bytes.fold(0, |id: u32, (place, byte)| {
        id.wrapping_add(value(*byte) << (8 * (place % 4)))
    })
}

/// Another name with the same number.
pub(super) fn alike(dice: &mut Dice, name: &str) -> String {
    loop {
        let length = 5 + dice.below(13);
        let mut other: Vec<u8> = (0..length)
            .map(|_| PLAIN[dice.below(PLAIN.len())])
            .collect();
        // The last four characters correct the number: each affects one byte of it.
        let first = length - 4;
        other.truncate(first);
        let missing = type_id(name.as_bytes()).wrapping_sub(type_id(&other));
        let bytes = missing.to_le_bytes();
        other.extend((first..length).map(|place| bytes[place % 4]));
        if other[first..].iter().all(|byte| PLAIN.contains(byte)) && !other[0].is_ascii_digit() {
            return other.into_iter().map(char::from).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_names_have_the_same_number() {
        assert_eq!(type_id(b"half"), u32::from_le_bytes(*b"half"));
        assert_eq!(type_id(b"x063x063x"), type_id(b"half"));
        assert_eq!(type_id(b"VUUUVUUUTUUU"), 0);
        assert_eq!(type_id(b"\xff"), u32::MAX);
        let mut dice = Dice::new(7);
        for name in ["half", "whole", "mps", "timeslice"] {
            let other = alike(&mut dice, name);
            assert_ne!(other, name);
            assert_eq!(type_id(other.as_bytes()), type_id(name.as_bytes()));
        }
    }
}
