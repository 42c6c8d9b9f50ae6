//! Memory, processes and utilization of a device.

use std::collections::BTreeMap;
use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::{Out, nvml};
use crate::code::{Answer, Code};
use crate::processes::{self, Process, Record, Role};
use crate::session::{Call, Device};

type DeviceHandle = sys::nvmlDevice_t;

/// The period of NVML's utilization in microseconds.
const SAMPLE_US: u64 = 1_000_000;
/// The time between two of NVML's samples.
const SAMPLE_STEP_US: u64 = 100_000;
/// The number of samples that NVML keeps.
const SAMPLES: u64 = 100;
/// The time that the samples cover.
const SAMPLED_US: u64 = SAMPLES * SAMPLE_STEP_US;
/// NVML's value for "no instance".
const NONE: c_uint = c_uint::MAX;

const MIB: u64 = 1 << 20;

/// A process with the ids of its GPU instance and compute instance, in MIG mode.
type Client = (Process, Option<(u32, u32)>);

/// The lists of processes that NVML has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    /// Programs that compute, and the servers of MPS.
    Compute,
    /// Clients of MPS.
    Mps,
    /// Programs that draw; no simulated program does.
    Graphics,
}

impl List {
    fn has(self, role: Role) -> bool {
        match role {
            Role::Alone | Role::Server => self == List::Compute,
            Role::Client(_) => self == List::Mps,
        }
    }
}

/// The place of a process on a device: None if it is not there; in MIG mode with the ids of its instances.
fn place(device: &Device<'_>, process: &Process) -> Option<Option<(u32, u32)>> {
    if process.gpu_uuid != device.gpu.uuid {
        return None;
    }
    let Some((gi_serial, ci_serial)) = process.instance else {
        return device.mig.is_none().then_some(None);
    };
    let (gi, ci) = device
        .gpu
        .mig_devices()
        .find(|(gi, ci)| gi.serial == gi_serial && ci.serial == ci_serial)?;
    let on_it = device.mig.is_none_or(|(_, own)| own.serial == ci_serial);
    on_it.then_some(Some((gi.id, ci.id)))
}

/// The processes that computed on a device after a time, running or ended.
fn active(call: &Call, device: &Device<'_>, from_us: u64) -> Answer<Vec<Record>> {
    if call.is_blind()? {
        return Ok(Vec::new());
    }
    busy(call, device, from_us)
}

/// As [`active`], but empty if telemetry is off.
fn busy(call: &Call, device: &Device<'_>, from_us: u64) -> Answer<Vec<Record>> {
    let mut known = processes::since(call.root(), from_us)?;
    known.retain(|record| place(device, &record.process).is_some());
    Ok(known)
}

/// The live processes of a device, for callers who may see them.
fn listed(call: &Call, device: DeviceHandle, list: List) -> Answer<Vec<Client>> {
    let device = call.device(device)?;
    // The list of the whole GPU contains the processes of all instances.
    if list != List::Graphics && device.mig.is_none() && device.gpu.mig {
        call.monitor()?;
    }
    let recent = processes::recent(call.root())?;
    let living = recent.iter().filter(|record| record.ended_us.is_none());
    let of_list = living.filter(|record| list.has(record.role));
    let placed =
        |record: &Record| place(&device, &record.process).map(|p| (record.process.clone(), p));
    Ok(of_list.filter_map(placed).collect())
}

fn detailed(processes: &[Client]) -> Vec<sys::nvmlProcessInfo_v2_t> {
    let row = |(process, place): &Client| sys::nvmlProcessInfo_v2_t {
        pid: process.pid,
        usedGpuMemory: process.memory_mib * MIB,
        gpuInstanceId: place.map_or(NONE, |(gi, _)| gi),
        computeInstanceId: place.map_or(NONE, |(_, ci)| ci),
    };
    processes.iter().map(row).collect()
}

fn brief(processes: &[Client]) -> Vec<sys::nvmlProcessInfo_v1_t> {
    let rows = detailed(processes).into_iter();
    rows.map(|row| sys::nvmlProcessInfo_v1_t {
        pid: row.pid,
        usedGpuMemory: row.usedGpuMemory,
    })
    .collect()
}

