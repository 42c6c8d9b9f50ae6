//! One session with NVML for many programs: gpufrac-reaperd keeps a session for a while and answers questions about
//! instances through a socket, so that a prolog that takes an instance over needs no session of its own, whose start
//! takes tenths of a second. A program that gets no answer asks NVML itself.
//!
//! Before it answers, the daemon compares with the driver's files in /proc. The socket is in a folder that only root
//! can enter. The session holds no handle of an instance, and it ends if a program reports that the driver refuses to
//! destroy an instance.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use gpufrac_core::ids::{DeviceMinor, GpuIndex};
use gpufrac_core::lease::MigSlice;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use serde::{Deserialize, Serialize};

use crate::gpu::capability_files::{Caps, Claimed};
use crate::gpu::instance_use::{self, InstanceUse};
use crate::gpu::mark::age_ms;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_nvml::{Gpu, NvmlError, Session};

/// The folder of the socket in `<run>`.
const FOLDER: &str = "session";
const FOLDER_MODE: u32 = 0o700;
const SOCKET: &str = "socket";

/// How long a program that holds a GPU waits for an answer. A driver that takes its time takes it for a session of the
/// program's own as well, so the limit is for a daemon that is stopped.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the daemon waits for the rest of a question, and a program for an answer that it can do without.
const QUESTION_TIME: Duration = Duration::from_secs(1);
/// How long the daemon waits if the process has no file descriptor or memory for the next question.
const SHORTAGE_PAUSE: Duration = Duration::from_secs(1);
/// How long the session stays open after the last question.
const IDLE: Duration = Duration::from_secs(30);
/// How long the daemon opens no session after one was in the way.
const REST: Duration = Duration::from_secs(60);
/// More than the length of a question or an answer, in bytes.
const MAX_TEXT: u64 = 64 << 10;

#[derive(Debug, Serialize, Deserialize)]
enum Question {
    /// Which processes use this instance?
    Use(Subject),
    /// An instance cannot be destroyed; end the session.
    End,
}

#[derive(Debug, Serialize, Deserialize)]
struct Subject {
    gpu_index: GpuIndex,
    gpu_uuid: String,
    gpu_minor: DeviceMinor,
    mig: MigSlice,
}

#[derive(Debug, Serialize, Deserialize)]
enum UseAnswer {
    /// None: there is no such instance.
    Use(Option<InstanceUse>),
    /// The daemon cannot tell now, or was asked to end its session.
    Nothing,
}

/// Whether the daemon of the node takes questions.
pub fn is_there(run: &Path) -> bool {
    call(run).is_ok()
}

/// Asks the daemon for the use of a lease's instance. The outer None: no answer came, and NVML must be asked.
pub fn instance_use(run: &Path, gpu: &Gpu<'_>, mig: &MigSlice) -> Option<Option<InstanceUse>> {
    let question = Question::Use(Subject {
        gpu_index: gpu.index,
        gpu_uuid: gpu.uuid.clone(),
        gpu_minor: gpu.minor,
        mig: mig.clone(),
    });
    match ask(run, &question, PATIENCE) {
        Ok(UseAnswer::Use(found)) => Some(found),
        Ok(UseAnswer::Nothing) | Err(_) => None,
    }
}

/// Tells the daemon that its session may keep an instance from being destroyed. Without a daemon nothing happens.
pub fn end(run: &Path) {
    let _ = ask(run, &Question::End, QUESTION_TIME);
}

fn ask(run: &Path, question: &Question, patience: Duration) -> io::Result<UseAnswer> {
    let mut stream = call(run)?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(QUESTION_TIME))?;
    send(&mut stream, question)?;
    receive(&mut stream)
}

