//! MIG instances as Types of Slurm's `gpu`: `a100_3g.20gb`, `1g.10gb`, `nvidia_h100_80gb_hbm3_1g.10gb+me`.

use crate::geometry::{Geometry, Profile};

/// A Type of `gpu` that is a MIG profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigType<'a> {
    /// What stands before the profile: a model, as the site or Slurm's AutoDetect calls it.
    pub model: Option<&'a str>,
    pub slices: u32,
    /// Memory of an instance in GB, as NVIDIA's name says it.
    pub memory_gb: u32,
}

/// What an instance takes of its GPU, or several of their GPUs; 1.0 is a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GpuPart {
    /// Compute slices over those of a GPU.
    pub compute: f64,
    /// Memory slices over those of a GPU.
    pub memory: f64,
}

impl GpuPart {
    /// The greater of both.
    pub fn share(self) -> f64 {
        self.compute.max(self.memory)
    }

    /// Adds `count` instances.
    pub fn add(&mut self, one: GpuPart, count: u32) {
        self.compute += one.compute * f64::from(count);
        self.memory += one.memory * f64::from(count);
    }
}

/// The most compute slices of a GPU.
const MOST_SLICES: u32 = 7;

/// A GPU with the usual positions, for models that are not known: their profiles of as many slices have the same part
/// of the memory.
const USUAL: &str = "H100-80";

