//! Modes, clocks, power, temperature, ECC: the state of a whole GPU.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use nvml_wrapper_sys::bindings as sys;

use super::{Out, clients, device, getters, nvml};
use crate::code::{Answer, Code};
use crate::model::Architecture;
use crate::node::compute_mode::{DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED};
use crate::processes;
use crate::session::{self, Call};

type DeviceHandle = sys::nvmlDevice_t;

/// The busy part of the GPU, 0 to 1, also in MIG mode: it determines heat and power.
fn load(call: &Call, device: DeviceHandle) -> Answer<f64> {
    call.gpu(device)?;
    Ok(clients::busy_percent(call, &call.device(device)?)? / 100.0)
}

pub(super) fn power_mw(call: &Call, device: DeviceHandle) -> Answer<c_uint> {
    let model = device::model(call, device)?;
    let room = f64::from(model.power_limit_mw - model.idle_power_mw);
    let drawn = 0.8 * room * load(call, device)?;
    Ok(model.idle_power_mw + drawn as c_uint)
}

fn temperature(call: &Call, device: DeviceHandle) -> Answer<c_uint> {
    Ok(30 + (35.0 * load(call, device)?) as c_uint)
}

/// The clock of a kind (graphics, SM, memory, video) at full speed.
fn clock(call: &Call, device: DeviceHandle, kind: c_uint) -> Answer<c_uint> {
    let model = device::model(call, device)?;
    match kind {
        0 | 1 => Ok(model.clock_mhz),
        2 => Ok(model.memory_clock_mhz),
        3 => Ok(model.clock_mhz * 4 / 5),
        _ => Err(Code::INVALID_ARGUMENT),
    }
}

const IDLE_CLOCK_MHZ: c_uint = 345;

fn clock_now(call: &Call, device: DeviceHandle, kind: c_uint) -> Answer<c_uint> {
    let full = clock(call, device, kind)?;
    if kind == 2 || load(call, device)? > 0.0 {
        return Ok(full);
    }
    Ok(IDLE_CLOCK_MHZ.min(full))
}

/// Millijoules since 1970: idle power all the time, and the busy time of the processes that are still known. Less than
/// before when a process is forgotten, as after a reload of the driver.
fn energy_mj(call: &Call, device: DeviceHandle) -> Answer<u64> {
    let (_, gpu) = call.gpu(device)?;
    let model = device::model(call, device)?;
    let now_us = processes::now_us();
    let known = processes::recent(call.root())?;
    let here = known
        .iter()
        .filter(|record| record.process.gpu_uuid == gpu.uuid);
    let busy_us: f64 = here.map(|record| record.busy_us(now_us)).sum();
    let room = f64::from(model.power_limit_mw - model.idle_power_mw);
    let idle = f64::from(model.idle_power_mw) * (now_us as f64 / 1e6);
    Ok((idle + 0.8 * room * busy_us / 1e6) as u64)
}

