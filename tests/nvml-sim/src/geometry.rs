//! MIG profiles and placements of every simulated model.
//!
//! Written from NVIDIA's MIG user guide and from captures of `nvidia-smi mig -lgip` and `-lgipp`, deliberately
//! without gpufrac's own tables: the tests compare the two. If no capture of a row is known (B200's three largest
//! profiles), the comment says that the numbers are estimates.
//!
//! | model | memory and multiprocessors | positions |
//! |---|---|---|
//! | A30, RTX PRO 6000 | `-lgip` | `-lgipp`; of media and graphics profiles assumed |
//! | A100-40, A100-80, H100-80 | `-lgip` | NVIDIA's manual |
//! | H100-94, H100-96, H200 | `-lgip` | assumed to be those of H100-80 |
//! | B200 | 1g and 2g `-lgip`, 3g, 4g and 7g assumed | assumed to be those of H100-80 |
//!
//! Nothing was measured on a device (docs/measured). NVIDIA's Go mock of NVML (go-nvml) has the same multiprocessors
//! and most instances for B200, by multiplication; its positions are others than NVML's, and none is taken from it.

/// A GPU instance profile, as NVML describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProfile {
    /// `NVML_GPU_INSTANCE_PROFILE_*`: the argument of `nvmlDeviceGetGpuInstanceProfileInfo`.
    pub kind: u32,
    /// The profile id, which `nvidia-smi mig -lgip` prints and creation needs.
    pub id: u32,
    /// `1g.10gb`, without the leading `MIG `.
    pub name: &'static str,
    /// Compute slices.
    pub slices: u32,
    /// Memory slices of an instance.
    pub size: u32,
    /// The possible first memory slices.
    pub starts: &'static [u32],
    /// The most instances at a time.
    pub max: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory of an instance.
    pub memory_mib: u64,
    /// The engines of an instance.
    pub engines: Engines,
}

/// The number of engines of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Engines {
    /// Copy engines.
    pub copy: u32,
    pub decode: u32,
    pub encode: u32,
    pub jpeg: u32,
    /// Optical flow accelerators.
    pub ofa: u32,
}

/// The MIG tables of a GPU model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Memory slices of the whole GPU.
    pub memory_slices: u32,
    /// Compute slices of the whole GPU.
    pub compute_slices: u32,
    /// Multiprocessors of one compute slice, as a compute instance gets them.
    pub slice_multiprocessors: u32,
    /// The profiles, in the order in which `nvidia-smi mig -lgip` lists them.
    pub profiles: Vec<GpuProfile>,
}

/// A compute instance profile in a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeProfile {
    /// `NVML_COMPUTE_INSTANCE_PROFILE_*`; on all models here also the profile id.
    pub id: u32,
    /// `1c.3g.40gb`, or the GPU instance's own name if it has all of it.
    pub name: String,
    /// Compute slices.
    pub slices: u32,
    /// The possible first compute slices.
    pub starts: Vec<u32>,
    /// The most instances at a time.
    pub max: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
}

const fn engines(copy: u32, decode: u32, jpeg: u32, ofa: u32) -> Engines {
    Engines {
        copy,
        decode,
        encode: 0,
        jpeg,
        ofa,
    }
}

