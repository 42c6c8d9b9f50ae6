//! Functions with the names of their first versions, which old programs call.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings as sys;

use super::{Out, Text};

type DeviceHandle = sys::nvmlDevice_t;

macro_rules! renamed {
    ($($old:ident = $module:ident::$new:ident($($arg:ident: $type:ty),*);)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $old($($arg: $type),*) -> c_uint {
                super::$module::$new($($arg),*)
            }
        )*
    };
}

renamed! {
    nvmlDeviceGetCount = device::nvmlDeviceGetCount_v2(count: Out<c_uint>);
    nvmlDeviceGetHandleByIndex = device::nvmlDeviceGetHandleByIndex_v2(
        index: c_uint, device: Out<DeviceHandle>
    );
    nvmlDeviceGetHandleByPciBusId = device::nvmlDeviceGetHandleByPciBusId_v2(
        bus: Text, device: Out<DeviceHandle>
    );
    nvmlDeviceGetAttributes = device::nvmlDeviceGetAttributes_v2(
        device: DeviceHandle, out: Out<sys::nvmlDeviceAttributes_t>
    );
    nvmlComputeInstanceGetInfo = compute::nvmlComputeInstanceGetInfo_v2(
        compute: sys::nvmlComputeInstance_t, info: Out<sys::nvmlComputeInstanceInfo_t>
    );
    nvmlDeviceGetPciInfo = device::nvmlDeviceGetPciInfo_v2(
        device: DeviceHandle, info: Out<sys::nvmlPciInfo_t>
    );
    nvmlEventSetWait = system::nvmlEventSetWait_v2(
        set: sys::nvmlEventSet_t, data: Out<sys::nvmlEventData_t>, timeout_ms: c_uint
    );
}
