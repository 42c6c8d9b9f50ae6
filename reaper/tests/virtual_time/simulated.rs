//! The simulated world behind the traits of [`gpufrac_reaper::outside::Outside`].

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::{GpuIndex, JobId};
use gpufrac_core::lease::Lease;
use gpufrac_core::policy::Policy;
use gpufrac_core::private_data::PrivateData;
use gpufrac_host::files::FileError;
use gpufrac_host::log::JobLog;
use gpufrac_node::clock::{BootTime, Clock};
use gpufrac_node::node::Node;
use gpufrac_node::slurm_call::{ActionError, JobControl, SlurmAction, SlurmError};
use gpufrac_node::state::leases::StoreError;
use gpufrac_node::state::outcomes::Outcome;
use gpufrac_node::state::stuck::Stuck;
use gpufrac_node::state::usage::UsageError;
use gpufrac_reaper::act::slices::{SliceError, Slices, Unleased};
use gpufrac_reaper::act::witness::Witness;
use gpufrac_reaper::judge::peers::{PeerError, Peers};
use gpufrac_reaper::keep::books::{Books, Running, TakenUp};
use gpufrac_reaper::keep::shipping::ShippingError;
use gpufrac_reaper::keep::state::{Memory, State, UnusableState};
use gpufrac_reaper::keep::status::{Board, StatusError};
use gpufrac_reaper::key::{Key, SliceId};
use gpufrac_reaper::measure::sample::{Activity, NodeSamples, Sample, Sampler};
use gpufrac_reaper::measure::telemetry::SHORTEST_LOOK;
use gpufrac_reaper::outside::Outside;
use gpufrac_records::evidence::{Record, Source};
use gpufrac_records::usage::{Ended, Full, GpuTime, SliceKey, Tallies};
use slurm_sys::client::JobInfo;

use crate::world::{Fault, How, World};

/// Activity below this part of the time does not show in the counters.
const RESOLUTION: f64 = 1e-4;
/// The driver's own memory on an instance without processes.
const DRIVERS_OWN: MemoryMib = MemoryMib(16);
/// The time after which a missing answer of Slurm counts as an error.
const SLURM_LIMIT: Duration = Duration::from_secs(15);

/// One of the daemon's interfaces to the world.
#[derive(Clone)]
pub struct Simulated(pub Rc<RefCell<World>>);

impl Simulated {
    /// All interfaces of a daemon.
    pub fn outside(&self, log: &Log) -> Outside {
        Outside {
            clock: Box::new(self.clone()),
            sampler: Box::new(self.clone()),
            slices: Box::new(self.clone()),
            slurm: Box::new(self.clone()),
            witness: Witness::default(),
            memory: Box::new(self.clone()),
            books: Box::new(self.clone()),
            board: Box::new(self.clone()),
            privacy: None,
            put_back: Arc::default(),
            log: JobLog::to("reaper", log.clone()),
        }
    }
}

/// The log of the daemon.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// The lines that contain a text.
    pub fn lines(&self, text: &str) -> Vec<String> {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let log = String::from_utf8_lossy(&log);
        let lines = log.lines().filter(|line| line.contains(text));
        lines.map(str::to_owned).collect()
    }
}

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Clock for Simulated {
    fn now(&self) -> BootTime {
        let mut world = self.0.borrow_mut();
        world.call();
        BootTime::after_boot(world.now)
    }

    fn unix_now(&self) -> u64 {
        self.0.borrow().unix_now()
    }
}

/// The values of counters and processes for a lease's slice.
fn sample(
    world: &mut World,
    lease: &Lease,
    from: Duration,
    to: Duration,
    policy: &Policy,
) -> Sample {
    if world.has(Fault::Counters) && world.dice.bool() {
        return Sample {
            source: Source::Gpm,
            ..Sample::missing("the counters cannot be read")
        };
    }
    let Some(timeline) = world.timeline(lease) else {
        return Sample::missing("its instance does not stand");
    };
    let share = timeline.activity(from, to);
    let share = if share < RESOLUTION { 0.0 } else { share };
    let program = timeline.program(to);
    Sample {
        source: Source::Gpm,
        activity: if share * 100.0 > policy.busy_above { Activity::Busy } else { Activity::Idle },
        busy_share: Some(share),
        contexts: Some(u32::from(program.is_some())),
        memory: Some(program.map_or(DRIVERS_OWN, |program| MemoryMib(program.memory_mib))),
        excess: None,
    }
}