/// A row of `-lgip` of a GPU with seven compute slices: name with nominal GB, multiprocessors, MiB.
struct Row(&'static str, u32, u64);

/// The seven profiles of A100, H100, H200 and B200: ids and placements are the same, names, sizes and engines differ.
fn seven_slices(rows: [Row; 7], engines: [Engines; 7], slice_multiprocessors: u32) -> Geometry {
    // kind, id, compute slices, size, starts, max
    type Shape = (u32, u32, u32, u32, &'static [u32], u32);
    const SHAPES: [Shape; 7] = [
        (0, 19, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 7),
        (7, 20, 1, 1, &[0, 1, 2, 3, 4, 5, 6], 1),
        (9, 15, 1, 2, &[0, 2, 4, 6], 4),
        (1, 14, 2, 2, &[0, 2, 4], 3),
        (2, 9, 3, 4, &[0, 4], 2),
        (3, 5, 4, 4, &[0], 1),
        (4, 0, 7, 8, &[0], 1),
    ];
    let profiles = SHAPES
        .into_iter()
        .zip(rows)
        .zip(engines)
        .map(|((shape, row), engines)| GpuProfile {
            kind: shape.0,
            id: shape.1,
            name: row.0,
            slices: shape.2,
            size: shape.3,
            starts: shape.4,
            max: shape.5,
            multiprocessors: row.1,
            memory_mib: row.2,
            engines,
        })
        .collect();
    Geometry {
        memory_slices: 8,
        compute_slices: 7,
        slice_multiprocessors,
        profiles,
    }
}

const AMPERE: [Engines; 7] = [
    engines(1, 0, 0, 0),
    engines(1, 1, 1, 1),
    engines(1, 1, 0, 0),
    engines(2, 1, 0, 0),
    engines(3, 2, 0, 0),
    engines(4, 2, 0, 0),
    engines(7, 5, 1, 1),
];
const HOPPER: [Engines; 7] = [
    engines(1, 1, 1, 0),
    engines(1, 1, 1, 1),
    engines(1, 1, 1, 0),
    engines(2, 2, 2, 0),
    engines(3, 3, 3, 0),
    engines(4, 4, 4, 0),
    engines(8, 7, 7, 1),
];
const BLACKWELL: [Engines; 7] = [
    engines(2, 1, 1, 0),
    engines(2, 1, 1, 1),
    engines(2, 1, 1, 0),
    engines(4, 2, 2, 0),
    engines(6, 3, 3, 0),
    engines(8, 4, 4, 0),
    engines(16, 7, 7, 1),
];

pub(crate) fn a100_40() -> Geometry {
    let rows = [
        Row("1g.5gb", 14, 4864),
        Row("1g.5gb+me", 14, 4864),
        Row("1g.10gb", 14, 9984),
        Row("2g.10gb", 28, 9984),
        Row("3g.20gb", 42, 20096),
        Row("4g.20gb", 56, 20096),
        Row("7g.40gb", 98, 40448),
    ];
    seven_slices(rows, AMPERE, 14)
}

pub(crate) fn a100_80() -> Geometry {
    let rows = [
        Row("1g.10gb", 14, 9728),
        Row("1g.10gb+me", 14, 9728),
        Row("1g.20gb", 14, 19968),
        Row("2g.20gb", 28, 19968),
        Row("3g.40gb", 42, 40192),
        Row("4g.40gb", 56, 40192),
        Row("7g.80gb", 98, 80896),
    ];
    seven_slices(rows, AMPERE, 14)
}

pub(crate) fn h100_80() -> Geometry {
    let rows = [
        Row("1g.10gb", 16, 9984),
        Row("1g.10gb+me", 16, 9984),
        Row("1g.20gb", 26, 20096),
        Row("2g.20gb", 32, 20096),
        Row("3g.40gb", 60, 40448),
        Row("4g.40gb", 64, 40448),
        Row("7g.80gb", 132, 81152),
    ];
    seven_slices(rows, HOPPER, 16)
}

pub(crate) fn h100_94() -> Geometry {
    let rows = [
        Row("1g.12gb", 16, 11008),
        Row("1g.12gb+me", 16, 11008),
        Row("1g.24gb", 26, 22144),
        Row("2g.24gb", 32, 22144),
        Row("3g.47gb", 60, 47488),
        Row("4g.47gb", 64, 47488),
        Row("7g.94gb", 132, 94848),
    ];
    seven_slices(rows, HOPPER, 16)
}

pub(crate) fn h100_96() -> Geometry {
    let rows = [
        Row("1g.12gb", 16, 11264),
        Row("1g.12gb+me", 16, 11264),
        Row("1g.24gb", 26, 23552),
        Row("2g.24gb", 32, 23552),
        Row("3g.48gb", 60, 47616),
        Row("4g.48gb", 64, 47616),
        Row("7g.96gb", 132, 95232),
    ];
    seven_slices(rows, HOPPER, 16)
}

pub(crate) fn h200_141() -> Geometry {
    let rows = [
        Row("1g.18gb", 16, 16384),
        Row("1g.18gb+me", 16, 16384),
        Row("1g.35gb", 26, 33024),
        Row("2g.35gb", 32, 33024),
        Row("3g.71gb", 60, 71168),
        Row("4g.71gb", 64, 71168),
        Row("7g.141gb", 132, 143_104),
    ];
    seven_slices(rows, HOPPER, 16)
}

pub(crate) fn b200_180() -> Geometry {
    let rows = [
        Row("1g.23gb", 18, 22528),
        Row("1g.23gb+me", 18, 22528),
        Row("1g.45gb", 30, 45312),
        Row("2g.45gb", 36, 45312),
        // Estimates: no capture of these three rows is known.
        Row("3g.90gb", 70, 90880),
        Row("4g.90gb", 72, 90880),
        Row("7g.180gb", 148, 182_272),
    ];
    seven_slices(rows, BLACKWELL, 18)
}

pub(crate) fn gh200_144() -> Geometry {
    let rows = [
        Row("1g.18gb", 16, 17920),
        Row("1g.18gb+me", 16, 17920),
        Row("1g.36gb", 26, 36096),
        Row("2g.36gb", 32, 36096),
        // Estimates, as for B200.
        Row("3g.72gb", 60, 72192),
        Row("4g.72gb", 64, 72192),
        Row("7g.144gb", 132, 144_384),
    ];
    seven_slices(rows, HOPPER, 16)
}

pub(crate) fn gb200_186() -> Geometry {
    let rows = [
        Row("1g.23gb", 18, 22528),
        Row("1g.23gb+me", 18, 22528),
        Row("1g.47gb", 32, 46592),
        Row("2g.47gb", 38, 46592),
        // Estimates, as for B200.
        Row("3g.93gb", 72, 93184),
        Row("4g.93gb", 76, 93184),
        Row("7g.186gb", 152, 186_368),
    ];
    seven_slices(rows, BLACKWELL, 18)
}

/// All but the names are estimates.
pub(crate) fn b300_269() -> Geometry {
    let rows = [
        Row("1g.34gb", 18, 33024),
        Row("1g.34gb+me", 18, 33024),
        Row("1g.67gb", 30, 67840),
        Row("2g.67gb", 36, 67840),
        Row("3g.135gb", 70, 135_680),
        Row("4g.135gb", 72, 135_680),
        Row("7g.269gb", 148, 271_360),
    ];
    seven_slices(rows, BLACKWELL, 18)
}

/// As B300.
pub(crate) fn gb300_278() -> Geometry {
    let rows = [
        Row("1g.35gb", 18, 34048),
        Row("1g.35gb+me", 18, 34048),
        Row("1g.70gb", 30, 70080),
        Row("2g.70gb", 36, 70080),
        Row("3g.139gb", 70, 140_160),
        Row("4g.139gb", 72, 140_160),
        Row("7g.278gb", 148, 280_320),
    ];
    seven_slices(rows, BLACKWELL, 18)
}

/// A table of profiles: kind, id, name, slices, size, starts, max, multiprocessors, MiB of memory, engines.
macro_rules! profiles {
    ($($kind:literal $id:literal $name:literal $slices:literal $size:literal $starts:expr, $max:literal
        $multiprocessors:literal $memory:literal $engines:expr;)*) => {
        vec![$(GpuProfile {
            kind: $kind,
            id: $id,
            name: $name,
            slices: $slices,
            size: $size,
            starts: $starts,
            max: $max,
            multiprocessors: $multiprocessors,
            memory_mib: $memory,
            engines: $engines,
        }),*]
    };
}

pub(crate) fn a30_24() -> Geometry {
    const QUARTERS: &[u32] = &[0, 1, 2, 3];
    const HALVES: &[u32] = &[0, 2];
    let profiles = profiles! {
           0 14 "1g.6gb"         1  1 QUARTERS, 4  14  5952 engines(1, 1, 0, 0);
           7 21 "1g.6gb+me"      1  1 QUARTERS, 1  14  5952 engines(1, 1, 1, 1);
           1  5 "2g.12gb"        2  2 HALVES,   2  28 11968 engines(2, 2, 0, 0);
           8  6 "2g.12gb+me"     2  2 HALVES,   1  28 11968 engines(2, 2, 1, 1);
           3  0 "4g.24gb"        4  4 &[0],     1  56 24000 engines(4, 4, 1, 1);
    };
    Geometry {
        memory_slices: 4,
        compute_slices: 4,
        slice_multiprocessors: 14,
        profiles,
    }
}

pub(crate) fn rtx_pro_6000_96() -> Geometry {
    const QUARTERS: &[u32] = &[0, 3, 6, 9];
    const HALVES: &[u32] = &[0, 6];
    const fn media(copy: u32, units: u32, ofa: u32) -> Engines {
        Engines {
            copy,
            decode: units,
            encode: units,
            jpeg: units,
            ofa,
        }
    }
    let profiles = profiles! {
         0x0 14 "1g.24gb"        1  3 QUARTERS, 4  46 24192 media(1, 1, 0);
         0x7 21 "1g.24gb+me"     1  3 QUARTERS, 1  46 24192 media(1, 1, 1);
         0xA 47 "1g.24gb+gfx"    1  3 QUARTERS, 4  46 24192 media(1, 1, 0);
         0xF 65 "1g.24gb+me.all" 1  3 QUARTERS, 1  46 24192 media(1, 4, 1);
         0xD 67 "1g.24gb-me"     1  3 QUARTERS, 4  46 24192 media(1, 0, 0);
         0x1  5 "2g.48gb"        2  6 HALVES,   2  94 48512 media(2, 2, 0);
         0xB 35 "2g.48gb+gfx"    2  6 HALVES,   2  94 48512 media(2, 2, 0);
        0x10 64 "2g.48gb+me.all" 2  6 HALVES,   1  94 48512 media(2, 4, 1);
         0xE 66 "2g.48gb-me"     2  6 HALVES,   2  94 48512 media(2, 0, 0);
         0x3  0 "4g.96gb"        4 12 &[0],     1 188 97280 media(4, 4, 1);
         0xC 32 "4g.96gb+gfx"    4 12 &[0],     1 188 97280 media(4, 4, 1);
    };
    Geometry {
        memory_slices: 12,
        compute_slices: 4,
        slice_multiprocessors: 46,
        profiles,
    }
}

impl Geometry {
    /// The profile with this id (`nvidia-smi mig -lgip`).
    pub fn profile(&self, id: u32) -> Option<&GpuProfile> {
        self.profiles.iter().find(|profile| profile.id == id)
    }

    /// The profile of this `NVML_GPU_INSTANCE_PROFILE_*`.
    pub fn profile_of_kind(&self, kind: u32) -> Option<&GpuProfile> {
        self.profiles.iter().find(|profile| profile.kind == kind)
    }

    /// The engines of the whole GPU, which limit those of its instances together.
    pub fn engines(&self) -> Engines {
        let of = |pick: fn(&Engines) -> u32| {
            let counts = self.profiles.iter().map(|profile| pick(&profile.engines));
            counts.max().unwrap_or(0)
        };
        Engines {
            copy: of(|e| e.copy),
            decode: of(|e| e.decode),
            encode: of(|e| e.encode),
            jpeg: of(|e| e.jpeg),
            ofa: of(|e| e.ofa),
        }
    }

    /// Compute instance profiles of a GPU instance, smallest first.
    ///
    /// An instance with four slices has no compute instances with three slices; one with seven has all.
    pub fn compute_profiles(&self, instance: &GpuProfile) -> Vec<ComputeProfile> {
        // profile id, compute slices, distance of starts
        const SHAPES: [(u32, u32, u32); 5] =
            [(0, 1, 1), (1, 2, 2), (2, 3, 4), (3, 4, 4), (4, 7, 7)];
        let whole = instance.slices;
        SHAPES
            .into_iter()
            .filter(|&(_, slices, _)| {
                slices == whole || (slices < whole && !(slices == 3 && whole == 4))
            })
            .map(|(id, slices, step)| {
                let starts: Vec<u32> = (0..whole)
                    .step_by(step as usize)
                    .filter(|start| start + slices <= whole)
                    .collect();
                let full = slices == whole;
                ComputeProfile {
                    id,
                    name: if full {
                        instance.name.to_owned()
                    } else {
                        format!("{slices}c.{}", instance.name)
                    },
                    slices,
                    max: starts.len() as u32,
                    starts,
                    multiprocessors: if full {
                        instance.multiprocessors
                    } else {
                        slices * self.slice_multiprocessors
                    },
                }
            })
            .collect()
    }
}
