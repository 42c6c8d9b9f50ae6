//! The series of Slurm that gpufrac is tested on, each from a Debian release or from a prefix.
//!
//! One of them is the machine's own. Those of other Debian releases are installed in folders of the user's cache by
//! debootstrap, from the mirror of the machine's apt; nothing of them is installed on the machine. Those of prefixes
//! were built by somebody before.

mod wanted;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gpufrac_lab::{LabBuilder, Slurm};
use nix::fcntl::{Flock, FlockArg};

use xtask_front::cargo::{self, cargo, root, run};

pub use wanted::{One, Several};

/// Series of Slurm, each with the name of the Debian release.
const SERIES: [(&str, &str); 3] = [
    ("22.05", "bookworm"),
    ("24.11", "trixie"),
    ("26.05", "forky"),
];

/// The packages in a release's folder.
const PACKAGES: &str =
    "slurmctld,slurmd,slurm-client,slurmdbd,slurmrestd,munge,libslurm-dev,procps";

/// Further packages, for folders in which gpufrac is built or Ansible is used.
const COMPILER: &str = "gcc,libclang-dev,xz-utils,python3";

/// A series that can be built for and run.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: &'static str,
    slurm: Slurm,
}

/// The names of all series, the oldest first.
pub fn names() -> impl Iterator<Item = &'static str> {
    SERIES.into_iter().map(|(name, _)| name)
}

impl Series {
    /// Prepares a series: downloads it unless it is the machine's own or was downloaded before.
    pub fn prepare(name: &str) -> Result<Self> {
        let Some((name, release)) = SERIES.into_iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = names().collect();
            bail!(
                "Slurm {name} is not among those that gpufrac is tested on: {}",
                known.join(", ")
            );
        };
        let own = Slurm::in_root(None)?;
        let root = if own.series() == name { None } else { Some(folder(release, "", PACKAGES)?) };
        let slurm = Slurm::in_root(root.clone())?;
        if slurm.series() != name {
            bail!(
                "Debian {release} has Slurm {}, and {name} was wanted",
                slurm.release()
            );
        }
        println!("Slurm {}", slurm.release());
        Ok(Self { name, slurm })
    }

    /// The Slurm with this prefix.
    fn in_prefix(prefix: &str) -> Result<Self> {
        let slurm = Slurm::in_prefix(std::path::absolute(prefix)?)?;
        // There are a few for each run of this program.
        let name = slurm.series().leak();
        Ok(Self { name, slurm })
    }

    /// The folder of a clean Debian with this series, even if it is the machine's own.
    pub fn debian(name: &str) -> Result<PathBuf> {
        folder(release_of(name)?, "", PACKAGES)
    }

    /// As [`Series::debian`], with a C compiler, libclang and Python.
    pub fn debian_to_build_in(name: &str) -> Result<PathBuf> {
        let packages = format!("{PACKAGES},{COMPILER}");
        folder(release_of(name)?, "-build", &packages)
    }

    /// The machine's own series.
    pub fn own() -> Result<Self> {
        Self::prepare(Self::own_name()?)
    }

    /// The name of the machine's own series.
    pub fn own_name() -> Result<&'static str> {
        let own = Slurm::in_root(None)?.series();
        names().find(|name| **name == own).with_context(|| {
            let known: Vec<_> = names().collect();
            format!(
                "this machine's Slurm {own} is not among those that gpufrac is tested on: {}",
                known.join(", ")
            )
        })
    }

    /// Whether it is the machine's own series.
    pub fn is_own(&self) -> bool {
        self.slurm.is_own()
    }

    /// Slurm itself.
    pub fn slurm(&self) -> &Slurm {
        &self.slurm
    }

    /// The option of `cargo xtask` that names it.
    pub fn option(&self) -> String {
        match self.slurm.prefix() {
            Some(prefix) => format!("--slurm-prefix {}", prefix.display()),
            None => format!("--slurm {}", self.name),
        }
    }

    /// The build folder for its headers: bindings of one Slurm must not be used for another.
    pub fn build_folder(&self) -> PathBuf {
        if self.is_own() {
            root().join("target/debug")
        } else {
            self.target().join("debug")
        }
    }

    fn target(&self) -> PathBuf {
        let place = match self.slurm.prefix() {
            Some(_) => "target/slurm/prefix",
            None => "target/slurm",
        };
        root().join(place).join(self.name)
    }

    /// Builds the packages that depend on its headers. Every build contains those for the machine's own series.
    pub fn build(&self) -> Result<()> {
        if self.is_own() {
            return Ok(());
        }
        let target = self.target();
        begin_build(&target)?;
        // Besides what is packed, tests run an example of slurm-sys. xtask is named so that Cargo takes
        // the features with which the crates of the folder were compiled; its own program is not built.
        let packages = [&cargo::PACKAGES[..], &["slurm-sys", "xtask"]].concat();
        let kinds = ["--lib", "--examples", "--bin", "gpufrac*"];
        let mut command = cargo(&["build", "--quiet", "--profile", "test"]);
        command
            .args(packages.iter().flat_map(|name| ["-p", name]))
            .args(kinds)
            // The daemon of a lab has little to compute, and would be half of this build.
            .args([
                "--config",
                "profile.test.package.gpufrac-reaper.opt-level=0",
            ])
            .arg("--target-dir")
            .arg(&target)
            .envs(self.include());
        run(&mut command)
    }

    /// The variable with the path of its headers; None for the machine's own.
    fn include(&self) -> Option<(&'static str, OsString)> {
        let include = self.slurm.include().into();
        (!self.is_own()).then_some(("GPUFRAC_SLURM_INCLUDE", include))
    }

    /// A lab that runs on this series.
    pub fn give(&self, builder: LabBuilder) -> LabBuilder {
        builder
            .slurm(self.slurm.clone())
            .series_folder(self.build_folder())
    }

    /// The environment by which an end-to-end test runs on this series.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut environment = self.slurm.environment();
        if let Some(include) = self.include() {
            let folder = self.build_folder().into();
            environment.extend([("GPUFRAC_SERIES_DIR", folder), include]);
        }
        environment
    }
}

