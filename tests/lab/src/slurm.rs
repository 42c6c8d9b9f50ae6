//! The Slurm that a lab runs: the machine's own, one of another Debian release in a folder, or one with a prefix.
//!
//! The `/usr` of the other release is mounted over the machine's in a mount namespace of the lab, and Slurm's
//! programs run there at the paths for which they were built. Everything else (the lab's folder, `/proc`, control
//! groups, users) is the machine's, and so are the tests themselves; they enter by [`Folder::namespace`]. The programs
//! of a prefix run where they are.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Folder, LabError};

/// The variable with the folder of another Debian release in which Slurm's packages are installed.
const ROOT: &str = "GPUFRAC_SLURM_ROOT";

/// The variable with the prefix of a Slurm built from its source, `/opt/slurm`.
const PREFIX: &str = "GPUFRAC_SLURM_PREFIX";

/// The name of a node's control group (`cgroup_prepend` in Slurm's src/interfaces/cgroup.c); otherwise it is `/slurm`.
const GROUP_OF_NODE: &[u8] = b"/slurm_%n";

/// A Slurm that is installed on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slurm {
    pub(crate) place: Place,
    release: Release,
}

/// A release as `SLURM_VERSION_NUMBER` of `slurm_version.h` has it: 0xMMmmuu, each byte one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release(pub u32);

impl Release {
    /// The release of the headers in a folder that contains `slurm/slurm.h`.
    /// Errors: they do not exist, or have no version number.
    pub fn read(include: &Path) -> Result<Self, LabError> {
        let path = include.join("slurm/slurm_version.h");
        let text = fs::read_to_string(&path).map_err(LabError::file("reading", &path))?;
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
pub(crate) enum Place {
    /// The machine's own.
    Machine,
    /// The folder of another Debian release.
    Root(PathBuf),
    /// A Slurm with its own prefix.
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
    /// The Slurm of `GPUFRAC_SLURM_ROOT` or `GPUFRAC_SLURM_PREFIX`, otherwise the machine's own.
    /// Errors: its development files are not installed.
    pub fn of_environment() -> Result<Self, LabError> {
        let variable = |name| std::env::var_os(name).map(PathBuf::from);
        match variable(PREFIX) {
            Some(prefix) => Self::at(Place::Prefix(prefix)),
            None => Self::in_root(variable(ROOT)),
        }
    }

    /// The variables from which [`Slurm::of_environment`] makes this Slurm.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        match &self.place {
            Place::Machine => Vec::new(),
            Place::Root(root) => vec![(ROOT, root.into())],
            Place::Prefix(prefix) => vec![(PREFIX, prefix.into())],
        }
    }

    /// The Slurm in a folder of Debian, or the machine's own. Errors: its development files are not installed.
    pub fn in_root(root: Option<PathBuf>) -> Result<Self, LabError> {
        Self::at(root.map_or(Place::Machine, Place::Root))
    }

    /// The Slurm with this prefix, which was built from its source.
    /// Errors: there is none, or its development files are not installed.
    pub fn in_prefix(prefix: PathBuf) -> Result<Self, LabError> {
        Self::at(Place::Prefix(prefix))
    }

    fn at(place: Place) -> Result<Self, LabError> {
        let release = Release::read(&place.include())?;
        Ok(Self { place, release })
    }

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

    /// Whether a lab has accounting on it always: without slurmdbd it gives waiting jobs no reason, which tests wait
    /// for (`invalid account` in its log; seen on 23.11 and 24.05, not on 24.11).
    pub fn needs_accounting(&self) -> bool {
        self.since(23, 11) && !self.since(24, 11)
    }

    /// Whether AllocTRES of a job has `gres/shard` where shards have a Type; 23.02.8 does not.
    pub fn counts_typed_shards(&self) -> bool {
        !self.since(23, 2) || self.release.0 >= 0x17_0b_05
    }

    /// The folder that holds `slurm/slurm.h`.
    pub fn include(&self) -> PathBuf {
        self.place.include()
    }

    /// Whether it is the machine's own.
    pub fn is_own(&self) -> bool {
        self.place == Place::Machine
    }

