//! Memory, processes and utilisation: what the clients of a device do.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::{Out, nvml};
use crate::code::{Answer, Code};
use crate::processes::{self, Process};
use crate::session::{Call, Device};

type DeviceHandle = sys::nvmlDevice_t;

/// How far back NVML's utilisation looks.
const SAMPLE_US: u64 = 1_000_000;
/// Distance of the samples that NVML keeps.
const SAMPLE_STEP_US: u64 = 100_000;
/// NVML's word for no instance.
const NONE: c_uint = c_uint::MAX;

const MIB: u64 = 1 << 20;

/// A process with the ids of its GPU instance and compute instance, in MIG mode.
type Client = (Process, Option<(u32, u32)>);

/// The live processes of a device.
fn clients(call: &Call, device: &Device<'_>) -> Answer<Vec<Client>> {
    let mut all = Vec::new();
    for process in processes::live(call.root())? {
        if process.gpu_uuid != device.gpu.uuid {
            continue;
        }
        let Some((gi_serial, ci_serial)) = process.instance else {
            if device.mig.is_none() {
                all.push((process, None));
            }
            continue;
        };
        let place = device
            .gpu
            .mig_devices()
            .find(|(gi, ci)| gi.serial == gi_serial && ci.serial == ci_serial);
        if let Some((gi, ci)) = place
            && device.mig.is_none_or(|(_, own)| own.serial == ci_serial)
        {
            all.push((process, Some((gi.id, ci.id))));
        }
    }
    Ok(all)
}

/// As [`clients`], for callers who may see them.
fn listed(call: &Call, device: DeviceHandle) -> Answer<Vec<Client>> {
    let device = call.device(device)?;
    // The list of the whole GPU tells of all instances' processes.
    if device.mig.is_none() && device.gpu.mig {
        call.monitor()?;
    }
    clients(call, &device)
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

/// Processes with their names, for `nvidia-smi`.
pub(super) fn details(
    call: &Call,
    device: DeviceHandle,
) -> Answer<Vec<(sys::nvmlProcessDetail_v1_t, String)>> {
    let listed = listed(call, device)?;
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
            let used = on_it.map(|process| process.memory_mib).sum();
            (model.memory_mib, model.reserved_mib, used)
        }
        // Compute instances share the memory of their GPU instance.
        Some((gi, _)) => {
            let on_it =
                |process: &&Process| process.instance.is_some_and(|(own, _)| own == gi.serial);
            let used = live
                .iter()
                .filter(on_it)
                .map(|process| process.memory_mib)
                .sum();
            (device.gpu.profile_of(gi)?.memory_mib, 0, used)
        }
    };
    Ok((total * MIB, reserved * MIB, used * MIB))
}

/// Busy part of the last second, 0 to 100.
pub(super) fn busy_percent(call: &Call, device: &Device<'_>) -> Answer<f64> {
    let now = processes::now_us();
    let busy: f64 = clients(call, device)?
        .iter()
        .map(|(process, _)| process.utilization(now - SAMPLE_US, now))
        .sum();
    Ok((busy * 100.0).min(100.0))
}

/// Utilisation is told of whole GPUs only, and not of one in MIG mode.
fn whole<'a>(call: &'a Call, device: DeviceHandle) -> Answer<Device<'a>> {
    let device = call.device(device)?;
    if device.mig.is_some() || device.gpu.mig {
        return Err(Code::NOT_SUPPORTED);
    }
    Ok(device)
}

fn utilization(call: &Call, device: DeviceHandle) -> Answer<sys::nvmlUtilization_t> {
    let device = whole(call, device)?;
    let gpu = busy_percent(call, &device)?.round() as c_uint;
    Ok(sys::nvmlUtilization_t {
        gpu,
        memory: gpu / 2,
    })
}

