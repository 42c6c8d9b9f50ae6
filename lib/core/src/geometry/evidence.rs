//! The evidence for each row of the built-in tables.
//!
//! NVIDIA's Go mock of NVML (go-nvml, pkg/nvml/mock) agrees with the counts of multiprocessors of B200 (18, 36, 54, 72
//! and 126) and with its most instances (7/1/4/3/2/1/1). That is no evidence: its figures are multiples of one slice,
//! and its positions are not those of NVML (its 1g with double memory takes one memory slice, 3g three and 7g seven).
//! No row follows it.

use std::fmt;

use super::Geometry;

/// Where the numbers of a row come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// An output of `nvidia-smi mig -lgip` or `-lgipp` on a board, as somebody published it.
    NvidiaSmi,
    /// NVIDIA's MIG User Guide.
    Manual,
    /// A measurement on a device, in this file of docs/measured.
    Measured(&'static str),
    /// No source for this model: as its family has it.
    Assumed,
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Evidence::NvidiaSmi => f.write_str("nvidia-smi"),
            Evidence::Manual => f.write_str("manual"),
            Evidence::Measured(file) => write!(f, "measured: {file}"),
            Evidence::Assumed => f.write_str("assumed"),
        }
    }
}

/// The evidence of a model: for memory and multiprocessors of its plain profiles, by their names, and for their
/// positions.
struct Rows {
    model: &'static str,
    figures: &'static [(&'static str, Evidence)],
    positions: Evidence,
}

const ROWS: [Rows; 13] = {
    use Evidence::{Assumed, Manual, NvidiaSmi};
    [
        Rows {
            model: "A30-24",
            figures: &[
                ("1g.6gb", NvidiaSmi),
                ("2g.12gb", NvidiaSmi),
                ("4g.24gb", NvidiaSmi),
            ],
            positions: NvidiaSmi,
        },
        Rows {
            model: "A100-40",
            figures: &[
                ("1g.5gb", NvidiaSmi),
                ("1g.10gb", NvidiaSmi),
                ("2g.10gb", NvidiaSmi),
                ("3g.20gb", NvidiaSmi),
                ("4g.20gb", NvidiaSmi),
                ("7g.40gb", NvidiaSmi),
            ],
            positions: Manual,
        },
        Rows {
            model: "A100-80",
            figures: &[
                ("1g.10gb", NvidiaSmi),
                ("1g.20gb", NvidiaSmi),
                ("2g.20gb", NvidiaSmi),
                ("3g.40gb", NvidiaSmi),
                ("4g.40gb", NvidiaSmi),
                ("7g.80gb", NvidiaSmi),
            ],
            positions: Manual,
        },
        Rows {
            model: "H100-80",
            figures: &[
                ("1g.10gb", NvidiaSmi),
                ("1g.20gb", NvidiaSmi),
                ("2g.20gb", NvidiaSmi),
                ("3g.40gb", NvidiaSmi),
                ("4g.40gb", NvidiaSmi),
                ("7g.80gb", NvidiaSmi),
            ],
            positions: Manual,
        },
        // NVL: the positions of H100-80.
        Rows {
            model: "H100-94",
            figures: &[
                ("1g.12gb", NvidiaSmi),
                ("1g.24gb", NvidiaSmi),
                ("2g.24gb", NvidiaSmi),
                ("3g.47gb", NvidiaSmi),
                ("4g.47gb", NvidiaSmi),
                ("7g.94gb", NvidiaSmi),
            ],
            positions: Assumed,
        },
        Rows {
            model: "H100-96",
            figures: &[
                ("1g.12gb", NvidiaSmi),
                ("1g.24gb", NvidiaSmi),
                ("2g.24gb", NvidiaSmi),
                ("3g.48gb", NvidiaSmi),
                ("4g.48gb", NvidiaSmi),
                ("7g.96gb", NvidiaSmi),
            ],
            positions: Assumed,
        },
        // Of 3g, 4g and 7g the names alone are known: multiples of the memory of 2g.
        Rows {
            model: "GH200-144",
            figures: &[
                ("1g.18gb", NvidiaSmi),
                ("1g.36gb", NvidiaSmi),
                ("2g.36gb", NvidiaSmi),
                ("3g.72gb", Assumed),
                ("4g.72gb", Assumed),
                ("7g.144gb", Assumed),
            ],
            positions: Assumed,
        },
        // No -lgipp was found: its profile ids are those of H100-80, and so are the positions.
        Rows {
            model: "H200-141",
            figures: &[
                ("1g.18gb", NvidiaSmi),
                ("1g.35gb", NvidiaSmi),
                ("2g.35gb", NvidiaSmi),
                ("3g.71gb", NvidiaSmi),
                ("4g.71gb", NvidiaSmi),
                ("7g.141gb", NvidiaSmi),
            ],
            positions: Assumed,
        },
        // Of 3g, 4g and 7g the names alone are known: twice and four times the memory of 2g, and 18 multiprocessors a
        // slice. That is too few for 7g: three 2g and a 1g with double memory were captured with 138 together.
        Rows {
            model: "B200-180",
            figures: &[
                ("1g.23gb", NvidiaSmi),
                ("1g.45gb", NvidiaSmi),
                ("2g.45gb", NvidiaSmi),
                ("3g.90gb", Assumed),
                ("4g.90gb", Assumed),
                ("7g.180gb", Assumed),
            ],
            positions: Assumed,
        },
        Rows {
            model: "GB200-186",
            figures: &[
                ("1g.23gb", NvidiaSmi),
                ("1g.47gb", NvidiaSmi),
                ("2g.47gb", NvidiaSmi),
                ("3g.93gb", Assumed),
                ("4g.93gb", Assumed),
                ("7g.186gb", Assumed),
            ],
            positions: Assumed,
        },
        // Names and counts alone are known, from the configurations of NVIDIA/mig-parted.
        Rows {
            model: "B300-269",
            figures: &[
                ("1g.34gb", Assumed),
                ("1g.67gb", Assumed),
                ("2g.67gb", Assumed),
                ("3g.135gb", Assumed),
                ("4g.135gb", Assumed),
                ("7g.269gb", Assumed),
            ],
            positions: Assumed,
        },
        Rows {
            model: "GB300-278",
            figures: &[
                ("1g.35gb", Assumed),
                ("1g.70gb", Assumed),
                ("2g.70gb", Assumed),
                ("3g.139gb", Assumed),
                ("4g.139gb", Assumed),
                ("7g.278gb", Assumed),
            ],
            positions: Assumed,
        },
        Rows {
            model: "RTX-PRO-6000-96",
            figures: &[
                ("1g.24gb", NvidiaSmi),
                ("2g.48gb", NvidiaSmi),
                ("4g.96gb", NvidiaSmi),
            ],
            positions: NvidiaSmi,
        },
    ]
};

