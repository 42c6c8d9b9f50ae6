//! The daemon: its sockets, and its answers.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use gpusim::mps::{self, Answer, CONNECT, SERVER};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::{mkfifo, setsid};
use nvidia_ml::processes::start_ticks;

use crate::{Options, Place};

/// The message of the background process to the process that started it.
pub const LISTENS: &str = "listens";
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
const TICK: Duration = Duration::from_millis(20);

struct Client {
    pid: u32,
    /// The start time; None for a client that a test made up, which stays until it is terminated.
    started: Option<u64>,
    /// The connection of a client that connected itself.
    stream: Option<UnixStream>,
}

struct Server {
    child: Child,
    user: String,
    status: String,
    percentage: String,
    limits: BTreeMap<String, u64>,
    clients: Vec<Client>,
}

struct Partition {
    gpu: String,
    chunks: u32,
}

/// The state of a daemon.
pub struct Daemon {
    place: Place,
    partitioned: bool,
    multiuser: bool,
    /// The devices in `CUDA_VISIBLE_DEVICES`; empty for all.
    devices: Vec<String>,
    percentage: String,
    limits: BTreeMap<String, u64>,
    servers: BTreeMap<u32, Server>,
    partitions: BTreeMap<u32, Partition>,
    made: u32,
}

/// Serves until the command `quit`.
pub fn run(place: Place, partitioned: bool, multiuser: bool) -> anyhow::Result<ExitCode> {
    // Fails for the leader of a process group, which the process may be with `-f`.
    let _ = setsid();
    let in_pipe = |name: &str| place.pipe.join(name);
    let open_to = |path: &Path, mode: u32| fs::set_permissions(path, Permissions::from_mode(mode));
    let path = in_pipe("control_lock");
    let lock = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    open_to(&path, 0o666)?;
    if !lock_whole(&lock) {
        println!("An instance of this daemon is already running");
        return Ok(ExitCode::FAILURE);
    }
    let bind = |name: &str, mode: u32| -> anyhow::Result<UnixListener> {
        let path = in_pipe(name);
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
        open_to(&path, mode)?;
        Ok(listener)
    };
    let listener = bind("control_privileged", 0o755)?;
    let programs = bind("control", 0o666)?;
    let log = in_pipe("log");
    let _ = fs::remove_file(&log);
    mkfifo(&log, Mode::from_bits_truncate(0o777))?;
    open_to(&log, 0o777)?;
    fs::write(in_pipe(PID_FILE), std::process::id().to_string())?;
    open_to(&in_pipe(PID_FILE), 0o666)?;

    let devices = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let daemon = Arc::new(Mutex::new(Daemon {
        place: place.clone(),
        partitioned,
        multiuser,
        devices: words(&devices.replace(',', " ")),
        percentage: "100.0".into(),
        limits: BTreeMap::new(),
        servers: BTreeMap::new(),
        partitions: BTreeMap::new(),
        made: 0,
    }));
    println!("{LISTENS}");
    std::io::stdout().flush()?;
    let sweeper = daemon.clone();
    std::thread::spawn(move || {
        loop {
            held(&sweeper).sweep();
            std::thread::sleep(TICK);
        }
    });
    let of_programs = daemon.clone();
    std::thread::spawn(move || each(&of_programs, &programs, admit));
    each(&daemon, &listener, serve);
    Ok(ExitCode::SUCCESS)
}

/// Serves every connection in its own thread.
fn each(
    daemon: &Arc<Mutex<Daemon>>,
    listener: &UnixListener,
    how: fn(&Mutex<Daemon>, UnixStream) -> anyhow::Result<()>,
) {
    for stream in listener.incoming().flatten() {
        let daemon = daemon.clone();
        // A client that disconnects early does no harm.
        std::thread::spawn(move || {
            let _ = how(&daemon, stream);
        });
    }
}

/// Takes a POSIX lock, as the real daemon does; returns whether no other process had it.
fn lock_whole(file: &File) -> bool {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_SETLK(&lock)).is_ok()
}

fn held(daemon: &Mutex<Daemon>) -> MutexGuard<'_, Daemon> {
    daemon.lock().unwrap_or_else(|held| held.into_inner())
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Assigns a program to a server.
fn admit(daemon: &Mutex<Daemon>, mut stream: UnixStream) -> anyhow::Result<()> {
    let mut line = String::new();
    BufReader::new(&stream).read_line(&mut line)?;
    let [CONNECT, pid] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        bail!("this is no program");
    };
    // The client's own pid is accepted here; the real daemon asks the kernel.
    let pid: u32 = pid.parse()?;
    let owner = fs::metadata(format!("/proc/{pid}"))?;
    let place = held(daemon).place.clone();
    loop {
        let options = place.options()?;
        if !options.hang.iter().any(|word| word == CONNECT)
            && let Some(answer) = held(daemon).admit(pid, owner.uid(), &options, &stream)
        {
            let answer = answer.unwrap_or_else(|error| Answer::NotReady(error.to_string()));
            return Ok(writeln!(stream, "{}", serde_json::to_string(&answer)?)?);
        }
        std::thread::sleep(TICK);
        if start_ticks(pid).is_none() {
            return Ok(());
        }
    }
}

