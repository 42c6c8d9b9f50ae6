//! The leases of a node: `<run>/leases/<jobid>`, one file per slice, written by root, readable by those who may enter
//! the folder ([`private`]). The second and further slices of a job have a number after the job's: `<jobid>.1`.

use std::path::{Path, PathBuf};

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::{self, Lease, LeaseError, LeaseState};

use gpufrac_host::files::{FileError, RootDir};

use crate::fault::{Cause, Caused, Facts};
use crate::state::line::GpuLock;
use crate::state::private;

/// The cure if a file of node-setup is missing.
pub(crate) const SETUP: &str =
    "run `gpufrac node-setup`: jobs that run keep their slices; at boot it comes before slurmd";

/// The reasons why a lease could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder does not exist.
    #[error("`{}` does not exist: run `gpufrac node-setup` before slurmd starts", path.display())]
    Absent {
        /// The expected path.
        path: PathBuf,
    },
    /// A file is not a lease.
    #[error("`{}`: {source}", path.display())]
    Lease { path: PathBuf, source: LeaseError },
    /// The file was moved by hand.
    /// Cure: Move it back, or `gpufrac lease drop LEASE`.
    #[error("`{}` is the lease of job {found}: it was moved or copied", path.display())]
    WrongJob {
        path: PathBuf,
        /// The name of the lease inside.
        found: String,
    },
}

impl StoreError {
    /// The file of a lease that cannot be read.
    pub fn path(&self) -> Option<&Path> {
        match self {
            StoreError::Lease { path, .. } | StoreError::WrongJob { path, .. } => Some(path),
            StoreError::File(_) | StoreError::Absent { .. } => None,
        }
    }

    /// Whether only a newer build can read the lease. The node has no fault: an older build runs on it for a while.
    pub fn is_of_newer_build(&self) -> bool {
        matches!(self, StoreError::Lease { source, .. } if source.is_of_newer_build())
    }

    /// The cure for an admin.
    pub fn fix(&self) -> String {
        let Some(path) = self.path() else {
            let cure = match self {
                StoreError::File(error) => error.cure(),
                _ => None,
            };
            return cure.unwrap_or_else(|| SETUP.to_owned());
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        format!("`gpufrac lease drop {name}`, which looks whether the job is over and asks")
    }
}

impl Caused for StoreError {
    fn facts(&self) -> Facts {
        match self {
            StoreError::File(error) => error.facts(),
            error if error.is_of_newer_build() => Facts::passes(Cause::Root),
            StoreError::Lease { source, .. } => source.facts(),
            StoreError::Absent { .. } | StoreError::WrongJob { .. } => Facts::lasts(Cause::Root),
        }
    }
}

/// The folder with the leases.
#[derive(Debug)]
pub struct LeaseStore {
    dir: RootDir,
}

impl LeaseStore {
    /// Opens `<run>/leases`; refuses a folder that others than root could change.
    pub fn open(run: &Path) -> Result<LeaseStore, StoreError> {
        let path = run.join("leases");
        let dir = RootDir::find(&path)?.ok_or(StoreError::Absent { path })?;
        Ok(LeaseStore { dir })
    }

    /// The copies of a user's own leases, where jobs are hidden ([`private`]); None if there are none.
    pub fn of_user(run: &Path, user: UserId) -> Result<Option<LeaseStore>, StoreError> {
        let dir = RootDir::find(&private::own(run, user).join("leases"))?;
        Ok(dir.map(|dir| LeaseStore { dir }))
    }

    /// The leases of a job, by number; empty if it has none.
    pub fn of_job(&self, job_id: JobId) -> Result<Vec<Lease>, StoreError> {
        let own = |name: &String| lease::read_name(name).is_some_and(|(job, _)| job == job_id);
        self.named(self.dir.names()?.into_iter().filter(own))
    }

    /// Those leases of a job that can be read, by number, and the errors of the others.
    pub fn readable_of_job(
        &self,
        job_id: JobId,
    ) -> Result<(Vec<Lease>, Vec<StoreError>), StoreError> {
        let own = |name: &String| lease::read_name(name).is_some_and(|(job, _)| job == job_id);
        self.readable_of(self.dir.names()?.into_iter().filter(own))
    }

