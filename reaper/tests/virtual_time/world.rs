//! A node with its GPUs, jobs and Slurm in virtual time. The world knows what jobs do and how they end, but not how
//! the daemon judges.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use fastrand::Rng;
use gpufrac_core::fraction::{Fraction, MemoryMib, Units};
use gpufrac_core::geometry::Placement;
use gpufrac_core::ids::{DeviceIndex, DeviceMinor, GpuIndex, GroupId, JobId, UserId};
use gpufrac_core::layout::Side;
use gpufrac_core::lease::{Held, Instance, Lease, LeaseState, MigSlice, Slice, VERSION};
use gpufrac_core::policy::IdleWish;
use gpufrac_reaper::keep::state::State;
use gpufrac_reaper::rhythm::LookScope;
use gpufrac_records::evidence::Record;
use gpufrac_records::usage::{End, SliceKey, Tallies, UsageRecord};
use slurm_sys::client::{JobInfo, JobState};

use crate::plans::{Part, Timeline, between};
use crate::site::{Class, NODE, Site};

/// The start of the world, after boot and since 1970.
const BEGIN: Duration = Duration::from_secs(1000);
const BEGIN_UNIX: u64 = 1_800_000_000;
/// The time after its end after which Slurm no longer knows a job.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// A submitted job.
#[derive(Clone, Debug)]
pub struct Submission {
    pub arrival: Duration,
    /// The size in parts of a GPU.
    pub units: u32,
    /// The parts of a GPU.
    pub of: u32,
    pub class: Class,
    pub wish: IdleWish,
    /// Whether the job has a batch script.
    pub batch: bool,
    /// Whether messages to the job are lost.
    pub deaf: bool,
    /// Its work in each run; the last one is repeated in further runs.
    pub plans: Vec<Vec<Part>>,
    /// Its work on further slices, for as long as that takes.
    pub beside: Vec<Vec<Part>>,
    /// The user id.
    pub user: u32,
}

/// The default user of jobs.
pub const ADA: u32 = 1000;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    ByItself,
    Cancelled,
    Requeued,
}

/// A run of a job.
#[derive(Clone, Debug)]
pub struct Run {
    pub begin: Duration,
    /// When its script began, after the prolog.
    pub script: Duration,
    /// Its work on the first slice.
    pub timeline: Timeline,
    /// Its work on the other slices.
    pub beside: Vec<Timeline>,
    pub end: Option<(Duration, How)>,
    /// If the daemon ended it, the last moment of the decision.
    pub decided: Option<Duration>,
    /// When warnings reached the user.
    pub warnings: Vec<Duration>,
    /// When the signal was sent.
    pub signals: Vec<Duration>,
    /// When the breaker was last open during the run.
    pub breaker: Option<Duration>,
    /// A lease for each slice.
    pub leases: Vec<Lease>,
    /// Whether the leases still exist.
    is_held: bool,
    /// Whether its epilog never runs.
    is_lost: bool,
}

pub struct Job {
    pub id: u32,
    pub submission: Submission,
    pub runs: Vec<Run>,
    comment: String,
    is_over: Option<Duration>,
}

/// An event at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Queue(u32),
    Over(u32, u32),
    Release(u32, u32),
    Free(u32, u32),
}

/// A fault of the node that lasts for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The driver does not answer.
    Driver,
    /// There are no samples.
    NoSamples,
    /// Some counters cannot be read.
    Counters,
    /// Leases cannot be read.
    Leases,
    /// Slurm answers late.
    SlowSlurm,
    /// Slurm does not answer in time, and carries out the action or not.
    SilentSlurm,
    /// Slurm refuses.
    DeafSlurm,
}

const FAULTS: [Fault; 7] = [
    Fault::Driver,
    Fault::NoSamples,
    Fault::Counters,
    Fault::Leases,
    Fault::SlowSlurm,
    Fault::SilentSlurm,
    Fault::DeafSlurm,
];

/// The daemon's files: its state, and the records of running jobs.
#[derive(Default)]
pub struct Kept {
    pub state: Option<State>,
    pub records: HashMap<JobId, Record>,
    /// How slices were used so far, for epilogs.
    pub tallies: Tallies,
    /// Usage records that epilogs wrote.
    pub usage: Vec<UsageRecord>,
    /// What users were shown, in a test of it.
    pub shown: Option<Vec<gpufrac_view::NodeStatus>>,
    /// When the state was lost, with the ends of the last hour.
    pub lost: Vec<Duration>,
}

