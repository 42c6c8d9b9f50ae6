//! The faults of a host's files, with their cures.

use std::path::PathBuf;

use gpufrac_core::finding::{Finding, Severity};
use slurm_sys::release::{BUILD, Series};

use super::start::NoStart;
use crate::rules::prolog::PROLOG_NEEDS;

/// A file of gpufrac with a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The setting or line that names the file.
    pub place: String,
    pub path: PathBuf,
    pub wrong: Wrong,
}

/// The faults of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// The plugin is in none of the folders.
    NoPlugin {
        then: &'static str,
        /// The folders in which Slurm looks for plugins.
        folders: Vec<PathBuf>,
    },
    /// The file has no version, as each plugin has.
    IsNoPlugin,
    /// The plugin is built for another series than this host's Slurm.
    OtherSeries { built_for: Series, host: Series },
    /// The program or plugin is of another build of gpufrac than `gpufrac`.
    OtherBuild(String),
    /// Users other than root can change the file.
    Untrusted {
        /// The users who can change it, and the place.
        error: String,
        /// Whether only the user of slurmctld can change it; this user controls all jobs anyway.
        is_slurm_user: bool,
        /// The folder or file that can be changed.
        at: PathBuf,
    },
    /// Users, or the user of slurmctld, cannot read the file.
    Closed {
        /// The users who cannot read it.
        reader: &'static str,
        /// The folder or file whose mode is the reason.
        at: PathBuf,
        permission: char,
        then: &'static str,
    },
    /// The line names a gpufrac.toml that does not exist.
    NoConfig,
    /// The line has an argument that the plugin does not know.
    UnknownArgument(String),
    /// The line names another gpufrac.toml than this one, which the other programs use.
    OtherConfig(PathBuf),
    /// The program does not exist.
    NoProgram,
    /// No file matches the pattern: Slurm does not run this program.
    NoFiles(&'static str),
    /// The program has no execute permission.
    NotExecutable,
    /// The program cannot start.
    NoStart(NoStart),
    /// A script runs this program, and ignores its exit status in this line.
    StatusLost(&'static str, usize),
    /// As above, if it is not certain that the status is ignored.
    StatusUnsure(&'static str, usize),
    /// A script runs this program only if the condition in this line holds.
    Depends(&'static str, usize),
    /// A script ends this program in this line after so many seconds.
    Hurried(&'static str, usize, u64),
    /// A script runs this program in this line without Slurm's variables.
    WithoutVariables(&'static str, usize),
    /// A script ends in this line, before it runs this program.
    Unreached(&'static str, usize),
    /// A script ends all processes on a GPU in this line.
    EndsAll(usize),
    /// A script writes in this line which job has which GPU, by Slurm's numbers of GPUs.
    Credits(usize),
}

impl Trouble {
    pub(in super::super) fn finding(&self) -> Finding {
        let path = self.path.display();
        let error = |what: String, fix: String| (Severity::Error, what, fix);
        let (severity, what, fix) = match &self.wrong {
            Wrong::NoPlugin { then, folders } => {
                let folders: Vec<String> =
                    folders.iter().map(|it| format!("`{}`", it.display())).collect();
                // slurm.conf or plugstack.conf names a plugin that this host lacks. Cure: Install the package of the
                // plugins, or take the plugin out of the line until it is there.
                error(
                    format!("{path} is named and not in {}: {then}", folders.join(" or ")),
                    format!(
                        "install {path} for this host's Slurm there, or take it out of this line until it is there"
                    ),
                )
            }
            // The file is damaged, or another file. Cure: Install it again.
            Wrong::IsNoPlugin => error(
                format!("`{path}` is no plugin of Slurm, or only a part of one"),
                "install it again; to replace it while Slurm runs, write it beside and rename it (`install`, not `cp`)".to_owned(),
            ),
            // The plugin is of another series of Slurm. Cure: Install the package of the plugins for this series.
            Wrong::OtherSeries { built_for, host } => error(
                format!("`{path}` is built for Slurm {built_for}, and this host has {host}: Slurm does not load it, or it does nothing there"),
                format!("install gpufrac's plugins for Slurm {host} (`cargo xtask dist --slurm-include FOLDER` builds them)"),
            ),
            // Only a part of gpufrac was upgraded on this host. Cure: Install all packages in one command.
            Wrong::OtherBuild(build) => (
                Severity::Warning,
                format!("`{path}` is of build {build}, and `gpufrac` of build {BUILD}"),
                "install all of gpufrac's files on this host from one build: all packages in one command".to_owned(),
            ),
            Wrong::Untrusted { error: why, is_slurm_user, at } => (
                if *is_slurm_user { Severity::Warning } else { Severity::Error },
                match self.path.extension().and_then(|end| end.to_str()) {
                    Some("conf") => format!("`{path}` names programs of root, and {why}"),
                    Some("toml") => format!("`{path}` is refused in each step of a job: {why}"),
                    _ => format!("`{path}` runs as root, and {why}"),
                },
                format!("`chown root:root {0}; chmod go-w {0}`", at.display()),
            ),
            // A plugin or plugstack.conf was installed with `umask 077`. Cure: `chmod o+r` on the file, `o+x` on its
            // folders, as the hint says.
            Wrong::Closed { reader, at, permission, then } => error(
                format!("{reader} cannot read `{path}`: {then}"),
                format!("`chmod o+{permission} {}`", at.display()),
            ),
            // The line of spank_gpufrac.so in plugstack.conf names another gpufrac.toml. Cure: Remove `config=` from
            // the line, or correct the path.
            Wrong::NoConfig => error(
                format!("config={path} does not exist: no job with a GPU starts on this node"),
                format!("take config={path} out of this line, or correct the path"),
            ),
            // Two copies of gpufrac.toml on the node, of which one was changed. Cure: Remove `config=` from the line,
            // or copy the newer file.
            Wrong::OtherConfig(used) => error(
                format!(
                    "config={path} differs from `{}`: slurmstepd prepares jobs by the one, and the prolog by the other",
                    used.display()
                ),
                format!("take config={path} out of this line, or copy the newer file over the other"),
            ),
            // A misspelled argument, or a blank behind `config=`. Cure: `config=/etc/gpufrac/gpufrac.toml`, or no
            // argument.
            Wrong::UnknownArgument(word) => error(
                format!("spank_gpufrac.so ignores the argument {word:?}: the one that it knows is config=/PATH"),
                "write config= with the absolute path of gpufrac.toml, without a blank, or leave the argument out".to_owned(),
            ),
            // Prolog or epilog was not installed here, or the path is misspelled. Cure: Install gpufrac-node, or
            // correct the path.
            Wrong::NoProgram => error(
                format!("`{path}` does not exist on this node: Slurm drains it with the next job"),
                "install gpufrac's programs here, or correct the path".to_owned(),
            ),
            // No file matches the pattern of `Prolog=` or `Epilog=`. Cure: Put a script there that runs gpufrac's
            // program and ends with its status.
            Wrong::NoFiles(program) => error(
                format!("`{path}` names no file on this node: no slice is made and unmade without {program}"),
                format!("put a script there that runs /usr/sbin/{program} and ends with its status, or correct the pattern"),
            ),
            // The program has no `x`. Cure: `chmod 755`.
            Wrong::NotExecutable => error(
                format!("`{path}` cannot be run: Slurm drains this node with the next job"),
                format!("`chmod 755 {path}`, or move it elsewhere if it is no program of the site"),
            ),
            Wrong::NoStart(why) => no_start(&path.to_string(), why),
            // The site's script hides a failure of gpufrac's program. Cure: `/usr/sbin/gpufrac-prolog || exit $?` in
            // the script.
            Wrong::StatusLost(program, line) => error(
                format!(
                    "`{path}`, line {line}: the script goes on, or ends well, after {program} failed: {}",
                    consequence(program)
                ),
                format!("write there: /usr/sbin/{program} || exit $?"),
            ),
            // The site's script may hide a failure of gpufrac's program. Cure: `/usr/sbin/gpufrac-prolog || exit $?` in
            // the script.
            Wrong::StatusUnsure(program, line) => (
                Severity::Warning,
                format!(
                    "`{path}`, line {line}: whether the script ends with the status of {program} cannot be seen; if not, {}",
                    consequence(program)
                ),
                format!("write there: /usr/sbin/{program} || exit $?"),
            ),
            // The site's script calls gpufrac's program for some jobs only, such as those of one partition. Cure: Call
            // it for each job with a GPU of a pool, or for each job: it ends at once where there is nothing to do.
            Wrong::Depends(program, line) => (
                Severity::Note,
                format!(
                    "`{path}`, line {line}: {program} runs only under this condition; where the condition does not hold, {}",
                    consequence(program)
                ),
                format!("let it hold for each job with a GPU of a pool, or write before it: /usr/sbin/{program} || exit $?"),
            ),
            // The site's script gives gpufrac's program too little time. Cure: 60 s, or no `timeout`: Slurm has its own
            // (`PrologEpilogTimeout`).
            Wrong::Hurried(program, line, seconds) => (
                Severity::Warning,
                format!(
                    "`{path}`, line {line}: timeout ends {program} after {seconds} s, and a slow driver or a busy GPU can take it up to {PROLOG_NEEDS} s: Slurm then drains the node"
                ),
                format!("give it {PROLOG_NEEDS} s, or write there: /usr/sbin/{program} || exit $?"),
            ),
            // `env -i`, `sudo` without `-E`, `su -`, `ssh` or `systemd-run` drops the variables by which the program
            // knows the job. Cure: `/usr/sbin/gpufrac-prolog || exit $?`, without these.
            Wrong::WithoutVariables(program, line) => error(
                format!(
                    "`{path}`, line {line}: {program} runs without Slurm's variables there, and takes each job for one without a GPU: {}",
                    consequence(program)
                ),
                format!("write there, without env -i, sudo, su or ssh: /usr/sbin/{program} || exit $?"),
            ),
            // An `exit` or `exec` stands before the call. Cure: Call gpufrac's program before that line.
            Wrong::Unreached(program, line) => error(
                format!(
                    "`{path}`, line {line}: the script ends there, before it runs {program}: {}",
                    consequence(program)
                ),
                format!("write before this line: /usr/sbin/{program} || exit $?"),
            ),
            // A script of the site ends what is left on GPUs, as on nodes with whole GPUs. Cure: Remove the line;
            // gpufrac-epilog ends the processes on the job's own slice.
            Wrong::EndsAll(line) => (
                Severity::Warning,
                format!(
                    "`{path}`, line {line}: the script ends all processes on a GPU: those of other jobs that share it, and their MPS server"
                ),
                "remove it: gpufrac-epilog ends the processes on the job's own slice".to_owned(),
            ),
            // jobstats' own script for prolog and epilog. Cure: Run `contrib/neighbours/gpustat` in its place;
            // [jobstats](../neighbours.md#jobstats-and-gpus).
            Wrong::Credits(line) => (
                Severity::Warning,
                format!(
                    "`{path}`, line {line}: the script writes the job of a GPU by Slurm's numbers, which number gpufrac's devices here: jobstats credits the job with the activity of another GPU"
                ),
                "run contrib/neighbours/gpustat of gpufrac in its place, after gpufrac-prolog and in the epilog".to_owned(),
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

fn no_start(path: &str, why: &NoStart) -> (Severity, String, String) {
    let error = |what: String, fix: String| (Severity::Error, what, fix);
    match why {
        // `Prolog=` or `Epilog=` names a folder. Cure: Name the program, or all files of the folder by `*`.
        NoStart::NoFile => error(
            format!(
                "`{path}` is a folder, which cannot start: Slurm drains this node with the next job"
            ),
            "name the program in this folder, or all of them by `*`".to_owned(),
        ),
        // A script without its first line, or a damaged program. Cure: Write `#!/bin/sh` as its first line, or install
        // the program again.
        NoStart::NoShebang => error(
            format!(
                "`{path}` cannot start, because it is no program and does not begin with `#!`: Slurm drains this node with the next job"
            ),
            "begin its first line with #!/bin/sh; install it again if it is gpufrac's".to_owned(),
        ),
        // An editor wrote `\r\n`: the kernel looks for the interpreter `/bin/sh\r`. Cure: The `sed` of the hint.
        NoStart::CarriageReturn => error(
            format!(
                "`{path}` cannot start, because it has the line ends of Windows: Slurm drains this node with the next job"
            ),
            format!("`sed -i 's/\\r$//' {path}`"),
        ),
        // The first line names another interpreter. Cure: Correct the first line, for example: `#!/bin/sh`.
        NoStart::NoInterpreter(interpreter) => error(
            format!(
                "`{path}` cannot start, because its interpreter `{}` does not exist: Slurm drains this node with the next job",
                interpreter.display()
            ),
            "correct its first line, for example: #!/bin/sh".to_owned(),
        ),
    }
}

fn consequence(program: &str) -> &'static str {
    match program {
        "gpufrac-prolog" => "jobs start without their slice",
        _ => "slices that were not taken down are told to nobody",
    }
}
