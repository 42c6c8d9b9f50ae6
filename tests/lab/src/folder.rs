//! The paths in a lab's folder.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::LabError;
use crate::patience::Patience;

/// The lab's folder.
#[derive(Debug, Clone)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder at `root`, which need not exist.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.0
    }

    pub fn slurm_conf(&self) -> PathBuf {
        self.etc().join("slurm.conf")
    }

    /// gpufrac.toml, for `GPUFRAC_CONFIG`.
    pub fn gpufrac_conf(&self) -> PathBuf {
        self.etc().join("gpufrac.toml")
    }

    /// Configuration files.
    pub fn etc(&self) -> PathBuf {
        self.0.join("etc")
    }

    /// Logs of all daemons.
    pub fn log(&self) -> PathBuf {
        self.0.join("log")
    }

    /// gpufrac's programs as installed in the lab.
    pub fn bin(&self) -> PathBuf {
        self.0.join("bin")
    }

    /// gpufrac's plugins as installed in the lab.
    pub fn lib(&self) -> PathBuf {
        self.0.join("lib")
    }

    /// The working directory of jobs, writable by all users.
    pub fn work(&self) -> PathBuf {
        self.0.join("work")
    }

    /// A node's placeholder device nodes.
    pub fn devices(&self, node: &str) -> PathBuf {
        self.0.join("dev").join(node)
    }

    /// A node's simulated GPUs.
    pub fn gpus(&self, node: &str) -> PathBuf {
        self.0.join("gpus").join(node)
    }

    /// A node's `/run/gpufrac`.
    pub fn run(&self, node: &str) -> PathBuf {
        self.0.join("run").join(node)
    }

    /// A node's `/var/lib/gpufrac`.
    pub fn var(&self, node: &str) -> PathBuf {
        self.0.join("var").join(node)
    }

    /// The folder that all nodes share.
    pub fn shared(&self) -> PathBuf {
        self.0.join("shared")
    }

    /// A node's folders of MPS daemons.
    pub(crate) fn mps(&self, node: &str) -> PathBuf {
        self.run(node).join("mps")
    }

    /// A node's folders of HAMi-core's caches.
    pub(crate) fn hami(&self, node: &str) -> PathBuf {
        self.run(node).join("hami")
    }

    /// The stand-in for `nvidia-cuda-mps-control`; its options, `standin.json`, and its log of `commands` are beside
    /// it.
    pub fn mps_standin(&self) -> PathBuf {
        self.0.join("mps/nvidia-cuda-mps-control")
    }

    /// The record of the lab's processes and nodes.
    pub(crate) fn record(&self) -> PathBuf {
        self.0.join("lab.json")
    }

    /// The mount namespace of a lab whose Slurm is not the machine's own.
    pub fn namespace(&self) -> PathBuf {
        self.0.join("namespace")
    }

    /// The prefix of a lab whose Slurm is not installed in the system's folders.
    pub(crate) fn prefix(&self) -> PathBuf {
        self.0.join("prefix")
    }

    /// The folders of programs that come before the system's: gpufrac's, then Slurm's if it has a prefix.
    pub fn programs(&self) -> Vec<PathBuf> {
        let slurms = ["bin", "sbin"].map(|name| self.prefix().join(name));
        let existing = slurms.into_iter().filter(|folder| folder.exists());
        std::iter::once(self.bin()).chain(existing).collect()
    }

    pub(crate) fn munge(&self) -> PathBuf {
        self.0.join("munge")
    }

    /// A node's `SlurmdSpoolDir`.
    pub fn spool(&self, node: &str) -> PathBuf {
        self.0.join("spool").join(node)
    }

    /// MariaDB's files and socket, in a lab with accounting.
    pub(crate) fn database(&self) -> PathBuf {
        self.0.join("database")
    }

    /// slurmctld's state.
    pub(crate) fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    /// Creates the folders that every lab has.
    pub(crate) fn create(&self, nodes: &[String]) -> Result<(), LabError> {
        let mut places = vec![
            (self.0.clone(), 0o755),
            (self.etc(), 0o755),
            (self.log(), 0o755),
            (self.bin(), 0o755),
            (self.lib(), 0o755),
            (self.munge(), 0o755),
            (self.state(), 0o700),
            (self.work(), 0o1777),
            (self.0.join("pid"), 0o755),
        ];
        for node in nodes {
            places.extend([
                (self.devices(node), 0o755),
                (self.gpus(node), 0o755),
                (self.run(node), 0o755),
                (self.0.join("var").join(node), 0o755),
                (self.spool(node), 0o755),
            ]);
        }
        for (path, mode) in places {
            fs::create_dir_all(&path).map_err(LabError::file("creating", &path))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))
                .map_err(LabError::file("setting the mode of", &path))?;
        }
        Ok(())
    }

    /// The error of a wait with the limit `limit`, which took several times as long.
    pub(crate) fn deadline(&self, what: &str, limit: Duration) -> LabError {
        LabError::Deadline {
            what: what.into(),
            limit: Patience::new(limit).most(),
            logs: self.log_tails(15),
        }
    }

    /// The last `lines` lines of each log, for error messages.
    pub fn log_tails(&self, lines: usize) -> String {
        let mut tails = String::new();
        let Ok(entries) = fs::read_dir(self.log()) else {
            return tails;
        };
        let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let Some(text) = read_lossy(&path) else {
                continue;
            };
            // Daemons of Slurm write their log also to stderr. Other text there, such as a crash, is shown.
            let log = if path.extension().is_some_and(|end| end == "out") {
                read_lossy(&path.with_extension("log")).unwrap_or_default()
            } else {
                String::new()
            };
            let is_new = |line: &&str| match line.split_once(": ") {
                Some((_, message)) => !log.contains(message),
                None => true,
            };
            // Logs can be long, and each line is looked up in the other file. A line that a daemon repeats is shown
            // once.
            let mut seen = BTreeSet::new();
            let last = text.lines().rev().take(10 * lines).filter(is_new);
            let last = last.filter(|line| seen.insert(*line));
            let last: Vec<_> = last.take(lines).collect();
            if last.is_empty() {
                continue;
            }
            tails.push_str(&format!("--- {}\n", path.display()));
            for line in last.into_iter().rev() {
                tails.push_str(line);
                tails.push('\n');
            }
        }
        tails
    }
}

fn read_lossy(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

pub(crate) fn write(path: &Path, text: &str, mode: u32) -> Result<(), LabError> {
    fs::write(path, text).map_err(LabError::file("writing", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(LabError::file("setting the mode of", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_log_are_shown_once() {
        let place = tempfile::tempdir().unwrap();
        let folder = Folder::new(place.path());
        folder.create(&[]).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.log().join(name), text).unwrap();
        write("slurmd.n1.log", "[2026-11-22] first\n[2026-11-22] second\n");
        write(
            "slurmd.n1.out",
            "slurmd: first\nslurmd: second\nSegmentation fault\n",
        );
        write("munged.out", "munged: ready\n");
        let root = folder.log().display().to_string();
        let expected = format!(
            "--- {root}/munged.out\nmunged: ready\n\
             --- {root}/slurmd.n1.log\n[2026-11-22] second\n\
             --- {root}/slurmd.n1.out\nSegmentation fault\n"
        );
        assert_eq!(folder.log_tails(1), expected);
    }
}
