//! Signals by name.

use std::fmt;
use std::str::FromStr;

/// A signal that a batch script can catch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(u8);

/// Names and numbers of signal(7) for x86 and ARM.
const NAMES: [(&str, u8); 8] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("USR1", 10),
    ("USR2", 12),
    ("TERM", 15),
    ("CONT", 18),
    ("URG", 23),
];

impl Signal {
    pub fn number(self) -> u8 {
        self.0
    }

    pub fn known() -> String {
        NAMES.map(|(name, _)| name).join(", ")
    }
}

impl FromStr for Signal {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.strip_prefix("SIG").unwrap_or(text);
        let found = NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, number)| Signal(*number)).ok_or(())
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, number)| *number == self.0);
        write!(f, "SIG{}", name.map_or("?", |(name, _)| name))
    }
}
