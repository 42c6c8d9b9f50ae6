//! Installs the Debian packages that building and testing need.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::cargo::run as run_command;

/// What building gpufrac and running a cluster need: real Slurm, its headers, libclang for bindgen, a linker.
pub const CLUSTER: &[&str] = &[
    "slurmctld",
    "slurmd",
    "slurm-client",
    "munge",
    "libslurm-dev",
    "libclang-dev",
    "gcc",
    "libc6-dev",
];

/// Slurm's accounting with its database.
pub const ACCOUNTING: &[&str] = &["slurmdbd", "mariadb-server"];

/// Slurm of other releases of Debian.
pub const RELEASES: &[&str] = &["debootstrap"];

/// What tests need besides: Slurm's REST daemon, a browser, and checkers of memory and manual pages.
const TESTS: &[&str] = &["slurmrestd", "chromium", "valgrind", "mandoc"];

/// What all tasks need.
pub const ALL: &[&[&str]] = &[CLUSTER, ACCOUNTING, RELEASES, TESTS];

/// A program that Debian runs before it starts a service; with exit code 101 the service is not started.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// Installs missing packages of these groups; without missing ones it does nothing and needs no network.
pub fn run(groups: &[&[&str]]) -> Result<()> {
    let packages = groups.concat();
    let is_missing = |package: &&str| !is_installed(package);
    let missing: Vec<_> = packages.iter().copied().filter(is_missing).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let words = missing.join(" ");
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!(
            "this machine has no apt-get: install the equivalents of these Debian packages: {words}"
        );
    }
    if !is_root()? {
        bail!("missing packages: {words}\nhint: run as root, or: sudo apt-get install {words}");
    }
    println!("installing {words}");
    let _policy = Policy::set()?;
    apt(&["update", "--quiet"])?;
    let mut install = vec!["install", "--yes", "--quiet", "--no-install-recommends"];
    install.extend(&missing);
    apt(&install)
}

fn is_installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", package])
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

fn apt(args: &[&str]) -> Result<()> {
    run_command(
        Command::new("apt-get")
            .args(["-o", "Dpkg::Use-Pty=0"])
            .args(args)
            .env("DEBIAN_FRONTEND", "noninteractive"),
    )
}

fn is_root() -> Result<bool> {
    let output = Command::new("id")
        .arg("-u")
        .output()
        .context("starting `id` failed")?;
    Ok(output.stdout.trim_ascii() == b"0")
}

/// Keeps Debian from starting slurmctld, MariaDB and other daemons during installation: the lab runs its own.
struct Policy {
    ours: bool,
}

impl Policy {
    fn set() -> Result<Self> {
        let ours = !Path::new(POLICY).exists();
        if ours {
            fs::write(POLICY, "#!/bin/sh\nexit 101\n")
                .with_context(|| format!("writing {POLICY} failed"))?;
            fs::set_permissions(POLICY, fs::Permissions::from_mode(0o755))
                .with_context(|| format!("setting the mode of {POLICY} failed"))?;
        }
        Ok(Self { ours })
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if self.ours
            && let Err(error) = fs::remove_file(POLICY)
        {
            eprintln!("removing {POLICY} failed: {error}");
        }
    }
}
