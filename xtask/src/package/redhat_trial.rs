//! The .rpm packages, installed, upgraded, downgraded and removed by rpm and dnf in roots that have nothing but
//! stand-ins for their needs. The programs are Debian's, in a folder of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use debian::{DebianError, Release};
use rpm::{BuildConfig, Dependency, PackageBuilder};

use super::redhat;
use super::stand_ins::{APPLETS, SLURM_CONF, Said, cache, fill, packages, said, take_calls};

/// The folder of the packages' Slurm.
const PLUGINS: &str = "/usr/lib64/slurm";
const FIRST: &str = "0.1.0~dev1";
const SECOND: &str = "0.1.0~dev2";
const OURS: [&str; 3] = ["gpufrac", "gpufrac-node", "gpufrac-plugins-24.11"];

/// The names of the packages that ours need, in one package.
const BASE: [&str; 5] = ["/bin/sh", "findutils", "grep", "sed", "glibc"];

/// Runs a command in the folder of the programs, where the work is `/work`; without a network.
const ENTER: &str = "\
tree=$1 work=$2
shift 2
mount -t proc proc \"$tree/proc\" && mount --bind /dev \"$tree/dev\" && mount --bind \"$work\" \"$tree/work\" || exit 99
exec chroot \"$tree\" \"$@\"
";

/// The folder of rpm, dnf and createrepo_c, unpacked once.
fn programs() -> Result<PathBuf, DebianError> {
    let cache = cache();
    // The lock of this release also keeps others out of the folder.
    let release = Release::open(&cache.join("redhat"), "bookworm")?;
    let tree = cache.join("redhat/tree");
    let names = ["rpm", "dnf", "createrepo-c", "checkpolicy"];
    let complete = format!("{names:?} {APPLETS:?} 2");
    if fs::read_to_string(tree.join("complete")).is_ok_and(|text| text == complete) {
        return Ok(tree);
    }
    let _ = fs::remove_dir_all(&tree);
    debian::tree(&release.packages_with_dependencies(&names)?, &tree)?;
    fill(&tree)?;
    for name in ["proc", "work", "root", "var/log", "var/tmp", "etc/rpm"] {
        fs::create_dir_all(tree.join(name)).unwrap();
    }
    // Debian's own asks a shell.
    fs::write(tree.join("etc/rpm/macros"), "%_dbpath /var/lib/rpm\n").unwrap();
    fs::write(tree.join("complete"), complete).unwrap();
    Ok(tree)
}

struct Host {
    tree: PathBuf,
    work: tempfile::TempDir,
}

impl Host {
    /// A host with this package of Slurm, and all packages in `/work/repo`.
    fn new(slurm: &str, version: &str) -> Host {
        let tree = test_seed::needed(programs());
        let host = Host {
            tree,
            work: tempfile::tempdir().unwrap(),
        };
        let work = host.work.path();
        let repo = work.join("repo");
        fs::create_dir(&repo).unwrap();
        for release in [FIRST, SECOND] {
            for package in packages(work, release, PLUGINS) {
                redhat::write(&package, release, &repo).unwrap();
            }
        }
        stand_in(&repo, "base", "1", &BASE);
        for version in ["23.11.10", "24.11.5", "24.11.6", "26.05.1"] {
            stand_in(&repo, slurm, version, &[]);
        }
        test_seed::needed(fill(&host.root()));
        let made = host.run(&["createrepo_c", "-q", "--no-database", "/work/repo"]);
        assert!(made.success, "{made:?}");
        host.good(&["rpm", "-i", "/work/repo/base-1-1.noarch.rpm"]);
        let slurm = format!("/work/repo/{slurm}-{version}-1.noarch.rpm");
        host.good(&["rpm", "-i", &slurm]);
        host
    }

    fn root(&self) -> PathBuf {
        self.work.path().join("root")
    }

