//! The part of NVML that gpufrac needs: the MIG profiles of a GPU, and its instances (list, create, destroy).
//! nvml-wrapper loads the library and wraps the simple calls. It has no wrappers for GPU and compute instances, and
//! its `possible_placements` is always empty, so those are direct calls here.
#![allow(unsafe_code)]

mod error;
mod geometry;
mod instances;
pub mod single;
pub mod telemetry;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ffi::c_ulong;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::ids::{DeviceMinor, GpuIndex};
use libloading::os::unix::Library;
pub use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as ffi;

pub use error::{ErrorClass, NvmlError, code_name, codes};
use error::{GET_GPU, code_of};
pub use instances::{ComputeInstance, MigHandle, NewInstance, Standing, ci_profile_enum};
pub use single::Instance;

/// A session with NVML. Close it soon: with some drivers an open session makes the destruction of an instance fail.
pub struct Session {
    /// Empty until NVML is started.
    nvml: OnceLock<Nvml>,
    path: PathBuf,
}

/// A GPU of this machine.
pub struct Gpu<'s> {
    session: &'s Session,
    /// Empty until the first call on the GPU.
    handle: OnceCell<ffi::nvmlDevice_t>,
    /// The PCI address at which the handle is asked for, if that was not done yet.
    pci: Option<String>,
    /// NVML's index.
    pub index: GpuIndex,
    /// `GPU-...`
    pub uuid: String,
    /// N of `/dev/nvidiaN`; it can differ from the index.
    pub minor: DeviceMinor,
}

/// The MIG mode of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigMode {
    /// MIG mode is on.
    On,
    /// MIG mode is off.
    Off,
    /// MIG mode will be on after a reset of the GPU.
    OnAfterReset,
    /// The GPU has no MIG.
    Unsupported,
}

