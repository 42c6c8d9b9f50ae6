//! Compute instances.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::{Out, nvml, tagged, text_field};
use crate::code::{Answer, Code};
use crate::geometry::ComputeProfile;
use crate::node::{Gpu, GpuInstance, MigDeviceBy};
use crate::processes;
use crate::session::{Call, Handle};

type GpuInstanceHandle = sys::nvmlGpuInstance_t;
type ComputeInstanceHandle = sys::nvmlComputeInstance_t;
type Placement = sys::nvmlComputeInstancePlacement_t;

/// The profile of this `NVML_COMPUTE_INSTANCE_PROFILE_*`, which is also its id.
fn profile_of_kind(
    gpu: &Gpu,
    gi: &GpuInstance,
    kind: c_uint,
    engine: c_uint,
) -> Answer<ComputeProfile> {
    if engine != sys::NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED || kind > 8 {
        return Err(Code::INVALID_ARGUMENT);
    }
    let mut profiles = gpu.compute_profiles(gi)?.into_iter();
    profiles
        .find(|profile| profile.id == kind)
        .ok_or(Code::NOT_SUPPORTED)
}

fn profile(gpu: &Gpu, gi: &GpuInstance, id: c_uint) -> Answer<ComputeProfile> {
    let mut profiles = gpu.compute_profiles(gi)?.into_iter();
    profiles
        .find(|profile| profile.id == id)
        .ok_or(Code::INVALID_ARGUMENT)
}

fn remaining(gi: &GpuInstance, profile: &ComputeProfile) -> c_uint {
    let free = |start: u32| {
        let mut others = gi.compute.iter();
        others
            .all(|other| start + profile.slices <= other.start || other.start + other.size <= start)
    };
    // Positions of one profile never overlap.
    profile.starts.iter().filter(|start| free(**start)).count() as c_uint
}

/// A struct of a profile: the fields that all versions have, and the further ones.
macro_rules! profile_info {
    ($name:ident, $profile:expr, $of:expr, $($more:tt)*) => {
        sys::$name {
            id: $profile.id,
            sliceCount: $profile.slices,
            instanceCount: $profile.max,
            multiprocessorCount: $profile.multiprocessors,
            sharedCopyEngineCount: $of.engines.copy,
            sharedDecoderCount: $of.engines.decode,
            sharedEncoderCount: $of.engines.encode,
            sharedJpegCount: $of.engines.jpeg,
            sharedOfaCount: $of.engines.ofa,
            $($more)*
        }
    };
}

fn create(
    instance: GpuInstanceHandle,
    profile: c_uint,
    placement: Option<(u32, u32)>,
    out: Out<ComputeInstanceHandle>,
) -> Answer {
    let call = Call::new()?;
    let (index, _, gi) = call.gpu_instance(instance)?;
    call.administrator()?;
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let (id, serial) = (gi.id, gi.serial);
    let serial = call.update(|node| {
        if node.gpus[index]
            .instance(id)
            .is_none_or(|now| now.serial != serial)
        {
            return Err(Code::NOT_FOUND);
        }
        let compute = node.create_compute_instance(index, id, profile, placement)?;
        Ok(compute.serial)
    })?;
    out.set(call.handle(Handle::ComputeInstance(serial)))
}

