//! A driver with one wrong answer, chosen by name: what a program that measures drivers must notice.

use std::sync::Mutex;

use crate::code::Code;
use crate::disturb::What;
use crate::geometry::{Geometry, GpuProfile};

use crate::recorded::Recorded;

use super::{Gpu, MigDeviceBy, Node};

/// A wrong answer.
pub struct Falsehood {
    pub name: &'static str,
    /// How the driver comes to it.
    pub how: How,
}

/// How a driver answers wrongly.
pub enum How {
    /// Some calls of a function have another effect: the first of them, their number (0: all), the effect.
    Calls(&'static str, u64, u64, What),
    /// The MIG tables differ.
    Tables(fn(&mut Geometry)),
    /// The node differs after each change.
    State(fn(&mut Node)),
    /// Number and mode of new capabilities differ.
    Capability(fn(&mut u32, &mut u32)),
    /// Occupied places count as free.
    Room,
    /// GPM and utilization report no activity.
    DeadTelemetry,
}

use How::{Calls, Capability, DeadTelemetry, Room, State, Tables};

const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
const DESTROY: &str = "nvmlGpuInstanceDestroy";
const DESTROY_COMPUTE: &str = "nvmlComputeInstanceDestroy";
const COMPUTE_BY_ID: &str = "nvmlGpuInstanceGetComputeInstanceById";
const BY_ID: &str = "nvmlDeviceGetGpuInstanceById";
const NOT_FOUND: u32 = Code::NOT_FOUND.0;
const INVALID: u32 = Code::INVALID_ARGUMENT.0;
const IN_USE: u32 = Code::IN_USE.0;
const NO_ROOM: u32 = Code::INSUFFICIENT_RESOURCES.0;

/// The table of all falsehoods.
macro_rules! falsehoods {
    ($($name:literal $how:expr;)*) => {
        /// All falsehoods.
        pub static FALSEHOODS: &[Falsehood] = &[$(Falsehood { name: $name, how: $how }),*];
    };
}

falsehoods! {
    "more-memory" Tables(|it| plain(it).memory_mib *= 2);
    "fewer-multiprocessors" Tables(|it| plain(it).multiprocessors -= 1);
    "fewer-instances" Tables(|it| plain(it).max -= 1);
    "missing-place" Tables(|it| plain(it).starts = &[0, 1, 2, 3, 4, 5]);
    "further-place" Tables(|it| plain(it).starts = &[0, 1, 2, 3, 4, 5, 6, 7]);
    "missing-profile" Tables(missing_profile);
    "other-name" Tables(|it| plain(it).name = "1g.9gb");
    "refuses-a-place" Calls(CREATE, 3, 1, What::Fail(INVALID));
    "refuses-and-makes" Calls(CREATE, 3, 1, What::FailAfter(IN_USE));
    "occupied-is-in-use" Calls(CREATE, 1, 0, What::Instead(NO_ROOM, IN_USE));
    "wrong-place-is-no-room" Calls(CREATE, 1, 0, What::Instead(INVALID, NO_ROOM));
    "places-overlap" Room;
    "elsewhere" State(elsewhere);
    "ids-count-up" State(ids_count_up);
    "new-uuids" State(|node| uuids(node, |serial, _| serial));
    "equal-uuids" State(|node| uuids(node, |_, _| 7));
    "uuid-of-version-4" State(old_uuids);
    "no-compute-instance" State(no_compute_instance);
    "memory-when-idle" State(memory_when_idle);
    "mode-ends" State(mode_ends);
    "no-way-by-info" State(|node| node.mig_device_by = MigDeviceBy::Walk);
    "stale-session" State(|node| node.manners.stale_sessions = true);
    "destroy-goes-later" State(|node| node.manners.destroyed_after_ms = Some(30));
    "capability-off-by-one" Capability(|minor, _| *minor += 1);
    "capability-for-root-alone" Capability(|_, mode| *mode = 0o400);
    "destroy-stays" Calls(DESTROY, 1, 2, What::Fail(0));
    "destroy-is-late" Calls(DESTROY, 1, 3, What::Fail(IN_USE));
    "destroy-never" Calls(DESTROY, 9, 0, What::Fail(IN_USE));
    "destroy-under-a-program" Calls(DESTROY_COMPUTE, 1, 0, What::Instead(IN_USE, 0));
    "absent-compute-is-invalid" Calls(COMPUTE_BY_ID, 1, 0, What::Instead(NOT_FOUND, INVALID));
    "absent-instance-is-invalid" Calls(BY_ID, 1, 0, What::Instead(NOT_FOUND, INVALID));
    "not-by-id" Calls(BY_ID, 1, 1, What::Fail(NOT_FOUND));
    "empty-list" Calls("nvmlDeviceGetGpuInstances", 8, 1, What::Fail(0));
    "no-capacity" Calls("nvmlDeviceGetGpuInstanceRemainingCapacity", 1, 0, What::Fail(0));
    "unknown-code" Calls(BY_ID, 9, 1, What::Fail(77));
    "lost" Calls("nvmlGpuInstanceGetInfo", 20, 1, What::Fail(Code::GPU_IS_LOST.0));
    "slow" Calls("nvmlDeviceGetHandleByPciBusId_v2", 1, 0, What::Delay(900));
    "no-counters" Calls("nvmlGpmMigSampleGet", 1, 0, What::Fail(Code::NOT_SUPPORTED.0));
    "dead-counters" DeadTelemetry;
    "no-processes" Calls("nvmlDeviceGetComputeRunningProcesses_v3", 1, 0, What::Fail(0));
    "mode-stays" Calls("nvmlDeviceSetMigMode", 1, 1, What::Fail(0));
}

pub fn find(name: &str) -> Option<&'static Falsehood> {
    FALSEHOODS.iter().find(|known| known.name == name)
}

