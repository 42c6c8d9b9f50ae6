//! A short run of all targets: their seeds, and random changes of them.
//!
//! A change that fails is printed; it belongs in the target's folder of seeds.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use fuzz_targets::{TARGETS, Target};
use test_seed::{Dice, seed};

/// The number of changed inputs for each target.
const CHANGES: usize = 4000;
/// The longest input in bytes; longer ones take more time and find no more.
const LONGEST: usize = 4096;

fn run(target: &Target, input: &[u8]) -> Result<(), String> {
    let run = || (target.run)(input);
    catch_unwind(AssertUnwindSafe(run))
        .map_err(|_| format!("{}: {}", target.name, input.escape_ascii()))
}

/// A seed with some changes: bytes, words, and parts of it or of another seed.
fn changed(target: &Target, seeds: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut input = seeds[dice.below(seeds.len())].clone();
    for _ in 0..=dice.below(4) {
        let place = dice.below(input.len() + 1);
        let end = place + dice.below((input.len() - place).min(40) + 1);
        let with: Vec<u8> = match dice.below(6) {
            0 => vec![dice.below(256) as u8],
            1 => target.words[dice.below(target.words.len())].into(),
            2 => Vec::new(),
            3 => input[place..end].repeat(1 + dice.below(4)),
            4 => {
                let other = &seeds[dice.below(seeds.len())];
                let from = dice.below(other.len() + 1);
                other[from..other.len().min(from + 80)].to_vec()
            }
            _ => dice.throw(u64::MAX).to_string().into_bytes(),
        };
        let until = if dice.one_in(2) { place } else { end };
        input.splice(place..until, with);
    }
    input.truncate(LONGEST);
    input
}

#[test]
fn seeds_and_changes_of_them() {
    let chosen = seed();
    let mut failed = Vec::new();
    for (number, target) in (0..).zip(&TARGETS) {
        let seeds = target.seeds();
        assert!(seeds.len() >= 3, "{} has too few seeds", target.name);
        for (path, bytes) in &seeds {
            let outcome = run(target, bytes);
            failed.extend(outcome.map_err(|_| path.display().to_string()).err());
        }
        let seeds: Vec<Vec<u8>> = seeds.into_iter().map(|(_, bytes)| bytes).collect();
        let mut dice = Dice::new(chosen.wrapping_add(number));
        let changes = (0..CHANGES).map(|_| changed(target, &seeds, &mut dice));
        failed.extend(
            changes
                .filter_map(|input| run(target, &input).err())
                .take(3),
        );
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Without valid seeds the readers would not be reached at all.
#[test]
fn seeds_are_read() {
    use gpufrac_core::config::Config;
    use gpufrac_core::entry::Entry;
    use gpufrac_core::hostlist::Hostlist;
    use gpufrac_core::lease::Lease;

    let texts = |name| {
        let target = fuzz_targets::target(name).unwrap();
        let seeds = target.seeds().into_iter();
        seeds.filter_map(|(_, bytes)| String::from_utf8(bytes).ok())
    };
    assert!(texts("config").any(|text| Config::parse(&text, "seed").is_ok()));
    assert!(texts("hostlist").any(|text| Hostlist::parse(&text).is_ok()));
    assert!(texts("lease").any(|text| Lease::parse(&text).is_ok()));
    assert!(texts("entry").any(|text| text.parse::<Entry>().is_ok()));
}
