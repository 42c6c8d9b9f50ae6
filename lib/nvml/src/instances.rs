//! The MIG instances of a GPU: list, create, destroy.

use std::ffi::CString;
use std::ptr::null_mut;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::geometry::{Geometry, Placement};
use gpufrac_core::lease::MigSlice;
use nvml_wrapper::Device;

use crate::error::codes;
use crate::geometry::placement_of;
use crate::{Gpu, NvmlError, call, ffi};

/// The most compute instances of a GPU instance.
const COMPUTE_INSTANCES_MAX: u32 = 8;
/// More than the most GPU instances of a GPU.
const GPU_INSTANCES_MAX: usize = 64;
/// An existing GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The GPU instance id; the driver reuses it.
    pub gi_id: u32,
    pub profile_id: u32,
    pub placement: Placement,
}

/// A compute instance in a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeInstance {
    /// The compute instance id, unique in its GPU instance.
    pub ci_id: u32,
    /// `MIG-...`; an instance that is made again at the same place may have it again.
    pub mig_uuid: String,
}

impl Instance {
    /// Whether it has the profile and the position of a slice.
    pub fn is_at(&self, mig: &MigSlice) -> bool {
        (self.profile_id, self.placement) == (mig.profile_id, mig.placement)
    }
}

/// A new GPU instance, without a compute instance.
pub struct NewInstance<'g> {
    gpu: &'g Gpu<'g>,
    gi: ffi::nvmlGpuInstance_t,
    /// The GPU instance id.
    pub gi_id: u32,
}

/// An existing GPU instance, by a handle. It must be dropped before the GPU's lock is.
pub struct Standing<'g> {
    gpu: &'g Gpu<'g>,
    gi: ffi::nvmlGpuInstance_t,
    /// Its id, profile and position.
    pub instance: Instance,
}

/// A MIG device, which is a compute instance as CUDA sees it.
pub struct MigHandle<'g> {
    gpu: &'g Gpu<'g>,
    handle: ffi::nvmlDevice_t,
    /// `MIG-...`
    pub uuid: String,
}

