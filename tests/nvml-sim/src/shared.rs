//! Counters in a file that many processes map at once.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// A file of 64-bit counters, mapped into memory. A process that is killed at any moment leaves complete values.
#[derive(Debug)]
pub struct Words {
    first: *const AtomicU64,
    count: usize,
}

// SAFETY: the mapping lives as long as the value, and is only reached through atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the file, which must hold at least `count` words.
    /// Errors: as opening, and as mapping; `UnexpectedEof` for a file that is too short.
    pub fn open(path: &Path, count: usize, write: bool) -> io::Result<Words> {
        let file = OpenOptions::new().read(true).write(write).open(path)?;
        let bytes = count * size_of::<AtomicU64>();
        if file.metadata()?.len() < bytes as u64 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a new mapping of a file that is open and long enough.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Words {
            first: address.cast_const().cast(),
            count,
        })
    }

    /// The counter at this position. A file opened without `write` may only be read.
    ///
    /// # Panics
    /// The position is outside the file.
    pub fn word(&self, position: usize) -> &AtomicU64 {
        assert!(position < self.count);
        // SAFETY: inside the mapping, which is aligned to a page and lives as long as self.
        unsafe { &*self.first.add(position) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `open` made, and nobody borrows from it any more.
        unsafe {
            libc::munmap(
                self.first.cast_mut().cast(),
                self.count * size_of::<AtomicU64>(),
            );
        }
    }
}
