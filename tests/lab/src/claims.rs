//! Names and ports that a lab reserves against other labs on this machine.
//!
//! A claim is an abstract Unix socket: the kernel releases it when the program ends in any way, and no file is left
//! behind.

use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use crate::cgroups::Groups;
use crate::patience::poll_until;

/// Below the kernel's range for outgoing connections, so that no connection takes a port between the choice and the
/// daemon's start.
const PORTS: std::ops::Range<u16> = 12_000..32_000;

/// The number of ports that are claimed together.
const BLOCK: u16 = 8;

/// The time limit until other labs have ended, in a row of tests.
const ALONE_LIMIT: Duration = Duration::from_secs(180);

/// The number of attempts to find free ports or a free name.
const TRIES: u32 = 10_000;

/// The claims of one lab, until they are dropped.
#[derive(Debug, Default)]
pub(crate) struct Claims(Vec<UnixListener>);

impl Claims {
    /// Claims a name; returns whether this lab has it now.
    fn take(&mut self, name: &str) -> bool {
        let taken = SocketAddr::from_abstract_name(format!("gpufrac-lab/{name}"))
            .and_then(|address| UnixListener::bind_addr(&address));
        taken.map(|claim| self.0.push(claim)).is_ok()
    }

    /// `count` ports on which no process listens; fewer if the machine has no more.
    pub fn ports(&mut self, count: usize) -> Vec<u16> {
        let mut ports = Vec::new();
        let blocks = u64::from((PORTS.end - PORTS.start) / BLOCK);
        for _ in 0..TRIES {
            if ports.len() >= count {
                break;
            }
            let block = u16::try_from(random() % blocks).unwrap_or(0);
            if self.take(&format!("ports/{block}")) {
                let first = PORTS.start + block * BLOCK;
                let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
                ports.extend((first..first + BLOCK).filter(is_free));
            }
        }
        ports.truncate(count);
        ports
    }

    /// Claims a prefix of node names. Labs without a program are found by their control groups.
    pub fn prefix(&mut self, prefix: &str) -> bool {
        self.take(&format!("nodes/{prefix}")) && !Groups::Of(format!("{prefix}1")).exist()
    }

    /// Claims the groups of a slurmd that is alone on its machine, after the labs that have them now; returns whether
    /// this lab has them now.
    pub fn alone(&mut self) -> bool {
        let step = Duration::from_millis(200);
        poll_until("the end of other labs", ALONE_LIMIT, step, || {
            !Groups::Alone.exist() && self.take("alone")
        })
    }

    /// A prefix of node names that no other lab has.
    pub fn any_prefix(&mut self) -> Option<String> {
        let mut prefixes = (0..TRIES).map(|_| format!("lab{:04x}n", random() & 0xffff));
        prefixes.find(|prefix| self.prefix(prefix))
    }
}

/// A number that differs between calls and processes.
fn random() -> u64 {
    // The standard library seeds its hashes from the system's random source.
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_labs_never_have_the_same_ports() {
        let mut labs: Vec<_> = (0..20).map(|_| Claims::default()).collect();
        let ports: Vec<_> = labs.iter_mut().flat_map(|lab| lab.ports(11)).collect();
        let different: BTreeSet<_> = ports.iter().collect();
        assert_eq!((ports.len(), different.len()), (220, 220));
    }

    #[test]
    fn a_prefix_is_free_again_when_its_lab_is_gone() {
        let prefix = format!("claim{}n", std::process::id());
        let (mut one, mut other) = (Claims::default(), Claims::default());
        assert!(one.prefix(&prefix));
        assert!(!other.prefix(&prefix));
        drop(one);
        assert!(other.prefix(&prefix));
    }
}
