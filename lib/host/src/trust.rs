//! Whether only root can change the file at a path. [`crate::files::RootDir`] refuses links; Slurm follows them when
//! it looks for programs and plugins, so each link on the way is checked, too.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use crate::files::FileError;

/// More links than this are a loop; the kernel has the same limit.
const MOST_LINKS: usize = 40;
const STICKY: u32 = 0o1000;
const OTHERS_WRITE: u32 = 0o022;

/// Follows a path to its end as root would. Refuses a path on which others than root could replace something: a file,
/// folder or link with another owner, or one that others can write. Returns the path without links.
/// Errors: [`FileError::Untrusted`] with the folder or file that others can change; or a file cannot be read.
pub fn resolve(path: &Path) -> Result<PathBuf, FileError> {
    let mut left = parts(path);
    let mut at = PathBuf::from("/");
    check(&at, true)?;
    let mut links = 0;
    while let Some(part) = left.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let meta = fs::symlink_metadata(&next)
            .map_err(|e| FileError::io("reading the attributes of", &next, e))?;
        if !meta.is_symlink() {
            check(&next, !left.is_empty())?;
            at = next;
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Err(FileError::Link { path: next });
        }
        // The owner of a link can replace it in a folder that all users can write, such as /tmp.
        if meta.uid() != 0 {
            return Err(untrusted(&next, &meta));
        }
        let target = fs::read_link(&next).map_err(|e| FileError::io("reading", &next, e))?;
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        left.extend(parts(&target));
    }
    Ok(at)
}

/// The components of the path, the last first.
fn parts(path: &Path) -> Vec<OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    let mut parts: Vec<OsString> = parts.collect();
    parts.reverse();
    parts
}

fn check(path: &Path, on_the_way: bool) -> Result<(), FileError> {
    let meta = fs::symlink_metadata(path)
        .map_err(|e| FileError::io("reading the attributes of", path, e))?;
    let shared = meta.mode() & OTHERS_WRITE != 0;
    let sticky = on_the_way && meta.is_dir() && meta.mode() & STICKY != 0;
    if meta.uid() == 0 && (!shared || sticky) {
        Ok(())
    } else {
        Err(untrusted(path, &meta))
    }
}

fn untrusted(path: &Path, meta: &fs::Metadata) -> FileError {
    FileError::Untrusted {
        path: path.to_owned(),
        owner: meta.uid(),
        mode: meta.mode() & 0o7777,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn each_step_of_the_way_is_roots() {
        test_seed::needs_root();
        let keep = tempfile::tempdir().unwrap();
        let root = keep.path().canonicalize().unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        let folder = root.join("lib/slurm");
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("plugin.so");
        fs::write(&file, "").unwrap();
        symlink("slurm/../slurm", root.join("lib/link")).unwrap();
        let way = root.join("lib/link/plugin.so");
        assert_eq!(resolve(&way).unwrap(), file);
        let refused = |path: &Path| match resolve(&way) {
            Err(FileError::Untrusted { path: at, .. }) => assert_eq!(at, path),
            other => panic!("{other:?}"),
        };
        for path in [&folder, &file, &root] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o775)).unwrap();
            refused(path);
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            chown(path, Some(65534), None).unwrap();
            refused(path);
            chown(path, Some(0), None).unwrap();
        }
        assert!(resolve(&way).is_ok());
        assert!(resolve(&root.join("none")).unwrap_err().is_not_found());
        symlink("self", root.join("self")).unwrap();
        assert!(matches!(
            resolve(&root.join("self")),
            Err(FileError::Link { .. })
        ));
    }
}