fn call(run: &Path) -> io::Result<UnixStream> {
    let folder = run.join(FOLDER);
    let dir = RootDir::open(&folder).map_err(io::Error::other)?;
    dir.check_private().map_err(io::Error::other)?;
    // `connect` would wait without a limit for a stopped daemon with a full queue, so it may not wait at all.
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(fd.as_raw_fd(), &UnixAddr::new(&folder.join(SOCKET))?)?;
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn send(stream: &mut UnixStream, what: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec(what)?;
    text.push(b'\n');
    stream.write_all(&text)
}

fn receive<T: for<'a> Deserialize<'a>>(stream: &mut UnixStream) -> io::Result<T> {
    let mut text = Vec::new();
    let mut part = [0; 4096];
    while !text.ends_with(b"\n") {
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => text.extend_from_slice(&part[..length]),
        }
        if text.len() as u64 > MAX_TEXT {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(serde_json::from_slice(&text)?)
}

/// The daemon's end of the socket.
pub struct Server {
    listener: UnixListener,
    nvml: PathBuf,
    caps: Caps,
    /// The session, and when it began.
    session: Option<(Session, Instant)>,
    /// Until then no session is opened.
    rests_until: Option<Instant>,
}

impl Server {
    /// Takes questions for a node. The caller holds the lock of the node's daemon, so a socket that exists is that of
    /// a daemon that died. Errors: the folder or the socket cannot be made.
    pub fn bind(run: &Path, nvml: &Path, caps: Caps) -> Result<Server, FileError> {
        let folder = run.join(FOLDER);
        let (dir, _) = RootDir::create(&folder, FOLDER_MODE)?;
        dir.check_private()?;
        dir.remove(SOCKET)?;
        let path = folder.join(SOCKET);
        let bound = UnixListener::bind(&path).and_then(|listener| {
            setsockopt(
                &listener,
                sockopt::ReceiveTimeout,
                &TimeVal::seconds(IDLE.as_secs().cast_signed()),
            )?;
            Ok(listener)
        });
        let listener = bound.map_err(|source| FileError::Io {
            action: "making",
            path,
            source,
        })?;
        Ok(Server {
            listener,
            nvml: nvml.to_owned(),
            caps,
            session: None,
            rests_until: None,
        })
    }

    /// Answers one question after the other, without an end.
    pub fn serve(&mut self) -> ! {
        loop {
            match self.listener.accept() {
                // A program that gets no answer asks NVML itself.
                Ok((mut stream, _)) => drop(self.answer(&mut stream)),
                Err(error) => {
                    self.session = None;
                    // Otherwise nobody asked for a while.
                    if error.kind() != io::ErrorKind::WouldBlock {
                        sleep(SHORTAGE_PAUSE);
                    }
                }
            }
        }
    }

    fn answer(&mut self, stream: &mut UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(QUESTION_TIME))?;
        stream.set_write_timeout(Some(QUESTION_TIME))?;
        let answer = match receive(stream)? {
            Question::End => {
                self.session = None;
                self.rests_until = Some(Instant::now() + REST);
                UseAnswer::Nothing
            }
            Question::Use(_) if self.rests() => UseAnswer::Nothing,
            Question::Use(subject) => self.use_of(&subject).unwrap_or_else(|_| {
                // The driver may have been loaded again since the session began.
                self.session = None;
                UseAnswer::Nothing
            }),
        };
        send(stream, &answer)
    }

    fn rests(&self) -> bool {
        self.rests_until.is_some_and(|until| Instant::now() < until)
    }

    fn use_of(&mut self, subject: &Subject) -> Result<UseAnswer, NvmlError> {
        let claimed = match &subject.mig.instance {
            Some(instance) => self.caps.claimed(subject.gpu_minor, instance),
            None => Ok(Claimed::Nothing),
        };
        let mark = match claimed {
            Ok(Claimed::Ours(mark)) => mark,
            Ok(_) => return Ok(UseAnswer::Use(None)),
            Err(_) => return Ok(UseAnswer::Nothing),
        };
        // A session may go on showing an instance that another program has destroyed (NVIDIA/libcudacxx issue 224), so
        // it is asked only about instances that are older.
        let is_older = |began: &Instant| began.elapsed() < Duration::from_millis(age_ms(mark));
        self.session.take_if(|(_, began)| !is_older(began));
        let (session, _) = match &mut self.session {
            Some(session) => session,
            none => {
                let began = Instant::now();
                none.insert((Session::open(&self.nvml)?, began))
            }
        };
        let (index, uuid) = (subject.gpu_index, &subject.gpu_uuid);
        let Some(gpu) = session.known_gpu(index, uuid, subject.gpu_minor)? else {
            return Ok(UseAnswer::Nothing);
        };
        let found = instance_use::of(&gpu, &subject.mig)?;
        Ok(UseAnswer::Use(found))
    }
}
