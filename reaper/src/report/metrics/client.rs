//! A connection of a client, from its request to the end of the answer.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use nix::poll::PollFlags;

/// The most bytes of a request with its headers.
const LONGEST_REQUEST: usize = 8192;
/// The most bytes that are read after the request.
const MOST_IGNORED_BYTES: usize = 1 << 20;

pub(super) struct Client {
    stream: TcpStream,
    /// When the client connected.
    pub(super) since: Instant,
    state: Phase,
}

enum Phase {
    /// The request so far.
    Asking(Vec<u8>),
    /// The answer, and the number of bytes sent.
    Answered(Vec<u8>, usize),
    /// The answer was sent; with the number of bytes received since. If a connection is closed with unread data, TCP
    /// discards an answer that is still on its way.
    Leaving(usize),
}

impl Client {
    /// None if the connection is closed already.
    pub(super) fn new(stream: TcpStream) -> Option<Client> {
        stream.set_nonblocking(true).ok()?;
        Some(Client {
            stream,
            since: Instant::now(),
            state: Phase::Asking(Vec::new()),
        })
    }

    /// The events to wait for, for poll(2).
    pub(super) fn waits_for(&self) -> PollFlags {
        match self.state {
            Phase::Asking(_) | Phase::Leaving(_) => PollFlags::POLLIN,
            Phase::Answered(..) => PollFlags::POLLOUT,
        }
    }

    /// Reads and writes as far as possible without waiting; returns whether the connection continues. `answer`: to the
    /// request up to the empty line; None if it is too long.
    pub(super) fn advance(&mut self, answer: impl FnOnce(Option<&[u8]>) -> Vec<u8>) -> bool {
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
        answer: &mut Option<impl FnOnce(Option<&[u8]>) -> Vec<u8>>,
    ) -> io::Result<bool> {
        let mut bytes = [0; 1024];
        match &mut self.state {
            Phase::Asking(head) => {
                let count = self.stream.read(&mut bytes)?;
                head.extend(bytes.iter().take(count));
                let request = match head.len() {
                    _ if is_whole(head) => Some(head.as_slice()),
                    length if length > LONGEST_REQUEST => None,
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

/// Whether the empty line was received.
fn is_whole(head: &[u8]) -> bool {
    let ends = |end: &[u8]| head.windows(end.len()).any(|window| window == end);
    ends(b"\r\n\r\n") || ends(b"\n\n")
}
