//! The driver's data about the GPUs for one sample. The session with the driver ends with the sample, and instances
//! are queried through their GPU: nothing stays open that could keep an instance from being destroyed.

use std::collections::{BTreeSet, HashMap, HashSet};

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::GpuIndex;
use gpufrac_core::lease::{Instance, Lease};
use gpufrac_node::gpu::capability_files::Claimed;
use gpufrac_node::node::Node;
use gpufrac_nvml::telemetry::{Counters, Process, Utilization};
use gpufrac_nvml::{Gpu, MigMode, NvmlError, Session};

use crate::key::SliceId;

/// The reasons why the driver's records since the last sample cannot be read.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum NoHistory {
    /// A comparison needs two samples.
    /// Cure: Nothing.
    #[error("this is the first sample")]
    FirstLook,
    /// The clock of the node was set.
    /// Cure: Nothing: the window restarts.
    #[error("the clock was set back")]
    ClockSetBack,
    /// The clock of the node was set.
    /// Cure: Nothing: the window restarts.
    #[error("the clock was set")]
    ClockSet,
    /// The driver keeps its records for a short time only.
    /// Cure: Nothing: the sample counts as activity.
    #[error("the driver's records begin after the last sample")]
    TooShort,
}

/// The reasons why activity on a GPU without MIG cannot be attributed to processes.
#[derive(Debug, thiserror::Error)]
pub(super) enum UnknownWork {
    #[error(transparent)]
    History(#[from] NoHistory),
    #[error(transparent)]
    Driver(#[from] NvmlError),
    /// The GPU was in use by a process that the driver does not show.
    /// Cure: Nothing: the sample counts as activity.
    #[error("the GPU was busy ({0} %) without a known process")]
    OfNoProcess(u32),
}

/// The data of one GPU.
pub(super) struct View {
    /// The busy part of the time for each leased instance, 0 to 1, by instance id; or why there is none.
    pub(super) busy_shares: HashMap<u32, Result<f64, String>>,
    pub(super) has_gpm: bool,
    pub(super) processes: Vec<Process>,
    /// The slices whose instance stood from the first reading to the last.
    pub(super) standing: HashSet<SliceId>,
    /// Memory in use on leased instances without a process.
    pub(super) left_behind: HashMap<SliceId, MemoryMib>,
    /// The GPU's energy counter in millijoules; None where it has none.
    pub(super) energy_mj: Option<u64>,
    /// The activity of processes; None with MIG, for which the driver has none.
    pub(super) utilization: Option<Result<Vec<Utilization>, UnknownWork>>,
}

impl View {
    /// Whether there is a separate figure for the activity of the lease's instance.
    pub(super) fn measures(&self, lease: &Lease, has_dcgm: bool) -> bool {
        lease.slice.mig().is_some() && (self.has_gpm || has_dcgm)
    }
}

/// The data of each GPU by its UUID; a GPU is missing if the driver did not answer. None if the reading was
/// interrupted.
pub(super) fn views(
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
    for gpu in (0..count).map(|index| session.gpu(GpuIndex(index))) {
        match gpu {
            Ok(gpu) => gpus.push(gpu),
            Err(error) => errors.push(error.to_string()),
        }
    }
    gpus.retain(|gpu| leases.iter().any(|lease| lease.slice.gpu_uuid == gpu.uuid));
    let marked = marked(node, leases, errors);
    let begun: Vec<_> = gpus.iter().map(|gpu| (gpu, begin(gpu, leases))).collect();
    let measures = begun.iter().any(|(_, begun)| matches!(begun, Ok(Some(_))));
    if measures && !observe() {
        return None;
    }
    let mut views = HashMap::new();
    for (gpu, begun) in begun {
        match begun.and_then(|begun| end(&session, gpu, begun, leases, since_us)) {
            Ok(mut view) => {
                // After the last reading: data of a lease are those of one instance.
                view.standing = standing(node, &marked, &gpu.uuid, errors);
                let refused = view.busy_shares.values().filter_map(|a| a.as_ref().err());
                errors.extend(refused.cloned());
                views.insert(gpu.uuid.clone(), view);
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    Some(views)
}

/// A leased instance that stands. The driver may go on listing an instance that another program has destroyed, and a
/// new one at the same place may have the same ids and UUID, but not the mark.
struct Marked<'a> {
    lease: &'a Lease,
    instance: &'a Instance,
    mark: u32,
}

fn marked<'a>(node: &Node, leases: &[&'a Lease], errors: &mut Vec<String>) -> Vec<Marked<'a>> {
    let (mut found, caps) = (Vec::new(), node.caps());
    let mut gpus = HashMap::new();
    for lease in leases {
        let Some(instance) = lease.slice.instance() else {
            continue;
        };
        let gpu = lease.slice.gpu_minor;
        let caps = gpus.entry(gpu).or_insert_with(|| caps.of_gpu(gpu));
        let claimed = match caps {
            Ok(caps) => caps.claimed(instance).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match claimed {
            Ok(Claimed::Ours(mark)) => found.push(Marked {
                lease,
                instance,
                mark,
            }),
            Ok(Claimed::Nothing | Claimed::Hollow(_) | Claimed::Foreign) => {}
            Err(error) => errors.push(error),
        }
    }
    found
}

/// Those of the instances on a GPU that still stand.
fn standing(
    node: &Node,
    marked: &[Marked<'_>],
    gpu_uuid: &str,
    errors: &mut Vec<String>,
) -> HashSet<SliceId> {
    let mut standing = HashSet::new();
    let mut caps = None;
    let on_gpu = |it: &&Marked<'_>| it.lease.slice.gpu_uuid == gpu_uuid;
    for it in marked.iter().filter(on_gpu) {
        let gpu = it.lease.slice.gpu_minor;
        let caps = caps.get_or_insert_with(|| node.caps().of_gpu(gpu));
        match caps
            .as_ref()
            .map(|caps| caps.has_mark(it.instance, it.mark))
        {
            Ok(Ok(true)) => drop(standing.insert(SliceId::of(it.lease))),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => errors.push(error.to_string()),
            Err(error) => errors.push(error.to_string()),
        }
    }
    standing
}

/// The first reading of the counters of each leased instance.
type Begun<'s> = HashMap<u32, Result<Counters<'s>, NvmlError>>;

/// None if the GPU has no such counters.
fn begin<'s>(gpu: &Gpu<'s>, leases: &[&Lease]) -> Result<Option<Begun<'s>>, NvmlError> {
    let mine = leases
        .iter()
        .filter(|lease| lease.slice.gpu_uuid == gpu.uuid);
    let ids: BTreeSet<u32> = mine
        .filter_map(|lease| lease.slice.instance().map(|instance| instance.gi_id))
        .collect();
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
        busy_shares.insert(id, measured.map_err(|error| error.of_counters()));
    }
    let has_mig = gpu.mig_mode()? == MigMode::On;
    let processes = gpu.processes()?;
    let mut left_behind = HashMap::new();
    for lease in leases {
        // An instance that belongs to one job, without processes.
        let is_here = lease.slice.gpu_uuid == gpu.uuid && lease.slice.mps().is_none();
        let Some(instance) = lease.slice.instance() else {
            continue;
        };
        if is_here && processes.iter().all(|p| p.gi_id != Some(instance.gi_id)) {
            // An instance that ends during the reading does not affect the others.
            if let Ok(Some(used)) = memory_of(gpu, instance) {
                left_behind.insert(SliceId::of(lease), used);
            }
        }
    }
    Ok(View {
        busy_shares,
        has_gpm,
        processes,
        standing: HashSet::new(),
        left_behind,
        energy_mj: gpu.energy()?,
        utilization: (!has_mig).then(|| utilization(gpu, since_us)),
    })
}

/// The memory in use on an instance; None if the instance does not stand.
fn memory_of(gpu: &Gpu<'_>, instance: &Instance) -> Result<Option<MemoryMib>, NvmlError> {
    let Some(standing) = gpu.standing(instance.gi_id)? else {
        return Ok(None);
    };
    let device = standing.mig_device(instance.ci_id)?;
    device.map(|device| device.memory_used()).transpose()
}

fn utilization(
    gpu: &Gpu<'_>,
    since_us: Result<u64, NoHistory>,
) -> Result<Vec<Utilization>, UnknownWork> {
    let since = since_us?;
    // Before the processes: the activity of a process that starts between the two readings must not look like
    // activity without a process.
    let total = gpu.utilization()?;
    let mut used = gpu.utilization_since(since)?;
    used.retain(|process| process.percent > 0);
    if used.is_empty() && total > 0 {
        return Err(UnknownWork::OfNoProcess(total));
    }
    Ok(used)
}
