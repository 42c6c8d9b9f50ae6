//! A stand-in for `nvidia-cuda-mps-control`, for functions that the real one only has with a GPU: servers, their
//! clients, a server in FAULT, a daemon that hangs. Copy it under that name.
//!
//! The file `standin.json` in the program's folder has its options ([`Options`]). The file `commands` gets a line
//! `PIPE DIRECTORY, a tab, ARGUMENTS or COMMAND` for each start and command. Events that a GPU would cause are
//! further commands to the daemon:
//!
//! ```text
//! standin client SERVER PID...       these processes have become clients
//! standin status SERVER FAULT        until its last client has gone
//! standin fault SERVER               the same, and its clients are told
//! ```
//!
//! `gpusim run` connects as CUDA does: see [`gpusim::mps`]. A server is started for it if there is none; a daemon
//! without `-multiuser-server` has one server for one user at a time, and lets others wait.

#![forbid(unsafe_code)]

mod daemon;

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, bail};
use gpusim::mps::SERVER;
use serde::Deserialize;

/// Marks the process that `-d` starts in the background.
const BACKGROUND: &str = "MPS_STANDIN_BACKGROUND";

/// The options of the stand-in.
#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    /// The output of `-v`.
    version: u32,
    /// Whether it has `-multiuser-server`.
    multiuser: bool,
    /// Whether it has static partitions.
    partitions: bool,
    /// The number of chunks of a GPU.
    chunks: u32,
    /// First words of the commands that never end; `-d` for the start, `connect` for clients.
    hang: Vec<String>,
    /// Whether servers end at once, as without a GPU.
    servers_end: bool,
    /// Whether servers leave the session of their daemon, as a user who traces them can make them do.
    servers_leave: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            version: 13010,
            multiuser: true,
            partitions: true,
            chunks: 15,
            hang: Vec::new(),
            servers_end: false,
            servers_leave: false,
        }
    }
}

/// The program's folder, and the pipe directory that the environment names.
#[derive(Debug, Clone)]
struct Place {
    folder: PathBuf,
    pipe: PathBuf,
}

impl Place {
    fn of(program: &Path) -> Place {
        Place {
            folder: program.parent().unwrap_or(Path::new("/")).to_owned(),
            pipe: std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")
                .map_or("/tmp/nvidia-mps".into(), PathBuf::from),
        }
    }

    fn options(&self) -> anyhow::Result<Options> {
        let path = self.folder.join("standin.json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| path.display().to_string()),
            Err(_) => Ok(Options::default()),
        }
    }

    fn record(&self, what: &str) -> anyhow::Result<()> {
        let path = self.folder.join("commands");
        let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
        // One write: several daemons append to this file.
        file.write_all(format!("{}\t{what}\n", self.pipe.display()).as_bytes())?;
        Ok(())
    }

    fn control(&self) -> PathBuf {
        self.pipe.join("control_privileged")
    }

    fn server(&self) -> PathBuf {
        self.folder.join(SERVER)
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("mps-standin: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let program = std::env::current_exe()?;
    if program.ends_with(SERVER) {
        let place = Place::of(&program);
        if place.options()?.servers_leave {
            nix::unistd::setsid()?;
        }
        // Ended by signals.
        loop {
            std::thread::park();
        }
    }
    if !program.ends_with("nvidia-cuda-mps-control") {
        bail!(
            "copy {} as nvidia-cuda-mps-control into a folder of its own",
            program.display()
        );
    }
    let place = Place::of(&program);
    let options = place.options()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |name: &str| arguments.iter().any(|argument| argument == name);
    if has("-v") {
        println!("{}", options.version);
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.is_empty() {
        return client(&place);
    }
    let known = |argument: &String| match argument.as_str() {
        "-d" | "-f" => true,
        "-multiuser-server" => options.multiuser,
        "-S" | "--static-partitioning" => options.partitions,
        _ => false,
    };
    // The answer of the real program to an unknown option.
    if !arguments.iter().all(known) || !(has("-d") || has("-f")) {
        return no_daemon();
    }
    if has("-f") || std::env::var_os(BACKGROUND).is_some() {
        let partitioned = has("-S") || has("--static-partitioning");
        return daemon::run(place, partitioned, has("-multiuser-server"));
    }
    place.record(&arguments.join(" "))?;
    if options.hang.iter().any(|word| word == "-d") {
        loop {
            std::thread::park();
        }
    }
    let mut daemon = Command::new(&program)
        .args(&arguments)
        .env(BACKGROUND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    // The background process writes a line when it listens, or the reason why it does not.
    let mut line = String::new();
    let mut out = BufReader::new(daemon.stdout.take().context("its stdout is ours")?);
    out.read_line(&mut line)?;
    if line.trim() == daemon::LISTENS {
        return Ok(ExitCode::SUCCESS);
    }
    print!("{line}");
    Ok(ExitCode::FAILURE)
}

fn no_daemon() -> anyhow::Result<ExitCode> {
    eprintln!("Cannot find MPS control daemon process");
    Ok(ExitCode::FAILURE)
}

/// Hands the commands on stdin to the daemon, one by one.
fn client(place: &Place) -> anyhow::Result<ExitCode> {
    let Ok(mut stream) = UnixStream::connect(place.control()) else {
        return no_daemon();
    };
    let mut answers = BufReader::new(stream.try_clone()?);
    for line in std::io::stdin().lines() {
        let line = line?;
        writeln!(stream, "{line}")?;
        let mut answer = Vec::new();
        answers.read_until(0, &mut answer)?;
        if answer.pop().is_none() {
            bail!("the daemon has ended");
        }
        std::io::stdout().write_all(&answer)?;
    }
    // After `quit` the daemon ends before this program.
    stream.shutdown(std::net::Shutdown::Write)?;
    answers.read_to_end(&mut Vec::new())?;
    Ok(ExitCode::SUCCESS)
}
