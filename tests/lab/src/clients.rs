//! Client commands as root or as an unprivileged user, each with a deadline.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use crate::patience::Patience;
use crate::process::spawn;
use crate::{Folder, LabError, User, leftovers, slurm};

/// The default time limit of a client command on an idle machine.
const LIMIT: Duration = Duration::from_secs(90);

/// A client command.
#[derive(Debug)]
pub struct SlurmCommand {
    folder: Folder,
    words: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    place: PathBuf,
    user: Option<(u32, u32)>,
    limit: Duration,
}

impl SlurmCommand {
    pub(crate) fn new(folder: &Folder, program: impl AsRef<OsStr>) -> Self {
        let command = Self {
            folder: folder.clone(),
            words: vec![program.as_ref().into()],
            variables: Vec::new(),
            place: folder.work(),
            user: None,
            limit: LIMIT,
        };
        command
            .env("PATH", search_path(folder))
            .env("SLURM_CONF", folder.slurm_conf())
            .env("GPUFRAC_CONFIG", folder.gpufrac_conf())
            .env("LC_ALL", "C.UTF-8")
            .env(leftovers::MARK, folder.root())
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.words
            .extend(args.into_iter().map(|arg| arg.as_ref().into()));
        self
    }

    /// Runs it as `user`, with no supplementary groups.
    pub fn user(mut self, user: &User) -> Self {
        self.user = (user.uid != 0).then_some((user.uid, user.gid));
        self.env("USER", &user.name).env("HOME", "/")
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.into(), value.as_ref().into()));
        self
    }

    /// Another working directory than the lab's `work`.
    pub fn current_dir(mut self, path: impl Into<PathBuf>) -> Self {
        self.place = path.into();
        self
    }

    /// Another time limit than the default of 90 seconds.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// The words, for messages.
    fn line(&self) -> String {
        self.words
            .iter()
            .map(|word| word.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Starts the command without waiting for it. Errors: the program cannot be started.
    pub fn spawn(self) -> Result<Running, LabError> {
        let line = self.line();
        let mut command = slurm::command(&self.folder, &self.words[0], &self.place, self.user);
        command
            .args(&self.words[1..])
            .env_clear()
            .envs(self.variables)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = spawn(&mut command).map_err(|reason| LabError::Start {
            program: self.words[0].to_string_lossy().into_owned(),
            reason,
        })?;
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        Ok(Running {
            folder: self.folder,
            child,
            line,
            stdout,
            stderr,
            patience: Patience::new(self.limit),
        })
    }

    /// Runs the command to its end.
    /// Errors: it cannot be started or does not end in time; a failure of the command itself is in the outcome.
    pub fn run(self) -> Result<Outcome, LabError> {
        self.spawn()?.wait()
    }

    /// Runs the command to its end; any failure is an error.
    /// Errors: as [`run`](Self::run), and if the exit status is not 0.
    pub fn stdout(self) -> Result<String, LabError> {
        self.run()?.success().map(|outcome| outcome.stdout)
    }
}

/// The lab's programs come before the system's.
pub(crate) fn search_path(folder: &Folder) -> OsString {
    let mut path = OsString::new();
    for programs in folder.programs() {
        path.push(programs);
        path.push(":");
    }
    path.push("/usr/sbin:/usr/bin:/sbin:/bin");
    path
}

/// Reads a stream to its end in the background, then sends the bytes.
fn collect(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // After an error the bytes read so far are used; there may be no receiver any more.
        let _ = pipe.read_to_end(&mut bytes);
        let _ = sender.send(bytes);
    });
    receiver
}

/// A running client command.
#[derive(Debug)]
pub struct Running {
    folder: Folder,
    child: Child,
    line: String,
    stdout: Option<Receiver<Vec<u8>>>,
    stderr: Option<Receiver<Vec<u8>>>,
    patience: Patience,
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Waits for its end. Errors: it does not end in time; it is then killed.
    pub fn wait(mut self) -> Result<Outcome, LabError> {
        // Waits for the ends of its streams, because this needs no polling, which would make times inexact.
        let streams = [self.stdout.take(), self.stderr.take()];
        let mut texts = streams
            .into_iter()
            .map(|stream| text(stream?, &self.patience));
        let (stdout, stderr) = (texts.next().flatten(), texts.next().flatten());
        let (Some(stdout), Some(stderr)) = (stdout, stderr) else {
            // Both can only fail if the process has ended already.
            let _ = self.child.kill();
            let _ = self.child.wait();
            return Err(LabError::Deadline {
                what: format!("`{}` did not end", self.line),
                limit: self.patience.most(),
                logs: self.folder.log_tails(15),
            });
        };
        let status = self.child.wait().map_err(|reason| LabError::Start {
            program: self.line.clone(),
            reason,
        })?;
        Ok(Outcome {
            command: self.line,
            status,
            stdout,
            stderr,
        })
    }
}

fn text(stream: Receiver<Vec<u8>>, patience: &Patience) -> Option<String> {
    let bytes = stream.recv_timeout(patience.left()).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The outcome of a client command.
#[derive(Debug)]
pub struct Outcome {
    command: String,
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Outcome {
    /// An exit status other than 0 is an error. Errors: the command failed; with its output.
    pub fn success(self) -> Result<Self, LabError> {
        if self.status.success() { Ok(self) } else { Err(self.into_error()) }
    }

    /// The outcome as an error.
    pub fn into_error(self) -> LabError {
        let status = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("status {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        LabError::Command {
            command: self.command,
            status,
            stdout: self.stdout,
            stderr: self.stderr,
        }
    }
}
