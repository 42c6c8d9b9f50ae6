//! `cargo xtask deny`.

use std::process::Command;

use anyhow::Result;

use crate::cargo::{cargo, root, run};

/// The version that deny.toml was written for.
const VERSION: &str = "0.20.2";

/// Checks licences, bans and sources; the advisory database needs a network and is left to a schedule.
pub(crate) fn run_check() -> Result<()> {
    let tools = root().join("target/tools");
    let program = tools.join("bin/cargo-deny");
    if !program.exists() {
        let place = tools.display().to_string();
        run(&mut cargo(&[
            "install",
            "cargo-deny",
            "--locked",
            "--version",
            VERSION,
            "--root",
            &place,
        ]))?;
    }
    run(Command::new(program)
        .args(["--all-features", "check", "licenses", "bans", "sources"])
        .current_dir(root()))
}
