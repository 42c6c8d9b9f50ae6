//! From the driver to samples. A session with the driver is opened for each look and closed at its end,
//! before anything else is asked, and instances are asked about through their GPU: nothing stays open
//! that could keep an instance from being destroyed.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use gpufrac_core::fraction::{Fraction, MemoryMib};
use gpufrac_core::lease::Lease;
use gpufrac_core::mechanism::Mechanism;
use gpufrac_core::policy::Policy;
use gpufrac_node::mps::process;
use gpufrac_node::node::Node;
use gpufrac_nvml::telemetry::{Counters, MigDevice, Process, Utilization};
use gpufrac_nvml::{Gpu, Loaded, MigMode, NvmlError, Session};

use crate::clock::{BootTime, Clock, SystemClock};
use crate::key::Key;
use crate::measure::cpu::JobGroups;
use crate::measure::dcgm::{Dcgm, InstanceId};
use crate::measure::sample::{Activity, Excess, Look, Sample, Sampler, Source};

/// Between two looks at the counters of an instance at least (nvml.h, GPM).
pub const SHORTEST_LOOK: Duration = Duration::from_millis(100);
/// What a context takes beside what its program asks for: NVML counts it, the limits of MPS do not.
const CONTEXT_OVERHEAD: MemoryMib = MemoryMib(600);
/// Wall clock and boot clock may drift apart by so much between two looks.
const LARGEST_CLOCK_DRIFT: Duration = Duration::from_secs(1);

/// The driver keeps what processes computed for so long at least. nvml.h does not say how long: this is cautious.
const SHORTEST_DRIVER_HISTORY: Duration = Duration::from_secs(20);

/// Why the driver's records since the last look cannot be read.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum NoHistory {
    #[error("the first look")]
    FirstLook,
    #[error("the clock was set back")]
    ClockSetBack,
    #[error("the clock was set")]
    ClockSet,
    #[error("the driver's records do not reach back to the last look")]
    TooShort,
}