/// Changes of leases.
#[derive(Clone, Copy, Debug, Default)]
struct Changes {
    /// A release began.
    ending: bool,
    /// A lease was removed.
    gone: bool,
}

pub struct World {
    pub site: Site,
    pub now: Duration,
    pub jobs: Vec<Job>,
    pub kept: Kept,
    /// Whether a lease changed since the flag was last read.
    pub changed: bool,
    /// Changes of leases since the start of the current wait.
    leases: Changes,
    /// Forbidden actions that happened.
    pub wrong: Vec<String>,
    pub dice: Rng,
    /// Seconds by which the wall clock is ahead.
    pub wall_step: i64,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    sequence: u64,
    queue: VecDeque<u32>,
    free: Vec<u32>,
    active: BTreeMap<u32, usize>,
    left: usize,
    fault: Option<(Fault, Duration)>,
    next_fault: Duration,
    /// Calls of the daemon until the machine stands still.
    calls_left: u32,
    /// The time and the length of the next planned standstill.
    next_standstill: Option<(Duration, Duration)>,
    /// The number of Slurm's next answers that are late, and by how much.
    pub slow_answers: (u32, Duration),
    /// The last standstill: start and length.
    standstill: (Duration, Duration),
}

impl World {
    /// A world in which these jobs are submitted.
    pub fn new(site: Site, submissions: Vec<Submission>, mut dice: Rng) -> World {
        let mut world = World {
            now: BEGIN,
            kept: Kept::default(),
            changed: false,
            leases: Changes::default(),
            wrong: Vec::new(),
            wall_step: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            queue: VecDeque::new(),
            free: site.gpus.clone(),
            active: BTreeMap::new(),
            left: submissions.len(),
            jobs: Vec::with_capacity(submissions.len()),
            fault: None,
            next_fault: Duration::MAX,
            calls_left: 0,
            next_standstill: None,
            slow_answers: (0, Duration::ZERO),
            standstill: (Duration::ZERO, Duration::ZERO),
            dice: dice.fork(),
            site,
        };
        for (id, submission) in (1..).zip(submissions) {
            world.at(BEGIN + submission.arrival, Event::Queue(id));
            world.jobs.push(Job {
                id,
                submission,
                runs: Vec::new(),
                comment: String::new(),
                is_over: None,
            });
        }
        world.plan_fault();
        world.plan_standstill();
        world
    }

    /// Whether all jobs have ended and no lease is left.
    pub fn is_over(&self) -> bool {
        self.left == 0 && self.active.is_empty()
    }

