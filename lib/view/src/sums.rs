//! How slices are used, and their sums.

use std::ops::Range;

use gpufrac_page::words;
use serde::Serialize;

use crate::{GpuStatus, NodeStatus, Slice};

/// Sums of the slices of nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    pub gpus: u32,
    /// GPUs that cannot be used.
    pub faults: u32,
    /// Units of the slices of jobs; 100 are a GPU.
    pub used_units: u32,
    /// Units of GPUs that can be used and that no job holds.
    pub free_units: u32,
    pub slices: u32,
    /// Slices that were idle for a minute or longer.
    pub idle: u32,
}

impl Sums {
    pub fn of<'n>(nodes: impl IntoIterator<Item = &'n NodeStatus>) -> Sums {
        let mut sums = Sums::default();
        for gpu in nodes.into_iter().flat_map(|node| &node.gpus) {
            sums.gpus += 1;
            sums.faults += u32::from(gpu.fault.is_some());
            let mut used = 0;
            for slice in gpu.slices.iter().filter(|slice| !slice.is_kept()) {
                used += slice.units;
                sums.slices += 1;
                sums.idle += u32::from(matches!(Use::of(slice), Use::Idle | Use::Warned));
            }
            sums.used_units += used;
            if gpu.fault.is_none() {
                sums.free_units += 100_u32.saturating_sub(used);
            }
        }
        sums
    }

    /// `8 GPUs, 2.5 used, 5.5 free, 1 of 6 slices idle`.
    pub fn text(&self) -> String {
        let name = if self.gpus == 1 { "GPU" } else { "GPUs" };
        format!(
            "{} {name}, {} used, {} free, {} of {} slices idle",
            self.gpus,
            words::gpus(self.used_units),
            words::gpus(self.free_units),
            self.idle,
            self.slices
        )
    }
}

/// How a slice is used, as colours show it. Of several slices of a job the last in this order is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    Busy,
    Unknown,
    /// The slice is being made, removed or kept.
    Changing,
    Idle,
    Warned,
}

impl Use {
    /// In the order in which they are explained.
    pub const ALL: [Use; 5] = [
        Use::Busy,
        Use::Idle,
        Use::Warned,
        Use::Unknown,
        Use::Changing,
    ];

    pub fn of(slice: &Slice) -> Use {
        if slice.state != "active" {
            return Use::Changing;
        }
        match &slice.usage {
            None => Use::Unknown,
            Some(usage) if usage.warnings > 0 || usage.ends.is_some() => Use::Warned,
            Some(usage) if usage.idle >= 60 => Use::Idle,
            Some(_) => Use::Busy,
        }
    }

    /// The colour in the style of pages.
    pub fn colour(self) -> &'static str {
        match self {
            Use::Busy => "busy",
            Use::Idle => "idle",
            Use::Warned => "warned",
            Use::Unknown => "unknown",
            Use::Changing => "changing",
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            Use::Busy => "in use",
            Use::Idle => "idle for a minute or longer",
            Use::Warned => "idle, user warned",
            Use::Unknown => "not measured",
            Use::Changing => "starts, ends or is kept",
        }
    }
}

impl GpuStatus {
    /// Each slice with its part of the GPU, and the whole: memory slices, or units side by side where slices have no
    /// position, or share one.
    pub fn spans(&self) -> impl Iterator<Item = (&Slice, Range<u32>, u32)> {
        let (mut units, mut at) = (0, None);
        self.slices.iter().map(move |slice| {
            let place = slice.place.filter(|_| self.memory_slices > 0);
            let whole = u32::from(self.memory_slices);
            if let Some(place) = place.filter(|_| self.mechanism != "mig+mps") {
                return (slice, place.start.into()..place.end(), whole);
            }
            if place.is_some() && place != at {
                at = place;
                units = place.map_or(0, |place| 100 * u32::from(place.start) / whole);
            }
            units += slice.units;
            (slice, units - slice.units..units, 100)
        })
    }
}