/// Why the work on a GPU without MIG cannot be told by process.
#[derive(Debug, thiserror::Error)]
enum UnknownWork {
    #[error(transparent)]
    History(#[from] NoHistory),
    #[error(transparent)]
    Driver(#[from] NvmlError),
    #[error("the GPU was busy ({0} %), by no process")]
    OfNoProcess(u32),
}

/// What lasts from look to look.
pub struct Telemetry {
    clock: SystemClock,
    /// The driver's library, but no session with it.
    _library: Option<Loaded>,
    groups: JobGroups,
    dcgm: Option<Dcgm>,
    /// The last look by both clocks.
    last: Option<(BootTime, u64)>,
    /// Leases that were looked at.
    met: HashSet<Key>,
    /// Groups of jobs of the processes that were seen, by pid, and when: the driver also tells what those did that
    /// have ended.
    owners: HashMap<u32, (String, BootTime)>,
}

/// What was seen of one GPU.
struct View {
    /// Busy part of the time of its leased instances, 0 to 1.
    busy_shares: HashMap<u32, Result<f64, NvmlError>>,
    has_gpm: bool,
    processes: Vec<Process>,
    mig_devices: Vec<MigDevice>,
    /// Memory in use on leased instances without a process, by their UUIDs.
    left_behind: HashMap<String, MemoryMib>,
    /// None where the driver has none: MIG.
    utilization: Option<Result<Vec<Utilization>, UnknownWork>>,
}

impl View {
    /// Whether the activity of the lease's instance has a figure of its own.
    fn measures(&self, lease: &Lease, has_dcgm: bool) -> bool {
        lease.slice.mig().is_some() && (self.has_gpm || has_dcgm)
    }
}

impl Telemetry {
    /// For a node.
    pub fn new(node: &Node) -> Telemetry {
        let exporter = node.config.reaper.dcgm_exporter.as_deref();
        Telemetry {
            clock: SystemClock,
            _library: Loaded::keep(&node.nvml),
            groups: JobGroups::find(&node.name),
            dcgm: exporter.map(Dcgm::new),
            last: None,
            met: HashSet::new(),
            owners: HashMap::new(),
        }
    }
}

impl Sampler for Telemetry {
    fn look<'p>(
        &mut self,
        node: &Node,
        leases: &[&Lease],
        observe: &mut dyn FnMut() -> bool,
        policy: &dyn Fn(&Lease) -> &'p Policy,
    ) -> Look {
        let mut look = Look::default();
        let keys: Vec<Key> = leases.iter().map(|lease| Key::of(lease)).collect();
        self.groups.retain(|key| keys.contains(key));
        self.met.retain(|key| keys.contains(key));
        if leases.is_empty() {
            self.last = None;
            return look;
        }
        let before = self.last;
        let interval = self.interval();
        let views = views(node, leases, observe, interval, &mut look.errors);
        let Some(views) = views else {
            // The driver's records since then were not read.
            self.last = before;
            return look;
        };
        let now = self.clock.now();
        let dcgm = self.read_dcgm(now, &mut look.errors);
        for lease in leases {
            let gpu = &lease.slice.gpu_uuid;
            let neighbours: Vec<&Lease> = leases
                .iter()
                .filter(|other| other.slice.gpu_uuid == *gpu)
                .copied()
                .collect();
            let view = views.get(gpu);
            let sample = self.judge(lease, view, &neighbours, dcgm.as_ref(), policy(lease));
            let is_first = self.met.insert(Key::of(lease));
            if !(is_first && compares_looks(&sample)) {
                look.samples.insert(lease.job_id, sample);
            }
        }
        // A process may end right after a look, and as looks overlap by up to a second two of them tell of it then.
        let kept = node.config.reaper.interval * 2 + LARGEST_CLOCK_DRIFT * 2;
        self.owners.retain(|_, (_, seen)| now.since(*seen) < kept);
        self.owners.extend(owners(&views, now));
        look
    }

    fn look_at(
        &mut self,
        node: &Node,
        lease: &Lease,
        neighbours: &[&Lease],
        policy: &Policy,
    ) -> Sample {
        let observe = || {
            #[expect(clippy::disallowed_methods, reason = "waits for real counters")]
            std::thread::sleep(SHORTEST_LOOK);
            true
        };
        let before = self.last;
        let interval = self.interval();
        // The next look at all of them is to begin where the last one ended.
        self.last = before;
        let mut errors = Vec::new();
        // Its instance alone: one beside it may be about to go.
        let views = views(node, &[lease], observe, interval, &mut errors).unwrap_or_default();
        let dcgm = self.read_dcgm(self.clock.now(), &mut errors);
        let view = views.get(&lease.slice.gpu_uuid);
        self.judge(lease, view, neighbours, dcgm.as_ref(), policy)
    }

    fn has_processes(&self, lease: &Lease) -> bool {
        self.groups.exists(lease)
    }

    fn reload(&mut self, node: &Node) {
        *self = Telemetry::new(node);
    }
}

impl Telemetry {
    fn judge(
        &mut self,
        lease: &Lease,
        view: Option<&View>,
        neighbours: &[&Lease],
        dcgm: Option<&HashMap<InstanceId, f64>>,
        policy: &Policy,
    ) -> Sample {
        let Some(view) = view else {
            return Sample::missing("the driver does not answer for its GPU");
        };
        let measured = lease.slice.mps().is_none() && view.measures(lease, dcgm.is_some());
        Judge {
            lease,
            view,
            neighbours,
            dcgm,
            owners: &self.owners,
            policy,
            cores: match measured {
                // Not looked at: reading it takes longer than all the rest.
                true => None,
                false => self.groups.cores(lease, self.clock.now()),
            },
        }
        .sample()
    }

