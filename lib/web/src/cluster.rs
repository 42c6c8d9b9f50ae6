//! The map of the cluster, and the list of jobs.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use gpufrac_view::{GpuStatus, NodeStatus, Sums, Use};

use gpufrac_page::html::{Cell, Html};
use gpufrac_page::table::cells;
use gpufrac_page::words;

use crate::{Day, JOBS, NODES, Site, SliceOnNode, file_name};

pub fn page(site: &Site) -> String {
    let mut page = site.html("GPUs of the cluster", 0);
    let sums = Sums::of(site.nodes.iter().map(|node| &**node));
    let nodes = if site.nodes.len() == 1 { "node" } else { "nodes" };
    page.paragraph(format!("{} {nodes}, {}.", site.nodes.len(), sums.text()));
    page.title("Nodes");
    key(&mut page);
    page.raw("<ul class=\"map\">\n");
    for node in &site.nodes {
        card(&mut page, site, node);
    }
    page.raw("</ul>\n");
    free(&mut page, site);
    waiting(&mut page, site);
    week(&mut page, site);
    page.end()
}

/// Explains the colours.
pub fn key(page: &mut Html) {
    let kinds = Use::ALL.map(|kind| (kind.colour(), kind.words()));
    let others = [("free", "free"), ("out", "cannot be used, or no news")];
    page.key(kinds.into_iter().chain(others));
}

fn card(page: &mut Html, site: &Site, node: &NodeStatus) {
    let sums = Sums::of([node]);
    page.raw("<li><a href=\"")
        .raw(NODES)
        .raw("/")
        .text(file_name(&node.node))
        .raw(".html\">");
    page.text(&node.node).raw("</a><br><span class=\"pale\">");
    page.text(format!(
        "{} of {} GPUs used, {} free",
        words::gpus(sums.used_units),
        sums.gpus,
        words::gpus(sums.free_units)
    ));
    if sums.idle > 0 {
        page.text(format!(", {} idle", sums.idle));
    }
    page.raw("</span>");
    problems(page, site, node);
    for gpu in &node.gpus {
        bar(page, gpu, site.is_stale(node));
    }
    page.raw("</li>\n");
}

/// A paragraph about a problem.
fn bad(page: &mut Html, text: impl Display) {
    page.raw("<p class=\"bad\">").text(text).raw("</p>");
}

/// What keeps a node or its GPUs from being used.
pub fn problems(page: &mut Html, site: &Site, node: &NodeStatus) {
    if site.is_stale(node) {
        let age = words::span(site.now.saturating_sub(node.written));
        bad(page, format!("No news for {age}"));
    }
    if let Some(state) = site.closed.get(&node.node) {
        bad(page, format!("Takes no jobs: {state}"));
    }
    let faults = Sums::of([node]).faults;
    if faults > 0 {
        let gpus = if faults == 1 { "GPU" } else { "GPUs" };
        bad(page, format!("{faults} {gpus} cannot be used"));
    }
    for place in &node.stuck {
        bad(page, place.text(site.now));
    }
}

/// A GPU as a bar. The page says the same in words.
pub fn bar(page: &mut Html, gpu: &GpuStatus, is_stale: bool) {
    if is_stale || gpu.fault.is_some() {
        page.raw("<span class=\"bar out\" aria-hidden=\"true\"></span>");
        return;
    }
    page.raw("<span class=\"bar\" aria-hidden=\"true\" style=\"background:linear-gradient(90deg");
    let mut at = 0.0;
    for (slice, span, whole) in gpu.spans() {
        let percent = |part: u32| 100.0 * f64::from(part) / f64::from(whole);
        let (from, to) = (percent(span.start), percent(span.end));
        let (from, to) = (from.max(at).min(100.0), to.min(100.0));
        // A line of the background separates slices.
        let end = (to - 0.6).max(from);
        stretch(page, "free", at, from);
        stretch(page, Use::of(slice).colour(), from, end);
        stretch(page, "paper", end, to);
        at = to.max(from);
    }
    page.raw(",var(--free) ")
        .text(format!("{at:.2}% 100%"))
        .raw(")\"></span>");
}

/// A colour of a gradient, between two percents.
fn stretch(page: &mut Html, colour: &'static str, from: f64, to: f64) {
    page.raw(",var(--").raw(colour).raw(") ");
    page.text(format!("{from:.2}% {to:.2}%"));
}

/// What is free, by partition and size.
fn free(page: &mut Html, site: &Site) {
    let mut room: BTreeMap<(&str, u32), (&str, u32)> = BTreeMap::new();
    let is_open =
        |node: &&Arc<NodeStatus>| !site.is_stale(node) && !site.closed.contains_key(&node.node);
    for node in site.nodes.iter().filter(is_open) {
        for gpu in node.gpus.iter().filter(|gpu| gpu.fault.is_none()) {
            for (partition, one) in gpu
                .partitions
                .iter()
                .flat_map(|name| gpu.room.iter().map(move |one| (name, one)))
            {
                let sum = room
                    .entry((partition, one.units))
                    .or_insert((&one.fraction, 0));
                sum.1 += one.jobs;
            }
        }
    }
    page.title("Free now, by size");
    let mut rows: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    // The largest size first.
    for ((partition, _), (fraction, jobs)) in room.iter().rev() {
        let sizes = rows.entry(partition).or_default();
        if *jobs > 0 {
            sizes.push(format!("{jobs} of {fraction}"));
        }
    }
    let rows = rows.into_iter().map(|(partition, sizes)| {
        let sizes = if sizes.is_empty() { "none".to_owned() } else { sizes.join(", ") };
        vec![partition.into(), sizes.into()]
    });
    let caption = "Jobs of each size that have room if no other job starts";
    page.table(caption, &cells("Partition|Jobs"), usize::MAX, rows, None);
}

