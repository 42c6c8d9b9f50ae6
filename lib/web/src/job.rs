//! The page of a job.

use crate::chart;
use gpufrac_page::html::Cell;
use gpufrac_page::table::cells;
use gpufrac_page::words;
use gpufrac_view::Use;

use crate::{History, NODES, Site, SliceOnNode, file_name, node};

pub fn page(site: &Site, job: u32, held: &[SliceOnNode<'_>], history: &History) -> String {
    let mut page = site.html(&format!("Job {job}"), 1);
    if let Some(owner) = held.first().and_then(|held| held.slice.owner.as_ref()) {
        let account = owner
            .account
            .as_deref()
            .map(|account| format!(", account {account}"));
        page.paragraph(format!(
            "User {}{}, partition {}.",
            owner.user,
            account.unwrap_or_default(),
            owner.partition
        ));
    }
    if held.iter().any(|held| site.is_stale(held.node)) {
        page.raw("<p class=\"bad\">A node of the job has sent no news, so that these values are old.</p>\n");
    }
    page.title("Use over time");
    let limit = held.iter().map(|held| held.slice.memory_limit_mib).sum();
    chart::draw(&mut page, history, limit);
    page.title("Slices");
    let rows = held.iter().map(|held| {
        let usage = held.slice.usage.as_ref();
        let activity = usage.and_then(|usage| usage.activity);
        let memory = usage.and_then(|usage| usage.memory_mib);
        let node_file = format!("../{NODES}/{}.html", file_name(&held.node.node));
        vec![
            Cell::Link(node_file, held.node.node.clone()),
            held.gpu.index.to_string().into(),
            held.slice.fraction.as_str().into(),
            held.slice.kind.as_str().into(),
            words::utc_minute(held.slice.since).into(),
            Use::of(held.slice).words().into(),
            activity.map_or("unknown".to_owned(), words::percent).into(),
            memory.map_or("unknown".to_owned(), words::gib).into(),
            words::gib(held.slice.memory_limit_mib).into(),
            usage
                .map_or("unknown".to_owned(), |usage| words::span(usage.idle))
                .into(),
            node::policy(site, held.slice).into(),
        ]
    });
    let heads = cells("Node|GPU|Size|Kind|Since|Use|Busy|Memory, GiB|Limit, GiB|Idle for|Policy");
    page.table("Slices of the job", &heads, usize::MAX, rows, None);
    page.raw("<p>Why a job was warned or ended: <code>gpufrac why ")
        .text(job)
        .raw("</code></p>\n");
    page.end()
}
