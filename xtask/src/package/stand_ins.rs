//! Stand-ins for tests of packages: a build whose files are small libraries.

use std::fs;
use std::path::Path;

use gpufrac_lab::Release as Slurm;

use super::build::{Build, Processor};
use super::elf;
use crate::dist::{PLUGINS, PROGRAMS};

/// A build for a series of Slurm in a folder.
pub(super) fn fake(folder: &Path, series: &str) -> Build {
    let library = folder.join("library.so");
    let text = "extern int puts(const char *); int f(void) { return puts(\"libslurm.so.42\"); }";
    elf::tests::library(text, &library);
    let plugins = PLUGINS.map(|(built, _)| built);
    for name in plugins.into_iter().chain(PROGRAMS) {
        fs::copy(&library, folder.join(name)).unwrap();
    }
    let (year, month) = series.split_once('.').unwrap();
    let (year, month): (u32, u32) = (year.parse().unwrap(), month.parse().unwrap());
    Build {
        release: Slurm(year << 16 | month << 8 | 5),
        processor: Processor::own().unwrap(),
        folder: folder.to_owned(),
    }
}
