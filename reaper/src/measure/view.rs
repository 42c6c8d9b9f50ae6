//! The driver's data about the GPUs for one sample. The session with the driver ends with the sample, and instances
//! are queried through their GPU: nothing stays open that could keep an instance from being destroyed.

use std::collections::HashMap;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::GpuIndex;
use gpufrac_core::lease::Lease;
use gpufrac_node::node::Node;
use gpufrac_nvml::telemetry::{Counters, MigDevice, Process, Utilization};
use gpufrac_nvml::{Gpu, MigMode, NvmlError, Session};

/// The reasons why the driver's records since the last sample cannot be read.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(super) enum NoHistory {
    #[error("this is the first sample")]
    FirstLook,
    #[error("the clock was set back")]
    ClockSetBack,
    #[error("the clock was set")]
    ClockSet,
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
    #[error("the GPU was busy ({0} %) without a known process")]
    OfNoProcess(u32),
}

/// The data of one GPU.
pub(super) struct View {
    /// The busy part of the time for each leased instance, 0 to 1, by instance id; or why there is none.
    pub(super) busy_shares: HashMap<u32, Result<f64, String>>,
    pub(super) has_gpm: bool,
    pub(super) processes: Vec<Process>,
    pub(super) mig_devices: Vec<MigDevice>,
    /// Memory in use on leased instances without a process, by UUID.
    pub(super) left_behind: HashMap<String, MemoryMib>,
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
                errors.extend(refused.cloned());
                views.insert(gpu.uuid.clone(), view);
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    Some(views)
}

/// The first reading of the counters of each leased instance.
type Begun<'s> = HashMap<u32, Result<Counters<'s>, NvmlError>>;

/// None if the GPU has no such counters.
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
        busy_shares.insert(id, measured.map_err(|error| error.of_counters()));
    }
    let has_mig = gpu.mig_mode()? == MigMode::On;
    let processes = gpu.processes()?;
    let mig_devices = match has_mig {
        true => standing(gpu, leases)?,
        false => Vec::new(),
    };
    let mut left_behind = HashMap::new();
    for lease in leases {
        // An instance that belongs to one job, without processes.
        let Some(instance) = lease
            .slice
            .instance()
            .filter(|_| lease.slice.mps().is_none())
        else {
            continue;
        };
        let stands = mig_devices.iter().any(|d| d.uuid == instance.mig_uuid);
        if stands && processes.iter().all(|p| p.gi_id != Some(instance.gi_id)) {
            // An instance that ends during the reading does not affect the others.
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
        energy_mj: gpu.energy()?,
        utilization: (!has_mig).then(|| utilization(gpu, since_us)),
    })
}

/// The MIG devices of a GPU. While others are created and destroyed, the enumeration may miss one; missing ones of
/// leases are then queried by id.
fn standing(gpu: &Gpu<'_>, leases: &[&Lease]) -> Result<Vec<MigDevice>, NvmlError> {
    let mut found = gpu.mig_devices()?;
    let here = leases
        .iter()
        .filter(|lease| lease.slice.gpu_uuid == gpu.uuid);
    for instance in here.filter_map(|lease| lease.slice.instance()) {
        if found.iter().any(|device| device.uuid == instance.mig_uuid) {
            continue;
        }
        let stands = gpu.compute_instance(instance.gi_id, instance.ci_id)?;
        found.extend(
            stands
                .filter(|stands| stands.mig_uuid == instance.mig_uuid)
                .map(|stands| MigDevice {
                    gi_id: instance.gi_id,
                    uuid: stands.mig_uuid,
                }),
        );
    }
    Ok(found)
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
