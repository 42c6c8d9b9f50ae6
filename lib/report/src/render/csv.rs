//! A report as CSV: one row for each group, hours of GPUs with four decimals.

pub use ::csv::Error;

use super::{Report, hours};
use crate::money;

/// The text of a report.
///
/// # Errors
/// When a row cannot be written.
pub fn text(report: &Report) -> Result<String, Error> {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    let by = report.table.by.iter().map(|by| by.name());
    let fixed = [
        "slices",
        "allocated_gpu_hours",
        "busy_gpu_hours",
        "idle_gpu_hours",
        "unknown_gpu_hours",
        "suspended_gpu_hours",
        "reclaimed_gpu_hours",
        "energy_joules",
        "cost",
    ];
    writer.write_record(by.chain(fixed))?;
    for (key, sums, cents) in report.priced_rows() {
        let parts = [
            sums.allocated,
            sums.busy,
            sums.idle,
            sums.unknown,
            sums.suspended,
            sums.reclaimed,
        ];
        let parts = parts.map(|part| format!("{:.4}", hours(part)));
        let cells = key
            .iter()
            .cloned()
            .chain([sums.slices.to_string()])
            .chain(parts);
        let cost = cents.map(money::text).unwrap_or_default();
        let cells = cells.chain([sums.energy_j.to_string(), cost]);
        writer.write_record(cells)?;
    }
    let bytes = writer
        .into_inner()
        .map_err(|error| Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
