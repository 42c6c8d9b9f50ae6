//! The files of gpufrac that this host's Slurm needs: plugins, and on a node prolog and epilog. Slurm reports most
//! faults of them only at its next start, or when a job runs.

mod script;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use gpufrac_core::finding::{Finding, Severity};
use gpufrac_host::files::FileError;
use gpufrac_host::trust;
use nix::unistd::User;
use slurm_sys::release::{self, Release, Series};

use super::rules::plugins_of;
use super::{Settings, access, gather};
use script::Ending;

/// A longer file is not taken for a script.
const MANY_BYTES: u64 = 1 << 20;

/// The function of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Role {
    /// slurmd runs here, with GPUs of a pool.
    pub is_node: bool,
    /// Users submit jobs here.
    pub has_commands: bool,
}

/// A file of gpufrac with a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The setting or line that names the file.
    pub place: String,
    /// The path of the file.
    pub path: PathBuf,
    /// The fault.
    pub wrong: Wrong,
}

/// The faults of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// The plugin is in none of the folders.
    NoPlugin {
        /// The effect.
        then: &'static str,
        /// The folders in which Slurm looks for plugins.
        folders: Vec<PathBuf>,
    },
    /// The file has no version, as each plugin has.
    IsNoPlugin,
    /// The plugin is built for another series than this host's Slurm.
    OtherSeries {
        /// The series of the file.
        built_for: Series,
        /// The series of this host's Slurm.
        host: Series,
    },
    /// Others than root can change the file.
    Untrusted {
        /// Who can change it, and where.
        error: String,
        /// Whether only the user of slurmctld can change it; this user controls all jobs anyway.
        is_slurm_user: bool,
        /// The folder or file that can be changed.
        at: PathBuf,
    },
    /// The program does not exist.
    NoProgram,
    /// No file matches the pattern: Slurm does not run this program.
    NoFiles(&'static str),
    /// The program has no execute permission.
    NotExecutable,
    /// A script runs this program, and ignores its exit status in this line.
    StatusLost(&'static str, usize),
    /// As above, if it is not certain that the status is ignored.
    StatusUnsure(&'static str, usize),
}

impl Trouble {
    pub(super) fn finding(&self) -> Finding {
        let path = self.path.display();
        let error = |what: String, fix: String| (Severity::Error, what, fix);
        let (severity, what, fix) = match &self.wrong {
            Wrong::NoPlugin { then, folders } => {
                let folders: Vec<String> =
                    folders.iter().map(|it| format!("`{}`", it.display())).collect();
                error(
                    format!("{path} is named and not in {}: {then}", folders.join(" or ")),
                    format!(
                        "install {path} for this host's Slurm there, or take it out of this line until it is there"
                    ),
                )
            }
            Wrong::IsNoPlugin => error(
                format!("`{path}` is no plugin of Slurm, or only a part of one"),
                "install it again; to replace it while Slurm runs, write it beside and rename it (`install`, not `cp`)".to_owned(),
            ),
            Wrong::OtherSeries { built_for, host } => error(
                format!("`{path}` is built for Slurm {built_for}, and this host has {host}: Slurm does not load it, or it does nothing there"),
                format!("install gpufrac's plugins for Slurm {host} (`cargo xtask dist --slurm-include FOLDER` builds them)"),
            ),
            Wrong::Untrusted { error: why, is_slurm_user, at } => (
                if *is_slurm_user { Severity::Warning } else { Severity::Error },
                format!("`{path}` runs as root, and {why}"),
                format!("`chown root:root {0}; chmod go-w {0}`", at.display()),
            ),
            Wrong::NoProgram => error(
                format!("`{path}` does not exist on this node: Slurm drains it with the next job"),
                "install gpufrac's programs here, or correct the path".to_owned(),
            ),
            Wrong::NoFiles(program) => error(
                format!("`{path}` names no file on this node: no slice is made and unmade without {program}"),
                format!("put a script there that runs /usr/sbin/{program} and ends with its status, or correct the pattern"),
            ),
            Wrong::NotExecutable => error(
                format!("`{path}` cannot be run: Slurm drains this node with the next job"),
                format!("`chmod 755 {path}`"),
            ),
            Wrong::StatusLost(program, line) => error(
                format!(
                    "`{path}`, line {line}: the script goes on, or ends well, after {program} failed: {}",
                    consequence(program)
                ),
                format!("write there: /usr/sbin/{program} || exit $?"),
            ),
            Wrong::StatusUnsure(program, line) => (
                Severity::Warning,
                format!(
                    "`{path}`, line {line}: whether the script ends with the status of {program} cannot be seen; if not, {}",
                    consequence(program)
                ),
                format!("write there: /usr/sbin/{program} || exit $?"),
            ),
        };
        Finding {
            severity,
            place: Some(self.place.clone()),
            what,
            fix,
        }
    }
}

fn consequence(program: &str) -> &'static str {
    match program {
        "gpufrac-prolog" => "jobs start without their slice",
        _ => "slices that were not taken down are told to nobody",
    }
}

/// The function of this host, and the faults of its files.
pub(super) fn look(settings: &Settings, is_node: bool) -> (Role, Vec<Trouble>) {
    let role = Role {
        is_node,
        has_commands: has_commands(),
    };
    let folders = plugin_folders(settings);
    let host = Host {
        settings,
        release: folders.iter().find_map(|folder| release::beside(folder)),
        folders,
        slurm_user: slurm_user(settings),
    };
    let mut found = Vec::new();
    host.plugins(role, &mut found);
    if is_node {
        for (key, program) in gather::HOOKS {
            host.hook(key, program, &mut found);
        }
    }
    (role, found)
}

/// Whether sbatch is installed.
fn has_commands() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let prefix = gather::of_prefix("bin");
    let mut folders = std::env::split_paths(&path).chain(prefix);
    folders.any(|folder| folder.join("sbatch").exists())
}

