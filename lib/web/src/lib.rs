//! Static pages and JSON of a cluster: the map, each node, each job, waiting requests, a week of use.
//!
//! A page loads nothing: no script, no font, no picture, no style of another file. Texts of users and admins are
//! escaped by `gpufrac_page::html::Html`, the only writer of pages.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use gpufrac_page::html::Html;
use gpufrac_page::words;
use gpufrac_view::{GpuStatus, NodeStatus, Slice, Sums};
use serde::{Deserialize, Serialize};

mod chart;
mod cluster;
mod job;
mod node;

/// The version of `cluster.json` and of the files of jobs.
pub const VERSION: u32 = 1;
/// The folder of the pages of nodes.
pub const NODES: &str = "node";
/// The folder of the pages of jobs.
pub const JOBS: &str = "job";
/// The most points of a job's history; when it is full, neighbours are merged.
const MOST_POINTS: usize = 240;

/// All that is shown.
pub struct Site {
    /// When the pages are written: seconds since 1970.
    pub now: u64,
    /// `gpufrac --version`.
    pub build: String,
    /// The nodes, by name.
    pub nodes: Vec<Arc<NodeStatus>>,
    /// The state of each node on which Slurm starts no job: `drained`.
    pub closed: BTreeMap<String, String>,
    /// The use of each job's slices over time; jobs without one have a page without a chart.
    pub histories: BTreeMap<u32, History>,
    /// Waiting requests; None where Slurm gave no answer.
    pub waiting: Option<Vec<Waiting>>,
    /// The last days, oldest first; None where there are no usage records.
    pub week: Option<Vec<Day>>,
}

/// Waiting requests of one size in one partition, for one reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Waiting {
    pub partition: String,
    /// The request as Slurm shows it.
    pub size: String,
    /// Slurm's reason: `Resources`, `Priority`.
    pub reason: String,
    pub jobs: u32,
    /// When the first of them will start, as Slurm expects: seconds since 1970.
    pub starts: Option<u64>,
}

/// GPU-hours of a day.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Day {
    /// The name: `11-23`.
    pub name: String,
    /// Held and used.
    pub busy: f64,
    /// Held and not used.
    pub idle: f64,
    /// Held, and not measured or suspended.
    pub unknown: f64,
    /// Not held.
    pub free: f64,
    /// Not there.
    pub down: f64,
}

/// The use of a job's slices over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Oldest first.
    pub points: Vec<Point>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Seconds since 1970.
    pub at: u64,
    /// Greatest activity of a slice, 0 to 1.
    pub activity: Option<f64>,
    /// Memory of all slices, in MiB.
    pub memory_mib: Option<u64>,
}

impl History {
    /// Adds a sample, unless one of this time is there.
    pub fn add(&mut self, point: Point) {
        if self.points.last().is_some_and(|last| last.at >= point.at) {
            return;
        }
        self.points.push(point);
        if self.points.len() > MOST_POINTS {
            self.points = self.points.chunks(2).map(merged).collect();
        }
    }
}

/// Neighbours as one point: the later time, the greatest values.
fn merged(points: &[Point]) -> Point {
    let greatest = |values: Vec<Option<f64>>| values.into_iter().flatten().reduce(f64::max);
    Point {
        at: points.iter().map(|point| point.at).max().unwrap_or(0),
        activity: greatest(points.iter().map(|point| point.activity).collect()),
        memory_mib: points.iter().filter_map(|point| point.memory_mib).max(),
    }
}

/// A file of the site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// The folder; empty for the site's own.
    pub folder: &'static str,
    /// The name in the folder.
    pub name: String,
    pub text: String,
}

/// The file with the history of a job, from which the next export goes on.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobFile {
    pub version: u32,
    /// Slurm's id of the job.
    pub job: u32,
    /// The use over time.
    pub history: History,
}

/// A slice with its place in the cluster.
#[derive(Clone, Copy)]
struct SliceOnNode<'a> {
    node: &'a NodeStatus,
    gpu: &'a GpuStatus,
    slice: &'a Slice,
}

/// The slices of each job whose owner is not hidden.
fn jobs(nodes: &[Arc<NodeStatus>]) -> BTreeMap<u32, Vec<SliceOnNode<'_>>> {
    let mut jobs: BTreeMap<u32, Vec<SliceOnNode<'_>>> = BTreeMap::new();
    for held in slices(nodes) {
        if let Some(owner) = &held.slice.owner {
            jobs.entry(owner.job.0).or_default().push(held);
        }
    }
    jobs
}

fn slices(nodes: &[Arc<NodeStatus>]) -> impl Iterator<Item = SliceOnNode<'_>> {
    let gpus = nodes
        .iter()
        .flat_map(|node| node.gpus.iter().map(move |gpu| (node, gpu)));
    gpus.flat_map(|(node, gpu)| {
        gpu.slices
            .iter()
            .map(move |slice| SliceOnNode { node, gpu, slice })
    })
}

