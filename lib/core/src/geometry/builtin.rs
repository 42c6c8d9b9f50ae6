//! The models that gpufrac knows by name.
//!
//! Ids, names, counts and SMs as `nvidia-smi mig -lgip` printed them on real boards, positions
//! as `-lgipp` did (A100, A30, H100, RTX PRO 6000). From GH200 with 144 GB to GB300 no `-lgipp`
//! capture is public; profile ids are those of H100 and so are the positions here. `evidence` says
//! of each row what it rests on. A node compares all of it with its GPU before it carves anything.

use super::{Geometry, Placement, Profile};
use crate::fraction::MemoryMib;

/// In the order of the manual page.
const NAMES: &[&str] = &[
    "A30-24",
    "A100-40",
    "A100-80",
    "H100-80",
    "H100-94",
    "H100-96",
    "GH200-144",
    "H200-141",
    "B200-180",
    "GB200-186",
    "B300-269",
    "GB300-278",
    "RTX-PRO-6000-96",
];

/// Models without MIG, for mechanisms without MIG: the memory that nvidia-smi prints, in MiB, with ECC if the model
/// has it. A node compares it with its GPUs.
const WITHOUT_MIG: &[(&str, u64)] = &[
    ("A10-24", 23_028),
    ("A40-48", 46_068),
    ("L4-24", 23_034),
    ("L40-48", 46_068),
    ("L40S-48", 46_068),
    ("RTX-6000-ADA-48", 46_068),
    ("T4-16", 15_360),
    ("V100-16", 16_384),
    ("V100-32", 32_768),
];

/// Models before Hopper: to change MIG mode takes a reset of the GPU (MIG User Guide, "Enable MIG Mode").
const RESET_FOR_MIG: [&str; 3] = ["A30-24", "A100-40", "A100-80"];

/// One row: profile name, memory in hundredths of GiB as `-lgip` prints it, multiprocessors.
type PrintedProfile = (&'static str, u64, u32);

impl Geometry {
    /// The table of a model that gpufrac knows by name; see [`Geometry::builtin_names`].
    ///
    /// Memory is what `nvidia-smi mig -lgip` printed on real boards, the lowest of several known figures. Rows that
    /// were not captured are estimates: [`Geometry::evidence_of_figures`] says which.
    pub fn builtin(name: &str) -> Option<Geometry> {
        geometry(name)
    }

    pub fn builtin_names() -> &'static [&'static str] {
        NAMES
    }

    /// Whether the model is known to need a reset for a change of MIG mode. Of a model that the configuration describes
    /// only the driver knows.
    pub fn needs_reset_for_mig(&self) -> bool {
        RESET_FOR_MIG.contains(&self.model.as_str())
    }

    /// The geometry of a known model without MIG (no slices, no profiles), with its memory.
    pub fn without_mig(name: &str) -> Option<(Geometry, MemoryMib)> {
        let (model, memory) = WITHOUT_MIG.iter().find(|(own, _)| *own == name)?;
        Some((Geometry::unsliced(model), MemoryMib(*memory)))
    }

    pub fn names_without_mig() -> impl Iterator<Item = &'static str> {
        WITHOUT_MIG.iter().map(|(name, _)| *name)
    }
}

fn geometry(name: &str) -> Option<Geometry> {
    let mut geometry = match name {
        "A30-24" => a30(),
        "A100-40" => seven([
            ("1g.5gb", 475, 14),
            ("1g.10gb", 962, 14),
            ("2g.10gb", 962, 28),
            ("3g.20gb", 1950, 42),
            ("4g.20gb", 1950, 56),
            ("7g.40gb", 3925, 98),
        ]),
        "A100-80" => seven([
            ("1g.10gb", 950, 14),
            ("1g.20gb", 1950, 14),
            ("2g.20gb", 1950, 28),
            ("3g.40gb", 3925, 42),
            ("4g.40gb", 3925, 56),
            ("7g.80gb", 7900, 98),
        ]),
        "H100-80" => seven([
            ("1g.10gb", 975, 16),
            ("1g.20gb", 1962, 26),
            ("2g.20gb", 1962, 32),
            ("3g.40gb", 3950, 60),
            ("4g.40gb", 3950, 64),
            ("7g.80gb", 7925, 132),
        ]),
        "H100-94" => seven([
            ("1g.12gb", 1062, 16),
            ("1g.24gb", 2150, 26),
            ("2g.24gb", 2150, 32),
            ("3g.47gb", 4612, 60),
            ("4g.47gb", 4612, 64),
            ("7g.94gb", 9262, 132),
        ]),
        "H100-96" => seven([
            ("1g.12gb", 1100, 16),
            ("1g.24gb", 2300, 26),
            ("2g.24gb", 2300, 32),
            ("3g.48gb", 4650, 60),
            ("4g.48gb", 4650, 64),
            ("7g.96gb", 9300, 132),
        ]),
        // 3g, 4g and 7g: no capture is public. Multiples of the memory of 2g, and the multiprocessors of H100.
        "GH200-144" => seven([
            ("1g.18gb", 1750, 16),
            ("1g.36gb", 3525, 26),
            ("2g.36gb", 3525, 32),
            ("3g.72gb", 7050, 60),
            ("4g.72gb", 7050, 64),
            ("7g.144gb", 14100, 132),
        ]),
        "H200-141" => seven([
            ("1g.18gb", 1600, 16),
            ("1g.35gb", 3225, 26),
            ("2g.35gb", 3225, 32),
            ("3g.71gb", 6950, 60),
            ("4g.71gb", 6950, 64),
            ("7g.141gb", 13975, 132),
        ]),
        // 3g, 4g and 7g: no capture is public. Twice and four times the memory of 2g, and 18 multiprocessors a slice;
        // not measured.
        "B200-180" => seven([
            ("1g.23gb", 2050, 18),
            ("1g.45gb", 4425, 30),
            ("2g.45gb", 4425, 36),
            ("3g.90gb", 8850, 54),
            ("4g.90gb", 8850, 72),
            ("7g.180gb", 17700, 126),
        ]),
        // 3g, 4g and 7g as for B200, with 19 multiprocessors a slice.
        "GB200-186" => seven([
            ("1g.23gb", 2200, 18),
            ("1g.47gb", 4550, 32),
            ("2g.47gb", 4550, 38),
            ("3g.93gb", 9100, 57),
            ("4g.93gb", 9100, 76),
            ("7g.186gb", 18200, 133),
        ]),
        // The names alone are known (NVIDIA/mig-parted). Of the memory in the name of 7g a 2g has 98 % of a quarter and
        // a 1g 95 % of an eighth, about as B200; multiprocessors are those of B200.
        "B300-269" => seven([
            ("1g.34gb", 3194, 18),
            ("1g.67gb", 6591, 30),
            ("2g.67gb", 6591, 36),
            ("3g.135gb", 13188, 54),
            ("4g.135gb", 13188, 72),
            ("7g.269gb", 26375, 126),
        ]),
        "GB300-278" => seven([
            ("1g.35gb", 3301, 18),
            ("1g.70gb", 6811, 30),
            ("2g.70gb", 6811, 36),
            ("3g.139gb", 13622, 54),
            ("4g.139gb", 13622, 72),
            ("7g.278gb", 27244, 126),
        ]),
        "RTX-PRO-6000-96" => rtx_pro_6000(),
        _ => return None,
    };
    geometry.model = name.to_owned();
    Some(geometry)
}

