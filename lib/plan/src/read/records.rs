//! gpufrac's own usage records: jobs that already ran on slices.

use std::io::{self, BufRead, BufReader, Read};

use gpufrac_records::usage::Line;

use super::value;
use crate::job::{Charge, History, Job, Need};

/// Adds the slices of records. A job that ran on a slice needs no more than that slice.
/// Errors: when the system refuses.
pub fn read(place: &str, source: impl Read, history: &mut History) -> io::Result<()> {
    for (number, bytes) in (1..).zip(BufReader::new(source).split(b'\n')) {
        let bytes = bytes?;
        let text = String::from_utf8_lossy(&bytes);
        if text.trim().is_empty() {
            continue;
        }
        let record = match Line::parse(text.trim()) {
            Ok(Line::Slice(record)) => record,
            Ok(_) => continue,
            Err(error) => {
                history.skipped.line(place, number, &error);
                continue;
            }
        };
        let share = f32::from(u16::try_from(record.units).unwrap_or(100)) / 100.0;
        let (memory, activity) = record
            .used
            .as_ref()
            .map_or((None, None), |used| (used.peak_memory_mib, used.activity));
        let account = record.account.as_deref().unwrap_or_default();
        history.jobs.push(Job {
            id: record.job.to_string().into(),
            user: history.users.number(&record.user),
            charge: Charge {
                account: history.accounts.number(account),
                ..Charge::default()
            },
            partition: history.partitions.number(&record.partition),
            submit: record.start.min(value::LONGEST),
            ran: record.seconds.min(value::LONGEST),
            nodes: 1,
            gpus: 1,
            need: Need {
                memory_mib: memory.map(|mib| mib as f32),
                activity: activity.map(|part| part as f32 * share),
                share: Some(share),
            },
            ..Job::default()
        });
    }
    Ok(())
}
