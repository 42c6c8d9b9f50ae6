//! Jobs that this node gave back to Slurm.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_node::node::Node;
use gpufrac_node::state::put_back::{self, PutBack};

use gpufrac_node::slurm_call::node_control::{Change, Changed, Way};
use gpufrac_node::slurm_call::{NodeControl, SlurmError};

/// Seconds after which a job may come back although places still fail: another failure costs it one start, and no place
/// may keep a job from its last node for ever.
const AWAY: u64 = 600;
/// Seconds that a job stays away at least: its predecessor on the place may be slow to end.
const LEAST: u64 = 15;
/// Seconds after which Slurm is not asked any more about a requeue that it did not carry out.
const PATIENCE: u64 = 300;
/// Seconds between two questions about a job that runs elsewhere.
const BETWEEN: u64 = 20;
/// Jobs of one question.
const MOST_JOBS: usize = 16;

/// The reasons why jobs stay where they are.
#[derive(Debug, thiserror::Error)]
pub(super) enum JobsError {
    /// The notes cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// slurmctld did not answer or refused.
    /// Cure: Check `scontrol ping`; it is tried again.
    #[error("sending jobs to other nodes failed: {0}; they come back to this node in two minutes")]
    Slurm(#[from] SlurmError),
}

/// The state between two looks.
#[derive(Default)]
pub(super) struct Jobs {
    /// When Slurm was asked about jobs that are away: seconds since 1970.
    asked: u64,
    /// Jobs that the node gave back.
    count: Arc<AtomicU64>,
}

impl Jobs {
    pub(super) fn counted_in(count: Arc<AtomicU64>) -> Jobs {
        Jobs { asked: 0, count }
    }

