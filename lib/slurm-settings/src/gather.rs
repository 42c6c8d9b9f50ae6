//! The sources of the settings: scontrol, the files, and this host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use gpufrac_host::subprocess::{self, Ended, Outcome};
use gpufrac_host::trust;

use super::{HostGpu, HostGpus, Script, Settings};
use gpufrac_slurm_conf::Files;
use gpufrac_slurm_conf::Running;

/// The longest time for one answer of scontrol.
pub(super) const LIMIT: Duration = Duration::from_secs(15);
/// The usual paths of slurm.conf; the second on nodes that get it from slurmctld.
const USUAL: [&str; 2] = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"];
/// The settings for programs that slurmd runs on a node, and gpufrac's program for each.
pub(super) const HOOKS: [(&str, &str); 2] =
    [("Prolog", "gpufrac-prolog"), ("Epilog", "gpufrac-epilog")];
/// The settings for scripts that run on a node with jobs of others.
pub(super) const NODE_SCRIPTS: [&str; 4] = ["Prolog", "Epilog", "TaskProlog", "TaskEpilog"];
/// A longer file is not taken for a script.
const MANY_BYTES: u64 = 1 << 20;

/// The sources to read.
#[derive(Debug, Clone, Default)]
pub struct Sources<'a> {
    /// This slurm.conf and the files beside it are judged, without a running Slurm.
    pub slurm_conf: Option<PathBuf>,
    /// The gpufrac.toml in use, to judge who can read it; None for a file that is only tested.
    pub config: Option<PathBuf>,
    /// Whether to check the files of gpufrac on this host.
    pub host: bool,
    /// Whether to ask slurmctld about this node only. Thousands of nodes ask every few minutes, so each question must
    /// cost slurmctld little.
    pub this_node_alone: bool,
    /// Whether to ask slurmdbd for limits on any host; otherwise only slurmctld's host asks, and not for this node
    /// alone.
    pub limits: bool,
    /// The node that this host is, if it is one.
    pub here: Option<Here<'a>>,
}

/// This host as a node of a pool.
#[derive(Debug, Clone)]
pub struct Here<'a> {
    /// The name of the node in Slurm.
    pub node: &'a str,
    /// The GPUs in the order of NVML's indexes; None if NVML does not answer.
    pub gpus: Option<Vec<HostGpu>>,
    /// Whether one of the node's pools has MPS control daemons.
    pub uses_mps: bool,
}

