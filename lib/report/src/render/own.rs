//! A user's own jobs, as rows of a table.

use gpufrac_page::words;

use super::{Own, hours};
use crate::own::Enough;

/// The heads of the columns.
pub const HEADS: &str = "job|size|GPU-hours|active|memory used|of|enough|saved";

fn gib(mib: Option<u64>) -> String {
    mib.map_or("-".to_owned(), |mib| words::gib(mib) + " GiB")
}

pub fn cells(job: &Own) -> Vec<String> {
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

/// The heads of the jobs that failed with a full slice.
pub const HEADS_OF_FULL: &str = "job|size|memory used|of|next larger size|free on its node then";

pub fn full(job: &Own) -> Option<Vec<String>> {
    let full = job.full.as_ref()?;
    let (larger, free) = match &full.larger {
        None => ("none".to_owned(), "-"),
        Some(larger) => (
            words::plain(&larger.request),
            if larger.is_free { "yes" } else { "no" },
        ),
    };
    let used = gib(Some(full.used_mib));
    let size = job.size.clone();
    let of = gib(job.memory.1);
    Some(vec![
        job.job.to_string(),
        size,
        used,
        of,
        larger,
        free.to_owned(),
    ])
}

/// The heads of the jobs that used less than half of their memory.
pub const HEADS_OF_HALF: &str = "job|size|memory used|of|next smaller size";

pub fn half(job: &Own) -> Option<Vec<String>> {
    let smaller = job.next_smaller.clone()?;
    let [used, all] = [job.memory.0, job.memory.1].map(gib);
    Some(vec![
        job.job.to_string(),
        job.size.clone(),
        used,
        all,
        smaller,
    ])
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