fn of(gpu: &Gpu) -> Option<&'static How> {
    find(gpu.falsified.as_deref()?).map(|known| &known.how)
}

/// The tables of a GPU that are not its model's: falsified ones, or those of a recorded driver.
pub(crate) fn tables(gpu: &Gpu) -> Option<&'static Geometry> {
    type Key = (String, Option<String>, Option<Recorded>);
    // Tables live as long as the process: handles on them are shared by all calls.
    static KNOWN: Mutex<Vec<(Key, &'static Geometry)>> = Mutex::new(Vec::new());
    let change = match of(gpu) {
        Some(Tables(change)) => Some(change),
        _ if gpu.recorded.is_none() => return None,
        _ => None,
    };
    let mut known = KNOWN.lock().unwrap_or_else(|held| held.into_inner());
    let is_it = |(key, _): &&(Key, &'static Geometry)| {
        key.0 == gpu.model && key.1 == gpu.falsified && key.2 == gpu.recorded
    };
    if let Some((_, tables)) = known.iter().find(is_it) {
        return Some(tables);
    }
    let mut tables = gpu.model().geometry()?.clone();
    if let Some(recorded) = &gpu.recorded {
        recorded.apply(&mut tables);
    }
    if let Some(change) = change {
        change(&mut tables);
    }
    let tables: &'static Geometry = Box::leak(Box::new(tables));
    let key = (
        gpu.model.clone(),
        gpu.falsified.clone(),
        gpu.recorded.clone(),
    );
    known.push((key, tables));
    Some(tables)
}

/// Falsifies a node that was changed.
pub(crate) fn state(node: &mut Node) {
    let change = node.gpus.iter().find_map(|gpu| match of(gpu) {
        Some(State(change)) => Some(change),
        _ => None,
    });
    if let Some(change) = change {
        change(node);
    }
}

/// Falsifies number and mode of a capability.
pub(crate) fn capability(gpu: &Gpu, minor: &mut u32, mode: &mut u32) {
    if let Some(Capability(change)) = of(gpu) {
        change(minor, mode);
    }
}

/// Whether occupied places count as free.
pub(crate) fn has_room(gpu: &Gpu) -> bool {
    matches!(of(gpu), Some(Room))
}

/// The first profile, 1g.
fn plain(tables: &mut Geometry) -> &mut GpuProfile {
    &mut tables.profiles[0]
}

fn missing_profile(tables: &mut Geometry) {
    tables.profiles.remove(0);
}

fn elsewhere(node: &mut Node) {
    for gi in node.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
        // 1g with media engines, of which there is one at a time.
        if (gi.profile, gi.start) == (20, 1) {
            gi.start = 2;
        }
    }
}

fn ids_count_up(node: &mut Node) {
    for gi in node.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
        gi.id = gi.serial as u32;
    }
}

/// Gives each compute instance a UUID of version 5 by its serial number and that of its GPU instance.
fn uuids(node: &mut Node, number: fn(u64, u64) -> u64) {
    for gi in node.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
        for ci in &mut gi.compute {
            let of = number(ci.serial, gi.serial);
            ci.uuid = format!("MIG-{of:08x}-0000-5000-8000-000000000000");
        }
    }
}

fn old_uuids(node: &mut Node) {
    for gi in node.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
        for ci in &mut gi.compute {
            let place = gi.profile * 64 + gi.start;
            ci.uuid = format!("MIG-{place:08x}-0000-4000-8000-000000000000");
        }
    }
}

fn no_compute_instance(node: &mut Node) {
    for gi in node.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
        gi.compute.clear();
    }
}

fn memory_when_idle(node: &mut Node) {
    for gi in node.gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
        gi.leaked_mib = 300;
    }
}

/// MIG mode ends with the last instance, once.
fn mode_ends(node: &mut Node) {
    for gpu in &mut node.gpus {
        if gpu.mig && gpu.instances.is_empty() && node.next_serial > 1 {
            (gpu.mig, gpu.mig_pending) = (false, false);
            gpu.falsified = None;
        }
    }
}