/// The user id of slurmctld, if that is not root.
fn slurm_user(settings: &Settings) -> Option<u32> {
    let name = settings.value("SlurmUser")?.split('(').next()?;
    let user = User::from_name(name).ok()??;
    Some(user.uid.as_raw()).filter(|uid| *uid != 0)
}

/// The folders in which Slurm looks for plugins: `PluginDir`, otherwise the folder of Slurm's own plugins.
fn plugin_folders(settings: &Settings) -> Vec<PathBuf> {
    let files = settings.files.as_ref();
    let written = files.and_then(|files| files.slurm.last("PluginDir"));
    if let Some((_, list)) = written {
        return list.split(':').map(PathBuf::from).collect();
    }
    let running = settings.running.as_ref();
    // The running `PluginDir` is that of slurmctld's host; this host may have another operating system.
    let told = running.and_then(|running| running.get("PluginDir"));
    let told = told
        .into_iter()
        .flat_map(|list| list.split(':'))
        .map(PathBuf::from);
    let arch = std::env::consts::ARCH;
    let usual = [
        format!("/usr/lib/{arch}-linux-gnu/slurm-wlm"),
        format!("/usr/lib/{arch}-linux-gnu/slurm"),
        "/usr/lib64/slurm".to_owned(),
        "/usr/lib/slurm".to_owned(),
    ];
    let usual = usual.into_iter().map(PathBuf::from);
    let all = told.chain(gather::of_prefix("lib/slurm")).chain(usual);
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in all {
        if !folders.contains(&folder) && release::beside(&folder).is_some() {
            folders.push(folder);
        }
    }
    folders
}

struct Host<'a> {
    settings: &'a Settings,
    folders: Vec<PathBuf>,
    /// The release of this host's Slurm.
    release: Option<Release>,
    slurm_user: Option<u32>,
}

