//! The options of tasks that name the Slurm to run on.

use anyhow::{Context, Result, bail};

use super::{Series, names};
use xtask_front::setup;

/// The Slurm of a task that runs on one.
#[derive(clap::Args)]
pub struct One {
    /// The series of Slurm (22.05, 24.11, 26.05); the machine's own unless said
    #[arg(long, value_name = "SERIES")]
    slurm: Option<String>,
    /// Another Slurm: the folder that was given to its `configure --prefix`
    #[arg(long, value_name = "DIR", conflicts_with = "slurm", value_parser = Series::in_prefix)]
    slurm_prefix: Option<Series>,
}

impl One {
    /// The groups of packages that building for it and running it need.
    pub fn packages(&self) -> Vec<&'static [&'static str]> {
        let mut groups = vec![setup::CLUSTER];
        groups.extend(self.slurm.is_some().then_some(setup::RELEASES));
        let prefix = self.slurm_prefix.as_ref();
        let accounting = prefix.is_some_and(|series| series.slurm.needs_accounting());
        groups.extend(accounting.then_some(setup::ACCOUNTING));
        groups
    }

    /// The named Slurm; None if none is named.
    pub fn named(&self) -> Result<Option<Series>> {
        match &self.slurm_prefix {
            Some(series) => Ok(Some(series.clone())),
            None => self.slurm.as_deref().map(Series::prepare).transpose(),
        }
    }

    /// The named Slurm, otherwise the machine's own.
    pub fn prepare(&self) -> Result<Series> {
        self.named()?.map_or_else(Series::own, Ok)
    }
}

/// The Slurms of a task that can run on several.
#[derive(clap::Args, Clone, Default)]
pub struct Several {
    /// A series of Slurm (22.05, 24.11, 26.05), and further ones, or `all`
    #[arg(long, value_name = "SERIES")]
    slurm: Vec<String>,
    /// Another Slurm: the folder that was given to its `configure --prefix`; and further ones
    #[arg(long, value_name = "DIR", conflicts_with = "slurm", value_parser = Series::in_prefix)]
    slurm_prefix: Vec<Series>,
}

impl Several {
    /// All of Debian's series, unless some are named.
    pub fn or_all(&self) -> Self {
        let mut several = self.clone();
        if several.slurm.is_empty() && several.slurm_prefix.is_empty() {
            several.slurm.push("all".to_owned());
        }
        several
    }

    /// The names of the series. Errors: a series is not known, or stands twice.
    pub fn names(&self) -> Result<Vec<&'static str>> {
        let known: Vec<_> = names().collect();
        if self.slurm.iter().any(|name| name == "all") {
            return Ok(known);
        }
        let mut wanted: Vec<_> = self.slurm_prefix.iter().map(|series| series.name).collect();
        for name in &self.slurm {
            let found = known.iter().find(|known| *known == name);
            wanted.push(found.with_context(|| {
                let known = known.join(", ");
                format!("gpufrac is not tested on Slurm {name}; write one of {known}, or all")
            })?);
        }
        for (place, name) in wanted.iter().enumerate() {
            if wanted[..place].contains(name) {
                bail!("Slurm {name} is named twice; name one of each series");
            }
        }
        Ok(wanted)
    }

    /// Prepares one of these series.
    pub fn prepare(&self, name: &str) -> Result<Series> {
        let mut prefixes = self.slurm_prefix.iter();
        match prefixes.find(|series| series.name == name) {
            Some(series) => Ok(series.clone()),
            None => Series::prepare(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_known_and_named_once() {
        let names = |words: &[&str]| {
            let slurm = words.iter().map(|word| (*word).to_owned()).collect();
            let several = Several {
                slurm,
                ..Several::default()
            };
            several.names().map_err(|error| error.to_string())
        };
        assert_eq!(names(&[]), Ok(vec![]));
        assert_eq!(names(&["24.11", "22.05"]), Ok(vec!["24.11", "22.05"]));
        assert_eq!(names(&["all"]).unwrap().len(), 3);
        assert_eq!(Several::default().or_all().names().unwrap().len(), 3);
        let unknown = names(&["23.02"]).unwrap_err();
        assert!(
            unknown.contains("write one of 22.05, 24.11, 26.05, or all"),
            "{unknown}"
        );
        let twice = names(&["24.11", "24.11"]).unwrap_err();
        assert!(twice.contains("named twice"), "{twice}");
    }

    #[test]
    fn a_prefix_is_a_series_like_the_others() -> Result<()> {
        let prefix = tempfile::tempdir()?;
        let include = prefix.path().join("include/slurm");
        std::fs::create_dir_all(&include)?;
        let header = include.join("slurm_version.h");
        std::fs::write(header, "#define SLURM_VERSION_NUMBER 0x190b07\n")?;
        let path = prefix.path().to_str().context("a path in UTF-8")?;
        let several = Several {
            slurm: Vec::new(),
            slurm_prefix: vec![Series::in_prefix(path)?],
        };
        assert_eq!(several.or_all().names()?, ["25.11"]);
        let series = several.prepare("25.11")?;
        assert_eq!(series.option(), format!("--slurm-prefix {path}"));
        assert!(!series.is_own());
        assert!(Series::in_prefix("/nowhere").is_err());
        Ok(())
    }
}
