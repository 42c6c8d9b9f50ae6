//! NVML, as far as carving needs it: what a GPU can be cut into, what stands on it, making and
//! unmaking instances. nvml-wrapper loads the library and wraps the simple calls; for GPU and
//! compute instances it has no wrappers (and its `possible_placements` is always empty), so
//! those are raw calls here.
#![allow(unsafe_code)]

mod error;
pub mod telemetry;

use std::path::{Path, PathBuf};
use std::ptr::null_mut;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::geometry::{Geometry, Placement, Profile};
use libloading::os::unix::Library;
pub use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings as ffi;

pub use error::{NvmlError, Severity};
use error::{code_of, codes};

/// Ids of GPU profiles in NVML run up to here; drivers older than a profile answer
/// INVALID_ARGUMENT for it.
const GPU_PROFILE_COUNT: u32 = 0x12;
/// A GPU instance holds at most this many compute instances.
const COMPUTE_INSTANCES_MAX: u32 = 8;
const VERSION_2: u32 = 2 << 24;

/// A loaded and initialised NVML. Keep it no longer than needed: an open session can make
/// teardown fail on some drivers.
pub struct Session {
    nvml: Nvml,
    path: PathBuf,
}

/// A GPU of this machine.
pub struct Gpu<'s> {
    session: &'s Session,
    device: Device<'s>,
    /// Its NVML index.
    pub index: u32,
    /// `GPU-...`
    pub uuid: String,
    /// N of `/dev/nvidiaN`; not always the index.
    pub minor: u32,
    /// What NVML calls it, e.g. `NVIDIA H100 80GB HBM3`.
    pub name: String,
}

/// Whether a GPU is in MIG mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigMode {
    /// It is.
    On,
    /// It is not.
    Off,
    /// It will be after a reset of the GPU.
    OnAfterReset,
    /// The GPU has no MIG.
    Unsupported,
}

/// A GPU instance that stands on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its id; the driver uses it again for a later one.
    pub gi_id: u32,
    /// Its profile.
    pub profile_id: u32,
    /// Where it stands.
    pub placement: Placement,
}

/// A compute instance inside a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeInstance {
    /// Its id inside the GPU instance.
    pub ci_id: u32,
    /// `MIG-...`, never used twice.
    pub mig_uuid: String,
}

/// Keeps the library loaded between sessions, for who has many of them: loading and unloading takes
/// longer than all that is asked.
pub struct Loaded(#[expect(dead_code, reason = "held until it is dropped")] Library);

impl Loaded {
    /// Loads the library at `path` (or by soname) without starting it; None if that fails, as the
    /// next session will say why.
    pub fn keep(path: &Path) -> Option<Loaded> {
        // SAFETY: NVML's initialisers have no preconditions (every session runs them).
        unsafe { Library::new(path) }.ok().map(Loaded)
    }
}

impl Session {
    /// Loads the library at `path` (or by soname) and starts it.
    pub fn open(path: &Path) -> Result<Session, NvmlError> {
        let nvml = Nvml::builder()
            .lib_path(path.as_os_str())
            .init()
            .map_err(|source| NvmlError::Start {
                path: path.to_owned(),
                source,
            })?;
        Ok(Session {
            nvml,
            path: path.to_owned(),
        })
    }

    /// The library that was loaded.
    pub fn library(&self) -> &Path {
        &self.path
    }

    /// How many GPUs the driver shows.
    pub fn gpu_count(&self) -> Result<u32, NvmlError> {
        self.nvml
            .device_count()
            .map_err(|e| self.failed("nvmlDeviceGetCount_v2", "all GPUs", &e))
    }

    /// The GPU with this NVML index.
    pub fn gpu(&self, index: u32) -> Result<Gpu<'_>, NvmlError> {
        let subject = format!("GPU {index}");
        let device = self
            .nvml
            .device_by_index(index)
            .map_err(|e| self.failed("nvmlDeviceGetHandleByIndex_v2", &subject, &e))?;
        Ok(Gpu {
            uuid: device
                .uuid()
                .map_err(|e| self.failed("nvmlDeviceGetUUID", &subject, &e))?,
            minor: device
                .minor_number()
                .map_err(|e| self.failed("nvmlDeviceGetMinorNumber", &subject, &e))?,
            name: device
                .name()
                .map_err(|e| self.failed("nvmlDeviceGetName", &subject, &e))?,
            session: self,
            device,
            index,
        })
    }

    /// The driver's version, e.g. `550.163.01`.
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        self.nvml
            .sys_driver_version()
            .map_err(|e| self.failed("nvmlSystemGetDriverVersion", "the driver", &e))
    }

    /// Every GPU.
    pub fn gpus(&self) -> Result<Vec<Gpu<'_>>, NvmlError> {
        (0..self.gpu_count()?)
            .map(|index| self.gpu(index))
            .collect()
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

