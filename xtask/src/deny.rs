//! `cargo xtask deny`.

use std::process::Command;

use anyhow::Result;

use crate::cargo::{root, run, tool};

/// The version that deny.toml was written for.
const VERSION: &str = "0.20.2";

/// Checks licences, bans and sources; the advisory database needs a network and is left to a schedule.
pub(crate) fn run_check() -> Result<()> {
    let program = tool("cargo-deny", VERSION, &[])?;
    run(Command::new(program)
        .args(["--all-features", "check", "licenses", "bans", "sources"])
        .current_dir(root()))
}
