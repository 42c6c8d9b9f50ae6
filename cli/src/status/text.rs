//! The state of a cluster and of a user's jobs as text.

use std::collections::{BTreeSet, HashSet};

use gpufrac_page::table::{cells, columns};
use gpufrac_page::words::{percent, plain, span};
use gpufrac_view::Usage;
use gpufrac_view::bar::{COLUMNS, IDLE, LEGEND, bar};
use gpufrac_view::cluster::{ClusterSlice, GpuState, NodeState, OwnJob, Report, Source, Start};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::map;

const GPUS_IN_LINE: usize = 8;
/// Rows of tables that could be long; `--json` has all.
const MOST_ROWS: usize = 40;

/// Titles of [`use_cells`].
pub const USE_TITLES: &str = "BUSY|USED|IDLE|NOTE";

/// The heads of a table that ends with the use of slices.
fn with_use(heads: &str) -> Vec<String> {
    cells(&format!("{heads}|{USE_TITLES}"))
}

/// The use of a slice; `-` where it was not measured.
pub fn use_cells(usage: Option<&Usage>, clock: &Clock) -> [String; 4] {
    let none = || "-".to_owned();
    let Some(usage) = usage else {
        return [none(), none(), none(), String::new()];
    };
    let busy = usage.activity.map_or_else(none, percent);
    let used = usage.memory_mib.map_or_else(none, |mib| mib.to_string());
    let idle = match usage.window {
        _ if usage.idle < IDLE => none(),
        Some(window) => format!("{} of {}", span(usage.idle), span(window)),
        None => span(usage.idle),
    };
    let note = match (usage.ends, usage.warnings) {
        (Some(ends), _) => format!("ends {} unless used", clock.moment(ends)),
        (None, 0) => String::new(),
        (None, _) => "warned".to_owned(),
    };
    [busy, used, idle, note]
}

/// Now, and the zone of the reader.
#[derive(Debug)]
pub struct Clock {
    /// Seconds since 1970.
    pub now: u64,
    pub zone: TimeZone,
}

impl Clock {
    /// Of this host, at a time.
    pub fn at(now: u64) -> Clock {
        Clock {
            now,
            zone: TimeZone::system(),
        }
    }

    /// A time of the wall clock: `16:05`, on another day `2026-11-24 16:05`.
    fn moment(&self, unix: u64) -> String {
        let zoned = |unix: u64| {
            let second = i64::try_from(unix).unwrap_or(i64::MAX);
            let time = Timestamp::from_second(second).unwrap_or(Timestamp::MAX);
            time.to_zoned(self.zone.clone())
        };
        let (then, today) = (zoned(unix), zoned(self.now));
        let form = if then.date() == today.date() { "%H:%M" } else { "%Y-%m-%d %H:%M" };
        then.strftime(form).to_string()
    }
}

/// The table of this node's slices by the file of its daemon, for users who cannot read the leases.
pub fn slices(state: &NodeState, clock: &Clock) -> Vec<String> {
    let mut rows = vec![with_use("JOB|USER|FRACTION|PROFILE|MEMORY|GPU|STATE")];
    for gpu in state.gpus.iter().map(|state| &state.gpu) {
        for slice in &gpu.slices {
            let owner = slice.owner.as_ref();
            let mut row = vec![
                owner.map_or("-".to_owned(), map::name),
                owner.map_or("-".to_owned(), |owner| plain(&owner.user)),
                slice.fraction.clone(),
                slice.kind.clone(),
                slice.memory_limit_mib.to_string(),
                gpu.index.to_string(),
                slice.state.clone(),
            ];
            row.extend(use_cells(slice.usage.as_ref(), clock));
            rows.push(row);
        }
    }
    match rows.len() {
        1 => Vec::new(),
        _ => columns(&rows),
    }
}

