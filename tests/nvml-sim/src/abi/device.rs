//! Devices: number, lookup and names.

use std::ffi::{c_char, c_int, c_uint, c_ulong};

use nvml_wrapper_sys::bindings as sys;

use super::{Out, Text, getters, nvml, text_field};
use crate::code::{Answer, Code};
use crate::model::Model;
use crate::node::{Gpu, MigDeviceBy};
use crate::session::{Call, Device, Handle};

type DeviceHandle = sys::nvmlDevice_t;

pub(super) fn bus_id(gpu: &Gpu) -> String {
    format!("00000000:{:02X}:00.0", gpu.pci_bus)
}

fn pci_info(gpu: &Gpu) -> sys::nvmlPciInfo_t {
    let model = gpu.model();
    sys::nvmlPciInfo_t {
        busIdLegacy: text_field(&format!("0000:{:02X}:00.0", gpu.pci_bus)),
        domain: 0,
        bus: gpu.pci_bus,
        device: 0,
        pciDeviceId: model.pci_id,
        pciSubSystemId: model.pci_subsystem,
        busId: text_field(&bus_id(gpu)),
    }
}

/// The name of a MIG device: its profile, with the compute part in front if it is smaller than the GPU instance.
pub(super) fn mig_profile_name(device: &Device<'_>) -> Answer<Option<String>> {
    let Some((gi, ci)) = device.mig else {
        return Ok(None);
    };
    let profiles = device.gpu.compute_profiles(gi)?;
    let profile = profiles
        .into_iter()
        .find(|profile| profile.id == ci.profile);
    Ok(Some(profile.ok_or(Code::UNKNOWN)?.name))
}

fn name(device: &Device<'_>) -> Answer<String> {
    let product = device.gpu.model().product;
    Ok(match mig_profile_name(device)? {
        Some(profile) => format!("{product} MIG {profile}"),
        None => product.to_owned(),
    })
}

/// The GPU UUID and the instance ids in `MIG-GPU-…/GI/CI`, the older name of MIG devices.
fn ids(uuid: &str) -> Option<(&str, u32, u32)> {
    let mut words = uuid.strip_prefix("MIG-")?.split('/');
    let gpu = words.next()?;
    let gi = words.next()?.parse().ok()?;
    let ci = words.next()?.parse().ok()?;
    words.next().is_none().then_some((gpu, gi, ci))
}

fn by_uuid(call: &Call, uuid: &str) -> Answer<DeviceHandle> {
    let ids = match call.node.mig_device_by {
        MigDeviceBy::Info | MigDeviceBy::Name => ids(uuid),
        MigDeviceBy::Walk => None,
    };
    for &index in &call.session.visible {
        let gpu = &call.node.gpus[index];
        if gpu.uuid == uuid {
            return Ok(call.handle(Handle::Gpu(index)));
        }
        for (gi, ci) in gpu.mig_devices() {
            let named = ci.uuid == uuid || ids == Some((&gpu.uuid, gi.id, ci.id));
            if named && call.may_use(gpu, gi, ci) {
                return Ok(call.handle(Handle::MigDevice(ci.serial)));
            }
        }
    }
    Err(Code::NOT_FOUND)
}

/// The threads near a GPU. A simulated node with `sys/devices/system/cpu` divides its GPUs among its sockets in the
/// order of both; elsewhere all threads of the caller are near.
fn near(call: &Call, index: usize) -> Vec<usize> {
    let folder = call.root().join("sys/devices/system/cpu");
    let socket = |thread: usize| {
        let file = folder.join(format!("cpu{thread}/topology/physical_package_id"));
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().parse::<usize>().ok()
    };
    let sockets: Vec<usize> = (0..).map_while(socket).collect();
    let Some(last) = sockets.iter().max() else {
        return (0..std::thread::available_parallelism().map_or(1, usize::from)).collect();
    };
    let own = index * (last + 1) / call.node.gpus.len();
    (0..sockets.len())
        .filter(|thread| sockets[*thread] == own)
        .collect()
}

fn cpu_set(call: &Call, device: DeviceHandle, size: c_uint, set: Out<c_ulong>) -> Answer {
    let index = call.device(device)?.index;
    if size == 0 || set.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    let mut words = vec![0; size as usize];
    for thread in near(call, index) {
        if let Some(word) = words.get_mut(thread / 64) {
            *word |= 1 << (thread % 64);
        }
    }
    for (at, word) in words.into_iter().enumerate() {
        set.at(at).set(word)?;
    }
    Ok(())
}

getters! {
    (call, device, gpu)
    fn nvmlDeviceGetMemoryBusWidth() -> c_uint { gpu.model().memory_bus_bits }
    fn nvmlDeviceGetBoardId() -> c_uint { gpu.pci_bus << 8 }
    fn nvmlDeviceGetMultiGpuBoard() -> c_uint { 0 }
    fn nvmlDeviceGetBusType() -> c_uint { sys::NVML_BUS_TYPE_PCIE }
    fn nvmlDeviceGetVirtualizationMode() -> c_uint { 0 }
}

