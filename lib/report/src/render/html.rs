//! A report as one page: nothing is loaded from elsewhere, and it looks well on a phone, in print, and on a dark
//! screen.

use std::fmt::Write;

use plotters::style::RGBColor;

use super::chart::{self, INK, PARTS};
use super::{Own, Report, hours, own, percent};
use crate::audit::{Audited, Balance};
use crate::money;
use crate::sums::Sums;

/// Bars of the first chart at most: the other rows are in the table.
const MOST_BARS: usize = 15;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--pale:#57606a;--line:#d0d7de;--back:#fff}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--pale:#9da7b1;--line:#3d444d;--back:#0d1117}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:72rem;margin:0 auto;padding:1rem}\
h1{font-size:1.5rem;line-height:1.2}h2{font-size:1.1rem;margin:2rem 0 .5rem}\
p{color:var(--pale)}svg{display:block;width:100%;max-width:44rem;height:auto;margin-bottom:1rem}\
svg text{fill:var(--ink)}svg polyline,svg line{stroke:var(--ink)}\
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .7rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th.name,td.name{text-align:left}tfoot td{font-weight:600}\
.key{display:flex;flex-wrap:wrap;gap:.3rem 1rem;padding:0;list-style:none}.key span{display:inline-block;width:.9em;height:.9em;margin-right:.4em;vertical-align:-.1em}\
@media screen and (max-width:44rem){table,tbody,tfoot{display:block}thead{display:none}\
tr{display:flex;flex-wrap:wrap;gap:0 .9rem;padding:.5rem 0;border-bottom:1px solid var(--line)}td{padding:0;border:0}td:empty{display:none}\
td.name{font-weight:600}td.name:first-child{flex-basis:100%}td:not(.name)::before{content:attr(data-label) ' ';color:var(--pale);font-weight:400}}\
@media print{:root{--ink:#000;--pale:#333;--line:#999;--back:#fff}body{max-width:none;padding:0;font-size:12px;-webkit-print-color-adjust:exact;print-color-adjust:exact}\
.wide{overflow:visible}h2{break-after:avoid}tr,svg{break-inside:avoid}tfoot{display:table-row-group}svg{max-width:34rem}}";

#[must_use]
pub fn text(report: &Report) -> String {
    let mut page = String::new();
    let title = format!("GPU-hours, {}", report.period);
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n",
        title = escaped(&title)
    );
    overview(&mut page, &report.table.total, report);
    if let Some(own) = &report.own {
        own_jobs(&mut page, own);
        page.push_str("</body></html>\n");
        return page;
    }
    legend(&mut page);
    let name = |key: &[String]| key.join(" ");
    let rows = report.priced_rows();
    let bars: Vec<(String, &Sums)> = rows
        .iter()
        .take(MOST_BARS)
        .map(|(key, sums, _)| (name(key), *sums))
        .collect();
    let by: Vec<&str> = report.table.by.iter().map(|by| by.name()).collect();
    section(&mut page, &format!("By {}", by.join(", ")));
    picture(
        &mut page,
        &format!(
            "Bars of GPU-hours by {}; the table has the same figures",
            by.join(", ")
        ),
        &chart::bars(&bars),
    );
    table(&mut page, report, &by);
    if report.days.len() > 1 {
        section(&mut page, "By day");
        picture(
            &mut page,
            "Bars of GPU-hours of each day",
            &chart::days(&report.days),
        );
    }
    hints(&mut page, report);
    if let Some(audited) = &report.audit {
        audit(&mut page, audited);
    }
    page.push_str("</body></html>\n");
    page
}

fn section(page: &mut String, title: &str) {
    let _ = writeln!(page, "<h2>{}</h2>", escaped(title));
}

fn overview(page: &mut String, total: &Sums, report: &Report) {
    let part =
        |part| percent(part, total.allocated).map_or("-".to_owned(), |part| format!("{part:.0} %"));
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
        let _ = write!(
            text,
            " The reaper ended {} idle slices; {:.1} GPU-hours of their time limits were left.",
            total.reclaims,
            hours(total.reclaimed)
        );
    }
    if let Some(currency) = &report.currency {
        let _ = write!(
            text,
            " Cost: {} {currency}.",
            money::text(total.cost.cents())
        );
    }
    let _ = writeln!(page, "<p>{}</p>", escaped(&text));
}

fn legend(page: &mut String) {
    page.push_str("<ul class=\"key\">");
    for (name, RGBColor(red, green, blue)) in PARTS {
        let _ = write!(
            page,
            "<li><span style=\"background:rgb({red},{green},{blue})\"></span>{name}</li>"
        );
    }
    page.push_str("</ul>\n");
}

/// A chart whose text has the page's colour.
fn picture(page: &mut String, label: &str, svg: &str) {
    let RGBColor(red, green, blue) = INK;
    let ink = format!("#{red:02X}{green:02X}{blue:02X}");
    let svg = svg.replace(&ink, "currentColor");
    let svg = svg.replacen(
        "<svg ",
        &format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(label)),
        1,
    );
    let _ = writeln!(page, "{svg}");
}

/// A table; on a narrow screen each row becomes a paragraph with the heads as labels.
struct Grid<'a> {
    heads: Vec<&'a str>,
    /// Columns from the left that name the row.
    names: usize,
    rows: Vec<Vec<String>>,
    foot: Option<Vec<String>>,
}

