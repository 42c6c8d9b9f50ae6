//! A report as a document: text for a terminal, or a page.

use gpufrac_page::chart::{Bar, Chart, Part};
use gpufrac_page::page::{Page, Table};
use gpufrac_page::table::cells;
use gpufrac_page::words;

use super::{Own, Report, hours, own, share};
use crate::audit::{Audited, Balance};
use crate::money;
use crate::sums::Sums;

/// Bars of the first chart at most: the other rows are in the table.
const MOST_BARS: usize = 15;

/// Parts of a bar, from its beginning: colour and meaning.
const PARTS: [(&str, &str); 4] = [
    ("busy", "busy"),
    ("idle", "idle"),
    ("unknown", "unknown"),
    ("changing", "suspended"),
];

fn key() -> Vec<Part> {
    PARTS
        .map(|(colour, words)| (colour, words.to_owned()))
        .to_vec()
}

pub fn page(report: &Report) -> Page {
    let mut page = Page::new(format!("GPU-hours of slices, {}", report.period));
    match &report.own {
        Some(own) => own_jobs(&mut page, own),
        None => {
            page.paragraph(overview(report));
            sums(&mut page, report);
            hints(&mut page, report);
        }
    }
    if let Some(audited) = &report.audit {
        audit(&mut page, audited);
    }
    for remark in report.remarks() {
        page.paragraph(remark);
    }
    page
}

fn overview(report: &Report) -> String {
    let total = &report.table.total;
    let part = |part| share(part, total.allocated).map_or("-".to_owned(), words::percent);
    let mut text = format!(
        "{} slices held {:.1} GPU-hours: {} busy, {} idle, {} unknown, {} suspended.",
        total.slices,
        hours(total.allocated),
        part(total.busy),
        part(total.idle),
        part(total.unknown),
        part(total.suspended)
    );
    if total.reclaims > 0 {
        text += &format!(
            " The reaper ended {} idle slices: {:.2} GPU-hours of their time limits were left.",
            total.reclaims,
            hours(total.reclaimed)
        );
    }
    if let Some(currency) = &report.currency {
        text += &format!(" Cost: {} {currency}.", money::text(total.cost.cents()));
    }
    text
}

fn bar(name: String, sums: &Sums) -> Bar {
    let parts = [sums.busy, sums.idle, sums.unknown, sums.suspended];
    let parts = parts.into_iter().zip(PARTS);
    Bar {
        name,
        parts: parts
            .map(|(part, (colour, _))| (hours(part), colour))
            .collect(),
        band: None,
        value: format!("{:.1}", hours(sums.allocated)),
    }
}

fn sums(page: &mut Page, report: &Report) {
    let by: Vec<&str> = report.table.by.iter().map(|by| by.name()).collect();
    let rows = report.priced_rows();
    let all = &report.table.total;
    let longest = rows.iter().take(MOST_BARS);
    let bars = longest.map(|(key, sums, _)| bar(key.join(" "), sums));
    let title = format!("GPU-hours by {}", by.join(", "));
    page.chart(&title, key(), Chart::Bars(bars.collect()));
    let mut heads = cells(&format!("{}|slices", by.join("|")));
    heads.extend(all.parts().map(|(name, _)| name.to_owned()));
    heads.extend(report.currency.iter().map(|currency| {
        if currency.is_empty() { "cost".to_owned() } else { currency.clone() }
    }));
    let mut total = vec![String::new(); by.len()];
    if let Some(first) = total.first_mut() {
        "total".clone_into(first);
    }
    let cents = report.currency.as_ref().map(|_| all.cost.cents());
    page.table(Table {
        heads,
        foot: Some(row(total, all, cents)),
        ..Table::new(
            title,
            "",
            by.len(),
            rows.iter()
                .map(|(key, sums, cents)| row(key.to_vec(), sums, *cents)),
        )
    });
    if report.days.len() > 1 {
        let bars = report.days.iter().map(|(day, sums)| bar(day.clone(), sums));
        page.chart("GPU-hours of each day", key(), Chart::Days(bars.collect()));
    }
}

fn row(mut cells: Vec<String>, sums: &Sums, cents: Option<i128>) -> Vec<String> {
    cells.push(sums.slices.to_string());
    cells.extend(sums.parts().map(|(_, part)| format!("{:.2}", hours(part))));
    cells.extend(cents.map(money::text));
    cells
}