    /// Since when the driver's own records are to be read: microseconds by the wall clock, which the driver uses. An
    /// error when the clock was set since the last look: then its records can not be told apart.
    fn interval(&mut self) -> Result<u64, NoHistory> {
        let (now, wall) = (self.clock.now(), self.clock.unix_now());
        let Some((then, wall_then)) = self.last.replace((now, wall)) else {
            return Err(NoHistory::FirstLook);
        };
        let passed = now.since(then);
        let by_wall = Duration::from_secs(wall.saturating_sub(wall_then));
        let by_wall = match wall < wall_then {
            true => return Err(NoHistory::ClockSetBack),
            false => by_wall,
        };
        // Whole seconds of the wall clock are off by one either way.
        if by_wall.abs_diff(passed) > LARGEST_CLOCK_DRIFT + Duration::from_secs(1) {
            return Err(NoHistory::ClockSet);
        }
        if passed > SHORTEST_DRIVER_HISTORY {
            return Err(NoHistory::TooShort);
        }
        let passed = passed.as_micros() as u64;
        Ok((wall * 1_000_000).saturating_sub(passed))
    }

    fn read_dcgm(
        &mut self,
        now: BootTime,
        errors: &mut Vec<String>,
    ) -> Option<HashMap<InstanceId, f64>> {
        let read = self.dcgm.as_mut()?.read(now);
        Some(read.unwrap_or_else(|error| {
            errors.push(format!("dcgm-exporter: {error}"));
            HashMap::new()
        }))
    }
}

/// Whether a sample says nothing for want of an earlier look to compare with. That is no sign of use: else no job
/// would ever be one that did not use its slice.
fn compares_looks(sample: &Sample) -> bool {
    let compares = match sample.source {
        Source::Processes | Source::ProcessUtilization | Source::MpsClients => true,
        Source::Gpm | Source::Dcgm | Source::Missing => false,
    };
    compares && matches!(sample.activity, Activity::Unknown(_))
}

/// The jobs of processes that are there now, by pid.
fn owners(
    views: &HashMap<String, View>,
    now: BootTime,
) -> impl Iterator<Item = (u32, (String, BootTime))> {
    // Only what they computed on a GPU without MIG is told by process.
    let views = views.values().filter(|view| view.utilization.is_some());
    let processes = views.flat_map(|view| &view.processes);
    processes.filter_map(move |process| {
        let job = process::job_group(process.pid as i32)?;
        Some((process.pid, (job, now)))
    })
}

/// What was seen of each GPU by its UUID; a GPU is missing where the driver did not answer. None: the look was cut
/// short, and says nothing.
fn views(
    node: &Node,
    leases: &[&Lease],
    observe: impl FnOnce() -> bool,
    since_us: Result<u64, NoHistory>,
    errors: &mut Vec<String>,
) -> Option<HashMap<String, View>> {
    let opened = node.nvml().and_then(|session| {
        let count = session.gpu_count()?;
        Ok((session, count))
    });
    let (session, count) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            errors.push(error.to_string());
            return Some(HashMap::new());
        }
    };
    let mut gpus = Vec::new();
    for gpu in (0..count).map(|index| session.gpu(index)) {
        match gpu {
            Ok(gpu) => gpus.push(gpu),
            Err(error) => errors.push(error.to_string()),
        }
    }
    gpus.retain(|gpu| leases.iter().any(|lease| lease.slice.gpu_uuid == gpu.uuid));
    let begun: Vec<_> = gpus.iter().map(|gpu| (gpu, begin(gpu, leases))).collect();
    let measures = begun.iter().any(|(_, begun)| matches!(begun, Ok(Some(_))));
    if measures && !observe() {
        return None;
    }
    let mut views = HashMap::new();
    for (gpu, begun) in begun {
        match begun.and_then(|begun| end(&session, gpu, begun, leases, since_us)) {
            Ok(view) => {
                let refused = view.busy_shares.values().filter_map(|a| a.as_ref().err());
                errors.extend(refused.map(NvmlError::to_string));
                views.insert(gpu.uuid.clone(), view);
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    Some(views)
}

/// The first look at the counters of each leased instance.
type Begun<'s> = HashMap<u32, Result<Counters<'s>, NvmlError>>;

/// None where the GPU has no such counters.
fn begin<'s>(gpu: &Gpu<'s>, leases: &[&Lease]) -> Result<Option<Begun<'s>>, NvmlError> {
    let mine = leases
        .iter()
        .filter(|lease| lease.slice.gpu_uuid == gpu.uuid);
    let mut ids: Vec<u32> = mine
        .filter_map(|lease| lease.slice.instance().map(|instance| instance.gi_id))
        .collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.is_empty() || !gpu.has_gpm()? {
        return Ok(None);
    }
    let counters = ids.into_iter().map(|id| (id, gpu.counters(id)));
    Ok(Some(counters.collect()))
}

