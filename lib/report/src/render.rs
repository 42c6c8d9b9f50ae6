//! A report as text, CSV, JSON and a page.

pub mod csv;
pub mod json;
mod own;
mod page;

pub use page::page;

use gpufrac_records::usage::Full;

use crate::audit::Audited;
use crate::hints::Hints;
use crate::ledger::Skipped;
use crate::money;
use crate::own::Enough;
use crate::sums::{Sums, Table};

/// All that is to be shown.
pub struct Report {
    /// The period as text.
    pub period: String,
    pub table: Table,
    /// Name of the currency; None where nothing has a price.
    pub currency: Option<String>,
    /// Holders of idle slices, and how sizes are filled.
    pub hints: Hints,
    /// Name and sums of each day.
    pub days: Vec<(String, Sums)>,
    /// The errors of lines.
    pub skipped: Skipped,
    /// Jobs that accounting knows and no record does; None where accounting was not asked.
    pub without_records: Option<u64>,
    /// A user's own jobs; None in a report of all.
    pub own: Option<Vec<Own>>,
    /// The balance of the books, if it is wanted.
    pub audit: Option<Audited>,
}

/// A slice of a user's own job.
pub struct Own {
    /// Slurm's id of the job.
    pub job: u32,
    /// The requested size.
    pub size: String,
    /// Unit-seconds.
    pub allocated: u64,
    /// Mean activity, 0 to 1.
    pub activity: Option<f64>,
    /// Greatest memory in use and memory of the slice, in MiB.
    pub memory: (Option<u64>, Option<u64>),
    /// The size that would have been enough.
    pub enough: Enough,
    /// That the job failed with a full slice.
    pub full: Option<Full>,
    /// The next smaller size, where less than half of the memory was in use; of the last week.
    pub next_smaller: Option<String>,
}

impl Report {
    /// The rows with their prices in cents, which add up to that of the total; None where nothing has a price.
    fn priced_rows(&self) -> Vec<(&[String], &Sums, Option<i128>)> {
        let rows = self.table.rows();
        let costs: Vec<money::Money> = rows.iter().map(|(_, sums)| sums.cost).collect();
        let cents = money::cents(&costs);
        let has_prices = self.currency.is_some();
        let rows = rows.into_iter().zip(cents);
        rows.map(|((key, sums), cents)| (key, sums, has_prices.then_some(cents)))
            .collect()
    }

    /// What is not in the sums, a sentence each: lines that are no records, and jobs without one.
    pub fn remarks(&self) -> Vec<String> {
        let first = self.skipped.first.as_ref();
        let damaged = first.map(|first| {
            format!(
                "{} lines are no records and were skipped; the first: {first}",
                self.skipped.damaged
            )
        });
        let missing = self.without_records.filter(|&missing| missing > 0);
        let missing = missing.map(|missing| {
            format!(
                "{missing} runs of jobs are known to sacct and to no usage record: their time is counted as unknown"
            )
        });
        damaged.into_iter().chain(missing).collect()
    }
}

/// Unit-seconds as hours of a GPU.
fn hours(unit_seconds: u64) -> f64 {
    unit_seconds as f64 / money::GPU_HOUR as f64
}

/// A part of a whole, 0 to 1; None of nothing.
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
