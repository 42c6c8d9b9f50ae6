//! `nvmlDeviceGetFieldValues`: single values by number.

use std::ffi::c_int;

use nvml_wrapper_sys::bindings as sys;
use sys::field_id as fi;

use super::{Out, health, nvml};
use crate::code::Code;
use crate::processes;
use crate::session::Call;

nvml! {
    fn nvmlDeviceGetFieldValues(
        device: sys::nvmlDevice_t,
        count: c_int,
        values: Out<sys::nvmlFieldValue_t>,
    ) {
        let call = Call::new()?;
        let gpu = call.device(device)?;
        let model = gpu.gpu.model();
        if count <= 0 || values.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        for position in 0..count as usize {
            let out = values.at(position);
            let mut field = out.get()?;
            let known = match field.fieldId {
                fi::NVML_FI_DEV_ECC_CURRENT | fi::NVML_FI_DEV_ECC_PENDING => Some(1),

                fi::NVML_FI_DEV_NVLINK_LINK_COUNT => Some(0),
                // A MIG device has no power value.
                fi::NVML_FI_DEV_POWER_AVERAGE | fi::NVML_FI_DEV_POWER_INSTANT => {
                    health::power_mw(&call, device).ok()
                }
                fi::NVML_FI_DEV_POWER_MIN_LIMIT if gpu.mig.is_none() => {
                    Some(model.power_limit_mw / 4)
                }
                fi::NVML_FI_DEV_POWER_MAX_LIMIT
                | fi::NVML_FI_DEV_POWER_DEFAULT_LIMIT
                | fi::NVML_FI_DEV_POWER_CURRENT_LIMIT
                | fi::NVML_FI_DEV_POWER_REQUESTED_LIMIT
                    if gpu.mig.is_none() =>
                {
                    Some(model.power_limit_mw)
                }
                _ => None,
            };
            field.timestamp = processes::now_us() as i64;
            field.latencyUsec = 0;
            match known {
                Some(value) => {
                    field.nvmlReturn = 0;
                    field.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
                    field.value = sys::nvmlValue_t { uiVal: value };
                }
                None => field.nvmlReturn = Code::NOT_SUPPORTED.0,
            }
            out.set(field)?;
        }
        Ok(())
    }
}
