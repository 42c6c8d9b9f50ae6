//! A plan for a terminal.

use std::fmt::Write;

use super::{Page, size, time};

pub fn text(page: &Page<'_>) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}\n", page.answer());
    table(&mut text, page);
    sizes(&mut text, page);
    if page.plan.reaped > 0.0 {
        let _ = writeln!(
            text,
            "\nThe reaper would give back {:.1} GPU-hours of idle jobs.",
            page.plan.reaped
        );
    }
    let _ = writeln!(text, "\nWhat this rests on:");
    for line in page.grounds() {
        let _ = writeln!(text, "  {line}");
    }
    if !page.file.is_empty() {
        let _ = writeln!(
            text,
            "\n# gpufrac.toml (`gpufrac check --file-only` reads it)\n{}",
            page.file
        );
    }
    for line in &page.lines {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn table(text: &mut String, page: &Page<'_>) {
    let mut columns: Vec<Vec<String>> = vec![
        [
            "",
            "GPUs for the waits of today",
            "mean wait",
            "wait of 1 in 20",
            "GPU-hours",
            "use of the GPUs, %",
            "jobs slowed, %",
            "gain, %",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    columns[0][6] = page.slowed_head();
    if page.rate.is_some() {
        columns[0].push("saved".to_owned());
    }
    columns.extend(page.figures());
    let rows = columns.iter().map(Vec::len).min().unwrap_or(0);
    let widths: Vec<usize> = columns
        .iter()
        .map(|column| {
            column
                .iter()
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    for row in 0..rows {
        let cells = columns
            .iter()
            .zip(&widths)
            .map(|(column, width)| format!("{:width$}", column[row]));
        let _ = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

fn sizes(text: &mut String, page: &Page<'_>) {
    let Some(best) = page.plan.best.first() else {
        return;
    };
    let _ = writeln!(
        text,
        "\nSizes with {}: jobs, wait in the middle, wait of 1 in 20",
        best.candidate
    );
    for one in &best.sizes {
        let note = if one.jobs == 0 { "  nobody needs it" } else { "" };
        let (middle, late) = (time(one.waits.0 as f64), time(one.waits.1 as f64));
        let _ = writeln!(
            text,
            "  {:>5}  {:>9}  {middle:>8}  {late:>8}{note}",
            size(one.units),
            one.jobs
        );
    }
}
