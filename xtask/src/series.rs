//! The series of Slurm that gpufrac is tested on, each from the Debian release that has it.
//!
//! One of them is the machine's own. The others come into folders of the user's cache by debootstrap, from the
//! mirror that the machine's apt names; nothing of them is installed on the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use gpufrac_lab::Slurm;
use gpusim::debian;
use nix::fcntl::{Flock, FlockArg};

use crate::cargo::{cargo, root, run};

/// Series of Slurm, and Debian's name for the release.
const SERIES: [(&str, &str); 3] = [
    ("22.05", "bookworm"),
    ("24.11", "trixie"),
    ("26.05", "forky"),
];

/// What is installed in a release's folder.
const PACKAGES: &str =
    "slurmctld,slurmd,slurm-client,slurmdbd,slurmrestd,munge,libslurm-dev,procps";

/// A series that can be built for and run.
pub(crate) struct Series {
    pub name: &'static str,
    /// None where it is the machine's own.
    root: Option<PathBuf>,
}

/// Names of all series, the oldest first.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    SERIES.into_iter().map(|(name, _)| name)
}

impl Series {
    /// Makes a series ready: downloads it, if it is neither the machine's own nor there from before.
    pub fn prepare(name: &str) -> Result<Self> {
        let Some((name, release)) = SERIES.into_iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = names().collect();
            bail!(
                "Slurm {name} is not among those that gpufrac is tested on: {}",
                known.join(", ")
            );
        };
        let own = Slurm::in_root(None)?;
        let root = match own.series() == name {
            true => None,
            false => Some(folder(release)?),
        };
        let slurm = Slurm::in_root(root.clone())?;
        if slurm.series() != name {
            bail!(
                "Debian {release} has Slurm {}, and {name} was wanted",
                slurm.version()
            );
        }
        println!("Slurm {}", slurm.version());
        Ok(Self { name, root })
    }

    /// The machine's own series.
    pub fn own() -> Result<Self> {
        Self::prepare(&Slurm::in_root(None)?.series())
    }

    /// Whether it is the machine's own.
    pub fn is_own(&self) -> bool {
        self.root.is_none()
    }

    /// The Slurm itself.
    pub fn slurm(&self) -> Result<Slurm> {
        Ok(Slurm::in_root(self.root.clone())?)
    }

    /// cargo's folder for what is built for it: bindings of one Slurm must not be taken for another's.
    pub fn target(&self) -> PathBuf {
        match &self.root {
            None => root().join("target"),
            Some(_) => root().join("target/slurm").join(self.name),
        }
    }

    /// A command of cargo that builds for this series, or runs tests on it.
    pub fn cargo(&self, args: &[&str]) -> Command {
        let mut command = cargo(args);
        if let Some(root) = &self.root {
            command
                .env("CARGO_TARGET_DIR", self.target())
                .env("GPUFRAC_SLURM_INCLUDE", root.join("usr/include"))
                .env("GPUFRAC_SLURM_ROOT", root);
        }
        command
    }

    /// Builds the whole workspace for it, as it is tested.
    pub fn build(&self) -> Result<()> {
        run(&mut self.cargo(&["build", "--workspace", "--quiet"]))
    }
}

/// The user's cache, where a clean checkout finds what an earlier one downloaded.
fn cache() -> Result<PathBuf> {
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let place = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(home);
    Ok(place
        .context("neither XDG_CACHE_HOME nor HOME is set")?
        .join("gpufrac"))
}

/// The folder of a Debian release with Slurm in it.
fn folder(release: &str) -> Result<PathBuf> {
    let cache = cache()?;
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let lock = cache.join(format!("{release}.lock"));
    let file =
        fs::File::create(&lock).with_context(|| format!("cannot make {}", lock.display()))?;
    let _lock = Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    let (ready, partial) = (
        cache.join(release),
        cache.join(format!("{release}.partial")),
    );
    let has = fs::read_to_string(ready.join(STAMP)).unwrap_or_default();
    if has == PACKAGES {
        return Ok(ready);
    }
    for old in [&ready, &partial].into_iter().filter(|old| old.exists()) {
        fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
    }
    println!(
        "downloading Debian {release} with Slurm into {}",
        ready.display()
    );
    bootstrap(release, &partial)?;
    fs::write(partial.join(STAMP), PACKAGES)?;
    fs::rename(&partial, &ready)?;
    Ok(ready)
}

/// In a release's folder: the packages that were asked for. Written last.
const STAMP: &str = "gpufrac-packages";

fn bootstrap(release: &str, folder: &Path) -> Result<()> {
    let scripts = Path::new("/usr/share/debootstrap/scripts");
    // One for all releases that this debootstrap does not know by name yet.
    let script = match scripts.join(release).exists() {
        true => release,
        false => "sid",
    };
    let log = folder.with_extension("log");
    let output = fs::File::create(&log)?;
    let mut command = Command::new("debootstrap");
    command
        .args([
            "--variant=minbase",
            &format!("--include={PACKAGES}"),
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