/// `-lgip` prints two decimals of a number that is a multiple of 1/16 GiB on every board.
fn mib(hundredths_of_gib: u64) -> MemoryMib {
    MemoryMib((hundredths_of_gib * 1024 + 3200) / 6400 * 64)
}

/// NVML's profile id, number of the enum, compute slices, most instances.
type ProfileNumbers = (u32, u32, u8, u32);

fn profile(
    numbers: ProfileNumbers,
    suffix: &str,
    row: PrintedProfile,
    starts: &[u8],
    size: u8,
) -> Profile {
    let (id, slice_enum, compute_slices, max_instances) = numbers;
    Profile {
        id,
        slice_enum,
        name: format!("{}{suffix}", row.0),
        compute_slices,
        multiprocessors: row.2,
        memory: mib(row.1),
        max_instances,
        placements: starts
            .iter()
            .map(|&start| Placement { start, size })
            .collect(),
    }
}

fn geometry_of(memory_slices: u8, compute_slices: u8, profiles: Vec<Profile>) -> Geometry {
    Geometry {
        model: String::new(),
        memory_slices,
        compute_slices,
        profiles,
    }
}

/// A100 to GB300: rows are 1g, 1g with double memory, 2g, 3g, 4g, 7g.
fn seven([one, double, two, three, four, full]: [PrintedProfile; 6]) -> Geometry {
    let each = [0, 1, 2, 3, 4, 5, 6];
    geometry_of(
        8,
        7,
        vec![
            profile((19, 0, 1, 7), "", one, &each, 1),
            profile((20, 7, 1, 1), "+me", one, &each, 1),
            profile((15, 9, 1, 4), "", double, &[0, 2, 4, 6], 2),
            profile((14, 1, 2, 3), "", two, &[0, 2, 4], 2),
            profile((9, 2, 3, 2), "", three, &[0, 4], 4),
            profile((5, 3, 4, 1), "", four, &[0], 4),
            profile((0, 4, 7, 1), "", full, &[0], 8),
        ],
    )
}

fn a30() -> Geometry {
    let (one, two) = (("1g.6gb", 581, 14), ("2g.12gb", 1169, 28));
    geometry_of(
        4,
        4,
        vec![
            profile((14, 0, 1, 4), "", one, &[0, 1, 2, 3], 1),
            profile((21, 7, 1, 1), "+me", one, &[0, 1, 2, 3], 1),
            profile((5, 1, 2, 2), "", two, &[0, 2], 2),
            profile((6, 8, 2, 1), "+me", two, &[0, 2], 2),
            profile((0, 3, 4, 1), "", ("4g.24gb", 2344, 56), &[0], 4),
        ],
    )
}

/// Twelve memory slices, three for each quarter. Memory is that of the Server Edition, the lowest known. The
/// positions of media and graphics profiles are assumed to be those of the plain ones.
fn rtx_pro_6000() -> Geometry {
    let (one, two) = (("1g.24gb", 2312, 46), ("2g.48gb", 4650, 94));
    let full = ("4g.96gb", 9338, 188);
    let (quarters, halves): (&[u8], &[u8]) = (&[0, 3, 6, 9], &[0, 6]);
    geometry_of(
        12,
        4,
        vec![
            profile((14, 0, 1, 4), "", one, quarters, 3),
            profile((21, 7, 1, 1), "+me", one, quarters, 3),
            profile((47, 0xA, 1, 4), "+gfx", one, quarters, 3),
            profile((65, 0xF, 1, 1), "+me.all", one, quarters, 3),
            profile((67, 0xD, 1, 4), "-me", one, quarters, 3),
            profile((5, 1, 2, 2), "", two, halves, 6),
            profile((35, 0xB, 2, 2), "+gfx", two, halves, 6),
            profile((64, 0x10, 2, 1), "+me.all", two, halves, 6),
            profile((66, 0xE, 2, 2), "-me", two, halves, 6),
            profile((0, 3, 4, 1), "", full, &[0], 12),
            profile((32, 0xC, 4, 1), "+gfx", full, &[0], 12),
        ],
    )
}