fn end(
    session: &Session,
    gpu: &Gpu<'_>,
    begun: Option<Begun<'_>>,
    leases: &[&Lease],
    since_us: Result<u64, NoHistory>,
) -> Result<View, NvmlError> {
    let has_gpm = begun.is_some();
    let mut busy_shares = HashMap::new();
    for (id, first) in begun.into_iter().flatten() {
        let measured = first.and_then(|first| {
            let second = gpu.counters(id)?;
            session.activity(&first, &second)
        });
        busy_shares.insert(id, measured);
    }
    let has_mig = gpu.mig_mode()? == MigMode::On;
    let processes = gpu.processes()?;
    let mig_devices = match has_mig {
        true => gpu.mig_devices()?,
        false => Vec::new(),
    };
    let mut left_behind = HashMap::new();
    for lease in leases {
        // One that is its job's alone, and on which nothing runs.
        let Some(instance) = lease
            .slice
            .instance()
            .filter(|_| lease.slice.mps().is_none())
        else {
            continue;
        };
        let stands = mig_devices.iter().any(|d| d.uuid == instance.mig_uuid);
        if stands && processes.iter().all(|p| p.gi_id != Some(instance.gi_id)) {
            // One that ends under our eyes says nothing of the others.
            if let Ok(used) = gpu.memory_used(&instance.mig_uuid) {
                left_behind.insert(instance.mig_uuid.clone(), used);
            }
        }
    }
    Ok(View {
        busy_shares,
        has_gpm,
        processes,
        mig_devices,
        left_behind,
        utilization: (!has_mig).then(|| utilization(gpu, since_us)),
    })
}

fn utilization(
    gpu: &Gpu<'_>,
    since_us: Result<u64, NoHistory>,
) -> Result<Vec<Utilization>, UnknownWork> {
    let since = since_us?;
    // Before the processes: one that begins between the two readings must not look like the work of none.
    let total = gpu.utilization()?;
    let mut used = gpu.utilization_since(since)?;
    used.retain(|process| process.percent > 0);
    if used.is_empty() && total > 0 {
        return Err(UnknownWork::OfNoProcess(total));
    }
    Ok(used)
}

/// One lease and all that was seen.
struct Judge<'a> {
    lease: &'a Lease,
    view: &'a View,
    /// All leases on the GPU, itself among them.
    neighbours: &'a [&'a Lease],
    dcgm: Option<&'a HashMap<InstanceId, f64>>,
    /// Groups of jobs of processes that were seen before.
    owners: &'a HashMap<u32, (String, BootTime)>,
    policy: &'a Policy,
    /// Cores that the job kept busy.
    cores: Option<f64>,
}

