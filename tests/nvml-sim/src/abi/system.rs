//! Initialisation, versions, and the system as a whole.

use std::ffi::{c_char, c_int, c_uint};
use std::fs;
use std::sync::Mutex;

use nvml_wrapper_sys::bindings as sys;

use super::{Out, nvml};
use crate::code::{Answer, Code};
use crate::session::{self, Call};

nvml! {
    fn nvmlInit_v2() {
        session::start()
    }

    fn nvmlInit() {
        session::start()
    }

    fn nvmlInitWithFlags(_flags: c_uint) {
        session::start()
    }

    fn nvmlShutdown() {
        session::stop()
    }

    fn nvmlSystemGetDriverVersion(version: Out<c_char>, length: c_uint) {
        let call = Call::new()?;
        version.text(length, &call.node.driver)
    }

    fn nvmlSystemGetNVMLVersion(version: Out<c_char>, length: c_uint) {
        let call = Call::new()?;
        version.text(length, &format!("12.{}", call.node.driver))
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) {
        version.set(cuda_version(&Call::new()?.node.driver))
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) {
        version.set(cuda_version(&Call::new()?.node.driver))
    }

    fn nvmlSystemGetDriverBranch(info: Out<sys::nvmlSystemDriverBranchInfo_t>, _length: c_uint) {
        let call = Call::new()?;
        let mut value = info.versioned(1)?;
        let major = call.node.driver.split('.').next().unwrap_or_default();
        value.branch = super::text_field(&format!("r{major}_00"));
        info.set(value)
    }

    fn nvmlSystemGetProcessName(pid: c_uint, name: Out<c_char>, length: c_uint) {
        Call::new()?;
        let path = format!("/proc/{pid}/cmdline");
        let line = fs::read(path).map_err(|_| Code::NOT_FOUND)?;
        let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(first);
        // A name that is too long for the caller is cut.
        let room = (length as usize).saturating_sub(1);
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        name.text(length, &text[..end])
    }

    fn nvmlSystemGetHicVersion(count: Out<c_uint>, _entries: Out<sys::nvmlHwbcEntry_t>) {
        Call::new()?;
        count.set(0)
    }

    fn nvmlUnitGetCount(count: Out<c_uint>) {
        Call::new()?;
        count.set(0)
    }

    fn nvmlUnitGetHandleByIndex(_index: c_uint, _unit: Out<sys::nvmlUnit_t>) {
        Call::new()?;
        Err(Code::INVALID_ARGUMENT)
    }

    fn nvmlGetExcludedDeviceCount(count: Out<c_uint>) {
        Call::new()?;
        count.set(0)
    }

    fn nvmlEventSetCreate(set: Out<sys::nvmlEventSet_t>) {
        Call::new()?;
        let mut sets = EVENT_SETS.lock().unwrap_or_else(|held| held.into_inner());
        let id = sets.last().map_or(1, |last| last + 1);
        sets.push(id);
        set.set(std::ptr::without_provenance_mut(id << 4))
    }

    fn nvmlDeviceGetSupportedEventTypes(device: sys::nvmlDevice_t, types: Out<u64>) {
        Call::new()?.device(device)?;
        // Xid, and the reconfiguration of MIG.
        types.set(0x8 | 0x400)
    }

    fn nvmlDeviceRegisterEvents(device: sys::nvmlDevice_t, _types: u64, set: sys::nvmlEventSet_t) {
        Call::new()?.device(device)?;
        event_set(set).map(|_| ())
    }

    // A simulated GPU never has an event.
    fn nvmlEventSetWait_v2(
        set: sys::nvmlEventSet_t,
        _data: Out<sys::nvmlEventData_t>,
        timeout_ms: c_uint,
    ) {
        Call::new()?;
        event_set(set)?;
        std::thread::sleep(std::time::Duration::from_millis(timeout_ms.into()));
        Err(Code::TIMEOUT)
    }

    fn nvmlEventSetFree(set: sys::nvmlEventSet_t) {
        let id = event_set(set)?;
        let mut sets = EVENT_SETS.lock().unwrap_or_else(|held| held.into_inner());
        sets.retain(|other| *other != id);
        Ok(())
    }
}

static EVENT_SETS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn event_set(set: sys::nvmlEventSet_t) -> Answer<usize> {
    let id = set.addr() >> 4;
    let sets = EVENT_SETS.lock().unwrap_or_else(|held| held.into_inner());
    if sets.contains(&id) { Ok(id) } else { Err(Code::INVALID_ARGUMENT) }
}

/// `nvmlErrorString` works without `nvmlInit`, and cannot fail.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(result: c_uint) -> *const c_char {
    Code(result).c_text().as_ptr()
}

/// The CUDA version of a driver, in NVML's form: 12.8 is 12080.
fn cuda_version(driver: &str) -> c_int {
    let major = driver.split('.').next().and_then(|text| text.parse().ok());
    match major.unwrap_or(0u32) {
        610.. => 13030,
        590.. => 13010,
        580.. => 13000,
        575.. => 12090,
        570.. => 12080,
        560.. => 12060,
        550.. => 12040,
        535.. => 12020,
        525.. => 12000,
        _ => 11040,
    }
}
