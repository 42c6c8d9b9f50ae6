//! System calls that nix has no function for.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::device::DeviceNumber;

/// `KCMP_FILES` of linux/kcmp.h.
const KCMP_FILES: libc::c_int = 2;

/// The device number, if a path leads to a character device; None for other files: statx(2). Links are followed, also
/// those in /proc/PID/fd. The kernel answers from its cache, so neither a network file server nor a user's FUSE
/// program can block the call. Errors: the path does not exist, or the kernel refuses.
pub fn device_behind(path: &Path) -> io::Result<Option<DeviceNumber>> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = libc::AT_STATX_DONT_SYNC | libc::AT_NO_AUTOMOUNT;
    let mut stat = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path ends with a zero byte, and the kernel writes into a structure of the size that it knows.
    let done = unsafe {
        libc::statx(
            libc::AT_FDCWD,
            path.as_ptr(),
            flags,
            libc::STATX_TYPE,
            stat.as_mut_ptr(),
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: any bytes are such a structure, and all of them are set: with zero, and by the call.
    let stat = unsafe { stat.assume_init() };
    let is_device = u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFCHR;
    Ok(is_device.then_some(DeviceNumber {
        major: stat.stx_rdev_major,
        minor: stat.stx_rdev_minor,
    }))
}

/// Whether two threads share a table of open files: kcmp(2). False if the kernel cannot tell.
pub fn share_files(thread: i32, other: i32) -> bool {
    // SAFETY: kcmp takes numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_kcmp, thread, other, KCMP_FILES, 0, 0) == 0 }
}

/// Gives the loopback device of this thread's network 127.0.0.1 and a second address: netdevice(7).
/// Errors: this user may not change the network, or the kernel refuses.
pub fn start_loopback(second: Ipv4Addr) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let up = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // The kernel adds 127.0.0.1 to a loopback device that comes up.
    let up = request(c"lo", libc::__c_anonymous_ifr_ifru { ifru_flags: up });
    set_device(&socket, libc::SIOCSIFFLAGS, &up)?;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr {
            s_addr: u32::from(second).to_be(),
        },
        sin_zero: [0; 8],
    };
    // SAFETY: both are the kernel's forms of an address, and have the same size.
    let address = unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) };
    let address = libc::__c_anonymous_ifr_ifru { ifru_addr: address };
    set_device(&socket, libc::SIOCSIFADDR, &request(c"lo:1", address))
}

fn request(device: &CStr, value: libc::__c_anonymous_ifr_ifru) -> libc::ifreq {
    let mut name = [0; libc::IFNAMSIZ];
    let bytes = device.to_bytes().iter();
    for (place, byte) in name.iter_mut().zip(bytes.take(libc::IFNAMSIZ - 1)) {
        *place = *byte as libc::c_char;
    }
    libc::ifreq {
        ifr_name: name,
        ifr_ifru: value,
    }
}