/// Keeps the library loaded between sessions, for programs with many sessions: loading and unloading takes longer
/// than the queries.
pub struct Loaded(#[expect(dead_code, reason = "held until it is dropped")] Library);

impl Loaded {
    /// Loads the library at `path` (or by soname) without initialising it; None if that fails, because the next
    /// session reports the error.
    pub fn keep(path: &Path) -> Option<Loaded> {
        // SAFETY: NVML's initialisers have no preconditions (every session runs them).
        unsafe { Library::new(path) }.ok().map(Loaded)
    }
}

impl Session {
    /// Loads and initialises the library at `path` (or by soname).
    pub fn open(path: &Path) -> Result<Session, NvmlError> {
        let session = Session::deferred(path);
        session.start()?;
        Ok(session)
    }

    /// A session with the library at `path` (or by soname) that starts with its first call.
    pub fn deferred(path: &Path) -> Session {
        Session {
            nvml: OnceLock::new(),
            path: path.to_owned(),
        }
    }

    /// Loads and initialises the library, unless that was done before.
    pub fn start(&self) -> Result<(), NvmlError> {
        self.nvml().map(|_| ())
    }

    /// Whether NVML is started.
    pub fn is_started(&self) -> bool {
        self.nvml.get().is_some()
    }

    fn nvml(&self) -> Result<&Nvml, NvmlError> {
        if let Some(started) = self.nvml.get() {
            return Ok(started);
        }
        let builder = Nvml::builder().lib_path(self.path.as_os_str()).init();
        let started = builder.map_err(|source| NvmlError::Start {
            path: self.path.clone(),
            source,
        })?;
        Ok(self.nvml.get_or_init(|| started))
    }

    pub fn library(&self) -> &Path {
        &self.path
    }

    /// The number of GPUs.
    pub fn gpu_count(&self) -> Result<u32, NvmlError> {
        self.nvml()?
            .device_count()
            .map_err(|e| self.failed("nvmlDeviceGetCount_v2", "all GPUs", &e))
    }

    pub fn gpu(&self, index: GpuIndex) -> Result<Gpu<'_>, NvmlError> {
        let subject = format!("GPU {index}");
        let device = self
            .nvml()?
            .device_by_index(index.0)
            .map_err(|e| self.failed("nvmlDeviceGetHandleByIndex_v2", &subject, &e))?;
        Ok(Gpu {
            uuid: device
                .uuid()
                .map_err(|e| self.failed("nvmlDeviceGetUUID", &subject, &e))?,
            minor: device
                .minor_number()
                .map(DeviceMinor)
                .map_err(|e| self.failed("nvmlDeviceGetMinorNumber", &subject, &e))?,
            session: self,
            handle: handle_of(&device),
            pci: None,
            index,
        })
    }

    /// The GPU at this PCI address, `0000:07:00.0`, assumed to be the one with this UUID; None if there is no GPU.
    pub fn gpu_at(
        &self,
        pci: &str,
        index: GpuIndex,
        uuid: &str,
        minor: DeviceMinor,
    ) -> Result<Option<Gpu<'_>>, NvmlError> {
        let device = match self.nvml()?.device_by_pci_bus_id(pci) {
            Err(nvml_wrapper::error::NvmlError::NotFound) => return Ok(None),
            other => other.map_err(|e| self.failed(GET_GPU, pci, &e))?,
        };
        Ok(Some(Gpu {
            session: self,
            handle: handle_of(&device),
            pci: None,
            index,
            uuid: uuid.to_owned(),
            minor,
        }))
    }

    /// As [`Session::gpu_at`], without a call: the first call on the GPU fails if there is none at the address.
    pub fn gpu_at_later(
        &self,
        pci: &str,
        index: GpuIndex,
        uuid: &str,
        minor: DeviceMinor,
    ) -> Gpu<'_> {
        Gpu {
            session: self,
            handle: OnceCell::new(),
            pci: Some(pci.to_owned()),
            index,
            uuid: uuid.to_owned(),
            minor,
        }
    }

    /// The GPU with this index, UUID and minor number, with the fewest calls that can check that it still has the
    /// index; None if it does not.
    pub fn known_gpu(
        &self,
        index: GpuIndex,
        uuid: &str,
        minor: DeviceMinor,
    ) -> Result<Option<Gpu<'_>>, NvmlError> {
        let subject = format!("GPU {index}");
        let device = match self.nvml()?.device_by_index(index.0) {
            // The machine has fewer GPUs now.
            Err(nvml_wrapper::error::NvmlError::InvalidArg) => return Ok(None),
            other => {
                other.map_err(|e| self.failed("nvmlDeviceGetHandleByIndex_v2", &subject, &e))?
            }
        };
        let found = device.uuid();
        let found = found.map_err(|e| self.failed("nvmlDeviceGetUUID", &subject, &e))?;
        Ok((found == uuid).then(|| Gpu {
            session: self,
            handle: handle_of(&device),
            pci: None,
            index,
            uuid: found,
            minor,
        }))
    }

    /// The GPU with this UUID, whatever its index is now; None if there is none.
    pub fn gpu_with_uuid(&self, uuid: &str) -> Result<Option<Gpu<'_>>, NvmlError> {
        let mut failed = None;
        for index in (0..self.gpu_count()?).map(GpuIndex) {
            match self.gpu(index) {
                Ok(gpu) if gpu.uuid == uuid => return Ok(Some(gpu)),
                Ok(_) => {}
                // It may be this one, or another one that fell off the bus.
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// The driver's version, e.g. `550.163.01`.
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        self.nvml()?
            .sys_driver_version()
            .map_err(|e| self.failed("nvmlSystemGetDriverVersion", "the driver", &e))
    }

    /// All GPUs.
    pub fn gpus(&self) -> Result<Vec<Gpu<'_>>, NvmlError> {
        (0..self.gpu_count()?)
            .map(|index| self.gpu(GpuIndex(index)))
            .collect()
    }

    /// The GPUs that answer: NVML may count one that fell off the bus.
    pub fn gpus_that_answer(&self) -> Result<Vec<Gpu<'_>>, NvmlError> {
        let all = (0..self.gpu_count()?).map(GpuIndex);
        Ok(all.filter_map(|index| self.gpu(index).ok()).collect())
    }

    fn failed(
        &self,
        call: &'static str,
        subject: &str,
        error: &nvml_wrapper::error::NvmlError,
    ) -> NvmlError {
        NvmlError::Call {
            call,
            subject: subject.to_owned(),
            code: code_of(error),
        }
    }
}