    /// Runs rpm or dnf on the host's root, or another program.
    fn run(&self, command: &[&str]) -> Said {
        let mut run = Command::new("unshare");
        run.args(["--mount", "--net", "sh", "-c", ENTER, "sh"])
            .arg(&self.tree)
            .arg(self.work.path())
            .env_clear()
            .envs([("LC_ALL", "C.UTF-8"), ("HOME", "/root")])
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        match command {
            ["rpm", rest @ ..] => run.args(["rpm", "--root=/work/root"]).args(rest),
            ["dnf", rest @ ..] => run
                .args(["dnf", "-y", "--installroot=/work/root"])
                .args(["--releasever=9", "--nogpgcheck", "--setopt=reposdir=/none"])
                .args(["--repofrompath=trial,file:///work/repo", "--repo=trial"])
                .args(rest),
            other => run.args(other),
        };
        said(&mut run)
    }

    fn good(&self, command: &[&str]) -> String {
        let said = self.run(command);
        assert!(said.success, "{command:?}: {}", said.text);
        // rpm goes on after a script that failed.
        assert!(!said.text.contains("scriptlet failed"), "{}", said.text);
        said.text
    }

    fn bad(&self, command: &[&str]) -> String {
        let said = self.run(command);
        assert!(!said.success, "{command:?}: {}", said.text);
        said.text
    }

    /// The versions of gpufrac's packages.
    fn installed(&self) -> Vec<String> {
        let format = "%{NAME} %{VERSION}\\n";
        let text = self.good(&["rpm", "-qa", "--queryformat", format, "gpufrac*"]);
        let mut rows: Vec<String> = text.lines().map(str::to_owned).collect();
        rows.sort();
        rows
    }

    fn assert_all_of(&self, version: &str) {
        let all = OURS.map(|name| format!("{name} {version}"));
        assert_eq!(self.installed(), all);
        let text = fs::read_to_string(self.root().join("etc/logrotate.d/gpufrac")).unwrap();
        assert!(text.contains("weekly"), "{text}");
        let program = self.root().join("usr/lib/gpufrac/gpufrac-prolog");
        assert!(program.exists());
        let missing = self.run(&["rpm", "-V", "--nofiles", "gpufrac-plugins-24.11"]);
        assert!(missing.success, "{missing:?}");
    }

    /// The admin changes a configuration file.
    fn change(&self) {
        let path = self.root().join("etc/logrotate.d/gpufrac");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("monthly", "weekly")).unwrap();
    }

    /// gpufrac's files that are left.
    fn left(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        let mut folders = vec![self.root()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).unwrap().flatten() {
                let path = entry.path();
                let name = entry.file_name();
                if name.to_string_lossy().contains("gpufrac") {
                    left.push(path);
                } else if entry.file_type().unwrap().is_dir() {
                    folders.push(path);
                }
            }
        }
        left
    }
}

/// Writes a package without files that provides these names.
fn stand_in(folder: &Path, name: &str, version: &str, provides: &[&str]) {
    let mut builder = PackageBuilder::new(name, version, "MIT", "noarch", "stand-in");
    builder.using_config(BuildConfig::v4()).release("1");
    for provided in provides {
        builder.provides(match *provided {
            "glibc" => Dependency::eq("glibc", "2.28-1"),
            other => Dependency::any(other),
        });
    }
    let path = folder.join(format!("{name}-{version}-1.noarch.rpm"));
    builder.build().unwrap().write_file(path).unwrap();
}

/// `NAME-VERSION` of all of ours.
fn names(version: &str) -> Vec<String> {
    OURS.map(|name| format!("{name}-{version}")).into()
}

/// The paths of all of ours.
fn files(version: &str) -> Vec<String> {
    let of = |name: &str| {
        let architecture = match name {
            "gpufrac-plugins-24.11" => std::env::consts::ARCH,
            _ => "noarch",
        };
        format!("/work/repo/{name}-{version}-1.{architecture}.rpm")
    };
    OURS.map(of).into()
}

fn with<'a>(words: &[&'a str], more: &'a [String]) -> Vec<&'a str> {
    words
        .iter()
        .copied()
        .chain(more.iter().map(String::as_str))
        .collect()
}

