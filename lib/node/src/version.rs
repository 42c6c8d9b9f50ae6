//! The text of `--version` of each program: the build, and its series of Slurm.

use std::io::Write;
use std::process::ExitCode;
use std::sync::LazyLock;

use gpufrac_host::exit::Exit;
use slurm_sys::release::{BUILD, Release};

/// `0.1.0~dev512.gd9538f4 for Slurm 24.11`.
pub static TEXT: LazyLock<String> =
    LazyLock::new(|| format!("{BUILD} for Slurm {}", Release::BUILT_FOR.series()));

/// Prints the version for `--version`; None for other arguments. For programs without other arguments: a parser of
/// arguments would cost time in each job of the node.
pub fn answer(program: &str) -> Option<ExitCode> {
    let asked = std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "--version");
    asked.then(|| {
        // A reader that has gone is no failure.
        let _ = writeln!(std::io::stdout(), "{program} {}", *TEXT);
        Exit::Done.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise (admins): `--version` of each program names the build and the series.
    /// With `a_version_names_the_commit_until_the_release`.
    #[test]
    fn the_build_and_the_series_are_named() {
        let (build, series) = TEXT.split_once(" for Slurm ").unwrap();
        assert!(build.starts_with(env!("CARGO_PKG_VERSION")), "{build}");
        assert_eq!(series, Release::BUILT_FOR.series().to_string());
    }
}
