//! MIG mode, GPU instances, and MIG devices.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::{Out, device, nvml, tagged, text_field};
use crate::code::{Answer, Code};
use crate::geometry::GpuProfile;
use crate::model::Architecture;
use crate::node::Gpu;
use crate::processes;
use crate::session::{Call, Handle};

type DeviceHandle = sys::nvmlDevice_t;
type GpuInstanceHandle = sys::nvmlGpuInstance_t;
type Placement = sys::nvmlGpuInstancePlacement_t;

fn profile(gpu: &Gpu, id: c_uint) -> Answer<&'static GpuProfile> {
    let geometry = gpu.mig_geometry()?;
    geometry.profile(id).ok_or(Code::INVALID_ARGUMENT)
}

/// Profiles and placements are reported with MIG mode on or off.
fn profile_of_kind(gpu: &Gpu, kind: c_uint) -> Answer<&'static GpuProfile> {
    let geometry = gpu.geometry().ok_or(Code::NOT_SUPPORTED)?;
    if kind >= 0x12 {
        return Err(Code::INVALID_ARGUMENT);
    }
    geometry.profile_of_kind(kind).ok_or(Code::NOT_SUPPORTED)
}

/// P2P between instances came with Blackwell's drivers; older GPUs do not have it.
fn peers(gpu: &Gpu) -> c_uint {
    c_uint::from(gpu.model().architecture >= Architecture::Blackwell)
}

fn profile_name(profile: &GpuProfile) -> [std::ffi::c_char; 96] {
    text_field(&format!("MIG {}", profile.name))
}

/// A struct of a profile: the fields that all versions have, and the further ones.
macro_rules! profile_info {
    ($name:ident, $profile:expr, $($more:tt)*) => {
        sys::$name {
            id: $profile.id,
            sliceCount: $profile.slices,
            instanceCount: $profile.max,
            multiprocessorCount: $profile.multiprocessors,
            copyEngineCount: $profile.engines.copy,
            decoderCount: $profile.engines.decode,
            encoderCount: $profile.engines.encode,
            jpegCount: $profile.engines.jpeg,
            ofaCount: $profile.engines.ofa,
            memorySizeMB: $profile.memory_mib,
            $($more)*
        }
    };
}

/// Fills the struct in the version that the caller set.
fn versioned_profile(
    gpu: &Gpu,
    profile: &GpuProfile,
    out: Out<sys::nvmlGpuInstanceProfileInfo_v2_t>,
) -> Answer {
    let version = Out(out.0.cast::<c_uint>()).get()?;
    let (name, peers) = (profile_name(profile), peers(gpu));
    if version == tagged::<sys::nvmlGpuInstanceProfileInfo_v2_t>(2) {
        out.set(profile_info!(nvmlGpuInstanceProfileInfo_v2_t, profile, version, name, isP2pSupported: peers))
    } else if version == tagged::<sys::nvmlGpuInstanceProfileInfo_v3_t>(3) {
        let out = Out(out.0.cast());
        out.set(profile_info!(nvmlGpuInstanceProfileInfo_v3_t, profile, version, name, capabilities: peers))
    } else {
        Err(Code::ARGUMENT_VERSION_MISMATCH)
    }
}

/// All placements of a profile, even occupied ones.
fn placements(device: DeviceHandle, id: c_uint) -> Answer<Vec<Placement>> {
    let call = Call::new()?;
    let (_, gpu) = call.gpu(device)?;
    let geometry = gpu.geometry().ok_or(Code::NOT_SUPPORTED)?;
    call.administrator()?;
    let profile = geometry.profile(id).ok_or(Code::INVALID_ARGUMENT)?;
    let size = profile.size;
    let starts = profile.starts.iter();
    Ok(starts.map(|&start| Placement { start, size }).collect())
}

fn create(
    device: DeviceHandle,
    profile: c_uint,
    placement: Option<(u32, u32)>,
    out: Out<GpuInstanceHandle>,
) -> Answer {
    let call = Call::new()?;
    let (index, gpu) = call.gpu(device)?;
    gpu.mig_geometry()?;
    call.administrator()?;
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let root = call.root();
    let serial = call.update(|node| {
        // Only the first instance switches MIG on in the hardware.
        let gpu = &node.gpus[index];
        if gpu.instances.is_empty() && processes::is_held(root, &processes::parent(&gpu.uuid)) {
            return Err(Code::IN_USE);
        }
        let instance = node.create_gpu_instance(index, profile, placement)?;
        Ok(instance.serial)
    })?;
    out.set(call.handle(Handle::GpuInstance(serial)))
}