getters! {
    (call, device, gpu)
    fn nvmlDeviceGetTotalEnergyConsumption() -> c_ulonglong { energy_mj(call, device)? }
    fn nvmlDeviceGetPersistenceMode() -> c_uint { gpu.persistence.into() }
    fn nvmlDeviceGetPowerUsage() -> c_uint { power_mw(call, device)? }
    fn nvmlDeviceGetPowerManagementMode() -> c_uint { 1 }
    fn nvmlDeviceGetPowerManagementLimit() -> c_uint { gpu.model().power_limit_mw }
    fn nvmlDeviceGetPowerManagementDefaultLimit() -> c_uint { gpu.model().power_limit_mw }
    fn nvmlDeviceGetEnforcedPowerLimit() -> c_uint { gpu.model().power_limit_mw }
    fn nvmlDeviceGetPerformanceState() -> c_uint { 0 }
    fn nvmlDeviceGetPowerState() -> c_uint { 0 }
    fn nvmlDeviceGetClockInfo(kind: c_uint) -> c_uint { clock_now(call, device, kind)? }
    fn nvmlDeviceGetMaxClockInfo(kind: c_uint) -> c_uint { clock(call, device, kind)? }
    fn nvmlDeviceGetMaxCustomerBoostClock(kind: c_uint) -> c_uint { clock(call, device, kind)? }
    fn nvmlDeviceGetApplicationsClock(kind: c_uint) -> c_uint { clock(call, device, kind)? }
    fn nvmlDeviceGetDefaultApplicationsClock(kind: c_uint) -> c_uint { clock(call, device, kind)? }
    fn nvmlDeviceGetCurrentClocksThrottleReasons() -> u64 { u64::from(load(call, device)? == 0.0) }
    fn nvmlDeviceGetCurrentClocksEventReasons() -> u64 { u64::from(load(call, device)? == 0.0) }
    fn nvmlDeviceGetSupportedClocksThrottleReasons() -> u64 { 0x1ff }
    fn nvmlDeviceGetSupportedClocksEventReasons() -> u64 { 0x1ff }
    fn nvmlDeviceGetDefaultEccMode() -> c_uint { 1 }
    fn nvmlDeviceGetTotalEccErrors(_kind: c_uint, _counter: c_uint) -> u64 { 0 }
    fn nvmlDeviceGetMaxPcieLinkGeneration() -> c_uint { gpu.model().pcie_generation }
    fn nvmlDeviceGetGpuMaxPcieLinkGeneration() -> c_uint { gpu.model().pcie_generation }
    fn nvmlDeviceGetCurrPcieLinkGeneration() -> c_uint { gpu.model().pcie_generation }
    fn nvmlDeviceGetMaxPcieLinkWidth() -> c_uint { 16 }
    fn nvmlDeviceGetCurrPcieLinkWidth() -> c_uint { 16 }
    fn nvmlDeviceGetPcieReplayCounter() -> c_uint { 0 }
    fn nvmlDeviceGetPcieThroughput(_counter: c_uint) -> c_uint { 0 }
    fn nvmlDeviceGetDisplayMode() -> c_uint { 0 }
    fn nvmlDeviceGetDisplayActive() -> c_uint { 0 }
    fn nvmlDeviceGetNumFans() -> c_uint { 0 }
}

