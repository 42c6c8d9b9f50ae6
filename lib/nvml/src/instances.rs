//! The MIG instances of a GPU: list, create, destroy.

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::geometry::{Geometry, Placement};

use crate::error::codes;
use crate::single::{ComputeInstanceHandle, ComputeInstanceInfo, DeviceHandle, GpuInstanceHandle};
use crate::{Gpu, Instance, NvmlError, call, ffi};

/// The most compute instances of a GPU instance.
const COMPUTE_INSTANCES_MAX: u32 = 8;

/// A compute instance in a GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeInstance {
    /// The compute instance id, unique in its GPU instance.
    pub ci_id: u32,
    /// `MIG-...`; an instance that is made again at the same place may have it again.
    pub mig_uuid: String,
}

/// A new GPU instance, without a compute instance.
pub struct NewInstance<'g> {
    gpu: &'g Gpu<'g>,
    gi: GpuInstanceHandle<'g>,
    /// The GPU instance id.
    pub gi_id: u32,
}

/// An existing GPU instance, by a handle. It must be dropped before the GPU's lock is.
pub struct Standing<'g> {
    gpu: &'g Gpu<'g>,
    gi: GpuInstanceHandle<'g>,
    /// Its id, profile and position.
    pub instance: Instance,
}

/// A MIG device, which is a compute instance as CUDA sees it.
pub struct MigHandle<'g> {
    gpu: &'g Gpu<'g>,
    handle: DeviceHandle<'g>,
    /// `MIG-...`
    pub uuid: String,
}

impl<'s> Gpu<'s> {
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
        // MIG mode is off: no instance exists.
        let handles = absent(
            self.calls().gpu_instances(profile_id),
            &[codes::NOT_SUPPORTED],
        )?;
        let mut found = Vec::new();
        for handle in handles.unwrap_or_default() {
            // None if the instance was destroyed between both calls. Other programs of gpufrac change no instance
            // under this lock, but an admin may.
            found.extend(self.instance_of(handle)?);
        }
        Ok(found)
    }

    fn instance_of(&self, gi: GpuInstanceHandle<'s>) -> Result<Option<Instance>, NvmlError> {
        absent(self.calls().gpu_instance_info(gi), &[codes::NOT_FOUND])
    }

    fn gi_handle(&self, gi_id: u32) -> Result<Option<GpuInstanceHandle<'s>>, NvmlError> {
        // MIG mode is off, so no instance exists; or the id is none that this GPU can have.
        let none = [
            codes::NOT_FOUND,
            codes::NOT_SUPPORTED,
            codes::INVALID_ARGUMENT,
        ];
        absent(self.calls().gpu_instance_by_id(gi_id), &none)
    }

    fn ci_handle(
        &self,
        gi: GpuInstanceHandle<'s>,
        ci_id: u32,
    ) -> Result<Option<ComputeInstanceHandle<'s>>, NvmlError> {
        // nvml.h has a code for an id that is not used, and one for an id that is invalid: drivers may call those so
        // that an instance of this size cannot have.
        let none = [codes::NOT_FOUND, codes::INVALID_ARGUMENT];
        absent(self.calls().compute_instance_by_id(gi, ci_id), &none)
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
        info: &ComputeInstanceInfo<'s>,
    ) -> Result<MigHandle<'_>, NvmlError> {
        // nvml.h calls `device` the parent, but NVIDIA's device plugin for Kubernetes uses it as the MIG device. If
        // it is the MIG device, no further call is needed; the other ways take seconds when many programs ask at the
        // same time.
        if !info.device.0.is_null() && info.device.0 != self.handle()? {
            let named = self.mig_behind(info.device)?;
            if named.uuid.starts_with("MIG-") {
                return Ok(named);
            }
        }
        match self.mig_by_name(gi_id, info.ci_id)? {
            Some(device) => Ok(device),
            None => self.mig_by_walk(gi_id, info.ci_id),
        }
    }

    fn mig_behind(&self, handle: DeviceHandle<'s>) -> Result<MigHandle<'_>, NvmlError> {
        Ok(MigHandle {
            gpu: self,
            handle,
            uuid: self.calls().uuid(handle)?,
        })
    }

    /// The MIG device by the name that it had before MIG devices had UUIDs; None if the driver does not know such
    /// names.
    fn mig_by_name(&self, gi_id: u32, ci_id: u32) -> Result<Option<MigHandle<'_>>, NvmlError> {
        let name = format!("MIG-{}/{gi_id}/{ci_id}", self.uuid);
        let none = [
            codes::NOT_FOUND,
            codes::INVALID_ARGUMENT,
            codes::NOT_SUPPORTED,
        ];
        let Some(device) = absent(self.calls().by_uuid(&name), &none)? else {
            return Ok(None);
        };
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
            let ids = call!(self, nvmlDeviceGetGpuInstanceId(mig.0, &mut its_gi))
                .and_then(|()| call!(self, nvmlDeviceGetComputeInstanceId(mig.0, &mut its_ci)));
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
    fn mig_device(&self, index: u32) -> Result<Option<DeviceHandle<'s>>, NvmlError> {
        let none = [codes::NOT_FOUND, codes::INVALID_ARGUMENT];
        absent(self.calls().mig_by_index(index), &none)
    }

    /// Creates a GPU instance at an exact position.
    pub fn create_gpu_instance(
        &self,
        profile_id: u32,
        placement: Placement,
    ) -> Result<NewInstance<'_>, NvmlError> {
        let gi = self.calls().create_gpu_instance(profile_id, placement)?;
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

