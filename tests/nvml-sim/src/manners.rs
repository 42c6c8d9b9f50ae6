//! What a driver does where sources differ, or where no source says what drivers do.

use serde::{Deserialize, Serialize};

/// The manners of a driver; all are off by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Manners {
    /// Each instance has a new MIG UUID. Else the UUID tells the place, as those that were published have version 5
    /// (`gpu_uuid.c` of open-gpu-kernel-modules).
    pub random_uuids: bool,
    /// Destroying a GPU instance answers success at once, and the instance goes this many milliseconds later
    /// (NVIDIA/go-nvml issue 146: it was still listed).
    pub destroyed_after_ms: Option<u64>,
    /// An id that no instance of the GPU, or no compute instance of this GPU instance, can have is INVALID_ARGUMENT.
    /// Else it is NOT_FOUND, as an id that none has now.
    pub invalid_ids: bool,
    /// A session goes on showing the GPUs as it saw them first, until it changes something itself (NVIDIA/libcudacxx
    /// issue 224: an instance that another process had destroyed was still found).
    pub stale_sessions: bool,
    /// The GPUs are in an NVSwitch fabric, and come back to it this many milliseconds after MIG mode is off.
    pub fabric_after_ms: Option<u64>,
}

/// The names in `gpusim init --manner`.
pub const NAMES: &str =
    "random-uuids, destroyed-after=MS, invalid-ids, stale-sessions, fabric-after=MS";

impl Manners {
    /// Adds the manner of a name. Errors: there is no such manner; the text names those that there are.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        let unknown = || format!("there is no manner `{text}`; there are {NAMES}");
        let (name, ms) = match text.split_once('=') {
            Some((name, ms)) => (name, Some(ms.parse().map_err(|_| unknown())?)),
            None => (text, None),
        };
        match (name, ms) {
            ("random-uuids", None) => self.random_uuids = true,
            ("fabric-after", ms @ Some(_)) => self.fabric_after_ms = ms,
            ("stale-sessions", None) => self.stale_sessions = true,
            ("invalid-ids", None) => self.invalid_ids = true,
            ("destroyed-after", ms @ Some(_)) => self.destroyed_after_ms = ms,
            _ => return Err(unknown()),
        }
        Ok(())
    }
}
