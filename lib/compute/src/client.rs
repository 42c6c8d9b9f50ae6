//! A client: a child process that makes the calls.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use gpufrac_core::ids::{GroupId, UserId};
use gpufrac_fence::Closed;
use gpufrac_host::pause::Pause;
use gpufrac_host::subprocess::PATH;
use serde::de::DeserializeOwned;

use crate::group::Group;
use crate::order::{Begun, Computed, Failure, Largest, Opened, Order, Seen};

/// How long an order may take, besides the time of a computation.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// How long a client may take to end after its input ended.
const END_LIMIT: Duration = Duration::from_secs(5);
/// A variable that clients keep: drivers outside of the linker's cache need it.
const LIBRARIES: &str = "LD_LIBRARY_PATH";

/// The program that calls [`crate::serve`].
#[derive(Debug, Clone)]
pub struct Program {
    /// Its file; another user must be able to run it, if clients of another user are wanted.
    pub path: PathBuf,
    pub arguments: Vec<String>,
}

/// The environment, user and devices of a client.
#[derive(Debug, Clone, Default)]
pub struct Setting {
    /// The variables besides `PATH` and `LD_LIBRARY_PATH`.
    pub variables: BTreeMap<String, String>,
    /// The user; None for the caller.
    pub user: Option<(UserId, GroupId)>,
    /// The devices that its control group, made as that of a job, closes; None for the caller's group.
    pub closed: Option<Closed>,
}

impl Setting {
    /// Sets a variable.
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Setting {
        self.variables.insert(name.to_owned(), value.into());
        self
    }

