//! Single calls: each function here is one call of NVML, whose code is passed on as it is. They are for programs that
//! measure the driver, and for the other modules of this crate, which interpret codes.

use std::ffi::CString;
use std::marker::PhantomData;
use std::ptr::null_mut;

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::geometry::Placement;
use gpufrac_core::lease::MigSlice;
use nvml_wrapper::Device;

use crate::error::codes;
use crate::geometry::placement_of;
use crate::telemetry::{Process, compute_processes};
use crate::{Gpu, NvmlError, Session, call, ffi};

/// An existing GPU instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// The GPU instance id; the driver reuses it.
    pub gi_id: u32,
    pub profile_id: u32,
    pub placement: Placement,
}

impl Instance {
    /// Whether it has the profile and the position of a slice.
    pub fn is_at(&self, mig: &MigSlice) -> bool {
        (self.profile_id, self.placement) == (mig.profile_id, mig.placement)
    }
}

/// More than the most GPU instances of a GPU.
const GPU_INSTANCES_MAX: usize = 64;

/// NVML's handle of a device: a GPU or a MIG device.
#[derive(Clone, Copy)]
pub struct DeviceHandle<'s>(pub(crate) ffi::nvmlDevice_t, PhantomData<&'s Session>);

#[derive(Clone, Copy)]
pub struct GpuInstanceHandle<'s>(ffi::nvmlGpuInstance_t, PhantomData<&'s Session>);

#[derive(Clone, Copy)]
pub struct ComputeInstanceHandle<'s>(ffi::nvmlComputeInstance_t, PhantomData<&'s Session>);

/// What `nvmlComputeInstanceGetInfo_v2` answers.
pub struct ComputeInstanceInfo<'s> {
    /// The compute instance id.
    pub ci_id: u32,
    /// Its compute slices.
    pub slices: u32,
    /// The MIG device, or the GPU; sources differ.
    pub device: DeviceHandle<'s>,
}

/// A profile of compute instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComputeProfile {
    /// Its id, which creation needs.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    pub multiprocessors: u32,
}

/// The state of a GPU's connection to the fabric of its NVSwitches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fabric {
    /// `NVML_GPU_FABRIC_STATE_*` of nvml.h: 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub state: u32,
    /// A return code of NVML.
    pub status: u32,
}

/// The single calls on a GPU. The errors of all of them are NVML's codes.
#[derive(Clone, Copy)]
pub struct Calls<'g, 's> {
    gpu: &'g Gpu<'s>,
}

impl<'s> Gpu<'s> {
    /// The single calls.
    pub fn calls(&self) -> Calls<'_, 's> {
        Calls { gpu: self }
    }
}

