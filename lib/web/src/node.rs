//! The page of a node.

use gpufrac_view::{GpuStatus, NodeStatus, Slice, Sums, Use};

use gpufrac_page::html::{Cell, Html};
use gpufrac_page::table::cells;
use gpufrac_page::words;

use crate::{JOBS, Site, cluster};

pub fn page(site: &Site, node: &NodeStatus) -> String {
    let mut page = site.html(&format!("Node {}", node.node), 1);
    page.paragraph(format!("{}.", Sums::of([node]).text()));
    let age = words::span(site.now.saturating_sub(node.written));
    page.paragraph(format!(
        "gpufrac-reaperd of the node wrote this {age} before."
    ));
    cluster::problems(&mut page, site, node);
    cluster::key(&mut page);
    for gpu in &node.gpus {
        show(&mut page, site, node, gpu);
    }
    page.end()
}

fn show(page: &mut Html, site: &Site, node: &NodeStatus, gpu: &GpuStatus) {
    page.title(&format!("GPU {}: {}", gpu.index, gpu.model));
    let mode = match gpu.mig {
        None => "",
        Some(true) => ", MIG mode on",
        Some(false) => ", MIG mode off",
    };
    page.paragraph(format!(
        "Pool {} ({}{mode}), partitions {}.",
        gpu.pool,
        gpu.mechanism,
        gpu.partitions.join(", ")
    ));
    cluster::bar(page, gpu, site.is_stale(node));
    if let Some(fault) = &gpu.fault {
        page.raw("<p class=\"bad\">").text(fault).raw("</p>\n");
    }
    let room = gpu.room.iter().filter(|room| room.jobs > 0);
    let room: Vec<String> = room
        .map(|room| format!("{} of {}", room.jobs, room.fraction))
        .collect();
    page.paragraph(if room.is_empty() {
        "No size has room.".to_owned()
    } else {
        format!("Room for jobs: {}.", room.join(", or "))
    });
    if !gpu.unleased.is_empty() {
        page.paragraph(format!(
            "MIG instances without a job: {}.",
            gpu.unleased.len()
        ));
    }
    if gpu.slices.is_empty() {
        return;
    }
    let rows = gpu.slices.iter().map(|slice| row(site, slice));
    let caption = format!("Slices of GPU {}", gpu.index);
    page.table(&caption, &cells(HEADS), usize::MAX, rows, None);
}

const HEADS: &str = "Job|User|Size|Kind|Memory slices|Busy|Memory, GiB|Idle for|Policy";

fn row(site: &Site, slice: &Slice) -> Vec<Cell> {
    let owner = slice.owner.as_ref();
    let job = owner.map(|owner| owner.job.to_string());
    let place = match slice.place {
        Some(place) if place.size > 1 => {
            format!(
                "{} to {}",
                place.start,
                u32::from(place.start) + u32::from(place.size) - 1
            )
        }
        Some(place) => place.start.to_string(),
        None => String::new(),
    };
    let usage = slice.usage.as_ref();
    let activity = usage.and_then(|usage| usage.activity);
    let used = usage.and_then(|usage| usage.memory_mib);
    let limit = words::gib(slice.memory_limit_mib);
    vec![
        job.map_or("hidden".into(), |job| {
            Cell::Link(format!("../{JOBS}/{job}.html"), job)
        }),
        owner.map_or("hidden", |owner| &owner.user).into(),
        slice.fraction.as_str().into(),
        slice.kind.as_str().into(),
        place.into(),
        activity.map_or("unknown".to_owned(), words::percent).into(),
        used.map_or(format!("unknown of {limit}"), |mib| {
            format!("{} of {limit}", words::gib(mib))
        })
        .into(),
        usage
            .map_or("unknown".to_owned(), |usage| words::span(usage.idle))
            .into(),
        policy(site, slice).into(),
    ]
}

/// What the policy of the site does with a slice.
pub fn policy(site: &Site, slice: &Slice) -> String {
    if Use::of(slice) == Use::Changing {
        return slice.state.clone();
    }
    let Some(usage) = &slice.usage else {
        return String::new();
    };
    let warnings = match usage.warnings {
        0 => String::new(),
        1 => "1 warning; ".to_owned(),
        many => format!("{many} warnings; "),
    };
    let end = match (usage.ends, usage.window) {
        (Some(ends), _) => format!(
            "ends in {} if it stays idle",
            words::span(ends.saturating_sub(site.now))
        ),
        (None, Some(window)) => format!("ends after {} of idleness", words::span(window)),
        (None, None) => "never ends as idle".to_owned(),
    };
    warnings + &end
}
