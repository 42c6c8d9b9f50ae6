//! The calls of CUDA's driver API. Signatures and numbers: cuda.h, and NVIDIA's driver API reference under the name of
//! each function.
#![allow(unsafe_code, reason = "a C library that is loaded at run time")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use libloading::os::unix::Library;

use crate::order::Failure;

/// The program for the GPU, with the zero byte that `cuModuleLoadData` looks for.
const PROGRAM: &str = concat!(include_str!("kernels.ptx"), "\0");
/// `CU_EXEC_AFFINITY_TYPE_SM_COUNT`
const MULTIPROCESSOR_AFFINITY: c_int = 0;

/// Attributes of a device, of `CUdevice_attribute`.
#[derive(Debug, Clone, Copy)]
#[repr(i32)]
pub enum Attribute {
    /// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`
    Multiprocessors = 16,
    /// `CU_DEVICE_ATTRIBUTE_COMPUTE_MODE`
    ComputeMode = 20,
}

/// The loaded library.
pub struct Driver {
    library: Library,
}

/// A `CUdevice`.
#[derive(Debug, Clone, Copy)]
pub struct Device(c_int);

/// A `CUdeviceptr`. It is freed by [`Driver::free`], or with the process.
#[derive(Debug, Clone, Copy)]
pub struct Memory(u64);

/// A `CUfunction` of the loaded program.
#[derive(Debug, Clone, Copy)]
pub struct Kernel(*mut c_void);

/// The size of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    /// The number of blocks.
    pub blocks: u32,
    /// The number of threads of a block.
    pub threads: u32,
}

/// Calls a function of the library, and returns its error as a [`Failure`].
macro_rules! call {
    ($driver:expr, $name:ident, $($value:expr => $kind:ty),*) => {{
        // SAFETY: each caller below passes the types of cuda.h, and pointers to values that outlive the call and are as
        // large as the function writes.
        let code = unsafe {
            let name = concat!(stringify!($name), "\0");
            let found = $driver.library.get::<unsafe extern "C" fn($($kind),*) -> c_int>(name.as_bytes());
            match found {
                Ok(function) => function($($value),*),
                Err(error) => return Err(Failure::Library(error.to_string())),
            }
        };
        $driver.check(stringify!($name), code)
    }};
}

impl Driver {
    /// Loads `libcuda.so.1` and initialises it. Errors: there is no such library, or CUDA's answer.
    pub fn start() -> Result<Driver, Failure> {
        // SAFETY: the driver's library has no preconditions for its initialisers.
        let library = unsafe { Library::new("libcuda.so.1") };
        let library = library.map_err(|error| Failure::Library(error.to_string()))?;
        let driver = Driver { library };
        call!(driver, cuInit, 0 => c_uint)?;
        Ok(driver)
    }

    fn check(&self, call: &str, code: c_int) -> Result<(), Failure> {
        match code {
            0 => Ok(()),
            code => Err(Failure::Cuda {
                call: call.to_owned(),
                code,
                name: self.name_of(code),
            }),
        }
    }

    fn name_of(&self, code: c_int) -> String {
        type GetErrorName = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;
        let mut name = ptr::null();
        // SAFETY: the signature of cuda.h; the name is a C string that is never freed, or null for an unknown code.
        let name = unsafe {
            if let Ok(function) = self.library.get::<GetErrorName>(b"cuGetErrorName\0") {
                function(code, &raw mut name);
            }
            (!name.is_null()).then(|| CStr::from_ptr(name))
        };
        name.map_or_else(
            || "unknown".into(),
            |name| name.to_string_lossy().into_owned(),
        )
    }

    /// The version of the driver API.
    pub fn version(&self) -> Result<i32, Failure> {
        let mut version = 0;
        call!(self, cuDriverGetVersion, &raw mut version => *mut c_int)?;
        Ok(version)
    }

    /// The number of devices that this process sees.
    pub fn count(&self) -> Result<i32, Failure> {
        let mut count = 0;
        call!(self, cuDeviceGetCount, &raw mut count => *mut c_int)?;
        Ok(count)
    }

    /// A device by CUDA's number.
    pub fn device(&self, number: i32) -> Result<Device, Failure> {
        let mut device = 0;
        call!(self, cuDeviceGet, &raw mut device => *mut c_int, number => c_int)?;
        Ok(Device(device))
    }

