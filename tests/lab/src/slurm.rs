//! Which Slurm a lab runs: the machine's own, or one of another Debian release in a folder.
//!
//! The other one's `/usr` is put over the machine's in a mount namespace of the lab, and Slurm's programs run
//! there, at the paths that they were built for. All else (the lab's folder, `/proc`, control groups, users) is
//! the machine's, and so are the tests themselves: [`Folder::namespace`] is how they reach in.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::daemons::{self, Daemon, Environment};
use crate::{Folder, LabError};

/// The folder of another Debian release, with Slurm's packages installed in it.
const ROOT: &str = "GPUFRAC_SLURM_ROOT";

/// The prefix of a Slurm that was built from its source, `/opt/slurm`.
const PREFIX: &str = "GPUFRAC_SLURM_PREFIX";

/// What the namespace's first process does; after this it only keeps the namespace. The lab's users get a shell
/// there, as Slurm since 26.05 puts a job with `--export=NAME` back whose user cannot log in.
const MOUNTS: &str = "\
mount --rbind \"$1/usr\" /usr &&
sed 's#/usr/sbin/nologin$#/bin/sh#' /etc/passwd > \"$2\" &&
mount --bind \"$2\" /etc/passwd || exit 1
for path in etc/ld.so.cache etc/alternatives; do
    mount --bind \"$1/$path\" \"/$path\" || exit 1
done
exec sleep infinity";

/// A Slurm that is installed on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slurm {
    place: Place,
    release: Release,
}

/// A release as `SLURM_VERSION_NUMBER` of `slurm_version.h` has it: 0xMMmmuu, each byte one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release(pub u32);

impl Release {
    /// That of the headers in a folder that holds `slurm/slurm.h`.
    ///
    /// # Errors
    /// When they are not there, or say no number.
    pub fn read(include: &Path) -> Result<Self, LabError> {
        let path = include.join("slurm/slurm_version.h");
        let text = fs::read_to_string(&path).map_err(LabError::file("cannot read", &path))?;
        text.lines()
            .find_map(|line| line.strip_prefix("#define SLURM_VERSION_NUMBER"))
            .and_then(|value| u32::from_str_radix(value.trim().trim_start_matches("0x"), 16).ok())
            .map(Self)
            .ok_or_else(|| LabError::Unexpected {
                what: format!("SLURM_VERSION_NUMBER in {}", path.display()),
                found: text,
            })
    }

    /// `24.11`.
    pub fn series(self) -> String {
        format!("{}.{:02}", self.0 >> 16 & 0xff, self.0 >> 8 & 0xff)
    }
}

/// `24.11.5`.
impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.series(), self.0 & 0xff)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    /// The machine's own.
    Machine,
    /// The folder of another Debian release.
    Root(PathBuf),
    /// A prefix of its own.
    Prefix(PathBuf),
}

impl Place {
    fn include(&self) -> PathBuf {
        match self {
            Place::Machine => "/usr/include".into(),
            Place::Root(root) => root.join("usr/include"),
            Place::Prefix(prefix) => prefix.join("include"),
        }
    }
}

