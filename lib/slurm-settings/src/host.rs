//! The files of gpufrac that this host's Slurm needs: plugins, and on a node prolog and epilog. Slurm reports most
//! faults of them only at its next start, or when a job runs.

mod script;
mod start;
mod trouble;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpufrac_host::files::FileError;
use gpufrac_host::subprocess::{self, Outcome};
use gpufrac_host::trust;
use slurm_sys::release::{self, BUILD, Release};

use super::rules::plugins_of;
use super::{Settings, access, ask, scripts};
use script::{Ending, Harm};
pub use trouble::{Trouble, Wrong};

/// The readers of files that sbatch, salloc and srun need.
const USERS: &str = "users";
const COMMANDS_FAIL: &str = "sbatch, salloc and srun fail here";
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

/// The function of this host, and the faults of its files.
pub(super) fn inspect(settings: &Settings, is_node: bool) -> (Role, Vec<Trouble>) {
    let role = Role {
        is_node,
        has_commands: has_commands(),
    };
    (role, troubles(settings, role))
}

fn troubles(settings: &Settings, role: Role) -> Vec<Trouble> {
    let folders = plugin_folders(settings);
    let host = Host {
        settings,
        release: folders.iter().find_map(|folder| release::beside(folder)),
        folders,
        slurm_user: slurm_user(settings),
    };
    let mut found = Vec::new();
    host.plugins(role, &mut found);
    host.files(role, &mut found);
    if role.is_node {
        for (key, program) in scripts::HOOKS {
            host.hook(key, program, &mut found);
        }
        host.harms(&mut found);
    }
    found
}

/// Whether sbatch is installed.
fn has_commands() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let prefix = ask::of_prefix("bin");
    let mut folders = std::env::split_paths(&path).chain(prefix);
    folders.any(|folder| folder.join("sbatch").exists())
}

/// The user id of slurmctld, if that is not root.
fn slurm_user(settings: &Settings) -> Option<u32> {
    let user = access::user(settings.value("SlurmUser")?)?;
    Some(user.uid.as_raw()).filter(|uid| *uid != 0)
}

/// The folders in which Slurm looks for plugins: `PluginDir`, otherwise the folder of Slurm's own plugins.
fn plugin_folders(settings: &Settings) -> Vec<PathBuf> {
    let files = settings.files.as_ref();
    let written = files.and_then(|files| files.slurm.last("PluginDir"));
    if let Some((_, list)) = written {
        return list.split(':').map(PathBuf::from).collect();
    }
    // The running `PluginDir` is that of slurmctld's host; this host may have another operating system.
    let told = settings
        .running_value("PluginDir")
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
    let all = told.chain(ask::of_prefix("lib/slurm")).chain(usual);
    let mut folders: Vec<PathBuf> = Vec::new();
    for folder in all {
        if !folders.contains(&folder) && release::beside(&folder).is_some() {
            folders.push(folder);
        }
    }
    folders
}

/// A plugin of gpufrac that the settings name.
struct Plugin {
    place: String,
    /// Its name or path in the line.
    file: PathBuf,
    /// The effect if Slurm cannot load it.
    then: &'static str,
    /// The program that loads it.
    reader: Reader,
}

/// The users who load a plugin.
enum Reader {
    Users,
    Slurmctld,
    Root,
}

