//! How prologs and epilogs of jobs with a fraction ended: `<run>/outcomes`, a line of JSON for each, which
//! gpufrac-reaperd counts. No line names a job or a user.

use std::time::Duration;

use gpufrac_host::files::{FileError, RootDir};
use gpufrac_host::log::JobLog;
use serde::{Deserialize, Serialize};

use crate::fault::Cause;
use crate::node::Node;

/// The file in `<run>`.
pub const FILE: &str = "outcomes";
/// The lines that are counted next: programs that opened the file before it got this name may still append.
const CLOSED: &str = "outcomes.closed";
/// Bytes after which no line is added, for nodes on which no gpufrac-reaperd runs: some 3,000 lines.
const MOST_BYTES: u64 = 256 << 10;

/// What a prolog or an epilog did for its job, with the cause of its error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ending", content = "cause", rename_all = "kebab-case")]
pub enum Ending {
    /// The prolog made a slice, or found the one of the job.
    Served,
    /// The prolog gave the job back to the queue.
    Requeued(Cause),
    /// The same, and the job is held.
    Held(Cause),
    /// The prolog ended the job.
    Cancelled(Cause),
    /// The job has no slice, and Slurm has it in another state than the prolog asked for.
    Unserved(Cause),
    /// The epilog gave back the job's slices.
    Released,
    /// The epilog left a slice for later, or for an admin.
    NotReleased(Cause),
}

/// One prolog or epilog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    #[serde(flatten)]
    pub ending: Ending,
    /// From the first look at the job's request to its end, in milliseconds.
    pub took_ms: u64,
    /// Of this, the time in queues, and all from the first failed attempt on.
    pub waited_ms: u64,
}

impl Outcome {
    pub fn new(ending: Ending, took: Duration, waited: Duration) -> Outcome {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Outcome {
            ending,
            took_ms: ms(took),
            waited_ms: ms(waited),
        }
    }

    /// Adds the outcome to those that gpufrac-reaperd counts.
    pub fn count(&self, node: &Node, log: &JobLog) {
        if let Err(error) = self.note(node)
            // No folder: node-setup has not run, and the prolog says that already.
            && !error.is_not_found()
        {
            // `/run/gpufrac` cannot be written, so the metrics lack one job. Cure: Follow the text.
            log.warning(format!("counting this job failed: {error}"));
        }
    }

    fn note(&self, node: &Node) -> Result<(), FileError> {
        // The type has no key and no number that JSON lacks.
        let line = serde_json::to_string(self).unwrap_or_default() + "\n";
        RootDir::open(&node.run)?.append_text(FILE, &line, MOST_BYTES)
    }
}

/// The outcomes until the last call, for the only program that counts them. A damaged line is left out.
/// Errors: a file cannot be read, removed or renamed.
pub fn take(node: &Node) -> Result<Vec<Outcome>, FileError> {
    let Some(dir) = RootDir::find(&node.run)? else {
        return Ok(Vec::new());
    };
    let text = dir.read(CLOSED)?.unwrap_or_default();
    if dir.has_file(FILE)? {
        dir.rename(FILE, CLOSED)?;
    } else {
        dir.remove(CLOSED)?;
    }
    let lines = text.lines();
    Ok(lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use gpufrac_core::config::Config;

    fn outcome(ending: Ending) -> Outcome {
        Outcome::new(ending, Duration::from_millis(30), Duration::from_millis(7))
    }

    #[test]
    fn each_outcome_is_counted_once_also_one_that_comes_late() {
        let run = tempfile::tempdir().unwrap();
        let mut node = Node::new(Config::empty(), "n1");
        node.run = run.path().to_path_buf();
        assert_eq!(take(&node).unwrap(), []);
        outcome(Ending::Served).note(&node).unwrap();
        let mut late = RootDir::open(&node.run).unwrap().append(FILE).unwrap();
        assert_eq!(take(&node).unwrap(), []);
        let line = serde_json::to_string(&outcome(Ending::Held(Cause::Root))).unwrap();
        late.write_all(format!("{line}\nnonsense\n").as_bytes())
            .unwrap();
        outcome(Ending::Released).note(&node).unwrap();
        let first = [outcome(Ending::Served), outcome(Ending::Held(Cause::Root))];
        assert_eq!(take(&node).unwrap(), first);
        assert_eq!(take(&node).unwrap(), [outcome(Ending::Released)]);
        assert_eq!(take(&node).unwrap(), []);
    }

    #[test]
    fn a_node_without_a_daemon_keeps_a_short_file() {
        let run = tempfile::tempdir().unwrap();
        let mut node = Node::new(Config::empty(), "n1");
        node.run = run.path().to_path_buf();
        for _ in 0..5_000 {
            outcome(Ending::Served).note(&node).unwrap();
        }
        let bytes = std::fs::metadata(run.path().join(FILE)).unwrap().len();
        assert!(bytes < MOST_BYTES + 200, "{bytes}");
    }
}
