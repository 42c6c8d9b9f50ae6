//! The state of the daemon that outlives it: the last activity of each slice, the warnings, the counters. It is
//! beside the leases on a tmpfs, so that it ends with the boot, as they do.

use std::time::Duration;

use gpufrac_core::ids::JobId;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_records::evidence::Record;
use serde::{Deserialize, Serialize};

use crate::judge::breaker::LastOpen;
use crate::judge::peers::{PeerError, Peers};
use crate::judge::watch::Watch;
use crate::keep::totals::Totals;
use crate::key::Key;
use gpufrac_node::clock::BootTime;
use gpufrac_node::state::record::boot_id;

/// The format version of the text.
const VERSION: u32 = 1;
const STATE_FILE: &str = "state.json";

/// The reasons why a saved state is not used.
#[derive(Debug, thiserror::Error)]
pub enum UnusableState {
    /// The saved state was not written to its end.
    /// Cure: Nothing.
    #[error("it is damaged ({0})")]
    Damaged(#[source] serde_json::Error),
    /// The saved state is of another build.
    /// Cure: Nothing.
    #[error("it is of version {0}, this is {VERSION}")]
    Version(u32),
    /// The node was rebooted.
    /// Cure: Nothing.
    #[error("it was written before the last boot")]
    OtherBoot,
}

/// The daemon's storage: its state, and the records of jobs.
pub trait Memory {
    /// Reads the saved state. If it cannot be used, returns a new state with the reason; every slice then counts as
    /// active now.
    fn load(&self) -> Result<(State, Option<UnusableState>), FileError>;

    fn save(&self, state: &State) -> Result<(), FileError>;

    /// The record that an earlier run of the daemon wrote about this run of the job.
    fn read(&self, key: Key) -> Result<Option<Record>, FileError>;

    /// Writes the record of a running job.
    fn write(&self, record: &Record) -> Result<(), FileError>;

    /// Keeps a record with a decision beyond the end of the job and a reboot.
    fn keep(&self, record: &Record, peers: &Peers) -> Result<(), PeerError>;

    /// Removes the record of a running job that has ended.
    fn end(&self, job: JobId) -> Result<(), FileError>;

    /// Removes the records of running jobs that are no longer on this node.
    fn tidy(&self, is_here: &dyn Fn(JobId) -> bool) -> Result<(), FileError>;

    /// Removes kept records that were last changed before `before`, a time since 1970. In the shared folder each node
    /// removes its own.
    fn purge(&self, before: Duration, peers: &Peers) -> Result<(), PeerError>;
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    version: u32,
    boot_id: String,
    /// The watched jobs.
    pub watches: Vec<Watch>,
    /// When jobs were ended, in the last hour.
    pub reaped: Vec<BootTime>,
    /// When breakers were last open.
    #[serde(default)]
    pub opened: LastOpen,
    pub totals: Totals,
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Deserialize)]
struct Header {
    version: u32,
    boot_id: String,
}

impl State {
    /// The state of a daemon that runs for the first time.
    pub fn new() -> State {
        State {
            version: VERSION,
            boot_id: boot_id().unwrap_or_default(),
            watches: Vec::new(),
            reaped: Vec::new(),
            opened: LastOpen::default(),
            totals: Totals::default(),
        }
    }

    /// Reads the saved state. If it cannot be used, returns a new state with the reason; every slice then counts as
    /// active now.
    pub fn load(dir: &RootDir) -> Result<(State, Option<UnusableState>), FileError> {
        let Some(text) = dir.read(STATE_FILE)? else {
            return Ok((State::new(), None));
        };
        let unusable = match serde_json::from_str::<Header>(&text) {
            Err(error) => UnusableState::Damaged(error),
            Ok(header) if header.version != VERSION => UnusableState::Version(header.version),
            Ok(header) if header.boot_id != boot_id().unwrap_or_default() => {
                UnusableState::OtherBoot
            }
            Ok(_) => match serde_json::from_str(&text) {
                Ok(state) => return Ok((state, None)),
                Err(error) => UnusableState::Damaged(error),
            },
        };
        Ok((State::new(), Some(unusable)))
    }

    pub fn save(&self, dir: &RootDir) -> Result<(), FileError> {
        let text = serde_json::to_string(self).unwrap_or_default();
        dir.write(STATE_FILE, &text, 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::watch::tests::{KEY, at};

    #[test]
    fn the_state_is_read_as_written_and_damaged_texts_are_refused() {
        let keep = tempfile::tempdir().unwrap();
        let dir = RootDir::open(&keep.path().canonicalize().unwrap()).unwrap();
        let (mut state, unusable) = State::load(&dir).unwrap();
        assert!(unusable.is_none());
        state.watches.push(Watch::new(KEY, at(3)));
        state.reaped.push(at(4));
        state.opened.cluster = Some(at(5));
        state.totals.cancelled = 2;
        state.save(&dir).unwrap();
        let (kept, unusable) = State::load(&dir).unwrap();
        assert_eq!(kept, state);
        assert!(unusable.is_none());
        let text = serde_json::to_string(&state).unwrap();
        for (text, reason) in [
            (text.replace("\"version\":1", "\"version\":2"), "version 2"),
            (
                text.replace(&boot_id().unwrap_or_default(), "other"),
                "before the last boot",
            ),
            (text[..text.len() / 2].to_owned(), "damaged"),
            (text.replace("watches", "others"), "damaged"),
        ] {
            dir.write(STATE_FILE, &text, 0o600).unwrap();
            let (state, unusable) = State::load(&dir).unwrap();
            assert_eq!(state, State::new());
            assert!(unusable.unwrap().to_string().contains(reason), "{reason}");
        }
    }

    /// A later build of the daemon reads the state that this build wrote.
    #[test]
    fn a_state_of_format_version_1_can_still_be_read() {
        let text = include_str!("state/version1.json").trim_end();
        let text = text.replace("BOOT", &boot_id().unwrap_or_default());
        let state: State = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&state).unwrap(), text);
    }
}