nvml! {
    fn nvmlDeviceGetCount_v2(count: Out<c_uint>) {
        count.set(Call::new()?.session.visible.len() as c_uint)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, device: Out<DeviceHandle>) {
        let call = Call::new()?;
        let index = call.session.visible.get(index as usize).ok_or(Code::INVALID_ARGUMENT)?;
        device.set(call.handle(Handle::Gpu(*index)))
    }

    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<DeviceHandle>) {
        let call = Call::new()?;
        device.set(by_uuid(&call, uuid.get()?)?)
    }

    fn nvmlDeviceGetHandleByUUIDV(uuid: Out<sys::nvmlUUID_t>, device: Out<DeviceHandle>) {
        let call = Call::new()?;
        let value = uuid.versioned(1)?;
        if value.type_ != 1 {
            return Err(Code::NOT_SUPPORTED);
        }
        // SAFETY: type 1 says that the text is what the caller filled.
        let text = unsafe { value.value.str_ };
        let bytes: Vec<u8> = text.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
        let text = String::from_utf8(bytes).map_err(|_| Code::INVALID_ARGUMENT)?;
        device.set(by_uuid(&call, &text)?)
    }

    fn nvmlDeviceGetHandleBySerial(serial: Text, device: Out<DeviceHandle>) {
        let call = Call::new()?;
        let serial = serial.get()?;
        let mut visible = call.session.visible.iter();
        let index = visible
            .find(|index| call.node.gpus[**index].serial_number.to_string() == serial)
            .ok_or(Code::NOT_FOUND)?;
        device.set(call.handle(Handle::Gpu(*index)))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(bus: Text, device: Out<DeviceHandle>) {
        let call = Call::new()?;
        let wanted = bus.get()?.to_ascii_uppercase();
        // Callers omit the domain, or write it with four or eight digits.
        let digits = wanted.trim_start_matches('0').trim_start_matches(':').to_owned();
        let mut visible = call.session.visible.iter();
        let index = visible
            .find(|index| {
                let own = bus_id(&call.node.gpus[**index]);
                own.trim_start_matches('0').trim_start_matches(':') == digits
            })
            .ok_or(Code::NOT_FOUND)?;
        device.set(call.handle(Handle::Gpu(*index)))
    }

    fn nvmlDeviceGetName(device: DeviceHandle, text: Out<c_char>, length: c_uint) {
        let call = Call::new()?;
        text.text(length, &name(&call.device(device)?)?)
    }

    fn nvmlDeviceGetUUID(device: DeviceHandle, text: Out<c_char>, length: c_uint) {
        let call = Call::new()?;
        let device = call.device(device)?;
        text.text(length, device.mig.map_or(&device.gpu.uuid, |(_, ci)| &ci.uuid))
    }

    fn nvmlDeviceGetIndex(device: DeviceHandle, index: Out<c_uint>) {
        let call = Call::new()?;
        let device = call.device(device)?;
        let position = match device.mig {
            None => call.session.visible.iter().position(|&other| other == device.index),
            Some((_, ci)) => usable(&call, device.gpu).iter().position(|serial| *serial == ci.serial),
        };
        index.set(position.ok_or(Code::NOT_FOUND)? as c_uint)
    }

    fn nvmlDeviceGetMinorNumber(device: DeviceHandle, minor: Out<c_uint>) {
        minor.set(Call::new()?.device(device)?.gpu.minor)
    }

    fn nvmlDeviceGetSerial(device: DeviceHandle, text: Out<c_char>, length: c_uint) {
        let call = Call::new()?;
        text.text(length, &call.gpu(device)?.1.serial_number.to_string())
    }

    fn nvmlDeviceGetBrand(device: DeviceHandle, brand: Out<c_uint>) {
        let call = Call::new()?;
        let product = call.device(device)?.gpu.model().product;
        brand.set(if product.starts_with("Tesla") {
            sys::nvmlBrandType_enum_NVML_BRAND_TESLA
        } else {
            sys::nvmlBrandType_enum_NVML_BRAND_NVIDIA
        })
    }

    fn nvmlDeviceGetArchitecture(device: DeviceHandle, architecture: Out<c_uint>) {
        let call = Call::new()?;
        architecture.set(call.device(device)?.gpu.model().architecture.nvml())
    }

    fn nvmlDeviceGetCudaComputeCapability(device: DeviceHandle, major: Out<c_int>, minor: Out<c_int>) {
        let call = Call::new()?;
        let capability = call.device(device)?.gpu.model().compute_capability;
        major.set(capability.0 as c_int)?;
        minor.set(capability.1 as c_int)
    }

    fn nvmlDeviceGetNumGpuCores(device: DeviceHandle, cores: Out<c_uint>) {
        let call = Call::new()?;
        let model = call.gpu(device)?.1.model();
        cores.set(model.multiprocessors * model.cores_per_multiprocessor)
    }

    fn nvmlDeviceGetPciInfo_v3(device: DeviceHandle, info: Out<sys::nvmlPciInfo_t>) {
        info.set(pci_info(Call::new()?.device(device)?.gpu))
    }

    fn nvmlDeviceGetPciInfo_v2(device: DeviceHandle, info: Out<sys::nvmlPciInfo_t>) {
        info.set(pci_info(Call::new()?.device(device)?.gpu))
    }

    fn nvmlDeviceGetPciInfoExt(device: DeviceHandle, info: Out<sys::nvmlPciInfoExt_t>) {
        let call = Call::new()?;
        let gpu = call.device(device)?.gpu;
        let mut value = info.versioned(1)?;
        let pci = pci_info(gpu);
        value.domain = pci.domain;
        value.bus = pci.bus;
        value.device = pci.device;
        value.pciDeviceId = pci.pciDeviceId;
        value.pciSubSystemId = pci.pciSubSystemId;
        // A 3D controller.
        value.baseClass = 3;
        value.subClass = 2;
        value.busId = pci.busId;
        info.set(value)
    }

    fn nvmlDeviceGetModuleId(device: DeviceHandle, module: Out<c_uint>) {
        let call = Call::new()?;
        module.set(call.gpu(device)?.0 as c_uint + 1)
    }

    fn nvmlDeviceGetBoardPartNumber(device: DeviceHandle, text: Out<c_char>, length: c_uint) {
        let call = Call::new()?;
        let id = call.gpu(device)?.1.model().pci_id >> 16;
        text.text(length, &format!("900-2{id:04X}-0000-000"))
    }

    fn nvmlDeviceGetVbiosVersion(device: DeviceHandle, text: Out<c_char>, length: c_uint) {
        Call::new()?.gpu(device)?;
        text.text(length, "96.00.00.00.00")
    }

    fn nvmlDeviceGetCpuAffinity(device: DeviceHandle, size: c_uint, set: Out<c_ulong>) {
        cpu_set(&Call::new()?, device, size, set)
    }

    fn nvmlDeviceGetCpuAffinityWithinScope(
        device: DeviceHandle,
        size: c_uint,
        set: Out<c_ulong>,
        _scope: c_uint,
    ) {
        cpu_set(&Call::new()?, device, size, set)
    }

    fn nvmlDeviceGetMemoryAffinity(
        device: DeviceHandle,
        size: c_uint,
        set: Out<c_ulong>,
        _scope: c_uint,
    ) {
        Call::new()?.device(device)?;
        if size == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        for word in 0..size as usize {
            set.at(word).set(c_ulong::from(word == 0))?;
        }
        Ok(())
    }

    fn nvmlDeviceGetTopologyCommonAncestor(a: DeviceHandle, b: DeviceHandle, level: Out<c_uint>) {
        let call = Call::new()?;
        let same = call.gpu(a)?.0 == call.gpu(b)?.0;
        level.set(if same {
            sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_INTERNAL
        } else {
            sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE
        })
    }

    fn nvmlDeviceOnSameBoard(a: DeviceHandle, b: DeviceHandle, same: Out<c_int>) {
        let call = Call::new()?;
        same.set(c_int::from(call.gpu(a)?.0 == call.gpu(b)?.0))
    }

    fn nvmlDeviceGetAttributes_v2(device: DeviceHandle, out: Out<sys::nvmlDeviceAttributes_t>) {
        let call = Call::new()?;
        let device = call.device(device)?;
        // Only instances have these attributes, not whole GPUs.
        let (gi, ci) = device.mig.ok_or(Code::NOT_SUPPORTED)?;
        let instance = device.gpu.profile_of(gi)?;
        let profiles = device.gpu.compute_profiles(gi)?;
        let compute = profiles.iter().find(|profile| profile.id == ci.profile);
        let compute = compute.ok_or(Code::UNKNOWN)?;
        out.set(sys::nvmlDeviceAttributes_t {
            multiprocessorCount: compute.multiprocessors,
            sharedCopyEngineCount: instance.engines.copy,
            sharedDecoderCount: instance.engines.decode,
            sharedEncoderCount: instance.engines.encode,
            sharedJpegCount: instance.engines.jpeg,
            sharedOfaCount: instance.engines.ofa,
            gpuInstanceSliceCount: instance.slices,
            computeInstanceSliceCount: compute.slices,
            memorySizeMB: instance.memory_mib,
        })
    }
}

/// Serials of the MIG devices of a GPU that the caller may use, in NVML's order.
pub(super) fn usable(call: &Call, gpu: &Gpu) -> Vec<u64> {
    gpu.mig_devices()
        .filter(|(gi, ci)| call.may_use(gpu, gi, ci))
        .map(|(_, ci)| ci.serial)
        .collect()
}

/// The model of a whole GPU.
pub(super) fn model(call: &Call, device: DeviceHandle) -> Answer<&'static Model> {
    Ok(call.gpu(device)?.1.model())
}
