//! HAMi-core's file of a job, which the job's programs share and its user can write: nothing in it is believed.
//!
//! HAMi-core reads its limit of compute (`sm_limit`) once, when a program starts. It asks the word `utilization_switch`
//! again and again: at 0 it limits nothing, at 1 it keeps to the limit. HAMi's own monitor writes that word as well. So
//! a limit can be lifted while a program runs, and not be raised.
//!
//! The places are those of `shared_region_t` in `src/multiprocess/multiprocess_memory_limit.h` of HAMi-core (8f3a89c,
//! 2026-06-30, version 1.2), as gcc lays it out for Linux with 64 bits; version 1.1 has the same. `recent_kernel`
//! beside it does not say whether a job works: HAMi-core writes it only while it limits.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// `MULTIPROCESS_SHARED_REGION_MAGIC_FLAG`: the region is initialised.
const MAGIC: i32 = 19_920_718;
/// Versions with this layout: major, and minor.
const MAJOR: u32 = 1;
const MINOR: std::ops::RangeInclusive<u32> = 1..=2;
/// `utilization_switch`, an int.
const SWITCH_AT: u64 = 2_008_900;
/// Of `shared_region_t`. HAMi-core makes the file longer by a byte.
const SIZE: u64 = 2_008_952;

/// The kind of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// It has the word now.
    Set,
    /// No program of the job has loaded the library yet; it begins with the limit.
    Absent,
    /// Another version of HAMi-core made it: its words may be elsewhere.
    Unknown {
        /// `major_version`.
        major: u32,
        /// `minor_version`.
        minor: u32,
    },
}

/// Lets HAMi-core keep to the job's limit, or lifts it. Nothing is mapped: the job can cut the file short at any time.
/// Errors: the file cannot be read or written.
pub fn limit(file: &File, limited: bool) -> io::Result<Region> {
    if file.metadata()?.len() < SIZE {
        return Ok(Region::Absent);
    }
    let word = |at| -> io::Result<[u8; 4]> {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, at)?;
        Ok(word)
    };
    if i32::from_ne_bytes(word(0)?) != MAGIC {
        return Ok(Region::Absent);
    }
    let (major, minor) = (u32::from_ne_bytes(word(4)?), u32::from_ne_bytes(word(8)?));
    if major != MAJOR || !MINOR.contains(&minor) {
        return Ok(Region::Unknown { major, minor });
    }
    let wanted = i32::from(limited).to_ne_bytes();
    if word(SWITCH_AT)? != wanted {
        file.write_all_at(&wanted, SWITCH_AT)?;
    }
    Ok(Region::Set)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    /// A file as HAMi-core begins it, every other byte telling its own place.
    fn region(major: u32, minor: u32) -> (File, Vec<u8>) {
        let mut bytes: Vec<u8> = (0..=SIZE).map(|at| (at % 251) as u8).collect();
        bytes[..4].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[4..8].copy_from_slice(&major.to_ne_bytes());
        bytes[8..12].copy_from_slice(&minor.to_ne_bytes());
        // After 12 header words, a semaphore, UUIDs, limits and 1024 slots of 1960 bytes: proc_num, then the switch.
        let at = 1856 + 1024 * 1960 + 4;
        bytes[at..at + 4].copy_from_slice(&1_i32.to_ne_bytes());
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        (file, bytes)
    }

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn the_switch_alone_is_written() {
        for minor in [1, 2] {
            let (file, mut bytes) = region(1, minor);
            assert_eq!(limit(&file, true).unwrap(), Region::Set);
            assert_eq!(content(&file), bytes);
            for limited in [false, true] {
                assert_eq!(limit(&file, limited).unwrap(), Region::Set);
                bytes[2_008_900] = u8::from(limited);
                assert!(content(&file) == bytes, "limited {limited}");
            }
        }
    }

    #[test]
    fn a_file_of_another_kind_stays_as_it_is() {
        for (major, minor) in [(0, 1), (1, 0), (1, 3), (2, 1), (u32::MAX, 2)] {
            let (file, bytes) = region(major, minor);
            let found = limit(&file, false).unwrap();
            assert_eq!(found, Region::Unknown { major, minor });
            assert!(content(&file) == bytes);
        }
        let (file, bytes) = region(1, 2);
        file.write_all_at(&[0], 0).unwrap();
        assert_eq!(limit(&file, false).unwrap(), Region::Absent);
        for length in [0, 4, 2_008_904, SIZE - 1] {
            file.write_all_at(&bytes, 0).unwrap();
            file.set_len(length).unwrap();
            assert_eq!(limit(&file, false).unwrap(), Region::Absent);
            assert_eq!(file.metadata().unwrap().len(), length);
        }
    }
}
