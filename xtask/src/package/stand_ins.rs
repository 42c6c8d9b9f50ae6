//! Stand-ins for tests of packages: a build whose files are small libraries, and roots that have nothing but what
//! scripts of packages run.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use debian::{DebianError, Release};
use gpufrac_lab::Release as Slurm;

use super::build::{Build, Processor};
use super::contents::{self, Package, What};
use super::elf;
use crate::dist::{PLUGINS, PROGRAMS};
use xtask_front::cargo::root;

/// A build for a series of Slurm in a folder.
pub(super) fn fake(folder: &Path, series: &str) -> Build {
    let library = folder.join("library.so");
    let text = "extern int puts(const char *); int f(void) { return puts(\"libslurm.so.42\"); }";
    elf::tests::library(text, &library);
    let plugins = PLUGINS.map(|(built, _)| built);
    for name in plugins.into_iter().chain(PROGRAMS) {
        fs::copy(&library, folder.join(name)).unwrap();
    }
    let (year, month) = series.split_once('.').unwrap();
    let (year, month): (u32, u32) = (year.parse().unwrap(), month.parse().unwrap());
    Build {
        release: Slurm(year << 16 | month << 8 | 5),
        processor: Processor::own().unwrap(),
        folder: folder.to_owned(),
    }
}

/// All packages for two series of Slurm, whose plugins are in `folder`. Each `version` has other configuration files.
pub(super) fn packages(work: &Path, version: &str, folder: &str) -> Vec<Package> {
    let mut node = contents::node().unwrap();
    for entry in &mut node.entries {
        if let What::Config(from) = &mut entry.what {
            let text = fs::read_to_string(&from).unwrap();
            let path = work.join(format!("{version}{}", entry.path.replace('/', "-")));
            fs::write(&path, format!("{text}# {version}\n")).unwrap();
            *from = path;
        }
    }
    let mut packages = vec![contents::common(Vec::new()).unwrap(), node];
    for series in ["24.11", "26.05"] {
        let place = work.join(series);
        fs::create_dir_all(&place).unwrap();
        let build = fake(&place, series);
        packages.push(contents::series(&build, &[folder.to_owned()]).unwrap());
    }
    packages
}

/// The folder of downloads for tests of packages.
pub(super) fn cache() -> PathBuf {
    root().join("target/tmp/packages")
}

/// The programs of scripts, all of them busybox.
pub(super) const APPLETS: [&str; 21] = [
    "sh", "cat", "chmod", "cp", "cut", "dirname", "find", "grep", "head", "ln", "mkdir", "mktemp",
    "mv", "printf", "rm", "rmdir", "sed", "tail", "touch", "uname", "xargs",
];

/// Fills a root: a shell with its programs, a systemctl that writes its arguments to `/systemctl`, and the folder by
/// which scripts know that systemd runs.
pub(super) fn fill(place: &Path) -> Result<(), DebianError> {
    let packed = Release::open(&cache(), "bookworm")?.package("busybox-static")?;
    fs::create_dir_all(place.join("etc")).unwrap();
    debian::tree(&[packed], place)?;
    for name in ["usr/bin", "run/systemd/system", "etc/slurm", "dev", "tmp"] {
        fs::create_dir_all(place.join(name)).unwrap();
    }
    for name in APPLETS {
        let _ = symlink("busybox", place.join("usr/bin").join(name));
    }
    let systemctl = place.join("usr/bin/systemctl");
    fs::write(&systemctl, "#!/bin/sh\necho \"$@\" >>/systemctl\n").unwrap();
    fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).unwrap();
    Ok(())
}

/// What a command printed, and whether it succeeded.
#[derive(Debug)]
pub(super) struct Said {
    pub success: bool,
    pub text: String,
}

/// Runs a command.
pub(super) fn said(command: &mut Command) -> Said {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    Said {
        success: output.status.success(),
        text: String::from_utf8_lossy(&text).into_owned(),
    }
}

/// Takes the lines that systemctl was called with since the last call.
pub(super) fn take_calls(place: &Path) -> Vec<String> {
    let path = place.join("systemctl");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let _ = fs::remove_file(&path);
    text.lines().map(str::to_owned).collect()
}

/// A slurm.conf that names the plugins and the node's programs.
pub(super) const SLURM_CONF: &str = "\
JobSubmitPlugins=gpufrac
Prolog=/usr/sbin/gpufrac-prolog
";
