//! Debian packages that the machine's apt sources do not have: of another release, or of the components contrib and
//! non-free. They come from the machine's mirror through a private configuration of apt; nothing is installed on the
//! machine. And packages of PyPI, in folders of their own.

#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use nix::fcntl::{Flock, FlockArg};

mod python;

pub use python::python;

/// How long downloaded package lists are used.
const LISTS_AGE: Duration = Duration::from_secs(24 * 3600);

/// The reasons why a package is not available.
#[derive(Debug, thiserror::Error)]
pub enum DebianError {
    /// A program failed.
    #[error("`{command}` failed: {reason}")]
    Failed {
        /// The program with its arguments.
        command: String,
        /// The last lines of its output.
        reason: String,
    },
    /// The machine's apt names no Debian mirror.
    #[error("apt on this machine has no source with the component main")]
    NoMirror,
    /// No file was downloaded for this package.
    #[error("apt downloaded nothing for {0}")]
    Nothing(String),
    /// A file or folder could not be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> DebianError {
    let path = path.to_owned();
    move |source| DebianError::Io { path, source }
}

fn run(command: &mut Command) -> Result<String, DebianError> {
    let output = command.output();
    let failed = |reason: String| DebianError::Failed {
        command: format!("{command:?}"),
        reason,
    };
    match output {
        Err(error) => Err(failed(error.to_string())),
        Ok(output) if !output.status.success() => {
            let text = String::from_utf8_lossy(&output.stderr);
            let last: Vec<&str> = text.lines().rev().take(3).collect();
            Err(failed(last.join(" | ")))
        }
        Ok(output) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
    }
}

/// Debian's own keys, where the package debian-archive-keyring puts them.
const KEY_RING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The proxy that the machine's apt uses, if any.
pub fn proxy() -> Option<String> {
    let line = run(Command::new("apt-config").args(["dump", "Acquire::http::Proxy"])).ok()?;
    let value = line.split('"').nth(1)?;
    (!value.is_empty() && value != "DIRECT").then(|| value.to_owned())
}

/// The machine's mirror. Errors: apt has no source with the component main.
pub fn mirror() -> Result<String, DebianError> {
    let format = "$(COMPONENT) $(SUITE) $(REPO_URI)";
    let sources = run(Command::new("apt-get").args([
        "indextargets",
        "--format",
        format,
        "Created-By: Packages",
    ]))?;
    sources
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (component, suite, uri) = (words.next()?, words.next()?, words.next()?);
            // Updates and security updates have other mirrors.
            let plain = component == "main" && !suite.contains('-') && !suite.contains('/');
            plain.then(|| uri.to_owned())
        })
        .next()
        .ok_or(DebianError::NoMirror)
}

/// A release of Debian with all its components.
#[derive(Debug)]
pub struct Release {
    folder: PathBuf,
    /// Locked, so that two programs do not write to the same folder.
    _lock: Flock<File>,
}

impl Release {
    /// Prepares a release in a folder below `cache`, and downloads its package lists unless those of today are there.
    /// Errors: there is no mirror, or it cannot be reached.
    pub fn open(cache: &Path, name: &str) -> Result<Release, DebianError> {
        let folder = cache.join(name);
        for part in ["lists/partial", "archives/partial", "state", "packages"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(at(&path))?;
        }
        let path = folder.join("lock");
        let file = File::create(&path).map_err(at(&path))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, error)| at(&path)(error.into()))?;
        let release = Release {
            folder,
            _lock: lock,
        };
        let stamp = release.folder.join("updated");
        let age = fs::metadata(&stamp)
            .and_then(|found| found.modified())
            .ok()
            .and_then(|time| SystemTime::now().duration_since(time).ok());
        if age.is_none_or(|age| age > LISTS_AGE) {
            let uri = mirror()?;
            let signed = if Path::new(KEY_RING).exists() {
                format!("[signed-by={KEY_RING}] ")
            } else {
                String::new()
            };
            let line = format!("deb {signed}{uri} {name} main contrib non-free\n");
            let write = |name: &str, text: &str| {
                let path = release.folder.join(name);
                fs::write(&path, text).map_err(at(&path))
            };
            write("sources.list", &line)?;
            write("status", "")?;
            run(release.apt("apt-get").args(["-q", "update"]))?;
            write("updated", "")?;
        }
        Ok(release)
    }

    /// A command of apt that uses only this release.
    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (key, name) in [
            ("Dir::Etc::SourceList", "sources.list"),
            ("Dir::State", "state"),
            ("Dir::State::Lists", "lists"),
            ("Dir::State::status", "status"),
            ("Dir::Cache", ""),
        ] {
            let value = self.folder.join(name);
            command.arg("-o").arg(format!("{key}={}", value.display()));
        }
        for fixed in [
            "Dir::Etc::SourceParts=/dev/null",
            "Dir::Etc::Preferences=/dev/null",
            "Dir::Etc::PreferencesParts=/dev/null",
            "APT::Sandbox::User=root",
            "Debug::NoLocking=1",
        ] {
            command.args(["-o", fixed]);
        }
        command
    }

    /// The version of a package; None if the release does not have it. Errors: apt fails.
    pub fn version(&self, name: &str) -> Result<Option<String>, DebianError> {
        let text = run(self.apt("apt-cache").args(["policy", name]))?;
        let version = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "));
        Ok(version
            .filter(|version| *version != "(none)")
            .map(str::to_owned))
    }

    /// The file of a package, downloaded or from the cache. Errors: the release does not have it.
    pub fn package(&self, name: &str) -> Result<PathBuf, DebianError> {
        let folder = self.folder.join("packages");
        let find = || -> Option<PathBuf> {
            let mut entries = fs::read_dir(&folder)
                .ok()?
                .flatten()
                .map(|entry| entry.path());
            entries.find(|path| {
                let file = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
                file.starts_with(&format!("{name}_")) && file.ends_with(".deb")
            })
        };
        if find().is_none() {
            run(self
                .apt("apt-get")
                .args(["-q", "download", name])
                .current_dir(&folder))?;
        }
        find().ok_or_else(|| DebianError::Nothing(name.to_owned()))
    }

    /// Downloads packages with all of their dependencies, libc included. Errors: the release does not have them.
    pub fn packages_with_dependencies(&self, names: &[&str]) -> Result<Vec<PathBuf>, DebianError> {
        let arguments = ["-q", "-y", "--download-only", "--no-install-recommends"];
        run(self
            .apt("apt-get")
            .arg("install")
            .args(arguments)
            .args(names))?;
        let folder = self.folder.join("archives");
        let entries = fs::read_dir(&folder).map_err(at(&folder))?.flatten();
        let all: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| path.extension() == Some(OsStr::new("deb")))
            .collect();
        if all.is_empty() {
            return Err(DebianError::Nothing(names.join(" ")));
        }
        Ok(all)
    }
}