/// Reads all sources. [`Settings::unknown`] lists those that could not be read.
pub fn gather(sources: &Sources<'_>) -> Settings {
    let mut settings = Settings::default();
    let here = sources.here.as_ref().filter(|_| sources.this_node_alone);
    settings.only = here.map(|here| here.node.to_owned());
    let from_environment = std::env::var_os("SLURM_CONF").map(PathBuf::from);
    // If the file named by SLURM_CONF does not exist, scontrol would wait for it.
    let absent = from_environment.as_ref().filter(|path| !path.exists());
    match (&sources.slurm_conf, absent) {
        (Some(_), _) => {}
        (None, Some(path)) => {
            let path = path.display();
            settings.unknown.push(format!(
                "$SLURM_CONF names `{path}`, which is not there: the running Slurm is not judged"
            ));
        }
        (None, None) => {
            let only = settings.only.as_deref();
            // Both run programs that wait for slurmctld, so they run in parallel.
            let (running, pools) = std::thread::scope(|scope| {
                let asked = sources.config.as_ref();
                let asked = asked.map(|_| scope.spawn(super::pools::ask));
                let running = running(only);
                (running, asked.and_then(|it| it.join().ok().flatten()))
            });
            settings.pools = pools;
            match running {
                Ok(running) => settings.running = Some(running),
                Err(error @ (AskError::Refused(..) | AskError::Silent(_))) => {
                    settings.no_answer = Some(error.to_string());
                }
                Err(error) => {
                    let why = format!("{error}: the running Slurm is not judged");
                    settings.unknown.push(why);
                }
            }
        }
    }
    let told = settings
        .running
        .as_ref()
        .and_then(|running| running.get("SLURM_CONF"));
    let asked = sources.slurm_conf.clone().or(from_environment);
    let candidates: Vec<PathBuf> = match asked {
        Some(path) => vec![path],
        None => {
            let usual = told.into_iter().chain(USUAL).map(PathBuf::from);
            usual.chain(of_prefix("etc/slurm.conf")).collect()
        }
    };
    let read = |path: &Path| fs::read_to_string(path);
    let mut why = None;
    for path in &candidates {
        match Files::read(path, &read, &glob) {
            Ok(files) => {
                settings.files = Some(files);
                break;
            }
            Err(error) => {
                why.get_or_insert_with(|| format!("reading `{}` failed: {error}", path.display()));
            }
        }
    }
    if settings.files.is_none() {
        settings.unknown.extend(why);
    }
    settings.scripts = scripts(&settings);
    settings.comment_writers = super::comments::writers(&settings);
    settings.config = sources.config.clone();
    let config = sources.config.as_deref();
    settings.closed = config.and_then(|config| super::access::closed(config, &settings));
    // A slurm.conf that is only tried has no slurmctld, and so no slurmdbd.
    let is_tried = sources.slurm_conf.is_some();
    let is_asked = sources.limits || settings.is_of_controller();
    if is_asked && !is_tried && !sources.this_node_alone && settings.running.is_some() {
        settings.limits = super::limits::ask(&settings);
    }
    if let Some(here) = &sources.here {
        settings.kill_mode = if here.uses_mps { kill_mode() } else { None };
        settings.gpus = here.gpus.clone().map(|gpus| HostGpus {
            node: here.node.to_owned(),
            gpus,
        });
    }
    if sources.host {
        let (role, troubles) = super::host::look(&settings, sources.here.is_some());
        (settings.role, settings.troubles) = (Some(role), troubles);
    }
    settings
}