impl<'g> NewInstance<'g> {
    /// Creates the one compute instance that fills this GPU instance of `compute_slices`.
    pub fn create_compute_instance(
        &self,
        compute_slices: u8,
    ) -> Result<ComputeInstance, NvmlError> {
        let calls = self.gpu.calls();
        let kind = ci_profile_enum(compute_slices);
        // In all of NVIDIA's tables the profile id equals its number. If a driver has another id, it refuses, or the
        // new instance has another size.
        let made = match self.try_profile(kind) {
            Ok((ci, info)) if info.slices == u32::from(compute_slices) => Ok((ci, info)),
            Ok((ci, info)) => match calls.compute_profile(self.gi, kind)?.id {
                id if id == kind => Ok((ci, info)),
                id => {
                    gone_is_fine(calls.destroy_compute_instance(ci))?;
                    self.try_profile(id)
                }
            },
            Err(error) if error.has_code(&[codes::INVALID_ARGUMENT, codes::NOT_SUPPORTED]) => {
                match calls.compute_profile(self.gi, kind)?.id {
                    id if id == kind => Err(error),
                    id => self.try_profile(id),
                }
            }
            Err(error) => Err(error),
        };
        let (_, info) = made?;
        Ok(ComputeInstance {
            ci_id: info.ci_id,
            mig_uuid: self.gpu.mig_of(self.gi_id, &info)?.uuid,
        })
    }

    fn try_profile(
        &self,
        profile_id: u32,
    ) -> Result<(ComputeInstanceHandle<'g>, ComputeInstanceInfo<'g>), NvmlError> {
        let calls = self.gpu.calls();
        let ci = calls.create_compute_instance(self.gi, profile_id)?;
        Ok((ci, calls.compute_instance_info(ci)?))
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
        let info = self.gpu.calls().compute_instance_info(ci)?;
        self.gpu.mig_of(self.instance.gi_id, &info).map(Some)
    }

    /// Destroys a compute instance; success if it does not exist. The caller must have checked that it may be
    /// destroyed.
    pub fn destroy_compute_instance(&self, ci_id: u32) -> Result<(), NvmlError> {
        let gpu = self.gpu;
        let Some(ci) = gpu.ci_handle(self.gi, ci_id)? else {
            return Ok(());
        };
        match gone_is_fine(gpu.calls().destroy_compute_instance(ci)) {
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
        match gone_is_fine(gpu.calls().destroy_gpu_instance(self.gi)) {
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
        let (_, used) = self.gpu.calls().memory(self.handle)?;
        Ok(used)
    }
}

/// What a call found; None if it answered with one of the codes `none`. If the GPU itself is not found, that is an
/// error of any call on it.
fn absent<T>(found: Result<T, NvmlError>, none: &[u32]) -> Result<Option<T>, NvmlError> {
    match found {
        Err(error) if error.has_code(none) && !error.is_of_gpu() => Ok(None),
        other => other.map(Some),
    }
}

fn gone_is_fine(result: Result<(), NvmlError>) -> Result<(), NvmlError> {
    absent(result, &[codes::NOT_FOUND]).map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::GET_GPU;

    #[test]
    fn a_gpu_that_is_gone_is_not_a_gpu_without_the_instance() {
        let answer = |call, code| -> Result<(), NvmlError> {
            let subject = "GPU 0".to_owned();
            Err(NvmlError::Call {
                call,
                subject,
                code,
            })
        };
        let of_instance = |code| {
            absent(
                answer("nvmlDeviceGetGpuInstanceById", code),
                &[codes::NOT_FOUND],
            )
        };
        assert!(matches!(of_instance(codes::NOT_FOUND), Ok(None)));
        assert!(of_instance(codes::UNKNOWN).is_err());
        assert!(absent(answer(GET_GPU, codes::NOT_FOUND), &[codes::NOT_FOUND]).is_err());
    }
}
