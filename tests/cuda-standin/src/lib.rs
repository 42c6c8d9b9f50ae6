//! A `libcuda.so.1` for simulated GPUs: as much of CUDA's driver API as `gpufrac-compute` uses.
//!
//! A process that loads it sees the first device that `CUDA_VISIBLE_DEVICES` and the device nodes under ROOT allow, as
//! `gpusim run` does, whose code it uses: with a context it is on NVML's lists, and it is a client of `mps-standin`
//! where `CUDA_MPS_PIPE_DIRECTORY` leads to one. Kernels are durations: a computation is as fast as the share of
//! multiprocessors, and processes without MPS take turns.
//!
//! The file ROOT/cuda.json, a list of names of [`lies::LIES`], falsifies its answers.
#![allow(
    unsafe_code,
    reason = "a C library: every exported function takes raw pointers"
)]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub mod abi;
mod code;
pub mod lies;
mod life;
mod session;

/// Installs the newest built library near the running program as ROOT/lib/libcuda.so.1. Programs with ROOT/lib in
/// `LD_LIBRARY_PATH` find it. Errors: it is not built, or cannot be copied.
pub fn install(root: &Path) -> io::Result<()> {
    let program = std::env::current_exe()?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let places = ["", "deps", ".."].map(|place| folder.join(place).join("libcuda_standin.so"));
    let age = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
    let built = places.into_iter().filter(|path| path.exists());
    let built = built.max_by_key(age).ok_or(io::Error::new(
        io::ErrorKind::NotFound,
        "libcuda_standin.so is not built: cargo build -p cuda-standin",
    ))?;
    let library = root.join("lib");
    fs::create_dir_all(&library)?;
    fs::copy(built, library.join("libcuda.so.1")).map(drop)
}