fn waiting(page: &mut Html, site: &Site) {
    page.title("Waiting requests");
    let Some(waiting) = &site.waiting else {
        page.paragraph("Slurm gave no answer.");
        return;
    };
    if waiting.is_empty() {
        page.paragraph("No job waits for a part of a GPU.");
        return;
    }
    let rows = waiting.iter().map(|one| {
        let starts = one.starts.map_or("unknown".to_owned(), words::utc_minute);
        vec![
            one.partition.as_str().into(),
            one.size.as_str().into(),
            one.jobs.to_string().into(),
            one.reason.as_str().into(),
            starts.into(),
        ]
    });
    let heads = cells("Partition|Request|Jobs|Reason|First start, as Slurm expects");
    page.table(
        "Waiting requests by partition and size",
        &heads,
        usize::MAX,
        rows,
        None,
    );
}

fn week(page: &mut Html, site: &Site) {
    page.title("The last days");
    let Some(week) = site.week.as_deref().filter(|week| !week.is_empty()) else {
        page.paragraph("There are no usage records of these days.");
        return;
    };
    page.key(PARTS.into_iter().chain([("out", "down")]));
    for day in week {
        day_bar(page, day);
    }
    let rows = week.iter().map(|day| {
        let hours = parts(day).into_iter().chain([day.down]);
        let hours = hours.map(|hours| format!("{hours:.1}").into());
        [day.name.as_str().into()]
            .into_iter()
            .chain(hours)
            .collect()
    });
    let heads = cells("Day|Used|Idle|Not measured|Free|Down");
    page.table(
        "GPU-hours of each day, of slices that have ended; what is held now counts as free",
        &heads,
        usize::MAX,
        rows,
        None,
    );
}

/// Parts of a day: the colour and its meaning.
const PARTS: [(&str, &str); 4] = [
    ("busy", "used"),
    ("idle", "idle"),
    ("unknown", "not measured"),
    ("free", "free"),
];

fn parts(day: &Day) -> [f64; 4] {
    [day.busy, day.idle, day.unknown, day.free]
}

fn day_bar(page: &mut Html, day: &Day) {
    let whole = parts(day).iter().sum::<f64>() + day.down;
    page.raw("<div class=\"day\" aria-hidden=\"true\"><span>")
        .text(&day.name);
    page.raw("</span><span class=\"bar out\" style=\"background:linear-gradient(90deg");
    let mut at = 0.0;
    for (hours, (name, _)) in parts(day).into_iter().zip(PARTS) {
        let to = at + 100.0 * hours / whole.max(f64::MIN_POSITIVE);
        stretch(page, name, at, to);
        at = to;
    }
    page.raw(",transparent ").text(format!("{at:.2}%"));
    page.raw("),var(--out)\"></span></div>\n");
}

/// The list of jobs.
pub fn jobs_page(site: &Site, jobs: &BTreeMap<u32, Vec<SliceOnNode<'_>>>) -> String {
    let mut page = site.html("Jobs with slices", 0);
    let all = crate::slices(&site.nodes);
    let hidden = all.filter(|held| held.slice.owner.is_none()).count();
    if hidden > 0 {
        page.paragraph(format!("Slurm hides the jobs of {hidden} slices."));
    }
    let rows = jobs.iter().map(|(job, held)| {
        let owner = held.first().and_then(|held| held.slice.owner.as_ref());
        let units: u32 = held.iter().map(|held| held.slice.units).sum();
        let mut nodes: Vec<&str> = held.iter().map(|held| held.node.node.as_str()).collect();
        nodes.dedup();
        let worst = held.iter().map(|held| Use::of(held.slice)).max();
        let idle = held
            .iter()
            .filter_map(|held| held.slice.usage.as_ref())
            .map(|usage| usage.idle)
            .min();
        vec![
            Cell::Link(format!("{JOBS}/{job}.html"), job.to_string()),
            owner.map_or("", |owner| &owner.user).into(),
            owner
                .and_then(|owner| owner.account.as_deref())
                .unwrap_or("")
                .into(),
            owner.map_or("", |owner| &owner.partition).into(),
            nodes.join(" ").into(),
            words::gpus(units).into(),
            worst.map_or("", Use::words).into(),
            idle.map_or(String::new(), words::span).into(),
        ]
    });
    let heads = cells("Job|User|Account|Partition|Nodes|GPUs|Use|Idle for");
    page.table("Jobs", &heads, usize::MAX, rows, None);
    page.end()
}
