//! Reads the libraries that a built file needs: versions of the C library's symbols from its table of needed versions,
//! and the name of Slurm's library, which programs load at run time, from its text.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader;

/// The oldest C library that packages run on: that of Red Hat 8 and Debian 10.
pub(super) const LIBC: Version = Version(2, 28);

/// The needs of one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// The names of versions among its symbols: `GLIBC_2.17`.
    pub versions: Vec<String>,
    /// The library that it loads to ask slurmctld: `libslurm.so.42`.
    pub libslurm: Option<String>,
}

/// A version such as `2.28`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32, u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Reads a file for a package.
/// Errors: it is no ELF file of 64 bits, or needs more than a C library of version [`LIBC`].
pub(super) fn read(path: &Path) -> Result<Needs> {
    let bytes = fs::read(path).with_context(|| format!("reading {} failed", path.display()))?;
    let needs = needs(&bytes).with_context(|| format!("reading {} failed", path.display()))?;
    let newer: Vec<&str> = needs
        .versions
        .iter()
        .map(String::as_str)
        .filter(|name| !is_in(LIBC, name))
        .collect();
    if !newer.is_empty() {
        bail!(
            "packing {} failed: it needs {}, which a C library of version {LIBC} does not have; build it with `cargo \
             xtask package`",
            path.display(),
            newer.join(", ")
        );
    }
    Ok(needs)
}

fn needs(bytes: &[u8]) -> Result<Needs> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut versions = Vec::new();
    if let Some((mut libraries, link)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((_, mut names)) = libraries.next()? {
            while let Some(name) = names.next()? {
                let name = name.name(endian, strings)?;
                versions.push(String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    let libslurm = numbers(bytes, b"libslurm.so.")
        .max()
        .map(|number| format!("libslurm.so.{number}"));
    Ok(Needs { versions, libslurm })
}

/// Whether a C library of this version has a version of symbols. `GLIBC_ABI_DT_RELR` and such names are of later ones.
fn is_in(libc: Version, name: &str) -> bool {
    let number = name.strip_prefix("GLIBC_").and_then(version);
    number.is_some_and(|number| number <= libc)
}

fn version(word: &str) -> Option<Version> {
    let mut parts = word.split('.');
    let mut number = || parts.next()?.parse().ok();
    Some(Version(number()?, number()?))
}

/// The numbers that stand after `before`.
fn numbers<'a>(bytes: &'a [u8], before: &'a [u8]) -> impl Iterator<Item = u32> + 'a {
    let starts = bytes
        .windows(before.len())
        .enumerate()
        .filter(move |(_, window)| *window == before);
    starts.filter_map(move |(at, _)| {
        let rest = bytes.iter().skip(at + before.len());
        let digits = rest.take_while(|byte| byte.is_ascii_digit());
        let digits: String = digits.map(|byte| char::from(*byte)).collect();
        digits.parse().ok()
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::process::Command;

    use super::*;
    use xtask_front::cargo::run;

    /// Compiles a library from C.
    pub(in crate::package) fn library(text: &str, at: &Path) {
        let source = at.with_extension("c");
        fs::write(&source, text).unwrap();
        run(Command::new("gcc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(at)
            .arg(&source))
        .unwrap();
    }

    #[test]
    fn a_file_that_needs_a_newer_c_library_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (old, new) = (place.path().join("old.so"), place.path().join("new.so"));
        library(
            "extern int puts(const char *); int f(void) { return puts(\"libslurm.so.42\"); }",
            &old,
        );
        let needs = read(&old).unwrap();
        assert!(!needs.versions.is_empty(), "{needs:?}");
        assert_eq!(needs.libslurm.as_deref(), Some("libslurm.so.42"));
        // Since 2.34 this function is part of libc itself.
        library(
            "extern int pthread_join(unsigned long, void **); int f(void) { return pthread_join(0, 0); }",
            &new,
        );
        let error = read(&new).unwrap_err().to_string();
        assert!(error.contains("GLIBC_2.34"), "{error}");
    }

    #[test]
    fn versions_count_by_number_and_unknown_ones_are_newer() {
        for (name, is_old) in [
            ("GLIBC_2.4", true),
            ("GLIBC_2.2.5", true),
            ("GLIBC_2.28", true),
            ("GLIBC_2.29", false),
            ("GLIBC_ABI_DT_RELR", false),
            ("GLIBC_PRIVATE", false),
            ("GCC_3.0", false),
        ] {
            assert_eq!(is_in(LIBC, name), is_old, "{name}");
        }
    }

    #[test]
    fn a_text_is_no_program() {
        let place = tempfile::tempdir().unwrap();
        let text = place.path().join("text");
        fs::write(&text, "GLIBC_2.4").unwrap();
        read(&text).unwrap_err();
    }
}