nvml! {
    fn nvmlDeviceSetPersistenceMode(device: DeviceHandle, mode: c_uint) {
        let call = Call::new()?;
        let (index, _) = call.gpu(device)?;
        if mode > 1 {
            return Err(Code::INVALID_ARGUMENT);
        }
        call.administrator()?;
        call.update(|node| {
            node.gpus[index].persistence = mode == 1;
            Ok(())
        })
    }

    fn nvmlDeviceGetComputeMode(device: DeviceHandle, mode: Out<c_uint>) {
        mode.set(Call::new()?.device(device)?.gpu.compute_mode)
    }

    fn nvmlDeviceSetComputeMode(device: DeviceHandle, mode: c_uint) {
        let call = Call::new()?;
        let (index, gpu) = call.gpu(device)?;
        // CUDA 8 removed the mode "exclusive thread".
        let known = [DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS];
        if !known.contains(&mode) {
            return Err(Code::INVALID_ARGUMENT);
        }
        if gpu.mig {
            return Err(Code::NOT_SUPPORTED);
        }
        if !session::is_root() {
            return Err(Code::NO_PERMISSION);
        }
        call.update(|node| {
            node.gpus[index].compute_mode = mode;
            Ok(())
        })
    }

    fn nvmlDeviceGetTemperature(device: DeviceHandle, sensor: c_uint, degrees: Out<c_uint>) {
        if sensor != 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        degrees.set(temperature(&Call::new()?, device)?)
    }

    fn nvmlDeviceGetTemperatureV(device: DeviceHandle, info: Out<sys::nvmlTemperature_t>) {
        let call = Call::new()?;
        let mut value = info.versioned(1)?;
        value.temperature = temperature(&call, device)? as c_int;
        info.set(value)
    }

    fn nvmlDeviceGetTemperatureThreshold(device: DeviceHandle, kind: c_uint, degrees: Out<c_uint>) {
        Call::new()?.gpu(device)?;
        // Thresholds: shutdown, slowdown, maximum of memory, maximum of the GPU.
        let value = match kind {
            0 => 92,
            1 => 89,
            2 => 95,
            3 => 87,
            _ => return Err(Code::NOT_SUPPORTED),
        };
        degrees.set(value)
    }

    fn nvmlDeviceGetPowerManagementLimitConstraints(
        device: DeviceHandle,
        least: Out<c_uint>,
        most: Out<c_uint>,
    ) {
        let call = Call::new()?;
        let limit = device::model(&call, device)?.power_limit_mw;
        least.set(limit / 4)?;
        most.set(limit)
    }

    fn nvmlDeviceGetClock(device: DeviceHandle, kind: c_uint, which: c_uint, mhz: Out<c_uint>) {
        let call = Call::new()?;
        mhz.set(match which {
            0 => clock_now(&call, device, kind)?,
            1..=3 => clock(&call, device, kind)?,
            _ => return Err(Code::INVALID_ARGUMENT),
        })
    }

    fn nvmlDeviceGetSupportedMemoryClocks(
        device: DeviceHandle,
        count: Out<c_uint>,
        clocks: Out<c_uint>,
    ) {
        let call = Call::new()?;
        clocks.fill(count, &[device::model(&call, device)?.memory_clock_mhz])
    }

    fn nvmlDeviceGetSupportedGraphicsClocks(
        device: DeviceHandle,
        memory_mhz: c_uint,
        count: Out<c_uint>,
        clocks: Out<c_uint>,
    ) {
        let call = Call::new()?;
        let model = device::model(&call, device)?;
        if memory_mhz != model.memory_clock_mhz {
            return Err(Code::NOT_FOUND);
        }
        let all: Vec<c_uint> = (0..).map(|step| model.clock_mhz.saturating_sub(15 * step))
            .take_while(|mhz| *mhz >= 210)
            .collect();
        clocks.fill(count, &all)
    }

    fn nvmlDeviceGetAutoBoostedClocksEnabled(
        device: DeviceHandle,
        _on: Out<c_uint>,
        _on_by_default: Out<c_uint>,
    ) {
        Call::new()?.gpu(device)?;
        Err(Code::NOT_SUPPORTED)
    }

    // ECC is on, and no error is ever counted.
    fn nvmlDeviceGetEccMode(device: DeviceHandle, current: Out<c_uint>, pending: Out<c_uint>) {
        Call::new()?.gpu(device)?;
        current.set(1)?;
        pending.set(1)
    }

    fn nvmlDeviceGetMemoryErrorCounter(
        device: DeviceHandle,
        _kind: c_uint,
        _counter: c_uint,
        _location: c_uint,
        count: Out<u64>,
    ) {
        Call::new()?.device(device)?;
        count.set(0)
    }

    fn nvmlDeviceGetRemappedRows(
        device: DeviceHandle,
        corrected: Out<c_uint>,
        uncorrected: Out<c_uint>,
        pending: Out<c_uint>,
        failed: Out<c_uint>,
    ) {
        let call = Call::new()?;
        if device::model(&call, device)?.architecture < Architecture::Ampere {
            return Err(Code::NOT_SUPPORTED);
        }
        for out in [corrected, uncorrected, pending, failed] {
            out.set(0)?;
        }
        Ok(())
    }

    fn nvmlDeviceGetRowRemapperHistogram(
        device: DeviceHandle,
        values: Out<sys::nvmlRowRemapperHistogramValues_t>,
    ) {
        let call = Call::new()?;
        if device::model(&call, device)?.architecture < Architecture::Ampere {
            return Err(Code::NOT_SUPPORTED);
        }
        values.set(sys::nvmlRowRemapperHistogramValues_t {
            max: 2560,
            high: 0,
            partial: 0,
            low: 0,
            none: 0,
        })
    }

    fn nvmlDeviceGetInforomImageVersion(device: DeviceHandle, text: Out<c_char>, length: c_uint) {
        Call::new()?.gpu(device)?;
        text.text(length, "G520.0200.00.05")
    }

    fn nvmlDeviceGetGspFirmwareVersion(device: DeviceHandle, text: Out<c_char>) {
        let call = Call::new()?;
        call.gpu(device)?;
        // This function has no length; callers pass 64 bytes.
        text.text(64, &call.node.driver)
    }

    fn nvmlDeviceGetGspFirmwareMode(
        device: DeviceHandle,
        on: Out<c_uint>,
        on_by_default: Out<c_uint>,
    ) {
        Call::new()?.gpu(device)?;
        on.set(1)?;
        on_by_default.set(1)
    }

}
