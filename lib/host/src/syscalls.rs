//! System calls that nix has no function for.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A process, whatever becomes of its number: pidfd_open(2).
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// The process that has this number now.
    ///
    /// # Errors
    /// There is none (ESRCH), or the kernel is older than 5.3 (ENOSYS).
    pub fn open(pid: i32) -> io::Result<ProcessHandle> {
        // SAFETY: pidfd_open takes two numbers and touches no memory.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        let descriptor = libc::c_int::try_from(descriptor).unwrap_or(-1);
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call gave a new descriptor, which nobody else has.
        Ok(ProcessHandle(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Sends SIGKILL: pidfd_send_signal(2).
    ///
    /// # Errors
    /// The process is gone (ESRCH), or is not ours to signal (EPERM).
    pub fn kill(&self) -> io::Result<()> {
        let no_details = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: the descriptor is open, and the kernel takes a null pointer for the details of an ordinary signal.
        let done = unsafe {
            let descriptor = self.0.as_raw_fd();
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                descriptor,
                libc::SIGKILL,
                no_details,
                0,
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Sets an extended attribute of a file, not following a link at the path's end: lsetxattr(2).
///
/// # Errors
/// The kernel refuses, or a name has a zero byte.
pub(crate) fn set_attribute(path: &Path, name: &str, value: &[u8]) -> io::Result<()> {
    let (path, name) = (
        CString::new(path.as_os_str().as_bytes())?,
        CString::new(name)?,
    );
    // SAFETY: both names end with a zero byte, and the value is as long as is said; the kernel reads all three.
    let done = unsafe {
        libc::lsetxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_killed_by_its_handle_once() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let handle = ProcessHandle::open(child.id() as i32).unwrap();
        handle.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        let gone = handle.kill().unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn nobody_has_the_number_minus_one() {
        assert!(ProcessHandle::open(-1).is_err());
    }
}