nvml! {
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: GpuInstanceHandle,
        kind: c_uint,
        engine: c_uint,
        info: Out<sys::nvmlComputeInstanceProfileInfo_t>,
    ) {
        let call = Call::new()?;
        let (_, gpu, gi) = call.gpu_instance(instance)?;
        let profile = profile_of_kind(gpu, gi, kind, engine)?;
        info.set(profile_info!(nvmlComputeInstanceProfileInfo_t, profile, gpu.profile_of(gi)?,))
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: GpuInstanceHandle,
        kind: c_uint,
        engine: c_uint,
        info: Out<sys::nvmlComputeInstanceProfileInfo_v2_t>,
    ) {
        let call = Call::new()?;
        let (_, gpu, gi) = call.gpu_instance(instance)?;
        let profile = profile_of_kind(gpu, gi, kind, engine)?;
        let of = gpu.profile_of(gi)?;
        let name = text_field(&format!("MIG {}", profile.name));
        let version = Out(info.0.cast::<c_uint>()).get()?;
        if version == tagged::<sys::nvmlComputeInstanceProfileInfo_v2_t>(2) {
            info.set(profile_info!(nvmlComputeInstanceProfileInfo_v2_t, profile, of, version, name))
        } else if version == tagged::<sys::nvmlComputeInstanceProfileInfo_v3_t>(3) {
            let info = Out(info.0.cast());
            info.set(profile_info!(nvmlComputeInstanceProfileInfo_v3_t, profile, of, version, name, capabilities: 0))
        } else {
            Err(Code::ARGUMENT_VERSION_MISMATCH)
        }
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        instance: GpuInstanceHandle,
        id: c_uint,
        count: Out<c_uint>,
    ) {
        let call = Call::new()?;
        let (_, gpu, gi) = call.gpu_instance(instance)?;
        call.administrator()?;
        count.set(remaining(gi, &profile(gpu, gi, id)?))
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: GpuInstanceHandle,
        id: c_uint,
        placements: Out<Placement>,
        count: Out<c_uint>,
    ) {
        let call = Call::new()?;
        let (_, gpu, gi) = call.gpu_instance(instance)?;
        call.administrator()?;
        let profile = profile(gpu, gi, id)?;
        let starts = profile.starts.iter();
        let all: Vec<_> = starts
            .map(|&start| Placement { start, size: profile.slices })
            .collect();
        if placements.is_null() {
            return count.set(all.len() as c_uint);
        }
        placements.fill(count, &all)
    }

    fn nvmlGpuInstanceCreateComputeInstance(
        instance: GpuInstanceHandle,
        profile: c_uint,
        compute: Out<ComputeInstanceHandle>,
    ) {
        create(instance, profile, None, compute)
    }

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: GpuInstanceHandle,
        profile: c_uint,
        placement: Out<Placement>,
        compute: Out<ComputeInstanceHandle>,
    ) {
        let placement = placement.get()?;
        create(instance, profile, Some((placement.start, placement.size)), compute)
    }

    fn nvmlComputeInstanceDestroy(compute: ComputeInstanceHandle) {
        let call = Call::new()?;
        let (index, _, gi, ci) = call.compute_instance(compute)?;
        call.administrator()?;
        let (gi_id, id, serial) = (gi.id, ci.id, ci.serial);
        let root = call.root();
        call.update(|node| {
            let live = processes::live(root)?;
            let on_it = |process: &processes::Process| {
                process.instance.is_some_and(|(_, ci)| ci == serial)
            };
            let gpu = &mut node.gpus[index];
            let now = gpu.instance(gi_id).and_then(|gi| gi.compute.iter().find(|ci| ci.id == id));
            let now = now.filter(|now| now.serial == serial).ok_or(Code::NOT_FOUND)?;
            let busy = live.iter().any(on_it) || processes::is_held(root, &now.uuid);
            gpu.destroy_compute_instance(gi_id, id, busy)
        })
    }

    fn nvmlGpuInstanceGetComputeInstances(
        instance: GpuInstanceHandle,
        id: c_uint,
        computes: Out<ComputeInstanceHandle>,
        count: Out<c_uint>,
    ) {
        let call = Call::new()?;
        let (_, gpu, gi) = call.gpu_instance(instance)?;
        call.administrator()?;
        profile(gpu, gi, id)?;
        let of_profile = gi.compute.iter().filter(|ci| ci.profile == id);
        let handles: Vec<ComputeInstanceHandle> = of_profile
            .map(|ci| call.handle(Handle::ComputeInstance(ci.serial)))
            .collect();
        count.set(handles.len() as c_uint)?;
        computes.write_all(&handles)
    }

    fn nvmlGpuInstanceGetComputeInstanceById(
        instance: GpuInstanceHandle,
        id: c_uint,
        compute: Out<ComputeInstanceHandle>,
    ) {
        let call = Call::new()?;
        let (_, gpu, gi) = call.gpu_instance(instance)?;
        call.administrator()?;
        let can_be = id < gpu.profile_of(gi)?.slices || !call.node.manners.invalid_ids;
        let absent = if can_be { Code::NOT_FOUND } else { Code::INVALID_ARGUMENT };
        let ci = gi.compute.iter().find(|ci| ci.id == id).ok_or(absent)?;
        compute.set(call.handle(Handle::ComputeInstance(ci.serial)))
    }

    fn nvmlComputeInstanceGetInfo_v2(
        compute: ComputeInstanceHandle,
        info: Out<sys::nvmlComputeInstanceInfo_t>,
    ) {
        let call = Call::new()?;
        let (index, _, gi, ci) = call.compute_instance(compute)?;
        let device = match call.node.mig_device_by {
            MigDeviceBy::Info => Handle::MigDevice(ci.serial),
            MigDeviceBy::Name | MigDeviceBy::Walk => Handle::Gpu(index),
        };
        info.set(sys::nvmlComputeInstanceInfo_t {
            device: call.handle(device),
            gpuInstance: call.handle(Handle::GpuInstance(gi.serial)),
            id: ci.id,
            profileId: ci.profile,
            placement: Placement { start: ci.start, size: ci.size },
        })
    }
}
