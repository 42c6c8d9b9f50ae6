//! What a GPU model offers: MIG profiles, where their instances can stand, and what each holds.
//!
//! A node asks NVML; the controller has no GPU and uses [`Geometry::builtin`] or a table of the
//! configuration. [`Geometry::differences`] is how a node finds out that the two do not agree.

use serde::{Deserialize, Serialize};

use crate::fraction::MemoryMib;

mod builtin;
mod product;
#[cfg(test)]
mod tests;

/// Where an instance stands: `size` memory slices from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// First memory slice.
    pub start: u8,
    /// Number of memory slices.
    pub size: u8,
}

impl Placement {
    /// The memory slice after the last.
    pub fn end(self) -> u32 {
        u32::from(self.start) + u32::from(self.size)
    }

    /// Whether two placements share a memory slice.
    pub fn overlaps(self, other: Placement) -> bool {
        u32::from(self.start) < other.end() && u32::from(other.start) < self.end()
    }
}

/// One MIG profile of a GPU model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// NVML's profile id: the number that `nvidia-smi mig -lgip` prints, e.g. 19.
    pub id: u32,
    /// The number of NVML's `NVML_GPU_INSTANCE_PROFILE_*`, e.g. 0 for `1_SLICE`.
    pub slice_enum: u32,
    /// NVIDIA's name without `MIG`, e.g. `1g.10gb`.
    pub name: String,
    /// Compute slices that an instance uses.
    pub compute_slices: u8,
    /// Streaming multiprocessors of an instance.
    pub multiprocessors: u32,
    /// Memory of an instance; in configuration `memory = MiB`.
    pub memory: MemoryMib,
    /// How many instances of this profile the GPU holds at most.
    pub max_instances: u32,
    /// Every position NVML allows for it.
    pub placements: Vec<Placement>,
}

/// `NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2`: one compute slice with the memory of two.
const SLICE_ENUM_DOUBLE_MEMORY: u32 = 9;

impl Profile {
    /// Whether slices may be made of it: compute and memory only. The profiles with media
    /// engines or graphics (`+me`, `+gfx`, `-me`, `+me.all`) are not, as few of them exist.
    pub fn is_plain(&self) -> bool {
        // 0..=6 are 1_SLICE to 8_SLICE and 6_SLICE; 7 and 8 are +me, from 10 on gfx and media.
        self.slice_enum <= 6 || self.slice_enum == SLICE_ENUM_DOUBLE_MEMORY
    }

    /// Memory slices of an instance; 0 when NVML reported no position.
    pub fn memory_slices(&self) -> u8 {
        self.placements.first().map_or(0, |p| p.size)
    }
}

/// A GPU model as MIG divides it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// The name of the model; for a table of the configuration the table's name.
    #[serde(default)]
    pub model: String,
    /// Memory slices of the GPU: the size of the largest placement.
    pub memory_slices: u8,
    /// Compute slices of the GPU.
    pub compute_slices: u8,
    /// All profiles.
    pub profiles: Vec<Profile>,
}

impl Geometry {
    /// A model of which no more is known than its name.
    pub fn unsliced(model: &str) -> Geometry {
        Geometry {
            model: model.to_owned(),
            memory_slices: 0,
            compute_slices: 0,
            profiles: Vec::new(),
        }
    }

    /// Memory of the largest instance, next to all that the GPU has.
    pub fn memory(&self) -> Option<MemoryMib> {
        self.profiles.iter().map(|profile| profile.memory).max()
    }

    /// The profile with NVML's id `id`.
    pub fn profile(&self, id: u32) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// Where a GPU that NVML reports does not match this table, one line each; empty when slices
    /// can be carved on it as planned. Only profiles of this table that a layout can use matter,
    /// so a newer driver may offer more; memory may differ by 10 %, as drivers and ECC change it.
    pub fn differences(&self, reported: &Geometry) -> Vec<String> {
        let mut found = Vec::new();
        let mut number = |what: &str, expected: u64, real: u64| {
            if expected != real {
                found.push(format!("{what}: expected {expected}, the GPU has {real}"));
            }
        };
        number(
            "memory slices",
            self.memory_slices.into(),
            reported.memory_slices.into(),
        );
        number(
            "compute slices",
            self.compute_slices.into(),
            reported.compute_slices.into(),
        );
        for profile in self.profiles.iter().filter(|p| p.is_plain()) {
            match reported.profile(profile.id) {
                Some(real) => profile_differences(profile, real, &mut found),
                None => found.push(format!(
                    "profile {} ({}): the GPU does not have it",
                    profile.id, profile.name
                )),
            }
        }
        found
    }
}

fn profile_differences(expected: &Profile, real: &Profile, found: &mut Vec<String>) {
    let mut differs = |what: &str, expected_text: String, real_text: String| {
        found.push(format!(
            "profile {} ({}): {what}: expected {expected_text}, the GPU has {real_text}",
            expected.id, expected.name
        ));
    };
    if expected.slice_enum != real.slice_enum {
        differs(
            "NVML profile",
            expected.slice_enum.to_string(),
            real.slice_enum.to_string(),
        );
    }
    if expected.compute_slices != real.compute_slices {
        differs(
            "compute slices",
            expected.compute_slices.to_string(),
            real.compute_slices.to_string(),
        );
    }
    if expected.max_instances != real.max_instances {
        differs(
            "instances at most",
            expected.max_instances.to_string(),
            real.max_instances.to_string(),
        );
    }
    let sorted = |profile: &Profile| {
        let mut placements = profile.placements.clone();
        placements.sort_unstable();
        placements
    };
    let show = |placements: &[Placement]| {
        let list: Vec<String> = placements
            .iter()
            .map(|p| format!("{}:{}", p.start, p.size))
            .collect();
        format!("{{{}}}", list.join(","))
    };
    let (wanted, there) = (sorted(expected), sorted(real));
    if wanted != there {
        differs("positions", show(&wanted), show(&there));
    }
    if !real.memory.is_about(expected.memory) {
        differs(
            "memory",
            expected.memory.to_string(),
            real.memory.to_string(),
        );
    }
}