impl Slurm {
    /// That of `GPUFRAC_SLURM_ROOT` or `GPUFRAC_SLURM_PREFIX`, or the machine's own.
    ///
    /// # Errors
    /// When its development files are not installed.
    pub fn of_environment() -> Result<Self, LabError> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        match variable(PREFIX) {
            Some(prefix) => Self::at(Place::Prefix(prefix)),
            None => Self::in_root(variable(ROOT)),
        }
    }

    /// The one in a folder of Debian, or the machine's own.
    ///
    /// # Errors
    /// When its development files are not there.
    pub fn in_root(root: Option<PathBuf>) -> Result<Self, LabError> {
        Self::at(root.map_or(Place::Machine, Place::Root))
    }

    fn at(place: Place) -> Result<Self, LabError> {
        let release = Release::read(&place.include())?;
        Ok(Self { place, release })
    }

    /// Of which release it is.
    pub fn release(&self) -> Release {
        self.release
    }

    /// Its series, `24.11`.
    pub fn series(&self) -> String {
        self.release.series()
    }

    /// Whether it is of this series or a later one.
    pub fn since(&self, year: u32, month: u32) -> bool {
        self.release.0 >> 8 >= (year << 8 | month)
    }

    /// The folder that holds `slurm/slurm.h`.
    pub fn include(&self) -> PathBuf {
        self.place.include()
    }

    /// The folder of the Debian release that it is in; `None` for the machine's own and for a prefix.
    pub fn root(&self) -> Option<&Path> {
        match &self.place {
            Place::Root(root) => Some(root),
            Place::Machine | Place::Prefix(_) => None,
        }
    }

    /// The folder of its libraries, as the machine sees it.
    ///
    /// # Errors
    /// As [`Slurm::plugins`].
    pub fn libraries(&self) -> Result<PathBuf, LabError> {
        let plugins = self.plugins()?;
        let folder = plugins.parent().unwrap_or(&plugins);
        Ok(match &self.place {
            Place::Root(root) => root.join(folder.strip_prefix("/").unwrap_or(folder)),
            Place::Machine | Place::Prefix(_) => folder.to_path_buf(),
        })
    }

    /// Where its own plugins are, as itself sees it.
    ///
    /// # Errors
    /// When they are not where Debian has them.
    pub fn plugins(&self) -> Result<PathBuf, LabError> {
        let place = match &self.place {
            Place::Machine => PathBuf::from("/usr/lib"),
            Place::Root(root) => root.join("usr/lib"),
            Place::Prefix(prefix) => return Ok(prefix.join("lib/slurm")),
        };
        let entries = fs::read_dir(&place).map_err(LabError::file("cannot read", &place))?;
        entries
            .flatten()
            .find(|entry| entry.path().join("slurm-wlm/select_cons_tres.so").exists())
            .map(|entry| {
                Path::new("/usr/lib")
                    .join(entry.file_name())
                    .join("slurm-wlm")
            })
            .ok_or_else(|| LabError::Machine {
                what: format!(
                    "Slurm's plugins are not under {}/*/slurm-wlm",
                    place.display()
                ),
                hint: "cargo xtask setup".into(),
            })
    }

    /// Makes what a lab needs to run this Slurm: the namespace, or a link to the prefix.
    pub(crate) fn enter(&self, folder: &Folder) -> Result<Option<Daemon>, LabError> {
        let root = match &self.place {
            Place::Machine => return Ok(None),
            Place::Root(root) => root,
            Place::Prefix(prefix) => {
                let link = folder.prefix();
                std::os::unix::fs::symlink(prefix, &link)
                    .map_err(LabError::file("cannot make", &link))?;
                return Ok(None);
            }
        };
        let root = root.display().to_string();
        let passwd = folder.etc().join("passwd").display().to_string();
        let args = [
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            MOUNTS,
            "sh",
            &root,
            &passwd,
        ];
        let daemon = daemons::start(folder, &Environment::new(), "namespace", "unshare", &args)?;
        let comm = format!("/proc/{}/comm", daemon.process.pid);
        // The name changes when the mounts are done.
        daemons::wait_until_ready(folder, &daemon, Duration::from_secs(5), || {
            fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "sleep")
        })?;
        let link = folder.namespace();
        let namespace = format!("/proc/{}/ns/mnt", daemon.process.pid);
        std::os::unix::fs::symlink(namespace, &link)
            .map_err(LabError::file("cannot make", &link))?;
        Ok(Some(daemon))
    }
}

/// A command that runs where the lab's Slurm is, in `place`, as this user and group if not as root.
///
/// Which program it is, is up to the `PATH` that the caller sets.
pub(crate) fn command(
    folder: &Folder,
    program: &std::ffi::OsStr,
    place: &Path,
    user: Option<(u32, u32)>,
) -> Command {
    use std::os::unix::process::CommandExt;
    let namespace = folder.namespace();
    let mut command;
    if namespace.exists() {
        command = Command::new("nsenter");
        for (option, value) in [("--mount", &*namespace), ("--wdns", place)] {
            let mut word = std::ffi::OsString::from(option);
            word.push("=");
            word.push(value);
            command.arg(word);
        }
        if let Some((uid, gid)) = user {
            command.args([format!("--setuid={uid}"), format!("--setgid={gid}")]);
        }
        command.arg("--").arg(program);
    } else {
        command = Command::new(program);
        command.current_dir(place);
        if let Some((uid, gid)) = user {
            command.uid(uid).gid(gid);
        }
    }
    command
}