    /// With `CUDA_VISIBLE_DEVICES`.
    pub fn on(device: &str) -> Setting {
        let setting = Setting::default().with("CUDA_VISIBLE_DEVICES", device);
        setting.with("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    }
}

/// A running client. It is killed when dropped, and by the kernel with the thread that started it.
#[derive(Debug)]
pub struct Client {
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    /// The length of the running computation.
    computing: Duration,
    /// How long an order may take, besides the time of a computation; [`ANSWER_LIMIT`] at first.
    pub limit: Duration,
    /// Removed after the process.
    _group: Option<Group>,
}

impl Client {
    /// Starts a client. Errors: the process cannot be started, or its control group cannot be made.
    pub fn start(program: &Program, setting: &Setting) -> Result<Client, Failure> {
        let mut command = Command::new(&program.path);
        command
            .args(&program.arguments)
            .env_clear()
            .env("PATH", PATH)
            // The driver would write the compiled program to the user's home.
            .env("CUDA_CACHE_DISABLE", "1")
            .envs(std::env::var_os(LIBRARIES).map(|value| (LIBRARIES, value)))
            .envs(&setting.variables)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some((user, group)) = setting.user {
            command.uid(user.0).gid(group.0);
        }
        let broken = |what: &str, cause: &dyn std::fmt::Display| {
            Failure::Process(format!("{what} failed: {cause}"))
        };
        let mut child = command
            .spawn()
            .map_err(|error| broken("starting a client", &error))?;
        let orders = child.stdin.take();
        let mut answers = child.stdout.take().map(BufReader::new);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = answers.iter_mut().flat_map(BufRead::lines);
            // Ends with the process, or with the receiver.
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut client = Client {
            child,
            orders,
            lines,
            computing: Duration::ZERO,
            limit: ANSWER_LIMIT,
            _group: None,
        };
        // A client opens no device before its first order.
        if let Some(closed) = &setting.closed {
            let group = Group::around(client.pid(), closed);
            client._group = Some(group.map_err(|error| broken("fencing a client", &error))?);
        }
        Ok(client)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Initialises CUDA and lists the devices. No memory of a GPU is used.
    /// Errors: CUDA's answer, 100 (`CUDA_ERROR_NO_DEVICE`) without a device; or the process.
    pub fn list_devices(&mut self) -> Result<Seen, Failure> {
        self.ask(&Order::Look)
    }

    /// Makes a context on the first device, and loads the kernels. Errors: CUDA's answer, or the process.
    pub fn begin(&mut self) -> Result<Begun, Failure> {
        self.ask(&Order::Begin)
    }

    /// Waits further for the answer of [`Client::begin`], which was silent. Errors: CUDA's answer, or the process.
    pub fn begun_late(&mut self) -> Result<Begun, Failure> {
        self.answer(self.limit)
    }

    /// Counts the multiprocessors on which blocks run. Needs a context, as all that follow except [`Client::open`].
    /// Errors: CUDA's answer, or the process.
    pub fn blocks(&mut self) -> Result<u32, Failure> {
        self.ask(&Order::Blocks)
    }

    /// Looks for the largest allocation.
    /// Errors: CUDA's answer, other than that there is too little memory; or the process.
    pub fn largest(&mut self) -> Result<Largest, Failure> {
        self.ask(&Order::Largest)
    }

    /// Allocates MiB of memory until the end of the process.
    /// Errors: CUDA's answer, 2 (`CUDA_ERROR_OUT_OF_MEMORY`) if there is too little; or the process.
    pub fn hold(&mut self, mib: u64) -> Result<(), Failure> {
        self.ask(&Order::Hold(mib))
    }

    /// Starts a computation on the whole device, and returns after its first kernels. [`Client::finish`] must follow
    /// before the next order. Errors: CUDA's answer, or the process.
    pub fn start_computing(&mut self, time: Duration) -> Result<(), Failure> {
        let started = self.ask(&Order::Compute(time.as_secs_f64()));
        // A client that failed gives no second answer; `finish` then waits no longer than for any other.
        self.computing = if started.is_ok() { time } else { Duration::ZERO };
        started
    }

    /// Waits for the end of the computation. Errors: CUDA's answer to the first kernel that failed, or the process.
    pub fn finish(&mut self) -> Result<Computed, Failure> {
        let time = std::mem::take(&mut self.computing);
        self.answer(time + self.limit)
    }

    /// Computes for some time. Errors: CUDA's answer, or the process.
    pub fn compute(&mut self, time: Duration) -> Result<Computed, Failure> {
        self.start_computing(time)?;
        self.finish()
    }

    /// Writes to an address without memory, which ends the context.
    /// Errors: CUDA's answer, 700 (`CUDA_ERROR_ILLEGAL_ADDRESS`); or the process. No error is the surprise.
    pub fn fault(&mut self) -> Result<(), Failure> {
        self.ask(&Order::Fault)
    }

    /// Runs a short kernel. Errors: CUDA's answer, or the process.
    pub fn work(&mut self) -> Result<(), Failure> {
        self.ask(&Order::Work)
    }

    /// Opens a file and closes it. Errors: the process; that the file was not opened is an answer.
    pub fn open(&mut self, path: &Path, write: bool) -> Result<Opened, Failure> {
        self.ask(&Order::Open(path.to_owned(), write))
    }

    /// Sends SIGKILL without waiting.
    pub fn kill(&mut self) {
        // An error says that it has ended.
        let _ = self.child.kill();
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// Lets it end by itself, or by SIGKILL after 5 s. Returns how it ended.
    pub fn end(&mut self) -> String {
        self.orders = None;
        match self.wait(END_LIMIT) {
            Some(status) => told(status),
            None => {
                self.kill();
                let status = self.wait(END_LIMIT);
                status.map_or_else(|| "it does not die".into(), |_| "killed after 5 s".into())
            }
        }
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        let mut pause = Pause::new(Duration::from_micros(200), Duration::from_millis(10));
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                _ if begun.elapsed() > limit => return None,
                _ => pause.sleep(limit),
            }
        }
    }

    fn ask<T: DeserializeOwned>(&mut self, order: &Order) -> Result<T, Failure> {
        let line = serde_json::to_string(order);
        let mut line = line.map_err(|error| Failure::Process(error.to_string()))?;
        line.push('\n');
        if let Some(orders) = &mut self.orders {
            // A client that has ended is noticed by its missing answer.
            let _ = orders.write_all(line.as_bytes());
        }
        self.answer(self.limit)
    }

    fn answer<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T, Failure> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => serde_json::from_str(&line).unwrap_or_else(|error| {
                Err(Failure::Process(format!(
                    "reading a client's answer failed: {error}"
                )))
            }),
            Err(RecvTimeoutError::Timeout) => Err(Failure::Silent {
                seconds: limit.as_secs(),
            }),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Ended(self.end())),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.kill();
        self.wait(END_LIMIT);
    }
}

fn told(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("status {}", status.code().unwrap_or_default()),
    }
}