nvml! {
    fn nvmlDeviceSetMigMode(device: DeviceHandle, mode: c_uint, status: Out<c_uint>) {
        let call = Call::new()?;
        let (index, gpu) = call.gpu(device)?;
        if gpu.model().geometry.is_none() {
            return Err(Code::NOT_SUPPORTED);
        }
        if mode > 1 || status.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        call.administrator()?;
        let root = call.root();
        let activation = call.update(|node| {
            let gpu = &mut node.gpus[index];
            let computes = |process: &processes::Process| process.gpu_uuid == gpu.uuid;
            let busy = processes::live(root)?.iter().any(computes)
                || processes::is_held(root, &gpu.uuid);
            let activation = gpu.set_mig_mode(mode == 1, busy)?;
            if !gpu.mig && activation.is_ok() {
                gpu.mig_off_us = processes::now_us();
            }
            Ok(activation)
        })?;
        status.set(activation.map_or_else(|code| code.0, |()| 0))
    }

    // Not every GPU is in a fabric: without the manner none is.
    fn nvmlDeviceGetGpuFabricInfo(device: DeviceHandle, info: Out<sys::nvmlGpuFabricInfo_t>) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        let ms = call.node.manners.fabric_after_ms.ok_or(Code::NOT_SUPPORTED)?;
        let state = match processes::now_us() >= gpu.mig_off_us + ms * 1000 {
            _ if gpu.mig => sys::NVML_GPU_FABRIC_STATE_NOT_STARTED,
            true => sys::NVML_GPU_FABRIC_STATE_COMPLETED,
            false => sys::NVML_GPU_FABRIC_STATE_IN_PROGRESS,
        };
        info.set(sys::nvmlGpuFabricInfo_t {
            clusterUuid: [0; 16],
            status: 0,
            cliqueId: 0,
            state: state as u8,
        })
    }

    fn nvmlDeviceGetMigMode(device: DeviceHandle, current: Out<c_uint>, pending: Out<c_uint>) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        if gpu.model().geometry.is_none() {
            return Err(Code::NOT_SUPPORTED);
        }
        current.set(gpu.mig.into())?;
        pending.set(gpu.mig_pending.into())
    }

    fn nvmlDeviceGetGpuInstanceProfileInfo(
        device: DeviceHandle,
        kind: c_uint,
        info: Out<sys::nvmlGpuInstanceProfileInfo_t>,
    ) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        let profile = profile_of_kind(gpu, kind)?;
        info.set(profile_info!(nvmlGpuInstanceProfileInfo_t, profile, isP2pSupported: peers(gpu)))
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        device: DeviceHandle,
        kind: c_uint,
        info: Out<sys::nvmlGpuInstanceProfileInfo_v2_t>,
    ) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        versioned_profile(gpu, profile_of_kind(gpu, kind)?, info)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        device: DeviceHandle,
        id: c_uint,
        info: Out<sys::nvmlGpuInstanceProfileInfo_v2_t>,
    ) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        let geometry = gpu.geometry().ok_or(Code::NOT_SUPPORTED)?;
        let profile = geometry.profile(id).ok_or(Code::INVALID_ARGUMENT)?;
        versioned_profile(gpu, profile, info)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: DeviceHandle,
        id: c_uint,
        room: Out<Placement>,
        count: Out<c_uint>,
    ) {
        let all = placements(device, id)?;
        if room.is_null() {
            return count.set(all.len() as c_uint);
        }
        room.fill(count, &all)
    }

    // The first version assumes enough room.
    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        device: DeviceHandle,
        id: c_uint,
        room: Out<Placement>,
        count: Out<c_uint>,
    ) {
        let all = placements(device, id)?;
        count.set(all.len() as c_uint)?;
        room.write_all(&all)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(
        device: DeviceHandle,
        id: c_uint,
        count: Out<c_uint>,
    ) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        let geometry = gpu.mig_geometry()?;
        call.administrator()?;
        count.set(gpu.remaining_capacity(geometry, profile(gpu, id)?))
    }

    fn nvmlDeviceCreateGpuInstance(
        device: DeviceHandle,
        profile: c_uint,
        instance: Out<GpuInstanceHandle>,
    ) {
        create(device, profile, None, instance)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: DeviceHandle,
        profile: c_uint,
        placement: Out<Placement>,
        instance: Out<GpuInstanceHandle>,
    ) {
        let placement = placement.get()?;
        create(device, profile, Some((placement.start, placement.size)), instance)
    }

    fn nvmlGpuInstanceDestroy(instance: GpuInstanceHandle) {
        let call = Call::new()?;
        let (index, _, gi) = call.gpu_instance(instance)?;
        call.administrator()?;
        let (id, serial) = (gi.id, gi.serial);
        let root = call.root();
        call.update(|node| {
            let live = processes::live(root)?;
            let on_it = |process: &processes::Process| {
                process.instance.is_some_and(|(gi, _)| gi == serial)
            };
            let gpu = &mut node.gpus[index];
            // Between the lookup above and the lock, the id may have been reused.
            if gpu.instance(id).is_none_or(|now| now.serial != serial) {
                return Err(Code::NOT_FOUND);
            }
            let busy = live.iter().any(on_it);
            match node.manners.destroyed_after_ms {
                None => gpu.destroy_gpu_instance(id, busy),
                Some(ms) => gpu.destroy_later(id, busy, processes::now_us() + ms * 1000),
            }
        })
    }

    fn nvmlDeviceGetGpuInstances(
        device: DeviceHandle,
        id: c_uint,
        instances: Out<GpuInstanceHandle>,
        count: Out<c_uint>,
    ) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        profile(gpu, id)?;
        call.administrator()?;
        let of_profile = gpu.instances.iter().filter(|gi| gi.profile == id);
        let handles: Vec<GpuInstanceHandle> = of_profile
            .map(|gi| call.handle(Handle::GpuInstance(gi.serial)))
            .collect();
        // The count is output only: callers provide room for the profile's instanceCount.
        count.set(handles.len() as c_uint)?;
        instances.write_all(&handles)
    }

    fn nvmlDeviceGetGpuInstanceById(
        device: DeviceHandle,
        id: c_uint,
        instance: Out<GpuInstanceHandle>,
    ) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        gpu.mig_geometry()?;
        call.administrator()?;
        let can_be = id < 15 || !call.node.manners.invalid_ids;
        let absent = if can_be { Code::NOT_FOUND } else { Code::INVALID_ARGUMENT };
        let gi = gpu.instance(id).ok_or(absent)?;
        instance.set(call.handle(Handle::GpuInstance(gi.serial)))
    }

    fn nvmlGpuInstanceGetInfo(
        instance: GpuInstanceHandle,
        info: Out<sys::nvmlGpuInstanceInfo_t>,
    ) {
        let call = Call::new()?;
        let (index, _, gi) = call.gpu_instance(instance)?;
        info.set(sys::nvmlGpuInstanceInfo_t {
            device: call.handle(Handle::Gpu(index)),
            id: gi.id,
            profileId: gi.profile,
            placement: Placement { start: gi.start, size: gi.size },
        })
    }

    fn nvmlDeviceIsMigDeviceHandle(device: DeviceHandle, is: Out<c_uint>) {
        is.set(Call::new()?.device(device)?.mig.is_some().into())
    }

    fn nvmlDeviceGetGpuInstanceId(device: DeviceHandle, id: Out<c_uint>) {
        let call = Call::new()?;
        let (gi, _) = call.device(device)?.mig.ok_or(Code::NOT_SUPPORTED)?;
        id.set(gi.id)
    }

    fn nvmlDeviceGetComputeInstanceId(device: DeviceHandle, id: Out<c_uint>) {
        let call = Call::new()?;
        let (_, ci) = call.device(device)?.mig.ok_or(Code::NOT_SUPPORTED)?;
        id.set(ci.id)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: DeviceHandle, count: Out<c_uint>) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        let slices = gpu.geometry().map_or(0, |geometry| geometry.compute_slices);
        count.set(slices)
    }

    // Counts compute instances; a GPU instance without one is not visible here.
    fn nvmlDeviceGetMigDeviceHandleByIndex(
        device: DeviceHandle,
        index: c_uint,
        mig: Out<DeviceHandle>,
    ) {
        let call = Call::new()?;
        let (_, gpu) = call.gpu(device)?;
        let geometry = gpu.mig_geometry()?;
        if index >= geometry.compute_slices {
            return Err(Code::INVALID_ARGUMENT);
        }
        let serials = device::usable(&call, gpu);
        let serial = serials.get(index as usize).ok_or(Code::NOT_FOUND)?;
        mig.set(call.handle(Handle::MigDevice(*serial)))
    }

    fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig: DeviceHandle, device: Out<DeviceHandle>) {
        let call = Call::new()?;
        let found = call.device(mig)?;
        found.mig.ok_or(Code::INVALID_ARGUMENT)?;
        device.set(call.handle(Handle::Gpu(found.index)))
    }
}
