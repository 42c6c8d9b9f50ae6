//! Serves `GET /metrics`. Every user of the node can connect, but usually only Prometheus needs an answer. Therefore
//! one thread serves a limited number of clients, each for a limited time and with limited memory. tiny_http formats
//! the answers; its own server has a thread for each connection, and no limit of time or length for a request.

use std::io::{self, PipeReader, PipeWriter};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::client::Client;
use super::{Snapshot, answer, text};

/// The most clients at a time; a new one replaces the oldest.
const MOST_CLIENTS: usize = 32;
/// The time limit for a client; a scrape takes milliseconds.
const LONGEST_SERVICE: Duration = Duration::from_secs(5);
/// The pause after an error, so that the loop does not spin.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The reasons why metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is in use or not of this node.
    /// Cure: Change `metrics` in `[reaper]`; then reload.
    #[error("listening at {address} for Prometheus failed: {source}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
    },
    /// The limit of threads or memory of the unit is reached.
    /// Cure: Look at `systemctl status gpufrac-reaperd`.
    #[error("starting a thread for Prometheus failed: {0}")]
    Start(#[source] io::Error),
}

/// Serves metrics on its own thread, until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    /// Closing it ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at an address; port 0 chooses a free port. Errors: the address cannot be used.
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

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing; a panic has already been printed.
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
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

    /// Waits until a client sends data, a new one connects, or the oldest one's time is over.
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

    /// The time until the oldest client's limit.
    fn patience(&self) -> PollTimeout {
        let ends = self
            .clients
            .iter()
            .map(|client| client.since + LONGEST_SERVICE);
        ends.min().map_or(PollTimeout::NONE, |end| {
            let left = end.saturating_duration_since(Instant::now());
            // Rounded up, so that the limit has passed when the wait ends.
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
        })
    }

    fn advance(&mut self, ready: &Ready) {
        let (node, snapshot) = (&self.node, &self.snapshot);
        let metrics = || {
            // The daemon needs this lock, so it is only held for the copy.
            let now = snapshot.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Snapshot::clone(&now);
            text::render(&now, node)
        };
        let mut ready_clients = ready.clients.iter();
        self.clients.retain_mut(|client| {
            let ready = ready_clients.next() == Some(&true);
            let open = !ready || client.advance(|request| answer::to(request, metrics));
            open && client.since.elapsed() < LONGEST_SERVICE
        });
        if ready.listener {
            self.accept();
        }
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok((stream, _)) => {
                if self.clients.len() == MOST_CLIENTS {
                    // Clients are in the order in which they connected.
                    self.clients.remove(0);
                }
                self.clients.extend(Client::new(stream));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // No file descriptor is left; the connection waits in the queue.
            Err(_) => thread::sleep(RETRY_PAUSE),
        }
    }
}

/// The events that poll(2) reported.
struct Ready {
    stop: bool,
    listener: bool,
    /// For each client whether it has an event, in order.
    clients: Vec<bool>,
}