impl Sampler for Simulated {
    fn sample_all<'p>(
        &mut self,
        _: &Node,
        leases: &[&Lease],
        observe: &mut dyn FnMut() -> bool,
        policy: &dyn Fn(&Lease) -> &'p Policy,
    ) -> NodeSamples {
        let mut found = NodeSamples::default();
        if leases.is_empty() {
            return found;
        }
        let (from, has_driver) = {
            let mut world = self.0.borrow_mut();
            world.call();
            (world.now, !world.has(Fault::Driver))
        };
        if has_driver && !observe() {
            return found;
        }
        let mut world = self.0.borrow_mut();
        let to = world.now;
        if !has_driver {
            found.errors.push("the driver does not answer".to_owned());
        }
        if world.has(Fault::NoSamples) {
            return found;
        }
        for lease in leases {
            let sample = if has_driver {
                sample(&mut world, lease, from, to, policy(lease))
            } else {
                Sample::missing("the driver does not answer")
            };
            found.samples.insert(SliceId::of(lease), sample);
        }
        found
    }

    fn sample_again(
        &mut self,
        _: &Node,
        leases: &[&Lease],
        _: &[&Lease],
        policy: &Policy,
    ) -> Vec<Sample> {
        let mut world = self.0.borrow_mut();
        world.call();
        if world.has(Fault::Driver) {
            let missing = |_| Sample::missing("the driver does not answer");
            return leases.iter().map(missing).collect();
        }
        let from = world.now;
        world.pass(SHORTEST_LOOK);
        let to = world.now;
        let sample = |lease: &&Lease| sample(&mut world, lease, from, to, policy);
        leases.iter().map(sample).collect()
    }

    fn has_processes(&self, lease: &Lease) -> bool {
        self.0.borrow().has_processes(lease)
    }

    fn is_suspended(&self, _: &Lease) -> bool {
        false
    }

    fn reload(&mut self, _: &Node) {}
}

impl Books for Simulated {
    fn resume(&self) -> Result<Tallies, FileError> {
        Ok(self.0.borrow().kept.tallies.clone())
    }

    fn save(&self, tallies: &Tallies) -> Result<(), FileError> {
        self.0.borrow_mut().kept.tallies = tallies.clone();
        Ok(())
    }

    fn save_running(&self, _: Running) -> Result<(), FileError> {
        Ok(())
    }

    fn take_up(&self) -> Result<TakenUp, UsageError> {
        Ok(TakenUp::default())
    }

    fn record_gpus(&self, _: &[GpuTime]) -> Result<(), UsageError> {
        Ok(())
    }

    fn record_end(
        &self,
        _: &SliceKey,
        _: Ended,
        _: u64,
        _: Option<Full>,
    ) -> Result<(), UsageError> {
        Ok(())
    }

    fn ship(&self, _: &Path, _: &str) -> Result<(), ShippingError> {
        Ok(())
    }
}

impl Board for Simulated {
    fn show(
        &mut self,
        node: gpufrac_view::NodeStatus,
        _: Option<&Path>,
        _: PrivateData,
    ) -> Result<(), StatusError> {
        if let Some(shown) = &mut self.0.borrow_mut().kept.shown {
            shown.push(node);
        }
        Ok(())
    }
}

impl Slices for Simulated {
    fn list(&self, _: &Node) -> Result<Vec<Lease>, SliceError> {
        let mut world = self.0.borrow_mut();
        world.call();
        if world.has(Fault::Leases) {
            Err(StoreError::WrongJob {
                path: "a lease".into(),
                found: "another job".to_owned(),
            }
            .into())
        } else {
            Ok(world.leases())
        }
    }

    fn repair(&self, _: &Node, _: &[Lease], _: &JobLog) -> Result<(), SliceError> {
        Ok(())
    }

    fn end_kept(&self, _: &Node, _: &[Lease], _: &JobLog) -> Result<(), SliceError> {
        Ok(())
    }

    fn end(&self, _: &Node, lease: &Lease, _: &JobLog) -> Result<bool, SliceError> {
        Ok(self.0.borrow_mut().end_lease(lease))
    }

    fn limit(&self, _: &Node, _: &Lease, _: bool) -> Result<bool, SliceError> {
        Ok(false)
    }

    fn outcomes(&self, _: &Node) -> Result<Vec<Outcome>, FileError> {
        Ok(Vec::new())
    }

    fn end_unlimited(&self, _: &Lease, _: u32) -> Result<bool, SliceError> {
        Ok(false)
    }

    fn unleased(&self, _: &Node) -> Result<Option<Vec<Unleased>>, SliceError> {
        Ok(Some(Vec::new()))
    }

    fn gpus(&self, _: &Node) -> Vec<(GpuIndex, String)> {
        let count = self.0.borrow().site.gpus.len() as u32;
        let gpus = (0..count).map(|index| (GpuIndex(index), format!("GPU-{index}")));
        gpus.collect()
    }

    fn modes(&self, _: &Node) -> Vec<(GpuIndex, Result<bool, SliceError>)> {
        Vec::new()
    }

