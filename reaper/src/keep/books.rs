//! The node's books: sums for the epilogs, and records of slices whose node was booted under them.
//!
//! | file | what | written |
//! |---|---|---|
//! | `<run>/reaper/used.json` | the sums of each slice, [`Tallies`]; epilogs read them | each round |
//! | `<shared>/usage/DAY/NODE.jsonl` | the records of all nodes ([`shipping`]) | each minute |
//! | `<state>/running.json` | usage records of running slices, as if they ended now; read after a boot | each minute |

use std::path::Path;

use gpufrac_host::files::{FileError, RootDir};
use gpufrac_node::state::usage::{self, UsageError};
use gpufrac_records::usage::{Ended, Full, GpuTime, SliceKey, Tallies, UsageRecord};
use serde::{Deserialize, Serialize};

use crate::keep::shipping::{self, ShippingError};
use gpufrac_node::state::record::boot_id;

/// The records of running slices.
const RUNNING: &str = "running.json";

pub trait Books {
    /// The sums that an earlier run of the daemon wrote; none if they are damaged.
    fn resume(&self) -> Result<Tallies, FileError>;

    /// Writes the sums.
    fn save(&self, tallies: &Tallies) -> Result<(), FileError>;

    /// Writes what was not recorded yet.
    fn save_running(&self, running: Running) -> Result<(), FileError>;

    /// Takes up what an earlier run of the daemon wrote. After a boot it records the slices that ran when the node went
    /// down, as no epilog did, and the GPUs.
    fn take_up(&self) -> Result<TakenUp, UsageError>;

    /// Records the time of GPUs.
    fn record_gpus(&self, gpus: &[GpuTime]) -> Result<(), UsageError>;

    /// Records why a slice ended. `unix`: when; `full`: that its job failed with a full slice.
    fn record_end(
        &self,
        key: &SliceKey,
        ended: Ended,
        unix: u64,
        full: Option<Full>,
    ) -> Result<(), UsageError>;

    /// Copies records to the folder that nodes share.
    fn ship(&self, shared: &Path, node: &str) -> Result<(), ShippingError>;
}

pub struct NodeBooks {
    run: RootDir,
    state: RootDir,
}

/// Slices that are not recorded yet, as if they ended now.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Running {
    pub boot_id: String,
    /// The slices that jobs hold.
    pub records: Vec<UsageRecord>,
    #[serde(default)]
    pub gpus: Vec<GpuTime>,
}

/// The state of an earlier run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TakenUp {
    /// GPUs whose time was not recorded yet, of this boot.
    pub gpus: Vec<GpuTime>,
    /// Slices that ran when the node went down.
    pub lost: usize,
}

impl NodeBooks {
    /// Opens the folders, or makes them. Errors: a folder is not root's alone.
    pub fn open(run: &Path, state: &Path) -> Result<NodeBooks, FileError> {
        Ok(NodeBooks {
            run: RootDir::create(&run.join(usage::REAPER), 0o755)?.0,
            state: RootDir::create(state, 0o755)?.0,
        })
    }
}

impl Books for NodeBooks {
    fn resume(&self) -> Result<Tallies, FileError> {
        let text = self.run.read(usage::TALLIES)?;
        let tallies = text.and_then(|text| serde_json::from_str(&text).ok());
        Ok(tallies.unwrap_or_default())
    }

    fn save(&self, tallies: &Tallies) -> Result<(), FileError> {
        let text = serde_json::to_string(tallies).unwrap_or_default();
        self.run.write(usage::TALLIES, &text, 0o600)
    }

    fn save_running(&self, running: Running) -> Result<(), FileError> {
        let text = serde_json::to_string(&running).unwrap_or_default();
        self.state.write(RUNNING, &text, 0o600)
    }

