//! Free TCP ports for the daemons.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::TcpListener;
use std::sync::Mutex;

/// Below the range from which the kernel takes ports for outgoing connections, so that none of those
/// takes a port between our choice and the daemon's start.
const RANGE: std::ops::Range<u16> = 12_000..32_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// `count` ports on which nothing listens, none of them given to another lab of this process.
pub(crate) fn free(count: usize) -> Vec<u16> {
    let mut given = GIVEN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut ports = Vec::new();
    let width = u64::from(RANGE.end - RANGE.start);
    while ports.len() < count {
        let port = RANGE.start + u16::try_from(random() % width).unwrap_or(0);
        if !given.contains(&port) && TcpListener::bind(("0.0.0.0", port)).is_ok() {
            given.insert(port);
            ports.push(port);
        }
    }
    ports
}

/// A number that differs from call to call and from process to process.
pub(crate) fn random() -> u64 {
    // The standard library seeds its hashes from the system's random source.
    RandomState::new().hash_one(std::process::id())
}
