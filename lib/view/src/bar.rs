//! A GPU as a bar of characters.

use crate::cluster::GpuState;
use crate::{Place, Slice};

/// Columns of a bar.
pub const COLUMNS: usize = 8;
/// Seconds after which a slice without activity counts as idle in a bar.
pub const IDLE: u64 = 600;

/// The meaning of the characters, for people.
pub const LEGEND: &str = "# = in use, - ~ idle for ten minutes, + count of Slurm, c being made or removed, k kept for its user, ? no lease, x fault, . free";

/// A bar: each slice with the columns of its part of the GPU; neighbours have different characters.
pub fn bar(state: &GpuState) -> String {
    let gpu = &state.gpu;
    if gpu.fault.is_some() {
        return "x".repeat(COLUMNS);
    }
    let mut bar = vec!['.'; COLUMNS];
    if !state.counted.is_empty() {
        count(&mut bar, state);
    } else if gpu.memory_slices > 0 && gpu.mechanism == "mig" {
        let mut turn = 0;
        for (at, slice) in gpu.slices.iter().enumerate() {
            let Some(place) = slice.place else { continue };
            turn = match at {
                0 => 0,
                _ => turn + 1,
            };
            fill(
                &mut bar,
                columns(place, gpu.memory_slices),
                sign(slice, turn),
            );
        }
        for place in &gpu.unleased {
            fill(&mut bar, columns(*place, gpu.memory_slices), '?');
        }
    } else {
        shares(&mut bar, &gpu.slices);
    }
    bar.into_iter().collect()
}

/// Slices without a position, one after the other.
fn shares(bar: &mut [char], slices: &[Slice]) {
    let (mut taken, mut turn) = (0, 0);
    for slice in slices {
        let from = part(taken);
        taken += slice.units;
        // A share that is narrower than a column is not lost.
        let until = part(taken).max(from + 1);
        fill(bar, from..until, sign(slice, turn));
        turn += 1;
    }
}

fn count(bar: &mut [char], state: &GpuState) {
    let all: u32 = state.counted.iter().map(|device| device.units).sum();
    let mut before = 0;
    for device in &state.counted {
        let from = before as usize * COLUMNS / all.max(1) as usize;
        let taken = (device.taken as usize * COLUMNS).div_ceil(all.max(1) as usize);
        fill(bar, from..from + taken, '+');
        before += device.units;
    }
}

fn part(units: u32) -> usize {
    units as usize * COLUMNS / 100
}

fn columns(place: Place, slices: u8) -> std::ops::Range<usize> {
    let at = |slice: u32| slice as usize * COLUMNS / usize::from(slices.max(1));
    at(place.start.into())..at(place.end())
}

fn fill(bar: &mut [char], columns: std::ops::Range<usize>, sign: char) {
    for column in columns {
        if let Some(cell) = bar.get_mut(column) {
            *cell = sign;
        }
    }
}

fn sign(slice: &Slice, turn: usize) -> char {
    let is_idle = slice.usage.as_ref().is_some_and(|usage| usage.idle >= IDLE);
    match (slice.state.as_str(), is_idle, turn % 2) {
        ("kept", ..) => 'k',
        ("preparing" | "releasing", ..) => 'c',
        (_, false, 0) => '#',
        (_, false, _) => '=',
        (_, true, 0) => '-',
        (_, true, _) => '~',
    }
}
