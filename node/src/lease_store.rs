//! The leases of a node: `<run>/leases/<jobid>`, one file a job, root's, readable by all.

use std::path::{Path, PathBuf};

use gpufrac_core::lease::{Lease, LeaseError};

use crate::files::{FileError, RootDir};

/// Why a lease could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A file could not be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder is not there.
    #[error("`{}` does not exist: run `gpufrac node-setup` before slurmd starts", path.display())]
    Absent {
        /// Where it should be.
        path: PathBuf,
    },
    /// A file is not a lease.
    #[error("`{}`: {source}", path.display())]
    Lease {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: LeaseError,
    },
    /// A file's name and its content name different jobs.
    #[error("`{}` is the lease of job {found}: it was moved or copied", path.display())]
    WrongJob {
        /// The file.
        path: PathBuf,
        /// The job inside.
        found: u32,
    },
}

/// The folder with the leases.
#[derive(Debug)]
pub struct LeaseStore {
    dir: RootDir,
}

impl LeaseStore {
    /// Opens `<run>/leases`; refuses a folder that anybody but root could change.
    pub fn open(run: &Path) -> Result<LeaseStore, StoreError> {
        let path = run.join("leases");
        match RootDir::open(&path) {
            Ok(dir) => Ok(LeaseStore { dir }),
            Err(error) if error.is_not_found() => Err(StoreError::Absent { path }),
            Err(error) => Err(error.into()),
        }
    }

    /// The lease of a job; None if it has none.
    pub fn read(&self, job_id: u32) -> Result<Option<Lease>, StoreError> {
        let name = job_id.to_string();
        let path = self.dir.path().join(&name);
        let Some(text) = self.dir.read(&name)? else {
            return Ok(None);
        };
        match Lease::parse(&text) {
            Ok(lease) if lease.job_id == job_id => Ok(Some(lease)),
            Ok(lease) => Err(StoreError::WrongJob {
                path,
                found: lease.job_id,
            }),
            Err(source) => Err(StoreError::Lease { path, source }),
        }
    }

    /// Every lease, by job id. One file that cannot be read fails all: who decides by what is
    /// *not* leased must not decide by half of the leases.
    pub fn list(&self) -> Result<Vec<Lease>, StoreError> {
        let mut leases = Vec::new();
        for name in self.dir.names()? {
            // Other names are what a killed writer left.
            if let Ok(job_id) = name.parse() {
                // None: released since the folder was listed.
                leases.extend(self.read(job_id)?);
            }
        }
        leases.sort_by_key(|lease| lease.job_id);
        Ok(leases)
    }

    /// The leases on a GPU, by job id.
    pub fn of_gpu(&self, gpu_uuid: &str) -> Result<Vec<Lease>, StoreError> {
        let mut leases = self.list()?;
        leases.retain(|lease| lease.slice.gpu_uuid == gpu_uuid);
        Ok(leases)
    }

    /// The leases on a GPU of all jobs but one.
    pub fn others_of_gpu(&self, gpu_uuid: &str, job_id: u32) -> Result<Vec<Lease>, StoreError> {
        let mut leases = self.of_gpu(gpu_uuid)?;
        leases.retain(|lease| lease.job_id != job_id);
        Ok(leases)
    }

    /// Writes a lease whole, with the lock of its GPU held.
    pub fn write(&self, lease: &Lease) -> Result<(), StoreError> {
        let name = lease.job_id.to_string();
        let text = lease.to_text().map_err(|source| StoreError::Lease {
            path: self.dir.path().join(&name),
            source,
        })?;
        Ok(self.dir.write(&name, &text, 0o644)?)
    }

    /// Drops the lease of a job, with the lock of its GPU held; says whether there was one.
    pub fn remove(&self, job_id: u32) -> Result<bool, StoreError> {
        let name = job_id.to_string();
        self.dir.remove(&format!(".{name}.tmp"))?;
        let was = self.dir.remove(&name)?;
        self.dir.sync()?;
        Ok(was)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::lease;

    fn store() -> (tempfile::TempDir, LeaseStore) {
        let keep = tempfile::tempdir().unwrap();
        let run = keep.path().canonicalize().unwrap();
        assert!(matches!(
            LeaseStore::open(&run),
            Err(StoreError::Absent { .. })
        ));
        RootDir::create(&run.join("leases"), 0o755).unwrap();
        let store = LeaseStore::open(&run).unwrap();
        (keep, store)
    }

    #[test]
    fn a_lease_is_written_read_listed_and_dropped() {
        let (_keep, store) = store();
        assert_eq!(store.read(7).unwrap(), None);
        for job in [12, 7] {
            store.write(&lease(job)).unwrap();
        }
        assert_eq!(store.read(7).unwrap(), Some(lease(7)));
        assert_eq!(store.list().unwrap(), [lease(7), lease(12)]);
        assert!(store.remove(7).unwrap());
        assert!(!store.remove(7).unwrap());
        assert_eq!(store.list().unwrap(), [lease(12)]);
    }

    #[test]
    fn what_a_killed_writer_left_is_no_lease() {
        let (_keep, store) = store();
        std::fs::write(store.dir.path().join(".7.tmp"), "half of a le").unwrap();
        assert_eq!(store.list().unwrap(), []);
        store.write(&lease(7)).unwrap();
        assert_eq!(store.list().unwrap(), [lease(7)]);
    }

    #[test]
    fn a_damaged_or_moved_lease_fails_the_whole_list() {
        let (_keep, store) = store();
        store.write(&lease(7)).unwrap();
        let path = store.dir.path().join("7");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(store.dir.path().join("8"), &text).unwrap();
        assert!(matches!(
            store.list(),
            Err(StoreError::WrongJob { found: 7, .. })
        ));
        std::fs::remove_file(store.dir.path().join("8")).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(matches!(store.list(), Err(StoreError::Lease { .. })));
    }
}
