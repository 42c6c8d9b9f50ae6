//! `cargo xtask deny`.

use std::process::Command;

use anyhow::Result;

use crate::cargo::{root, run, tool};

/// The version of cargo-deny for which deny.toml was written.
const VERSION: &str = "0.20.2";

/// Checks licences, bans and sources. The check of advisories needs a network and is run separately.
pub(crate) fn run_check() -> Result<()> {
    let program = tool("cargo-deny", VERSION, &[])?;
    run(Command::new(program)
        .args(["--all-features", "check", "licenses", "bans", "sources"])
        .current_dir(root()))
}