/// Promise (admins): the module for containers under SELinux compiles.
#[test]
fn the_module_for_selinux_compiles() {
    test_seed::needs_root();
    let host = Host {
        tree: test_seed::needed(programs()),
        work: tempfile::tempdir().unwrap(),
    };
    let source = xtask_front::cargo::root().join("etc/selinux/gpufrac_containers.te");
    fs::copy(source, host.work.path().join("gpufrac_containers.te")).unwrap();
    let [from, to] = ["te", "mod"].map(|end| format!("/work/gpufrac_containers.{end}"));
    host.good(&["checkmodule", "-M", "-m", "-o", &to, &from]);
    assert!(host.work.path().join("gpufrac_containers.mod").exists());
}

/// Promise (admins): .rpm on Slurm of SchedMD, EPEL and OpenHPC: install, upgrade and downgrade with files that the
/// admin changed, a change of the series, removal, by dnf and rpm; a refusal to go while Slurm's files name them.
/// With `rpm_alone_does_all_of_it_too`.
#[test]
fn dnf_installs_upgrades_downgrades_and_removes_all_packages() {
    let host = Host::new("slurm", "23.11.10");
    let first = names(FIRST);
    // A Slurm of another series is refused. This one is upgraded with the packages.
    host.good(&["dnf", "install", "slurm-24.11.5"]);
    host.good(&with(&["dnf", "install"], &first));
    let calls = take_calls(&host.root());
    let preset = "--no-reload preset gpufrac-node-setup.service gpufrac-reaperd.service";
    assert!(calls.iter().any(|call| call == preset), "{calls:?}");
    let starts = |call: &String| {
        call.split(' ')
            .any(|word| word == "start" || word == "enable")
    };
    assert!(!calls.iter().any(starts), "{calls:?}");
    host.change();
    host.assert_all_of(FIRST);

    host.good(&with(&["dnf", "upgrade"], &names(SECOND)));
    host.assert_all_of(SECOND);
    let calls = take_calls(&host.root());
    assert!(
        calls.contains(&"try-restart gpufrac-reaperd.service".to_owned()),
        "{calls:?}"
    );
    let touches = |call: &String| call.contains("preset") || call.contains("disable");
    assert!(!calls.iter().any(touches), "{calls:?}");
    let new = host.root().join("etc/logrotate.d/gpufrac.rpmnew");
    assert!(new.exists(), "{:?}", host.left());

    // Another release of the series needs nothing; another series is held back.
    host.good(&["dnf", "upgrade", "slurm-24.11.6"]);
    host.run(&["dnf", "upgrade", "slurm"]);
    assert_eq!(
        host.good(&["rpm", "-q", "slurm"]).trim(),
        "slurm-24.11.6-1.noarch"
    );
    host.good(&with(&["dnf", "downgrade"], &first));
    host.assert_all_of(FIRST);
    let calls = take_calls(&host.root());
    assert!(!calls.iter().any(touches), "{calls:?}");

    let conf = host.root().join("etc/slurm/slurm.conf");
    fs::write(&conf, SLURM_CONF).unwrap();
    let said = host.bad(&["dnf", "remove", "gpufrac-plugins-24.11"]);
    assert!(said.contains("JobSubmitPlugins=gpufrac"), "{said}");
    host.assert_all_of(FIRST);

    // Another series together with its plugins, while Slurm's files name them.
    let other = "gpufrac-plugins-26.05-0.1.0~dev1";
    host.good(&["dnf", "install", "--allowerasing", "slurm-26.05.1", other]);
    let found = host.installed();
    assert!(
        found.contains(&format!("gpufrac-plugins-26.05 {FIRST}")),
        "{found:?}"
    );
    assert!(!found.iter().any(|row| row.contains("24.11")), "{found:?}");
    assert!(
        host.root()
            .join("usr/lib64/slurm/job_submit_gpufrac.so")
            .is_symlink()
    );
    assert!(
        host.root()
            .join("usr/lib/gpufrac/job_submit_gpufrac.so")
            .exists()
    );

    fs::remove_file(conf).unwrap();
    take_calls(&host.root());
    host.good(&["dnf", "remove", "gpufrac*"]);
    assert!(host.installed().is_empty());
    let calls = take_calls(&host.root());
    assert!(
        calls.iter().any(|call| call.contains("disable --now")),
        "{calls:?}"
    );
    let kept = ["gpufrac.rpmsave", "gpufrac.rpmnew"];
    let left = host.left();
    let is_kept = |path: &PathBuf| kept.iter().any(|name| path.ends_with(name));
    assert!(left.iter().all(is_kept), "{left:?}");
}