/// All nodes as bars, and the sums.
pub fn cluster(report: &Report, clock: &Clock) -> Vec<String> {
    let mut lines = vec![sums(report)];
    for (name, gpu) in report.pools() {
        lines.push(String::new());
        lines.push(format!(
            "pool {name}: {} {}, partitions {}",
            gpu.model,
            gpu.mechanism,
            gpu.partitions.join(", ")
        ));
        let of_pool = |state: &&GpuState| state.gpu.pool == name;
        for node in &report.nodes {
            let bars: Vec<String> = node.gpus.iter().filter(of_pool).map(bar).collect();
            if !bars.is_empty() {
                lines.extend(bars_of(report, node, &bars));
            }
        }
    }
    let silent = report.nodes.iter().filter(|node| node.gpus.is_empty());
    let silent: Vec<&NodeState> = silent.collect();
    if !silent.is_empty() {
        lines.push(String::new());
        lines.push("nodes of pools without data:".to_owned());
        lines.extend(silent.iter().flat_map(|node| bars_of(report, node, &[])));
    }
    lines.push(String::new());
    lines.push(LEGEND.to_owned());
    let stuck = report.nodes.iter().filter(|node| !node.stale);
    let stuck = stuck.flat_map(|node| {
        let places = stuck_places(node, report.at).into_iter();
        places.map(|place| format!("{}: {place}", node.node))
    });
    for table in [
        free(report),
        waiting(report, clock),
        stuck.collect(),
        idle(report, clock),
    ] {
        if !table.is_empty() {
            lines.push(String::new());
            lines.extend(table);
        }
    }
    lines
}

/// The places of a node that are stuck, a line each. `now`: seconds since 1970.
pub fn stuck_places(node: &NodeState, now: u64) -> Vec<String> {
    node.stuck.iter().map(|place| place.text(now)).collect()
}

fn sums(report: &Report) -> String {
    let gpus = report.nodes.iter().flat_map(|node| &node.gpus);
    let gpus: Vec<&GpuState> = gpus.collect();
    let units = |state: &&GpuState| -> u32 {
        let slices = state.gpu.slices.iter();
        let held = slices.filter(|slice| !slice.is_kept());
        let held: u32 = held.map(|slice| slice.units).sum();
        let counted = state.counted.iter().map(|device| device.taken);
        held + counted.sum::<u32>()
    };
    let taken: u32 = gpus.iter().map(units).sum();
    let held = report.slices().filter(|held| !held.slice.is_kept());
    let jobs = held.filter_map(|held| Some(held.owner()?.job));
    let jobs: HashSet<_> = jobs.collect();
    let given = match gpus.len() {
        0 => 0.0,
        count => f64::from(taken) / count as f64,
    };
    let mut said = format!(
        "{} nodes, {} GPUs, {given:.0} % of them given to jobs",
        report.nodes.len(),
        gpus.len()
    );
    if !jobs.is_empty() {
        let idle = report.slices().filter(is_idle).count();
        said.push_str(&format!("; {} jobs, {idle} slices idle", jobs.len()));
    }
    said
}

fn is_idle(held: &ClusterSlice<'_>) -> bool {
    let usage = held.slice.usage.as_ref();
    usage.is_some_and(|usage| usage.idle >= IDLE) && !held.node.stale
}

fn bars_of(report: &Report, node: &NodeState, bars: &[String]) -> Vec<String> {
    let names = report.nodes.iter().map(|node| node.node.chars().count());
    let width = names.max().unwrap_or(0);
    let mut lines: Vec<String> = bars
        .chunks(GPUS_IN_LINE)
        .enumerate()
        .map(|(row, bars)| {
            let name = if row == 0 { plain(&node.node) } else { String::new() };
            format!("  {name:<width$}  {}", bars.join(" "))
        })
        .collect();
    if lines.is_empty() {
        lines.push(format!("  {:<width$}", plain(&node.node)));
    }
    let note = note(report, node);
    if let Some(first) = lines.first_mut().filter(|_| !note.is_empty()) {
        // Notes stand below each other if the nodes have as many GPUs.
        let column = width + 4 + bars.len().min(GPUS_IN_LINE) * (COLUMNS + 1);
        *first = format!("{first:<column$} {note}");
    }
    lines
}

/// Why a node is not as the others.
fn note(report: &Report, node: &NodeState) -> String {
    let mut notes = Vec::new();
    if let Some(state) = node.state.as_ref().filter(|_| !node.takes_jobs()) {
        notes.push(match &node.reason {
            Some(reason) => format!("{}: {}", plain(state), plain(reason)),
            None => plain(state),
        });
    }
    match (node.source, node.written.filter(|_| node.stale)) {
        (Source::None, _) => notes.push("no file, and nothing from Slurm".to_owned()),
        (_, Some(written)) => {
            let age = span(report.at.saturating_sub(written));
            notes.push(format!("no news for {age}"));
        }
        _ => {}
    }
    notes.join("; ")
}

