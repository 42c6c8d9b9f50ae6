//! `cargo xtask deny`.

use std::process::Command;

use anyhow::Result;

use crate::cargo::tool;
use xtask_front::cargo::{root, run};

/// The version of cargo-deny for which deny.toml was written.
const VERSION: &str = "0.20.2";

/// Checks licences, bans and sources. The check of advisories needs a network and is run separately.
pub(crate) fn run_check() -> Result<()> {
    let program = tool("cargo-deny", VERSION, &[])?;
    run(Command::new(program)
        .args(["--all-features", "check", "licenses", "bans", "sources"])
        .current_dir(root()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Command;

    use xtask_front::cargo::root;

    /// The most crates in each program of a node and each plugin, gpufrac's own among them, and in Cargo.lock. A change
    /// that needs more says here what the crates give.
    const BUDGET: [(&str, usize); 7] = [
        ("job_submit_gpufrac", 27),
        ("cli_filter_gpufrac", 25),
        ("spank_gpufrac", 58),
        ("gpufrac-prolog", 57),
        ("gpufrac-epilog", 57),
        ("gpufrac-reaper", 122),
        ("gpufrac", 149),
    ];
    const LOCKED: usize = 369;

    #[test]
    fn programs_and_plugins_keep_to_their_budget_of_crates() {
        for (package, most) in BUDGET {
            let args = ["tree", "--locked", "--edges", "normal"];
            let output = Command::new(env!("CARGO"))
                .args(args)
                .args(["--prefix", "none", "--package", package])
                .current_dir(root())
                .output()
                .unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let crates: BTreeSet<&str> = text
                .lines()
                .filter_map(|line| line.split(" (").next())
                .collect();
            assert!(
                (1..=most).contains(&crates.len()),
                "{package} has {} crates, and {most} are its budget: {crates:#?}",
                crates.len()
            );
        }
        let lock = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
        let locked = lock.matches("[[package]]").count();
        assert!(
            locked <= LOCKED,
            "Cargo.lock has {locked} packages, and {LOCKED} are the budget"
        );
    }
}