impl Judge<'_> {
    fn sample(&self) -> Sample {
        let own = self.own_processes();
        let contexts = own.as_ref().map(|own| own.len() as u32);
        let by_processes = own.as_ref().and_then(|own| {
            let memory = own.iter().map(|process| Some(process.memory?.0));
            memory.sum::<Option<u64>>().map(MemoryMib)
        });
        let (source, busy_share, activity) = match self.lease.slice.instance() {
            Some(instance) => {
                let stands = self
                    .view
                    .mig_devices
                    .iter()
                    .find(|d| d.uuid == instance.mig_uuid);
                if stands.is_none_or(|device| device.gi_id != instance.gi_id) {
                    // Ids are used again, UUIDs are not: whatever was measured is another's.
                    return Sample::missing("its instance does not stand");
                }
                self.instance(instance.gi_id, contexts)
            }
            None => self.whole(contexts),
        };
        Sample {
            source,
            activity,
            busy_share,
            contexts,
            memory: match contexts {
                // Who holds it then is not known to the driver either.
                Some(0) => self.left_behind().or(by_processes),
                _ => by_processes,
            },
            excess: own.as_ref().and_then(|own| self.excess(own, by_processes)),
        }
    }

    /// The job's processes with a context; None when there are some of whom nobody knows whose they are.
    fn own_processes(&self) -> Option<Vec<Process>> {
        let instance = self.lease.slice.instance();
        let on_it = self.view.processes.iter().filter(|process| match instance {
            Some(instance) => process.gi_id == Some(instance.gi_id),
            None => true,
        });
        let alone = instance.is_some() && self.lease.slice.mps().is_none();
        let mut own = Vec::new();
        for process in on_it {
            let pid = process.pid as i32;
            if alone {
                own.push(*process);
                continue;
            }
            if self.is_server(pid) {
                continue;
            }
            let group = process::job_group(pid);
            match group.and_then(|group| self.lease.owns_group(&group, self.neighbours)) {
                // A group of that name is easily made where users have groups of their own.
                Some(true) if process::owner(pid) == Some(self.lease.user_id) => {
                    own.push(*process);
                }
                Some(_) => {}
                // It ended since, or hides in a group of its own.
                None if process::is_alive(pid) => return None,
                None => {}
            }
        }
        Some(own)
    }

    /// Whether a process is a server of MPS on a GPU that is shared by it: of root, or of any tenant, as private
    /// daemons have one each. Where there is no MPS nobody hides behind its name.
    fn is_server(&self, pid: i32) -> bool {
        let mut neighbours = self.neighbours.iter();
        // What runs in a job is a program of its user, whatever it is called.
        let outside = || process::owner(pid) == Some(0) || process::job_group(pid).is_none();
        neighbours.any(|lease| {
            lease.slice.mps().is_some() && process::is_mps(pid, lease.user_id) && outside()
        })
    }

    fn left_behind(&self) -> Option<MemoryMib> {
        let instance = self.lease.slice.instance()?;
        self.view.left_behind.get(&instance.mig_uuid).copied()
    }

    /// A slice with MIG.
    fn instance(&self, gi_id: u32, contexts: Option<u32>) -> (Source, Option<f64>, Activity) {
        let (source, measured) = match (self.view.busy_shares.get(&gi_id), self.dcgm) {
            (Some(share), _) if self.view.has_gpm => (
                Source::Gpm,
                share.as_ref().copied().map_err(NvmlError::to_string),
            ),
            (_, Some(dcgm)) => {
                let gpu = self.lease.slice.gpu_uuid.clone();
                let value = dcgm.get(&(gpu, gi_id)).copied();
                let missing = || "dcgm-exporter has no fresh value for it".to_owned();
                (Source::Dcgm, value.ok_or_else(missing))
            }
            _ => return (Source::Processes, None, self.by_processes(contexts)),
        };
        let share = match measured {
            Ok(share) => share,
            Err(why) => return (source, None, Activity::Unknown(why)),
        };
        if !self.is_busy(share) {
            return (source, Some(share), Activity::Idle);
        }
        if self.lease.slice.mps().is_some() && self.tenants(Some(gi_id)) > 1 {
            return (Source::MpsClients, None, self.among_tenants(contexts));
        }
        (source, Some(share), Activity::Busy)
    }

    /// A slice of a GPU without MIG.
    fn whole(&self, contexts: Option<u32>) -> (Source, Option<f64>, Activity) {
        let source = match self.lease.slice.mps {
            Some(_) => Source::MpsClients,
            None => Source::ProcessUtilization,
        };
        let used = match &self.view.utilization {
            Some(Ok(used)) => used,
            Some(Err(why)) => return (source, None, Activity::Unknown(why.to_string())),
            None => {
                return (
                    source,
                    None,
                    Activity::Unknown("the GPU is in MIG mode".into()),
                );
            }
        };
        let mine = |process: &&Utilization| self.is_mine(process.pid) == Some(true);
        let own = used
            .iter()
            .filter(mine)
            .map(|process| process.percent)
            .max();
        let share = f64::from(own.unwrap_or(0).min(100)) / 100.0;
        if self.is_busy(share) {
            return (source, Some(share), Activity::Busy);
        }
        let whose = |process: &Utilization| self.is_mine(process.pid).is_none();
        match used.iter().any(whose) {
            // A server of MPS, or a process that came and went between two looks.
            true => (source, None, self.among_tenants(contexts)),
            false => (source, Some(share), Activity::Idle),
        }
    }

    /// Whether what a process computed is the job's; None where nobody knows.
    fn is_mine(&self, pid: u32) -> Option<bool> {
        if self.neighbours.len() == 1 {
            return Some(true);
        }
        let known = || self.owners.get(&pid).map(|(group, _)| group.clone());
        if let Some(group) = process::job_group(pid as i32).or_else(known) {
            return self.lease.owns_group(&group, self.neighbours);
        }
        let pid = pid as i32;
        // A server of a daemon that is one job's alone runs as this job's user.
        let user = process::owner(pid).filter(|user| *user != 0)?;
        let mut private = self.neighbours.iter().filter(|lease| {
            let mps = lease.slice.mps();
            lease.user_id == user && mps.is_some_and(|mps| mps.private)
        });
        match (private.next(), private.next()) {
            (Some(lease), None) => Some(lease.job_id == self.lease.job_id),
            _ => None,
        }
    }

    /// Somebody computed, and the driver does not say who: only who has no context and did nothing on the CPU was
    /// surely not it.
    fn among_tenants(&self, contexts: Option<u32>) -> Activity {
        match (contexts, self.by_processes(contexts)) {
            (Some(0), Activity::Idle) => Activity::Idle,
            (_, Activity::Busy) => Activity::Busy,
            _ => Activity::Unknown(
                "its GPU is busy, and the driver does not say whose work it is".into(),
            ),
        }
    }

    /// What can be said without any figure of the driver.
    fn by_processes(&self, contexts: Option<u32>) -> Activity {
        let Some(cores) = self.cores else {
            return Activity::Unknown("the CPU time of the job is not known yet".into());
        };
        match contexts {
            None => Activity::Unknown("not all processes on the GPU are known".into()),
            Some(_) if cores * 100.0 > self.policy.cpu_busy_above => Activity::Busy,
            Some(_) => Activity::Idle,
        }
    }

    fn is_busy(&self, share: f64) -> bool {
        share * 100.0 > self.policy.busy_above
    }

    /// Leases on the instance, or on the GPU.
    fn tenants(&self, gi_id: Option<u32>) -> usize {
        let same = |lease: &&&Lease| lease.slice.instance().map(|i| i.gi_id) == gi_id;
        self.neighbours.iter().filter(same).count()
    }

    fn excess(&self, own: &[Process], memory: Option<MemoryMib>) -> Option<Excess> {
        let slice = &self.lease.slice;
        let shares =
            self.lease.mechanism() != Mechanism::Mig && self.lease.fraction < Fraction::ONE;
        if !shares {
            return None;
        }
        if slice.mps().is_some() {
            let outside = own.iter().filter(|process| !process.mps_client);
            let pids: Vec<u32> = outside.map(|process| process.pid).collect();
            if !pids.is_empty() {
                return Some(Excess::OutsideMps { pids });
            }
        }
        let held = memory?;
        let share = slice.memory_mib;
        let contexts = CONTEXT_OVERHEAD.0 * own.len() as u64;
        (held.0 > share.0 + contexts).then_some(Excess::Memory { held, share })
    }
}
