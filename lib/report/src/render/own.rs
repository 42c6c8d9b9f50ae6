//! A user's own jobs, as rows of a table.

use gpufrac_page::words;

use super::{Own, hours};
use crate::own::Enough;

/// The heads of the columns.
pub const HEADS: &str = "job|size|GPU-hours|active|memory used|of|enough|saved";

pub fn cells(job: &Own) -> Vec<String> {
    let gib = |mib: Option<u64>| mib.map_or("-".to_owned(), |mib| words::gib(mib) + " GiB");
    let (enough, saved) = match &job.enough {
        Enough::Unmeasured => ("not measured".to_owned(), String::new()),
        Enough::NoSizes => ("-".to_owned(), String::new()),
        Enough::Same => (job.size.clone(), String::new()),
        Enough::Smaller { fraction, saved } => (fraction.clone(), format!("{:.2}", hours(*saved))),
    };
    vec![
        job.job.to_string(),
        job.size.clone(),
        format!("{:.2}", hours(job.allocated)),
        job.activity.map_or("-".to_owned(), words::percent),
        gib(job.memory.0),
        gib(job.memory.1),
        enough,
        saved,
    ]
}

/// The cells of all jobs together.
pub fn total(own: &[Own]) -> Vec<String> {
    let allocated: u64 = own.iter().map(|job| job.allocated).sum();
    let saved = own.iter().map(|job| match job.enough {
        Enough::Smaller { saved, .. } => saved,
        _ => 0,
    });
    let [allocated, saved] = [allocated, saved.sum()].map(|sum| format!("{:.2}", hours(sum)));
    let row = ["total", "", &allocated, "", "", "", "", &saved];
    row.map(str::to_owned).to_vec()
}
