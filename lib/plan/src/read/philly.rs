//! The jobs of Microsoft's cluster Philly of 2017, as a table of start, duration and number of GPUs.

use std::io::{self, Read};

use serde::Deserialize;

use super::value;
use crate::job::{History, Job};

/// GPUs of a node of Philly: jobs of more run on several.
const GPUS_OF_A_NODE: u32 = 8;

#[derive(Deserialize)]
struct PhillyJob {
    timestamp: String,
    duration: f64,
    num_gpus: u32,
    cluster: String,
}

/// Adds the jobs, in a partition for each virtual cluster. Errors: when the system refuses.
pub fn read(place: &str, source: impl Read, history: &mut History) -> io::Result<()> {
    let user = history.users.number("");
    let mut number = 0_u64;
    super::trace(place, source, history, |row: PhillyJob, history| {
        let submit = value::time(&row.timestamp).ok().flatten();
        let submit = submit.ok_or_else(|| format!("`{}` is no time", row.timestamp))?;
        if row.num_gpus > value::MOST_GPUS {
            return Err(format!("{} GPUs are too many", row.num_gpus));
        }
        if row.num_gpus == 0 {
            history.skipped.without_gpu += 1;
            return Ok(());
        }
        number += 1;
        let nodes = row.num_gpus.div_ceil(GPUS_OF_A_NODE);
        history.jobs.push(Job {
            id: number.to_string().into(),
            user,
            partition: history.partitions.number(&row.cluster),
            submit,
            ran: value::seconds(row.duration),
            nodes,
            gpus: row.num_gpus.div_ceil(nodes),
            ..Job::default()
        });
        Ok(())
    })
}
