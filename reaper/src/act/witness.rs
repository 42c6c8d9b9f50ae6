//! Asks Slurm about jobs as soon as their slices are released. A round may wait longer for the driver than the epilog
//! runs, and after a requeue Slurm knows only until the epilog ends why the run ended.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{LeaseState, read_name};
use gpufrac_node::state::leases::{LeaseStore, StoreError};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use slurm_sys::client::JobInfo;

use gpufrac_node::clock::{BootTime, Clock, SystemClock};
use gpufrac_node::slurm_call::JobControl;

/// Jobs of one question: slurmctld answers about each in turn.
pub(crate) const MOST_JOBS: usize = 32;
/// Slurm forgets jobs that ended (`MinJobAge`, by default 300 s).
pub(crate) const LONGEST: Duration = Duration::from_secs(280);

/// The reasons why no answers are collected.
#[derive(Debug, thiserror::Error)]
pub enum WitnessError {
    /// The folder of leases cannot be opened.
    #[error(transparent)]
    Leases(#[from] StoreError),
    /// The limit of inotify is reached.
    /// Cure: Raise it with sysctl, then restart the daemon.
    #[error("watching the folder of leases failed: {0}; raise fs.inotify.max_user_instances")]
    Watch(#[from] io::Error),
}

/// What Slurm said of jobs as their slices were released.
#[derive(Clone, Default)]
pub struct Witness(Arc<Mutex<Vec<(BootTime, JobInfo)>>>);

impl Witness {
    /// Asks about each job whose slice is released, in a thread, until this process ends. `run`: the folder with the
    /// leases. Errors: the folder cannot be watched.
    pub fn follow(
        run: &Path,
        slurm: impl JobControl + Send + 'static,
    ) -> Result<Witness, WitnessError> {
        let store = LeaseStore::open(run)?;
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC).map_err(io::Error::from)?;
        let flags = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR;
        let watched = inotify.add_watch(&run.join("leases"), flags);
        watched.map_err(io::Error::from)?;
        let witness = Witness::default();
        let own = witness.clone();
        std::thread::spawn(move || own.ask_about_released(&inotify, &store, &slurm));
        Ok(witness)
    }

    fn ask_about_released(&self, inotify: &Inotify, store: &LeaseStore, slurm: &dyn JobControl) {
        loop {
            // Blocks until a lease changes. While Slurm answers, further changes gather.
            let events = match inotify.read_events() {
                Ok(events) => events,
                // The process was stopped and continued (signal(7)).
                Err(Errno::EINTR) => continue,
                Err(_) => return,
            };
            let names = events
                .iter()
                .filter_map(|event| event.name.as_ref()?.to_str());
            let released = names.filter(|name| is_released(store, name));
            let jobs: BTreeSet<JobId> = released.filter_map(|it| Some(read_name(it)?.0)).collect();
            let jobs: Vec<JobId> = jobs.into_iter().collect();
            for jobs in jobs.chunks(MOST_JOBS) {
                // The next round asks again, and reports what fails.
                let answers = slurm.jobs(jobs).unwrap_or_default();
                self.note(SystemClock.now(), answers.into_iter().flatten());
            }
        }
    }

    pub(crate) fn note(&self, now: BootTime, answers: impl Iterator<Item = JobInfo>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(at, _)| now.since(*at) < LONGEST);
        known.extend(answers.map(|answer| (now, answer)));
    }

    /// The answers about a job, the first one first.
    pub(crate) fn about(&self, job: JobId) -> Vec<JobInfo> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = known.iter().filter(|(_, answer)| answer.job_id == job.0);
        own.map(|(_, answer)| answer.clone()).collect()
    }
}

fn is_released(store: &LeaseStore, name: &str) -> bool {
    let lease = store.one(name).ok().flatten();
    lease.is_some_and(|lease| matches!(lease.state, LeaseState::Releasing | LeaseState::Kept))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use gpufrac_core::lease::Lease;
    use slurm_sys::client::JobState;

    use super::*;
    use crate::measure::cpu::tests::lease;
    use gpufrac_node::slurm_call::{ActionError, SlurmAction, SlurmError};

    /// A record of slurmctld.
    pub(crate) fn job_info(job_id: u32) -> JobInfo {
        JobInfo {
            job_id,
            user_id: 1000,
            state: JobState::Completing,
            partition: "gpu".to_owned(),
            tres_per_node: None,
            tres_elsewhere: Vec::new(),
            tres_per_task: None,
            gres_of_nodes: Vec::new(),
            batch: true,
            restart_count: 0,
            name: "wrap".to_owned(),
            qos: String::new(),
            account: String::new(),
            reservation: String::new(),
            nodes: "n1".to_owned(),
            node_count: 1,
            array: None,
            het_job_id: 0,
            start_unix: 1_000,
            end_unix: 2_000,
            suspend_unix: 0,
            ended_by: None,
            failed: false,
            can_requeue: true,
            mail_user: String::new(),
            admin_comment: String::new(),
            excluded_nodes: String::new(),
            is_held: false,
        }
    }

    /// A Slurm that knows each job.
    struct Knowing;

    impl JobControl for Knowing {
        fn jobs(&self, jobs: &[JobId]) -> Result<Vec<Option<JobInfo>>, SlurmError> {
            Ok(jobs.iter().map(|job| Some(job_info(job.0))).collect())
        }

        fn act(
            &self,
            _: JobId,
            _: u32,
            _: Vec<SlurmAction>,
        ) -> Result<Vec<Result<(), ActionError>>, SlurmError> {
            unreachable!("a witness does nothing")
        }
    }

    /// Writes a lease as its store does: beside, then renamed.
    fn write(run: &Path, job: u32, state: LeaseState) {
        let lease = Lease {
            state,
            ..lease(job)
        };
        let beside = run.join("beside");
        fs::write(&beside, lease.to_text().unwrap()).unwrap();
        fs::rename(&beside, run.join("leases").join(lease.name())).unwrap();
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "waits for a real thread")]
    fn slurm_is_asked_when_a_slice_is_released() {
        let run = tempfile::tempdir().unwrap();
        fs::create_dir(run.path().join("leases")).unwrap();
        let witness = Witness::follow(run.path(), Knowing).unwrap();
        write(run.path(), 7, LeaseState::Active);
        write(run.path(), 8, LeaseState::Releasing);
        let begun = std::time::Instant::now();
        while witness.about(JobId(8)).is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no answer");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(witness.about(JobId(8)), [job_info(8)]);
        assert_eq!(witness.about(JobId(7)), []);
    }

    #[test]
    fn answers_are_kept_for_as_long_as_they_are_of_use() {
        let witness = Witness::default();
        let at = |seconds| BootTime::after_boot(Duration::from_secs(seconds));
        witness.note(at(0), [job_info(1)].into_iter());
        witness.note(at(200), [job_info(2)].into_iter());
        assert_eq!(witness.about(JobId(1)), [job_info(1)]);
        witness.note(at(290), [job_info(2)].into_iter());
        assert_eq!(witness.about(JobId(1)), []);
        assert_eq!(witness.about(JobId(2)).len(), 2);
    }
}