impl<'s> Calls<'_, 's> {
    fn device(&self) -> Result<ffi::nvmlDevice_t, NvmlError> {
        self.gpu.handle()
    }

    fn wrapped(&self, device: DeviceHandle<'s>) -> Result<Device<'s>, NvmlError> {
        // SAFETY: NVML gave the handle in this session, and its library outlives the device.
        Ok(unsafe { Device::new(device.0, self.gpu.session.nvml()?) })
    }

    /// The GPU itself.
    pub fn itself(&self) -> Result<DeviceHandle<'s>, NvmlError> {
        Ok(DeviceHandle(self.device()?, PhantomData))
    }

    /// `nvmlDeviceGetHandleByIndex_v2` of the GPU's index.
    pub fn by_index(&self) -> Result<DeviceHandle<'s>, NvmlError> {
        let mut device = null_mut();
        let index = self.gpu.index.0;
        call!(self.gpu, nvmlDeviceGetHandleByIndex_v2(index, &mut device))?;
        Ok(DeviceHandle(device, PhantomData))
    }

    /// `nvmlDeviceGetHandleByPciBusId_v2`.
    pub fn by_pci(&self, pci: &str) -> Result<DeviceHandle<'s>, NvmlError> {
        let name = self.text("nvmlDeviceGetHandleByPciBusId_v2", pci)?;
        let mut device = null_mut();
        call!(
            self.gpu,
            nvmlDeviceGetHandleByPciBusId_v2(name.as_ptr(), &mut device)
        )?;
        Ok(DeviceHandle(device, PhantomData))
    }

    /// `nvmlDeviceGetHandleByUUID`.
    pub fn by_uuid(&self, uuid: &str) -> Result<DeviceHandle<'s>, NvmlError> {
        let name = self.text("nvmlDeviceGetHandleByUUID", uuid)?;
        let mut device = null_mut();
        call!(
            self.gpu,
            nvmlDeviceGetHandleByUUID(name.as_ptr(), &mut device)
        )?;
        Ok(DeviceHandle(device, PhantomData))
    }

    fn text(&self, call: &'static str, text: &str) -> Result<CString, NvmlError> {
        CString::new(text).map_err(|_| NvmlError::Call {
            call,
            subject: self.gpu.to_string(),
            code: codes::INVALID_ARGUMENT,
        })
    }

    /// `nvmlDeviceGetMigDeviceHandleByIndex`.
    pub fn mig_by_index(&self, index: u32) -> Result<DeviceHandle<'s>, NvmlError> {
        let mut mig = null_mut();
        call!(
            self.gpu,
            nvmlDeviceGetMigDeviceHandleByIndex(self.device()?, index, &mut mig)
        )?;
        Ok(DeviceHandle(mig, PhantomData))
    }

    /// `nvmlDeviceGetMaxMigDeviceCount`.
    pub fn mig_slots(&self) -> Result<u32, NvmlError> {
        let mut count = 0;
        call!(
            self.gpu,
            nvmlDeviceGetMaxMigDeviceCount(self.device()?, &mut count)
        )?;
        Ok(count)
    }

    /// `nvmlDeviceGetUUID`.
    pub fn uuid(&self, device: DeviceHandle<'s>) -> Result<String, NvmlError> {
        let uuid = self.wrapped(device)?.uuid();
        uuid.map_err(|e| self.gpu.failed("nvmlDeviceGetUUID", &e))
    }

    /// `nvmlDeviceGetGpuInstanceId` of a MIG device.
    pub fn gpu_instance_of(&self, mig: DeviceHandle<'s>) -> Result<u32, NvmlError> {
        let mut id = u32::MAX;
        call!(self.gpu, nvmlDeviceGetGpuInstanceId(mig.0, &mut id))?;
        Ok(id)
    }

    /// `nvmlDeviceGetMemoryInfo`: all memory, and the memory in use.
    pub fn memory(&self, device: DeviceHandle<'s>) -> Result<(MemoryMib, MemoryMib), NvmlError> {
        let memory = self.wrapped(device)?.memory_info();
        let memory = memory.map_err(|e| self.gpu.failed("nvmlDeviceGetMemoryInfo", &e))?;
        Ok((MemoryMib(memory.total >> 20), MemoryMib(memory.used >> 20)))
    }

    /// `nvmlDeviceGetComputeRunningProcesses_v3`.
    pub fn processes(&self, device: DeviceHandle<'s>) -> Result<Vec<Process>, NvmlError> {
        let processes = compute_processes(&self.wrapped(device)?);
        processes.map_err(|e| {
            self.gpu
                .failed("nvmlDeviceGetComputeRunningProcesses_v3", &e)
        })
    }

    /// `nvmlDeviceGetMigMode`: the mode now, and the mode after a reset.
    pub fn mig_mode(&self) -> Result<(bool, bool), NvmlError> {
        let (mut now, mut then) = (0, 0);
        call!(
            self.gpu,
            nvmlDeviceGetMigMode(self.device()?, &mut now, &mut then)
        )?;
        Ok((now == 1, then == 1))
    }

    /// `nvmlDeviceSetMigMode`: the activation status, which is a return code of NVML.
    pub fn set_mig_mode(&self, on: bool) -> Result<u32, NvmlError> {
        let mut status = 0;
        call!(
            self.gpu,
            nvmlDeviceSetMigMode(self.device()?, u32::from(on), &mut status)
        )?;
        Ok(status)
    }

    /// `nvmlDeviceGetGpuFabricInfo`.
    pub fn fabric(&self) -> Result<Fabric, NvmlError> {
        let mut info = ffi::nvmlGpuFabricInfo_t {
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: 0,
        };
        call!(
            self.gpu,
            nvmlDeviceGetGpuFabricInfo(self.device()?, &mut info)
        )?;
        Ok(Fabric {
            state: info.state.into(),
            status: info.status,
        })
    }

    /// `nvmlDeviceCreateGpuInstanceWithPlacement`.
    pub fn create_gpu_instance(
        &self,
        profile_id: u32,
        placement: Placement,
    ) -> Result<GpuInstanceHandle<'s>, NvmlError> {
        let place = ffi::nvmlGpuInstancePlacement_t {
            start: placement.start.into(),
            size: placement.size.into(),
        };
        let mut gi = null_mut();
        call!(
            self.gpu,
            nvmlDeviceCreateGpuInstanceWithPlacement(self.device()?, profile_id, &place, &mut gi)
        )?;
        Ok(GpuInstanceHandle(gi, PhantomData))
    }

    /// `nvmlGpuInstanceGetInfo`.
    pub fn gpu_instance_info(&self, gi: GpuInstanceHandle<'s>) -> Result<Instance, NvmlError> {
        let mut info = ffi::nvmlGpuInstanceInfo_t {
            device: null_mut(),
            id: 0,
            profileId: 0,
            placement: ffi::nvmlGpuInstancePlacement_t { start: 0, size: 0 },
        };
        call!(self.gpu, nvmlGpuInstanceGetInfo(gi.0, &mut info))?;
        Ok(Instance {
            gi_id: info.id,
            profile_id: info.profileId,
            placement: placement_of(&info.placement),
        })
    }

    /// `nvmlDeviceGetGpuInstanceById`.
    pub fn gpu_instance_by_id(&self, gi_id: u32) -> Result<GpuInstanceHandle<'s>, NvmlError> {
        let mut gi = null_mut();
        call!(
            self.gpu,
            nvmlDeviceGetGpuInstanceById(self.device()?, gi_id, &mut gi)
        )?;
        Ok(GpuInstanceHandle(gi, PhantomData))
    }

    /// `nvmlDeviceGetGpuInstances`.
    pub fn gpu_instances(&self, profile_id: u32) -> Result<Vec<GpuInstanceHandle<'s>>, NvmlError> {
        // NVML assumes that the array has room for all instances of the profile.
        let mut handles = vec![null_mut(); GPU_INSTANCES_MAX];
        let mut count = GPU_INSTANCES_MAX as u32;
        call!(
            self.gpu,
            nvmlDeviceGetGpuInstances(self.device()?, profile_id, handles.as_mut_ptr(), &mut count)
        )?;
        let found = handles.into_iter().take(count as usize);
        Ok(found.map(|gi| GpuInstanceHandle(gi, PhantomData)).collect())
    }

    /// `nvmlDeviceGetGpuInstanceRemainingCapacity`.
    pub fn remaining_capacity(&self, profile_id: u32) -> Result<u32, NvmlError> {
        let mut count = 0;
        call!(
            self.gpu,
            nvmlDeviceGetGpuInstanceRemainingCapacity(self.device()?, profile_id, &mut count)
        )?;
        Ok(count)
    }

    /// `nvmlGpuInstanceDestroy`.
    pub fn destroy_gpu_instance(&self, gi: GpuInstanceHandle<'s>) -> Result<(), NvmlError> {
        call!(self.gpu, nvmlGpuInstanceDestroy(gi.0))
    }

    /// `nvmlGpuInstanceGetComputeInstanceProfileInfo` of the profile with the number `kind` in nvml.h.
    pub fn compute_profile(
        &self,
        gi: GpuInstanceHandle<'s>,
        kind: u32,
    ) -> Result<ComputeProfile, NvmlError> {
        let mut info = ffi::nvmlComputeInstanceProfileInfo_t {
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
        let shared = ffi::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED;
        call!(
            self.gpu,
            nvmlGpuInstanceGetComputeInstanceProfileInfo(gi.0, kind, shared, &mut info)
        )?;
        Ok(ComputeProfile {
            id: info.id,
            slices: info.sliceCount,
            multiprocessors: info.multiprocessorCount,
        })
    }

    /// `nvmlGpuInstanceCreateComputeInstance`.
    pub fn create_compute_instance(
        &self,
        gi: GpuInstanceHandle<'s>,
        profile_id: u32,
    ) -> Result<ComputeInstanceHandle<'s>, NvmlError> {
        let mut ci = null_mut();
        call!(
            self.gpu,
            nvmlGpuInstanceCreateComputeInstance(gi.0, profile_id, &mut ci)
        )?;
        Ok(ComputeInstanceHandle(ci, PhantomData))
    }

    /// `nvmlComputeInstanceGetInfo_v2`.
    pub fn compute_instance_info(
        &self,
        ci: ComputeInstanceHandle<'s>,
    ) -> Result<ComputeInstanceInfo<'s>, NvmlError> {
        let mut info = ffi::nvmlComputeInstanceInfo_t {
            device: null_mut(),
            gpuInstance: null_mut(),
            id: 0,
            profileId: 0,
            placement: ffi::nvmlComputeInstancePlacement_t { start: 0, size: 0 },
        };
        call!(self.gpu, nvmlComputeInstanceGetInfo_v2(ci.0, &mut info))?;
        Ok(ComputeInstanceInfo {
            ci_id: info.id,
            slices: info.placement.size,
            device: DeviceHandle(info.device, PhantomData),
        })
    }

    /// `nvmlGpuInstanceGetComputeInstanceById`.
    pub fn compute_instance_by_id(
        &self,
        gi: GpuInstanceHandle<'s>,
        ci_id: u32,
    ) -> Result<ComputeInstanceHandle<'s>, NvmlError> {
        let mut ci = null_mut();
        call!(
            self.gpu,
            nvmlGpuInstanceGetComputeInstanceById(gi.0, ci_id, &mut ci)
        )?;
        Ok(ComputeInstanceHandle(ci, PhantomData))
    }

    /// `nvmlComputeInstanceDestroy`.
    pub fn destroy_compute_instance(&self, ci: ComputeInstanceHandle<'s>) -> Result<(), NvmlError> {
        call!(self.gpu, nvmlComputeInstanceDestroy(ci.0))
    }
}
