//! Compares gpufrac's reading of GRES texts with that of Slurm's own parser.
//!
//! gpufrac decides about random requests (`texts`, `gpufrac`), and the functions of Slurm's library that slurmctld
//! calls read them (`slurm`, `reader.c`). For each request gpufrac refuses, or Slurm refuses, or both count the same
//! of `gpufrac`, `shard` and `gpu` (`judge`). No daemon runs.
#![forbid(unsafe_code)]

mod figures;
mod gpufrac;
mod judge;
mod shrink;
mod slurm;
mod texts;

use std::collections::BTreeSet;

use gpufrac_lab::Slurm;

pub use figures::{Difference, Figures};
use gpufrac::Gpufrac;
use judge::Finding;
use slurm::Reader;
pub use slurm::ReaderError;
use texts::Writer;

/// Requests for one process of the reader, because Slurm's parser may leak memory.
const BATCH: u64 = 20_000;

/// The most kinds of differences that are shortened, which takes a second each.
const SHRUNK: usize = 40;

/// Compares `count` random requests, and the known attacks, on one Slurm. `tell` gets the progress.
/// Errors: Slurm's library cannot be called.
pub fn compare(
    slurm: &Slurm,
    count: u64,
    seed: u64,
    mut tell: impl FnMut(&Figures),
) -> Result<Figures, ReaderError> {
    let reader = Reader::build(slurm)?;
    let gpufrac = Gpufrac::new(slurm.since(23, 11));
    let mut writer = Writer::new(seed, slurm.since(23, 11));
    let mut figures = Figures::default();
    let mut kinds = BTreeSet::new();
    let mut known = writer.known();
    while figures.requests < count {
        let random = BATCH.min(count - figures.requests);
        let mut requests = std::mem::take(&mut known);
        requests.extend((0..random).map(|_| writer.request()));
        for (request, finding) in judge::all(&gpufrac, &reader, &requests)? {
            figures.count(&finding);
            match finding {
                Finding::Differs(why) if kinds.len() < SHRUNK && kinds.insert(kind(&why)) => {
                    let (request, why) = shrink::shrink(&gpufrac, &reader, request, why)?;
                    figures.show(&request, why);
                }
                Finding::CrashRefused(words) => figures.show_crash(&request, words),
                _ => {}
            }
        }
        tell(&figures);
    }
    Ok(figures)
}

/// The reason of a difference without the numbers and the words of the text.
fn kind(why: &str) -> String {
    let own = why.split('\'').step_by(2);
    own.flat_map(str::chars)
        .filter(|letter| !letter.is_ascii_digit())
        .collect()
}
