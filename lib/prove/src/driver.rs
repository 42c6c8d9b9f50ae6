//! The driver's calls: measured, written down, and judged.

use std::cell::Cell;
use std::fmt::Display;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use gpufrac_core::geometry::Placement;
use gpufrac_node::gpu::capability_files::Caps;
use gpufrac_nvml::single::{Calls, ComputeInstanceHandle, GpuInstanceHandle};
use gpufrac_nvml::{Gpu, NvmlError, code_name, codes};

use crate::document::CallRow;
use crate::record::Record;

/// The most compute instances of a GPU instance; their ids are below.
pub const COMPUTE_IDS: u32 = 8;
/// Return codes that a run understands, of any call: refusals of that call, not faults of the GPU.
const UNDERSTOOD: [u32; 11] = [
    codes::INVALID_ARGUMENT,
    codes::NOT_SUPPORTED,
    codes::NO_PERMISSION,
    codes::NOT_FOUND,
    codes::INSUFFICIENT_SIZE,
    codes::FUNCTION_NOT_FOUND,
    codes::IN_USE,
    codes::NO_DATA,
    codes::INSUFFICIENT_RESOURCES,
    codes::NOT_READY,
    codes::INVALID_STATE,
];

/// Why a run stops before its end.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// SIGINT or SIGTERM.
    /// Cure: Run it again.
    #[error("a signal ended it")]
    Interrupted,
    /// The driver returned a code that is no refusal, such as that of a lost GPU.
    /// Cure: `nvidia-smi` and the kernel's log (Xid) say more; reset the GPU.
    #[error("{call}({args}) answered {}, which gpufrac does not understand here", named(*code))]
    Code {
        call: &'static str,
        args: String,
        /// NVML's return code.
        code: u32,
    },
    /// Another program makes instances on the GPU at the same time.
    /// Cure: End it, and run it again.
    #[error("GPU instance {0} stands on the GPU, and this run did not make it")]
    Foreign(String),
    /// The driver refuses to remove an instance of the run.
    /// Cure: End what holds the GPU, such as DCGM, and run it again: the next run removes it.
    #[error("{0} cannot be removed")]
    Stuck(String),
    /// Another program switched MIG mode, or the driver lost it.
    /// Cure: Look for programs that change MIG mode, and run it again.
    #[error("MIG mode is off, and this run did not switch it")]
    ModeLost,
    /// A file, a program or the session with NVML failed.
    #[error("{0}")]
    Failed(String),
}

impl From<NvmlError> for Stop {
    fn from(error: NvmlError) -> Stop {
        Stop::Failed(error.to_string())
    }
}

/// A return code with a word for it: `in use (19)`.
pub fn named(code: u32) -> String {
    match code {
        codes::SUCCESS => "success (0)".to_owned(),
        code => format!("{} ({code})", code_name(code)),
    }
}

/// A result with its code in words.
pub fn said<T>(result: &Result<T, u32>) -> String {
    named(
        result
            .as_ref()
            .map_or_else(|code| *code, |_| codes::SUCCESS),
    )
}

/// A GPU whose calls are measured.
pub struct Driver<'r, 's> {
    pub gpu: Gpu<'s>,
    /// The driver's files.
    pub caps: Caps,
    /// What is collected.
    pub record: &'r Record,
    stop: &'r AtomicBool,
    /// When the time of the run is over.
    end: Instant,
    /// The case of all calls now, such as `seven`.
    pub when: Cell<&'static str>,
    /// True while the run puts back what it changed: no signal and no code keeps it from that.
    pub cleaning: Cell<bool>,
}

/// What a driver answers is checked and noted where it is asked.
impl Deref for Driver<'_, '_> {
    type Target = Record;

    fn deref(&self) -> &Record {
        self.record
    }
}

impl<'r, 's> Driver<'r, 's> {
    /// Of a GPU in a session.
    pub fn new(
        gpu: Gpu<'s>,
        caps: Caps,
        record: &'r Record,
        stop: &'r AtomicBool,
        end: Instant,
    ) -> Self {
        Driver {
            gpu,
            caps,
            record,
            stop,
            end,
            when: Cell::new("alone"),
            cleaning: Cell::new(false),
        }
    }

    /// Fails after SIGINT and SIGTERM.
    pub fn go_on(&self) -> Result<(), Stop> {
        if self.stop.load(Ordering::Relaxed) && !self.cleaning.get() {
            Err(Stop::Interrupted)
        } else {
            Ok(())
        }
    }