fn hints(page: &mut Page, report: &Report) {
    let holders = report.hints.holders();
    if !holders.is_empty() {
        let rows = holders.into_iter().map(|(user, sums)| {
            let part = share(sums.idle, sums.allocated).unwrap_or(0.0);
            let idle = format!("{:.2}", hours(sums.idle));
            vec![user.to_owned(), idle, words::percent(part)]
        });
        let heads = "user|idle|of the user's time";
        page.table(Table::new("Most idle GPU-hours", heads, 1, rows));
    }
    let sizes = report.hints.sizes();
    if !sizes.is_empty() {
        let rows = sizes.into_iter().map(|(size, filling)| {
            let over = match filling.over_half {
                0 => format!("never ({} slices)", filling.measured),
                over => format!("{over} of {}", filling.measured),
            };
            vec![size.to_owned(), words::percent(filling.mean()), over]
        });
        let caption = "Memory of slices: where never more than half is in use, the next smaller size has half of the memory or more";
        let heads = "size|mean of the greatest part in use|more than half in use";
        page.table(Table::new(caption, heads, 1, rows));
    }
    let ends = report.hints.ends();
    if !ends.is_empty() {
        let ends = ends.iter().map(|(why, count)| format!("{count} {why}"));
        page.paragraph(format!(
            "Ends of slices: {}.",
            ends.collect::<Vec<_>>().join(", ")
        ));
    }
}

fn own_jobs(page: &mut Page, own: &[Own]) {
    if own.is_empty() {
        page.paragraph("You held no slice in this period.");
        return;
    }
    let rows = own.iter().map(own::cells);
    page.table(Table {
        foot: Some(own::total(own)),
        ..Table::new("Your jobs", own::HEADS, 2, rows)
    });
    page.paragraph("`enough` is the smallest size with 1.1 times the greatest memory in use, and with the mean activity.");
    let mut list = |caption: &str, heads: &str, rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            page.table(Table::new(caption, heads, 2, rows));
        }
    };
    let full = own.iter().filter_map(own::full);
    list(
        "Jobs that failed with a full slice",
        own::HEADS_OF_FULL,
        full.collect(),
    );
    let half = own.iter().filter_map(own::half);
    list(
        "Jobs of the last week that used less than half of their memory",
        own::HEADS_OF_HALF,
        half.collect(),
    );
}

/// The names of the parts of a balance.
fn names(balance: &Balance) -> impl Iterator<Item = String> {
    let names = balance.parts().into_iter().map(|(name, _)| name);
    names.chain(["capacity"]).map(str::to_owned)
}

/// The parts of a balance in GPU-hours.
fn parts(balance: &Balance) -> impl Iterator<Item = String> {
    let parts = balance.parts().into_iter().map(|(_, part)| part);
    let parts = parts.chain([balance.capacity]);
    parts.map(|part| format!("{:.4}", hours(part)))
}

/// Seconds of a whole GPU.
fn seconds(balance: u64) -> f64 {
    balance as f64 / 100.0
}

fn audit(page: &mut Page, audited: &Audited) {
    let all = &audited.all;
    let residual = |balance: &Balance| balance.residual() as f64 / 100.0;
    let rows = names(all).zip(parts(all));
    let rows = rows.map(|(name, part)| vec![name, part]);
    let caption = "Balance of the books, in GPU-hours";
    page.table(Table::new(caption, "part|GPU-hours", 1, rows));
    let rows = audited.each.iter().map(|((node, uuid), balance)| {
        let names = [node.clone(), uuid.clone()].into_iter();
        names
            .chain(parts(balance))
            .chain([residual(balance).to_string()])
            .collect()
    });
    let names = names(all).collect::<Vec<_>>().join("|");
    let heads = format!("node|GPU|{names}|residual in s");
    page.detail(Table::new("Each GPU, in GPU-hours", &heads, 2, rows));
    let mut lines = vec![format!(
        "residual: {} s of a GPU ({} records, {} GPUs)",
        residual(all),
        all.records,
        audited.each.len()
    )];
    for ((node, uuid), balance) in audited
        .each
        .iter()
        .filter(|(_, balance)| !balance.is_right())
    {
        lines.push(format!(
            "{node} {uuid}: residual {} s, two slices at one place for {} s",
            residual(balance),
            seconds(balance.beyond)
        ));
    }
    let mut note = |value: u64, text: String| {
        if value > 0 {
            lines.push(text);
        }
    };
    note(
        all.beyond,
        format!(
            "two slices at one place for {:.4} GPU-hours: report it with the usage records of the node",
            hours(all.beyond)
        ),
    );
    note(
        all.rounded,
        format!(
            "{} s of a GPU are in two parts: where an epilog had died, its slice was still there as Slurm gave its units to the next job",
            seconds(all.rounded)
        ),
    );
    note(
        all.uncovered,
        format!(
            "{:.4} GPU-hours of slices are left out: gpufrac-reaperd did not run, so that nothing says that their GPUs were there",
            hours(all.uncovered)
        ),
    );
    note(
        all.pending,
        format!(
            "{:.4} GPU-hours until now are left out: gpufrac-reaperd records the time of a GPU once an hour",
            hours(all.pending)
        ),
    );
    note(
        all.records_of_version_1,
        format!(
            "{} records of an earlier version are left out: they have no times of the boot's clock",
            all.records_of_version_1
        ),
    );
    page.list(lines);
}