    /// All leases that can be read, by job id and number, and the errors of the others. For output to people; a
    /// decision that depends on what is not leased needs [`LeaseStore::list`].
    pub fn readable(&self) -> Result<(Vec<Lease>, Vec<StoreError>), StoreError> {
        let ours = |name: &String| lease::read_name(name).is_some();
        self.readable_of(self.dir.names()?.into_iter().filter(ours))
    }

    fn readable_of(
        &self,
        names: impl Iterator<Item = String>,
    ) -> Result<(Vec<Lease>, Vec<StoreError>), StoreError> {
        let (mut leases, mut errors) = (Vec::new(), Vec::new());
        for name in names {
            match self.read(&name) {
                Ok(lease) => leases.extend(lease),
                Err(error) => errors.push(error),
            }
        }
        leases.sort_by_key(|lease| (lease.job_id, lease.number));
        Ok((leases, errors))
    }

    /// The lease with this name; None if there is none. Errors: it cannot be read.
    pub fn one(&self, name: &str) -> Result<Option<Lease>, StoreError> {
        self.read(name)
    }

    /// Removes the file of a lease that cannot be read; returns its text, if it has one. Needs no lock, because no
    /// program changes such a file. None if the lease can be read, or does not exist.
    /// Errors: the file cannot be removed.
    pub fn drop_unreadable(&self, name: &str) -> Result<Option<String>, StoreError> {
        if lease::read_name(name).is_none() || self.read(name).is_ok() {
            return Ok(None);
        }
        let text = self.dir.read(name).ok().flatten().unwrap_or_default();
        self.dir.remove(name)?;
        self.dir.sync()?;
        Ok(Some(text))
    }

    /// The current state of a lease; None if it does not exist any more.
    pub fn again(&self, lease: &Lease) -> Result<Option<Lease>, StoreError> {
        self.read(&lease.name())
    }

    fn read(&self, name: &str) -> Result<Option<Lease>, StoreError> {
        let text = self.dir.read(name)?;
        text.map(|text| self.parse(name, &text)).transpose()
    }

    fn parse(&self, name: &str, text: &str) -> Result<Lease, StoreError> {
        let path = self.dir.path().join(name);
        match Lease::parse(text) {
            Ok(lease) if lease.name() == name => Ok(lease),
            Ok(lease) => Err(StoreError::WrongJob {
                path,
                found: lease.name(),
            }),
            Err(source) => Err(StoreError::Lease { path, source }),
        }
    }

    /// All leases, by job id and number. One file that cannot be read is an error for all, because a decision that
    /// depends on what is *not* leased needs all leases.
    pub fn list(&self) -> Result<Vec<Lease>, StoreError> {
        self.named(self.names()?)
    }

    fn names(&self) -> Result<impl Iterator<Item = String> + use<>, StoreError> {
        // Other names are temporary files of killed writers.
        let ours = |name: &String| lease::read_name(name).is_some();
        Ok(self.dir.names()?.into_iter().filter(ours))
    }

    fn named(&self, names: impl Iterator<Item = String>) -> Result<Vec<Lease>, StoreError> {
        let mut leases = Vec::new();
        for name in names {
            // None: released since the folder was listed.
            leases.extend(self.read(&name)?);
        }
        leases.sort_by_key(|lease| (lease.job_id, lease.number));
        Ok(leases)
    }

    /// The leases on a GPU, by job id and number. A file that is no lease is an error, because its GPU is not known.
    pub fn of_gpu(&self, gpu_uuid: &str) -> Result<Vec<Lease>, StoreError> {
        let mut leases = Vec::new();
        for name in self.names()? {
            let Some(text) = self.dir.read(&name)? else {
                continue;
            };
            if !Lease::is_elsewhere(&text, &name, gpu_uuid) {
                leases.push(self.parse(&name, &text)?);
            }
        }
        leases.retain(|lease| lease.slice.gpu_uuid == gpu_uuid);
        leases.sort_by_key(|lease| (lease.job_id, lease.number));
        Ok(leases)
    }

    /// The other leases on the GPU of a lease.
    pub fn others_of_gpu(&self, lease: &Lease) -> Result<Vec<Lease>, StoreError> {
        let mut leases = self.of_gpu(&lease.slice.gpu_uuid)?;
        leases.retain(|other| !other.is_same(lease));
        Ok(leases)
    }

    /// Writes a lease as a whole file. `lock`: that of its GPU. Errors: a file cannot be written.
    pub fn write(&self, lock: &GpuLock, lease: &Lease) -> Result<(), StoreError> {
        // Named after the GPU, so that the next writer on this GPU replaces the file of a killed one.
        self.put(&format!(".gpu{}.tmp", lock.gpu_index()), lease)
    }

