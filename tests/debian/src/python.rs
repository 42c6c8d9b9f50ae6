//! Packages of PyPI, each set of them in a folder of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};

use crate::{DebianError, at, run};

/// The folder of the programs of `packages`, in pip's words (`name==version`), and of a `python` that imports them.
/// `folder` holds them; the first program that asks installs them, and others that ask meanwhile wait for it.
/// Errors: PyPI cannot be reached, or `folder` cannot be written.
pub fn python(folder: &Path, packages: &[&str]) -> Result<PathBuf, DebianError> {
    let programs = folder.join("bin");
    fs::create_dir_all(folder).map_err(at(folder))?;
    // Beside the folder, because an installation clears the folder.
    let path = folder.with_extension("lock");
    let file = File::create(&path).map_err(at(&path))?;
    let _lock =
        Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| at(&path)(error.into()))?;
    // Written last: without this file an installation was ended before its end.
    let complete = folder.join("complete");
    let wanted = packages.join("\n");
    if fs::read_to_string(&complete).is_ok_and(|installed| installed == wanted) {
        return Ok(programs);
    }
    let venv = ["-m", "venv", "--clear"];
    run(Command::new("python3").args(venv).arg(folder))?;
    let pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check"];
    run(Command::new(programs.join("python"))
        .args(pip)
        .args(packages))?;
    fs::write(&complete, wanted).map_err(at(&complete))?;
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_ask_at_once_find_one_whole_installation() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("set");
        // What an installation left that was ended before its end.
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::write(folder.join("bin/python"), "").unwrap();
        let ask = || python(&folder, &["six==1.17.0"]);
        let answers = std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| scope.spawn(ask));
            threads.map(|thread| thread.join().unwrap())
        });
        for answer in answers {
            let programs = test_seed::needed(answer);
            let imported = run(Command::new(programs.join("python")).args(["-c", "import six"]));
            imported.unwrap();
        }
    }
}
