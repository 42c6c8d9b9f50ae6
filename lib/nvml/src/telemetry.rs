//! The activity of a GPU and its instances. Instances are queried by their GPU and their id: no function here keeps a
//! handle of an instance.

use gpufrac_core::fraction::MemoryMib;
use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError as WrapperError;
use nvml_wrapper::gpm::{GpmSample, gpm_metrics_get};
use nvml_wrapper::struct_wrappers::device::ProcessInfo;

use crate::error::codes;
use crate::{Gpu, NvmlError, Session};

/// How often a list is read again if its length changes meanwhile.
const LIST_READINGS: u32 = 5;

/// A process with a context on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// The pid, in this pid namespace.
    pub pid: u32,
    /// The id of the GPU instance, if the GPU is in MIG mode.
    pub gi_id: Option<u32>,
    /// Device memory of the process; None if the driver does not report it.
    pub memory: Option<MemoryMib>,
    /// Whether it is a client of MPS.
    pub mps_client: bool,
}

/// The activity of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utilization {
    /// The pid; the process may have ended since.
    pub pid: u32,
    /// The largest of its utilizations of multiprocessors, encoder and decoder, in percent of the time.
    pub percent: u32,
}

/// A sample of counters; two of them give the activity between them.
pub struct Counters<'s>(GpmSample<'s>);

impl Session {
    /// The part of the time between two samples in which an instance computed or decoded video, 0 to 1. Metrics
    /// `GRAPHICS_UTIL`, `NVDEC_n_UTIL`, `NVJPG_n_UTIL` (nvml.h); the samples must be at least 100 ms apart.
    pub fn activity(&self, first: &Counters<'_>, second: &Counters<'_>) -> Result<f64, NvmlError> {
        let failed = |e: &WrapperError| self.failed("nvmlGpmMetricsGet", "an interval", e);
        let metrics = [
            GpmMetricId::GraphicsUtil,
            GpmMetricId::Nvdec0Util,
            GpmMetricId::Nvdec1Util,
            GpmMetricId::Nvdec2Util,
            GpmMetricId::Nvdec3Util,
            GpmMetricId::Nvjpg0Util,
            GpmMetricId::Nvjpg1Util,
        ];
        let results =
            gpm_metrics_get(self.nvml()?, &first.0, &second.0, &metrics).map_err(|e| failed(&e))?;
        let mut greatest = 0.0_f64;
        for (position, result) in results.into_iter().enumerate() {
            let value = match result {
                Ok(metric) => metric.value,
                // Each instance has a graphics engine; some have no decoder.
                Err(_) if position > 0 => continue,
                Err(error) => return Err(failed(&error)),
            };
            if !value.is_finite() || value < 0.0 {
                return Err(NvmlError::Call {
                    call: "nvmlGpmMetricsGet",
                    subject: format!("an interval ({value} %)"),
                    code: codes::NO_DATA,
                });
            }
            greatest = greatest.max(value);
        }
        Ok((greatest / 100.0).min(1.0))
    }
}

impl<'s> Gpu<'s> {
    /// The processes with a compute context, without MPS clients; the server of these clients is in the list. On a
    /// GPU in MIG mode root sees the processes of all instances.
    pub fn processes_but_clients(&self) -> Result<Vec<Process>, NvmlError> {
        compute_processes(&self.device()?)
            .map_err(|e| self.failed("nvmlDeviceGetComputeRunningProcesses_v3", &e))
    }

    /// The processes with a compute context, and the MPS clients.
    pub fn processes(&self) -> Result<Vec<Process>, NvmlError> {
        let own = self.processes_but_clients()?;
        let device = self.device()?;
        let clients = match whole_list(|| device.mps_running_compute_processes()) {
            // GPUs before Volta report no MPS clients.
            Err(WrapperError::NotSupported) => Vec::new(),
            other => {
                other.map_err(|e| self.failed("nvmlDeviceGetMPSComputeRunningProcesses_v3", &e))?
            }
        };
        let mut processes: Vec<Process> = clients.iter().map(|p| process(p, true)).collect();
        for other in own {
            // Some drivers list clients in both lists.
            if processes.iter().all(|known| known.pid != other.pid) {
                processes.push(other);
            }
        }
        Ok(processes)
    }