    pub fn name(&self, device: Device) -> Result<String, Failure> {
        let mut name = [0_u8; 256];
        call!(self, cuDeviceGetName, name.as_mut_ptr().cast() => *mut c_char, 255 => c_int, device.0 => c_int)?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// `GPU-...`, or `MIG-...` for an instance, which has another UUID than its GPU.
    pub fn uuid(&self, device: Device) -> Result<String, Failure> {
        let (mut of_gpu, mut own) = ([0_u8; 16], [0_u8; 16]);
        call!(self, cuDeviceGetUuid, of_gpu.as_mut_ptr() => *mut u8, device.0 => c_int)?;
        call!(self, cuDeviceGetUuid_v2, own.as_mut_ptr() => *mut u8, device.0 => c_int)?;
        let digits: String = own.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)];
        let parts = parts.map(|(from, to)| &digits[from..to]);
        let kind = if own == of_gpu { "GPU" } else { "MIG" };
        Ok(format!("{kind}-{}", parts.join("-")))
    }

    /// The memory of a device in bytes.
    pub fn memory(&self, device: Device) -> Result<usize, Failure> {
        let mut bytes = 0;
        call!(self, cuDeviceTotalMem_v2, &raw mut bytes => *mut usize, device.0 => c_int)?;
        Ok(bytes)
    }

    pub fn attribute(&self, device: Device, attribute: Attribute) -> Result<i32, Failure> {
        let mut value = 0;
        call!(self, cuDeviceGetAttribute,
            &raw mut value => *mut c_int, attribute as c_int => c_int, device.0 => c_int)?;
        Ok(value)
    }

    /// Makes a context for the rest of the process, which the calls that follow use.
    pub fn make_context(&self, device: Device) -> Result<(), Failure> {
        let mut context = ptr::null_mut();
        call!(self, cuCtxCreate_v2,
            &raw mut context => *mut *mut c_void, 0 => c_uint, device.0 => c_int)
    }

    /// The number of multiprocessors to which the context is limited.
    pub fn affinity(&self) -> Result<u32, Failure> {
        // `CUexecAffinityParam`: the kind and a union. Longer than the structure, because later versions may add to it.
        let mut parameter = [0_u32; 16];
        call!(self, cuCtxGetExecAffinity,
            parameter.as_mut_ptr() => *mut u32, MULTIPROCESSOR_AFFINITY => c_int)?;
        Ok(parameter[1])
    }

    /// Free and total memory of the context's device in bytes.
    pub fn free_memory(&self) -> Result<(usize, usize), Failure> {
        let (mut free, mut total) = (0, 0);
        call!(self, cuMemGetInfo_v2, &raw mut free => *mut usize, &raw mut total => *mut usize)?;
        Ok((free, total))
    }

    /// Compiles the program and returns its kernels with these names.
    pub fn kernels<const N: usize>(&self, names: [&CStr; N]) -> Result<[Kernel; N], Failure> {
        let mut module = ptr::null_mut();
        call!(self, cuModuleLoadData,
            &raw mut module => *mut *mut c_void, PROGRAM.as_ptr().cast() => *const c_void)?;
        let mut kernels = [Kernel(ptr::null_mut()); N];
        for (kernel, name) in kernels.iter_mut().zip(names) {
            call!(self, cuModuleGetFunction, &raw mut kernel.0 => *mut *mut c_void,
                module => *mut c_void, name.as_ptr() => *const c_char)?;
        }
        Ok(kernels)
    }

    /// Memory of the device, never managed memory.
    pub fn allocate(&self, bytes: usize) -> Result<Memory, Failure> {
        let mut address = 0;
        call!(self, cuMemAlloc_v2, &raw mut address => *mut u64, bytes => usize)?;
        Ok(Memory(address))
    }

    pub fn free(&self, memory: Memory) -> Result<(), Failure> {
        call!(self, cuMemFree_v2, memory.0 => u64)
    }

    /// Launches a kernel of the program that writes numbers of 32 bits, one for each block or one in all, to `target`;
    /// `rounds` is its second parameter, if it has one. Does not wait for its end.
    pub fn launch(
        &self,
        kernel: Kernel,
        grid: Grid,
        target: Memory,
        rounds: u32,
    ) -> Result<(), Failure> {
        let mut values: [*const c_void; 2] =
            [(&raw const target.0).cast(), (&raw const rounds).cast()];
        let null = ptr::null_mut::<c_void>();
        call!(self, cuLaunchKernel, kernel.0 => *mut c_void,
            grid.blocks => c_uint, 1 => c_uint, 1 => c_uint,
            grid.threads => c_uint, 1 => c_uint, 1 => c_uint,
            0 => c_uint, null => *mut c_void,
            values.as_mut_ptr() => *mut *const c_void, null.cast() => *mut *mut c_void)
    }

    /// Waits for the launched kernels.
    pub fn wait(&self) -> Result<(), Failure> {
        call!(self, cuCtxSynchronize,)
    }

    /// Copies numbers of 32 bits from the device.
    pub fn copy(&self, from: Memory, to: &mut [u32]) -> Result<(), Failure> {
        let bytes = size_of_val(to);
        call!(self, cuMemcpyDtoH_v2,
            to.as_mut_ptr().cast() => *mut c_void, from.0 => u64, bytes => usize)
    }
}

impl Memory {
    /// An address at which a process has no memory.
    pub const NOWHERE: Memory = Memory(0x1000);
}
