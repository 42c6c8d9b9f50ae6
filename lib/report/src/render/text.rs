//! A report for a terminal.

use std::fmt::Write;

use super::{Own, Report, hours, own, percent};
use crate::audit::{Audited, Balance};
use crate::money;
use crate::sums::Sums;

#[must_use]
pub fn text(report: &Report) -> String {
    let mut text = format!("GPU-hours of slices, {}\n\n", report.period);
    match &report.own {
        Some(own) => own_jobs(&mut text, own),
        None => {
            sums(&mut text, report);
            hints(&mut text, report);
        }
    }
    if let Some(audited) = &report.audit {
        audit(&mut text, audited);
    }
    remarks(&mut text, report);
    text
}

/// Columns: the first ones to the left, the others to the right.
fn columns(text: &mut String, left: usize, rows: &[Vec<String>]) {
    let count = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| {
            if column < left {
                format!("{cell:<width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
}

fn sums(text: &mut String, report: &Report) {
    let by = report.table.by.iter().map(|by| by.name().to_owned());
    let fixed = [
        "slices",
        "allocated",
        "busy",
        "idle",
        "unknown",
        "suspended",
        "reclaimed",
    ];
    let mut head: Vec<String> = by.chain(fixed.map(str::to_owned)).collect();
    head.extend(
        report
            .currency
            .iter()
            .map(|currency| if currency.is_empty() { "cost".to_owned() } else { currency.clone() }),
    );
    let mut rows = vec![head];
    for (key, sums, cents) in report.priced_rows() {
        rows.push(row(key.to_vec(), sums, cents));
    }
    let mut total = vec![String::new(); report.table.by.len()];
    if let Some(first) = total.first_mut() {
        "total".clone_into(first);
    }
    let cents = report
        .currency
        .is_some()
        .then(|| report.table.total.cost.cents());
    rows.push(row(total, &report.table.total, cents));
    columns(text, report.table.by.len(), &rows);
}

fn row(mut cells: Vec<String>, sums: &Sums, cents: Option<i128>) -> Vec<String> {
    cells.push(sums.slices.to_string());
    for part in [
        sums.allocated,
        sums.busy,
        sums.idle,
        sums.unknown,
        sums.suspended,
        sums.reclaimed,
    ] {
        cells.push(format!("{:.2}", hours(part)));
    }
    cells.extend(cents.map(money::text));
    cells
}

fn hints(text: &mut String, report: &Report) {
    let holders = report.hints.holders();
    if !holders.is_empty() {
        text.push_str("\nMost idle GPU-hours\n");
        let rows: Vec<Vec<String>> = holders
            .into_iter()
            .map(|(user, sums)| {
                let part = percent(sums.idle, sums.allocated).unwrap_or(0.0);
                let hours = format!("{:.2}", hours(sums.idle));
                vec![
                    user.to_owned(),
                    hours,
                    format!("{part:.0} % of the user's time"),
                ]
            })
            .collect();
        columns(text, 1, &rows);
    }
    let sizes = report.hints.sizes();
    if !sizes.is_empty() {
        text.push_str("\nMemory of slices: mean of the greatest part in use, slices with more than half of it in use\n");
        let rows: Vec<Vec<String>> = sizes
            .into_iter()
            .map(|(size, filling)| {
                let mean = format!("{:.0} %", 100.0 * filling.mean());
                let over = format!("{} of {}", filling.over_half, filling.measured);
                let never = match filling.over_half {
                    0 => "never filled: the next smaller size has half of the memory or more"
                        .to_owned(),
                    _ => String::new(),
                };
                vec![size.to_owned(), mean, over, never]
            })
            .collect();
        columns(text, 1, &rows);
    }
    let ends = report.hints.ends();
    if !ends.is_empty() {
        let ends = ends.iter().map(|(why, count)| format!("{count} {why}"));
        let _ = writeln!(
            text,
            "\nEnds of slices: {}.",
            ends.collect::<Vec<_>>().join(", ")
        );
    }
    let total = &report.table.total;
    if total.reclaims > 0 {
        let _ = writeln!(
            text,
            "\nThe reaper ended {} idle slices: {:.2} GPU-hours of their time limits were left.",
            total.reclaims,
            hours(total.reclaimed)
        );
    }
}

fn own_jobs(text: &mut String, own: &[Own]) {
    if own.is_empty() {
        text.push_str("You held no slice in this period.\n");
        return;
    }
    let mut rows = vec![own::HEADS.map(str::to_owned).to_vec()];
    rows.extend(own.iter().map(own::cells));
    rows.push(own::total(own));
    columns(text, 2, &rows);
    text.push_str("\n`enough` is the smallest size with 1.1 times the greatest memory in use, and with the mean activity.\n");
}

fn audit(text: &mut String, audited: &Audited) {
    let balance = &audited.all;
    text.push_str("\nBalance of the books, in GPU-hours\n");
    let hour = |part: u64| format!("{:.4}", hours(part));
    let rows: Vec<Vec<String>> = [
        ("busy", balance.busy),
        ("idle", balance.idle),
        ("unknown", balance.unknown),
        ("suspended", balance.suspended),
        ("free", balance.free),
        ("unplaceable", balance.unplaceable),
        ("down", balance.down),
        ("capacity", balance.capacity),
    ]
    .into_iter()
    .map(|(name, part)| vec![name.to_owned(), hour(part)])
    .collect();
    columns(text, 1, &rows);
    let residual = balance.residual();
    let _ = writeln!(
        text,
        "residual: {} s of a GPU ({} records, {} GPUs)",
        residual as f64 / 100.0,
        balance.records,
        audited.each.len()
    );
    let wrong = |(_, balance): &&(_, Balance)| !balance.is_right();
    for ((node, uuid), balance) in audited.each.iter().filter(wrong) {
        let _ = writeln!(
            text,
            "  {node} {uuid}: residual {} s, two slices at one place for {} s",
            balance.residual() as f64 / 100.0,
            balance.beyond as f64 / 100.0
        );
    }
    if balance.beyond > 0 {
        let _ = writeln!(
            text,
            "two slices at one place for {:.4} GPU-hours: report it with the usage records of the node",
            hours(balance.beyond)
        );
    }
    if balance.rounded > 0 {
        let _ = writeln!(
            text,
            "{} s of a GPU are in two parts: where an epilog had died, its slice was still there as Slurm gave its units to the next job",
            balance.rounded as f64 / 100.0
        );
    }
    if balance.uncovered > 0 {
        let _ = writeln!(
            text,
            "{:.4} GPU-hours of slices are left out: gpufrac-reaperd did not run, so that nothing says that their GPUs were there",
            hours(balance.uncovered)
        );
    }
    if balance.records_of_version_1 > 0 {
        let _ = writeln!(
            text,
            "{} records of an earlier version are left out: they have no times of the boot's clock",
            balance.records_of_version_1
        );
    }
}

fn remarks(text: &mut String, report: &Report) {
    let skipped = &report.skipped;
    if let Some(first) = &skipped.first {
        let _ = writeln!(
            text,
            "\n{} lines are no records and were skipped; the first: {first}",
            skipped.damaged
        );
    }
    if let Some(missing) = report.without_records.filter(|&missing| missing > 0) {
        let _ = writeln!(
            text,
            "\n{missing} runs of jobs are known to sacct and to no usage record: their time is counted as unknown"
        );
    }
}