/// Processes with their names, for `nvidia-smi`.
pub(super) fn details(
    call: &Call,
    device: DeviceHandle,
    list: List,
) -> Answer<Vec<(sys::nvmlProcessDetail_v1_t, String)>> {
    let listed = listed(call, device, list)?;
    let names = listed.iter().map(|(process, _)| process.name.clone());
    let rows = detailed(&listed)
        .into_iter()
        .map(|row| with_protected(&row));
    Ok(rows.zip(names).collect())
}

fn with_protected(row: &sys::nvmlProcessInfo_v2_t) -> sys::nvmlProcessDetail_v1_t {
    sys::nvmlProcessDetail_v1_t {
        pid: row.pid,
        usedGpuMemory: row.usedGpuMemory,
        gpuInstanceId: row.gpuInstanceId,
        computeInstanceId: row.computeInstanceId,
        usedGpuCcProtectedMemory: 0,
    }
}

/// Total, reserved and used bytes.
fn memory(call: &Call, device: DeviceHandle) -> Answer<(u64, u64, u64)> {
    let device = call.device(device)?;
    let model = device.gpu.model();
    let live = processes::live(call.root())?;
    let (total, reserved, used): (u64, u64, u64) = match device.mig {
        None => {
            let on_it = live
                .iter()
                .filter(|process| process.gpu_uuid == device.gpu.uuid);
            let used: u64 = on_it.map(|process| process.memory_mib).sum();
            let used = used + device.gpu.all_leaked_mib();
            (model.memory_mib, model.reserved_mib, used)
        }
        // Compute instances share the memory of their GPU instance.
        Some((gi, _)) => {
            let on_it =
                |process: &&Process| process.instance.is_some_and(|(own, _)| own == gi.serial);
            let of_processes = live.iter().filter(on_it).map(|process| process.memory_mib);
            let used = device.gpu.leaked_on(gi) + of_processes.sum::<u64>();
            (device.gpu.profile_of(gi)?.memory_mib, 0, used)
        }
    };
    Ok((total * MIB, reserved * MIB, used * MIB))
}

/// The activity of the last second, 0 to 100; 0 if telemetry is off.
pub(super) fn busy_percent(call: &Call, device: &Device<'_>) -> Answer<f64> {
    let now = processes::now_us();
    let from = now - SAMPLE_US;
    let parts = busy(call, device, from)?;
    let busy: f64 = parts
        .iter()
        .map(|record| record.utilization(from, now))
        .sum();
    Ok((busy * 100.0).min(100.0))
}

/// The processes that computed after a time, as far as samples go back, with their part of the time since then in
/// percent, at least 1.
fn workers(
    call: &Call,
    device: &Device<'_>,
    last_seen_us: u64,
) -> Answer<(u64, Vec<(u32, c_uint)>)> {
    let now = processes::now_us();
    let from = last_seen_us.max(now - SAMPLED_US).min(now - 1);
    let mut parts = BTreeMap::<u32, f64>::new();
    for record in active(call, device, from)? {
        let part = record.utilization(from, now);
        if part > 0.0 {
            *parts.entry(record.worker()).or_default() += part;
        }
    }
    let percent = |part: f64| ((part * 100.0).round() as c_uint).clamp(1, 100);
    let rows = parts.into_iter().map(|(pid, part)| (pid, percent(part)));
    Ok((now, rows.collect()))
}

/// Utilization is only reported for whole GPUs that are not in MIG mode.
fn whole<'a>(call: &'a Call, device: DeviceHandle) -> Answer<Device<'a>> {
    let device = call.device(device)?;
    if device.mig.is_some() || device.gpu.mig {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(device)
}

fn utilization(call: &Call, device: DeviceHandle) -> Answer<sys::nvmlUtilization_t> {
    let device = whole(call, device)?;
    let busy = if call.is_blind()? { 0.0 } else { busy_percent(call, &device)? };
    let gpu = busy.round() as c_uint;
    Ok(sys::nvmlUtilization_t {
        gpu,
        memory: gpu / 2,
    })
}

