//! A report as CSV: one row for each group, hours of GPUs with four decimals.

pub use ::csv::Error;

use super::{Own, Report, hours};
use crate::money;
use crate::own::Enough;

type Writer = ::csv::Writer<Vec<u8>>;

/// The text of a report. Errors: when a row cannot be written.
pub fn text(report: &Report) -> Result<String, Error> {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    match &report.own {
        Some(own) => own_jobs(&mut writer, own)?,
        None => sums(&mut writer, report)?,
    }
    let bytes = writer
        .into_inner()
        .map_err(|error| Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

const HEADS_OF_OWN: &str =
    "job,size,allocated_gpu_hours,activity,peak_memory_mib,memory_mib,enough,saved_gpu_hours";

/// A row for each of a user's own jobs.
fn own_jobs(writer: &mut Writer, own: &[Own]) -> Result<(), Error> {
    writer.write_record(HEADS_OF_OWN.split(','))?;
    for job in own {
        let number =
            |number: Option<u64>| number.map_or(String::new(), |number| number.to_string());
        let (enough, saved) = match &job.enough {
            Enough::Unmeasured | Enough::NoSizes => (String::new(), String::new()),
            Enough::Same => (job.size.clone(), "0.0000".to_owned()),
            Enough::Smaller { fraction, saved } => {
                (fraction.clone(), format!("{:.4}", hours(*saved)))
            }
        };
        writer.write_record([
            job.job.to_string(),
            job.size.clone(),
            format!("{:.4}", hours(job.allocated)),
            job.activity
                .map_or(String::new(), |share| share.to_string()),
            number(job.memory.0),
            number(job.memory.1),
            enough,
            saved,
        ])?;
    }
    Ok(())
}

fn sums(writer: &mut Writer, report: &Report) -> Result<(), Error> {
    let by = report.table.by.iter().map(|by| by.name().to_owned());
    let parts = report.table.total.parts();
    let parts = parts.map(|(name, _)| format!("{name}_gpu_hours"));
    let heads = by.chain(["slices".to_owned()]).chain(parts);
    writer.write_record(heads.chain(["energy_joules", "cost"].map(str::to_owned)))?;
    for (key, sums, cents) in report.priced_rows() {
        let parts = sums.parts().map(|(_, part)| format!("{:.4}", hours(part)));
        let cells = key
            .iter()
            .cloned()
            .chain([sums.slices.to_string()])
            .chain(parts);
        let cost = cents.map(money::text).unwrap_or_default();
        let cells = cells.chain([sums.energy_j.to_string(), cost]);
        writer.write_record(cells)?;
    }
    Ok(())
}
