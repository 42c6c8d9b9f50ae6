//! The folder of the pages.

use std::collections::HashSet;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use gpufrac_host::files::RootDir;
use gpufrac_web::{JOBS, NODES};
use nix::fcntl::{Flock, FlockArg};

use crate::error::CliError;

/// Names the folder as one of pages, and is locked while they are written. Others may not open it, so that they cannot
/// hold the lock.
const MARK: &str = ".gpufrac-web";

/// The folder, which only this program changes, and its own folders.
pub struct Export {
    top: RootDir,
    nodes: RootDir,
    jobs: RootDir,
    _lock: Flock<File>,
}

impl Export {
    /// Opens or creates the folder. One with files of others is refused, because old pages are removed.
    pub fn open(path: &Path) -> Result<Export, CliError> {
        let (top, _) = RootDir::create(path, 0o755)?;
        let is_marked = top.exists(MARK)?;
        if !is_marked && !top.names()?.is_empty() {
            return Err(CliError::NotPages {
                path: path.to_owned(),
            });
        }
        if !is_marked {
            top.write(MARK, "", 0o600)?;
        }
        let mark = path.join(MARK);
        let file = File::open(&mark).map_err(|source| failed(&mark, source))?;
        let lock = Flock::lock(file, FlockArg::LockExclusive);
        let lock = lock.map_err(|(_, error)| failed(&mark, error.into()))?;
        let folder = |name: &str| RootDir::create(&path.join(name), 0o755);
        Ok(Export {
            nodes: folder(NODES)?.0,
            jobs: folder(JOBS)?.0,
            top,
            _lock: lock,
        })
    }

    fn folder(&self, name: &str) -> &RootDir {
        match name {
            NODES => &self.nodes,
            JOBS => &self.jobs,
            _ => &self.top,
        }
    }

    /// The text of a file of an earlier export.
    pub fn read(&self, folder: &str, name: &str) -> Option<String> {
        fs::read_to_string(self.folder(folder).path().join(name)).ok()
    }

    /// Writes a file: a reader sees the old text or the new one. A power failure may leave an empty file until the next
    /// export, which comes within a minute; syncing thousands of files would take longer than that.
    pub fn put(&self, folder: &str, name: &str, text: &str) -> Result<(), CliError> {
        let folder = self.folder(folder).path();
        let (new, path) = (folder.join(format!(".{name}.tmp")), folder.join(name));
        let written = fs::write(&new, text)
            .and_then(|()| fs::set_permissions(&new, Permissions::from_mode(0o644)))
            .and_then(|()| fs::rename(&new, &path));
        written.map_err(|source| failed(&path, source))
    }

    /// Writes the files, and removes the pages of nodes and jobs that are not among them. Returns the number of files.
    pub fn write(&self, files: &[gpufrac_web::File]) -> Result<usize, CliError> {
        for file in files {
            self.put(file.folder, &file.name, &file.text)?;
        }
        for folder in [NODES, JOBS] {
            let of_folder = files.iter().filter(|file| file.folder == folder);
            let kept: HashSet<&str> = of_folder.map(|file| file.name.as_str()).collect();
            let dir = self.folder(folder);
            for name in dir.names()? {
                if !kept.contains(name.as_str()) {
                    dir.remove(&name)?;
                }
            }
        }
        Ok(files.len())
    }
}

fn failed(path: &Path, source: io::Error) -> CliError {
    CliError::Write {
        path: path.to_owned(),
        source,
    }
}