/// Lets the build folder in which tests build variants of plugins begin as those of series do.
pub fn begin_variants() -> Result<()> {
    begin_build(&root().join("target/variants"))
}

/// A new build folder begins with the crates of the machine's own build: Cargo then compiles only what depends on
/// Slurm's headers. The libraries are linked, because compiler and linker replace such a file and never write into it;
/// Cargo writes into its own files, so they are copied.
fn begin_build(target: &Path) -> Result<()> {
    let (own, new) = (root().join("target/debug"), target.join("debug"));
    if new.exists() || !own.exists() {
        return Ok(());
    }
    let libraries = new.join("deps");
    fs::create_dir_all(&libraries)?;
    for entry in fs::read_dir(own.join("deps"))? {
        let entry = entry?;
        let path = entry.path();
        let kind = path.extension().and_then(OsStr::to_str);
        if let Some("rlib" | "rmeta" | "so") = kind {
            fs::hard_link(&path, libraries.join(entry.file_name()))?;
        }
    }
    let own_files = [own.join(".fingerprint"), own.join("build")];
    run(Command::new("cp").arg("--archive").args(own_files).arg(new))
}

/// The user's cache, in which a clean checkout finds earlier downloads.
fn cache() -> Result<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let place = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(home);
    Ok(place
        .context("neither XDG_CACHE_HOME nor HOME is set")?
        .join("gpufrac"))
}

/// The Debian release of a series.
fn release_of(name: &str) -> Result<&'static str> {
    let found = SERIES.into_iter().find(|(known, _)| *known == name);
    let (_, release) = found.with_context(|| format!("no Debian is known with Slurm {name}"))?;
    Ok(release)
}

/// The folder of a Debian release with these packages.
fn folder(release: &str, suffix: &str, packages: &str) -> Result<PathBuf> {
    let cache = cache()?;
    let name = format!("{release}{suffix}");
    fs::create_dir_all(&cache).with_context(|| format!("creating {} failed", cache.display()))?;
    let lock = cache.join(format!("{name}.lock"));
    let file =
        fs::File::create(&lock).with_context(|| format!("creating {} failed", lock.display()))?;
    let _lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    let (ready, partial) = (cache.join(&name), cache.join(format!("{name}.partial")));
    let has = fs::read_to_string(ready.join(STAMP)).unwrap_or_default();
    if has == packages {
        return Ok(ready);
    }
    for old in [&ready, &partial].into_iter().filter(|old| old.exists()) {
        fs::remove_dir_all(old).with_context(|| format!("removing {} failed", old.display()))?;
    }
    println!(
        "downloading Debian {release} with Slurm into {}",
        ready.display()
    );
    bootstrap(release, packages, &partial)?;
    fs::write(partial.join(STAMP), packages)?;
    fs::rename(&partial, &ready)?;
    Ok(ready)
}

/// A file in a release's folder with the installed packages; written last.
const STAMP: &str = "gpufrac-packages";

fn bootstrap(release: &str, packages: &str, folder: &Path) -> Result<()> {
    let scripts = Path::new("/usr/share/debootstrap/scripts");
    // debootstrap's script for releases that it does not know by name yet.
    let script = if scripts.join(release).exists() { release } else { "sid" };
    let log = folder.with_extension("log");
    let output = fs::File::create(&log)?;
    let mut command = Command::new("debootstrap");
    command
        .args([
            "--variant=minbase",
            &format!("--include={packages}"),
            release,
        ])
        .arg(folder)
        .arg(debian::mirror()?)
        .arg(scripts.join(script))
        .stderr(output.try_clone()?)
        .stdout(output);
    // debootstrap does not read apt's configuration.
    if let Some(proxy) = debian::proxy() {
        command.env("http_proxy", proxy);
    }
    run(&mut command).with_context(|| format!("see {}", log.display()))
}