    /// Its prefix, if it was built from its source.
    pub fn prefix(&self) -> Option<&Path> {
        match &self.place {
            Place::Prefix(prefix) => Some(prefix),
            Place::Machine | Place::Root(_) => None,
        }
    }

    /// The folder of the Debian release that contains it; None for the machine's own and for a prefix.
    pub fn root(&self) -> Option<&Path> {
        match &self.place {
            Place::Root(root) => Some(root),
            Place::Machine | Place::Prefix(_) => None,
        }
    }

    /// The folder of its libraries, as the machine sees it. Errors: as [`Slurm::plugins`].
    pub fn libraries(&self) -> Result<PathBuf, LabError> {
        let plugins = self.plugins()?;
        let folder = plugins.parent().unwrap_or(&plugins);
        Ok(match &self.place {
            Place::Root(root) => root.join(folder.strip_prefix("/").unwrap_or(folder)),
            Place::Machine | Place::Prefix(_) => folder.to_path_buf(),
        })
    }

    /// Whether several of its slurmd can run on one machine. A build without it (`--enable-multiple-slurmd`) puts no
    /// node's name into the names of control groups.
    /// Errors: as [`Slurm::plugins`], or the library there cannot be read.
    pub fn has_several_nodes(&self) -> Result<bool, LabError> {
        let Place::Prefix(_) = &self.place else {
            return Ok(true);
        };
        let path = self.plugins()?.join("libslurmfull.so");
        let bytes = fs::read(&path).map_err(LabError::file("reading", &path))?;
        let mut words = bytes.windows(GROUP_OF_NODE.len());
        Ok(words.any(|word| word == GROUP_OF_NODE))
    }

    /// The folder of its own plugins, as it sees it.
    /// Errors: they are not where Debian has them, or slurmctld of a prefix does not run.
    pub fn plugins(&self) -> Result<PathBuf, LabError> {
        let place = match &self.place {
            Place::Machine => PathBuf::from("/usr/lib"),
            Place::Root(root) => root.join("usr/lib"),
            Place::Prefix(prefix) => return plugins_of(&prefix.join("sbin/slurmctld")),
        };
        let entries = fs::read_dir(&place).map_err(LabError::file("reading", &place))?;
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
}

/// The folder of the plugins of a slurmctld. Slurm installs the library of its daemons there, and the loader says where
/// it finds that: sites have `lib/slurm`, `lib64/slurm`, `lib/x86_64-linux-gnu/slurm` and others.
fn plugins_of(slurmctld: &Path) -> Result<PathBuf, LabError> {
    let output = Command::new("ldd").arg(slurmctld).output();
    let output = output.map_err(LabError::file("starting ldd for", slurmctld))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    plugins_in(&text).ok_or_else(|| LabError::Machine {
        what: format!(
            "{} is not a slurmctld, or the loader does not find its libslurmfull.so",
            slurmctld.display()
        ),
        hint: "name the folder that was given to Slurm's `configure --prefix`".into(),
    })
}

/// The folder of Slurm's library in the output of ldd.
fn plugins_in(text: &str) -> Option<PathBuf> {
    let mut lines = text.lines();
    let path = lines.find_map(|line| line.trim().strip_prefix("libslurmfull.so => "))?;
    let (path, _address) = path.rsplit_once(" (")?;
    Path::new(path).parent().map(Path::to_path_buf)
}

/// A command that runs in the lab's Slurm, in `place`, as this user and group or as root. The `PATH` of the caller
/// decides which program it is.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_says_where_the_plugins_are() {
        let text = "\
\tlinux-vdso.so.1 (0x00007ffd)\n\
\tlibslurmfull.so => /opt/my slurm/lib64/slurm/libslurmfull.so (0x00007f0c)\n\
\tlibc.so.6 => /lib/libc.so.6 (0x00007f0b)\n";
        assert_eq!(plugins_in(text), Some("/opt/my slurm/lib64/slurm".into()));
        assert_eq!(plugins_in("\tlibslurmfull.so => not found\n"), None);
        assert_eq!(plugins_in("\tnot a dynamic executable\n"), None);
    }
}