/// Room by partition and size.
fn free(report: &Report) -> Vec<String> {
    let partitions: BTreeSet<&str> = report.free.iter().map(|it| it.partition.as_str()).collect();
    if partitions.is_empty() {
        return Vec::new();
    }
    let mut rows = vec![cells(
        "FREE|SIZE:JOBS that have room, if no other job starts",
    )];
    for partition in partitions {
        let sizes = report.free.iter().filter(|it| it.partition == partition);
        let sizes = sizes.map(|it| format!("{}:{}", it.fraction, it.jobs));
        let sizes: Vec<String> = sizes.collect();
        rows.push(vec![plain(partition), sizes.join("  ")]);
    }
    columns(&rows)
}

/// The jobs that wait.
fn waiting(report: &Report, clock: &Clock) -> Vec<String> {
    let Some(waiting) = &report.waiting else {
        return Vec::new();
    };
    if waiting.is_empty() {
        return vec!["No job waits for a fraction.".to_owned()];
    }
    let mut rows = vec![cells("WAITING|USER|PARTITION|SIZE|NODES|FOR|START|REASON")];
    for job in waiting.iter().take(MOST_ROWS) {
        let waits = job.since.map(|since| span(report.at.saturating_sub(since)));
        let starts = job.starts.map(|starts| clock.moment(starts));
        rows.push(vec![
            plain(&job.name),
            job.user.as_deref().map_or("-".to_owned(), plain),
            plain(&job.partition),
            job.fraction.clone(),
            job.nodes.to_string(),
            waits.unwrap_or_else(|| "-".to_owned()),
            starts.unwrap_or_else(|| "-".to_owned()),
            plain(&job.reason),
        ]);
    }
    let mut lines = columns(&rows);
    lines.extend(further(waiting.len()));
    lines
}

/// The slices that have been idle longest.
fn idle(report: &Report, clock: &Clock) -> Vec<String> {
    let mut found: Vec<ClusterSlice<'_>> = report.slices().filter(is_idle).collect();
    if found.is_empty() {
        return Vec::new();
    }
    let idle = |held: &ClusterSlice<'_>| held.slice.usage.as_ref().map_or(0, |usage| usage.idle);
    found.sort_by_key(|held| std::cmp::Reverse(idle(held)));
    let mut rows = vec![with_use("IDLE|USER|NODE|GPU|SIZE")];
    for held in found.iter().take(MOST_ROWS) {
        let owner = held.owner();
        let mut row = vec![
            owner.map_or("-".to_owned(), |owner| format!("job {}", map::name(owner))),
            owner.map_or("-".to_owned(), |owner| plain(&owner.user)),
            plain(&held.node.node),
            held.gpu.index.to_string(),
            held.slice.fraction.clone(),
        ];
        row.extend(use_cells(held.slice.usage.as_ref(), clock));
        rows.push(row);
    }
    let mut lines = columns(&rows);
    lines.extend(further(found.len()));
    lines
}

fn further(count: usize) -> Option<String> {
    let more = count.checked_sub(MOST_ROWS).filter(|more| *more > 0)?;
    Some(format!("and {more} more; --json has all"))
}

/// The jobs of the user.
pub fn own(jobs: &[OwnJob], clock: &Clock) -> Vec<String> {
    if jobs.is_empty() {
        return vec!["You have no job with a fraction.".to_owned()];
    }
    let mut rows = vec![with_use("YOUR JOB|PARTITION|SIZE|STATE|NODE|GPU|SLICE")];
    for job in jobs {
        let head = [
            plain(&job.name),
            plain(&job.partition),
            job.fraction.clone(),
            job.state.to_lowercase(),
        ];
        for slice in &job.slices {
            let mut row = head.to_vec();
            row.extend([
                plain(&slice.node),
                slice.gpu.to_string(),
                slice.kind.clone(),
            ]);
            row.extend(use_cells(slice.usage.as_ref(), clock));
            rows.push(row);
        }
        if job.slices.is_empty() {
            let mut row = head.to_vec();
            let nodes = job.nodes.first().map_or("-".to_owned(), |node| plain(node));
            row.extend([nodes, "-".to_owned(), "-".to_owned()]);
            let mut of_use = use_cells(None, clock);
            let starts = job
                .starts
                .map(|at| format!("expected {}", clock.moment(at)));
            let why = job.reason.as_deref().map(plain);
            let notes = starts.into_iter().chain(why).collect::<Vec<_>>();
            of_use[3] = notes.join(", ");
            row.extend(of_use);
            rows.push(row);
        }
    }
    columns(&rows)
}