/// Calls a function of the loaded library and turns its return code into a result.
macro_rules! call {
    ($gpu:expr, $name:ident ( $($argument:expr),* $(,)? )) => {{
        match $gpu.session.nvml().map(|nvml| nvml.lib().$name.as_ref()) {
            Err(error) => Err(error),
            Ok(Ok(function)) => {
                // SAFETY: the symbol comes from an initialised NVML (`Session` keeps it so), its type from NVML's
                // header; handles were given by this library in this session (one that outlived its instance is
                // answered with an error); every out pointer is a live local.
                let code = unsafe { function($($argument),*) };
                $gpu.check(stringify!($name), code)
            }
            Ok(Err(_)) => Err(NvmlError::Missing {
                call: stringify!($name),
                library: $gpu.session.path.clone(),
            }),
        }
    }};
}
use call;

fn handle_of(device: &Device<'_>) -> OnceCell<ffi::nvmlDevice_t> {
    // SAFETY: a `Gpu` uses the handle only while the session's NVML lives.
    OnceCell::from(unsafe { device.handle() })
}

impl<'s> Gpu<'s> {
    /// N of its `/dev/nvidiaN` now: a change of MIG mode may change it (nvml.h, `nvmlDeviceSetMigMode`).
    pub fn minor_now(&self) -> Result<DeviceMinor, NvmlError> {
        let minor = self.device()?.minor_number();
        let minor = minor.map_err(|e| self.failed("nvmlDeviceGetMinorNumber", &e))?;
        Ok(DeviceMinor(minor))
    }

    /// The threads near the GPU, by the kernel's numbers up to `last` (`nvmlDeviceGetCpuAffinity`).
    pub fn near_threads(&self, last: u32) -> Result<BTreeSet<u32>, NvmlError> {
        let words = last as usize / c_ulong::BITS as usize + 1;
        let sets = self.device()?.cpu_affinity(words);
        let sets = sets.map_err(|e| self.failed("nvmlDeviceGetCpuAffinity", &e))?;
        let is_near = |thread: &u32| {
            let word = sets.get((thread / c_ulong::BITS) as usize);
            word.is_some_and(|word| word >> (thread % c_ulong::BITS) & 1 == 1)
        };
        Ok((0..=last).filter(is_near).collect())
    }

    /// Whether NVML is started.
    pub fn is_started(&self) -> bool {
        self.session.is_started()
    }

    pub fn session(&self) -> &'s Session {
        self.session
    }

    fn device(&self) -> Result<Device<'s>, NvmlError> {
        let nvml = self.session.nvml()?;
        if let Some(handle) = self.handle.get() {
            // SAFETY: NVML gave the handle in this session, and its library outlives the device.
            return Ok(unsafe { Device::new(*handle, nvml) });
        }
        let pci = self.pci.as_deref().unwrap_or_default();
        let found = nvml.device_by_pci_bus_id(pci);
        let found = found.map_err(|e| self.failed(GET_GPU, &e))?;
        // SAFETY: the handle is used only while the session's NVML lives.
        self.handle.get_or_init(|| unsafe { found.handle() });
        Ok(found)
    }

    /// Another handle on the GPU at its index.
    pub fn again(&self) -> Result<Gpu<'s>, NvmlError> {
        self.session.gpu(self.index)
    }
}

