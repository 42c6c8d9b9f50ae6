//! Runs `scontrol reconfigure`, and waits until it has taken effect.

use std::fs;
use std::time::Duration;

use crate::{Lab, LabError};

/// The line in each log by which a daemon says that it serves again.
const SERVES: [(&str, &str); 2] = [
    ("slurmctld", "Running as primary controller"),
    ("slurmd", "slurmd started on"),
];

impl Lab {
    /// Makes slurmctld and each slurmd read their files again, and waits until all of them serve.
    ///
    /// From 23.11 on both daemons restart their program. Messages sent meanwhile (the launch of a batch job, a
    /// client's next step) can be lost, and Slurm sends them again minutes later or never.
    /// Errors: slurmctld refuses the files, or a daemon does not serve again.
    pub fn reconfigure(&self) -> Result<(), LabError> {
        let before = self.times_served();
        self.command("scontrol").args(["reconfigure"]).stdout()?;
        if !self.slurm().since(23, 11) {
            return Ok(());
        }
        self.wait("all daemons serve again", Duration::from_secs(60), || {
            let now = self.times_served();
            let all = before.iter().zip(now).all(|(before, now)| *before < now);
            Ok(all.then_some(()))
        })
    }

    /// How often each daemon has begun to serve.
    fn times_served(&self) -> Vec<usize> {
        let [(slurmctld, primary), (slurmd, started)] = SERVES;
        let nodes = self.nodes().iter();
        let logs = nodes.map(|node| (format!("{slurmd}.{node}.log"), started));
        std::iter::once((format!("{slurmctld}.log"), primary))
            .chain(logs)
            .map(|(log, words)| {
                // A daemon that has written nothing yet has no log.
                let text = fs::read_to_string(self.folder().log().join(log)).unwrap_or_default();
                text.matches(words).count()
            })
            .collect()
    }
}
