//! The name under which Slurm counts fractions: `[gres] name` of gpufrac.toml.
//!
//! Users write `gpufrac:0.25` whatever the name is, and all of gpufrac reads and writes `gpufrac`. Only texts that
//! Slurm counts have the other name, because tools of others take every name that begins with `gpu` for GPUs. So texts
//! are translated where they come from Slurm and where they go to Slurm, and nowhere else.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// The name that users write, and that Slurm counts unless another name is configured.
const DEFAULT: &str = "gpufrac";

/// Names that mean something else to Slurm, to gpufrac or in a list of GRES.
const TAKEN: [&str; 13] = [
    "gpu",
    "shard",
    "mps",
    "nic",
    "bandwidth",
    "craynetwork",
    "none",
    "mig",
    "timeslice",
    "hami",
    "percent",
    "no_consume",
    "license",
];

/// A name for the GRES that counts fractions. `Display` is the name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CountName(String);

/// Why a text cannot be such a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCountName {
    /// Slurm could not read such a name in a list of GRES.
    /// Cure: Write for example `name = "frac"`.
    #[error(
        "a name has a small letter and then small letters, digits or '_', at most 32, without \"gres\""
    )]
    Form,
    /// The name is that of another GRES, a mechanism or a word of such lists.
    /// Cure: Write for example `name = "frac"`.
    #[error("the name means something else in a list of GRES")]
    Taken,
}

impl Default for CountName {
    fn default() -> Self {
        Self(DEFAULT.to_owned())
    }
}

impl fmt::Display for CountName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for CountName {
    type Err = NoCountName;

    fn from_str(text: &str) -> Result<Self, NoCountName> {
        let usual = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let fits = text.starts_with(|c: char| c.is_ascii_lowercase())
            && text.len() <= 32
            && text.chars().all(usual)
            // Slurm looks for the word anywhere in a text.
            && !text.contains("gres");
        match fits {
            false => Err(NoCountName::Form),
            true if TAKEN.contains(&text) => Err(NoCountName::Taken),
            true => Ok(Self(text.to_owned())),
        }
    }
}

impl CountName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether Slurm counts by the name that users write.
    pub fn is_default(&self) -> bool {
        self.0 == DEFAULT
    }

    /// The names of GRES that slurm.conf must list in `GresTypes`.
    pub fn gres_types(&self) -> [&str; 3] {
        ["gpu", "shard", &self.0]
    }

    /// A text of Slurm's with `gpufrac` in place of the name, in whatever letters.
    pub fn read<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_default() {
            Cow::Borrowed(text)
        } else {
            replaced(text, &self.0, DEFAULT)
        }
    }

    /// A text of gpufrac's with the name in place of `gpufrac`.
    pub fn written<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_default() {
            Cow::Borrowed(text)
        } else {
            replaced(text, DEFAULT, &self.0)
        }
    }
}

/// Whether a character can be in the middle of a name, a Type or a count.
fn is_inside(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.')
}

/// The text with each word `from` replaced. A word also begins behind `gres`, where Slurm from 23.11 on begins to read.
fn replaced<'a>(text: &'a str, from: &str, to: &str) -> Cow<'a, str> {
    let (bytes, word) = (text.as_bytes(), from.as_bytes());
    let mut found = String::new();
    let (mut at, mut kept) = (0, 0);
    while let Some(candidate) = bytes.get(at..at + word.len()) {
        let before = bytes.get(..at).unwrap_or_default();
        let begins = before.last().is_none_or(|byte| !is_inside(*byte))
            || before
                .last_chunk::<4>()
                .is_some_and(|mark| mark.eq_ignore_ascii_case(b"gres"));
        let ends = bytes
            .get(at + word.len())
            .is_none_or(|byte| !is_inside(*byte));
        if begins && ends && candidate.eq_ignore_ascii_case(word) {
            found.push_str(text.get(kept..at).unwrap_or_default());
            // Names are case-sensitive in Slurm: what is not the name stays none.
            if candidate == word {
                found.push_str(to)
            } else {
                found.push_str(&to.to_ascii_uppercase())
            }
            kept = at + word.len();
            at = kept;
        } else {
            at += 1;
        }
    }
    match kept {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(found + text.get(kept..).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frac() -> CountName {
        "frac".parse().unwrap()
    }

    #[test]
    fn names_that_slurm_reads_back() {
        for name in ["gpufrac", "frac", "slice", "gpu_part", "a1"] {
            assert_eq!(name.parse::<CountName>().unwrap().as_str(), name);
        }
        for name in [
            "", "Frac", "1a", "a-b", "a:b", "a,b", "a b", "gresfrac", "fragres", "é",
        ] {
            assert_eq!(name.parse::<CountName>(), Err(NoCountName::Form), "{name}");
        }
        assert_eq!("a".repeat(33).parse::<CountName>(), Err(NoCountName::Form));
        for name in TAKEN {
            assert_eq!(name.parse::<CountName>(), Err(NoCountName::Taken));
        }
    }

    #[test]
    fn texts_of_slurm_are_read_as_gpufracs() {
        for (slurm, own) in [
            (
                "gres/frac:25,gres/shard:half:25",
                "gres/gpufrac:25,gres/shard:half:25",
            ),
            ("gres:frac:25", "gres:gpufrac:25"),
            ("frac=25", "gpufrac=25"),
            ("frac", "gpufrac"),
            (
                "gpu:half:2(IDX:0-1),frac:(CNT:25)",
                "gpu:half:2(IDX:0-1),gpufrac:(CNT:25)",
            ),
            // The text of the user stays.
            ("gpufrac:0.25", "gpufrac:0.25"),
            (
                "fractal:3,my_frac:2,x-frac:1,frac2:1",
                "fractal:3,my_frac:2,x-frac:1,frac2:1",
            ),
            // Where Slurm looks for a mark, a name begins behind it.
            ("xgres:frac:25", "xgres:gpufrac:25"),
            ("licensegresfrac:25", "licensegresgpufrac:25"),
            // No name of Slurm's, and refused as such.
            ("Frac:25", "GPUFRAC:25"),
        ] {
            assert_eq!(frac().read(slurm), own, "{slurm}");
        }
    }

    #[test]
    fn the_default_changes_nothing() {
        let name = CountName::default();
        for text in ["gpufrac:25,frac:3", "GPUFRAC:1", ""] {
            assert!(matches!(name.read(text), Cow::Borrowed(same) if same == text));
            assert!(matches!(name.written(text), Cow::Borrowed(same) if same == text));
        }
    }

    proptest! {
        #[test]
        fn written_names_are_read_back(text in crate::request::tests::near()) {
            let name = frac();
            let own = name.read(&text).to_lowercase();
            let back = name.read(&name.written(&own)).into_owned();
            prop_assert_eq!(back, own);
        }

        #[test]
        fn any_text_is_translated(text in "\\PC*") {
            let _ = frac().read(&text);
        }
    }
}