fn serve(daemon: &Mutex<Daemon>, mut stream: UnixStream) -> anyhow::Result<()> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    for line in lines {
        let line = line?;
        let place = held(daemon).place.clone();
        place.record(&line)?;
        log(&line);
        let words: Vec<&str> = line.split_whitespace().collect();
        let options = place.options()?;
        while words
            .first()
            .is_some_and(|word| options.hang.iter().any(|hung| hung == word))
        {
            std::thread::sleep(Duration::from_secs(3600));
        }
        if let ["quit", rest @ ..] = &words[..] {
            quit(daemon, rest, &mut stream);
        }
        let mut answer = match held(daemon).answer(&words, &options) {
            Ok(answer) => answer,
            Err(error) => format!("{error}\n"),
        };
        answer.push('\0');
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}

/// A line as the real daemon writes it to its control.log.
fn log(command: &str) {
    if let Some(folder) = std::env::var_os("CUDA_MPS_LOG_DIRECTORY") {
        let path = Path::new(&folder).join("control.log");
        if let Ok(mut file) = OpenOptions::new().create(true).append(true).open(path) {
            let _ = writeln!(file, "[Control {}] Cmd:{command}", std::process::id());
        }
    }
}

/// Ends servers and daemon, when no clients are left or the time of `-t` is over.
fn quit(daemon: &Mutex<Daemon>, rest: &[&str], stream: &mut UnixStream) -> ! {
    let limit = match rest {
        ["-t", seconds] => seconds.parse().ok().map(Duration::from_secs),
        _ => None,
    };
    let begun = Instant::now();
    let has_clients = || {
        let daemon = held(daemon);
        daemon.servers.values().any(Server::is_in_use)
    };
    while has_clients() && limit.is_none_or(|limit| begun.elapsed() < limit) {
        std::thread::sleep(TICK);
    }
    let mut daemon = held(daemon);
    for server in daemon.servers.values_mut() {
        let _ = server.child.kill();
        let _ = server.child.wait();
    }
    for name in ["log", PID_FILE] {
        let _ = fs::remove_file(daemon.place.pipe.join(name));
    }
    let _ = stream.write_all(b"\0");
    std::process::exit(0)
}

impl Daemon {
    /// Forgets ended servers, and clients whose process has ended.
    fn sweep(&mut self) {
        self.servers
            .retain(|_, server| matches!(server.child.try_wait(), Ok(None)));
        for server in self.servers.values_mut() {
            let lives = |client: &Client| {
                client.started.is_none() || start_ticks(client.pid) == client.started
            };
            server.keep(lives);
        }
    }

    fn server(&mut self, pid: &str) -> anyhow::Result<(u32, &mut Server)> {
        let missing = || format!("Server {pid} not found");
        let pid: u32 = pid.parse().with_context(missing)?;
        let server = self.servers.get_mut(&pid).with_context(missing)?;
        Ok((pid, server))
    }

