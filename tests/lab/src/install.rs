//! Replaces a file that may be in use.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::LabError;

/// Installs a copy of a file as a package manager does: the copy is written beside the old file, and renamed. A
/// process that runs or has mapped the old file keeps it. Writing to that file would crash slurmctld and jobs, which
/// have mapped plugins. Errors: a file cannot be written; the old one is then unchanged.
pub fn install(from: &Path, to: &Path, mode: u32) -> Result<(), LabError> {
    let mut name = std::ffi::OsString::from(".");
    name.push(to.file_name().unwrap_or_default());
    // Slurm takes every file that ends in .so for a plugin.
    name.push(".new");
    let new = to.with_file_name(name);
    let written = write(from, &new, mode)
        .and_then(|()| fs::rename(&new, to).map_err(LabError::file("replacing", to)));
    if written.is_err() {
        // A file that a killed run left is removed by the next run.
        let _ = fs::remove_file(&new);
    }
    written
}

fn write(from: &Path, new: &Path, mode: u32) -> Result<(), LabError> {
    match fs::remove_file(new) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(LabError::file("removing", new)(error));
        }
        _ => {}
    }
    let mut source = File::open(from).map_err(LabError::file("reading", from))?;
    let mut file = File::create_new(new).map_err(LabError::file("creating", new))?;
    std::io::copy(&mut source, &mut file)
        .and_then(|_| file.set_permissions(fs::Permissions::from_mode(mode)))
        // A crash of the machine must not leave an empty plugin under the final name.
        .and_then(|()| file.sync_all())
        .map_err(LabError::file("writing", new))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Promise (never): a build that is installed over the running one ends neither slurmctld nor a job.
    /// With `a_new_build_over_a_running_one_harms_nothing`.
    #[test]
    fn programs_with_the_old_file_open_keep_it() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("built"), "new").unwrap();
        fs::write(at("plugin.so"), "old").unwrap();
        // A file that a killed run left.
        fs::write(at(".plugin.so.new"), "ne").unwrap();
        let mut open = File::open(at("plugin.so")).unwrap();
        install(&at("built"), &at("plugin.so"), 0o644).unwrap();
        let mut seen = String::new();
        open.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "old");
        assert_eq!(fs::read_to_string(at("plugin.so")).unwrap(), "new");
        let mode = fs::metadata(at("plugin.so")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o644);
        // A link is replaced, its target stays.
        symlink(at("built"), at("link.so")).unwrap();
        fs::write(at("newer"), "newer").unwrap();
        install(&at("newer"), &at("link.so"), 0o755).unwrap();
        assert_eq!(fs::read_to_string(at("built")).unwrap(), "new");
        assert_eq!(fs::read_to_string(at("link.so")).unwrap(), "newer");
        let left: Vec<_> = fs::read_dir(place.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 4, "{left:?}");
    }

    #[test]
    fn a_failure_leaves_the_old_file() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        fs::write(at("plugin.so"), "old").unwrap();
        assert!(install(&at("absent"), &at("plugin.so"), 0o644).is_err());
        fs::create_dir(at("folder")).unwrap();
        assert!(install(&at("plugin.so"), &at("folder"), 0o644).is_err());
        assert_eq!(fs::read_to_string(at("plugin.so")).unwrap(), "old");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }
}
