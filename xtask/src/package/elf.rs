//! Finds the libraries that a built file needs by texts in the file: versions of the C library's symbols are in its
//! symbol table, and Slurm's library is loaded by name.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The needs of one file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Needs {
    /// The newest version of the C library among its symbols.
    pub libc: Option<Version>,
    /// The library that it loads to ask slurmctld: `libslurm.so.42`.
    pub libslurm: Option<String>,
}

/// A version such as `2.34`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32, u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

pub(super) fn read(path: &Path) -> Result<Needs> {
    let bytes = fs::read(path).with_context(|| format!("reading {} failed", path.display()))?;
    Ok(needs(&bytes))
}

fn needs(bytes: &[u8]) -> Needs {
    let libc = words(bytes, b"GLIBC_", |byte| {
        byte.is_ascii_digit() || byte == b'.'
    });
    let libslurm = words(bytes, b"libslurm.so.", |byte| byte.is_ascii_digit());
    Needs {
        libc: libc.filter_map(|word| version(&word)).max(),
        libslurm: libslurm
            .filter(|number| !number.is_empty())
            .map(|number| format!("libslurm.so.{number}"))
            .max(),
    }
}

fn version(word: &str) -> Option<Version> {
    let mut parts = word.split('.');
    let mut number = || parts.next()?.parse().ok();
    Some(Version(number()?, number()?))
}

/// The texts after each occurrence of `before`, as long as `is_part` accepts the characters.
fn words<'a>(
    bytes: &'a [u8],
    before: &'a [u8],
    is_part: impl Fn(u8) -> bool + 'a,
) -> impl Iterator<Item = String> + 'a {
    let starts = bytes
        .windows(before.len())
        .enumerate()
        .filter(move |(_, window)| *window == before);
    starts.map(move |(at, _)| {
        let rest = bytes.iter().skip(at + before.len());
        rest.take_while(|byte| is_part(**byte))
            .map(|byte| char::from(*byte))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts_by_number() {
        let found = needs(b"\0GLIBC_2.4\0GLIBC_2.34\0x\0GLIBC_2.9\0libslurm.so.42cannot load\0");
        assert_eq!(found.libc, Some(Version(2, 34)));
        assert_eq!(found.libslurm.as_deref(), Some("libslurm.so.42"));
    }

    #[test]
    fn a_file_without_version_names_needs_neither_libc_nor_libslurm() {
        let found = needs(b"GLIBC_PRIVATE libslurm.so.");
        assert_eq!(found.libc, None);
        assert_eq!(found.libslurm, None);
    }
}