impl<'a> MigType<'a> {
    /// Reads a Type. None where it has no MIG profile.
    pub fn of(text: &'a str) -> Option<MigType<'a>> {
        let (before, after) = text.rsplit_once("g.")?;
        let slices = digits_at_end(before);
        let (model, number) = before.split_at(before.len() - slices);
        let end = after.find(|letter: char| !letter.is_ascii_digit())?;
        let (memory, unit) = after.split_at(end);
        let suffix = unit.strip_prefix("gb")?;
        // `a100x3g.20gb` is no profile, and neither is `3g.20gbit`.
        let is_word = model.is_empty() || model.ends_with(['_', '-', '.']);
        let is_suffix = suffix.is_empty() || suffix.starts_with(['+', '-', '.', '_']);
        let mig_type = MigType {
            model: Some(model.trim_end_matches(['_', '-', '.'])).filter(|model| !model.is_empty()),
            slices: number.parse().ok()?,
            memory_gb: memory.parse().ok()?,
        };
        let is_number = (1..=MOST_SLICES).contains(&mig_type.slices) && mig_type.memory_gb > 0;
        (is_word && is_suffix && is_number).then_some(mig_type)
    }

    /// What an instance takes of its GPU.
    ///
    /// Of the models that have the profile, the one that the Type names counts. `1g.10gb` is an instance with one
    /// memory slice of 80 GB or with two of 40 GB: the first one, unless the Type names a model with 40 GB.
    pub fn part(&self) -> GpuPart {
        let name = format!("{}g.{}gb", self.slices, self.memory_gb);
        let all = Geometry::builtin_names().iter();
        let known = all.filter_map(|model| {
            let geometry = Geometry::builtin(model)?;
            let is_own = |profile: &&Profile| profile.name == name;
            let part = part(&geometry, geometry.profiles.iter().find(is_own)?);
            Some((self.unlikeness(model), part))
        });
        let best = known.min_by(|one, other| {
            let order = one.0.cmp(&other.0);
            order.then(one.1.share().total_cmp(&other.1.share()))
        });
        best.map_or_else(|| self.usual_part(), |(_, part)| part)
    }

    /// The part of a profile that no known model has.
    fn usual_part(&self) -> GpuPart {
        let usual = Geometry::builtin(USUAL).and_then(|geometry| {
            let mut profiles = geometry.profiles.iter();
            let same = profiles.find(|own| u32::from(own.compute_slices) == self.slices)?;
            Some(part(&geometry, same))
        });
        let compute = f64::from(self.slices) / f64::from(MOST_SLICES);
        let memory = compute;
        usual.unwrap_or(GpuPart { compute, memory })
    }

    /// How little a model of gpufrac.toml is the one of the Type: 0 if its name and memory are there, 1 if its name
    /// alone is.
    fn unlikeness(&self, model: &str) -> u8 {
        let text = self.model.unwrap_or_default().to_ascii_lowercase();
        let words: Vec<&str> = text.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        let has = |word: &str| words.contains(&word);
        let Some((name, gb)) = model.rsplit_once('-') else {
            return 2;
        };
        let name = name.to_ascii_lowercase();
        match name.split('-').all(has) {
            true if has(&format!("{gb}gb")) || has(gb) => 0,
            true => 1,
            false => 2,
        }
    }
}

fn part(geometry: &Geometry, profile: &Profile) -> GpuPart {
    GpuPart {
        compute: f64::from(profile.compute_slices) / f64::from(geometry.compute_slices),
        memory: f64::from(profile.memory_slices()) / f64::from(geometry.memory_slices),
    }
}

fn digits_at_end(text: &str) -> usize {
    let digits = text.bytes().rev();
    digits.take_while(u8::is_ascii_digit).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_read_from_the_types_of_sites_and_of_autodetect() {
        for (text, model, slices, memory_gb) in [
            ("a100_3g.20gb", Some("a100"), 3, 20),
            ("h100_2g.20gb", Some("h100"), 2, 20),
            ("1g.10gb", None, 1, 10),
            ("1g.12gb+me", None, 1, 12),
            ("1g.10gb.me", None, 1, 10),
            ("3g.20gb+gfx", None, 3, 20),
            ("1g.24gb+me.all", None, 1, 24),
            ("1g.24gb-me", None, 1, 24),
            ("nvidia_a100_3g.20gb", Some("nvidia_a100"), 3, 20),
            (
                "nvidia_a100-sxm4-40gb_1g.5gb",
                Some("nvidia_a100-sxm4-40gb"),
                1,
                5,
            ),
            (
                "nvidia_h100_80gb_hbm3_1g.10gb",
                Some("nvidia_h100_80gb_hbm3"),
                1,
                10,
            ),
            ("mig-7g.141gb", Some("mig"), 7, 141),
        ] {
            let expected = MigType {
                model,
                slices,
                memory_gb,
            };
            assert_eq!(MigType::of(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn other_types_are_no_profiles() {
        for text in [
            "",
            "a100",
            "a100_80gb",
            "2080ti",
            "half",
            "g.",
            "g.10gb",
            "1g.gb",
            "1g.10",
            "1g.0gb",
            "0g.10gb",
            "8g.10gb",
            "a1003g.20gb",
            "3g.20gbit",
            "99999999999g.5gb",
            "1g.99999999999gb",
            "1g.é",
            "é1g.5gb",
        ] {
            assert_eq!(MigType::of(text), None, "{text}");
        }
    }

    #[test]
    fn a_part_is_that_of_the_model() {
        for (text, compute, memory) in [
            ("a100_3g.20gb", 3.0 / 7.0, 0.5),
            ("a100_1g.5gb", 1.0 / 7.0, 0.125),
            ("4g.20gb", 4.0 / 7.0, 0.5),
            ("7g.80gb", 1.0, 1.0),
            ("h100_1g.20gb", 1.0 / 7.0, 0.25),
            ("a30_1g.6gb", 0.25, 0.25),
            ("2g.12gb", 0.5, 0.5),
            ("4g.96gb", 1.0, 1.0),
            // One memory slice, unless the model has 40 GB.
            ("1g.10gb", 1.0 / 7.0, 0.125),
            ("a100_1g.10gb", 1.0 / 7.0, 0.125),
            ("nvidia_a100-sxm4-40gb_1g.10gb", 1.0 / 7.0, 0.25),
            ("nvidia_a100_80gb_pcie_1g.10gb", 1.0 / 7.0, 0.125),
            // No known model has these.
            ("gh9_3g.77gb", 3.0 / 7.0, 0.5),
            ("5g.77gb", 5.0 / 7.0, 5.0 / 7.0),
        ] {
            let part = MigType::of(text).map(|mig_type| mig_type.part());
            assert_eq!(part, Some(GpuPart { compute, memory }), "{text}");
        }
    }

    #[test]
    fn parts_add_up() {
        let mut sum = GpuPart::default();
        for (text, count) in [("3g.20gb", 1), ("4g.20gb", 1)] {
            sum.add(MigType::of(text).unwrap().part(), count);
        }
        assert!((sum.share() - 1.0).abs() < 1e-9, "{sum:?}");
    }
}