    /// Marks that the job of an active lease has ended, without the lock of its GPU: every program that reads the
    /// mark may end the lease. Errors: a file cannot be written, or the lease is not active.
    pub fn mark_releasing_without_lock(&self, lease: &Lease) -> Result<(), StoreError> {
        let mut marked = lease.clone();
        let advanced = marked.advance(LeaseState::Releasing);
        advanced.map_err(|source| StoreError::Lease {
            path: self.dir.path().join(lease.name()),
            source,
        })?;
        // Removed with the lease, if this program is killed.
        self.put(&mark_of(lease), &marked)
    }

    fn put(&self, temporary: &str, lease: &Lease) -> Result<(), StoreError> {
        let name = lease.name();
        let text = lease.to_text().map_err(|source| StoreError::Lease {
            path: self.dir.path().join(&name),
            source,
        })?;
        Ok(self.dir.write_through(temporary, &name, &text, 0o644)?)
    }

    /// Removes a lease; returns whether it existed. `_lock`: that of its GPU. Errors: a file cannot be removed.
    pub fn remove(&self, _lock: &GpuLock, lease: &Lease) -> Result<bool, StoreError> {
        self.dir.remove(&mark_of(lease))?;
        let was = self.dir.remove(&lease.name())?;
        self.dir.sync()?;
        Ok(was)
    }
}

/// The file for a mark without the lock of the lease's GPU.
fn mark_of(lease: &Lease) -> String {
    format!(".{}.tmp", lease.name())
}

#[cfg(test)]
mod tests {
    use gpufrac_core::ids::GpuIndex;
    use std::time::Duration;

    use super::*;
    use crate::state::locks::Locks;
    use test_examples::lease;

    fn store() -> (tempfile::TempDir, LeaseStore, GpuLock) {
        let keep = tempfile::tempdir().unwrap();
        let run = keep.path().canonicalize().unwrap();
        assert!(matches!(
            LeaseStore::open(&run),
            Err(StoreError::Absent { .. })
        ));
        RootDir::create(&run.join("leases"), 0o755).unwrap();
        let store = LeaseStore::open(&run).unwrap();
        Locks::create(&run).unwrap();
        let lock = Locks::open(&run)
            .unwrap()
            .gpu(GpuIndex(0), Duration::ZERO)
            .unwrap();
        (keep, store, lock)
    }

    #[test]
    fn a_lease_is_written_read_listed_and_dropped() {
        let (_keep, store, lock) = store();
        assert_eq!(store.of_job(JobId(7)).unwrap(), []);
        assert_eq!(store.again(&lease(7)).unwrap(), None);
        for job in [12, 7] {
            store.write(&lock, &lease(job)).unwrap();
        }
        assert_eq!(store.again(&lease(7)).unwrap(), Some(lease(7)));
        assert_eq!(store.list().unwrap(), [lease(7), lease(12)]);
        assert!(store.remove(&lock, &lease(7)).unwrap());
        assert!(!store.remove(&lock, &lease(7)).unwrap());
        assert_eq!(store.list().unwrap(), [lease(12)]);
    }

    #[test]
    fn the_slices_of_a_job_are_kept_apart() {
        let (_keep, store, lock) = store();
        let numbered = |job, number| Lease {
            number,
            ..lease(job)
        };
        for lease in [
            numbered(71, 0),
            numbered(7, 1),
            numbered(7, 10),
            numbered(7, 0),
        ] {
            store.write(&lock, &lease).unwrap();
        }
        assert!(store.dir.path().join("7.1").exists());
        let all = [numbered(7, 0), numbered(7, 1), numbered(7, 10)];
        assert_eq!(store.of_job(JobId(7)).unwrap(), all);
        assert_eq!(store.list().unwrap().len(), 4);
        assert_eq!(store.others_of_gpu(&all[1]).unwrap().len(), 3);
        store.remove(&lock, &all[0]).unwrap();
        assert_eq!(store.of_job(JobId(7)).unwrap(), all[1..]);
        // A copy under another number is not a second slice.
        std::fs::copy(store.dir.path().join("7.1"), store.dir.path().join("7.2")).unwrap();
        assert!(matches!(
            store.of_job(JobId(7)),
            Err(StoreError::WrongJob { .. })
        ));
        let (readable, errors) = store.readable_of_job(JobId(7)).unwrap();
        assert_eq!(readable, all[1..]);
        assert!(matches!(errors[..], [StoreError::WrongJob { .. }]));
        let (readable, errors) = store.readable().unwrap();
        assert_eq!((readable.len(), errors.len()), (3, 1));
        assert!(errors[0].fix().contains("`gpufrac lease drop 7.2`"));
    }