    /// Whether the time of the run is over.
    pub fn out_of_time(&self) -> bool {
        Instant::now() > self.end
    }

    /// One call that changes nothing.
    pub fn ask<T>(
        &self,
        call: &'static str,
        args: impl Display,
        run: impl FnOnce(Calls<'_, 's>) -> Result<T, NvmlError>,
    ) -> Result<Result<T, u32>, Stop> {
        self.measured(call, self.when.get(), args, false, run)
    }

    /// One call that changes the GPU; `when` is its case.
    pub fn change<T>(
        &self,
        call: &'static str,
        when: &'static str,
        args: impl Display,
        run: impl FnOnce(Calls<'_, 's>) -> Result<T, NvmlError>,
    ) -> Result<Result<T, u32>, Stop> {
        self.measured(call, when, args, true, run)
    }

    fn measured<T>(
        &self,
        call: &'static str,
        when: &str,
        args: impl Display,
        changes: bool,
        run: impl FnOnce(Calls<'_, 's>) -> Result<T, NvmlError>,
    ) -> Result<Result<T, u32>, Stop> {
        self.go_on()?;
        let before = changes.then(|| self.folders()).flatten();
        let begin = Instant::now();
        let answer = run(self.gpu.calls());
        let ms = begin.elapsed().as_secs_f64() * 1000.0;
        let code = match &answer {
            Ok(_) => codes::SUCCESS,
            Err(NvmlError::Missing { .. }) => codes::FUNCTION_NOT_FOUND,
            Err(error) => error.code().unwrap_or(codes::UNKNOWN),
        };
        let args = args.to_string();
        if code == codes::SUCCESS {
            self.record.took(call, when, ms);
        }
        if changes || code != codes::SUCCESS {
            self.record.called(CallRow {
                step: self.record.step().to_owned(),
                call: call.to_owned(),
                args: args.clone(),
                code,
                ms: (ms * 1000.0).round() / 1000.0,
                before,
                after: changes.then(|| self.folders()).flatten(),
            });
        }
        match answer {
            Ok(value) => Ok(Ok(value)),
            Err(_) if UNDERSTOOD.contains(&code) || self.cleaning.get() => Ok(Err(code)),
            Err(_) => Err(Stop::Code { call, args, code }),
        }
    }

    /// The ids of the GPU instances in the driver's folder.
    pub fn folders(&self) -> Option<Vec<u32>> {
        let ids = self.caps.gpu_instances(self.gpu.minor)?;
        Some(ids.into_iter().collect())
    }

    /// A compute instance that stands now; NVML's code if there is none.
    pub fn compute_by_id(
        &self,
        gi: GpuInstanceHandle<'s>,
        id: u32,
    ) -> Result<Result<ComputeInstanceHandle<'s>, u32>, Stop> {
        self.ask("nvmlGpuInstanceGetComputeInstanceById", id, |calls| {
            calls.compute_instance_by_id(gi, id)
        })
    }

    /// Removes the instance at a place; in words, if it stays.
    pub fn clear_place(&self, profile: u32, placement: Placement) -> Result<Option<String>, Stop> {
        let handles = self.ask("nvmlDeviceGetGpuInstances", profile, |calls| {
            calls.gpu_instances(profile)
        })?;
        for gi in handles.unwrap_or_default() {
            let info = self.ask("nvmlGpuInstanceGetInfo", "", |calls| {
                calls.gpu_instance_info(gi)
            })?;
            if info.as_ref().map(|info| info.placement) != Ok(placement) {
                continue;
            }
            for id in 0..COMPUTE_IDS {
                if let Ok(ci) = self.compute_by_id(gi, id)? {
                    let destroy = "nvmlComputeInstanceDestroy";
                    let _ = self.change(destroy, "cleaning", id, |calls| {
                        calls.destroy_compute_instance(ci)
                    })?;
                }
            }
            let destroy = "nvmlGpuInstanceDestroy";
            let done = self.change(destroy, "cleaning", "", |calls| {
                calls.destroy_gpu_instance(gi)
            })?;
            let still = self.ask("nvmlDeviceGetGpuInstances", profile, |calls| {
                calls.gpu_instances(profile)
            })?;
            if still.is_ok_and(|still| !still.is_empty()) {
                let place = format!("{}:{}", placement.start, placement.size);
                return Ok(Some(format!("instance at {place}: {}", said(&done))));
            }
        }
        Ok(None)
    }
}