impl Gpu<'_> {
    /// All GPU instances, also those without a compute instance, which the enumeration of MIG devices does not show.
    pub fn instances(&self, geometry: &Geometry) -> Result<Vec<Instance>, NvmlError> {
        let mut found: Vec<Instance> = Vec::new();
        for profile in &geometry.profiles {
            found.extend(self.instances_of(profile.id)?);
        }
        found.sort_by_key(|instance| instance.gi_id);
        found.dedup_by_key(|instance| instance.gi_id);
        Ok(found)
    }

    /// The GPU instances of one profile id.
    pub fn instances_of(&self, profile_id: u32) -> Result<Vec<Instance>, NvmlError> {
        // NVML assumes that the array has room for all instances of the profile.
        let mut handles: Vec<ffi::nvmlGpuInstance_t> = vec![null_mut(); GPU_INSTANCES_MAX];
        let mut count = GPU_INSTANCES_MAX as u32;
        let listed = call!(
            self,
            nvmlDeviceGetGpuInstances(self.handle()?, profile_id, handles.as_mut_ptr(), &mut count)
        );
        match listed {
            // MIG mode is off: no instance exists.
            Err(error) if error.has_code(&[codes::NOT_SUPPORTED]) => return Ok(Vec::new()),
            other => other?,
        }
        let mut found = Vec::new();
        for &handle in handles.iter().take(count as usize) {
            // None if the instance was destroyed between both calls. Other programs of gpufrac change no instance
            // under this lock, but an admin may.
            found.extend(self.instance_of(handle)?);
        }
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
            nvmlDeviceGetGpuInstanceById(self.handle()?, gi_id, &mut gi)
        ) {
            Ok(()) => Ok(Some(gi)),
            // MIG mode is off, so no instance exists; or the id is none that this GPU can have.
            Err(error)
                if error.has_code(&[
                    codes::NOT_FOUND,
                    codes::NOT_SUPPORTED,
                    codes::INVALID_ARGUMENT,
                ]) =>
            {
                Ok(None)
            }
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
            // nvml.h has a code for an id that is not used, and one for an id that is invalid: drivers may call those
            // so that an instance of this size cannot have.
            Err(error) if error.has_code(&[codes::NOT_FOUND, codes::INVALID_ARGUMENT]) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The GPU instance with this id; None if there is none.
    pub fn standing(&self, gi_id: u32) -> Result<Option<Standing<'_>>, NvmlError> {
        let Some(gi) = self.gi_handle(gi_id)? else {
            return Ok(None);
        };
        let found = self.instance_of(gi)?;
        Ok(found.map(|instance| Standing {
            gpu: self,
            gi,
            instance,
        }))
    }

    /// The MIG device of this compute instance.
    fn mig_of(
        &self,
        gi_id: u32,
        info: &ffi::nvmlComputeInstanceInfo_t,
    ) -> Result<MigHandle<'_>, NvmlError> {
        // nvml.h calls `device` the parent, but NVIDIA's device plugin for Kubernetes uses it as the MIG device. If
        // it is the MIG device, no further call is needed; the other ways take seconds when many programs ask at the
        // same time.
        if !info.device.is_null() && info.device != self.handle()? {
            let named = self.mig_behind(info.device)?;
            if named.uuid.starts_with("MIG-") {
                return Ok(named);
            }
        }
        match self.mig_by_name(gi_id, info.id)? {
            Some(device) => Ok(device),
            None => self.mig_by_walk(gi_id, info.id),
        }
    }

    fn mig_behind(&self, handle: ffi::nvmlDevice_t) -> Result<MigHandle<'_>, NvmlError> {
        // SAFETY: NVML gave the handle a moment ago, and its library outlives the device.
        let device = unsafe { Device::new(handle, self.session.nvml()?) };
        let uuid = device.uuid();
        let uuid = uuid.map_err(|e| self.failed("nvmlDeviceGetUUID", &e))?;
        Ok(MigHandle {
            gpu: self,
            handle,
            uuid,
        })
    }

    /// The MIG device by the name that it had before MIG devices had UUIDs; None if the driver does not know such
    /// names.
    fn mig_by_name(&self, gi_id: u32, ci_id: u32) -> Result<Option<MigHandle<'_>>, NvmlError> {
        let Ok(name) = CString::new(format!("MIG-{}/{gi_id}/{ci_id}", self.uuid)) else {
            return Ok(None);
        };
        let mut device = null_mut();
        match call!(self, nvmlDeviceGetHandleByUUID(name.as_ptr(), &mut device)) {
            Ok(()) => {}
            Err(error)
                if error.has_code(&[
                    codes::NOT_FOUND,
                    codes::INVALID_ARGUMENT,
                    codes::NOT_SUPPORTED,
                ]) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let device = self.mig_behind(device)?;
        Ok(Some(device).filter(|device| device.uuid.starts_with("MIG-")))
    }

    fn mig_by_walk(&self, gi_id: u32, ci_id: u32) -> Result<MigHandle<'_>, NvmlError> {
        let most = self
            .device()?
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
                // The instance was destroyed between the calls, by an admin who works on another instance.
                Err(error) if error.has_code(&[codes::NOT_FOUND, codes::INVALID_ARGUMENT]) => {}
                other => other?,
            }
            if (its_gi, its_ci) == (gi_id, ci_id) {
                return self.mig_behind(mig);
            }
        }
        Err(NvmlError::Call {
            call: "nvmlDeviceGetMigDeviceHandleByIndex",
            subject: self.of_instance(gi_id, ci_id),
            code: codes::NOT_FOUND,
        })
    }

    fn of_instance(&self, gi_id: u32, ci_id: u32) -> String {
        format!("{self}, GPU instance {gi_id}, compute instance {ci_id}")
    }

    /// The MIG device in a slot; slots may have gaps.
    fn mig_device(&self, index: u32) -> Result<Option<ffi::nvmlDevice_t>, NvmlError> {
        let mut mig = null_mut();
        match call!(
            self,
            nvmlDeviceGetMigDeviceHandleByIndex(self.handle()?, index, &mut mig)
        ) {
            Ok(()) => Ok(Some(mig)),
            Err(error) if error.has_code(&[codes::NOT_FOUND, codes::INVALID_ARGUMENT]) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn ci_info(
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

    /// Creates a GPU instance at an exact position.
    pub fn create_gpu_instance(
        &self,
        profile_id: u32,
        placement: Placement,
    ) -> Result<NewInstance<'_>, NvmlError> {
        let place = ffi::nvmlGpuInstancePlacement_t {
            start: placement.start.into(),
            size: placement.size.into(),
        };
        let mut gi = null_mut();
        call!(
            self,
            nvmlDeviceCreateGpuInstanceWithPlacement(self.handle()?, profile_id, &place, &mut gi)
        )?;
        match self.instance_of(gi)? {
            Some(instance) => Ok(NewInstance {
                gpu: self,
                gi,
                gi_id: instance.gi_id,
            }),
            None => Err(NvmlError::Call {
                call: "nvmlGpuInstanceGetInfo",
                subject: self.to_string(),
                code: codes::NOT_FOUND,
            }),
        }
    }
}

impl NewInstance<'_> {
    /// Creates the one compute instance that fills this GPU instance of `compute_slices`.
    pub fn create_compute_instance(
        &self,
        compute_slices: u8,
    ) -> Result<ComputeInstance, NvmlError> {
        let gpu = self.gpu;
        let kind = ci_profile_enum(compute_slices);
        // In all of NVIDIA's tables the profile id equals its number. If a driver has another id, it refuses, or the
        // new instance has another size.
        let made = match self.try_profile(kind) {
            Ok((ci, info)) if info.placement.size == u32::from(compute_slices) => Ok((ci, info)),
            Ok((ci, info)) => match self.profile_id(kind)? {
                id if id == kind => Ok((ci, info)),
                id => {
                    gone_is_fine(call!(gpu, nvmlComputeInstanceDestroy(ci)))?;
                    self.try_profile(id)
                }
            },
            Err(error) if error.has_code(&[codes::INVALID_ARGUMENT, codes::NOT_SUPPORTED]) => {
                match self.profile_id(kind)? {
                    id if id == kind => Err(error),
                    id => self.try_profile(id),
                }
            }
            Err(error) => Err(error),
        };
        let (_, info) = made?;
        Ok(ComputeInstance {
            ci_id: info.id,
            mig_uuid: gpu.mig_of(self.gi_id, &info)?.uuid,
        })
    }

    fn try_profile(
        &self,
        profile_id: u32,
    ) -> Result<(ffi::nvmlComputeInstance_t, ffi::nvmlComputeInstanceInfo_t), NvmlError> {
        let gpu = self.gpu;
        let mut ci = null_mut();
        call!(
            gpu,
            nvmlGpuInstanceCreateComputeInstance(self.gi, profile_id, &mut ci)
        )?;
        Ok((ci, gpu.ci_info(ci)?))
    }

    /// The profile id for a number of NVML's enumeration.
    fn profile_id(&self, kind: u32) -> Result<u32, NvmlError> {
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
            self.gpu,
            nvmlGpuInstanceGetComputeInstanceProfileInfo(
                self.gi,
                kind,
                ffi::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED,
                &mut profile
            )
        )?;
        Ok(profile.id)
    }
}

