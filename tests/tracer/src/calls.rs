//! The system calls that change something outside of their process.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::libc::{self, c_long, user_regs_struct};
use nix::unistd::Pid;

/// The meaning of a call's argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// The argument at this position is the address of a path.
    Path(usize),
    /// The argument at this position is a descriptor.
    File(usize),
    /// The call opens the path at the first position, with the flags at the second.
    Opened(usize, usize),
    /// No argument names the subject.
    Unnamed,
}

use Subject::{File as OfFile, Opened, Path as OfPath, Unnamed};

/// Calls that change files, devices, mounts, processes or data of other programs.
const CHANGES: &[(c_long, &str, Subject)] = &[
    (libc::SYS_open, "open", Opened(0, 1)),
    (libc::SYS_openat, "openat", Opened(1, 2)),
    (libc::SYS_creat, "creat", OfPath(0)),
    (libc::SYS_openat2, "openat2", OfPath(1)),
    (libc::SYS_write, "write", OfFile(0)),
    (libc::SYS_writev, "writev", OfFile(0)),
    (libc::SYS_pwrite64, "pwrite64", OfFile(0)),
    (libc::SYS_pwritev, "pwritev", OfFile(0)),
    (libc::SYS_pwritev2, "pwritev2", OfFile(0)),
    (libc::SYS_sendfile, "sendfile", OfFile(0)),
    (libc::SYS_copy_file_range, "copy_file_range", OfFile(2)),
    (libc::SYS_truncate, "truncate", OfPath(0)),
    (libc::SYS_ftruncate, "ftruncate", OfFile(0)),
    (libc::SYS_fallocate, "fallocate", OfFile(0)),
    (libc::SYS_fsync, "fsync", OfFile(0)),
    (libc::SYS_fdatasync, "fdatasync", OfFile(0)),
    (libc::SYS_rename, "rename", OfPath(0)),
    (libc::SYS_renameat, "renameat", OfPath(1)),
    (libc::SYS_renameat2, "renameat2", OfPath(1)),
    (libc::SYS_unlink, "unlink", OfPath(0)),
    (libc::SYS_unlinkat, "unlinkat", OfPath(1)),
    (libc::SYS_mkdir, "mkdir", OfPath(0)),
    (libc::SYS_mkdirat, "mkdirat", OfPath(1)),
    (libc::SYS_rmdir, "rmdir", OfPath(0)),
    (libc::SYS_mknod, "mknod", OfPath(0)),
    (libc::SYS_mknodat, "mknodat", OfPath(1)),
    (libc::SYS_link, "link", OfPath(1)),
    (libc::SYS_linkat, "linkat", OfPath(3)),
    (libc::SYS_symlink, "symlink", OfPath(1)),
    (libc::SYS_symlinkat, "symlinkat", OfPath(2)),
    (libc::SYS_chmod, "chmod", OfPath(0)),
    (libc::SYS_fchmod, "fchmod", OfFile(0)),
    (libc::SYS_fchmodat, "fchmodat", OfPath(1)),
    (libc::SYS_fchmodat2, "fchmodat2", OfPath(1)),
    (libc::SYS_chown, "chown", OfPath(0)),
    (libc::SYS_lchown, "lchown", OfPath(0)),
    (libc::SYS_fchown, "fchown", OfFile(0)),
    (libc::SYS_fchownat, "fchownat", OfPath(1)),
    (libc::SYS_utimensat, "utimensat", OfPath(1)),
    (libc::SYS_setxattr, "setxattr", OfPath(0)),
    (libc::SYS_lsetxattr, "lsetxattr", OfPath(0)),
    (libc::SYS_fsetxattr, "fsetxattr", OfFile(0)),
    (libc::SYS_removexattr, "removexattr", OfPath(0)),
    (libc::SYS_lremovexattr, "lremovexattr", OfPath(0)),
    (libc::SYS_fremovexattr, "fremovexattr", OfFile(0)),
    (libc::SYS_flock, "flock", OfFile(0)),
    (libc::SYS_ioctl, "ioctl", OfFile(0)),
    (libc::SYS_mount, "mount", OfPath(1)),
    (libc::SYS_umount2, "umount2", OfPath(0)),
    (libc::SYS_move_mount, "move_mount", OfPath(3)),
    (libc::SYS_fsmount, "fsmount", Unnamed),
    (libc::SYS_fsconfig, "fsconfig", Unnamed),
    (libc::SYS_unshare, "unshare", Unnamed),
    (libc::SYS_setns, "setns", Unnamed),
    (libc::SYS_bpf, "bpf", Unnamed),
    (libc::SYS_connect, "connect", OfFile(0)),
    (libc::SYS_sendto, "sendto", OfFile(0)),
    (libc::SYS_sendmsg, "sendmsg", OfFile(0)),
    (libc::SYS_sendmmsg, "sendmmsg", OfFile(0)),
    (libc::SYS_kill, "kill", Unnamed),
    (libc::SYS_tkill, "tkill", Unnamed),
    (libc::SYS_tgkill, "tgkill", Unnamed),
    (libc::SYS_pidfd_send_signal, "pidfd_send_signal", Unnamed),
    (libc::SYS_fork, "fork", Unnamed),
    (libc::SYS_vfork, "vfork", Unnamed),
    (libc::SYS_clone, "clone", Unnamed),
    (libc::SYS_clone3, "clone3", Unnamed),
    (libc::SYS_execve, "execve", OfPath(0)),
    (libc::SYS_execveat, "execveat", OfPath(1)),
];