    fn stuck(&self, _: &Node) -> Vec<Stuck> {
        Vec::new()
    }

    fn strangers(&self, _: &Node) -> Result<Vec<String>, SliceError> {
        Ok(Vec::new())
    }
}

impl Simulated {
    /// Slurm needs time to answer, and may refuse.
    fn reach_slurm(&self) -> Result<(), SlurmError> {
        let mut world = self.0.borrow_mut();
        world.call();
        if world.has(Fault::DeafSlurm) {
            return Err(SlurmError::Refused("slurmctld is elsewhere".to_owned()));
        }
        let (left, length) = world.slow_answers;
        if left > 0 {
            world.slow_answers.0 -= 1;
            world.pass(length);
        }
        if world.has(Fault::SlowSlurm) {
            let length = SLURM_LIMIT.mul_f64(world.dice.f64());
            world.pass(length);
        }
        Ok(())
    }

    /// Slurm did not answer in time.
    fn end_of_patience(&self) -> Result<(), SlurmError> {
        let mut world = self.0.borrow_mut();
        if world.has(Fault::SilentSlurm) {
            world.pass(SLURM_LIMIT);
            return Err(SlurmError::TooSlow);
        }
        Ok(())
    }
}

impl JobControl for Simulated {
    fn jobs(&self, jobs: &[JobId]) -> Result<Vec<Option<JobInfo>>, SlurmError> {
        self.reach_slurm()?;
        self.end_of_patience()?;
        let world = self.0.borrow();
        Ok(jobs.iter().map(|job| world.slurm_job(job.0)).collect())
    }

    fn act(
        &self,
        JobId(job_id): JobId,
        restart_count: u32,
        actions: Vec<SlurmAction>,
    ) -> Result<Vec<Result<(), ActionError>>, SlurmError> {
        // An action that was sent to Slurm cannot be taken back.
        let decided = self.0.borrow().decided();
        self.reach_slurm()?;
        let mut world = self.0.borrow_mut();
        let is_heard = !world.has(Fault::SilentSlurm) || world.dice.bool();
        let is_end = |action: &SlurmAction| {
            matches!(action, SlurmAction::Cancel | SlurmAction::Requeue { .. })
        };
        let ends = actions.iter().any(is_end);
        let mut results = Vec::new();
        for action in actions.into_iter().filter(|_| is_heard) {
            let mut reap = |how| world.reap(job_id, restart_count, how, decided);
            let done = match action {
                SlurmAction::Cancel => reap(How::Cancelled),
                SlurmAction::Requeue { .. } => reap(How::Requeued),
                // The message at the end is not a warning.
                SlurmAction::Notify(_) if ends => Ok(()),
                SlurmAction::Notify(_) => world.warn(job_id, restart_count),
                SlurmAction::Signal(_) => world.signal(job_id, restart_count),
                SlurmAction::Comment(text) => {
                    world.comment(job_id, &text);
                    Ok(())
                }
            };
            results.push(done.map_err(ActionError));
        }
        drop(world);
        self.end_of_patience()?;
        Ok(results)
    }
}

impl Memory for Simulated {
    fn load(&self) -> Result<(State, Option<UnusableState>), FileError> {
        let world = self.0.borrow();
        // Serialized as in a file.
        let text = world.kept.state.as_ref().map(serde_json::to_string);
        let state = text.map(|text| serde_json::from_str(&text.unwrap()).unwrap());
        Ok((state.unwrap_or_default(), None))
    }

    fn save(&self, state: &State) -> Result<(), FileError> {
        self.0.borrow_mut().kept.state = Some(state.clone());
        Ok(())
    }

    fn read(&self, key: Key) -> Result<Option<Record>, FileError> {
        let world = self.0.borrow();
        let record = world.kept.records.get(&key.job_id);
        let record = record.filter(|record| record.restart_count == key.restart_count);
        Ok(record.cloned())
    }

    fn write(&self, record: &Record) -> Result<(), FileError> {
        let mut world = self.0.borrow_mut();
        world.kept.records.insert(record.job, record.clone());
        Ok(())
    }

    fn keep(&self, _: &Record, _: &Peers) -> Result<(), PeerError> {
        Ok(())
    }

    fn end(&self, job: JobId) -> Result<(), FileError> {
        self.0.borrow_mut().kept.records.remove(&job);
        Ok(())
    }

    fn tidy(&self, is_here: &dyn Fn(JobId) -> bool) -> Result<(), FileError> {
        let mut world = self.0.borrow_mut();
        world.kept.records.retain(|job, _| is_here(*job));
        Ok(())
    }

    fn purge(&self, _: Duration, _: &Peers) -> Result<(), PeerError> {
        Ok(())
    }
}
