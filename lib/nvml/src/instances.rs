//! What stands on a GPU, and how it is made and destroyed.

use std::ptr::null_mut;

use gpufrac_core::geometry::{Geometry, Placement};
use nvml_wrapper::Device;

use crate::error::codes;
use crate::geometry::placement_of;
use crate::{Gpu, NvmlError, call, ffi};

/// A GPU instance holds at most this many compute instances.
const COMPUTE_INSTANCES_MAX: u32 = 8;
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

impl Gpu<'_> {
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
    pub(crate) fn mig_device(&self, index: u32) -> Result<Option<ffi::nvmlDevice_t>, NvmlError> {
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

fn gone_is_fine(result: Result<(), NvmlError>) -> Result<(), NvmlError> {
    match result {
        Err(error) if error.has_code(&[codes::NOT_FOUND]) => Ok(()),
        other => other,
    }
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
