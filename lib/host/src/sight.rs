//! What a process has at a path: its root and its mounts may differ from those of this program.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};

/// Whether a process has the same file or folder at a path as this program.
#[derive(Debug)]
pub enum Sight {
    Same,
    /// It has nothing there, or something else.
    Hidden,
    /// The kernel does not tell, or this program itself has nothing there.
    Unknown(io::Error),
}

/// Compares by device and inode, which a bind mount keeps. Links in the path that begin with `/` lead to this program's
/// own files, so such a path counts as [`Sight::Same`]. So does the version of a file that was replaced since, because
/// the mount of a container keeps it.
pub fn of(pid: u32, path: &Path) -> Sight {
    let own = match fs::metadata(path) {
        Ok(own) => own,
        Err(error) => return Sight::Unknown(error),
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    // Opened once: a process that ends in the meantime has no root, which must not look like an empty one.
    let root = match open(format!("/proc/{pid}/root").as_str(), flags, Mode::empty()) {
        Ok(root) => root,
        Err(error) => return Sight::Unknown(error.into()),
    };
    let below_root = path.strip_prefix("/").unwrap_or(path);
    match fstatat(&root, below_root, AtFlags::empty()) {
        Ok(seen) if (seen.st_dev, seen.st_ino) == (own.dev(), own.ino()) => Sight::Same,
        Ok(seen) if is_replaced(&seen, &own) => Sight::Same,
        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => Sight::Hidden,
        Err(error) => Sight::Unknown(error.into()),
    }
}

/// Whether a file has no name any more and belongs to the owner of the new one. A user can mount no such file of
/// root's: `mount` and `move_mount` refuse a file without a name (ENOENT).
fn is_replaced(seen: &FileStat, own: &Metadata) -> bool {
    own.is_file()
        && seen.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits()
        && (seen.st_dev, seen.st_uid) == (own.dev(), own.uid())
        && seen.st_nlink == 0
}

/// As [`of`], for a program that must not wait for a file system of the process's user, such as a FUSE that does not
/// answer. While one look hangs, all others are unknown: at most one thread waits.
pub fn of_in_time(pid: u32, path: &Path, limit: Duration) -> Sight {
    static LOOKS: AtomicBool = AtomicBool::new(false);
    let late = || Sight::Unknown(io::ErrorKind::TimedOut.into());
    if LOOKS.swap(true, Ordering::AcqRel) {
        return late();
    }
    let (sender, receiver) = channel();
    let path = path.to_owned();
    let started = thread::Builder::new().spawn(move || {
        let seen = of(pid, &path);
        LOOKS.store(false, Ordering::Release);
        // Nobody waits any more after the limit.
        let _ = sender.send(seen);
    });
    match started {
        Ok(_) => receiver.recv_timeout(limit).unwrap_or_else(|_| late()),
        Err(error) => {
            LOOKS.store(false, Ordering::Release);
            Sight::Unknown(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_our_root_has_our_files() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(matches!(of(std::process::id(), folder.path()), Sight::Same));
        let missing = folder.path().join("missing");
        assert!(matches!(
            of(std::process::id(), &missing),
            Sight::Unknown(_)
        ));
        let limit = Duration::from_secs(60);
        for _ in 0..3 {
            let seen = of_in_time(std::process::id(), folder.path(), limit);
            assert!(matches!(seen, Sight::Same), "{seen:?}");
        }
        // The kernel gives no process the number 0.
        assert!(matches!(of(0, folder.path()), Sight::Unknown(_)));
    }

    /// Looks at a process whose namespace has the mounts of a script of root.
    fn with_mounts<T>(script: &str, look: impl FnOnce(u32) -> T) -> T {
        let script = format!("{script} && echo ready && read wait");
        let mut other = std::process::Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut said = [0; 6];
        io::Read::read_exact(other.stdout.as_mut().expect("a pipe"), &mut said)
            .expect("root may mount");
        let seen = look(other.id());
        drop(other.stdin.take());
        other.wait().expect("a child");
        seen
    }

    /// Root in a namespace of its own mounts an empty file system over the folder.
    #[test]
    fn a_mount_hides_a_folder_from_the_processes_of_its_namespace_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let below = folder.path().join("pipe");
        fs::create_dir(&below).expect("a folder");
        let script = format!("mount -t tmpfs none {}", folder.path().display());
        let look = |other: u32| {
            assert!(matches!(of(other, &below), Sight::Hidden));
            assert!(matches!(of(other, folder.path()), Sight::Hidden));
            assert!(matches!(of(std::process::id(), &below), Sight::Same));
        };
        with_mounts(&script, look);
    }

    /// As a container whose library is replaced by an update. The mount of another file hides it.
    #[test]
    fn a_mount_of_a_file_shows_it_after_it_was_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let [library, new, other] = ["lib.so", "new", "other"].map(|name| folder.path().join(name));
        for file in [&library, &new, &other] {
            fs::write(file, "").expect("a file");
        }
        let kept = tempfile::tempdir().expect("a folder");
        // A container has a file system of its own; the kernel ends a mount on a file that is renamed over.
        let seen_with_mount_of = |from: &str, update: bool| {
            let (folder, kept) = (folder.path().display(), kept.path().display());
            let script = format!(
                "mount --bind {folder} {kept} && mount -t tmpfs none {folder} && touch {folder}/lib.so && \
                 mount --bind {kept}/{from} {folder}/lib.so"
            );
            with_mounts(&script, |container| {
                if update {
                    fs::rename(&new, &library).expect("the folder is root's");
                }
                of(container, &library)
            })
        };
        let hidden = seen_with_mount_of("other", false);
        assert!(matches!(hidden, Sight::Hidden), "{hidden:?}");
        let seen = seen_with_mount_of("lib.so", true);
        assert!(matches!(seen, Sight::Same), "{seen:?}");
    }
}