    /// The output of a command; errors are printed, too.
    fn answer(&mut self, words: &[&str], options: &Options) -> anyhow::Result<String> {
        self.sweep();
        let line = |text: &dyn std::fmt::Display| Ok(format!("{text}\n"));
        match words {
            [] => Ok(String::new()),
            ["get_server_list"] => Ok(lines(self.servers.keys())),
            ["get_server_status", pid] => line(&self.server(pid)?.1.status),
            ["get_client_list", pid] => {
                Ok(lines(self.server(pid)?.1.clients.iter().map(|c| c.pid)))
            }
            ["start_server", "-uid", user] => self.start_server(user, options),
            ["shutdown_server", pid, rest @ ..] => {
                let (pid, server) = self.server(pid)?;
                // Without -f the server ends by itself after its last client; no test waits for that.
                if server.clients.is_empty() || rest.contains(&"-f") {
                    server.child.kill()?;
                    server.child.wait()?;
                    self.servers.remove(&pid);
                }
                Ok(String::new())
            }
            ["terminate_client", pid, client] => {
                let (_, server) = self.server(pid)?;
                let gone: u32 = client.parse()?;
                if !server.clients.iter().any(|client| client.pid == gone) {
                    bail!("Client {client} not found\n1");
                }
                let told = server.clients.iter().filter(|client| client.pid == gone);
                for mut stream in told.filter_map(|client| client.stream.as_ref()) {
                    let _ = stream.write_all(b"terminated\n");
                }
                server.keep(|client| client.pid != gone);
                line(&0)
            }
            ["ps", ..] => Ok(self.processes()),
            ["get_default_active_thread_percentage"] => line(&self.percentage),
            ["set_default_active_thread_percentage", value] => {
                set_percentage(&mut self.percentage, value)
            }
            ["get_active_thread_percentage", pid] => line(&self.server(pid)?.1.percentage),
            ["set_active_thread_percentage", pid, value] => {
                set_percentage(&mut self.server(pid)?.1.percentage, value)
            }
            ["get_default_device_pinned_mem_limit", device] => Ok(limit(&self.limits, device)),
            ["set_default_device_pinned_mem_limit", device, value] => {
                set_limit(&mut self.limits, device, value)
            }
            ["get_device_pinned_mem_limit", pid, device] => {
                Ok(limit(&self.server(pid)?.1.limits, device))
            }
            ["set_device_pinned_mem_limit", pid, device, value] => {
                set_limit(&mut self.server(pid)?.1.limits, device, value)
            }
            ["device_query", ..] if options.partitions => Ok(lines(&self.devices)),
            ["lspart"] if options.partitions => Ok(self.list_partitions(options)),
            ["sm_partition", rest @ ..] if options.partitions => self.partition(rest, options),
            ["standin", "client", pid, clients @ ..] => {
                let (_, server) = self.server(pid)?;
                for client in clients {
                    let pid = client.parse()?;
                    let started = start_ticks(pid);
                    server.clients.push(Client {
                        pid,
                        started,
                        stream: None,
                    });
                }
                Ok(String::new())
            }
            ["standin", "status", pid, status] => {
                self.server(pid)?.1.status = (*status).to_owned();
                Ok(String::new())
            }
            ["standin", "fault", pid] => {
                let (_, server) = self.server(pid)?;
                server.status = "FAULT".to_owned();
                for mut stream in server
                    .clients
                    .iter()
                    .filter_map(|client| client.stream.as_ref())
                {
                    let _ = writeln!(stream, "{}", mps::FAULT);
                }
                Ok(String::new())
            }
            [command, ..] => bail!("Unknown command \"{command}\""),
        }
    }

    /// A server for a program of this user, whether it is the first client or a further one; None while it must wait
    /// for clients of another user.
    fn admit(
        &mut self,
        pid: u32,
        user: u32,
        options: &Options,
        stream: &UnixStream,
    ) -> Option<anyhow::Result<Answer>> {
        self.sweep();
        let of_all = self.multiuser;
        let name = user.to_string();
        let mut known = self.servers.iter();
        let own = known.find(|(_, server)| of_all || server.user == name);
        let server = match own {
            Some((pid, _)) => *pid,
            None if self.servers.values().any(Server::is_in_use) => return None,
            None => {
                self.end_servers();
                let (name, user) = if of_all { ("0", None) } else { (&*name, Some(user)) };
                match self.spawn_server(name, user, options) {
                    Ok(Some(server)) => server,
                    Ok(None) => return Some(Err(anyhow::anyhow!("no server starts"))),
                    Err(error) => return Some(Err(error)),
                }
            }
        };
        Some(self.take_client(server, pid, stream))
    }

    fn take_client(
        &mut self,
        server_pid: u32,
        pid: u32,
        stream: &UnixStream,
    ) -> anyhow::Result<Answer> {
        let devices = self.devices.clone();
        let (_, server) = self.server(&server_pid.to_string())?;
        if server.status == "FAULT" {
            bail!("server {server_pid} is in FAULT");
        }
        let started = start_ticks(server_pid).context("the server has just ended")?;
        server.clients.push(Client {
            pid,
            started: Some(start_ticks(pid).context("the program has just ended")?),
            stream: Some(stream.try_clone()?),
        });
        Ok(Answer::Server(mps::Server {
            pid: server_pid,
            started,
            devices,
            percentage: server.percentage.parse()?,
            limits: server.limits.clone(),
        }))
    }

    fn end_servers(&mut self) {
        for (_, mut server) in std::mem::take(&mut self.servers) {
            let _ = server.child.kill();
            let _ = server.child.wait();
        }
    }

    fn start_server(&mut self, user: &str, options: &Options) -> anyhow::Result<String> {
        self.spawn_server(user, None, options)?;
        Ok(String::new())
    }

