//! A plan as one page: nothing is loaded from elsewhere.

use std::fmt::Write;

use plotters::style::RGBColor;

use super::chart::{self, COLORS, INK};
use super::{Page, size, time};
use crate::search::Bands;
use crate::sums::Band;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--pale:#57606a;--line:#d0d7de;--back:#fff}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--pale:#9da7b1;--line:#3d444d;--back:#0d1117}}\
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--back);max-width:60rem;margin:0 auto;padding:1rem}\
h1{font-size:1.5rem;line-height:1.2}h2{font-size:1.1rem;margin-top:2rem}\
li{color:var(--pale)}svg{display:block;width:100%;max-width:44rem;height:auto}\
svg text{fill:var(--ink)}svg polyline,svg line{stroke-opacity:1}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th:first-child,td:first-child{text-align:left}pre{overflow-x:auto;border:1px solid var(--line);padding:.6rem}\
.key{display:flex;flex-wrap:wrap;gap:.3rem 1rem;padding:0;list-style:none}.key span{display:inline-block;width:.9em;height:.9em;margin-right:.4em}";

pub fn text(page: &Page<'_>) -> String {
    let mut html = String::new();
    let _ = write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <title>gpufrac plan</title><style>{STYLE}</style></head><body>\n<h1>{}</h1>\n",
        escaped(&page.answer())
    );
    bars(&mut html, page, "GPUs for the waits of today", |bands| {
        let needed = bands.needed;
        let band = Band {
            value: needed.gpus.into(),
            low: needed.low.into(),
            high: needed.high.into(),
        };
        (band, needed.gpus.to_string())
    });
    bars(
        &mut html,
        page,
        "Mean wait with the GPUs of today",
        |bands| (bands.wait_mean, time(bands.wait_mean.value)),
    );
    bars(&mut html, page, "GPU-hours that Slurm counts", |bands| {
        (bands.allocated, format!("{:.0}", bands.allocated.value))
    });
    course(&mut html, page);
    table(&mut html, page);
    sizes(&mut html, page);
    if page.plan.reaped > 0.0 {
        let _ = writeln!(
            html,
            "<p>The reaper would give back {:.1} GPU-hours of idle jobs.</p>",
            page.plan.reaped
        );
    }
    html.push_str("<h2>What this rests on</h2>\n<ul>\n");
    for line in page.grounds() {
        let _ = writeln!(html, "<li>{}</li>", escaped(&line));
    }
    html.push_str("</ul>\n");
    if !page.file.is_empty() {
        let _ = writeln!(
            html,
            "<h2>gpufrac.toml</h2>\n<pre>{}</pre>\n<h2>Lines of Slurm's files</h2>\n<pre>{}</pre>",
            escaped(&page.file),
            escaped(&page.lines.join("\n"))
        );
    }
    html.push_str("</body></html>\n");
    html
}

fn bars(
    html: &mut String,
    page: &Page<'_>,
    title: &str,
    figure: impl Fn(&Bands) -> (Band, String),
) {
    let rows: Vec<(String, Band, String)> = page
        .shown()
        .map(|(judged, bands)| {
            let (band, value) = figure(bands);
            (judged.candidate.to_string(), band, value)
        })
        .collect();
    let _ = writeln!(html, "<h2>{title}</h2>");
    picture(
        html,
        &format!("{title}; the table has the same figures"),
        &chart::bars(&rows),
    );
}

fn course(html: &mut String, page: &Page<'_>) {
    html.push_str("<h2>GPUs in use over time</h2>\n<ul class=\"key\">");
    let mut lines: Vec<&[f64]> = Vec::new();
    for (place, (judged, _)) in page.shown().enumerate() {
        let RGBColor(red, green, blue) = COLORS[place % COLORS.len()];
        let _ = write!(
            html,
            "<li><span style=\"background:rgb({red},{green},{blue})\"></span>{}</li>",
            judged.candidate
        );
        lines.push(&judged.course);
    }
    html.push_str("</ul>\n");
    let chart = chart::course(&lines, page.gpus.into(), page.span as f64 / 86_400.0);
    picture(
        html,
        "GPUs that Slurm counts as allocated, over the time of the history",
        &chart,
    );
}

fn table(html: &mut String, page: &Page<'_>) {
    html.push_str("<h2>Figures</h2>\n<div class=\"wide\"><table><thead><tr>");
    let slowed = page.slowed_head();
    let mut heads = vec![
        "",
        "GPUs",
        "mean wait",
        "wait of 1 in 20",
        "GPU-hours",
        "use, %",
        &slowed,
        "gain, %",
    ];
    if page.rate.is_some() {
        heads.push("saved");
    }
    for head in heads {
        let _ = write!(html, "<th>{head}</th>");
    }
    html.push_str("</tr></thead><tbody>\n");
    for cells in page.figures() {
        row(html, &cells);
    }
    html.push_str("</tbody></table></div>\n");
}

fn sizes(html: &mut String, page: &Page<'_>) {
    let Some(best) = page.plan.best.first() else {
        return;
    };
    let _ = writeln!(
        html,
        "<h2>Sizes with {}</h2>\n<div class=\"wide\"><table><thead><tr><th>size</th><th>jobs</th><th>wait in the middle</th><th>wait of 1 in 20</th></tr></thead><tbody>",
        best.candidate
    );
    for one in &best.sizes {
        let jobs = match one.jobs {
            0 => "nobody needs it".to_owned(),
            jobs => jobs.to_string(),
        };
        row(
            html,
            &[
                size(one.units),
                jobs,
                time(one.waits.0 as f64),
                time(one.waits.1 as f64),
            ],
        );
    }
    html.push_str("</tbody></table></div>\n");
}

fn row(html: &mut String, cells: &[String]) {
    html.push_str("<tr>");
    for cell in cells {
        let _ = write!(html, "<td>{}</td>", escaped(cell));
    }
    html.push_str("</tr>\n");
}

/// A chart whose text and lines have the page's colour.
fn picture(html: &mut String, label: &str, svg: &str) {
    let RGBColor(red, green, blue) = INK;
    let ink = format!("#{red:02X}{green:02X}{blue:02X}");
    let svg = svg.replace(&ink, "currentColor");
    let svg = svg.replacen(
        "<svg ",
        &format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(label)),
        1,
    );
    let _ = writeln!(html, "{svg}");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}