fn set_device(socket: &UdpSocket, what: libc::Ioctl, request: &libc::ifreq) -> io::Result<()> {
    // SAFETY: the socket is open, and the kernel reads a whole ifreq, whose name ends with a zero byte.
    match unsafe { libc::ioctl(socket.as_raw_fd(), what, request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A process that stays the same process even if its pid is reused: its pidfd (pidfd_open(2)), or, where the kernel
/// has none (before 5.3, as that of Red Hat 8), its pid and the moment at which it started.
#[derive(Debug)]
pub struct ProcessHandle(Handle);

#[derive(Debug)]
enum Handle {
    Descriptor(OwnedFd),
    /// `ticks`: clock ticks since the boot.
    Started {
        pid: i32,
        ticks: u64,
    },
}

impl ProcessHandle {
    /// Opens the process that has this pid now. Errors: there is no such process (ESRCH).
    pub fn open(pid: i32) -> io::Result<ProcessHandle> {
        match pidfd(pid) {
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                let ticks = start_of(pid)?;
                Ok(ProcessHandle(Handle::Started { pid, ticks }))
            }
            other => Ok(ProcessHandle(Handle::Descriptor(other?))),
        }
    }

    /// Sends SIGKILL: pidfd_send_signal(2), or kill(2) right after a look at the start.
    /// Errors: the process has ended (ESRCH), or this program may not signal it (EPERM).
    pub fn kill(&self) -> io::Result<()> {
        let done = match &self.0 {
            Handle::Descriptor(descriptor) => {
                let no_details = std::ptr::null::<libc::siginfo_t>();
                let (descriptor, signal) = (descriptor.as_raw_fd(), libc::SIGKILL);
                let call = libc::SYS_pidfd_send_signal;
                // SAFETY: the descriptor is open, and the kernel takes a null pointer for the details of an ordinary
                // signal.
                unsafe { libc::syscall(call, descriptor, signal, no_details, 0) }
            }
            Handle::Started { pid, ticks } => {
                if start_of(*pid)? != *ticks {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                // SAFETY: kill takes two numbers and touches no memory.
                unsafe { libc::kill(*pid, libc::SIGKILL) }.into()
            }
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Whether the kernel has pidfd_open(2).
pub fn has_pidfd() -> bool {
    pidfd(1).is_ok()
}

pub(crate) fn pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open takes two numbers and touches no memory.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let descriptor = libc::c_int::try_from(descriptor).unwrap_or(-1);
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call gave a new descriptor, which nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// When a process started, in clock ticks since the boot: field 22 of proc_pid_stat(5). A user can write only the name
/// before it.
fn start_of(pid: i32) -> io::Result<u64> {
    let ended = || io::Error::from_raw_os_error(libc::ESRCH);
    let text = std::fs::read(format!("/proc/{pid}/stat")).map_err(|_| ended())?;
    let name_end = text.iter().rposition(|byte| *byte == b')');
    let rest = name_end.and_then(|end| std::str::from_utf8(text.get(end + 1..)?).ok());
    // The state after the name is field 3.
    let field = rest.and_then(|rest| rest.split_ascii_whitespace().nth(22 - 3));
    field.and_then(|field| field.parse().ok()).ok_or_else(ended)
}

/// Sets an extended attribute of a file without following a link at the end of the path: lsetxattr(2).
/// Errors: the kernel refuses, or a name contains a zero byte.
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

/// The length of an extended attribute of a file: lgetxattr(2).
pub(crate) fn attribute_length(path: &Path, name: &str) -> io::Result<usize> {
    let (path, name) = (
        CString::new(path.as_os_str().as_bytes())?,
        CString::new(name)?,
    );
    // SAFETY: both names end with a zero byte; with the size 0 the kernel writes nothing.
    let length = unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
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
    fn a_kernel_without_pidfd_kills_by_number_and_start() {
        test_seed::without(&[libc::SYS_pidfd_open], || {
            a_process_is_killed_by_its_handle_once();
            assert!(matches!(
                ProcessHandle::open(-1).unwrap_err().raw_os_error(),
                Some(libc::ESRCH)
            ));
            let pid = std::process::id() as i32;
            let ticks = start_of(pid).unwrap();
            let reused = ProcessHandle(Handle::Started {
                pid,
                ticks: ticks - 1,
            });
            let gone = reused.kill().unwrap_err();
            assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
            assert!(!has_pidfd());
        });
        assert!(has_pidfd());
    }

    #[test]
    fn a_kernel_that_cannot_compare_files_says_no() {
        test_seed::without(&[libc::SYS_kcmp], || {
            // SAFETY: gettid cannot fail and touches no memory.
            let own = unsafe { libc::gettid() };
            assert!(!share_files(own, own));
        });
    }

    #[test]
    fn a_device_is_known_behind_an_open_descriptor() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let path = format!("/proc/self/fd/{}", null.as_raw_fd());
        let number = DeviceNumber { major: 1, minor: 3 };
        assert_eq!(device_behind(Path::new(&path)).unwrap(), Some(number));
        assert_eq!(device_behind(Path::new("/proc")).unwrap(), None);
        assert!(device_behind(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn threads_share_their_files_and_processes_do_not() {
        // SAFETY: gettid cannot fail and touches no memory.
        let thread = || unsafe { libc::gettid() };
        let own = thread();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| share_files(own, thread())).join();
            assert!(other.unwrap());
        });
        assert!(!share_files(own, 1));
    }

    #[test]
    fn nobody_has_the_number_minus_one() {
        assert!(ProcessHandle::open(-1).is_err());
    }
}