nvml! {
    fn nvmlDeviceGetMemoryInfo(device: DeviceHandle, info: Out<sys::nvmlMemory_t>) {
        let call = Call::new()?;
        let (total, reserved, used) = memory(&call, device)?;
        // Version 1 counts as used what is reserved.
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

    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: DeviceHandle,
        count: Out<c_uint>,
        infos: Out<sys::nvmlProcessInfo_t>,
    ) {
        let call = Call::new()?;
        infos.fill(count, &detailed(&listed(&call, device)?))
    }

    fn nvmlDeviceGetComputeRunningProcesses_v2(
        device: DeviceHandle,
        count: Out<c_uint>,
        infos: Out<sys::nvmlProcessInfo_v2_t>,
    ) {
        let call = Call::new()?;
        infos.fill(count, &detailed(&listed(&call, device)?))
    }

    fn nvmlDeviceGetComputeRunningProcesses(
        device: DeviceHandle,
        count: Out<c_uint>,
        infos: Out<sys::nvmlProcessInfo_v1_t>,
    ) {
        let call = Call::new()?;
        let rows: Vec<_> = detailed(&listed(&call, device)?)
            .iter()
            .map(|row| sys::nvmlProcessInfo_v1_t { pid: row.pid, usedGpuMemory: row.usedGpuMemory })
            .collect();
        infos.fill(count, &rows)
    }

    // Nothing simulated draws, and no MPS server runs.
    fn nvmlDeviceGetGraphicsRunningProcesses_v3(
        device: DeviceHandle,
        count: Out<c_uint>,
        infos: Out<sys::nvmlProcessInfo_t>,
    ) {
        Call::new()?.device(device)?;
        infos.fill(count, &[])
    }

    fn nvmlDeviceGetGraphicsRunningProcesses_v2(
        device: DeviceHandle,
        count: Out<c_uint>,
        infos: Out<sys::nvmlProcessInfo_v2_t>,
    ) {
        Call::new()?.device(device)?;
        infos.fill(count, &[])
    }

    fn nvmlDeviceGetGraphicsRunningProcesses(
        device: DeviceHandle,
        count: Out<c_uint>,
        infos: Out<sys::nvmlProcessInfo_v1_t>,
    ) {
        Call::new()?.device(device)?;
        infos.fill(count, &[])
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v3(
        device: DeviceHandle,
        count: Out<c_uint>,
        infos: Out<sys::nvmlProcessInfo_t>,
    ) {
        Call::new()?.device(device)?;
        infos.fill(count, &[])
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses_v2(
        device: DeviceHandle,
        count: Out<c_uint>,
        infos: Out<sys::nvmlProcessInfo_v2_t>,
    ) {
        Call::new()?.device(device)?;
        infos.fill(count, &[])
    }

    fn nvmlDeviceGetMPSComputeRunningProcesses(
        device: DeviceHandle,
        count: Out<c_uint>,
        infos: Out<sys::nvmlProcessInfo_v1_t>,
    ) {
        Call::new()?.device(device)?;
        infos.fill(count, &[])
    }

    fn nvmlDeviceGetRunningProcessDetailList(
        device: DeviceHandle,
        list: Out<sys::nvmlProcessDetailList_t>,
    ) {
        let call = Call::new()?;
        let mut value = list.versioned(1)?;
        // Modes: compute, graphics, MPS.
        let rows = match value.mode {
            0 => listed(&call, device)?,
            1 | 2 => {
                call.device(device)?;
                Vec::new()
            }
            _ => return Err(Code::INVALID_ARGUMENT),
        };
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
        // Utilisation of the multiprocessors and of the memory.
        let share = match kind {
            1 => 1.0,
            2 => 0.5,
            _ => return Err(Code::NOT_SUPPORTED),
        };
        value_type.set(sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT)?;
        const KEPT: usize = 100;
        if samples.is_null() {
            return count.set(KEPT as c_uint);
        }
        let clients = clients(&call, &device)?;
        let newest = processes::now_us() / SAMPLE_STEP_US;
        let first = (newest - KEPT as u64 + 1).max(last_seen_us / SAMPLE_STEP_US + 1);
        let rows: Vec<_> = (first..=newest)
            .map(|step| {
                let end = step * SAMPLE_STEP_US;
                let of = |(process, _): &(Process, _)| process.utilization(end - SAMPLE_STEP_US, end);
                let busy = clients.iter().map(of).sum::<f64>().min(1.0);
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
        let now = processes::now_us();
        let from = last_seen_us.max(now - SAMPLE_US).min(now - 1);
        let rows: Vec<_> = clients(&call, &device)?
            .iter()
            .map(|(process, _)| {
                let percent = (process.utilization(from, now) * 100.0).round() as c_uint;
                sys::nvmlProcessUtilizationSample_t {
                    pid: process.pid,
                    timeStamp: now,
                    smUtil: percent,
                    memUtil: percent / 2,
                    encUtil: 0,
                    decUtil: 0,
                }
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
        let now = processes::now_us();
        let from = value.lastSeenTimeStamp.max(now - SAMPLE_US).min(now - 1);
        let rows: Vec<_> = clients(&call, &device)?
            .iter()
            .map(|(process, _)| {
                let percent = (process.utilization(from, now) * 100.0).round() as c_uint;
                sys::nvmlProcessUtilizationInfo_v1_t {
                    timeStamp: now,
                    pid: process.pid,
                    smUtil: percent,
                    memUtil: percent / 2,
                    encUtil: 0,
                    decUtil: 0,
                    jpgUtil: 0,
                    ofaUtil: 0,
                }
            })
            .collect();
        let room = value.processSamplesCount as usize;
        value.processSamplesCount = rows.len() as c_uint;
        value.lastSeenTimeStamp = now;
        info.set(value)?;
        if room < rows.len() {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        Out(value.procUtilArray).write_all(&rows)
    }

    fn nvmlDeviceGetAccountingMode(device: DeviceHandle, mode: Out<c_uint>) {
        let call = Call::new()?;
        // MIG mode forces it off.
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
        call.session.store.update(|node| {
            node.gpus[index].accounting = mode == 1;
            Ok(())
        })
    }

    fn nvmlDeviceGetAccountingBufferSize(device: DeviceHandle, size: Out<c_uint>) {
        Call::new()?.gpu(device)?;
        size.set(4000)
    }
}
