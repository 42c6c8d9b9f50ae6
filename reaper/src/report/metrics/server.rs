//! `GET /metrics`. Every user of the node can connect, and most likely nobody but Prometheus should be
//! listened to for long: one thread serves a bounded number of clients, each for a bounded time and with a
//! bounded memory. tiny_http writes the answers; its own server has a thread for each connection, and neither
//! a time nor a length at which it gives up on a request.

use std::io::{self, PipeReader, PipeWriter};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::client::Client;
use super::{Snapshot, answer, text};

/// Clients at one time; the oldest has to go for the next.
const MOST_CLIENTS: usize = 32;
/// How long a client is served. A scrape takes milliseconds.
const LONGEST_SERVICE: Duration = Duration::from_secs(5);
/// Until something is tried again that must not be tried in a loop.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken, or not the node's.
    #[error("cannot listen at {address} for Prometheus: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: io::Error,
    },
    /// No thread or no pipe is available.
    #[error("cannot start a thread for Prometheus: {0}")]
    Start(#[source] io::Error),
}

/// Answers Prometheus on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// Closed, it ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at an address; with port 0 at one that is free.
    ///
    /// # Errors
    /// When the address cannot be had.
    pub fn start(
        address: SocketAddr,
        node: String,
        snapshot: Arc<Mutex<Snapshot>>,
    ) -> Result<Server, ServerError> {
        let at = |source| ServerError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(at)?;
        listener.set_nonblocking(true).map_err(at)?;
        let address = listener.local_addr().map_err(at)?;
        let (stopped, stop) = io::pipe().map_err(ServerError::Start)?;
        let connections = Connections {
            listener,
            stopped,
            clients: Vec::new(),
            node,
            snapshot,
        };
        let thread = thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(|| connections.serve())
            .map_err(ServerError::Start)?;
        Ok(Server {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It returns nothing, and what it panicked of has been printed.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Connections {
    listener: TcpListener,
    stopped: PipeReader,
    clients: Vec<Client>,
    node: String,
    snapshot: Arc<Mutex<Snapshot>>,
}

impl Connections {
    fn serve(mut self) {
        loop {
            match self.wait() {
                Ok(Ready { stop: true, .. }) => return,
                Ok(ready) => self.advance(&ready),
                Err(_) => thread::sleep(RETRY_PAUSE),
            }
        }
    }

    /// Until a client has something, comes, or has been here for too long.
    fn wait(&self) -> io::Result<Ready> {
        let mut polled = vec![
            PollFd::new(self.stopped.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.listener.as_fd(), PollFlags::POLLIN),
        ];
        let clients = self.clients.iter();
        polled.extend(clients.map(|client| PollFd::new(client.as_fd(), client.waits_for())));
        poll(&mut polled, self.patience())?;
        let mut ready = polled.iter().map(|one| one.any().unwrap_or(true));
        Ok(Ready {
            stop: ready.next().unwrap_or(true),
            listener: ready.next().unwrap_or(true),
            clients: ready.collect(),
        })
    }

    /// Until the oldest client's time is over.
    fn patience(&self) -> PollTimeout {
        let ends = self
            .clients
            .iter()
            .map(|client| client.since() + LONGEST_SERVICE);
        ends.min().map_or(PollTimeout::NONE, |end| {
            let left = end.saturating_duration_since(Instant::now());
            // Rounded up, so that it is over then.
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        })
    }

    fn advance(&mut self, ready: &Ready) {
        let (node, snapshot) = (&self.node, &self.snapshot);
        let metrics = || {
            // The daemon waits for this lock: nothing is done while it is held.
            let now = snapshot.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Snapshot::clone(&now);
            text::render(&now, node)
        };
        let mut ready_clients = ready.clients.iter();
        self.clients.retain_mut(|client| {
            let ready = ready_clients.next() == Some(&true);
            let open = !ready || client.advance(|request| answer::to(request, metrics));
            open && client.since().elapsed() < LONGEST_SERVICE
        });
        if ready.listener {
            self.accept();
        }
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok((stream, _)) => {
                if self.clients.len() == MOST_CLIENTS {
                    // They are in the order in which they came.
                    self.clients.remove(0);
                }
                self.clients.extend(Client::new(stream));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // No file descriptor is left: the connection stays in the queue.
            Err(_) => thread::sleep(RETRY_PAUSE),
        }
    }
}

/// What there is to do.
struct Ready {
    stop: bool,
    listener: bool,
    /// In their order.
    clients: Vec<bool>,
}
