//! The jobs of Microsoft's cluster Philly of 2017, as a table of start, duration and number of GPUs.

use std::io::{self, Read};

use serde::Deserialize;

use super::value;
use crate::job::{Charge, History, Job, Need};

/// GPUs of a node of Philly: jobs of more run on several.
const GPUS_OF_A_NODE: u32 = 8;

#[derive(Deserialize)]
struct Row {
    timestamp: String,
    duration: f64,
    num_gpus: u32,
    cluster: String,
}

/// Adds the jobs, in a partition for each virtual cluster.
///
/// # Errors
/// When the system refuses.
pub fn read(place: &str, source: impl Read, history: &mut History) -> io::Result<()> {
    let user = history.users.number("");
    let mut reader = csv::Reader::from_reader(source);
    let mut rows = reader.deserialize::<Row>();
    let mut number = 0_u64;
    while let Some(row) = rows.next() {
        let line = rows.reader().position().line();
        let row = match row {
            Ok(row) => row,
            Err(error) if error.is_io_error() => return Err(error.into()),
            Err(error) => {
                history.skipped.line(place, line, &error);
                continue;
            }
        };
        let submit = match value::time(&row.timestamp) {
            Ok(Some(submit)) => submit,
            _ => {
                history
                    .skipped
                    .line(place, line, &format!("`{}` is no time", row.timestamp));
                continue;
            }
        };
        if row.num_gpus > 1 << 20 {
            let why = format!("{} GPUs are too many", row.num_gpus);
            history.skipped.line(place, line, &why);
            continue;
        }
        if row.num_gpus == 0 {
            history.skipped.without_gpu += 1;
            continue;
        }
        number += 1;
        let nodes = row.num_gpus.div_ceil(GPUS_OF_A_NODE);
        history.jobs.push(Job {
            id: number.to_string().into(),
            user,
            charge: Charge::default(),
            partition: history.partitions.number(&row.cluster),
            submit,
            waited: 0,
            ran: value::seconds(row.duration),
            limit: None,
            nodes,
            gpus: row.num_gpus.div_ceil(nodes),
            cpus: 0,
            priority: 0,
            need: Need::default(),
            idle: Vec::new(),
        });
    }
    Ok(())
}