    pub fn unix_now(&self) -> u64 {
        (BEGIN_UNIX + (self.now - BEGIN).as_secs()).saturating_add_signed(self.wall_step)
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, event)));
    }

    pub fn pass(&mut self, time: Duration) {
        self.advance(self.now + time, None);
    }

    /// Lets time pass until `end`, or until a release begins; in a measurement of some slices also until a lease is
    /// removed.
    pub fn pass_while_looking(&mut self, end: Duration, scope: LookScope) {
        self.advance(end, Some(scope));
    }

    fn advance(&mut self, end: Duration, look: Option<LookScope>) {
        self.leases = Changes::default();
        while let Some(Reverse((time, _, event))) = self.events.peek().copied() {
            if time > end {
                break;
            }
            self.events.pop();
            self.now = self.now.max(time);
            self.happen(event);
            let Changes { ending, gone } = self.leases;
            if look.is_some() && ending || look == Some(LookScope::OtherGpus) && gone {
                return;
            }
        }
        self.now = self.now.max(end);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Queue(id) => {
                self.queue.push_back(id);
                self.start_jobs();
            }
            Event::Over(id, run) => self.end(id, run, How::ByItself),
            Event::Release(id, run) => {
                for lease in &mut self.run_mut(id, run).leases {
                    lease.state = LeaseState::Releasing;
                }
                self.changed = true;
                self.leases.ending = true;
            }
            Event::Free(id, run) => self.free(id, run),
        }
    }

    fn job_mut(&mut self, id: u32) -> &mut Job {
        &mut self.jobs[id as usize - 1]
    }

    pub fn job(&self, id: u32) -> Option<&Job> {
        self.jobs.get((id as usize).checked_sub(1)?)
    }

    fn run_mut(&mut self, id: u32, run: u32) -> &mut Run {
        &mut self.job_mut(id).runs[run as usize]
    }

    /// The run of a lease.
    fn run(&self, lease: &Lease) -> Option<&Run> {
        let run = self
            .job(lease.job_id.0)?
            .runs
            .get(lease.restart_count as usize)?;
        run.is_held.then_some(run)
    }

    /// Starts all pending jobs that find a place.
    fn start_jobs(&mut self) {
        let waiting = std::mem::take(&mut self.queue);
        for id in waiting {
            let units = self.job_mut(id).submission.units;
            match self.free.iter().position(|free| *free >= units) {
                Some(gpu) => self.start(id, gpu),
                None => self.queue.push_back(id),
            }
        }
    }

    fn start(&mut self, id: u32, gpu: usize) {
        let (now, unix) = (self.now, self.unix_now());
        let mut dice = self.dice.fork();
        let job = &mut self.jobs[id as usize - 1];
        let run = job.runs.len();
        let plans = &job.submission.plans;
        let plan = plans.get(run).unwrap_or(&plans[plans.len() - 1]);
        let script = now + between(&mut dice, Duration::ZERO, Duration::from_secs(2));
        let timeline = Timeline::new(plan, script, &mut dice);
        let end = timeline.end;
        let beside = job.submission.beside.iter().map(|parts| {
            let mut beside = Timeline::new(parts, script, &mut dice);
            beside.cut(end);
            beside
        });
        let beside: Vec<Timeline> = beside.collect();
        let numbers = 0..=beside.len() as u32;
        let leases =
            numbers.map(|number| lease(&job.submission, id, run as u32, number, gpu, unix));
        let mut leases: Vec<Lease> = leases.collect();
        for lease in &mut leases {
            lease.created_boot_ms = Some(now.as_millis() as u64);
        }
        self.free[gpu] -= job.submission.units;
        job.runs.push(Run {
            begin: now,
            script,
            timeline,
            beside,
            end: None,
            decided: None,
            warnings: Vec::new(),
            signals: Vec::new(),
            breaker: None,
            leases,
            is_held: true,
            is_lost: false,
        });
        self.active.insert(id, gpu);
        self.changed = true;
        self.at(end, Event::Over(id, run as u32));
    }

    /// Ends the processes of a run, and runs its epilog; in a world with disturbances the epilog is rarely missing.
    fn end(&mut self, id: u32, run: u32, how: How) {
        let now = self.now;
        if self.run_mut(id, run).end.is_some() {
            return;
        }
        let is_lost = self.site.trouble.is_some() && self.dice.u8(0..50) == 0;
        let epilog = now + self.site.interval.mul_f64(0.1 * self.dice.f64());
        let released = epilog + self.site.interval.mul_f64(0.1 * self.dice.f64());
        let ended = self.run_mut(id, run);
        ended.end = Some((now, how));
        for timeline in [&mut ended.timeline].into_iter().chain(&mut ended.beside) {
            timeline.cut(now);
        }
        ended.is_lost = is_lost;
        if !is_lost {
            self.at(epilog, Event::Release(id, run));
            self.at(released, Event::Free(id, run));
        } else if how != How::Requeued {
            self.job_mut(id).is_over = Some(now);
        }
    }

    /// Removes the lease.
    fn free(&mut self, id: u32, run: u32) {
        let now = self.now;
        let units = self.job_mut(id).submission.units;
        let unix = self.unix_now();
        let left = self.run_mut(id, run);
        left.is_held = false;
        let leases = left.leases.clone();
        let how = left.end.map(|(_, how)| how);
        if let Some(gpu) = self.active.remove(&id) {
            self.free[gpu] += units;
        }
        self.record(&leases, unix);
        self.changed = true;
        self.leases.gone = true;
        if how == Some(How::Requeued) {
            self.requeue(id);
        } else {
            self.job_mut(id).is_over.get_or_insert(now);
            self.left -= 1;
        }
        self.start_jobs();
    }

    /// The epilog records how the slices were used.
    fn record(&mut self, leases: &[Lease], unix: u64) {
        for lease in leases {
            let key = SliceKey::of(lease);
            let mut tallies = self.kept.tallies.slices.iter();
            let tally = tallies.find(|tally| tally.key == key);
            let end = End {
                unix,
                boot_ms: self.now.as_millis() as u64,
                boot_id: "boot",
            };
            let record = UsageRecord::of(lease, end, tally);
            if let Some(used) = &record.used {
                let sum = used.busy + used.idle + used.unknown + used.suspended;
                if sum != record.seconds {
                    let wrong = format!("job {}: {used:?} of {} s", record.job, record.seconds);
                    self.wrong.push(wrong);
                }
            }
            self.kept.usage.push(record);
        }
    }

    fn requeue(&mut self, id: u32) {
        let pause = self.site.interval.mul_f64(10.0 * self.dice.f64());
        self.at(self.now + pause, Event::Queue(id));
    }

    /// When jobs were ended, in order.
    pub fn ends(&self) -> Vec<Duration> {
        let runs = self.jobs.iter().flat_map(|job| &job.runs);
        let mut ends: Vec<Duration> = runs
            .filter_map(|run| run.decided.and(run.end))
            .map(|(at, _)| at)
            .collect();
        ends.sort();
        ends
    }

    /// The leases of the node.
    pub fn leases(&self) -> Vec<Lease> {
        let runs = self
            .active
            .keys()
            .filter_map(|id| self.job(*id)?.runs.last());
        runs.flat_map(|run| run.leases.clone()).collect()
    }
}