struct Host<'a> {
    settings: &'a Settings,
    folders: Vec<PathBuf>,
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
        let mut named: Vec<Plugin> = Vec::new();
        let lists = [
            (
                "JobSubmitPlugins",
                "job_submit",
                Reader::Slurmctld,
                access::controls(self.settings),
                "slurmctld does not start again",
            ),
            (
                "CliFilterPlugins",
                "cli_filter",
                Reader::Users,
                role.has_commands,
                COMMANDS_FAIL,
            ),
        ];
        for (key, kind, reader, is_loaded, then) in lists {
            let line = files.slurm.last(key).filter(|_| is_loaded);
            if let Some((place, value)) = line
                && plugins_of(value, kind).contains(&"gpufrac")
            {
                named.push(Plugin {
                    place: place.to_string(),
                    file: format!("{kind}_gpufrac.so").into(),
                    then,
                    reader,
                });
            }
        }
        let then = if role.is_node {
            "slurmd does not start again, or jobs run without fence and environment"
        } else {
            "sbatch, salloc and srun fail here where the line is `required`"
        };
        for line in files.plugins.iter().flatten() {
            if (role.is_node || role.has_commands)
                && line.plugin.rsplit('/').next() == Some("spank_gpufrac.so")
            {
                named.push(Plugin {
                    place: line.place.to_string(),
                    file: PathBuf::from(&line.plugin),
                    then,
                    reader: if role.has_commands { Reader::Users } else { Reader::Root },
                });
            }
        }
        for plugin in named {
            self.plugin(plugin, found);
        }
        for line in files.plugins.iter().flatten().filter(|_| role.is_node) {
            let is_ours = line.plugin.rsplit('/').next() == Some("spank_gpufrac.so");
            let wrong = match (&line.unknown, &line.config) {
                (Some(word), _) if is_ours => Some(Wrong::UnknownArgument(word.clone())),
                (_, Some(path)) if !path.exists() => Some(Wrong::NoConfig),
                (_, Some(path)) => self.untrusted(path).or_else(|| self.other_config(path)),
                (_, None) => None,
            };
            found.extend(wrong.map(|wrong| Trouble {
                place: line.place.to_string(),
                path: line.config.clone().unwrap_or_default(),
                wrong,
            }));
        }
    }

    /// Whether a gpufrac.toml for the SPANK plugin differs from the one that the other programs use.
    fn other_config(&self, path: &Path) -> Option<Wrong> {
        let used = self.settings.config.as_ref()?;
        let is_same = || Some(fs::read(path).ok()? == fs::read(used).ok()?);
        (is_same() == Some(false)).then(|| Wrong::OtherConfig(used.clone()))
    }

    /// Checks the files by which Slurm finds programs and plugins: on a node root follows them, and the users' commands
    /// read plugstack.conf.
    fn files(&self, role: Role, found: &mut Vec<Trouble>) {
        let Some(files) = &self.settings.files else {
            return;
        };
        let mut stacks = vec![&files.plugstack];
        stacks.extend(files.plugins.iter().flatten().map(|line| &line.place.file));
        stacks.dedup();
        let mut add = |path: &Path, wrong: Wrong| {
            found.push(Trouble {
                place: path.display().to_string(),
                path: path.to_owned(),
                wrong,
            });
        };
        for stack in stacks.iter().filter(|_| role.has_commands) {
            if let Some((at, permission)) = access::closed_to_users(stack) {
                let wrong = Wrong::Closed {
                    reader: USERS,
                    at,
                    permission,
                    then: COMMANDS_FAIL,
                };
                add(stack, wrong);
            }
        }
        stacks.push(&files.slurm.path);
        for path in stacks.into_iter().filter(|_| role.is_node) {
            match self.untrusted(path) {
                // Sites give these files to slurmctld's user, who controls all jobs anyway.
                None
                | Some(Wrong::Untrusted {
                    is_slurm_user: true,
                    ..
                }) => {}
                Some(wrong) => add(path, wrong),
            }
        }
    }

    fn plugin(&self, plugin: Plugin, found: &mut Vec<Trouble>) {
        let Plugin {
            place,
            file,
            then,
            reader,
        } = plugin;
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
            (Some((own, _)), Some(host)) if own.series() != host.series() => {
                Some(Wrong::OtherSeries {
                    built_for: own.series(),
                    host: host.series(),
                })
            }
            (Some((_, build)), _) => build.filter(|build| build != BUILD).map(Wrong::OtherBuild),
        };
        let (reader, closed, then) = match reader {
            Reader::Users => (USERS, access::closed_to_users(&path), COMMANDS_FAIL),
            Reader::Slurmctld => (
                "slurmctld",
                access::closed_to_slurmctld(&path, self.settings),
                then,
            ),
            Reader::Root => ("root", None, then),
        };
        let closed = closed.map(|(at, permission)| Wrong::Closed {
            reader,
            at,
            permission,
            then,
        });
        let wrong = wrong.into_iter().chain(closed).chain(self.untrusted(&path));
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
        for (place, value) in scripts::hooks(self.settings, key) {
            let pattern = scripts::beside_slurm_conf(self.settings, value);
            let paths = scripts::glob(&pattern);
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

    /// Checks what the scripts of this node do to other jobs. Files that others than root can write are not opened.
    fn harms(&self, found: &mut Vec<Trouble>) {
        for key in scripts::NODE_SCRIPTS {
            for (place, value) in scripts::hooks(self.settings, key) {
                let pattern = scripts::beside_slurm_conf(self.settings, value);
                let paths = scripts::glob(&pattern).into_iter();
                let paths = paths.filter(|path| trust::resolve(path).is_ok());
                let mut known = BTreeSet::new();
                harms_of(paths.collect(), scripts::SCRIPTS_BEHIND, &mut known);
                for (path, harm, line) in known {
                    let wrong = match harm {
                        Harm::EndsAll => Wrong::EndsAll(line),
                        Harm::Credits => Wrong::Credits(line),
                    };
                    // A script that several settings run is named once.
                    let is_new = |it: &Trouble| it.path != path || it.wrong != wrong;
                    if found.iter().all(is_new) {
                        let place = place.clone();
                        found.push(Trouble { place, path, wrong });
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
        if meta.is_file() && meta.permissions().mode() & 0o111 == 0 {
            wrong.push(with(Wrong::NotExecutable));
        }
        wrong.extend(start::fault(path).map(Wrong::NoStart).map(with));
        wrong.extend(self.untrusted(path).map(with));
        let is_ours = path.file_name().is_some_and(|name| name == program);
        if is_ours && wrong.is_empty() {
            wrong.extend(other_build(path, program).map(with));
        }
        if is_ours || meta.len() > MANY_BYTES {
            return wrong;
        }
        let Ok(text) = fs::read_to_string(path) else {
            return wrong;
        };
        match script::ending(&text, program) {
            Some(Ending::Lost(line)) => wrong.push(with(Wrong::StatusLost(program, line))),
            Some(Ending::Unsure(line)) => wrong.push(with(Wrong::StatusUnsure(program, line))),
            Some(Ending::Hurried(line, seconds)) => {
                wrong.push(with(Wrong::Hurried(program, line, seconds)));
            }
            Some(Ending::WithoutVariables(line)) => {
                wrong.push(with(Wrong::WithoutVariables(program, line)));
            }
            Some(Ending::Unreached(line)) => wrong.push(with(Wrong::Unreached(program, line))),
            Some(Ending::Passed) => {}
            Some(Ending::Depends(line)) => wrong.push(with(Wrong::Depends(program, line))),
            // The program is run by a script that this one runs; what becomes of its status is not followed.
            None if scripts::names_through(&text, program, scripts::SCRIPTS_BEHIND) => {
                wrong.push(with(Wrong::StatusUnsure(program, 1)));
            }
            None => {}
        }
        for ours in paths_of(&text, program) {
            wrong.extend(self.program(&ours, program));
        }
        wrong
    }
}

/// The harm that scripts do, and those that they name, with the line.
fn harms_of(paths: Vec<PathBuf>, depth: usize, found: &mut BTreeSet<(PathBuf, Harm, usize)>) {
    for path in paths {
        let Some(text) = scripts::text_of(&path) else {
            continue;
        };
        let harms = script::harms(&text).into_iter();
        found.extend(harms.map(|(line, harm)| (path.clone(), harm, line)));
        if let (Some(depth), Some(code)) = (depth.checked_sub(1), scripts::code_of(&path)) {
            harms_of(scripts::scripts_named(&code), depth, found);
        }
    }
}

/// Whether gpufrac's program at this path, which only root can change, is of another build than `gpufrac`.
fn other_build(path: &Path, program: &str) -> Option<Wrong> {
    let mut command = Command::new(path);
    command.arg("--version");
    let Ok(Outcome::Ended(ended)) = subprocess::run(&mut command, b"", ask::LIMIT) else {
        return None;
    };
    let (build, _) = ended
        .stdout
        .strip_prefix(program)?
        .split_once(" for Slurm ")?;
    let build = build.trim();
    (build != BUILD).then(|| Wrong::OtherBuild(build.to_owned()))
}

/// The absolute paths of `program` in a script.
fn paths_of(text: &str, program: &str) -> Vec<PathBuf> {
    let lines = text.lines().map(str::trim_start);
    let code = lines.filter(|line| !line.starts_with('#'));
    let paths = code.flat_map(scripts::paths_in);
    let paths = paths.filter(|path| path.rsplit('/').next() == Some(program));
    let mut paths: Vec<PathBuf> = paths.map(PathBuf::from).collect();
    paths.sort();
    paths.dedup();
    paths
}

#[cfg(test)]
mod tests;