    /// Sends jobs away, and lets others return. `failing`: whether places of the node fail. Returns whether a job waits
    /// to be sent away.
    pub(super) fn care(
        &mut self,
        node: &Node,
        slurm: &dyn NodeControl,
        failing: bool,
        now: u64,
        log: &JobLog,
    ) -> Result<bool, JobsError> {
        let (away, new): (Vec<PutBack>, Vec<PutBack>) = put_back::list(node)?
            .into_iter()
            .partition(|job| job.excluded);
        let mut waits = false;
        for some in new.chunks(MOST_JOBS) {
            let ways = change(slurm, node, Change::Leave(some.to_vec()))?;
            for (job, way) in some.iter().zip(ways) {
                if sent(node, job, way, now, log)? {
                    waits = true;
                } else {
                    self.count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        let due = away.into_iter().filter(|job| may_return(job, failing, now));
        let due: Vec<PutBack> = due.collect();
        if !due.is_empty() && now.abs_diff(self.asked) >= BETWEEN {
            self.asked = now;
            for some in due.chunks(MOST_JOBS) {
                let ids = some.iter().map(|job| job.job_id).collect();
                let ways = change(slurm, node, Change::Return(ids))?;
                for (job, way) in some.iter().zip(ways) {
                    if way != Way::Runs {
                        put_back::forget(node, job)?;
                    }
                    if way == Way::Back {
                        let job = job.job_id;
                        // The exclusion was taken back. Cure: Nothing.
                        log.info(format!("job {job} may start on this node again"));
                    }
                }
            }
        }
        Ok(waits)
    }
}

fn change(slurm: &dyn NodeControl, node: &Node, change: Change) -> Result<Vec<Way>, JobsError> {
    match slurm.change(&node.name, change)? {
        Changed::Jobs(ways) => Ok(ways),
        Changed::Node(_) | Changed::Reserved(_) | Changed::Preempts => Ok(Vec::new()),
    }
}

/// Notes the way of a job. Returns whether it is to be asked about again soon.
fn sent(node: &Node, job: &PutBack, way: Way, now: u64, log: &JobLog) -> Result<bool, FileError> {
    match way {
        Way::NotYet if now.abs_diff(job.unix) < PATIENCE => return Ok(true),
        Way::Elsewhere => {
            // The node could not serve the job and excluded itself (`ExcNodeList`). Cure: Nothing.
            log.info(format!(
                "job {} goes to other nodes while a place here cannot be used",
                job.job_id
            ));
            let unix = now;
            put_back::note(
                node,
                &PutBack {
                    excluded: true,
                    unix,
                    ..job.clone()
                },
            )?;
        }
        Way::Nowhere => {
            // The job asks for this node alone, or no other has its size. It waits here. Cure: Free the place.
            log.info(format!("no other node could start job {}", job.job_id));
            put_back::forget(node, job)?;
        }
        Way::Refused(why) => {
            // slurmctld refused the change, or a plugin of the site did. Cure: Follow the text.
            log.warning(format!(
                "sending job {} to another node failed: {why}; it comes back here in two minutes",
                job.job_id
            ));
            put_back::forget(node, job)?;
        }
        Way::NotYet | Way::Over | Way::Runs | Way::Back => put_back::forget(node, job)?,
    }
    Ok(false)
}

/// A job comes back when the places are free, or after a time.
fn may_return(job: &PutBack, failing: bool, now: u64) -> bool {
    // After a step back of the clock a job is away longer than it seems.
    let away = now.abs_diff(job.unix);
    away >= AWAY || !failing && away >= LEAST
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use gpufrac_core::config::Config;
    use gpufrac_core::ids::JobId;

    use super::*;

    /// A Slurm that answers as it is told, and notes the questions.
    struct Told {
        ways: Vec<Way>,
        asked: RefCell<Vec<Change>>,
    }

    impl NodeControl for Told {
        fn change(&self, _: &str, change: Change) -> Result<Changed, SlurmError> {
            self.asked.borrow_mut().push(change);
            Ok(Changed::Jobs(self.ways.clone()))
        }
    }

    struct World {
        _keep: tempfile::TempDir,
        node: Node,
        jobs: Jobs,
    }

    impl World {
        fn new() -> World {
            let keep = tempfile::tempdir().unwrap();
            let mut node = Node::new(Config::empty(), "n1");
            node.state = keep.path().canonicalize().unwrap();
            World {
                _keep: keep,
                node,
                jobs: Jobs::default(),
            }
        }

        /// One round at `now` seconds, with this answer of Slurm. Returns whether a job waits, and the questions.
        fn care(&mut self, way: Way, failing: bool, now: u64) -> (bool, Vec<Change>) {
            let slurm = Told {
                ways: vec![way],
                asked: RefCell::default(),
            };
            let log = JobLog::reaper();
            let waits = self.jobs.care(&self.node, &slurm, failing, now, &log);
            (waits.unwrap(), slurm.asked.into_inner())
        }

        fn noted(&self) -> Vec<PutBack> {
            put_back::list(&self.node).unwrap()
        }

        fn put_back(&self, unix: u64) {
            let job = PutBack {
                unix,
                ..PutBack::now(JobId(7), 0, false)
            };
            put_back::note(&self.node, &job).unwrap();
        }
    }

    #[test]
    fn a_job_leaves_as_soon_as_its_run_has_ended_and_returns_when_the_place_is_free() {
        let mut world = World::new();
        world.put_back(1000);
        assert!(world.care(Way::NotYet, true, 1001).0);
        assert!(!world.care(Way::Elsewhere, true, 1003).0);
        assert!(world.noted()[0].excluded);
        assert_eq!(world.jobs.count.load(Ordering::Relaxed), 1);
        assert!(world.care(Way::Back, true, 1100).1.is_empty());
        let (_, asked) = world.care(Way::Back, false, 1101);
        assert_eq!(asked, [Change::Return(vec![JobId(7)])]);
        assert!(world.noted().is_empty());
    }

    #[test]
    fn a_job_returns_after_ten_minutes_though_the_place_fails() {
        let mut world = World::new();
        world.put_back(1000);
        world.care(Way::Elsewhere, true, 1001);
        assert!(world.care(Way::Runs, true, 1600).1.is_empty());
        // It runs elsewhere: its nodes can be changed when it waits again.
        assert_eq!(world.care(Way::Runs, true, 1601).1.len(), 1);
        assert_eq!(world.noted().len(), 1);
        world.care(Way::Back, true, 1700);
        assert!(world.noted().is_empty());
        // The clock was an hour ahead.
        world.put_back(5000);
        world.care(Way::Elsewhere, true, 5001);
        world.care(Way::Back, true, 1800);
        assert!(world.noted().is_empty());
    }

    #[test]
    fn a_job_that_no_other_node_could_start_stays() {
        let mut world = World::new();
        world.put_back(1000);
        world.care(Way::Nowhere, true, 1001);
        assert!(world.noted().is_empty());
    }

    #[test]
    fn a_requeue_that_slurm_does_not_carry_out_is_forgotten() {
        let mut world = World::new();
        world.put_back(1000);
        assert!(world.care(Way::NotYet, true, 1299).0);
        assert!(!world.care(Way::NotYet, true, 1300).0);
        assert!(world.noted().is_empty());
    }
}
