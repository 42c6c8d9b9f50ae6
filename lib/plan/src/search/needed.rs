//! How many GPUs a way of lending needs, for waits that are no longer than today's.

use gpufrac_core::layout::LayoutError;

use super::replay::{Drawn, Replay};
use crate::candidate::Candidate;
use crate::cluster::Cluster;
use crate::sums::Sums;

/// GPUs, with the band of resampled histories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needed {
    /// On the history itself.
    pub gpus: u32,
    /// The least of the resampled histories.
    pub low: u32,
    /// The most.
    pub high: u32,
}

/// Resampled histories of which the GPUs are computed: each takes several plays.
const SAMPLES: usize = 3;

/// Of larger histories so many jobs that follow each other are played, without a band: with too few GPUs a play takes
/// long.
const MOST_JOBS: usize = 10_000;

/// A mean wait is the same if it grows by less: seconds.
const SAME: f64 = 1.0;

/// For the history and the first resampled ones: each with its figures of today.
pub(super) fn needed(
    replay: &Replay<'_>,
    candidate: Candidate,
    cluster: &Cluster,
    samples: &[(Vec<Drawn>, Sums)],
) -> Result<Needed, LayoutError> {
    let mut all = Vec::new();
    for (sample, today) in samples.iter().take(1 + SAMPLES) {
        if sample.len() > MOST_JOBS {
            let first = (sample.len() - MOST_JOBS) / 2;
            let middle = &sample[first..first + MOST_JOBS];
            let today = replay.play(Candidate::TODAY, middle, cluster)?.sums;
            all.push(least(replay, candidate, cluster, middle, &today)?);
            break;
        }
        all.push(least(replay, candidate, cluster, sample, today)?);
    }
    Ok(Needed {
        gpus: all.first().copied().unwrap_or(0),
        low: all.iter().copied().min().unwrap_or(0),
        high: all.iter().copied().max().unwrap_or(0),
    })
}

/// The fewest GPUs, in steps of nodes. All of them where jobs wait longer with the candidate.
fn least(
    replay: &Replay<'_>,
    candidate: Candidate,
    cluster: &Cluster,
    sample: &[Drawn],
    today: &Sums,
) -> Result<u32, LayoutError> {
    let nodes = cluster.nodes.len();
    let part = |count: usize| count as f64 / nodes.max(1) as f64;
    // So many nodes are too few, and so many are enough.
    let (mut few, mut enough) = (0, nodes);
    while enough - few > 1 {
        let middle = few + (enough - few) / 2;
        let sums = replay
            .play(candidate, sample, &cluster.smaller(part(middle)))?
            .sums;
        if sums.wait_mean <= today.wait_mean + SAME && sums.refused <= today.refused {
            enough = middle
        } else {
            few = middle
        }
    }
    Ok(cluster.smaller(part(enough)).gpus())
}
