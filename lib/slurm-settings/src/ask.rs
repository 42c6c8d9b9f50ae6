//! Programs of Slurm, each with a time limit.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use gpufrac_core::slurm_release::SlurmRelease;
use gpufrac_host::subprocess::{self, Ended, Outcome};

/// The longest time for one answer of scontrol.
pub(super) const LIMIT: Duration = Duration::from_secs(15);

/// The reasons why a program of Slurm gives no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The file or command of Slurm is not on this host.
    /// Cure: Run `gpufrac check --slurm` on slurmctld's host, or name the file with `--slurm-conf FILE`.
    #[error("{0} does not exist on this host")]
    Absent(&'static str),
    /// The program of Slurm did not start.
    /// Cure: Install Slurm's client commands on this host; check `PATH`.
    #[error("starting {0} failed: {1}")]
    Run(&'static str, io::Error),
    // The program failed; with the last line of its output.
    /// slurmctld did not answer.
    /// Cure: Check `scontrol ping`; then run the command again.
    #[error("{0} does not answer ({1})")]
    Refused(&'static str, String),
    /// slurmctld or the program was too slow.
    /// Cure: Check the load of slurmctld's host; run the command again.
    #[error("{0} did not answer within {limit} s", limit = LIMIT.as_secs())]
    Silent(&'static str),
    /// `SLURM_CONF` names no file, for which programs of Slurm wait up to a minute; so none was started.
    /// Cure: Correct `SLURM_CONF`, or remove it from the environment.
    #[error("{program} cannot be asked: $SLURM_CONF names `{}`, which is not there", file.display())]
    NoFile {
        program: &'static str,
        file: PathBuf,
    },
}

/// A program in the prefix of the Slurm that this build is for, because `PATH` may not contain this prefix.
pub(super) fn of_prefix(name: &str) -> Option<PathBuf> {
    Some(slurm_sys::client::prefix()?.join(name))
}

/// The output of a program of Slurm.
/// Errors: the program is not installed, fails (without slurmctld it says so on stderr), or does not end in time.
pub fn ask_slurm(program: &'static str, arguments: &[&str]) -> Result<String, AskError> {
    Ok(slurm_says(program, arguments, &[])?.stdout)
}

/// The file that `$SLURM_CONF` names, if it does not exist: each program of Slurm waits a minute for it, with
/// `--version` too (`s_p_parse_file` of parse_config.c).
pub(super) fn awaited_file() -> Option<PathBuf> {
    let file = PathBuf::from(std::env::var_os("SLURM_CONF")?);
    (!file.exists()).then_some(file)
}

/// The release of the Slurm on this host, which need not run; None without one or without its files.
pub fn installed_release() -> Option<SlurmRelease> {
    let said = ask_slurm("scontrol", &["--version"]).ok()?;
    said.split_whitespace().last()?.parse().ok()
}

/// The answer in a thread; a thread that panicked has none.
pub(super) fn joined(
    program: &'static str,
    thread: ScopedJoinHandle<'_, Result<String, AskError>>,
) -> Result<String, AskError> {
    let panicked = |_| Err(AskError::Refused(program, "a thread panicked".to_owned()));
    thread.join().unwrap_or_else(panicked)
}

/// The output of a program of Slurm, with that on stderr. `environment`: variables for it. Errors: as [`ask_slurm`].
pub fn slurm_says(
    program: &'static str,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> Result<Ended, AskError> {
    let is_named = environment.iter().any(|(name, _)| *name == "SLURM_CONF");
    if let Some(file) = awaited_file().filter(|_| !is_named) {
        return Err(AskError::NoFile { program, file });
    }
    match first(&places(program), |path| ask(path, arguments, environment)) {
        Ok(Some(Outcome::Ended(ended))) if ended.status.success() => Ok(ended),
        Ok(Some(Outcome::Ended(ended))) => {
            let last = ended.stderr.lines().last().unwrap_or("no reason");
            Err(AskError::Refused(program, last.trim().to_owned()))
        }
        Ok(Some(Outcome::Silent)) => Err(AskError::Silent(program)),
        Ok(None) => Err(AskError::Absent(program)),
        Err(error) => Err(AskError::Run(program, error)),
    }
}

/// The usual places of a program of Slurm.
pub(super) fn places(name: &str) -> Vec<PathBuf> {
    let of_prefix = ["bin", "sbin"].map(|folder| of_prefix(&format!("{folder}/{name}")));
    let own = of_prefix.into_iter().flatten();
    let usual = Path::new("/usr/sbin").join(name);
    std::iter::once(name.into())
        .chain(own)
        .chain([usual])
        .collect()
}

/// Runs the first of these programs that exists; None where none does.
pub(super) fn first<T>(
    programs: &[PathBuf],
    mut run: impl FnMut(&Path) -> io::Result<T>,
) -> io::Result<Option<T>> {
    for program in programs {
        match run(program) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => return done.map(Some),
        }
    }
    Ok(None)
}

/// The beginnings of the names of variables that select other jobs, nodes or clusters for Slurm's programs, or print
/// them in another form (ENVIRONMENT VARIABLES in squeue(1), sinfo(1), scontrol(1), sacct(1), sbatch(1)).
const SELECT: [&str; 7] = [
    "SACCT_",
    "SBATCH_CLUSTERS",
    "SCONTROL_",
    "SINFO_",
    "SLURM_CLUSTERS",
    "SLURM_TIME_FORMAT",
    "SQUEUE_",
];

/// The variables with which Slurm's programs show no other cluster of a federation.
const LOCAL: [&str; 4] = [
    "SACCT_LOCAL",
    "SCONTROL_LOCAL",
    "SINFO_LOCAL",
    "SQUEUE_LOCAL",
];

/// A program of Slurm that is asked about the cluster of its slurm.conf, whatever the user's variables select.
pub fn of_own_cluster(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let bytes = name.as_encoded_bytes();
        if SELECT
            .iter()
            .any(|start| bytes.starts_with(start.as_bytes()))
        {
            command.env_remove(name);
        }
    }
    command.env("LC_ALL", "C");
    command.envs(LOCAL.map(|name| (name, "1")));
    command
}

pub(super) fn ask(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) -> io::Result<Outcome> {
    let mut command = of_own_cluster(program);
    command.args(arguments);
    command.envs(environment.iter().copied());
    subprocess::run(&mut command, b"", LIMIT)
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
        let said = |programs: [&PathBuf; 2]| {
            let show = |path: &Path| ask(path, &["show", "config"], &[]);
            let outcome = first(&programs.map(PathBuf::clone), show).unwrap()?;
            match outcome {
                Outcome::Ended(ended) => Some(ended.stdout),
                Outcome::Silent => panic!("no answer"),
            }
        };
        assert_eq!(said([&absent, &own]).unwrap(), "own show config\n");
        assert_eq!(said([&other, &own]).unwrap(), "other show config\n");
        assert_eq!(said([&absent, &absent]), None);
    }

    #[test]
    fn files_of_a_prefix_are_looked_for_where_this_was_built_for_one() {
        let (folder, file) = (slurm_sys::client::prefix(), of_prefix("bin/scontrol"));
        assert_eq!(file, folder.map(|folder| folder.join("bin/scontrol")));
        assert!(file.is_none_or(|file| file.is_absolute()));
    }
}