impl Host<'_> {
    /// Checks the plugins that the settings name.
    fn plugins(&self, role: Role, found: &mut Vec<Trouble>) {
        if self.folders.is_empty() {
            return;
        }
        let Some(files) = &self.settings.files else {
            return;
        };
        let mut named: Vec<(String, PathBuf, &'static str)> = Vec::new();
        let lists = [
            (
                "JobSubmitPlugins",
                "job_submit",
                access::controls(self.settings),
                "slurmctld does not start again",
            ),
            (
                "CliFilterPlugins",
                "cli_filter",
                role.has_commands,
                "sbatch, salloc and srun fail here",
            ),
        ];
        for (key, kind, is_loaded, then) in lists {
            let line = files.slurm.last(key).filter(|_| is_loaded);
            if let Some((place, value)) = line
                && plugins_of(value, kind).contains(&"gpufrac")
            {
                named.push((place.to_string(), format!("{kind}_gpufrac.so").into(), then));
            }
        }
        let then = match role.is_node {
            true => "slurmd does not start again, or jobs run without fence and environment",
            false => "sbatch, salloc and srun fail here where the line is `required`",
        };
        for line in files.plugins.iter().flatten() {
            if (role.is_node || role.has_commands)
                && line.plugin.rsplit('/').next() == Some("spank_gpufrac.so")
            {
                named.push((line.place.to_string(), PathBuf::from(&line.plugin), then));
            }
        }
        for (place, path, then) in named {
            self.plugin(place, path, then, found);
        }
    }

    fn plugin(&self, place: String, file: PathBuf, then: &'static str, found: &mut Vec<Trouble>) {
        // `join` with an absolute path replaces the folder.
        let mut candidates = self.folders.iter().map(|folder| folder.join(&file));
        let Some(path) = candidates.find(|path| path.exists()) else {
            let folders = match file.parent() {
                Some(folder) if file.is_absolute() => vec![folder.to_owned()],
                _ => self.folders.clone(),
            };
            let path = file.file_name().map_or(file.clone(), PathBuf::from);
            found.push(Trouble {
                place,
                path,
                wrong: Wrong::NoPlugin { then, folders },
            });
            return;
        };
        let wrong = match (release::of_file(&path), self.release) {
            (None, _) => Some(Wrong::IsNoPlugin),
            (Some(own), Some(host)) if own.series() != host.series() => Some(Wrong::OtherSeries {
                built_for: own.series(),
                host: host.series(),
            }),
            _ => None,
        };
        let wrong = wrong.into_iter().chain(self.untrusted(&path));
        found.extend(wrong.map(|wrong| Trouble {
            place: place.clone(),
            path: path.clone(),
            wrong,
        }));
    }

    fn untrusted(&self, path: &Path) -> Option<Wrong> {
        match trust::resolve(path) {
            Err(error @ FileError::Untrusted { .. }) => {
                let text = error.to_string();
                let FileError::Untrusted { path, owner, mode } = error else {
                    return None;
                };
                Some(Wrong::Untrusted {
                    error: text,
                    is_slurm_user: Some(owner) == self.slurm_user && mode & 0o022 == 0,
                    at: path,
                })
            }
            // A file that cannot be read is reported where it is used.
            _ => None,
        }
    }

    /// Checks Prolog or Epilog of this node.
    fn hook(&self, key: &'static str, program: &'static str, found: &mut Vec<Trouble>) {
        for (place, value) in gather::hooks(self.settings, key) {
            let pattern = gather::beside_slurm_conf(self.settings, value);
            let paths = gather::glob(&pattern);
            if paths.is_empty() {
                found.push(Trouble {
                    place: place.clone(),
                    path: pattern,
                    wrong: Wrong::NoFiles(program),
                });
            }
            for path in paths {
                for (path, wrong) in self.program(&path, program) {
                    let place = place.clone();
                    let trouble = Trouble { place, path, wrong };
                    if !found.contains(&trouble) {
                        found.push(trouble);
                    }
                }
            }
        }
    }

    /// The faults of a program that slurmd runs, and of gpufrac's program that it calls.
    fn program(&self, path: &Path, program: &'static str) -> Vec<(PathBuf, Wrong)> {
        let mut wrong = Vec::new();
        let with = |wrong: Wrong| (path.to_owned(), wrong);
        let meta = match fs::metadata(path) {
            Ok(meta) => meta,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return vec![with(Wrong::NoProgram)];
            }
            Err(_) => return wrong,
        };
        if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
            wrong.push(with(Wrong::NotExecutable));
        }
        wrong.extend(self.untrusted(path).map(with));
        if path.file_name().is_some_and(|name| name == program) || meta.len() > MANY_BYTES {
            return wrong;
        }
        let Ok(text) = fs::read_to_string(path) else {
            return wrong;
        };
        match script::ending(&text, program) {
            Some(Ending::Lost(line)) => wrong.push(with(Wrong::StatusLost(program, line))),
            Some(Ending::Unsure(line)) => wrong.push(with(Wrong::StatusUnsure(program, line))),
            Some(Ending::Passed) | None => {}
        }
        for ours in paths_of(&text, program) {
            wrong.extend(self.program(&ours, program));
        }
        wrong
    }
}