/// With one of these flags an open file can be changed, or was changed.
const WRITES: i32 = libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC | libc::O_APPEND;

/// A system call that changes something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    pub name: &'static str,
    /// The path or file of the call, if its arguments name it.
    pub subject: Option<PathBuf>,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        let Some(subject) = &self.subject else {
            return Ok(());
        };
        let mut parts: Vec<_> = subject.iter().collect();
        // Folder and name are enough to identify a file.
        let last = parts.split_off(parts.len().saturating_sub(2));
        write!(f, " {}", last.iter().collect::<PathBuf>().display())
    }
}

impl Call {
    /// The call that a thread is about to make; None if it changes nothing.
    pub(crate) fn of(thread: Pid, registers: &user_regs_struct) -> Option<Call> {
        let number = registers.orig_rax as c_long;
        let &(_, name, subject) = CHANGES.iter().find(|(known, ..)| *known == number)?;
        let arguments = arguments(registers);
        let subject = match subject {
            OfPath(at) => Some(text(thread, arguments[at])),
            Opened(_, flags) if arguments[flags] as i32 & WRITES == 0 => return None,
            Opened(path, _) => Some(text(thread, arguments[path])),
            OfFile(at) => {
                let file = file(thread, arguments[at]);
                if is_private(arguments[at], file.as_deref()) {
                    return None;
                }
                file
            }
            Unnamed => None,
        };
        Some(Call { name, subject })
    }
}

/// The arguments of the call that a thread is about to make.
pub(crate) fn arguments(registers: &user_regs_struct) -> [u64; 6] {
    let it = registers;
    [it.rdi, it.rsi, it.rdx, it.r10, it.r8, it.r9]
}

/// The file that a descriptor of a thread is open on.
pub(crate) fn file(thread: Pid, descriptor: u64) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{thread}/fd/{}", descriptor as i32)).ok()
}

/// Whether a file is output of the program, or private to the process.
fn is_private(descriptor: u64, file: Option<&Path>) -> bool {
    let is_output = [libc::STDOUT_FILENO, libc::STDERR_FILENO].contains(&(descriptor as i32));
    let name = file.and_then(Path::to_str).unwrap_or_default();
    let kinds = ["pipe:", "anon_inode:", "/memfd:"];
    is_output || kinds.iter().any(|kind| name.starts_with(kind))
}

/// The text at an address of a thread's memory.
fn text(thread: Pid, address: u64) -> PathBuf {
    let mut bytes = [0; 512];
    let memory = File::open(format!("/proc/{thread}/mem"));
    let read = memory.and_then(|memory| memory.read_at(&mut bytes, address));
    let mut lines = bytes[..read.unwrap_or(0)].split(|byte| *byte == 0);
    let text = lines.next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned().into()
}
