//! Builds for packages: linked by zig, which has the symbols of every C library, against the one of [`LIBC`], for this
//! machine's processor and for others. One build serves all releases of Debian, Ubuntu and Red Hat from then on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gpufrac_lab::Release;

use super::elf::LIBC;
use crate::version;
use xtask_front::cargo::{PACKAGES, root, run};

/// The linker and its caller, from PyPI.
const TOOLS: [&str; 2] = ["ziglang==0.17.1", "cargo-zigbuild==0.24.1"];

/// The processor of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Processor {
    X86_64,
    Aarch64,
}

impl Processor {
    pub const ALL: [Processor; 2] = [Processor::X86_64, Processor::Aarch64];

    /// This machine's.
    pub fn own() -> Result<Processor> {
        match Self::ALL
            .into_iter()
            .find(|known| known.name() == std::env::consts::ARCH)
        {
            Some(own) => Ok(own),
            None => bail!(
                "packages for {} are not known; build on x86_64 or aarch64",
                std::env::consts::ARCH
            ),
        }
    }

    /// The name for Rust, Red Hat and the folders of Debian.
    pub fn name(self) -> &'static str {
        match self {
            Processor::X86_64 => "x86_64",
            Processor::Aarch64 => "aarch64",
        }
    }

    /// The name for dpkg.
    pub fn debian(self) -> &'static str {
        match self {
            Processor::X86_64 => "amd64",
            Processor::Aarch64 => "arm64",
        }
    }

    fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }
}

/// A build for one Slurm.
pub(super) struct Build {
    pub release: Release,
    pub processor: Processor,
    /// The folder of the plugins, with Cargo's names, and of the programs.
    pub folder: PathBuf,
}

/// Builds for the Slurm with these headers, which are the same on all processors. `debug`: as tests are built.
pub(super) fn build(slurm_include: &Path, processor: Processor, debug: bool) -> Result<Build> {
    let release = Release::read(slurm_include)?;
    // A separate folder for each release: bindings of one must not be used for another.
    let place = root().join("target/dist").join(release.to_string());
    let target = processor.target();
    add_std(&target)?;
    let tools = root().join("target/tools/zig");
    let programs = debian::python(&tools, &TOOLS)?;
    let mut path = programs.clone().into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut build = Command::new(programs.join("cargo-zigbuild"));
    build
        .current_dir(root())
        .args(["zigbuild", "--quiet", "--locked"])
        .args(["--target", &format!("{target}.{LIBC}"), "--target-dir"])
        .arg(&place)
        .args(PACKAGES.iter().flat_map(|name| ["-p", name]))
        .env("PATH", path)
        .env("CARGO_ZIGBUILD_CACHE_DIR", tools.with_extension("cache"))
        .env(
            "BINDGEN_EXTRA_CLANG_ARGS",
            libc_headers(&programs, processor)?,
        )
        .env("GPUFRAC_SLURM_INCLUDE", headers(&place, slurm_include)?)
        .env("GPUFRAC_BUILD", version::of_tree());
    if debug {
        build
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_PROFILE_DEV_DEBUG", "false");
    } else {
        build.arg("--release");
    }
    run(&mut build)?;
    let profile = if debug { "debug" } else { "release" };
    Ok(Build {
        release,
        processor,
        folder: place.join(target).join(profile),
    })
}

/// A folder with Slurm's headers alone: those of the machine's C library, beside them, are newer, and of its processor.
fn headers(place: &Path, slurm_include: &Path) -> Result<PathBuf> {
    let include = place.join("include");
    let link = include.join("slurm");
    let from = std::path::absolute(slurm_include)?.join("slurm");
    fs::create_dir_all(&include)?;
    if fs::read_link(&link).ok().as_deref() != Some(&from) {
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&from, &link)
            .with_context(|| format!("making {} failed", link.display()))?;
    }
    Ok(include)
}

/// The options by which libclang finds zig's headers of the compiler and of the C library.
fn libc_headers(programs: &Path, processor: Processor) -> Result<String> {
    let print = "import os, ziglang; print(os.path.dirname(ziglang.__file__))";
    let output = Command::new(programs.join("python"))
        .args(["-c", print])
        .output()
        .context("starting python failed")?;
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let own = match processor {
        Processor::X86_64 => "x86",
        Processor::Aarch64 => "aarch64",
    };
    let names = [
        "include".to_owned(),
        format!("libc/include/{own}-linux-gnu"),
        "libc/include/generic-glibc".to_owned(),
        format!("libc/include/{own}-linux-any"),
        "libc/include/any-linux-any".to_owned(),
    ];
    let option = |name| format!("-isystem {folder}/lib/{name}");
    Ok(names.map(option).join(" "))
}

/// Installs Rust's library for a target unless it is there.
fn add_std(target: &str) -> Result<()> {
    let output = Command::new("rustc")
        .args(["--print", "target-libdir", "--target", target])
        .current_dir(root())
        .output()
        .context("starting rustc failed")?;
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    if output.status.success() && folder.is_dir() {
        return Ok(());
    }
    run(Command::new("rustup")
        .args(["target", "add", target])
        .current_dir(root()))
    .with_context(|| format!("Rust has no library for {target} here; install it"))
}
