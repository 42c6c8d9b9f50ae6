//! What a process has at a path: its root and its mounts may differ from those of this program.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open};
use nix::sys::stat::{Mode, fstatat};

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
/// own files, so such a path counts as [`Sight::Same`].
#[must_use]
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
        Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR) => Sight::Hidden,
        Err(error) => Sight::Unknown(error.into()),
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
        // The kernel gives no process the number 0.
        assert!(matches!(of(0, folder.path()), Sight::Unknown(_)));
    }

    /// Root in a namespace of its own mounts an empty file system over the folder.
    #[test]
    fn a_mount_hides_a_folder_from_the_processes_of_its_namespace_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let below = folder.path().join("pipe");
        fs::create_dir(&below).expect("a folder");
        let script = format!(
            "mount -t tmpfs none {} && echo ready && read wait",
            folder.path().display()
        );
        let mut other = std::process::Command::new("unshare")
            .args(["--mount", "sh", "-c", &script])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut said = [0; 6];
        io::Read::read_exact(other.stdout.as_mut().expect("a pipe"), &mut said)
            .expect("root may mount");
        assert!(matches!(of(other.id(), &below), Sight::Hidden));
        assert!(matches!(of(other.id(), folder.path()), Sight::Hidden));
        assert!(matches!(of(std::process::id(), &below), Sight::Same));
        drop(other.stdin.take());
        other.wait().expect("a child");
    }
}
