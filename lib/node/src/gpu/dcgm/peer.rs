//! The owner of the process at the other end of a connection on this machine.
//!
//! The port alone does not tell: the listener may be another process by the time of the connection, or one that
//! listens on the same port of the other address family. The kernel's tables of connections have the owner of each
//! socket (proc(5), `/proc/net/tcp`), also that of the other end: its local address is the one that this process
//! connected to, its remote address is this process's.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use gpufrac_core::ids::UserId;
use gpufrac_host::pause::Pause;

/// The connections of both address families, because an IPv6 socket may accept an IPv4 connection.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// The two addresses of a connection, as one end sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    own: (IpAddr, u16),
    peer: (IpAddr, u16),
}

/// A socket that a process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldSocket {
    owner: UserId,
    inode: u64,
}

/// The user whose process accepted this connection; None if no process in this network namespace did so before the
/// deadline.
pub(super) fn owner(stream: &TcpStream, deadline: Instant) -> io::Result<Option<UserId>> {
    let theirs = Ends {
        own: end(stream.peer_addr()?),
        peer: end(stream.local_addr()?),
    };
    let mut pause = Pause::new(Duration::from_millis(1), Duration::from_millis(16));
    let mut before = None;
    loop {
        let held = TABLES.iter().find_map(|table| {
            let text = fs::read_to_string(table).ok()?;
            find(&text, theirs)
        });
        match (before, held) {
            // A connection that waits to be accepted has no process, and root as its owner. The kernel reads the
            // owner before the inode, so beside the first inode there may still be root; therefore two equal readings
            // are needed.
            (Some(before), Some(held)) if before == held => return Ok(Some(held.owner)),
            _ => before = held,
        }
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Ok(None);
        }
        check_open(stream)?;
        pause.sleep(left);
    }
}

/// An error if the other end closed the connection, because then no process holds it.
fn check_open(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    let next = stream.peek(&mut [0]);
    stream.set_nonblocking(false)?;
    match next {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(()),
    }
}

fn now() -> Instant {
    Instant::now()
}

fn end(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// The socket with these addresses, if a process holds it.
fn find(table: &str, ends: Ends) -> Option<HeldSocket> {
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let found = Ends {
            own: listed(words.get(1)?)?,
            peer: listed(words.get(2)?)?,
        };
        let inode: u64 = words.get(9)?.parse().ok()?;
        let owner = words.get(7)?.parse().ok()?;
        (found == ends && inode > 0).then_some(HeldSocket { owner, inode })
    })
}

/// An address in the tables: hexadecimal words in the machine's byte order, and the port.
fn listed(text: &str) -> Option<(IpAddr, u16)> {
    let (words, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let mut bytes = Vec::with_capacity(16);
    let mut left = words;
    while !left.is_empty() {
        let (word, rest) = left.split_at_checked(8)?;
        bytes.extend(u32::from_str_radix(word, 16).ok()?.to_ne_bytes());
        left = rest;
    }
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some((ip.to_canonical(), port))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use nix::unistd::{Uid, geteuid, setfsuid};
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Connects to a listener whose connections a given user accepts; None if no process does.
    fn seen(listen: &str, to: IpAddr, by: Option<u32>, patience: Duration) -> Option<UserId> {
        let listener = TcpListener::bind(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = TcpStream::connect((to, port)).unwrap();
        std::thread::scope(|scope| {
            let (done, wait) = std::sync::mpsc::channel::<()>();
            let listener = &listener;
            scope.spawn(move || {
                let Some(user) = by else { return };
                // Only for this thread; a new socket belongs to the user whose permissions the kernel checks for files.
                setfsuid(Uid::from_raw(user));
                let taken = listener.accept();
                let _ = wait.recv();
                drop(taken);
            });
            let owner = owner(&stream, Instant::now() + patience).unwrap();
            drop(done);
            owner
        })
    }

    #[test]
    fn the_owner_of_either_family_is_found() {
        let own = geteuid().as_raw();
        for (listen, to) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.9"),
            ("[::1]:0", "::1"),
            // One socket for both address families.
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "::1"),
        ] {
            let owner = seen(listen, to.parse().unwrap(), Some(own), PATIENCE);
            assert_eq!(owner, Some(UserId(own)), "{listen} {to}");
        }
    }

    #[test]
    fn the_owner_of_the_connection_counts_and_not_that_of_the_listener() {
        test_seed::needs_root();
        for (listen, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::]:0", "127.0.0.1")] {
            let owner = seen(listen, to.parse().unwrap(), Some(4711), PATIENCE);
            assert_eq!(owner, Some(UserId(4711)), "{listen}");
        }
    }

    #[test]
    fn a_connection_that_was_not_accepted_has_no_owner() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let short = Duration::from_millis(50);
        assert_eq!(seen("127.0.0.1:0", loopback, None, short), None);
    }

    #[test]
    fn a_connection_that_is_closed_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let began = Instant::now();
        assert!(owner(&stream, began + PATIENCE).is_err());
        assert!(began.elapsed() < PATIENCE / 2);
    }

    /// Two ends at 127.0.0.1: a connection that waits (no inode), the same connection after it was accepted, and
    /// other sockets.
    const TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:24B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1001        0 100 1 0000000000000000
   1: 0100007F:24B8 0100007F:8001 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0000000000000000
   2: 0100007F:24B8 0100007F:8002 01 00000000:00000000 00:00000000 00000000  1001        0 102 1 0000000000000000
   3: 0100007F:8002 0100007F:24B8 01 00000000:00000000 00:00000000 00000000     0        0 103 1 0000000000000000
   4: 0200007F:24B8 0100007F:8003 01 00000000:00000000 00:00000000 00000000     0        0 104 1 0000000000000000
";
    /// The same with IPv6.
    const TABLE6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000000000000000000001000000:24B8 00000000000000000000000001000000:8001 01 00000000:00000000 00:00000000 00000000   990        0 201 1 0000000000000000
   1: 0000000000000000FFFF00000100007F:24B8 0000000000000000FFFF00000100007F:8004 01 00000000:00000000 00:00000000 00000000   991        0 202 1 0000000000000000
";

    #[test]
    #[cfg(target_endian = "little")]
    fn the_very_socket_is_looked_up() {
        let at = |ip: &str, peer: &str, port| Ends {
            own: (ip.parse().unwrap(), 0x24b8),
            peer: (peer.parse().unwrap(), port),
        };
        let held = |owner, inode| {
            Some(HeldSocket {
                owner: UserId(owner),
                inode,
            })
        };
        let local = "127.0.0.1";
        assert_eq!(find(TABLE, at(local, local, 0x8001)), None);
        assert_eq!(find(TABLE, at(local, local, 0x8002)), held(1001, 102));
        assert_eq!(find(TABLE, at(local, local, 0x8003)), None);
        assert_eq!(find(TABLE6, at("::1", "::1", 0x8001)), held(990, 201));
        assert_eq!(find(TABLE6, at(local, local, 0x8004)), held(991, 202));
        assert_eq!(find(TABLE6, at(local, local, 0x8001)), None);
    }

    proptest! {
        #[test]
        fn any_table_is_read(text in "(.*\n){0,4}", line in "[0-9A-F:. ü]{0,120}") {
            let ends = Ends {
                own: (IpAddr::from([127, 0, 0, 1]), 1),
                peer: (IpAddr::from([127, 0, 0, 1]), 2),
            };
            let _ = find(&text, ends);
            let _ = find(&format!("\n{line}"), ends);
        }
    }
}