/// Standstills and faults.
impl World {
    /// A call of the daemon: the machine may stand still before the answer.
    pub fn call(&mut self) {
        if let Some((_, length)) = self.next_standstill.take_if(|(at, _)| *at <= self.now) {
            self.stand_still_for(length);
        }
        if self.site.trouble.is_none() {
            return;
        }
        self.calls_left = self.calls_left.saturating_sub(1);
        if self.calls_left == 0 {
            self.stand_still();
            self.plan_standstill();
        }
        if self.now >= self.next_fault {
            let fault = FAULTS[self.dice.usize(0..FAULTS.len())];
            let length = self.site.interval.mul_f64(12.0 * self.dice.f64());
            self.fault = Some((fault, self.now + length));
            self.plan_fault();
        }
    }

    /// The daemon does not run for a while; jobs do.
    pub fn stand_still(&mut self) {
        let longest = if self.dice.bool() { 3.0 } else { 15.0 };
        let length = self.site.interval.mul_f64(longest * self.dice.f64());
        self.stand_still_for(length);
    }

    fn stand_still_for(&mut self, length: Duration) {
        let from = self.now;
        self.pass(length);
        self.standstill = (from, self.now);
    }

    /// Plans a standstill from the first call at or after a moment.
    pub fn standstill_at(&mut self, at: Duration, length: Duration) {
        self.next_standstill = Some((at, length));
    }

    fn plan_standstill(&mut self) {
        // A round has ten to twenty calls.
        self.calls_left = self.dice.u32(1..4000);
    }

    fn plan_fault(&mut self) {
        if let Some(mean) = self.site.trouble {
            self.next_fault = self.now + mean.mul_f64(2.0 * self.dice.f64());
        }
    }

    /// Whether a fault is present now.
    pub fn has(&self, fault: Fault) -> bool {
        self.fault
            .is_some_and(|(now, until)| now == fault && self.now < until)
    }

    /// The last moment at which the current action could have been decided: before a standstill.
    pub fn decided(&self) -> Duration {
        let (from, to) = self.standstill;
        if to == self.now { from } else { self.now }
    }
}

/// Slurm.
impl World {
    /// Slurm's record of a job.
    pub fn slurm_job(&self, id: u32) -> Option<JobInfo> {
        let job = self.job(id)?;
        let is_forgotten = |over: Duration| self.now > over + FORGOTTEN;
        let run = job.runs.last()?;
        if job.is_over.is_some_and(is_forgotten) {
            return None;
        }
        let class = job.submission.class;
        // Slurm counts a requeue when it gets the message of the epilog, or when the node is reported lost.
        let was_requeued =
            run.end.is_some_and(|(_, how)| how == How::Requeued) && (run.is_lost || !run.is_held);
        let text = |own: Class| if class == own { class.name() } else { "normal" }.to_owned();
        let state = match (run.end, job.is_over) {
            (_, Some(_)) => JobState::Finished,
            (Some(_), None) if was_requeued => JobState::Pending,
            (Some(_), None) => JobState::Completing,
            (None, None) => JobState::Running,
        };
        Some(JobInfo {
            job_id: id,
            user_id: 0,
            state,
            partition: String::new(),
            tres_per_node: None,
            tres_elsewhere: Vec::new(),
            tres_per_task: None,
            gres_of_nodes: Vec::new(),
            restart_count: job.runs.len() as u32 - u32::from(!was_requeued),
            batch: job.submission.batch,
            can_requeue: job.submission.batch,
            name: "job".to_owned(),
            qos: text(Class::Patient),
            account: text(Class::Signal),
            reservation: String::new(),
            nodes: NODE.to_owned(),
            node_count: 1,
            array: None,
            het_job_id: 0,
            start_unix: 0,
            end_unix: 0,
            suspend_unix: 0,
            ended_by: None,
            failed: false,
            mail_user: String::new(),
            admin_comment: job.comment.clone(),
            excluded_nodes: String::new(),
            is_held: false,
        })
    }

