//! Changes of files that belong to the site, such as slurm.conf: a copy is kept beside, the new text is written beside and
//! renamed, owner and mode stay. The folder may be one that others than root can change (Slurm's user has /etc/slurm on some
//! sites): new files are made where nothing is, and nothing is followed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Uid, fchown};

/// Longer files are no configuration.
const MANY_BYTES: u64 = 64 << 20;

/// So many copies have one time at most.
const MANY_COPIES: u32 = 100;

/// Why a file stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// The system refuses.
    #[error("cannot {what} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Another text than the change was made for.
    #[error("`{}` changed meanwhile and stays as it is; try again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReplaceError {
    move |source| ReplaceError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Writes `text` in the place of `before`; None: there is no such file. `copy` is the end of the name of the copy, whose path is given
/// back. A link stays, and the file that it leads to is replaced.
///
/// # Errors
/// The file has another text than `before`, or cannot be read or written; then nothing is changed.
pub fn replace(
    path: &Path,
    before: Option<&str>,
    text: &str,
    copy: &str,
) -> Result<Option<PathBuf>, ReplaceError> {
    let Some(before) = before else {
        return make(path, text).map(|()| None);
    };
    let path = &fs::canonicalize(path).map_err(failed("find", path))?;
    let old = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(failed("open", path))?;
    let of = old.metadata().map_err(failed("look at", path))?;
    let mut is = String::new();
    let mut limited = (&old).take(MANY_BYTES);
    limited
        .read_to_string(&mut is)
        .map_err(failed("read", path))?;
    if is != before || !of.is_file() {
        return Err(ReplaceError::Changed {
            path: path.to_owned(),
        });
    }
    let times = fs::FileTimes::new().set_modified(of.modified().map_err(failed("look at", path))?);
    let (kept, file) = keep(path, copy, before, &of)?;
    file.set_times(times)
        .map_err(failed("set the time of", &kept))?;
    let new = path.with_file_name(format!(".{}.{}", name(path), std::process::id()));
    let renamed = write_new(&new, text, Some(&of))
        .and_then(|_| fs::rename(&new, path).map_err(failed("rename to", path)));
    if renamed.is_err() {
        let _ = fs::remove_file(&new);
    }
    renamed?;
    sync_folder(path)?;
    Ok(Some(kept))
}

/// Writes the copy, by a name that no other one has.
fn keep(
    path: &Path,
    copy: &str,
    text: &str,
    like: &fs::Metadata,
) -> Result<(PathBuf, File), ReplaceError> {
    let mut number = 1;
    loop {
        let end = match number {
            1 => copy.to_owned(),
            _ => format!("{copy}-{number}"),
        };
        let kept = beside(path, &end);
        match write_new(&kept, text, Some(like)) {
            Ok(file) => return Ok((kept, file)),
            Err(ReplaceError::Io { source, .. })
                if source.kind() == io::ErrorKind::AlreadyExists && number < MANY_COPIES => {}
            Err(error) => return Err(error),
        }
        number += 1;
    }
}

/// A new file, and its folder where that is missing; all may read it.
fn make(path: &Path, text: &str) -> Result<(), ReplaceError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed("make", folder))?;
    }
    let new = path.with_file_name(format!(".{}.{}", name(path), std::process::id()));
    // A link and no rename: what came meanwhile stays.
    let made = write_new(&new, text, None)
        .and_then(|_| fs::hard_link(&new, path).map_err(failed("make", path)));
    let _ = fs::remove_file(&new);
    made?;
    sync_folder(path)
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// The copy's name. What includes all files of a folder must not take it for one of them.
fn beside(path: &Path, copy: &str) -> PathBuf {
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
    let hidden = if folder.to_string_lossy().ends_with(".d") {
        "."
    } else {
        ""
    };
    path.with_file_name(format!("{hidden}{}.{copy}", name(path)))
}

fn write_new(path: &Path, text: &str, like: Option<&fs::Metadata>) -> Result<File, ReplaceError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed("make", path))?;
    file.write_all(text.as_bytes())
        .map_err(failed("write", path))?;
    if let Some(like) = like {
        let owner = (Uid::from_raw(like.uid()), Gid::from_raw(like.gid()));
        fchown(&file, Some(owner.0), Some(owner.1))
            .map_err(io::Error::from)
            .map_err(failed("set the owner of", path))?;
    }
    // After the owner, whose change takes some bits away.
    let mode = like.map_or(0o644, |like| like.mode() & 0o7777);
    file.set_permissions(fs::Permissions::from_mode(mode))
        .map_err(failed("set the mode of", path))?;
    file.sync_all().map_err(failed("write", path))?;
    Ok(file)
}

fn sync_folder(path: &Path) -> Result<(), ReplaceError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let file = File::open(folder).map_err(failed("open", folder))?;
    file.sync_all().map_err(failed("write", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap()
    }

    #[test]
    fn a_copy_is_kept_and_owner_mode_and_links_stay() {
        let place = tempfile::tempdir().unwrap();
        let (path, link) = (
            place.path().join("real.conf"),
            place.path().join("slurm.conf"),
        );
        fs::write(&path, "old\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(1), Some(2)).unwrap();
        }
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let of = fs::metadata(&path).unwrap();
        let copy = replace(&link, Some("old\n"), "new\n", "before-x")
            .unwrap()
            .unwrap();
        assert_eq!(copy, path.with_file_name("real.conf.before-x"));
        assert_eq!((read(&path), read(&copy)), ("new\n".into(), "old\n".into()));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        for file in [&path, &copy] {
            let is = fs::metadata(file).unwrap();
            assert_eq!(
                (is.uid(), is.gid(), is.mode()),
                (of.uid(), of.gid(), of.mode())
            );
        }
        assert_eq!(fs::metadata(&copy).unwrap().mtime(), of.mtime());
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_file_that_changed_meanwhile_or_came_meanwhile_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("a");
        fs::write(&path, "theirs").unwrap();
        let changed = replace(&path, Some("old"), "new", "c");
        assert!(matches!(changed, Err(ReplaceError::Changed { .. })));
        assert!(replace(&path, None, "new", "c").is_err());
        // The copy of another run is not written over.
        fs::write(place.path().join("a.c"), "copy").unwrap();
        let copy = replace(&path, Some("theirs"), "new", "c").unwrap();
        assert_eq!(copy, Some(place.path().join("a.c-2")));
        assert_eq!(read(&place.path().join("a.c")), "copy");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_new_file_has_its_folder_and_a_copy_in_a_folder_of_parts_is_hidden() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("plugstack.conf.d/x.conf");
        assert_eq!(replace(&path, None, "new", "c").unwrap(), None);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        let copy = replace(&path, Some("new"), "newer", "c").unwrap();
        assert_eq!(copy, Some(path.with_file_name(".x.conf.c")));
    }
}