    /// Starts a server, as this user if possible; None if servers end at once.
    fn spawn_server(
        &mut self,
        user: &str,
        id: Option<u32>,
        options: &Options,
    ) -> anyhow::Result<Option<u32>> {
        if options.servers_end {
            return Ok(None);
        }
        let program = self.place.server();
        // A hard link, so that the server's program name shows what it is.
        match fs::hard_link(std::env::current_exe()?, &program) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).context(program.display().to_string());
            }
            _ => {}
        }
        let own = fs::metadata("/proc/self")?.uid();
        let child = spawn(&program, id.filter(|user| *user != own))?;
        let pid = child.id();
        let server = Server {
            user: user.to_owned(),
            status: "ACTIVE".into(),
            percentage: self.percentage.clone(),
            limits: self.limits.clone(),
            clients: Vec::new(),
            child,
        };
        self.servers.insert(pid, server);
        Ok(Some(pid))
    }

    fn processes(&self) -> String {
        let mut out = String::from("PID       ID    SERVER    USER\n");
        for (pid, server) in &self.servers {
            for (id, client) in server.clients.iter().enumerate() {
                let _ = writeln!(out, "{:<9} {id:<5} {pid:<9} {}", client.pid, server.user);
            }
        }
        out
    }

    fn free_chunks(&self, gpu: &str, options: &Options) -> u32 {
        let partitions = self.partitions.values();
        let used: u32 = partitions
            .filter(|partition| partition.gpu == gpu)
            .map(|partition| partition.chunks)
            .sum();
        options.chunks.saturating_sub(used)
    }

    fn partition(&mut self, words: &[&str], options: &Options) -> anyhow::Result<String> {
        if !self.partitioned {
            bail!("Static partitioning is not enabled");
        }
        match words {
            ["add", gpu, chunks] => {
                if !self.devices.is_empty() && !self.devices.iter().any(|device| device == gpu) {
                    bail!("Device {gpu} not found");
                }
                let chunks = chunks.parse().context("Invalid number of chunks")?;
                if chunks == 0 || chunks > self.free_chunks(gpu, options) {
                    bail!("Not enough free chunks on {gpu}");
                }
                self.made += 1;
                let gpu = (*gpu).to_owned();
                let name = format!("{gpu}/{}\n", self.made);
                self.partitions.insert(self.made, Partition { gpu, chunks });
                Ok(name)
            }
            ["rm", name] => {
                let found = self
                    .partitions
                    .iter()
                    .find(|(id, partition)| *name == format!("{}/{id}", partition.gpu))
                    .map(|(id, _)| *id);
                let id = found.with_context(|| format!("Partition {name} not found"))?;
                self.partitions.remove(&id);
                Ok(String::new())
            }
            _ => bail!("Unknown command \"sm_partition\""),
        }
    }

    fn list_partitions(&self, options: &Options) -> String {
        let mut out = String::from("GPU  Partition  free chunks  used chunks\n");
        for gpu in &self.devices {
            let free = self.free_chunks(gpu, options);
            let _ = writeln!(out, "{gpu}  -  {free}  {}", options.chunks - free);
        }
        for (id, partition) in &self.partitions {
            let _ = writeln!(out, "{}  {id}  0  {}", partition.gpu, partition.chunks);
        }
        out
    }
}

/// Starts the server's program. Like the real daemon, it changes only the user, not the group. If the user cannot
/// reach the program's folder, the server keeps the daemon's user.
fn spawn(program: &Path, user: Option<u32>) -> std::io::Result<Child> {
    let mut command = Command::new(program);
    command
        .arg0(SERVER)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    match user {
        None => command.spawn(),
        Some(user) => command.uid(user).spawn().or_else(|_| spawn(program, None)),
    }
}

impl Server {
    fn is_in_use(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Removes the other clients. A fault ends when the last client has gone.
    fn keep(&mut self, stays: impl Fn(&Client) -> bool) {
        let before = self.clients.len();
        self.clients.retain(stays);
        if before > 0 && self.clients.is_empty() && self.status == "FAULT" {
            self.status = "ACTIVE".into();
        }
    }
}

fn lines(all: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    all.into_iter().map(|one| format!("{one}\n")).collect()
}

/// Prints the current value; a wrong value changes nothing.
fn set_percentage(of: &mut String, value: &str) -> anyhow::Result<String> {
    if let Ok(number) = value.parse::<f64>()
        && number > 0.0
        && number <= 100.0
    {
        *of = format!("{number:.1}");
    }
    Ok(format!("{of}\n"))
}

fn set_limit(
    limits: &mut BTreeMap<String, u64>,
    device: &str,
    value: &str,
) -> anyhow::Result<String> {
    let mib = mps::parse_limit(value).context("Invalid memory limit")?;
    limits.insert(device.to_owned(), mib);
    Ok(String::new())
}

/// Rounded down to G, as the real daemon prints it.
fn limit(limits: &BTreeMap<String, u64>, device: &str) -> String {
    let mib = limits.get(device);
    mib.map_or(String::new(), |mib| format!("{}G\n", mib / 1024))
}