    fn take_up(&self) -> Result<TakenUp, UsageError> {
        let text = self.state.read(RUNNING)?.unwrap_or_default();
        // A damaged file has nothing to tell; the next minute writes it again.
        let running: Running = serde_json::from_str(&text).unwrap_or_default();
        if running.boot_id == boot_id().unwrap_or_default() {
            return Ok(TakenUp {
                gpus: running.gpus,
                lost: 0,
            });
        }
        let lost = running.records.len();
        for mut record in running.records {
            record.ended = Some(Ended::NodeFailure);
            // An epilog may have ended it in its last minute.
            usage::record(self.state.path(), &record, true)?;
        }
        self.record_gpus(&running.gpus)?;
        self.state.remove(RUNNING)?;
        Ok(TakenUp {
            gpus: Vec::new(),
            lost,
        })
    }

    fn record_gpus(&self, gpus: &[GpuTime]) -> Result<(), UsageError> {
        for gpu in gpus {
            usage::record_gpu(self.state.path(), gpu)?;
        }
        Ok(())
    }

    fn record_end(
        &self,
        key: &SliceKey,
        ended: Ended,
        unix: u64,
        full: Option<Full>,
    ) -> Result<(), UsageError> {
        usage::record_end(self.state.path(), key, ended, unix, full)
    }

    fn ship(&self, shared: &Path, node: &str) -> Result<(), ShippingError> {
        shipping::all(|| shipping::ship(self.state.path(), shared, node))
    }
}

#[cfg(test)]
mod tests {
    use gpufrac_records::usage::Line;

    use super::*;

    fn record(job: u32) -> UsageRecord {
        let text = format!(
            r#"{{"version":2,"job":{job},"restart_count":0,"user":"ann","uid":1001,"account":null,"partition":"gpu","node":"n1","pool":"p","fraction":"0.25","units":25,"profile":"2g.20gb","gpu_uuid":"GPU-1","start":1000,"end":1060,"seconds":60}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn recorded(state: &Path) -> Vec<(u32, Option<Ended>)> {
        let text = std::fs::read_to_string(state.join(usage::FILE)).unwrap_or_default();
        let lines = text.lines().map(|line| Line::parse(line).unwrap());
        let slices = lines.filter_map(|line| match line {
            Line::Slice(record) => Some((record.job.0, record.ended)),
            _ => None,
        });
        slices.collect()
    }

    /// Promise (admins): slices that jobs held when the node went down have a record.
    #[test]
    fn slices_that_ran_when_the_node_went_down_are_recorded_once() {
        let keep = tempfile::tempdir().unwrap();
        let root = keep.path().canonicalize().unwrap();
        let (run, state) = (root.join("run"), root.join("state"));
        let books = NodeBooks::open(&run, &state).unwrap();
        assert_eq!(books.take_up().unwrap(), TakenUp::default());
        // The epilog of job 8 came in the last minute.
        usage::record(&state, &record(8), false).unwrap();
        let running = Running {
            boot_id: boot_id().unwrap_or_default(),
            records: vec![record(7), record(8)],
            gpus: Vec::new(),
        };
        books.save_running(running).unwrap();
        assert_eq!(books.take_up().unwrap().lost, 0, "the same boot");
        let path = state.join(RUNNING);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(
            &path,
            text.replace(&boot_id().unwrap_or_default(), "an earlier boot"),
        )
        .unwrap();
        assert_eq!(books.take_up().unwrap().lost, 2);
        assert_eq!(books.take_up().unwrap().lost, 0);
        let expected = [(8, None), (7, Some(Ended::NodeFailure))];
        assert_eq!(recorded(&state), expected);
    }

    #[test]
    fn sums_are_read_as_they_were_written() {
        let keep = tempfile::tempdir().unwrap();
        let root = keep.path().canonicalize().unwrap();
        let books = NodeBooks::open(&root.join("run"), &root.join("state")).unwrap();
        assert_eq!(books.resume().unwrap(), Tallies::default());
        let tallies = Tallies {
            boot_id: boot_id().unwrap_or_default(),
            slices: vec![gpufrac_records::usage::Tally::new(record(7).key())],
        };
        books.save(&tallies).unwrap();
        assert_eq!(books.resume().unwrap(), tallies);
        std::fs::write(root.join("run/reaper/used.json"), "{").unwrap();
        assert_eq!(books.resume().unwrap(), Tallies::default());
    }
}