/// The versions of a list: the second and third have the ids of instances.
macro_rules! lists {
    ($($list:ident: $v3:ident $v2:ident $v1:ident;)*) => {
        $(
            lists! { @ $v3 nvmlProcessInfo_t, detailed(List::$list) }
            lists! { @ $v2 nvmlProcessInfo_v2_t, detailed(List::$list) }
            lists! { @ $v1 nvmlProcessInfo_v1_t, brief(List::$list) }
        )*
    };
    (@ $name:ident $row:ident, $form:ident($list:expr)) => {
        nvml! {
            fn $name(device: DeviceHandle, count: Out<c_uint>, infos: Out<sys::$row>) {
                let call = Call::new()?;
                infos.fill(count, &$form(&listed(&call, device, $list)?))
            }
        }
    };
}

lists! {
    Compute: nvmlDeviceGetComputeRunningProcesses_v3 nvmlDeviceGetComputeRunningProcesses_v2
        nvmlDeviceGetComputeRunningProcesses;
    Graphics: nvmlDeviceGetGraphicsRunningProcesses_v3 nvmlDeviceGetGraphicsRunningProcesses_v2
        nvmlDeviceGetGraphicsRunningProcesses;
    Mps: nvmlDeviceGetMPSComputeRunningProcesses_v3 nvmlDeviceGetMPSComputeRunningProcesses_v2
        nvmlDeviceGetMPSComputeRunningProcesses;
}