    /// Energy that the GPU has used since the driver was loaded, in millijoules; None where the GPU has no counter
    /// (before Volta; nvml.h, `nvmlDeviceGetTotalEnergyConsumption`).
    pub fn energy(&self) -> Result<Option<u64>, NvmlError> {
        match self.device()?.total_energy_consumption() {
            Err(WrapperError::NotSupported | WrapperError::FailedToLoadSymbol(_)) => Ok(None),
            other => {
                let energy =
                    other.map_err(|e| self.failed("nvmlDeviceGetTotalEnergyConsumption", &e))?;
                Ok(Some(energy))
            }
        }
    }

    /// Whether GPM reports the activity of instances: from Hopper on.
    pub fn has_gpm(&self) -> Result<bool, NvmlError> {
        match self.device()?.gpm_support() {
            Err(WrapperError::NotSupported | WrapperError::FailedToLoadSymbol(_)) => Ok(false),
            other => other.map_err(|e| self.failed("nvmlGpmQueryDeviceSupport", &e)),
        }
    }

    /// A sample of the counters of a GPU instance.
    pub fn counters(&self, gi_id: u32) -> Result<Counters<'s>, NvmlError> {
        let sample = self.device()?.gpm_mig_sample(gi_id);
        sample
            .map(Counters)
            .map_err(|e| self.failed("nvmlGpmMigSampleGet", &e))
    }

    /// The processes that computed on a GPU without MIG since `timestamp_us`, in microseconds of the driver's clock.
    /// The driver lists only active processes (nvml.h), so a missing process was idle.
    pub fn utilization_since(&self, timestamp_us: u64) -> Result<Vec<Utilization>, NvmlError> {
        let device = self.device()?;
        let samples = match whole_list(|| device.process_utilization_stats(timestamp_us)) {
            Err(WrapperError::NotFound) => Vec::new(),
            other => other.map_err(|e| self.failed("nvmlDeviceGetProcessUtilization", &e))?,
        };
        let samples = samples.into_iter().map(|sample| Utilization {
            pid: sample.pid,
            percent: sample.sm_util.max(sample.enc_util).max(sample.dec_util),
        });
        Ok(samples.collect())
    }

    /// Percent of the driver's last sample period in which a kernel ran, on a GPU without MIG.
    pub fn utilization(&self) -> Result<u32, NvmlError> {
        let rates = self.device()?.utilization_rates();
        rates
            .map(|rates| rates.gpu)
            .map_err(|e| self.failed("nvmlDeviceGetUtilizationRates", &e))
    }
}

/// The processes with a compute context on a GPU or a MIG device.
pub(crate) fn compute_processes(device: &Device<'_>) -> Result<Vec<Process>, WrapperError> {
    let own = whole_list(|| device.running_compute_processes())?;
    Ok(own.iter().map(|p| process(p, false)).collect())
}

/// Reads a list again if it grew between the call for its length and the call for its content. This is common where
/// short programs follow each other, and no failure of the driver.
fn whole_list<T>(mut read: impl FnMut() -> Result<T, WrapperError>) -> Result<T, WrapperError> {
    for _ in 1..LIST_READINGS {
        match read() {
            Err(WrapperError::InsufficientSize(_)) => {}
            other => return other,
        }
    }
    read()
}

fn process(info: &ProcessInfo, mps_client: bool) -> Process {
    Process {
        pid: info.pid,
        gi_id: info.gpu_instance_id,
        memory: match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(MemoryMib(bytes >> 20)),
            UsedGpuMemory::Unavailable => None,
        },
        mps_client,
    }
}
