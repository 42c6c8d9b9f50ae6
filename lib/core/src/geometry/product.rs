//! Finds the GPU model by the product name that NVML reports.

use super::Geometry;
use crate::fraction::MemoryMib;

/// Words of NVML's names that stand for another model. The MIG profiles of all four are known from the configurations
/// of NVIDIA/mig-parted, which names them by PCI id and gives them the profiles of that model with the same memory.
/// Unknown are their counts of multiprocessors, which nothing compares: no output of `nvidia-smi mig -lgip` is public.
const OTHER_NAMES: [(&str, &str); 4] = [
    // The GPU of a Grace Hopper board with 96 GB.
    ("GH200", "H100"),
    ("A800", "A100"),
    ("H800", "H100"),
    // With 96 GB. H20-3e with 141 GB has fewer multiprocessors in a slice than H200 (Project-HAMi/HAMi issue 1422) and
    // is no model here.
    ("H20", "H100"),
];

/// A character of a key that needs no quotes in TOML and no care in Slurm.
fn is_usual(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}

impl Geometry {
    /// The model of gpufrac.toml for a GPU that NVML calls `product`, such as `NVIDIA H100 80GB HBM3`, with this
    /// memory.
    ///
    /// Each word of the model's name must be in `product`. Of several such models, the one with the nearest memory is
    /// returned.
    pub fn model_of_product(product: &str, memory: MemoryMib) -> Option<&'static str> {
        let words: Vec<String> = product
            .split(|c: char| !c.is_ascii_alphanumeric())
            .map(str::to_ascii_uppercase)
            .collect();
        let is_said = |wanted: &str| {
            let other = |word: &String| OTHER_NAMES.contains(&(word.as_str(), wanted));
            words.iter().any(|word| word == wanted || other(word))
        };
        let names = Geometry::builtin_names().iter().copied();
        let fitting = names
            .chain(Geometry::names_without_mig())
            .filter_map(|name| {
                let (words_of_model, gib) = name.rsplit_once('-')?;
                let nominal = gib.parse::<u64>().ok()? * 1024;
                let mut wanted = words_of_model.split('-');
                let all = wanted.all(is_said);
                let off = nominal.abs_diff(memory.0);
                // ECC takes a sixteenth of the memory.
                (all && off * 10 <= nominal).then_some((off, name))
            });
        fitting.min().map(|(_, name)| name)
    }

    /// A name for gpufrac.toml of a GPU that NVML calls `product`: `NVIDIA GH200 144G HBM3e` becomes
    /// `GH200-144G-HBM3e`.
    pub fn name_of_product(product: &str) -> String {
        let words = product.split(|c| !is_usual(c));
        let words = words.filter(|word| !word.is_empty() && *word != "NVIDIA");
        words.collect::<Vec<_>>().join("-")
    }

    /// Whether a text can be the name of a table of gpufrac.toml.
    pub fn is_table_name(name: &str) -> bool {
        !name.is_empty() && name.chars().all(is_usual)
    }

    /// The model of gpufrac.toml whose profiles a driver reports, for a board whose name says nothing, such as
    /// `Graphics Device`: numbers, places and multiprocessors are the same, memory is within a tenth, and the nearest.
    pub fn model_of_profiles(&self) -> Option<&'static str> {
        let fitting = Geometry::builtin_names().iter().filter_map(|name| {
            let known = Geometry::builtin(name)?;
            let is_same = known.differences(self).is_empty()
                && known.profiles.iter().filter(|it| it.is_plain()).all(|it| {
                    let real = self.profile(it.id);
                    real.is_some_and(|real| real.multiprocessors == it.multiprocessors)
                });
            let off = known.memory()?.0.abs_diff(self.memory()?.0);
            is_same.then_some((off, *name))
        });
        fitting.min().map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_known_by_their_profiles() {
        for name in Geometry::builtin_names() {
            let mut seen = Geometry::builtin(name).unwrap();
            seen.model = "Graphics Device".into();
            let found = Geometry::builtin(seen.model_of_profiles().unwrap()).unwrap();
            assert!(found.differences(&seen).is_empty() && found.memory() == seen.memory());
            // As the form of a model with fewer multiprocessors for sale elsewhere.
            seen.profiles[0].multiprocessors += 2;
            assert_eq!(seen.model_of_profiles(), None, "{name}");
        }
        assert_eq!(Geometry::unsliced("x").model_of_profiles(), None);
    }

    /// Promise (admins): GPUs are recognized by NVML's names, and by their profiles where the name is not known.
    /// With `models_are_known_by_their_profiles`.
    #[test]
    fn models_are_known_by_what_nvidia_calls_them() {
        for (product, memory, model) in [
            ("NVIDIA A30", 24_576, Some("A30-24")),
            ("NVIDIA A100-SXM4-40GB", 40_960, Some("A100-40")),
            ("NVIDIA A100-PCIE-40GB", 40_536, Some("A100-40")),
            ("A100-SXM4-80GB", 81_920, Some("A100-80")),
            ("NVIDIA H100 80GB HBM3", 81_559, Some("H100-80")),
            ("NVIDIA H100 NVL", 95_830, Some("H100-94")),
            ("NVIDIA GH200 480GB", 97_871, Some("H100-96")),
            ("NVIDIA A800-SXM4-80GB", 81_920, Some("A100-80")),
            ("NVIDIA A800 40GB Active", 40_960, Some("A100-40")),
            ("NVIDIA H800", 81_559, Some("H100-80")),
            ("NVIDIA H20", 97_871, Some("H100-96")),
            ("NVIDIA H20-3e", 143_771, None),
            ("NVIDIA GH200 144G HBM3e", 146_831, Some("GH200-144")),
            ("NVIDIA H200", 143_771, Some("H200-141")),
            ("NVIDIA H200 NVL", 143_771, Some("H200-141")),
            ("NVIDIA GB200", 189_471, Some("GB200-186")),
            ("NVIDIA B300 SXM6 AC", 275_040, Some("B300-269")),
            ("NVIDIA GB300", 284_208, Some("GB300-278")),
            ("NVIDIA B200", 183_359, Some("B200-180")),
            (
                "NVIDIA RTX PRO 6000 Blackwell Server Edition",
                97_887,
                Some("RTX-PRO-6000-96"),
            ),
            (
                "NVIDIA RTX 6000 Ada Generation",
                46_068,
                Some("RTX-6000-ADA-48"),
            ),
            ("NVIDIA L40S", 46_068, Some("L40S-48")),
            ("NVIDIA L40", 46_068, Some("L40-48")),
            ("NVIDIA L4", 23_034, Some("L4-24")),
            ("NVIDIA A10", 23_028, Some("A10-24")),
            ("Tesla T4", 15_360, Some("T4-16")),
            ("Tesla V100-SXM2-32GB", 32_768, Some("V100-32")),
            ("Tesla V100-SXM2-16GB", 16_384, Some("V100-16")),
            // No model of this name has about this memory, or no model has this name.
            ("NVIDIA H100 80GB HBM3", 40_000, None),
            ("NVIDIA A10G", 23_028, None),
            ("NVIDIA GeForce RTX 3090", 24_576, None),
            ("", 24_576, None),
        ] {
            let found = Geometry::model_of_product(product, MemoryMib(memory));
            assert_eq!(found, model, "{product} with {memory} MiB");
        }
    }
}