nvml! {
    fn nvmlDeviceGetMemoryInfo(device: DeviceHandle, info: Out<sys::nvmlMemory_t>) {
        let call = Call::new()?;
        let (total, reserved, used) = memory(&call, device)?;
        // In version 1 reserved memory counts as used.
        let used = used + reserved;
        info.set(sys::nvmlMemory_t { total, free: total.saturating_sub(used), used })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: DeviceHandle, info: Out<sys::nvmlMemory_v2_t>) {
        let call = Call::new()?;
        let asked = info.versioned(2)?;
        let (total, reserved, used) = memory(&call, device)?;
        let free = total.saturating_sub(used + reserved);
        info.set(sys::nvmlMemory_v2_t { version: asked.version, total, reserved, free, used })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: DeviceHandle, info: Out<sys::nvmlBAR1Memory_t>) {
        let call = Call::new()?;
        let device = call.device(device)?;
        let mib = match device.mig {
            None => device.gpu.model().memory_mib.next_power_of_two(),
            Some((gi, _)) => device.gpu.profile_of(gi)?.memory_mib.next_power_of_two(),
        };
        let total = mib * MIB;
        info.set(sys::nvmlBAR1Memory_t { bar1Total: total, bar1Free: total - MIB, bar1Used: MIB })
    }

    fn nvmlDeviceGetRunningProcessDetailList(
        device: DeviceHandle,
        list: Out<sys::nvmlProcessDetailList_t>,
    ) {
        let call = Call::new()?;
        let mut value = list.versioned(1)?;
        let mode = match value.mode {
            0 => List::Compute,
            1 => List::Graphics,
            2 => List::Mps,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        let rows = listed(&call, device, mode)?;
        let room = value.numProcArrayEntries as usize;
        value.numProcArrayEntries = rows.len() as c_uint;
        list.set(value)?;
        if room < rows.len() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        let rows: Vec<_> = detailed(&rows).iter().map(with_protected).collect();
        Out(value.procArray).write_all(&rows)
    }

    fn nvmlDeviceGetUtilizationRates(device: DeviceHandle, rates: Out<sys::nvmlUtilization_t>) {
        let call = Call::new()?;
        rates.set(utilization(&call, device)?)
    }

    fn nvmlDeviceGetEncoderUtilization(
        device: DeviceHandle,
        rate: Out<c_uint>,
        period_us: Out<c_uint>,
    ) {
        whole(&Call::new()?, device)?;
        rate.set(0)?;
        period_us.set(SAMPLE_US as c_uint)
    }

    fn nvmlDeviceGetDecoderUtilization(
        device: DeviceHandle,
        rate: Out<c_uint>,
        period_us: Out<c_uint>,
    ) {
        whole(&Call::new()?, device)?;
        rate.set(0)?;
        period_us.set(SAMPLE_US as c_uint)
    }

    fn nvmlDeviceGetSamples(
        device: DeviceHandle,
        kind: c_uint,
        last_seen_us: u64,
        value_type: Out<c_uint>,
        count: Out<c_uint>,
        samples: Out<sys::nvmlSample_t>,
    ) {
        let call = Call::new()?;
        let device = whole(&call, device)?;
        // Utilization of multiprocessors and of memory.
        let share = match kind {
            1 => 1.0,
            2 => 0.5,
            _ => return Err(Code::NOT_SUPPORTED),
        };
        value_type.set(sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT)?;
        if samples.is_null() {
            return count.set(SAMPLES as c_uint);
        }
        let now = processes::now_us();
        let active = active(&call, &device, now - SAMPLED_US - SAMPLE_STEP_US)?;
        let newest = now / SAMPLE_STEP_US;
        let first = (newest - SAMPLES + 1).max(last_seen_us / SAMPLE_STEP_US + 1);
        let rows: Vec<_> = (first..=newest)
            .map(|step| {
                let end = step * SAMPLE_STEP_US;
                let of = |record: &Record| record.utilization(end - SAMPLE_STEP_US, end);
                let busy = active.iter().map(of).sum::<f64>().min(1.0);
                sys::nvmlSample_t {
                    timeStamp: end,
                    sampleValue: sys::nvmlValue_t { uiVal: (busy * share * 100.0).round() as c_uint },
                }
            })
            .collect();
        if rows.is_empty() {
            return Err(Code::NOT_FOUND);
        }
        let room = count.get()? as usize;
        let rows = &rows[rows.len().saturating_sub(room)..];
        count.set(rows.len() as c_uint)?;
        samples.write_all(rows)
    }

    fn nvmlDeviceGetProcessUtilization(
        device: DeviceHandle,
        samples: Out<sys::nvmlProcessUtilizationSample_t>,
        count: Out<c_uint>,
        last_seen_us: u64,
    ) {
        let call = Call::new()?;
        let device = whole(&call, device)?;
        let (now, workers) = workers(&call, &device, last_seen_us)?;
        let rows: Vec<_> = workers
            .into_iter()
            .map(|(pid, percent)| sys::nvmlProcessUtilizationSample_t {
                pid,
                timeStamp: now,
                smUtil: percent,
                memUtil: percent / 2,
                encUtil: 0,
                decUtil: 0,
            })
            .collect();
        if rows.is_empty() {
            count.set(0)?;
            return Err(Code::NOT_FOUND);
        }
        samples.fill(count, &rows)
    }

    fn nvmlDeviceGetProcessesUtilizationInfo(
        device: DeviceHandle,
        info: Out<sys::nvmlProcessesUtilizationInfo_t>,
    ) {
        let call = Call::new()?;
        let device = whole(&call, device)?;
        let mut value = info.versioned(1)?;
        let (now, workers) = workers(&call, &device, value.lastSeenTimeStamp)?;
        let rows: Vec<_> = workers
            .into_iter()
            .map(|(pid, percent)| sys::nvmlProcessUtilizationInfo_v1_t {
                timeStamp: now,
                pid,
                smUtil: percent,
                memUtil: percent / 2,
                encUtil: 0,
                decUtil: 0,
                jpgUtil: 0,
                ofaUtil: 0,
            })
            .collect();
        let room = value.processSamplesCount as usize;
        value.processSamplesCount = rows.len() as c_uint;
        value.lastSeenTimeStamp = now;
        info.set(value)?;
        if rows.is_empty() {
            return Err(Code::NOT_FOUND);
        }
        if room < rows.len() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        Out(value.procUtilArray).write_all(&rows)
    }

    fn nvmlDeviceGetAccountingMode(device: DeviceHandle, mode: Out<c_uint>) {
        let call = Call::new()?;
        // MIG mode switches it off.
        let (_, gpu) = call.gpu(device)?;
        mode.set((gpu.accounting && !gpu.mig).into())
    }

    fn nvmlDeviceSetAccountingMode(device: DeviceHandle, mode: c_uint) {
        let call = Call::new()?;
        let (index, gpu) = call.gpu(device)?;
        if gpu.mig {
            return Err(Code::NOT_SUPPORTED);
        }
        call.administrator()?;
        call.update(|node| {
            node.gpus[index].accounting = mode == 1;
            Ok(())
        })
    }

    fn nvmlDeviceGetAccountingBufferSize(device: DeviceHandle, size: Out<c_uint>) {
        Call::new()?.gpu(device)?;
        size.set(4000)
    }
}
