//! `scontrol reconfigure`, to its end.

use std::fs;
use std::time::Duration;

use crate::{Lab, LabError};

/// What a daemon writes once it serves again, per log.
const SERVES: [(&str, &str); 2] = [
    ("slurmctld", "Running as primary controller"),
    ("slurmd", "slurmd started on"),
];

impl Lab {
    /// Lets slurmctld and each slurmd read their files again, and waits until all of them serve.
    ///
    /// From 23.11 on both daemons start their program again; what is sent to them meanwhile (the launch of a batch
    /// job, a client's next step) can be lost, and Slurm sends it again minutes later or never.
    ///
    /// # Errors
    /// When slurmctld refuses the files, or a daemon does not serve again.
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
                // A daemon that wrote nothing yet has no log.
                let text = fs::read_to_string(self.folder().log().join(log)).unwrap_or_default();
                text.matches(words).count()
            })
            .collect()
    }
}
