//! The MIG profiles of a GPU model: positions of their instances, memory, compute.
//!
//! A node asks NVML. The controller has no GPU, and uses [`Geometry::builtin`] or a table of the configuration. A
//! node compares both by [`Geometry::differences`].

use serde::{Deserialize, Serialize};

use crate::fraction::MemoryMib;

mod builtin;
mod evidence;
mod product;
#[cfg(test)]
mod tests;

pub use evidence::Evidence;

/// The position of an instance: `size` memory slices from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    pub start: u8,
    pub size: u8,
}

impl Placement {
    /// The memory slice after the last.
    pub fn end(self) -> u32 {
        u32::from(self.start) + u32::from(self.size)
    }

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
    /// The number in NVML's `NVML_GPU_INSTANCE_PROFILE_*` (nvml.h), e.g. 0 for `1_SLICE`.
    pub slice_enum: u32,
    /// NVIDIA's name without `MIG`, e.g. `1g.10gb`.
    pub name: String,
    pub compute_slices: u8,
    pub multiprocessors: u32,
    /// Memory of an instance in MiB; `memory` in the configuration.
    pub memory: MemoryMib,
    /// The most instances of this profile on a GPU.
    pub max_instances: u32,
    /// All positions that NVML allows.
    pub placements: Vec<Placement>,
}

/// `NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2` of nvml.h: one compute slice with the memory of two.
const SLICE_ENUM_DOUBLE_MEMORY: u32 = 9;

impl Profile {
    /// Whether slices may be made of the profile: compute and memory only. Profiles with media engines or graphics
    /// (`+me`, `+gfx`, `-me`, `+me.all`) are left out, because a GPU has only few such instances.
    pub fn is_plain(&self) -> bool {
        // Numbers of nvml.h: 0..=6 are 1_SLICE to 8_SLICE and 6_SLICE; 7 and 8 are +me; from 10 on graphics and media.
        self.slice_enum <= 6 || self.slice_enum == SLICE_ENUM_DOUBLE_MEMORY
    }

    /// Memory slices of an instance; 0 if NVML reported no position.
    pub fn memory_slices(&self) -> u8 {
        self.placements.first().map_or(0, |p| p.size)
    }
}

/// The MIG tables of a GPU model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// The name of the model, or of the table in the configuration.
    #[serde(default)]
    pub model: String,
    /// Memory slices of the GPU: the size of the largest placement.
    pub memory_slices: u8,
    pub compute_slices: u8,
    pub profiles: Vec<Profile>,
}

impl Geometry {
    pub fn unsliced(model: &str) -> Geometry {
        Geometry {
            model: model.to_owned(),
            memory_slices: 0,
            compute_slices: 0,
            profiles: Vec::new(),
        }
    }

    /// Memory of the largest instance, which is nearly all memory of the GPU.
    pub fn memory(&self) -> Option<MemoryMib> {
        self.profiles.iter().map(|profile| profile.memory).max()
    }

    pub fn profile(&self, id: u32) -> Option<&Profile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// The differences between this table and the one that NVML reports, one line each; empty if slices can be made
    /// as planned. Only plain profiles of this table are compared, so that a newer driver may offer more profiles.
    /// Memory may differ by 10 %, because drivers and ECC change it.
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