impl Standing<'_> {
    /// The ids of its compute instances.
    pub fn compute_instances(&self) -> Result<Vec<u32>, NvmlError> {
        let mut found = Vec::new();
        for ci_id in 0..COMPUTE_INSTANCES_MAX {
            if self.gpu.ci_handle(self.gi, ci_id)?.is_some() {
                found.push(ci_id);
            }
        }
        Ok(found)
    }

    /// The MIG device of a compute instance; None if there is none.
    pub fn mig_device(&self, ci_id: u32) -> Result<Option<MigHandle<'_>>, NvmlError> {
        let Some(ci) = self.gpu.ci_handle(self.gi, ci_id)? else {
            return Ok(None);
        };
        let info = self.gpu.ci_info(ci)?;
        self.gpu.mig_of(self.instance.gi_id, &info).map(Some)
    }

    /// Destroys a compute instance; success if it does not exist. The caller must have checked that it may be
    /// destroyed.
    pub fn destroy_compute_instance(&self, ci_id: u32) -> Result<(), NvmlError> {
        let gpu = self.gpu;
        let Some(ci) = gpu.ci_handle(self.gi, ci_id)? else {
            return Ok(());
        };
        match gone_is_fine(call!(gpu, nvmlComputeInstanceDestroy(ci))) {
            // The driver also answers in this way if an admin destroyed the instance and the handle is stale.
            Err(error) if error.has_code(&[codes::INVALID_ARGUMENT]) => {
                match gpu.ci_handle(self.gi, ci_id)? {
                    None => Ok(()),
                    Some(_) => Err(error),
                }
            }
            other => other,
        }
    }

    /// Destroys the GPU instance, whose compute instances are destroyed already; success if it does not exist.
    pub fn destroy(&self) -> Result<(), NvmlError> {
        let gpu = self.gpu;
        match gone_is_fine(call!(gpu, nvmlGpuInstanceDestroy(self.gi))) {
            Err(error) if error.has_code(&[codes::INVALID_ARGUMENT]) => {
                match gpu.gi_handle(self.instance.gi_id)? {
                    None => Ok(()),
                    Some(_) => Err(error),
                }
            }
            other => other,
        }
    }
}

impl MigHandle<'_> {
    /// Device memory in use on the instance. Errors: the driver does not answer.
    pub fn memory_used(&self) -> Result<MemoryMib, NvmlError> {
        let gpu = self.gpu;
        // SAFETY: NVML gave the handle when it was asked for this instance, and its library outlives the device.
        let device = unsafe { Device::new(self.handle, gpu.session.nvml()?) };
        let memory = device.memory_info();
        let memory = memory.map_err(|e| gpu.failed("nvmlDeviceGetMemoryInfo", &e))?;
        Ok(MemoryMib(memory.used >> 20))
    }
}

fn gone_is_fine(result: Result<(), NvmlError>) -> Result<(), NvmlError> {
    match result {
        Err(error) if error.has_code(&[codes::NOT_FOUND]) => Ok(()),
        other => other,
    }
}

/// `NVML_COMPUTE_INSTANCE_PROFILE_*` of the compute instance that fills a GPU instance.
pub fn ci_profile_enum(compute_slices: u8) -> u32 {
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