/// A job now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// When the job got the first of its slices: seconds since 1970.
    pub began: u64,
    /// The newest values.
    pub point: Point,
}

/// The newest sample of each job.
pub fn samples(nodes: &[Arc<NodeStatus>]) -> BTreeMap<u32, Sample> {
    let sample = |held: Vec<SliceOnNode<'_>>| {
        let usages = || held.iter().filter_map(|held| held.slice.usage.as_ref());
        let memory: Vec<u64> = usages().filter_map(|usage| usage.memory_mib).collect();
        let written = held.iter().map(|held| held.node.written).max();
        let began = held.iter().map(|held| held.slice.since).min();
        Sample {
            began: began.unwrap_or(0),
            point: Point {
                at: written.unwrap_or(0),
                activity: usages().filter_map(|usage| usage.activity).reduce(f64::max),
                memory_mib: (!memory.is_empty()).then(|| memory.iter().sum()),
            },
        }
    };
    let jobs = jobs(nodes).into_iter();
    jobs.map(|(job, held)| (job, sample(held))).collect()
}

/// The name of a file for a name of a node. Slurm's names have none of the other characters.
pub fn file_name(node: &str) -> String {
    let safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let name: String = node
        .chars()
        .map(|c| if safe(c) { c } else { '_' })
        .collect();
    // A name that begins with a dot is hidden, or another folder.
    match name.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => name,
    }
}

/// The files of the site; the map is last, so that its links lead to pages that are there.
pub fn files(site: &Site) -> Vec<File> {
    let page = |folder, name: &str, text| File {
        folder,
        name: format!("{name}.html"),
        text,
    };
    let data = |folder, name: &str, text: serde_json::Result<String>| File {
        folder,
        name: format!("{name}.json"),
        // These types have a form in JSON.
        text: text.unwrap_or_default() + "\n",
    };
    let mut files = Vec::new();
    let jobs = jobs(&site.nodes);
    for (&job, held) in &jobs {
        let name = job.to_string();
        let history = site.histories.get(&job).cloned().unwrap_or_default();
        files.push(page(JOBS, &name, job::page(site, job, held, &history)));
        let file = JobFile {
            version: VERSION,
            job,
            history,
        };
        files.push(data(JOBS, &name, serde_json::to_string(&file)));
    }
    for node in &site.nodes {
        let name = file_name(&node.node);
        files.push(page(NODES, &name, node::page(site, node)));
        files.push(data(NODES, &name, serde_json::to_string(&**node)));
    }
    files.push(page("", "jobs", cluster::jobs_page(site, &jobs)));
    files.push(data(
        "",
        "cluster",
        serde_json::to_string(&Cluster::of(site)),
    ));
    files.push(page("", "index", cluster::page(site)));
    files
}

/// `cluster.json`.
#[derive(Serialize)]
struct Cluster<'a> {
    version: u32,
    written: u64,
    build: &'a str,
    nodes: Vec<NodeSums>,
    waiting: Option<&'a [Waiting]>,
    week: Option<&'a [Day]>,
}

/// A node in `cluster.json`; its own file has its GPUs.
#[derive(Serialize)]
struct NodeSums {
    node: String,
    written: u64,
    stale: bool,
    /// Slurm's state, where it starts no job there.
    #[serde(skip_serializing_if = "Option::is_none")]
    closed: Option<String>,
    file: String,
    #[serde(flatten)]
    sums: Sums,
}

impl Cluster<'_> {
    fn of(site: &Site) -> Cluster<'_> {
        let node = |node: &Arc<NodeStatus>| NodeSums {
            node: node.node.clone(),
            written: node.written,
            stale: site.is_stale(node),
            closed: site.closed.get(&node.node).cloned(),
            file: format!("{NODES}/{}.json", file_name(&node.node)),
            sums: Sums::of([&**node]),
        };
        Cluster {
            version: VERSION,
            written: site.now,
            build: &site.build,
            nodes: site.nodes.iter().map(node).collect(),
            waiting: site.waiting.as_deref(),
            week: site.week.as_deref(),
        }
    }
}

impl Site {
    /// A page of the site up to its first section. `depth`: folders between the site's own and that of the page.
    fn html(&self, title: &str, depth: usize) -> Html {
        let up = if depth == 0 { "" } else { "../" };
        let mut page = Html::new(title, |page| {
            page.raw("<a class=\"skip\" href=\"#main\">Skip to the content</a>\n<nav aria-label=\"Site\"><a href=\"")
                .raw(up)
                .raw("index.html\">Cluster</a> <a href=\"")
                .raw(up)
                .raw("jobs.html\">Jobs</a></nav>\n");
        });
        page.raw("<p class=\"pale\">Written ")
            .text(words::utc_minute(self.now));
        page.raw(" by gpufrac ").text(&self.build).raw(".</p>\n");
        page
    }

    fn is_stale(&self, node: &NodeStatus) -> bool {
        node.is_stale(self.now)
    }
}
