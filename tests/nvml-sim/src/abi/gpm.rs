//! GPM: the activity of instances on Hopper and newer GPUs.
//!
//! A sample holds the busy time of each process since its start, also of ended ones; the metrics are the differences
//! between two samples.
//!
//! As in the real library, nothing checks that two samples are of the same instance; the result is then some
//! percentage.

use std::collections::HashMap;
use std::ffi::{CStr, c_uint};
use std::sync::Mutex;

use nvml_wrapper_sys::bindings as sys;

use super::{Out, nvml};
use crate::code::{Answer, Code};
use crate::node::Gpu;
use crate::processes;
use crate::session::Call;

type DeviceHandle = sys::nvmlDevice_t;
type SampleHandle = sys::nvmlGpmSample_t;

#[derive(Debug, Default)]
struct Sample {
    taken_us: u64,
    /// Busy microseconds by process life, if the sampled part had one.
    busy: HashMap<(u32, u64, u64), f64>,
}

struct Samples {
    last: usize,
    all: HashMap<usize, Sample>,
}

static SAMPLES: Mutex<Option<Samples>> = Mutex::new(None);

fn with<T>(act: impl FnOnce(&mut Samples) -> Answer<T>) -> Answer<T> {
    let mut samples = SAMPLES.lock().unwrap_or_else(|held| held.into_inner());
    act(samples.get_or_insert_with(|| Samples {
        last: 0,
        all: HashMap::new(),
    }))
}

fn id(handle: SampleHandle) -> usize {
    handle.addr() >> 4
}

fn supported(gpu: &Gpu) -> bool {
    gpu.model().architecture.is_hopper_or_newer()
}

fn take(call: &Call, gpu: &Gpu, instance: Option<u64>, handle: SampleHandle) -> Answer {
    if !supported(gpu) {
        return Err(Code::NOT_SUPPORTED);
    }
    if processes::is_held(call.root(), &processes::profiling(&gpu.uuid)) {
        return Err(Code::INVALID_STATE);
    }
    let taken_us = processes::now_us();
    let known = processes::recent(call.root())?;
    let busy = known
        .iter()
        .filter(|record| record.process.gpu_uuid == gpu.uuid)
        .filter(|record| {
            instance.is_none() || record.process.instance.map(|(gi, _)| gi) == instance
        })
        .map(|record| (record.life(), record.busy_us(taken_us)))
        .collect();
    with(|samples| {
        let sample = samples
            .all
            .get_mut(&id(handle))
            .ok_or(Code::INVALID_ARGUMENT)?;
        *sample = Sample { taken_us, busy };
        Ok(())
    })
}

/// Name, unit and share of full activity of each simulated metric.
fn metric(id: c_uint) -> Option<(&'static CStr, &'static CStr, f64)> {
    const PERCENT: &CStr = c"%";
    Some(match id {
        1 => (c"Graphics Utilization", PERCENT, 100.0),
        2 => (c"SM Utilization", PERCENT, 95.0),
        3 => (c"SM Occupancy", PERCENT, 50.0),
        5 => (c"Any Tensor Utilization", PERCENT, 40.0),
        7 => (c"HMMA Tensor Utilization", PERCENT, 40.0),
        10 => (c"DRAM Bandwidth Utilization", PERCENT, 50.0),
        12 => (c"FP32 Utilization", PERCENT, 20.0),
        4 | 6 | 8 | 9 | 11 | 13 => (c"Pipe Utilization", PERCENT, 0.0),
        20 => (c"PCIe TX Throughput", c"MiB/s", 0.0),
        21 => (c"PCIe RX Throughput", c"MiB/s", 0.0),
        _ => return None,
    })
}

nvml! {
    fn nvmlGpmQueryDeviceSupport(device: DeviceHandle, support: Out<sys::nvmlGpmSupport_t>) {
        let call = Call::new()?;
        let gpu = call.device(device)?.gpu;
        let mut value = support.get()?;
        if value.version != 1 && value.version != super::tagged::<sys::nvmlGpmSupport_t>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        value.isSupportedDevice = supported(gpu).into();
        support.set(value)
    }

    fn nvmlGpmQueryIfStreamingEnabled(device: DeviceHandle, state: Out<c_uint>) {
        let call = Call::new()?;
        if !supported(call.device(device)?.gpu) {
            return Err(Code::NOT_SUPPORTED);
        }
        state.set(0)
    }

    fn nvmlGpmSampleAlloc(sample: Out<SampleHandle>) {
        Call::new()?;
        let id = with(|samples| {
            samples.last += 1;
            samples.all.insert(samples.last, Sample::default());
            Ok(samples.last)
        })?;
        sample.set(std::ptr::without_provenance_mut(id << 4))
    }

    fn nvmlGpmSampleFree(sample: SampleHandle) {
        with(|samples| samples.all.remove(&id(sample)).map(|_| ()).ok_or(Code::INVALID_ARGUMENT))
    }

    fn nvmlGpmSampleGet(device: DeviceHandle, sample: SampleHandle) {
        let call = Call::new()?;
        let device = call.device(device)?;
        take(&call, device.gpu, device.mig.map(|(gi, _)| gi.serial), sample)
    }

    fn nvmlGpmMigSampleGet(device: DeviceHandle, gpu_instance: c_uint, sample: SampleHandle) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        if !supported(gpu) {
            return Err(Code::NOT_SUPPORTED);
        }
        gpu.mig_geometry()?;
        let gi = gpu.instance(gpu_instance).ok_or(Code::INVALID_ARGUMENT)?;
        take(&call, gpu, Some(gi.serial), sample)
    }

    fn nvmlGpmMetricsGet(get: Out<sys::nvmlGpmMetricsGet_t>) {
        let call = Call::new()?;
        let mut value = get.get()?;
        if value.version != 1 && value.version != super::tagged::<sys::nvmlGpmMetricsGet_t>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        if value.numMetrics as usize > value.metrics.len() {
            return Err(Code::INVALID_ARGUMENT);
        }
        let busy = with(|samples| {
            let of = |handle| samples.all.get(&id(handle)).ok_or(Code::INVALID_ARGUMENT);
            let (from, to) = (of(value.sample1)?, of(value.sample2)?);
            if from.taken_us == 0 || to.taken_us <= from.taken_us {
                return Err(Code::INVALID_ARGUMENT);
            }
            // Never negative: the end of a killed process is an estimate.
            let worked = |(life, busy): (&(u32, u64, u64), &f64)| {
                (busy - from.busy.get(life).unwrap_or(&0.0)).max(0.0)
            };
            let length = (to.taken_us - from.taken_us) as f64;
            let busy: f64 = to.busy.iter().map(worked).sum();
            Ok((busy / length).clamp(0.0, 1.0))
        })?;
        let busy = if call.is_blind()? { 0.0 } else { busy };
        for row in value.metrics.iter_mut().take(value.numMetrics as usize) {
            let Some((name, unit, share)) = metric(row.metricId) else {
                row.nvmlReturn = Code::NOT_SUPPORTED.0;
                continue;
            };
            row.nvmlReturn = 0;
            row.value = busy * share;
            row.metricInfo = sys::nvmlGpmMetric_t__bindgen_ty_1 {
                shortName: name.as_ptr().cast_mut(),
                longName: name.as_ptr().cast_mut(),
                unit: unit.as_ptr().cast_mut(),
            };
        }
        get.set(value)
    }
}