impl Gpu<'_> {
    fn check(&self, call: &'static str, code: u32) -> Result<(), NvmlError> {
        if code == codes::SUCCESS {
            return Ok(());
        }
        Err(NvmlError::Call {
            call,
            subject: self.to_string(),
            code,
        })
    }

    fn failed(&self, call: &'static str, error: &nvml_wrapper::error::NvmlError) -> NvmlError {
        self.session.failed(call, &self.to_string(), error)
    }

    fn handle(&self) -> Result<ffi::nvmlDevice_t, NvmlError> {
        // SAFETY: the handle is used only while the session's NVML lives.
        self.device().map(|device| unsafe { device.handle() })
    }

    /// NVML's product name, e.g. `NVIDIA H100 80GB HBM3`, for messages; a generic word if NVML does not answer.
    pub fn name(&self) -> String {
        let name = self.device().ok().and_then(|device| device.name().ok());
        name.unwrap_or_else(|| "of unknown model".to_owned())
    }

    /// The current MIG mode.
    pub fn mig_mode(&self) -> Result<MigMode, NvmlError> {
        match self.device()?.mig_mode() {
            Ok(mode) => Ok(match (mode.current, mode.pending) {
                (1, _) => MigMode::On,
                (_, 1) => MigMode::OnAfterReset,
                _ => MigMode::Off,
            }),
            Err(nvml_wrapper::error::NvmlError::NotSupported) => Ok(MigMode::Unsupported),
            Err(error) => Err(self.failed("nvmlDeviceGetMigMode", &error)),
        }
    }

    /// Asks for MIG mode, or for its end, and says what mode the GPU is in then: the call may succeed and change
    /// nothing. Where something uses the GPU drivers answer either way, with an error or with a mode that waits.
    pub fn switch_mig(&self, on: bool) -> Result<MigMode, NvmlError> {
        match self.device()?.set_mig_mode(on) {
            Ok(_) | Err(nvml_wrapper::error::NvmlError::InUse) => self.mig_mode(),
            Err(error) => Err(self.failed("nvmlDeviceSetMigMode", &error)),
        }
    }

    /// Whether the GPU's place in an NVSwitch fabric is set up, without which CUDA does not start; true where there is
    /// no such fabric (nvml.h, `nvmlDeviceGetGpuFabricInfo`).
    pub fn fabric_is_ready(&self) -> Result<bool, NvmlError> {
        let mut info = ffi::nvmlGpuFabricInfo_t {
            clusterUuid: [0; 16],
            status: codes::SUCCESS,
            cliqueId: 0,
            state: 0,
        };
        match call!(self, nvmlDeviceGetGpuFabricInfo(self.handle()?, &mut info)) {
            Err(NvmlError::Missing { .. }) => return Ok(true),
            Err(error) if error.has_code(&[codes::NOT_SUPPORTED, codes::FUNCTION_NOT_FOUND]) => {
                return Ok(true);
            }
            other => other?,
        }
        Ok(match u32::from(info.state) {
            ffi::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED => true,
            ffi::NVML_GPU_FABRIC_STATE_COMPLETED => info.status == codes::SUCCESS,
            _ => false,
        })
    }

    /// Whether MIG mode can be switched without a reset: from Hopper (compute capability 9) on.
    pub fn mig_switches_without_reset(&self) -> Result<bool, NvmlError> {
        Ok(self.compute_capability()? >= 9)
    }

    /// The memory of the GPU.
    pub fn memory(&self) -> Result<MemoryMib, NvmlError> {
        self.device()?
            .memory_info()
            .map(|info| MemoryMib(info.total >> 20))
            .map_err(|e| self.failed("nvmlDeviceGetMemoryInfo", &e))
    }

    /// Major number of the CUDA compute capability: 7 is Volta, 9 Hopper.
    pub fn compute_capability(&self) -> Result<u32, NvmlError> {
        self.device()?
            .cuda_compute_capability()
            .map(|capability| u32::try_from(capability.major).unwrap_or(0))
            .map_err(|e| self.failed("nvmlDeviceGetCudaComputeCapability", &e))
    }

    /// Which processes may have contexts on the GPU.
    pub fn compute_mode(&self) -> Result<ComputeMode, NvmlError> {
        self.device()?
            .compute_mode()
            .map_err(|e| self.failed("nvmlDeviceGetComputeMode", &e))
    }

    /// Changes the compute mode; existing contexts stay.
    pub fn set_compute_mode(&mut self, mode: ComputeMode) -> Result<(), NvmlError> {
        let done = self.device()?.set_compute_mode(mode);
        done.map_err(|e| self.failed("nvmlDeviceSetComputeMode", &e))
    }

    /// Whether persistence mode is on. Without it older drivers forget MIG mode of a Hopper GPU and all instances with
    /// the GPU's last user; the open kernel module 595.45 saves both while the module is loaded (kernel_mig_manager.c).
    pub fn is_persistent(&self) -> Result<bool, NvmlError> {
        self.device()?
            .is_in_persistent_mode()
            .map_err(|e| self.failed("nvmlDeviceGetPersistenceMode", &e))
    }

    /// Switches persistence mode on.
    pub fn make_persistent(&mut self) -> Result<(), NvmlError> {
        let done = self.device()?.set_persistent(true);
        done.map_err(|e| self.failed("nvmlDeviceSetPersistenceMode", &e))
    }
}

impl std::fmt::Display for Gpu<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GPU {} ({})", self.index, self.uuid)
    }
}
