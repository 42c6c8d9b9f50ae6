//! The .deb packages, installed, upgraded, downgraded and removed by dpkg in roots that have nothing but packages with
//! the names and versions of those of Debian, Ubuntu and SchedMD.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::deb;
use super::stand_ins::{SLURM_CONF, Said, fill, packages, said, take_calls};
use xtask_front::cargo::run;

const PLUGINS: &str = "/usr/lib/x86_64-linux-gnu/slurm";
const FIRST: &str = "0.1.0~dev1";
const SECOND: &str = "0.1.0~dev2";

/// Packages with their versions.
type Packages = &'static [(&'static str, &'static str)];

/// Releases with the version of their C library, and packages of Slurm 24.11 for them.
const HOSTS: [(&str, &str, Packages); 4] = [
    (
        "Debian 13",
        "2.41-12",
        &[
            ("slurm-wlm-basic-plugins", "24.11.5-4"),
            ("libslurm42", "24.11.5-4"),
        ],
    ),
    (
        "Ubuntu 22.04, SchedMD",
        "2.35-0ubuntu3",
        &[("slurm-smd", "24.11.6-1")],
    ),
    (
        "Ubuntu 24.04, SchedMD",
        "2.39-0ubuntu8",
        &[("slurm-smd", "24.11.0-1")],
    ),
    (
        "Ubuntu 24.04, its own newer one",
        "2.39-0ubuntu8",
        &[
            ("slurm-wlm-basic-plugins", "24.11.5-1ubuntu1"),
            ("libslurm42t64", "24.11.5-1ubuntu1"),
        ],
    ),
];

/// Packages of Slurm that ours refuse: another series, on Ubuntu 24.04 and of SchedMD, and a library alone.
const OTHERS: [Packages; 4] = [
    &[
        ("slurm-wlm-basic-plugins", "23.11.4-1.2ubuntu5"),
        ("libslurm40t64", "23.11.4-1.2ubuntu5"),
    ],
    &[("slurm-smd", "24.05.8-1")],
    &[("slurm-smd", "25.05.3-1")],
    &[("libslurm42", "24.11.5-4")],
];

struct Host {
    work: tempfile::TempDir,
}

impl Host {
    /// A host with stand-ins for these packages.
    fn new(libc: &str, slurm: Packages) -> Host {
        let host = Host {
            work: tempfile::tempdir().unwrap(),
        };
        let work = host.work.path();
        test_seed::needed(fill(&host.root()));
        for name in ["info", "updates", "triggers"] {
            fs::create_dir_all(host.root().join("var/lib/dpkg").join(name)).unwrap();
        }
        fs::write(host.root().join("var/lib/dpkg/status"), "").unwrap();
        for (name, version) in [("libc6", libc)].iter().chain(slurm) {
            host.good(&["-i", &stand_in(work, name, version)]);
        }
        host
    }

    fn root(&self) -> PathBuf {
        self.work.path().join("root")
    }

    fn dpkg(&self, words: &[&str]) -> Said {
        let root = format!("--root={}", self.root().display());
        let mut dpkg = Command::new("dpkg");
        dpkg.args([&root, "--force-unsafe-io"]).args(words);
        said(dpkg.env("LC_ALL", "C.UTF-8"))
    }

    fn good(&self, words: &[&str]) {
        let said = self.dpkg(words);
        assert!(said.success, "{words:?}: {}", said.text);
    }

    fn assert_all_of(&self, version: &str) {
        for name in ["gpufrac", "gpufrac-node", "gpufrac-plugins-24.11"] {
            let admin = format!("--admindir={}", self.root().join("var/lib/dpkg").display());
            let found = said(Command::new("dpkg-query").args([
                &admin,
                "-W",
                "-f=${db:Status-Status} ${Version}",
                name,
            ]));
            assert_eq!(found.text, format!("installed {version}"), "{name}");
        }
        let text = fs::read_to_string(self.root().join("etc/logrotate.d/gpufrac")).unwrap();
        assert!(text.contains("weekly"), "{text}");
    }
}

/// Writes our packages; returns the paths of those for Slurm 24.11.
fn write(work: &Path, version: &str) -> Vec<String> {
    let output = work.join("debs");
    fs::create_dir_all(&output).unwrap();
    let packages = packages(work, version, PLUGINS);
    let wanted = packages
        .iter()
        .filter(|package| !package.name.ends_with("-26.05"));
    let path = |package| deb::write(package, version, &work.join(version), &output).unwrap();
    wanted
        .map(|package| path(package).display().to_string())
        .collect()
}

