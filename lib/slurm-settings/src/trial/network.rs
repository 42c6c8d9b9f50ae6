//! A network of its own for programs, in which nothing but this host's own addresses answers.

use std::io;
use std::net::Ipv4Addr;

use gpufrac_host::syscalls::start_loopback;
use nix::sched::{CloneFlags, unshare};

/// An address for documentation (RFC 5737). Without one beside 127.0.0.1 the resolver gives slurmctld no address to
/// listen on.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Runs `work` in a thread whose programs have the network. Errors: this user may not make networks.
pub(super) fn alone<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)?;
            start_loopback(ADDRESS)?;
            Ok(work())
        });
        let panicked = |_| Err(io::Error::other("a thread panicked"));
        thread.join().unwrap_or_else(panicked)
    })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Promise (admins): a trial of `gpufrac init` reaches nothing of the cluster.
    /// With `nothing_of_the_cluster_is_reached`.
    #[test]
    fn only_this_host_answers() {
        test_seed::needs_root();
        let outside = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = outside.local_addr().unwrap();
        alone(|| {
            assert!(TcpStream::connect(port).is_err());
            for address in ["127.0.0.1:0", "192.0.2.1:0"] {
                let inside = TcpListener::bind(address).unwrap();
                TcpStream::connect(inside.local_addr().unwrap()).unwrap();
            }
        })
        .unwrap();
        TcpStream::connect(port).unwrap();
    }
}
