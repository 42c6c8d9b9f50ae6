//! Resources that users of a machine can use up.

use std::io;

use nix::errno::Errno;

/// Whether a system call failed because a resource was used up: space, a quota, memory, processes, open files, locks.
/// Users can use up and free each of them, so the error is no fault of the machine, and temporary.
pub fn is_shortage(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(
            Errno::ENOSPC
                | Errno::EDQUOT
                | Errno::ENOMEM
                | Errno::EAGAIN
                | Errno::EMFILE
                | Errno::ENFILE
                | Errno::ENOLCK
                | Errno::ENOBUFS
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exhausted_resources_differ_from_faults() {
        for errno in [Errno::ENOSPC, Errno::EDQUOT, Errno::ENOMEM, Errno::EAGAIN] {
            assert!(is_shortage(&errno.into()), "{errno}");
        }
        for errno in [Errno::EIO, Errno::EROFS, Errno::EACCES, Errno::ENOENT] {
            assert!(!is_shortage(&errno.into()), "{errno}");
        }
        assert!(!is_shortage(&io::Error::other("no number")));
    }
}
