//! Falsified answers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The names of the falsified answers, and what they change.
pub const LIES: [(&str, &str); 23] = [
    ("no_device", "CUDA's start finds no device (100)"),
    (
        "not_ready",
        "CUDA's start fails: the system is not ready (802)",
    ),
    ("memory", "the device has half of its memory"),
    ("turns", "a process beside another is twenty times as slow"),
    ("defaults_reach", "raised defaults reach a running server"),
    ("at_run_time", "raised limits reach running clients"),
    (
        "multiprocessors",
        "the attribute is that of the whole device",
    ),
    ("affinity", "the context says all multiprocessors"),
    ("blocks", "blocks run on all multiprocessors"),
    ("free_memory", "the limit is not in the free memory"),
    ("memory_limit", "the memory limit does not hold"),
    (
        "uuid_limit",
        "a limit for an unknown UUID ends all memory limits",
    ),
    ("stubborn", "no client has more than a quarter"),
    ("slow", "computations under MPS take twenty times as long"),
    ("contained", "a neighbour does not notice a fault"),
    ("faultless", "an illegal address is no error"),
    ("survives_terminate", "a terminated client goes on"),
    (
        "survives_server",
        "a client does not notice the end of its server",
    ),
    ("dies_with_daemon", "a client ends with the control daemon"),
    (
        "killed_disturbs",
        "SIGKILL of a client is a fault for the others",
    ),
    (
        "no_fallback",
        "without a control daemon CUDA does not start (805)",
    ),
    ("outside", "no process is a client of MPS"),
    ("one_user", "MPS refuses users besides root (805)"),
];

/// The falsified answers of a node.
#[derive(Debug, Default)]
pub struct Lies(BTreeSet<String>);

impl Lies {
    /// Those in the file of a node; none without the file.
    pub fn of(root: &Path) -> Lies {
        let text = fs::read(root.join("cuda.json")).unwrap_or_default();
        Lies(serde_json::from_slice(&text).unwrap_or_default())
    }

    /// Whether an answer is falsified.
    ///
    /// # Panics
    /// The name is not one of [`LIES`].
    pub fn has(&self, name: &str) -> bool {
        assert!(LIES.iter().any(|(known, _)| *known == name), "{name}");
        self.0.contains(name)
    }
}
