//! For `LD_PRELOAD` of slurmd and slurmstepd: `/proc/PID/cgroup` shows only the line of the unified hierarchy.
//!
//! Slurm's cgroup/v2 refuses to start if this file also names hierarchies of version 1 ("Hybrid mode is not
//! supported"). If one is mounted anywhere on a machine, the file names it in every namespace. With this library a
//! lab on such a machine can run cgroup/v2 on the kernel's own unified hierarchy: without controllers, but device
//! programs need none.
#![allow(unsafe_code, reason = "it stands in for a function of the C library")]

use std::ffi::CStr;

use libc::{c_char, c_int, mode_t};

/// # Safety
/// As open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the contract of open(2); without O_CREAT the kernel ignores the mode.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) };
    let fd = c_int::try_from(fd).unwrap_or(-1);
    // SAFETY: the kernel took it for a path.
    if fd >= 0 && is_membership(unsafe { CStr::from_ptr(path) }.to_bytes()) {
        return unified_alone(fd).unwrap_or(fd);
    }
    fd
}

/// # Safety
/// As open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the same contract.
    unsafe { open(path, flags | libc::O_LARGEFILE, mode) }
}

/// Whether a path is `/proc/PID/cgroup`.
fn is_membership(path: &[u8]) -> bool {
    let of = path.strip_prefix(b"/proc/");
    let process = of.and_then(|path| path.strip_suffix(b"/cgroup"));
    process.is_some_and(|process| !process.contains(&b'/'))
}

/// A file that only has the last line, that of the unified hierarchy (cgroups(7)).
fn unified_alone(fd: c_int) -> Option<c_int> {
    let mut text = Vec::new();
    let mut part = [0_u8; 4096];
    loop {
        // SAFETY: the buffer is as large as is said.
        let read = unsafe { libc::read(fd, part.as_mut_ptr().cast(), part.len()) };
        match usize::try_from(read).ok()? {
            0 => break,
            read => text.extend_from_slice(&part[..read]),
        }
    }
    let line = text
        .split_inclusive(|byte| *byte == b'\n')
        .find(|line| line.starts_with(b"0::"))?;
    // SAFETY: a name that outlives the call.
    let shown = unsafe { libc::memfd_create(c"cgroup".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: the line is as long as is said; a bad descriptor is answered with an error.
    let written = unsafe { libc::write(shown, line.as_ptr().cast(), line.len()) };
    if usize::try_from(written) != Ok(line.len()) {
        return None;
    }
    // SAFETY: plain calls on descriptors of this function.
    unsafe {
        libc::lseek(shown, 0, libc::SEEK_SET);
        libc::dup2(shown, fd);
        libc::close(shown);
    }
    Some(fd)
}