/// Unpacks a package without running its scripts. Errors: dpkg fails.
pub fn extract(package: &Path, to: &Path) -> Result<(), DebianError> {
    run(Command::new("dpkg-deb").arg("-x").arg(package).arg(to)).map(drop)
}

/// Unpacks packages as the tree of a machine for chroot: with the links of a merged `/usr`, and with root as the only
/// user. Errors: tar or the file system fails.
pub fn tree(packages: &[PathBuf], to: &Path) -> Result<(), DebianError> {
    for name in ["bin", "lib", "lib64", "sbin"] {
        let target = to.join("usr").join(name);
        fs::create_dir_all(&target).map_err(at(&target))?;
        let link = to.join(name);
        if !link.is_symlink() {
            symlink(format!("usr/{name}"), &link).map_err(at(&link))?;
        }
    }
    for package in packages {
        // dpkg-deb -x would replace the links by folders.
        run(Command::new("sh")
            .args([
                "-c",
                "dpkg-deb --fsys-tarfile \"$1\" | tar -x --keep-directory-symlink -C \"$2\"",
                "sh",
            ])
            .arg(package)
            .arg(to))?;
    }
    for (name, text) in [
        ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
        ("etc/group", "root:x:0:\n"),
    ] {
        let path = to.join(name);
        fs::write(&path, text).map_err(at(&path))?;
    }
    Ok(())
}

/// The path of `nvidia-smi` of a release, and the driver version that it requires. It is downloaded once.
/// Errors: the release could not be queried, or the package could not be unpacked.
pub fn nvidia_smi(cache: &Path, release: &str) -> Result<(PathBuf, String), DebianError> {
    let package = Release::open(cache, release)?.package("nvidia-smi")?;
    let folder = cache.join(release).join("nvidia-smi");
    let program = folder.join("usr/lib/nvidia/current/nvidia-smi");
    if !program.exists() {
        extract(&package, &folder)?;
    }
    let file = package.file_name().and_then(OsStr::to_str);
    let version = file.unwrap_or_default().split(['_', '-']).nth(2);
    Ok((program, version.unwrap_or_default().to_owned()))
}

/// The releases that are searched for `nvidia-cuda-mps`. Only experimental has a version with `-multiuser-server`.
const MPS_RELEASES: [&str; 4] = ["bookworm", "trixie", "sid", "experimental"];

/// The path of NVIDIA's `nvidia-cuda-mps-control`, the newest in Debian, with `nvidia-cuda-mps-server` beside it in
/// `usr/sbin`. It is downloaded once; later calls need no network.
/// Errors: no release could be queried, or none has the package.
pub fn mps_control(cache: &Path) -> Result<PathBuf, DebianError> {
    const PACKAGE: &str = "nvidia-cuda-mps";
    let folder = cache.join(PACKAGE);
    let control = folder.join("usr/bin/nvidia-cuda-mps-control");
    if control.exists() {
        return Ok(control);
    }
    let mut newest: Option<(String, PathBuf)> = None;
    for name in MPS_RELEASES {
        let release = Release::open(cache, name)?;
        let Some(version) = release.version(PACKAGE)? else {
            continue;
        };
        if match &newest {
            Some((best, _)) => is_newer(&version, best)?,
            None => true,
        } {
            newest = Some((version, release.package(PACKAGE)?));
        }
    }
    let (_, package) = newest.ok_or_else(|| DebianError::Nothing(PACKAGE.to_owned()))?;
    // Renamed as a whole, because another program may do the same.
    let partial = cache.join(format!(".{PACKAGE}.{}", std::process::id()));
    extract(&package, &partial)?;
    // gpufrac refuses a program that others can change.
    run(Command::new("chmod").args(["-R", "go-w"]).arg(&partial))?;
    let renamed = fs::rename(&partial, &folder);
    if renamed.is_err() && control.exists() {
        let _ = fs::remove_dir_all(&partial);
    } else {
        renamed.map_err(at(&folder))?;
    }
    Ok(control)
}

fn is_newer(version: &str, than: &str) -> Result<bool, DebianError> {
    let mut command = Command::new("dpkg");
    command.args(["--compare-versions", version, "gt", than]);
    match command.status() {
        Ok(status) => Ok(status.success()),
        Err(error) => Err(DebianError::Failed {
            command: format!("{command:?}"),
            reason: error.to_string(),
        }),
    }
}
