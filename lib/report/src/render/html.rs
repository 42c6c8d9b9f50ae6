//! A report as one page: nothing is loaded from elsewhere, and it looks well on a phone, in print, and on a dark screen.

use std::fmt::Write;

use plotters::style::RGBColor;

use super::chart::{self, INK, PARTS};
use super::{Report, hours, percent};
use crate::money;
use crate::sums::Sums;

/// Bars of the first chart at most: the other rows are in the table.
const MOST_BARS: usize = 15;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--pale:#57606a;--line:#d0d7de;--back:#fff}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--pale:#9da7b1;--line:#3d444d;--back:#0d1117}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:60rem;margin:0 auto;padding:1rem}\
h1{font-size:1.5rem;line-height:1.2}h2{font-size:1.1rem;margin-top:2rem}\
p{color:var(--pale)}svg{display:block;width:100%;max-width:40rem;height:auto}\
svg text{fill:var(--ink)}svg polyline,svg line{stroke:var(--ink)}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th.name,td.name{text-align:left}tfoot td{font-weight:600}\
.key{display:flex;flex-wrap:wrap;gap:.3rem 1rem;padding:0;list-style:none}.key span{display:inline-block;width:.9em;height:.9em;margin-right:.4em;vertical-align:-.1em}\
@media print{:root{--ink:#000;--pale:#333;--line:#999;--back:#fff}body{max-width:none;padding:0}.wide{overflow:visible}h2,table,svg{break-inside:avoid}}";

/// The page.
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

fn table(page: &mut String, report: &Report, by: &[&str]) {
    page.push_str("<div class=\"wide\"><table><thead><tr>");
    for name in by {
        let _ = write!(page, "<th class=\"name\">{name}</th>");
    }
    for name in [
        "slices",
        "allocated",
        "busy",
        "idle",
        "unknown",
        "suspended",
        "reclaimed",
    ] {
        let _ = write!(page, "<th>{name}</th>");
    }
    if let Some(currency) = &report.currency {
        let _ = write!(
            page,
            "<th>{}</th>",
            escaped(match currency.as_str() {
                "" => "cost",
                currency => currency,
            })
        );
    }
    page.push_str("</tr></thead><tbody>\n");
    for (key, sums, cents) in report.priced_rows() {
        cells(page, key, sums, cents);
    }
    page.push_str("</tbody><tfoot>");
    let mut key = vec![String::new(); by.len()];
    if let Some(first) = key.first_mut() {
        "total".clone_into(first);
    }
    let cents = report
        .currency
        .as_ref()
        .map(|_| report.table.total.cost.cents());
    cells(page, &key, &report.table.total, cents);
    page.push_str("</tfoot></table></div>\n");
}

fn cells(page: &mut String, key: &[String], sums: &Sums, cents: Option<i128>) {
    page.push_str("<tr>");
    for name in key {
        let _ = write!(page, "<td class=\"name\">{}</td>", escaped(name));
    }
    let _ = write!(page, "<td>{}</td>", sums.slices);
    for part in [
        sums.allocated,
        sums.busy,
        sums.idle,
        sums.unknown,
        sums.suspended,
        sums.reclaimed,
    ] {
        let _ = write!(page, "<td>{:.2}</td>", hours(part));
    }
    if let Some(cents) = cents {
        let _ = write!(page, "<td>{}</td>", money::text(cents));
    }
    page.push_str("</tr>\n");
}

fn hints(page: &mut String, report: &Report) {
    let holders = report.hints.holders();
    if !holders.is_empty() {
        section(page, "Most idle GPU-hours");
        page.push_str("<div class=\"wide\"><table><thead><tr><th class=\"name\">user</th><th>idle</th><th>of the user's time</th></tr></thead><tbody>\n");
        for (user, sums) in holders {
            let part = percent(sums.idle, sums.allocated).unwrap_or(0.0);
            let _ = writeln!(
                page,
                "<tr><td class=\"name\">{}</td><td>{:.2}</td><td>{part:.0} %</td></tr>",
                escaped(user),
                hours(sums.idle)
            );
        }
        page.push_str("</tbody></table></div>\n");
    }
    let sizes = report.hints.sizes();
    if !sizes.is_empty() {
        section(page, "Memory of slices in use");
        page.push_str("<div class=\"wide\"><table><thead><tr><th class=\"name\">size</th><th>mean of the greatest part</th><th>more than half in use</th></tr></thead><tbody>\n");
        for (size, filling) in sizes {
            let _ = writeln!(
                page,
                "<tr><td class=\"name\">{}</td><td>{:.0} %</td><td>{} of {}</td></tr>",
                escaped(size),
                100.0 * filling.mean(),
                filling.over_half,
                filling.measured
            );
        }
        page.push_str("</tbody></table></div>\n");
    }
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
