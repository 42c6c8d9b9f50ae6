//! A connection, from its request to the end of its answer.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::poll::PollFlags;

/// No request with its headers is longer.
const LONGEST_REQUEST: usize = 8192;
/// No more is read of what a client sends after its request.
const MOST_IGNORED_BYTES: usize = 1 << 20;

/// What a client sent.
pub(super) enum Request<'a> {
    /// Up to the empty line.
    Whole(&'a [u8]),
    /// More than is read.
    TooLong,
}

/// A client.
pub(super) struct Client {
    stream: TcpStream,
    since: Instant,
    state: Phase,
}

enum Phase {
    /// What has come of the request.
    Asking(Vec<u8>),
    /// The answer, and how much of it is sent.
    Answered(Vec<u8>, usize),
    /// The answer is sent, so many more bytes came. Closed at once, with something unread, TCP would
    /// take back an answer on its way.
    Leaving(usize),
}

impl Client {
    /// None for one that is gone already.
    pub(super) fn new(stream: TcpStream) -> Option<Client> {
        stream.set_nonblocking(true).ok()?;
        Some(Client {
            stream,
            since: Instant::now(),
            state: Phase::Asking(Vec::new()),
        })
    }

    /// When it came.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// For poll(2).
    pub(super) fn waits_for(&self) -> PollFlags {
        match self.state {
            Phase::Asking(_) | Phase::Leaving(_) => PollFlags::POLLIN,
            Phase::Answered(..) => PollFlags::POLLOUT,
        }
    }

    /// Goes on as far as it can without waiting; whether there is more to come.
    pub(super) fn advance(&mut self, answer: impl FnOnce(Request<'_>) -> Vec<u8>) -> bool {
        let mut answer = Some(answer);
        loop {
            match self.step(&mut answer) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn step(
        &mut self,
        answer: &mut Option<impl FnOnce(Request<'_>) -> Vec<u8>>,
    ) -> io::Result<bool> {
        let mut bytes = [0; 1024];
        match &mut self.state {
            Phase::Asking(head) => {
                let count = self.stream.read(&mut bytes)?;
                head.extend(bytes.iter().take(count));
                let request = match head.len() {
                    _ if is_whole(head) => Request::Whole(head),
                    length if length > LONGEST_REQUEST => Request::TooLong,
                    _ => return Ok(count > 0),
                };
                let answer = answer.take().map(|answer| answer(request));
                self.state = Phase::Answered(answer.unwrap_or_default(), 0);
            }
            Phase::Answered(answer, sent) => match answer.get(*sent..) {
                Some(rest) if !rest.is_empty() => *sent += self.stream.write(rest)?,
                _ => {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.state = Phase::Leaving(0);
                }
            },
            Phase::Leaving(ignored) => {
                let count = self.stream.read(&mut bytes)?;
                *ignored += count;
                return Ok(count > 0 && *ignored < MOST_IGNORED_BYTES);
            }
        }
        Ok(true)
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// Whether the empty line has come.
fn is_whole(head: &[u8]) -> bool {
    let ends = |end: &[u8]| head.windows(end.len()).any(|window| window == end);
    ends(b"\r\n\r\n") || ends(b"\n\n")
}