/// Calls a function of the loaded library and turns its return value into a result.
macro_rules! call {
    ($gpu:expr, $name:ident ( $($argument:expr),* $(,)? )) => {{
        match $gpu.session.nvml.lib().$name.as_ref() {
            Ok(function) => {
                // SAFETY: the symbol comes from an initialised NVML (`Session` keeps it so), its
                // type from NVML's header; handles were given by this library, in this
                // function or for the life of `Gpu`; every out pointer is a live local.
                let code = unsafe { function($($argument),*) };
                $gpu.check(stringify!($name), code)
            }
            Err(_) => Err(NvmlError::Missing {
                call: stringify!($name),
                library: $gpu.session.path.clone(),
            }),
        }
    }};
}
use call;

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

    fn handle(&self) -> ffi::nvmlDevice_t {
        // SAFETY: the handle is used only while `self.device` and its NVML live.
        unsafe { self.device.handle() }
    }

    /// Whether MIG is on.
    pub fn mig_mode(&self) -> Result<MigMode, NvmlError> {
        match self.device.mig_mode() {
            Ok(mode) => Ok(match (mode.current, mode.pending) {
                (1, _) => MigMode::On,
                (_, 1) => MigMode::OnAfterReset,
                _ => MigMode::Off,
            }),
            Err(nvml_wrapper::error::NvmlError::NotSupported) => Ok(MigMode::Unsupported),
            Err(error) => Err(self.failed("nvmlDeviceGetMigMode", &error)),
        }
    }

    /// Asks for MIG mode and says what mode the GPU is in then: the call may succeed and
    /// change nothing.
    pub fn switch_mig_on(&self) -> Result<MigMode, NvmlError> {
        self.device
            .set_mig_mode(true)
            .map_err(|e| self.failed("nvmlDeviceSetMigMode", &e))?;
        self.mig_mode()
    }

    /// Whether MIG mode can be switched without a reset: from Hopper (compute capability 9) on.
    pub fn mig_switches_without_reset(&self) -> Result<bool, NvmlError> {
        Ok(self.compute_capability()? >= 9)
    }

    /// All memory of the GPU.
    pub fn memory(&self) -> Result<MemoryMib, NvmlError> {
        self.device
            .memory_info()
            .map(|info| MemoryMib(info.total >> 20))
            .map_err(|e| self.failed("nvmlDeviceGetMemoryInfo", &e))
    }

    /// Major number of the CUDA compute capability: 7 is Volta, 9 Hopper.
    pub fn compute_capability(&self) -> Result<u32, NvmlError> {
        self.device
            .cuda_compute_capability()
            .map(|capability| u32::try_from(capability.major).unwrap_or(0))
            .map_err(|e| self.failed("nvmlDeviceGetCudaComputeCapability", &e))
    }

    /// Which processes may have contexts on the GPU.
    pub fn compute_mode(&self) -> Result<ComputeMode, NvmlError> {
        self.device
            .compute_mode()
            .map_err(|e| self.failed("nvmlDeviceGetComputeMode", &e))
    }

    /// Changes it; contexts that are there stay.
    pub fn set_compute_mode(&mut self, mode: ComputeMode) -> Result<(), NvmlError> {
        let done = self.device.set_compute_mode(mode);
        done.map_err(|e| self.failed("nvmlDeviceSetComputeMode", &e))
    }

    /// Whether the driver stays loaded without users. Without this, MIG mode and all instances
    /// of a Hopper GPU are lost with the last user.
    pub fn is_persistent(&self) -> Result<bool, NvmlError> {
        self.device
            .is_in_persistent_mode()
            .map_err(|e| self.failed("nvmlDeviceGetPersistenceMode", &e))
    }

    /// Keeps the driver loaded without users.
    pub fn make_persistent(&mut self) -> Result<(), NvmlError> {
        let done = self.device.set_persistent(true);
        done.map_err(|e| self.failed("nvmlDeviceSetPersistenceMode", &e))
    }

    /// What this GPU can be cut into. The largest placement and the most compute slices give
    /// the size of the GPU.
    pub fn geometry(&self) -> Result<Geometry, NvmlError> {
        let mut profiles = Vec::new();
        for slice_enum in 0..GPU_PROFILE_COUNT {
            if let Some(profile) = self.profile(slice_enum)? {
                profiles.push(profile);
            }
        }
        let memory_slices = profiles
            .iter()
            .flat_map(|profile| &profile.placements)
            .map(|placement| placement.start.saturating_add(placement.size))
            .max();
        let compute_slices = profiles.iter().map(|profile| profile.compute_slices).max();
        Ok(Geometry {
            model: self.name.clone(),
            memory_slices: memory_slices.unwrap_or(0),
            compute_slices: compute_slices.unwrap_or(0),
            profiles,
        })
    }

    /// One profile by NVML's enumeration; None if the GPU does not have it.
    fn profile(&self, slice_enum: u32) -> Result<Option<Profile>, NvmlError> {
        let mut info = ffi::nvmlGpuInstanceProfileInfo_v2_t {
            version: size_of::<ffi::nvmlGpuInstanceProfileInfo_v2_t>() as u32 | VERSION_2,
            id: 0,
            isP2pSupported: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            copyEngineCount: 0,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: 0,
            name: [0; 96],
        };
        match call!(
            self,
            nvmlDeviceGetGpuInstanceProfileInfoV(self.handle(), slice_enum, &mut info)
        ) {
            Ok(()) => {}
            Err(error) if error.has_code(&[codes::NOT_SUPPORTED, codes::INVALID_ARGUMENT]) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let name: String = info
            .name
            .iter()
            .take_while(|&&byte| byte != 0)
            .map(|&byte| char::from(byte as u8))
            .collect();
        Ok(Some(Profile {
            id: info.id,
            slice_enum,
            name: name.trim_start_matches("MIG ").to_owned(),
            compute_slices: narrow(info.sliceCount),
            multiprocessors: info.multiprocessorCount,
            memory: MemoryMib(info.memorySizeMB),
            max_instances: info.instanceCount,
            placements: self.placements(info.id)?,
        }))
    }

    fn placements(&self, profile_id: u32) -> Result<Vec<Placement>, NvmlError> {
        let mut count = 0;
        call!(
            self,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                self.handle(),
                profile_id,
                null_mut(),
                &mut count
            )
        )?;
        let mut list = vec![ffi::nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
        call!(
            self,
            nvmlDeviceGetGpuInstancePossiblePlacements_v2(
                self.handle(),
                profile_id,
                list.as_mut_ptr(),
                &mut count
            )
        )?;
        list.truncate(count as usize);
        Ok(list.iter().map(placement_of).collect())
    }

    /// Every GPU instance, also those without a compute instance, which MIG enumeration does
    /// not show.
    pub fn instances(&self, geometry: &Geometry) -> Result<Vec<Instance>, NvmlError> {
        let mut found: Vec<Instance> = Vec::new();
        for profile in &geometry.profiles {
            // NVML takes the array to be long enough for every instance of the profile.
            let room = profile.max_instances.max(1) as usize;
            let mut handles: Vec<ffi::nvmlGpuInstance_t> = vec![null_mut(); room];
            let mut count = profile.max_instances;
            call!(
                self,
                nvmlDeviceGetGpuInstances(
                    self.handle(),
                    profile.id,
                    handles.as_mut_ptr(),
                    &mut count
                )
            )?;
            for &handle in handles.iter().take(count as usize) {
                // One that went away between the two calls: nobody else changes instances under
                // our lock, but an admin might.
                if let Some(instance) = self.instance_of(handle)? {
                    found.push(instance);
                }
            }
        }
        found.sort_by_key(|instance| instance.gi_id);
        found.dedup_by_key(|instance| instance.gi_id);
        Ok(found)
    }

    fn instance_of(&self, gi: ffi::nvmlGpuInstance_t) -> Result<Option<Instance>, NvmlError> {
        let mut info = ffi::nvmlGpuInstanceInfo_t {
            device: null_mut(),
            id: 0,
            profileId: 0,
            placement: ffi::nvmlGpuInstancePlacement_t { start: 0, size: 0 },
        };
        match call!(self, nvmlGpuInstanceGetInfo(gi, &mut info)) {
            Ok(()) => Ok(Some(Instance {
                gi_id: info.id,
                profile_id: info.profileId,
                placement: placement_of(&info.placement),
            })),
            Err(error) if error.has_code(&[codes::NOT_FOUND]) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn gi_handle(&self, gi_id: u32) -> Result<Option<ffi::nvmlGpuInstance_t>, NvmlError> {
        let mut gi = null_mut();
        match call!(
            self,
            nvmlDeviceGetGpuInstanceById(self.handle(), gi_id, &mut gi)
        ) {
            Ok(()) => Ok(Some(gi)),
            // MIG mode is off: no instance exists.
            Err(error) if error.has_code(&[codes::NOT_FOUND, codes::NOT_SUPPORTED]) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ci_handle(
        &self,
        gi: ffi::nvmlGpuInstance_t,
        ci_id: u32,
    ) -> Result<Option<ffi::nvmlComputeInstance_t>, NvmlError> {
        let mut ci = null_mut();
        match call!(
            self,
            nvmlGpuInstanceGetComputeInstanceById(gi, ci_id, &mut ci)
        ) {
            Ok(()) => Ok(Some(ci)),
            Err(error) if error.has_code(&[codes::NOT_FOUND]) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The GPU instance with this id; None if there is none.
    pub fn instance(&self, gi_id: u32) -> Result<Option<Instance>, NvmlError> {
        match self.gi_handle(gi_id)? {
            Some(gi) => self.instance_of(gi),
            None => Ok(None),
        }
    }

    /// The compute instances of a GPU instance; empty if there is no such instance.
    pub fn compute_instances(&self, gi_id: u32) -> Result<Vec<ComputeInstance>, NvmlError> {
        let mut found = Vec::new();
        let Some(gi) = self.gi_handle(gi_id)? else {
            return Ok(found);
        };
        for ci_id in 0..COMPUTE_INSTANCES_MAX {
            if let Some(ci) = self.ci_handle(gi, ci_id)? {
                found.push(ComputeInstance {
                    ci_id,
                    mig_uuid: self.mig_uuid(gi_id, ci_id, ci)?,
                });
            }
        }
        Ok(found)
    }

    /// The compute instance with this id in this GPU instance; None if either is gone.
    pub fn compute_instance(
        &self,
        gi_id: u32,
        ci_id: u32,
    ) -> Result<Option<ComputeInstance>, NvmlError> {
        let Some(gi) = self.gi_handle(gi_id)? else {
            return Ok(None);
        };
        let Some(ci) = self.ci_handle(gi, ci_id)? else {
            return Ok(None);
        };
        Ok(Some(ComputeInstance {
            ci_id,
            mig_uuid: self.mig_uuid(gi_id, ci_id, ci)?,
        }))
    }

    /// The UUID of the MIG device that is this compute instance.
    fn mig_uuid(
        &self,
        gi_id: u32,
        ci_id: u32,
        ci: ffi::nvmlComputeInstance_t,
    ) -> Result<String, NvmlError> {
        // nvml.h calls `device` the parent, yet NVIDIA's own driver for Kubernetes long took
        // it for the MIG device, and stopped. Where it is one, nothing more is to be asked.
        let info = self.ci_info(ci)?;
        // SAFETY: NVML gave the handle for this instance, and its library outlives the device.
        let device = unsafe { Device::new(info.device, &self.session.nvml) };
        let uuid = |device: &Device<'_>| {
            device
                .uuid()
                .map_err(|e| self.failed("nvmlDeviceGetUUID", &e))
        };
        let named = uuid(&device)?;
        if named.starts_with("MIG-") {
            return Ok(named);
        }
        let most = self
            .device
            .mig_device_count()
            .map_err(|e| self.failed("nvmlDeviceGetMaxMigDeviceCount", &e))?;
        for index in 0..most {
            let Some(mig) = self.mig_device(index)? else {
                continue;
            };
            let (mut its_gi, mut its_ci) = (u32::MAX, u32::MAX);
            let ids = call!(self, nvmlDeviceGetGpuInstanceId(mig, &mut its_gi))
                .and_then(|()| call!(self, nvmlDeviceGetComputeInstanceId(mig, &mut its_ci)));
            match ids {
                // It went away between the calls: somebody works on another instance by hand.
                Err(error) if error.has_code(&[codes::NOT_FOUND, codes::INVALID_ARGUMENT]) => {}
                other => other?,
            }
            if (its_gi, its_ci) == (gi_id, ci_id) {
                // SAFETY: as above.
                return uuid(&unsafe { Device::new(mig, &self.session.nvml) });
            }
        }
        Err(NvmlError::Call {
            call: "nvmlDeviceGetMigDeviceHandleByIndex",
            subject: format!("{self}, GPU instance {gi_id}, compute instance {ci_id}"),
            code: codes::NOT_FOUND,
        })
    }

    /// The MIG device in a slot; the slots are not filled from the first on.
    fn mig_device(&self, index: u32) -> Result<Option<ffi::nvmlDevice_t>, NvmlError> {
        let mut mig = null_mut();
        match call!(
            self,
            nvmlDeviceGetMigDeviceHandleByIndex(self.handle(), index, &mut mig)
        ) {
            Ok(()) => Ok(Some(mig)),
            Err(error) if error.has_code(&[codes::NOT_FOUND, codes::INVALID_ARGUMENT]) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn ci_info(
        &self,
        ci: ffi::nvmlComputeInstance_t,
    ) -> Result<ffi::nvmlComputeInstanceInfo_t, NvmlError> {
        let mut info = ffi::nvmlComputeInstanceInfo_t {
            device: null_mut(),
            gpuInstance: null_mut(),
            id: 0,
            profileId: 0,
            placement: ffi::nvmlComputeInstancePlacement_t { start: 0, size: 0 },
        };
        call!(self, nvmlComputeInstanceGetInfo_v2(ci, &mut info))?;
        Ok(info)
    }

    /// Makes a GPU instance at an exact place and gives its id.
    pub fn create_gpu_instance(
        &self,
        profile_id: u32,
        placement: Placement,
    ) -> Result<u32, NvmlError> {
        let place = ffi::nvmlGpuInstancePlacement_t {
            start: placement.start.into(),
            size: placement.size.into(),
        };
        let mut gi = null_mut();
        call!(
            self,
            nvmlDeviceCreateGpuInstanceWithPlacement(self.handle(), profile_id, &place, &mut gi)
        )?;
        match self.instance_of(gi)? {
            Some(instance) => Ok(instance.gi_id),
            None => Err(NvmlError::Call {
                call: "nvmlGpuInstanceGetInfo",
                subject: self.to_string(),
                code: codes::NOT_FOUND,
            }),
        }
    }

    /// Makes the one compute instance that fills a GPU instance of `compute_slices`.
    pub fn create_compute_instance(
        &self,
        gi_id: u32,
        compute_slices: u8,
    ) -> Result<ComputeInstance, NvmlError> {
        let gone = || NvmlError::Call {
            call: "nvmlDeviceGetGpuInstanceById",
            subject: format!("{self}, GPU instance {gi_id}"),
            code: codes::NOT_FOUND,
        };
        let gi = self.gi_handle(gi_id)?.ok_or_else(gone)?;
        let mut profile = ffi::nvmlComputeInstanceProfileInfo_t {
            id: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            sharedCopyEngineCount: 0,
            sharedDecoderCount: 0,
            sharedEncoderCount: 0,
            sharedJpegCount: 0,
            sharedOfaCount: 0,
        };
        call!(
            self,
            nvmlGpuInstanceGetComputeInstanceProfileInfo(
                gi,
                ci_profile_enum(compute_slices),
                ffi::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                &mut profile
            )
        )?;
        let mut ci = null_mut();
        call!(
            self,
            nvmlGpuInstanceCreateComputeInstance(gi, profile.id, &mut ci)
        )?;
        let ci_id = self.ci_info(ci)?.id;
        Ok(ComputeInstance {
            ci_id,
            mig_uuid: self.mig_uuid(gi_id, ci_id, ci)?,
        })
    }

    /// Destroys a compute instance; fine if it is gone. The caller has compared the UUID.
    pub fn destroy_compute_instance(&self, gi_id: u32, ci_id: u32) -> Result<(), NvmlError> {
        let Some(gi) = self.gi_handle(gi_id)? else {
            return Ok(());
        };
        let Some(ci) = self.ci_handle(gi, ci_id)? else {
            return Ok(());
        };
        gone_is_fine(call!(self, nvmlComputeInstanceDestroy(ci)))
    }

    /// Destroys a GPU instance; fine if it is gone.
    pub fn destroy_gpu_instance(&self, gi_id: u32) -> Result<(), NvmlError> {
        match self.gi_handle(gi_id)? {
            Some(gi) => gone_is_fine(call!(self, nvmlGpuInstanceDestroy(gi))),
            None => Ok(()),
        }
    }
}

impl std::fmt::Display for Gpu<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GPU {} ({})", self.index, self.uuid)
    }
}

fn gone_is_fine(result: Result<(), NvmlError>) -> Result<(), NvmlError> {
    match result {
        Err(error) if error.has_code(&[codes::NOT_FOUND]) => Ok(()),
        other => other,
    }
}

fn placement_of(placement: &ffi::nvmlGpuInstancePlacement_t) -> Placement {
    Placement {
        start: narrow(placement.start),
        size: narrow(placement.size),
    }
}

/// Slices are counted in ones; a number that does not fit is a broken driver and must not look
/// like a small one.
fn narrow(number: u32) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// `NVML_COMPUTE_INSTANCE_PROFILE_*` of the compute instance that fills a GPU instance.
fn ci_profile_enum(compute_slices: u8) -> u32 {
    match compute_slices {
        1 => ffi::NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE,
        2 => ffi::NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE,
        3 => ffi::NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE,
        4 => ffi::NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE,
        6 => ffi::NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE,
        8 => ffi::NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE,
        _ => ffi::NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE,
    }
}