/// What could start now.
pub fn starts(starts: &[Start], clock: &Clock) -> Vec<String> {
    let mut rows = vec![cells("PARTITION|COULD START NOW|LATER")];
    for start in starts {
        let none = || "nothing".to_owned();
        let later = start.more.as_ref().map(|later| match later.starts {
            Some(at) => {
                let wait = span(at.saturating_sub(clock.now));
                format!("{} at {} (in {wait})", later.fraction, clock.moment(at))
            }
            None => format!("{} at a time that Slurm does not say", later.fraction),
        });
        let short = start.backfill.as_ref();
        let short = short.map(|fraction| format!("{fraction} if short"));
        rows.push(vec![
            plain(&start.partition),
            start.now.clone().or(short).unwrap_or_else(none),
            later
                .or_else(|| start.refused.as_deref().map(plain))
                .unwrap_or_default(),
        ]);
    }
    columns(&rows)
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;
    use gpufrac_core::config::Config;
    use gpufrac_view::cluster::{Later, OwnSlice, Waiting, joined};
    use gpufrac_view::slurm;
    use test_examples::NOW;

    use super::*;

    fn clock() -> Clock {
        Clock {
            now: NOW,
            zone: TimeZone::UTC,
        }
    }

    /// Twelve nodes: some by their files, one drained, one that stopped, one without a file, one that nobody knows.
    fn report() -> Report {
        let config = Config::parse(test_examples::CONFIG, "gpufrac.toml").unwrap();
        let mut files = test_examples::nodes(8, 5);
        files[3].written = NOW - 5_000;
        files.truncate(8);
        let sinfo = (1..=7).map(|number| format!("gn{number:04}|mixed|||\n"));
        let mut sinfo: Vec<String> = sinfo.collect();
        sinfo[1] = "gn0002|drained|||GPU 3 is \u{1b}hot\n".to_owned();
        sinfo[3] = "gn0004|down*||gpu:half:0(IDX:N/A),gpu:whole:1(IDX:14),shard:half:63(25/50,38/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50),shard:whole:1(1/1)|Not responding\n".to_owned();
        sinfo.push(
            "gn0009|mixed||gpu:mps:0(IDX:N/A),shard:mps:62(37/100,25/100),gpufrac:62|\n".to_owned(),
        );
        let counted = slurm::nodes(&sinfo.concat(), &config);
        let names = config.pools.iter().flat_map(|pool| pool.nodes.names());
        let nodes = joined(names.map(String::as_str), files, counted, NOW);
        let mut report = Report::new(NOW, nodes);
        let waits = |job: u32, user: Option<&str>, units: u32, starts, reason: &str| Waiting {
            job: gpufrac_core::ids::JobId(job),
            name: job.to_string(),
            user: user.map(str::to_owned),
            partition: "gpu".to_owned(),
            fraction: slurm::fraction(&config, "gpu", units),
            units,
            nodes: 1,
            since: Some(NOW - 7_500),
            starts,
            reason: reason.to_owned(),
        };
        report.waiting = Some(vec![
            waits(200_001, Some("ada"), 50, Some(NOW + 3_600), "Resources"),
            waits(200_002, Some("eve\u{1b}[2J"), 100, None, "Priority"),
            waits(200_003, None, 13, Some(NOW + 90_000), "QOSMaxGRESPerUser"),
        ]);
        report
    }

    #[test]
    fn a_cluster_is_shown_as_bars_with_room_waits_and_idle_slices() {
        let text = cluster(&report(), &clock()).join("\n") + "\n";
        assert!(!text.contains('\u{1b}'));
        expect_file!["../../tests/snapshots/cluster.txt"].assert_eq(&text);
        expect_file!["../../../docs/images/status-cluster.svg"].assert_eq(&picture(&text));
    }

    /// Promise (admins): status, top and the metrics show stuck places, their GPUs have no room there, and nothing
    /// tells of a job that Slurm hides.
    /// With `a_node_with_a_stuck_place_says_so`, `a_device_or_a_node_that_is_stuck_has_no_room`,
    /// `no_gpu_loses_more_than_it_has`, `where_jobs_or_nodes_are_hidden_each_user_sees_the_own_slices`.
    #[test]
    fn places_that_are_stuck_are_named_with_their_node() {
        let mut report = report();
        report.nodes[0].stuck = vec![test_examples::stuck()];
        report.nodes[2].stale = true;
        report.nodes[2].stuck = vec![test_examples::stuck()];
        let text = cluster(&report, &clock()).join("\n");
        assert!(
            text.contains("\n\ngn0001: GPU 0 1g.10gb at 3:1 is stuck for 13m: in use (19); DCGM's"),
            "{text}"
        );
        assert_eq!(text.matches("is stuck").count(), 1);
    }

    #[test]
    fn a_cluster_without_jobs_that_wait_says_so() {
        let mut report = report();
        report.waiting = Some(Vec::new());
        let text = cluster(&report, &clock()).join("\n");
        assert!(text.contains("\nNo job waits for a fraction.\n"), "{text}");
    }

    #[test]
    fn own_jobs_have_their_slices_their_use_and_the_reason_why_they_wait() {
        let report = report();
        let held = report
            .slices()
            .find(|held| held.slice.usage.is_some())
            .unwrap();
        let owner = held.owner().unwrap();
        let job = |id: u32, state: &str| OwnJob {
            job: gpufrac_core::ids::JobId(id),
            name: id.to_string(),
            partition: "gpu".to_owned(),
            state: state.to_owned(),
            fraction: "0.25".to_owned(),
            units: 25,
            nodes: Vec::new(),
            starts: None,
            reason: None,
            slices: Vec::new(),
        };
        let running = OwnJob {
            slices: vec![OwnSlice::of(held)],
            nodes: vec![held.node.node.clone()],
            ..job(owner.job.0, "RUNNING")
        };
        let waiting = OwnJob {
            starts: Some(NOW + 600),
            reason: Some("Resources".to_owned()),
            ..job(300_000, "PENDING")
        };
        let start = |partition: &str, now: Option<&str>, more: Option<(&str, u64)>| Start {
            partition: partition.to_owned(),
            now: now.map(str::to_owned),
            backfill: (now.is_none() && more.is_some()).then(|| "0.25".to_owned()),
            more: more.map(|(fraction, starts)| Later {
                fraction: fraction.to_owned(),
                starts: Some(starts),
            }),
            refused: now.is_none().then(|| "Invalid account".to_owned()),
        };
        let could = [
            start("gpu", Some("0.25"), Some(("0.5", NOW + 3_600))),
            start("short", Some("0.5"), None),
            start("teaching", None, None),
            start("inference", None, Some(("0.1", NOW + 90_000))),
        ];
        let mut lines = own(&[running, waiting], &clock());
        lines.extend([String::new()]);
        lines.extend(starts(&could, &clock()));
        lines.extend([String::new()]);
        lines.extend(own(&[], &clock()));
        let text = lines.join("\n") + "\n";
        expect_file!["../../tests/snapshots/own.txt"].assert_eq(&text);
    }

    #[test]
    fn the_slices_of_a_node_are_listed_by_its_file() {
        let report = report();
        let text = slices(&report.nodes[0], &clock()).join("\n") + "\n";
        expect_file!["../../tests/snapshots/slices.txt"].assert_eq(&text);
    }

    /// A text as a picture for the manual, in the colours of a terminal.
    fn picture(text: &str) -> String {
        let (column, row) = (7.2, 16);
        let lines: Vec<&str> = text.lines().collect();
        let width = lines
            .iter()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0);
        let width = (width as f64 * column).ceil() as usize + 32;
        let height = lines.len() * row + 32;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" aria-label=\"gpufrac status --cluster\">\n<rect width=\"100%\" height=\"100%\" fill=\"#0d1117\"/>\n<g font-family=\"ui-monospace, monospace\" font-size=\"12\" fill=\"#e6edf3\" xml:space=\"preserve\">\n"
        );
        for (number, line) in lines.iter().enumerate() {
            let line = line
                .replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;");
            let y = 28 + number * row;
            svg.push_str(&format!("<text x=\"16\" y=\"{y}\">{line}</text>\n"));
        }
        svg.push_str("</g>\n</svg>\n");
        svg
    }
}
