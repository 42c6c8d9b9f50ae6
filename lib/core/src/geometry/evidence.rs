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

/// A model; the plain profiles, by their compute slices, whose memory and multiprocessors are assumed, where nvidia-smi
/// printed those of all others; and the evidence for their positions.
type Row = (&'static str, &'static [u8], Evidence);

const ROWS: [Row; 13] = {
    use Evidence::{Assumed, Manual, NvidiaSmi};
    [
        ("A30-24", &[], NvidiaSmi),
        ("A100-40", &[], Manual),
        ("A100-80", &[], Manual),
        ("H100-80", &[], Manual),
        // NVL: the positions of H100-80.
        ("H100-94", &[], Assumed),
        ("H100-96", &[], Assumed),
        // Of 3g, 4g and 7g the names alone are known: multiples of the memory of 2g.
        ("GH200-144", &[3, 4, 7], Assumed),
        // No -lgipp was found: its profile ids are those of H100-80, and so are the positions.
        ("H200-141", &[], Assumed),
        // Of 3g, 4g and 7g the names alone are known: twice and four times the memory of 2g, and 18 multiprocessors a
        // slice. That is too few for 7g: three 2g and a 1g with double memory were captured with 138 together.
        ("B200-180", &[3, 4, 7], Assumed),
        ("GB200-186", &[3, 4, 7], Assumed),
        // Names and counts alone are known, from the configurations of NVIDIA/mig-parted.
        ("B300-269", &[1, 2, 3, 4, 7], Assumed),
        ("GB300-278", &[1, 2, 3, 4, 7], Assumed),
        ("RTX-PRO-6000-96", &[], NvidiaSmi),
    ]
};

fn row(model: &str) -> Option<&'static Row> {
    ROWS.iter().find(|(name, ..)| *name == model)
}

impl Geometry {
    /// The evidence for memory and multiprocessors of a plain profile of a built-in model.
    pub fn evidence_of_figures(model: &str, profile: &str) -> Option<Evidence> {
        let (_, assumed, _) = row(model)?;
        let profiles = Geometry::builtin(model)?.profiles;
        let mut plain = profiles.iter().filter(|found| found.is_plain());
        let slices = plain.find(|found| found.name == profile)?.compute_slices;
        Some(if assumed.contains(&slices) { Evidence::Assumed } else { Evidence::NvidiaSmi })
    }

    /// The evidence for the positions of a built-in model.
    pub fn evidence_of_positions(model: &str) -> Option<Evidence> {
        row(model).map(|(.., positions)| *positions)
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
        let mut printed = 0;
        for model in Geometry::builtin_names() {
            let geometry = Geometry::builtin(model).unwrap();
            let plain = geometry
                .profiles
                .iter()
                .filter(|profile| profile.is_plain());
            for profile in plain {
                let evidence = Geometry::evidence_of_figures(model, &profile.name);
                assert!(evidence.is_some(), "{model} {}", profile.name);
                printed += usize::from(evidence == Some(Evidence::NvidiaSmi));
            }
            assert!(Geometry::evidence_of_positions(model).is_some(), "{model}");
            // A row of no profile would say nothing.
            for slices in row(model).unwrap().1 {
                let mut profiles = geometry.profiles.iter();
                assert!(
                    profiles.any(|profile| profile.compute_slices == *slices),
                    "{model} {slices}g"
                );
            }
        }
        assert_eq!(ROWS.len(), Geometry::builtin_names().len());
        // A new profile counts as printed by nvidia-smi unless its row says otherwise.
        assert_eq!(printed, 51);
    }

    #[test]
    fn each_measured_fact_has_its_file() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measured");
        let all = Geometry::builtin_names().iter().flat_map(|model| {
            let profiles = Geometry::builtin(model).unwrap().profiles.into_iter();
            let figures =
                profiles.map(|profile| Geometry::evidence_of_figures(model, &profile.name));
            figures.chain([Geometry::evidence_of_positions(model)])
        });
        for evidence in all {
            if let Some(Evidence::Measured(file)) = evidence {
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