/// The reasons why a program of Slurm gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The program is not installed.
    #[error("{0} does not exist on this host")]
    Absent(&'static str),
    /// The program could not be started.
    #[error("starting {0} failed: {1}")]
    Run(&'static str, std::io::Error),
    /// The program failed; with the last line of its output.
    #[error("{0} does not answer ({1})")]
    Refused(&'static str, String),
    /// The program did not end in time.
    #[error("{0} did not answer within {limit} s", limit = LIMIT.as_secs())]
    Silent(&'static str),
}

/// The state of all nodes and partitions, or of one node only.
fn running(only: Option<&str>) -> Result<Running, AskError> {
    let scontrol = |arguments: &[&str]| ask_slurm("scontrol", arguments);
    // Each is a program that waits for slurmctld, so they run in parallel.
    let (config, nodes, partitions) = std::thread::scope(|scope| {
        let nodes = scope.spawn(move || match only {
            Some(node) => scontrol(&["-o", "show", "node", node]),
            None => scontrol(&["-a", "-o", "show", "node"]),
        });
        let partitions = scope.spawn(move || match only {
            Some(_) => Ok(String::new()),
            None => scontrol(&["-a", "-o", "show", "partition"]),
        });
        let config = scontrol(&["show", "config"]);
        (config, joined(nodes), joined(partitions))
    });
    Ok(Running::parse(&config?, &nodes?, &partitions?))
}

/// The result of a thread; a thread that panicked has no answer.
fn joined(thread: ScopedJoinHandle<'_, Result<String, AskError>>) -> Result<String, AskError> {
    let panicked = |_| {
        Err(AskError::Refused(
            "scontrol",
            "a thread panicked".to_owned(),
        ))
    };
    thread.join().unwrap_or_else(panicked)
}

/// A program in the prefix of the Slurm that this build is for, because `PATH` may not contain this prefix.
pub(super) fn of_prefix(name: &str) -> Option<PathBuf> {
    Some(slurm_sys::client::prefix()?.join(name))
}

/// The output of a program of Slurm.
///
/// # Errors
/// The program is not installed, fails (without slurmctld it says so on stderr), or does not end in time.
pub fn ask_slurm(program: &'static str, arguments: &[&str]) -> Result<String, AskError> {
    Ok(slurm_says(program, arguments, &[])?.stdout)
}

/// The output of a program of Slurm, with that on stderr. `environment`: variables for it.
///
/// # Errors
/// As [`ask_slurm`].
pub fn slurm_says(
    program: &'static str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<Ended, AskError> {
    let programs = [Some(program.into()), of_prefix(&format!("bin/{program}"))];
    let programs: Vec<PathBuf> = programs.into_iter().flatten().collect();
    match first(&programs, arguments, environment) {
        Ok(Outcome::Ended(ended)) if ended.status.success() => Ok(ended),
        Ok(Outcome::Ended(ended)) => {
            let last = ended.stderr.lines().last().unwrap_or("no reason");
            Err(AskError::Refused(program, last.trim().to_owned()))
        }
        Ok(Outcome::Silent) => Err(AskError::Silent(program)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(AskError::Absent(program))
        }
        Err(error) => Err(AskError::Run(program, error)),
    }
}

/// The output of the first of these programs that exists.
fn first(
    programs: &[PathBuf],
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> std::io::Result<Outcome> {
    let mut absent = std::io::ErrorKind::NotFound.into();
    for program in programs {
        match ask(program, arguments, environment) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => absent = error,
            said => return said,
        }
    }
    Err(absent)
}

fn ask(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> std::io::Result<Outcome> {
    let mut command = Command::new(program);
    command.env("LC_ALL", "C").args(arguments);
    command.envs(environment.iter().copied());
    subprocess::run(&mut command, b"", LIMIT)
}

/// The values of `Prolog` or `Epilog`, each with the line of the file, or with the command that prints it.
pub(super) fn hooks<'a>(settings: &'a Settings, key: &'a str) -> Vec<(String, &'a str)> {
    let files = settings.files.iter().flat_map(|files| files.slurm.all(key));
    let mut found: Vec<_> = files
        .map(|(place, value)| (place.to_string(), value))
        .collect();
    let running = settings.running.iter().flat_map(|running| running.all(key));
    for value in running {
        if !found.iter().any(|(_, known)| *known == value) {
            found.push(("scontrol show config".into(), value));
        }
    }
    found
}

/// A relative path is relative to the folder of slurm.conf (24.11; 22.05 accepts none).
pub(super) fn beside_slurm_conf(settings: &Settings, path: &str) -> PathBuf {
    let files = settings.files.as_ref();
    let folder = files.and_then(|files| files.slurm.path.parent());
    folder.unwrap_or(Path::new("/")).join(path)
}

/// The prologs and epilogs that are set, and whether they run gpufrac's programs.
pub(super) fn scripts(settings: &Settings) -> Vec<Script> {
    let mut scripts = Vec::new();
    for (key, program) in HOOKS {
        for (_, path) in hooks(settings, key) {
            let names = glob(&beside_slurm_conf(settings, path));
            let texts: Vec<Option<bool>> =
                names.iter().map(|path| names_it(path, program)).collect();
            let names_ours = match (
                texts.contains(&Some(true)),
                texts.is_empty() || texts.contains(&None),
            ) {
                (true, _) => Some(true),
                (false, true) => None,
                (false, false) => Some(false),
            };
            scripts.push(Script {
                key,
                path: path.to_owned(),
                names_ours,
            });
        }
    }
    scripts
}

fn names_it(path: &Path, program: &str) -> Option<bool> {
    let ours = HOOKS.map(|(_, ours)| ours);
    if let Some(name) = path.file_name().and_then(|name| name.to_str())
        && ours.contains(&name)
    {
        return Some(name == program);
    }
    let code = code_of(path)?;
    Some(code.contains(program) || names_through(&code, program, SCRIPTS_BEHIND))
}

/// The most files of a folder of scripts.
const MOST_FILES: usize = 64;

/// The greatest number of scripts between that of slurm.conf and gpufrac's program.
pub(super) const SCRIPTS_BEHIND: usize = 3;

/// Whether a script that this code names, or one in a folder that it names, names the program.
pub(super) fn names_through(code: &str, program: &str, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    scripts_named(code).into_iter().any(|script| {
        let Some(code) = code_of(&script) else {
            return false;
        };
        let name = script.file_name();
        name.is_some_and(|name| name == program)
            || code.contains(program)
            || names_through(&code, program, depth)
    })
}

/// The files that this code names, and those in folders that it names. What a user can write, such as a file in /tmp,
/// is left out.
pub(super) fn scripts_named(code: &str) -> Vec<PathBuf> {
    let words = code.split(|c: char| c.is_whitespace() || "\"'=;()|&".contains(c));
    let paths = words.filter(|word| word.starts_with('/') && !word.contains('$'));
    let scripts = paths.flat_map(|word| {
        let path = Path::new(word);
        let files = if path.is_dir() { glob(&path.join("*")) } else { glob(path) };
        // A folder of all programs is no folder of hooks.
        if files.len() > MOST_FILES { Vec::new() } else { files }
    });
    scripts
        .filter(|script| trust::resolve(script).is_ok())
        .collect()
}

/// The lines of a script that are run; None for what is no script, or cannot be read.
pub(super) fn code_of(path: &Path) -> Option<String> {
    let text = text_of(path)?;
    // Comments are removed, because a program named in a comment is not run.
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'));
    Some(code.collect::<Vec<_>>().join("\n"))
}

/// The text of a script; None for what is no script, or cannot be read.
pub(super) fn text_of(path: &Path) -> Option<String> {
    let file = fs::metadata(path).ok()?;
    if !file.is_file() || file.len() > MANY_BYTES {
        return None;
    }
    // A program that is not a script could run anything.
    String::from_utf8(fs::read(path).ok()?).ok()
}

/// The files that match a path with `*` in its last part, in order.
pub fn files_named(path: &Path) -> Vec<PathBuf> {
    glob(path)
}

pub(super) fn glob(path: &Path) -> Vec<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some((start, end)) = name.split_once('*') else {
        return vec![path.to_owned()];
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let end = end.rsplit('*').next().unwrap_or_default();
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(start) && name.ends_with(end) && !name.starts_with('.')
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(fits)
        .collect();
    found.sort();
    found
}

/// `KillMode=` of slurmd's unit on this host. MPS control daemons must outlive slurmd.
fn kill_mode() -> Option<String> {
    let arguments = ["show", "--property=LoadState,KillMode", "slurmd.service"];
    let Ok(Outcome::Ended(ended)) = ask(Path::new("systemctl"), &arguments, &[]) else {
        return None;
    };
    let mut lines = ended.stdout.lines();
    let loaded = ended.status.success() && lines.any(|line| line == "LoadState=loaded");
    let mut lines = ended.stdout.lines();
    let mode = lines.find_map(|line| line.strip_prefix("KillMode="));
    mode.filter(|_| loaded).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scontrol_of_the_prefix_is_asked_where_path_has_none() {
        let prefix = tempfile::tempdir().unwrap();
        let program = |name: &str| {
            let path = prefix.path().join(name);
            // Another process writes it: a child of another test could keep a file open that this process writes, and
            // the kernel does not start such a program.
            let text = format!("#!/bin/sh\necho {name} $*\n");
            let mut writer = Command::new("sh");
            writer.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]);
            let wrote = writer.arg(&path).arg(text).status().unwrap();
            assert!(wrote.success());
            path
        };
        let (own, other) = (program("own"), program("other"));
        let absent = prefix.path().join("absent");
        let said = |programs: &[&PathBuf]| -> std::io::Result<String> {
            let programs: Vec<PathBuf> = programs.iter().copied().cloned().collect();
            match first(&programs, &["show", "config"], &[])? {
                Outcome::Ended(ended) => Ok(ended.stdout),
                Outcome::Silent => Err(std::io::ErrorKind::TimedOut.into()),
            }
        };
        let out = said(&[&absent, &own]).unwrap();
        assert_eq!(out, "own show config\n");
        let out = said(&[&other, &own]).unwrap();
        assert_eq!(out, "other show config\n");
        let error = said(&[&absent, &absent]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn files_of_a_prefix_are_looked_for_where_this_was_built_for_one() {
        let (folder, file) = (slurm_sys::client::prefix(), of_prefix("bin/scontrol"));
        assert_eq!(file, folder.map(|folder| folder.join("bin/scontrol")));
        assert!(file.is_none_or(|file| file.is_absolute()));
    }
}
