//! What a driver does where sources differ, or where no source says what drivers do.

use serde::{Deserialize, Serialize};

/// The manners of a driver; all are off by default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Manners {
    /// Each instance has a new MIG UUID. Else the UUID tells the place, as those that were published have version 5
    /// (`gpu_uuid.c` of open-gpu-kernel-modules).
    pub random_uuids: bool,
}

/// The names in `gpusim init --manner`.
pub const NAMES: &str = "random-uuids";

impl Manners {
    /// Adds the manner of a name.
    ///
    /// # Errors
    /// There is no such manner; the text names those that there are.
    pub fn add(&mut self, text: &str) -> Result<(), String> {
        match text {
            "random-uuids" => self.random_uuids = true,
            _ => return Err(format!("there is no manner `{text}`; there are {NAMES}")),
        }
        Ok(())
    }
}