#[test]
fn rpm_alone_does_all_of_it_too() {
    let host = Host::new("slurm-ohpc", "23.11.10");
    let (first, second) = (files(FIRST), files(SECOND));
    let said = host.bad(&with(&["rpm", "-i"], &first));
    assert!(said.contains("slurm-ohpc >= 24.11"), "{said}");
    host.good(&["rpm", "-U", "/work/repo/slurm-ohpc-24.11.5-1.noarch.rpm"]);
    host.good(&with(&["rpm", "-i"], &first));
    host.change();
    host.assert_all_of(FIRST);
    host.good(&with(&["rpm", "-U"], &second));
    host.assert_all_of(SECOND);
    host.good(&with(&["rpm", "-U", "--oldpackage"], &first));
    host.assert_all_of(FIRST);
    let newer = "/work/repo/slurm-ohpc-26.05.1-1.noarch.rpm";
    host.bad(&["rpm", "-U", newer]);

    let conf = host.root().join("etc/slurm/slurm.conf");
    let ours = OURS.map(str::to_owned);
    // Only the node's package has a reason to stay; rpm would remove the others under it.
    fs::write(&conf, "Prolog=/usr/sbin/gpufrac-prolog\n").unwrap();
    host.bad(&with(&["rpm", "-e"], &ours));
    host.assert_all_of(FIRST);
    fs::remove_file(conf).unwrap();
    host.good(&with(&["rpm", "-e"], &ours));
    assert!(host.installed().is_empty());
}

/// A package of a build host has the dependencies, files and script of the one that `cargo xtask package` makes.
#[test]
fn a_build_host_packs_the_same_rpm() {
    let host = Host::new("slurm", "24.11.5");
    let work = host.work.path();
    for name in ["job_submit", "cli_filter", "spank"] {
        let from = work.join(format!("24.11/lib{name}_gpufrac.so"));
        fs::rename(from, work.join(format!("24.11/{name}_gpufrac.so"))).unwrap();
    }
    let packaging = xtask_front::cargo::root().join("packaging");
    for name in ["package-plugins", "plugins.removing"] {
        fs::copy(packaging.join(name), work.join(name)).unwrap();
    }
    let pack = format!(
        "rpm() {{ /usr/bin/rpm --root=/work/root \"$@\"; }}\nGPUFRAC_LIBC=2.28\n\
         set -- rpm /work/24.11 24.11 {PLUGINS} {FIRST} /work/built\n. /work/package-plugins"
    );
    host.good(&["sh", "-c", &pack, "/work/sh"]);
    let ours = files(FIRST).remove(2);
    let packed = ours.replace("/repo/", "/built/");
    for what in ["--requires", "--provides", "--conflicts", "--scripts"] {
        let rows = |path: &str| {
            let text = host.good(&["rpm", "-qp", what, path]);
            // Each writer adds the features of rpm that it uses, and newer rpm the name with the processor.
            let is_same = |line: &&str| {
                !line.is_empty() && !line.contains("rpmlib(") && !line.contains("(x86-64)")
            };
            let mut rows: Vec<_> = text.lines().filter(is_same).map(str::to_owned).collect();
            rows.sort();
            rows.dedup();
            rows
        };
        assert_eq!(rows(&packed), rows(&ours), "{what}");
    }
    let format = "[%{FILENAMES} %{FILEMODES:perms} %{FILEUSERNAME} %{FILELINKTOS}\\n]";
    let list = |path: &str| host.good(&["rpm", "-qp", "--queryformat", format, path]);
    assert_eq!(list(&packed), list(&ours));
    host.good(&["rpm", "-i", &packed]);
}