/// The absolute paths of `program` in a script.
fn paths_of(text: &str, program: &str) -> Vec<PathBuf> {
    let lines = text.lines().map(str::trim_start);
    let code = lines.filter(|line| !line.starts_with('#'));
    let words =
        code.flat_map(|line| line.split(|c: char| c.is_whitespace() || "\"'=;()|&".contains(c)));
    let paths = words.filter(|word| {
        let known = !word.contains('$');
        known && word.starts_with('/') && word.rsplit('/').next() == Some(program)
    });
    let mut paths: Vec<PathBuf> = paths.map(PathBuf::from).collect();
    paths.sort();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::chown;

    use super::*;

    struct World {
        keep: tempfile::TempDir,
    }

    impl World {
        /// None if the test does not run as root.
        fn new() -> Option<World> {
            if !nix::unistd::geteuid().is_root() {
                eprintln!("skipped: only root has files of root");
                return None;
            }
            let keep = tempfile::tempdir().unwrap();
            let world = World { keep };
            fs::set_permissions(world.keep.path(), fs::Permissions::from_mode(0o755)).unwrap();
            Some(world)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.keep.path().canonicalize().unwrap().join(name)
        }

        fn put(&self, name: &str, text: &str, mode: u32) {
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }

        /// Makes a library with this version number.
        fn plugin(&self, name: &str, version: u32) {
            let path = self.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let code = self.path("code.c");
            fs::write(
                &code,
                format!("const unsigned int plugin_version = {version};\n"),
            )
            .unwrap();
            let mut compiler = std::process::Command::new("cc");
            let built = compiler
                .args(["-shared", "-fPIC", "-o"])
                .arg(&path)
                .arg(&code);
            assert!(built.status().unwrap().success());
        }

        fn look(&self, slurm_conf: &str, is_node: bool) -> Vec<Trouble> {
            let host = nix::unistd::gethostname().unwrap();
            let text = format!(
                "SlurmctldHost={}\nPluginDir={}\nPrologs=\n{slurm_conf}",
                host.to_string_lossy(),
                self.path("lib").display()
            );
            self.put("etc/slurm.conf", &text, 0o644);
            let read = |path: &Path| fs::read_to_string(path);
            let files =
                super::super::Files::read(&self.path("etc/slurm.conf"), &read, &gather::glob);
            let settings = Settings {
                files: Some(files.unwrap()),
                ..Settings::default()
            };
            look(&settings, is_node).1
        }
    }

    fn wrong(found: &[Trouble]) -> Vec<&Wrong> {
        found.iter().map(|trouble| &trouble.wrong).collect()
    }

    #[test]
    fn plugins_that_slurm_cannot_load_are_named() {
        let Some(world) = World::new() else { return };
        let names = "JobSubmitPlugins=lua,job_submit/gpufrac\n";
        world.plugin("lib/hash_k12.so", 0x18_0b_05);
        world.put("etc/plugstack.conf", "required spank_gpufrac.so\n", 0o644);
        let found = world.look(names, true);
        assert!(
            matches!(
                wrong(&found)[..],
                [Wrong::NoPlugin { .. }, Wrong::NoPlugin { .. }]
            ),
            "{found:#?}"
        );
        assert!(found[0].place.ends_with("slurm.conf:4"), "{found:#?}");
        // Another micro release is the same series.
        world.plugin("lib/job_submit_gpufrac.so", 0x18_0b_01);
        world.plugin("lib/spank_gpufrac.so", 0x16_05_08);
        let found = world.look(names, true);
        let Wrong::OtherSeries { built_for, host } = wrong(&found)[0] else {
            panic!("{found:#?}");
        };
        assert_eq!(
            (built_for.to_string(), host.to_string()),
            ("22.05".into(), "24.11".into())
        );
        assert_eq!(found.len(), 1);
        world.put("lib/spank_gpufrac.so", "half of", 0o644);
        assert_eq!(wrong(&world.look(names, true)), [&Wrong::IsNoPlugin]);
        world.plugin("lib/spank_gpufrac.so", 0x18_0b_05);
        assert_eq!(world.look(names, true), []);
        // A user could replace the plugin.
        chown(world.path("lib"), Some(65534), None).unwrap();
        let found = world.look(names, true);
        assert_eq!(found.len(), 2, "{found:#?}");
        let Wrong::Untrusted {
            at, is_slurm_user, ..
        } = wrong(&found)[0]
        else {
            panic!("{found:#?}");
        };
        assert_eq!((at.clone(), *is_slurm_user), (world.path("lib"), false));
        let found = world.look(&format!("SlurmUser=nobody\n{names}"), true);
        assert!(
            found
                .iter()
                .all(|it| it.finding().severity == Severity::Warning),
            "{found:#?}"
        );
    }

    #[test]
    fn programs_that_slurmd_cannot_run_are_named_on_nodes() {
        let Some(world) = World::new() else { return };
        let hook = world.path("prolog.sh").display().to_string();
        let ours = world.path("sbin/gpufrac-prolog").display().to_string();
        let named = format!("Prolog={hook}\n");
        assert_eq!(world.look(&named, false), []);
        assert_eq!(wrong(&world.look(&named, true)), [&Wrong::NoProgram]);
        let pattern = world.path("prolog.d/*").display().to_string();
        let found = world.look(&format!("Prolog={pattern}\n"), true);
        assert_eq!(wrong(&found), [&Wrong::NoFiles("gpufrac-prolog")]);
        world.put(
            "prolog.sh",
            &format!("#!/bin/sh\n{ours} || exit $?\ntrue\n"),
            0o644,
        );
        let found = world.look(&named, true);
        assert_eq!(wrong(&found), [&Wrong::NotExecutable, &Wrong::NoProgram]);
        assert_eq!(found[1].path, world.path("sbin/gpufrac-prolog"));
        world.put("sbin/gpufrac-prolog", "", 0o755);
        world.put("prolog.sh", &format!("#!/bin/sh\n{ours}\ntrue\n"), 0o755);
        let lost = Wrong::StatusLost("gpufrac-prolog", 3);
        assert_eq!(wrong(&world.look(&named, true)), [&lost]);
        world.put(
            "prolog.sh",
            &format!("#!/bin/sh\n{ours} || exit $?\ntrue\n"),
            0o755,
        );
        assert_eq!(world.look(&named, true), []);
        fs::set_permissions(world.path("sbin"), fs::Permissions::from_mode(0o777)).unwrap();
        let found = world.look(&named, true);
        assert!(
            matches!(wrong(&found)[..], [Wrong::Untrusted { .. }]),
            "{found:#?}"
        );
        // A pattern; one of its files has no execute permission.
        fs::set_permissions(world.path("sbin"), fs::Permissions::from_mode(0o755)).unwrap();
        world.put("prolog.d/10-site", "#!/bin/sh\n", 0o644);
        world.put(
            "prolog.d/20-gpufrac",
            &format!("#!/bin/sh\nexec {ours}\n"),
            0o755,
        );
        let pattern = format!("Prolog={}/*\n", world.path("prolog.d").display());
        assert_eq!(wrong(&world.look(&pattern, true)), [&Wrong::NotExecutable]);
    }
}
