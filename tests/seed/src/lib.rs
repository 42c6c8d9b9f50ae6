//! Random choices of tests: new in each run, and repeatable with the seed that a failed run printed. And what a test
//! needs of its machine: a test that cannot run does not pass.
//!
//! ```
//! let mut dice = test_seed::Dice::new(test_seed::seed());
//! assert!(dice.below(6) < 6);
//! ```
#![forbid(unsafe_code)]

use std::collections::hash_map::RandomState;
use std::env;
use std::fmt::Display;
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::MetadataExt;

/// The environment variable that repeats a run: a seed as a decimal number.
pub const VARIABLE: &str = "GPUFRAC_TEST_SEED";

/// The variable of a developer whose machine lacks root's rights or a network: tests that need them are skipped.
const MAY_SKIP: &str = "GPUFRAC_MAY_SKIP";

/// Ends a test that has nothing to show on this machine or this Slurm. `cargo xtask test` finds these words in the
/// test's output and counts the test as skipped; for `cargo test` it failed.
///
/// # Panics
///
/// Always.
#[track_caller]
pub fn not_run(reason: impl Display) -> ! {
    panic!("not run: {reason}")
}

/// The value of what the machine of a developer has: a program that can be downloaded, a right.
///
/// # Panics
///
/// It is missing: the test failed, or was not run where GPUFRAC_MAY_SKIP is set.
#[track_caller]
pub fn needed<T>(got: Result<T, impl Display>) -> T {
    match got {
        Ok(value) => value,
        Err(reason) if env::var_os(MAY_SKIP).is_some() => not_run(reason),
        Err(reason) => panic!("{reason}; with {MAY_SKIP}=1 this test is skipped"),
    }
}

/// Lets a test continue only as root.
///
/// # Panics
///
/// As [`needed`].
#[track_caller]
pub fn needs_root() {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
    needed(is_root.then_some(()).ok_or("only root can run this test"));
}

/// Runs a part of a test on a thread whose system calls of these numbers (`libc::SYS_...`) fail with ENOSYS, as on a
/// kernel that lacks them. Child processes of the thread lack them too.
///
/// # Panics
/// The part panicked, or the kernel has no seccomp(2).
pub fn without(calls: &[i64], part: impl FnOnce() + Send) {
    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
    let missing = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    let arch = env::consts::ARCH.try_into().expect("a known processor");
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, missing, arch);
    let filter: BpfProgram = filter
        .and_then(TryInto::try_into)
        .expect("a filter of numbers");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            seccompiler::apply_filter(&filter).expect("seccomp");
            part();
        });
    });
}

/// A new seed, or the one in [`VARIABLE`]. Prints `GPUFRAC_TEST_SEED=<seed>`, which cargo shows if the test fails.
///
/// # Panics
///
/// The variable is set and is not a number of 64 bits.
pub fn seed() -> u64 {
    let seed = chosen(env::var(VARIABLE).ok().as_deref());
    println!("{VARIABLE}={seed}");
    seed
}

fn chosen(given: Option<&str>) -> u64 {
    match given {
        // The keys of std's hash maps are random numbers of the system.
        None => RandomState::new().build_hasher().finish(),
        Some(text) => text.parse().unwrap_or_else(|error| {
            panic!("reading {VARIABLE}={text} failed: {error}; set a decimal number below 2^64")
        }),
    }
}

/// A small random number generator (xorshift64): a seed gives the same numbers on every machine.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// A generator with this seed.
    pub fn new(seed: u64) -> Dice {
        // The first numbers of xorshift are small where its seed is; this is the finalizer of SplitMix64.
        let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        // Xorshift must not start with zero.
        Dice((bits ^ (bits >> 31)).max(1))
    }

    /// A number below `sides`, which is at least 1.
    pub fn throw(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    /// As [`Dice::throw`], for an index.
    pub fn below(&mut self, limit: usize) -> usize {
        self.throw(limit as u64) as usize
    }

    /// True once in `count` calls on average.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_fresh_unless_given() {
        assert_ne!(chosen(None), chosen(None));
        assert_eq!(chosen(Some("18446744073709551615")), u64::MAX);
    }

    #[test]
    #[should_panic(expected = "reading GPUFRAC_TEST_SEED=0x7 failed")]
    fn a_seed_that_is_no_number_is_refused() {
        chosen(Some("0x7"));
    }

    #[test]
    #[should_panic(expected = "not run: no network")]
    fn a_test_that_is_not_run_says_so() {
        not_run("no network");
    }

    #[test]
    #[should_panic(expected = "no network")]
    fn a_test_fails_without_what_it_needs() {
        assert_eq!(needed(Ok::<_, &str>(7)), 7);
        needed(Err::<(), _>("no network"));
    }

    #[test]
    fn a_seed_repeats_its_numbers_and_no_other() {
        let numbers = |seed| {
            let mut dice = Dice::new(seed);
            (0..100).map(|_| dice.below(6)).collect::<Vec<_>>()
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        for seed in [0, 7, u64::MAX] {
            let seen = numbers(seed);
            for side in 0..6 {
                assert!(seen.contains(&side), "{side} with seed {seed}");
            }
        }
    }
}