impl Grid<'_> {
    fn write(&self, page: &mut String) {
        page.push_str("<div class=\"wide\"><table><thead><tr>");
        for (column, head) in self.heads.iter().enumerate() {
            let _ = write!(page, "<th{}>{}</th>", self.class(column), escaped(head));
        }
        page.push_str("</tr></thead><tbody>\n");
        for row in &self.rows {
            self.row(page, row);
        }
        page.push_str("</tbody>");
        if let Some(foot) = &self.foot {
            page.push_str("<tfoot>");
            self.row(page, foot);
            page.push_str("</tfoot>");
        }
        page.push_str("</table></div>\n");
    }

    fn row(&self, page: &mut String, cells: &[String]) {
        page.push_str("<tr>");
        for (column, cell) in cells.iter().enumerate() {
            let label = escaped(self.heads.get(column).unwrap_or(&""));
            let class = self.class(column);
            let _ = write!(
                page,
                "<td{class} data-label=\"{label}\">{}</td>",
                escaped(cell)
            );
        }
        page.push_str("</tr>\n");
    }

    fn class(&self, column: usize) -> &'static str {
        if column < self.names { " class=\"name\"" } else { "" }
    }
}

fn table(page: &mut String, report: &Report, by: &[&str]) {
    let fixed = [
        "slices",
        "allocated",
        "busy",
        "idle",
        "unknown",
        "suspended",
        "reclaimed",
    ];
    let currency = report.currency.as_deref().map(|currency| match currency {
        "" => "cost",
        currency => currency,
    });
    let rows = report.priced_rows();
    let rows = rows
        .iter()
        .map(|(key, sums, cents)| cells(key.to_vec(), sums, *cents));
    let mut total = vec![String::new(); by.len()];
    if let Some(first) = total.first_mut() {
        "total".clone_into(first);
    }
    let cents = currency.map(|_| report.table.total.cost.cents());
    let grid = Grid {
        heads: by.iter().copied().chain(fixed).chain(currency).collect(),
        names: by.len(),
        rows: rows.collect(),
        foot: Some(cells(total, &report.table.total, cents)),
    };
    grid.write(page);
}

fn cells(mut row: Vec<String>, sums: &Sums, cents: Option<i128>) -> Vec<String> {
    row.push(sums.slices.to_string());
    let parts = [
        sums.allocated,
        sums.busy,
        sums.idle,
        sums.unknown,
        sums.suspended,
        sums.reclaimed,
    ];
    row.extend(parts.map(|part| format!("{:.2}", hours(part))));
    row.extend(cents.map(money::text));
    row
}

fn hints(page: &mut String, report: &Report) {
    let holders = report.hints.holders();
    if !holders.is_empty() {
        section(page, "Most idle GPU-hours");
        let rows = holders.into_iter().map(|(user, sums)| {
            let part = percent(sums.idle, sums.allocated).unwrap_or(0.0);
            let idle = format!("{:.2}", hours(sums.idle));
            vec![user.to_owned(), idle, format!("{part:.0} %")]
        });
        let grid = Grid {
            heads: vec!["user", "idle", "of the user's time"],
            names: 1,
            rows: rows.collect(),
            foot: None,
        };
        grid.write(page);
    }
    let sizes = report.hints.sizes();
    if !sizes.is_empty() {
        section(page, "Memory of slices in use");
        let rows = sizes.into_iter().map(|(size, filling)| {
            let over = match filling.over_half {
                0 => format!("never ({} slices)", filling.measured),
                over => format!("{over} of {}", filling.measured),
            };
            vec![
                size.to_owned(),
                format!("{:.0} %", 100.0 * filling.mean()),
                over,
            ]
        });
        let grid = Grid {
            heads: vec!["size", "mean of the greatest part", "more than half in use"],
            names: 1,
            rows: rows.collect(),
            foot: None,
        };
        grid.write(page);
    }
}

/// A user's own jobs.
fn own_jobs(page: &mut String, own: &[Own]) {
    section(page, "Your jobs");
    if own.is_empty() {
        page.push_str("<p>You held no slice in this period.</p>\n");
        return;
    }
    page.push_str("<p>`enough` is the smallest size with 1.1 times the greatest memory in use, and with the mean activity.</p>\n");
    let grid = Grid {
        heads: own::HEADS.to_vec(),
        names: 1,
        rows: own.iter().map(own::cells).collect(),
        foot: Some(own::total(own)),
    };
    grid.write(page);
}

fn audit(page: &mut String, audited: &Audited) {
    section(page, "Balance of the books");
    let row = |name: [String; 2], balance: &Balance| {
        let parts = [
            balance.busy,
            balance.idle,
            balance.unknown,
            balance.suspended,
            balance.free,
            balance.unplaceable,
            balance.down,
            balance.capacity,
        ];
        let hours = parts.map(|part| format!("{:.2}", hours(part)));
        let residual = format!("{}", balance.residual() as f64 / 100.0);
        name.into_iter().chain(hours).chain([residual]).collect()
    };
    let each = audited.each.iter();
    let rows = each.map(|((node, uuid), balance)| row([node.clone(), uuid.clone()], balance));
    let grid = Grid {
        heads: vec![
            "node",
            "GPU",
            "busy",
            "idle",
            "unknown",
            "suspended",
            "free",
            "unplaceable",
            "down",
            "capacity",
            "residual in s",
        ],
        names: 2,
        rows: rows.collect(),
        foot: Some(row(["total".to_owned(), String::new()], &audited.all)),
    };
    grid.write(page);
}

/// A text that a user or an admin chose, safe in a page.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