    #[test]
    fn only_a_lease_that_cannot_be_read_is_dropped_without_a_lock() {
        let (_keep, store, lock) = store();
        store.write(&lock, &lease(7)).unwrap();
        assert_eq!(store.drop_unreadable("7").unwrap(), None);
        std::fs::write(store.dir.path().join("8"), "half of").unwrap();
        assert_eq!(store.drop_unreadable("8").unwrap(), Some("half of".into()));
        assert_eq!(store.drop_unreadable("8").unwrap(), None);
        assert_eq!(store.drop_unreadable("../8").unwrap(), None);
        assert_eq!(store.list().unwrap(), [lease(7)]);
    }

    #[test]
    fn an_active_lease_alone_is_marked_without_the_lock() {
        let (_keep, store, lock) = store();
        store.write(&lock, &lease(7)).unwrap();
        store.mark_releasing_without_lock(&lease(7)).unwrap();
        let marked = store.again(&lease(7)).unwrap().unwrap();
        assert_eq!(marked.state, LeaseState::Releasing);
        assert!(store.mark_releasing_without_lock(&marked).is_err());
    }

    #[test]
    fn remains_of_a_killed_writer_are_not_a_lease() {
        let (_keep, store, lock) = store();
        std::fs::write(store.dir.path().join(".7.tmp"), "half of a le").unwrap();
        assert_eq!(store.list().unwrap(), []);
        store.write(&lock, &lease(7)).unwrap();
        assert_eq!(store.list().unwrap(), [lease(7)]);
    }

    #[test]
    fn half_of_a_lease_is_replaced_by_the_next_one_on_the_gpu() {
        let (_keep, store, lock) = store();
        std::fs::write(store.dir.path().join(".gpu0.tmp"), "half of a le").unwrap();
        store.write(&lock, &lease(8)).unwrap();
        assert_eq!(store.dir.names().unwrap(), ["8"]);
        std::fs::write(store.dir.path().join(".8.tmp"), "half of a mark").unwrap();
        store.remove(&lock, &lease(8)).unwrap();
        assert_eq!(store.dir.names().unwrap(), [""; 0]);
    }

    #[test]
    fn the_leases_of_a_gpu_are_found_and_what_is_none_fails_on_each() {
        let (_keep, store, lock) = store();
        let mut other = lease(12);
        other.slice.gpu_uuid = "GPU-another".into();
        for lease in [&lease(9), &other, &lease(7)] {
            store.write(&lock, lease).unwrap();
        }
        let uuid = lease(7).slice.gpu_uuid;
        assert_eq!(store.of_gpu(&uuid).unwrap(), [lease(7), lease(9)]);
        assert_eq!(store.of_gpu("GPU-another").unwrap(), [other]);
        assert_eq!(store.of_gpu("GPU-none").unwrap(), []);
        // Damaged, of another version, and under another name.
        let path = store.dir.path().join("12");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("another", "anothes")).unwrap();
        assert!(matches!(store.of_gpu(&uuid), Err(StoreError::Lease { .. })));
        std::fs::write(&path, &text).unwrap();
        for name in ["13", "12.1"] {
            std::fs::copy(&path, store.dir.path().join(name)).unwrap();
            let found = store.of_gpu(&uuid);
            assert!(matches!(found, Err(StoreError::WrongJob { .. })), "{name}");
            std::fs::remove_file(store.dir.path().join(name)).unwrap();
        }
    }

    #[test]
    fn a_damaged_or_moved_lease_fails_the_whole_list() {
        let (_keep, store, lock) = store();
        store.write(&lock, &lease(7)).unwrap();
        let path = store.dir.path().join("7");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(store.dir.path().join("8"), &text).unwrap();
        assert!(matches!(
            store.list(),
            Err(StoreError::WrongJob { found, .. }) if found == "7"
        ));
        std::fs::remove_file(store.dir.path().join("8")).unwrap();
        std::fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(matches!(store.list(), Err(StoreError::Lease { .. })));
    }
}