    /// The run, if messages can reach it; otherwise the error.
    fn living(&mut self, id: u32, run: u32) -> Result<&mut Run, String> {
        let runs = &mut self.job_mut(id).runs;
        if runs.len() as u32 != run + 1 {
            return Err("it was requeued meanwhile".to_owned());
        }
        let run = &mut runs[run as usize];
        match run.end {
            None => Ok(run),
            Some(_) => Err("the job is completing".to_owned()),
        }
    }

    /// Delivers a warning to the user, or not.
    pub fn warn(&mut self, id: u32, run: u32) -> Result<(), String> {
        let now = self.now;
        let is_deaf = self.job_mut(id).submission.deaf;
        let run = self.living(id, run)?;
        if is_deaf {
            return Err("nobody listens".to_owned());
        }
        run.warnings.push(now);
        Ok(())
    }

    pub fn comment(&mut self, id: u32, text: &str) {
        text.clone_into(&mut self.job_mut(id).comment);
    }

    pub fn signal(&mut self, id: u32, run: u32) -> Result<(), String> {
        let now = self.now;
        self.living(id, run)?.signals.push(now);
        Ok(())
    }

    /// Ends a run. `decided`: the last possible moment of the decision.
    pub fn reap(&mut self, id: u32, run: u32, how: How, decided: Duration) -> Result<(), String> {
        self.living(id, run)?.decided = Some(decided);
        self.end(id, run, how);
        Ok(())
    }

    /// Ends a lease whose epilog never ran.
    pub fn end_lease(&mut self, lease: &Lease) -> bool {
        let Some(run) = self.run(lease) else {
            return false;
        };
        if !run.is_lost {
            let wrong = "the reaper ended the lease of a job that was not over";
            self.wrong.push(format!("job {}: {wrong}", lease.job_id));
            return true;
        }
        self.free(lease.job_id.0, lease.restart_count);
        true
    }

    /// Whether a run has processes.
    pub fn has_processes(&self, lease: &Lease) -> bool {
        self.run(lease).is_some_and(|run| run.end.is_none())
    }

    /// The work of a run on a slice, while its instance exists.
    pub fn timeline(&self, lease: &Lease) -> Option<&Timeline> {
        let run = self.run(lease)?;
        match lease.number.checked_sub(1) {
            None => Some(&run.timeline),
            Some(further) => run.beside.get(further as usize),
        }
    }

    /// Records that the breaker was open at a moment.
    pub fn breaker_is_open(&mut self, at: Duration) {
        let ids: Vec<u32> = self.active.keys().copied().collect();
        for id in ids {
            if let Some(run) = self.job_mut(id).runs.last_mut()
                && run.end.is_none()
            {
                run.breaker = Some(at);
            }
        }
    }
}

fn lease(submission: &Submission, id: u32, run: u32, number: u32, gpu: usize, unix: u64) -> Lease {
    let gi_id = 1 + id % 7;
    let mut lease = Lease {
        version: VERSION,
        state: LeaseState::Active,
        job_id: JobId(id),
        number,
        restart_count: run,
        sluid: None,
        user_id: UserId(submission.user),
        group_id: GroupId(1000),
        user: "ada".to_owned(),
        account: None,
        partition: "gpu".to_owned(),
        node: NODE.to_owned(),
        pool: "slices".to_owned(),
        units: Units(submission.units),
        fraction: Fraction::new(submission.units, submission.of).unwrap(),
        confirmed: true,
        whole_device: false,
        idle_wish: submission.wish,
        created_unix: unix,
        created_boot_ms: None,
        kept_unix: None,
        slice: Slice {
            device_index: DeviceIndex(gpu as u32),
            side: Side::Whole,
            gpu_uuid: format!("GPU-{gpu}"),
            gpu_index: GpuIndex(gpu as u32),
            gpu_minor: DeviceMinor(gpu as u32),
            memory_mib: MemoryMib(9856),
            hints: false,
            group_limit: false,
            held: Held::Mig(MigSlice {
                profile_id: 19,
                profile_name: "1g.10gb".to_owned(),
                placement: Placement { start: 0, size: 1 },
                instance: Some(Instance {
                    gi_id,
                    ci_id: 0,
                    mig_uuid: format!("MIG-{id}-{run}-{number}"),
                    gi_cap_minor: 0,
                    ci_cap_minor: 0,
                }),
            }),
        },
    };
    Site::name(submission.class, &mut lease);
    lease
}
