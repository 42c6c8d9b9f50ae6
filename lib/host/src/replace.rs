//! Changes of files that belong to the site, such as slurm.conf: a copy of the old text is kept beside the file, the
//! new text is written to a new file and renamed; owner and mode stay. On some sites Slurm's user can write to
//! /etc/slurm, so new files are only created under names that do not exist, and links in the folder are not followed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Uid, fchown};

/// A longer file is not a configuration.
const MANY_BYTES: u64 = 64 << 20;

/// The most copies with the same time in their name.
const MANY_COPIES: u32 = 100;

/// The reasons why a file stays unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ReplaceError {
    /// A system call failed.
    #[error("{what} `{}` failed: {source}", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// Another program changed the file after gpufrac read it.
    /// Cure: Run the command again.
    #[error("`{}` changed meanwhile and stays as it is; try again", path.display())]
    Changed { path: PathBuf },
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ReplaceError {
    move |source| ReplaceError::Io {
        what,
        path: path.to_owned(),
        source,
    }
}

/// Replaces the text `before` of a file by `text`; `before` is None if the file does not exist yet. Returns the path
/// of the copy, whose name ends with `copy`. If `path` is a link, its target is replaced.
/// Errors: the file has another text than `before`, or cannot be read or written. It is then unchanged.
pub fn replace(
    path: &Path,
    before: Option<&str>,
    text: &str,
    copy: &str,
) -> Result<Option<PathBuf>, ReplaceError> {
    let Some(before) = before else {
        return make(path, text).map(|()| None);
    };
    let path = &fs::canonicalize(path).map_err(failed("finding", path))?;
    let old = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
        .map_err(failed("opening", path))?;
    let of = old
        .metadata()
        .map_err(failed("reading the attributes of", path))?;
    let mut is = String::new();
    let mut limited = (&old).take(MANY_BYTES);
    limited
        .read_to_string(&mut is)
        .map_err(failed("reading", path))?;
    if is != before || !of.is_file() {
        return Err(ReplaceError::Changed {
            path: path.to_owned(),
        });
    }
    let times = fs::FileTimes::new().set_modified(
        of.modified()
            .map_err(failed("reading the attributes of", path))?,
    );
    let (kept, file) = keep(path, copy, before, &of)?;
    file.set_times(times)
        .map_err(failed("setting the time of", &kept))?;
    let new = path.with_file_name(format!(".{}.{}", name(path), std::process::id()));
    let renamed = write_new(&new, text, Some(&of))
        .and_then(|_| fs::rename(&new, path).map_err(failed("renaming to", path)));
    if renamed.is_err() {
        let _ = fs::remove_file(&new);
    }
    renamed?;
    sync_folder(path)?;
    Ok(Some(kept))
}

/// Writes the copy under a new name.
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

/// Creates a file, and its folder if that is missing; all users can read it.
fn make(path: &Path, text: &str) -> Result<(), ReplaceError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed("making", folder))?;
    }
    let new = path.with_file_name(format!(".{}.{}", name(path), std::process::id()));
    // A hard link instead of a rename, because it fails if the file was created meanwhile.
    let made = write_new(&new, text, None)
        .and_then(|_| fs::hard_link(&new, path).map_err(failed("making", path)));
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

/// The path of the copy. In a folder `*.d` its name begins with a dot, because programs read every other file there.
fn beside(path: &Path, copy: &str) -> PathBuf {
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default();
    let hidden = if folder.to_string_lossy().ends_with(".d") { "." } else { "" };
    path.with_file_name(format!("{hidden}{}.{copy}", name(path)))
}

fn write_new(path: &Path, text: &str, like: Option<&fs::Metadata>) -> Result<File, ReplaceError> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(failed("making", path))?;
    file.write_all(text.as_bytes())
        .map_err(failed("writing", path))?;
    if let Some(like) = like {
        let owner = (Uid::from_raw(like.uid()), Gid::from_raw(like.gid()));
        fchown(&file, Some(owner.0), Some(owner.1))
            .map_err(io::Error::from)
            .map_err(failed("setting the owner of", path))?;
    }
    // After the change of owner, which clears some mode bits.
    let mode = like.map_or(0o644, |like| like.mode() & 0o7777);
    file.set_permissions(fs::Permissions::from_mode(mode))
        .map_err(failed("setting the mode of", path))?;
    file.sync_all().map_err(failed("writing", path))?;
    Ok(file)
}

fn sync_folder(path: &Path) -> Result<(), ReplaceError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let file = File::open(folder).map_err(failed("opening", folder))?;
    file.sync_all().map_err(failed("writing", folder))
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
        // The copy of an earlier run is not overwritten.
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