fn rows(model: &str) -> Option<&'static Rows> {
    ROWS.iter().find(|rows| rows.model == model)
}

impl Geometry {
    /// The evidence for memory and multiprocessors of a plain profile of a built-in model.
    pub fn evidence_of_figures(model: &str, profile: &str) -> Option<Evidence> {
        let mut figures = rows(model)?.figures.iter();
        figures
            .find(|(name, _)| *name == profile)
            .map(|(_, evidence)| *evidence)
    }

    /// The evidence for the positions of a built-in model.
    pub fn evidence_of_positions(model: &str) -> Option<Evidence> {
        Some(rows(model)?.positions)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Promise (admins): each row of the built-in tables says whether it rests on an output of nvidia-smi, NVIDIA's
    /// manual, a measurement or an assumption.
    /// With `each_measured_fact_has_its_file`, `the_assumed_rows_are_what_their_comment_says`.
    #[test]
    fn every_row_of_every_model_says_what_it_rests_on() {
        for model in Geometry::builtin_names() {
            let geometry = Geometry::builtin(model).unwrap();
            let plain = geometry
                .profiles
                .iter()
                .filter(|profile| profile.is_plain());
            let mut names: Vec<&str> = plain.map(|profile| profile.name.as_str()).collect();
            let mut known: Vec<&str> = rows(model)
                .unwrap()
                .figures
                .iter()
                .map(|(name, _)| *name)
                .collect();
            names.sort_unstable();
            known.sort_unstable();
            assert_eq!(known, names, "{model}");
        }
        assert_eq!(ROWS.len(), Geometry::builtin_names().len());
    }

    #[test]
    fn each_measured_fact_has_its_file() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measured");
        let all = ROWS.iter().flat_map(|rows| {
            let figures = rows.figures.iter().map(|(_, evidence)| *evidence);
            figures.chain([rows.positions])
        });
        for evidence in all {
            if let Evidence::Measured(file) = evidence {
                assert!(folder.join(file).is_file(), "{file}");
            }
        }
    }

    /// Twice and four times the memory of 2g, so many multiprocessors a slice; the memory of B300 and GB300 by their
    /// names: what the comments say of the rows that are assumed.
    #[test]
    fn the_assumed_rows_are_what_their_comment_says() {
        for (model, by_slice, gb) in [
            ("GH200-144", [60, 64, 132], None),
            ("B200-180", [54, 72, 126], None),
            ("GB200-186", [57, 76, 133], None),
            ("B300-269", [54, 72, 126], Some(269)),
            ("GB300-278", [54, 72, 126], Some(278)),
        ] {
            let geometry = Geometry::builtin(model).unwrap();
            let row = |slices: u8| {
                let mut plain = geometry.profiles.iter().filter(|p| p.is_plain());
                let found = plain.rfind(|profile| profile.compute_slices == slices);
                found.unwrap()
            };
            let two = row(2).memory.0;
            for ((slices, times), multiprocessors) in
                [(3, 2), (4, 2), (7, 4)].into_iter().zip(by_slice)
            {
                let found = row(slices);
                let evidence = Geometry::evidence_of_figures(model, &found.name);
                assert_eq!(evidence, Some(Evidence::Assumed), "{model} {}", found.name);
                assert!(
                    found.memory.0.abs_diff(two * times) <= 64,
                    "{model} {}",
                    found.name
                );
                assert_eq!(found.multiprocessors, multiprocessors, "{model}");
            }
            if let Some(gb) = gb {
                let one = geometry.profile(19).unwrap().memory.0;
                assert!(
                    one.abs_diff(gb * 1024 / 8 * 95 / 100) <= 64,
                    "{model}: {one}"
                );
                assert!(
                    two.abs_diff(gb * 1024 / 4 * 98 / 100) <= 64,
                    "{model}: {two}"
                );
            }
        }
        let h100 = Geometry::builtin("H100-80").unwrap();
        for model in [
            "H100-94",
            "H100-96",
            "GH200-144",
            "H200-141",
            "B200-180",
            "GB200-186",
            "B300-269",
            "GB300-278",
        ] {
            assert_eq!(
                Geometry::evidence_of_positions(model),
                Some(Evidence::Assumed)
            );
            let geometry = Geometry::builtin(model).unwrap();
            for (own, of_h100) in geometry.profiles.iter().zip(&h100.profiles) {
                assert_eq!(
                    (own.id, &own.placements),
                    (of_h100.id, &of_h100.placements),
                    "{model}"
                );
            }
        }
    }
}