/// Writes a package without files.
fn stand_in(work: &Path, name: &str, version: &str) -> String {
    let tree = work.join(format!("{name}-{version}"));
    fs::create_dir_all(tree.join("DEBIAN")).unwrap();
    let control = format!(
        "Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: nobody\nDescription: stand-in\n"
    );
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    let path = work.join(format!("{name}_{version}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.args(["-Znone", "--build"]).args([&tree, &path]);
    run(build.stdout(std::process::Stdio::null())).unwrap();
    path.display().to_string()
}

fn with<'a>(words: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    let more = more.iter().map(String::as_str);
    words.iter().copied().chain(more).collect()
}

/// Promise (admins): one .deb of a series for Debian's, Ubuntu's and SchedMD's Slurm: install, upgrade, downgrade and
/// removal by dpkg, and a refusal of another series.
/// With `a_slurm_of_another_series_is_refused`.
#[test]
fn debs_fit_the_slurm_of_debian_ubuntu_and_schedmd() {
    let work = tempfile::tempdir().unwrap();
    let (first, second) = (write(work.path(), FIRST), write(work.path(), SECOND));
    for (name, libc, slurm) in HOSTS {
        let host = Host::new(libc, slurm);
        host.good(&with(&["-i"], &first));
        let conf = host.root().join("etc/logrotate.d/gpufrac");
        let text = fs::read_to_string(&conf).unwrap();
        fs::write(&conf, text.replace("monthly", "weekly")).unwrap();
        host.good(&with(&["--force-confold", "-i"], &second));
        host.assert_all_of(SECOND);
        host.good(&with(&["--force-confold", "-i"], &first));
        host.assert_all_of(FIRST);
        let calls = take_calls(&host.root());
        let starts = |call: &String| {
            ["start", "enable", "disable"]
                .iter()
                .any(|word| call.starts_with(word))
        };
        assert!(!calls.iter().any(starts), "{name}: {calls:?}");

        let conf = host.root().join("etc/slurm/slurm.conf");
        fs::write(&conf, SLURM_CONF).unwrap();
        let ours = [
            "--purge",
            "gpufrac-node",
            "gpufrac",
            "gpufrac-plugins-24.11",
        ];
        let refused = host.dpkg(&ours);
        assert!(
            !refused.success && refused.text.contains("slurm.conf"),
            "{refused:?}"
        );
        host.assert_all_of(FIRST);
        fs::remove_file(conf).unwrap();
        host.good(&ours);
        assert!(!host.root().join("usr/lib/gpufrac").exists(), "{name}");
    }
}

#[test]
fn a_slurm_of_another_series_is_refused() {
    let work = tempfile::tempdir().unwrap();
    let ours = write(work.path(), FIRST);
    for slurm in OTHERS {
        let host = Host::new("2.39-0ubuntu8", slurm);
        let said = host.dpkg(&with(&["-i"], &ours));
        assert!(!said.success, "{slurm:?}: {}", said.text);
    }
    // A C library that is older than 2.28.
    let host = Host::new("2.27-3ubuntu1", &[("slurm-smd", "24.11.5-1")]);
    assert!(!host.dpkg(&with(&["-i"], &ours)).success);
}

/// A package of a build host has the fields, files and script of the one that `cargo xtask package` makes.
#[test]
fn a_build_host_packs_the_same_deb() {
    let place = tempfile::tempdir().unwrap();
    let work = place.path();
    let made = write(work, FIRST);
    let ours = made.iter().find(|path| path.contains("plugins")).unwrap();
    let built = work.join("24.11");
    for name in ["job_submit", "cli_filter", "spank"] {
        let from = built.join(format!("lib{name}_gpufrac.so"));
        fs::rename(from, built.join(format!("{name}_gpufrac.so"))).unwrap();
    }
    let program = xtask_front::cargo::root().join("packaging/package-plugins");
    let output = work.join("built");
    run(Command::new("sh")
        .arg(program)
        .arg("deb")
        .arg(&built)
        .args(["24.11", PLUGINS, FIRST])
        .arg(&output)
        .env("GPUFRAC_LIBC", "2.28"))
    .unwrap();
    let name = Path::new(ours).file_name().unwrap();
    let packed = output.join(name);
    let fields = |path: &Path| {
        let said = said(Command::new("dpkg-deb").arg("-f").arg(path));
        let is_same = |line: &&str| !line.starts_with(' ') && !line.starts_with("Installed-Size");
        let lines = said.text.lines().filter(is_same).map(str::to_owned);
        lines.collect::<Vec<_>>()
    };
    assert_eq!(fields(&packed), fields(Path::new(ours)));
    let script = |path: &Path| said(Command::new("dpkg-deb").arg("-I").arg(path).arg("prerm")).text;
    assert_eq!(script(&packed), script(Path::new(ours)));
    let files = |path: &Path| {
        let said = said(Command::new("dpkg-deb").arg("-c").arg(path));
        let row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            format!("{} {} {}", words[0], words[1], words[5..].join(" "))
        };
        let mut rows: Vec<String> = said.text.lines().map(row).collect();
        rows.sort();
        rows
    };
    assert_eq!(files(&packed), files(Path::new(ours)));
}

#[test]
fn a_build_host_without_munge_is_told_before_the_build() {
    let place = tempfile::tempdir().unwrap();
    let (include, programs) = (place.path().join("include"), place.path().join("programs"));
    fs::create_dir_all(include.join("slurm")).unwrap();
    fs::create_dir(&programs).unwrap();
    let header = "#define SLURM_VERSION_NUMBER 0x180b05\n";
    fs::write(include.join("slurm/slurm_version.h"), header).unwrap();
    let built = place.path().join("built");
    let put = |name: &str, text: &str| {
        let path = programs.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    for name in ["cargo", "cc", "xz", "tar"] {
        put(name, &format!(": >{}", built.display()));
    }
    for name in ["id", "sed"] {
        put(name, &format!("exec /usr/bin/{name} \"$@\""));
    }
    let program = xtask_front::cargo::root().join("packaging/gpufrac-build-plugins");
    let said = || {
        said(
            Command::new("/bin/sh")
                .arg(&program)
                .arg("--slurm-include")
                .arg(&include)
                .arg("--source")
                .arg(&program)
                .env("PATH", &programs),
        )
    };
    let missing = said();
    assert!(
        !missing.success && missing.text.contains("munge is not in PATH"),
        "{missing:?}"
    );
    put("munge", "exit 1");
    let silent = said();
    assert!(
        !silent.success && silent.text.contains("munge does not answer"),
        "{silent:?}"
    );
    assert!(!built.exists());
}
