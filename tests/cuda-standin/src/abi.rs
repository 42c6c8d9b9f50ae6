//! The functions, with the signatures of cuda.h.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::code::{Code, NAMES};
use crate::session::{Kernel, Session};

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT` and `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`
const ATTRIBUTES: [c_int; 2] = [16, 20];
/// The API of 12.4.
const VERSION: c_int = 12040;
const MIB: usize = 1 << 20;

static SESSION: Mutex<Option<Session>> = Mutex::new(None);

fn locked() -> MutexGuard<'static, Option<Session>> {
    SESSION.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with(work: impl FnOnce(&mut Session) -> Result<(), Code>) -> c_int {
    let done = locked().as_mut().ok_or(Code(3)).and_then(work);
    done.map_or_else(|Code(code)| code, |()| 0)
}

/// # Safety
/// `to` is null or has room for the value.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(Code(1));
    }
    // SAFETY: by the contract.
    unsafe { to.write(value) };
    Ok(())
}

/// Starts CUDA.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> c_int {
    let mut session = locked();
    if session.is_none() {
        match Session::start() {
            Ok(started) => *session = Some(started),
            Err(Code(code)) => return code,
        }
    }
    0
}

/// # Safety
/// As cuda.h says; the same holds for the functions that follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: c_int, name: *mut *const c_char) -> c_int {
    let known = NAMES.iter().find(|(number, _)| *number == code);
    let text = known.map_or(std::ptr::null(), |(_, name)| name.as_ptr());
    // SAFETY: the caller's pointer.
    unsafe { put(name, text) }.map_or_else(|Code(code)| code, |()| 0)
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    // SAFETY: the caller's pointer.
    unsafe { put(version, VERSION) }.map_or_else(|Code(code)| code, |()| 0)
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller's pointer.
    with(|_| unsafe { put(count, 1) })
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, number: c_int) -> c_int {
    with(|_| match number {
        // SAFETY: the caller's pointer.
        0 => unsafe { put(device, 0) },
        _ => Err(Code(1)),
    })
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, size: c_int, _device: c_int) -> c_int {
    with(|session| {
        let room = usize::try_from(size).unwrap_or_default();
        let text = session.size.name.bytes().take(room.saturating_sub(1));
        for (at, byte) in text.chain([0]).enumerate().take(room) {
            // SAFETY: the caller's pointer to `size` bytes.
            unsafe { name.add(at).write(c_char::from_ne_bytes([byte])) };
        }
        Ok(())
    })
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], _device: c_int) -> c_int {
    // SAFETY: the caller's pointer.
    with(|session| unsafe { put(uuid, bytes_of(&session.size.gpu_uuid)) })
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], _device: c_int) -> c_int {
    // SAFETY: the caller's pointer.
    with(|session| unsafe { put(uuid, bytes_of(&session.size.uuid)) })
}

fn bytes_of(uuid: &str) -> [u8; 16] {
    let digits: Vec<u8> = uuid
        .chars()
        .skip(4)
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = pair.iter().fold(0, |sum, digit| sum << 4 | digit);
    }
    bytes
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> c_int {
    // SAFETY: the caller's pointer.
    with(|session| unsafe { put(bytes, session.size.memory_mib as usize * MIB) })
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    _device: c_int,
) -> c_int {
    with(|session| {
        let found = match ATTRIBUTES.iter().position(|known| *known == attribute) {
            Some(0) => session.multiprocessors("multiprocessors"),
            Some(_) => session.compute_mode()?,
            None => return Err(Code(1)),
        };
        // SAFETY: the caller's pointer.
        unsafe { put(value, found.cast_signed()) }
    })
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxCreate_v2(
    context: *mut *mut c_void,
    _flags: c_uint,
    _device: c_int,
) -> c_int {
    with(|session| {
        session.make_context()?;
        // SAFETY: the caller's pointer.
        unsafe { put(context, std::ptr::without_provenance_mut(1)) }
    })
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetExecAffinity(parameter: *mut [u32; 2], _kind: c_int) -> c_int {
    // SAFETY: the caller's pointer.
    with(|session| unsafe { put(parameter, [0, session.multiprocessors("affinity")]) })
}

/// Waits for the kernels.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> c_int {
    with(Session::wait)
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_char) -> c_int {
    with(|_| {
        // SAFETY: the caller's text, which ends with a zero byte.
        let text = unsafe { CStr::from_ptr(image) };
        if text.to_bytes().starts_with(b".version") {
            // SAFETY: the caller's pointer.
            unsafe { put(module, std::ptr::without_provenance_mut(1)) }
        } else {
            Err(Code(1))
        }
    })
}

const KERNELS: [(&CStr, Kernel); 3] = [
    (c"burn", Kernel::Burn),
    (c"place", Kernel::Place),
    (c"fault", Kernel::Fault),
];

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *mut c_void,
    _module: *mut c_void,
    name: *const c_char,
) -> c_int {
    with(|_| {
        // SAFETY: the caller's text, which ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) };
        let found = KERNELS.iter().position(|(known, _)| *known == name);
        let number = found.ok_or(Code(500))? + 1;
        // SAFETY: the caller's pointer.
        unsafe { put(function, std::ptr::without_provenance_mut(number)) }
    })
}

/// # Safety
/// See [`cuGetErrorName`]; the second parameter of a kernel is a number of 32 bits.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the signature of cuda.h")]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *mut c_void,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared: c_uint,
    _stream: *mut c_void,
    values: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> c_int {
    with(|session| {
        let (_, kernel) = *KERNELS.get(function.addr() - 1).ok_or(Code(1))?;
        // SAFETY: the caller's pointers to the two parameters.
        let rounds = unsafe { *(*values.add(1)).cast::<u32>() };
        session.launch(kernel, rounds)
    })
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    with(|session| {
        let (left, all) = session.memory()?;
        // SAFETY: the caller's pointers.
        unsafe {
            put(free, left as usize)?;
            put(total, all as usize)
        }
    })
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    with(|session| {
        let found = session.allocate(bytes as u64)?;
        // SAFETY: the caller's pointer.
        unsafe { put(address, found) }
    })
}

/// Frees memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    with(|session| session.free(address))
}

/// # Safety
/// See [`cuGetErrorName`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut u32, _from: u64, bytes: usize) -> c_int {
    with(|session| {
        // SAFETY: the caller's memory of this size.
        let numbers = unsafe { std::slice::from_raw_parts_mut(to, bytes / size_of::<u32>()) };
        session.places(numbers);
        Ok(())
    })
}
