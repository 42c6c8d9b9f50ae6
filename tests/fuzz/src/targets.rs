//! The targets. An input is text; if it has several parts, each is a line.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use gpufrac_core::config::Config;
use gpufrac_core::entry::Entry;
use gpufrac_core::fraction::Units;
use gpufrac_core::gres::GresLines;
use gpufrac_core::hostlist::{self, Hostlist};
use gpufrac_core::lease::Lease;
use gpufrac_core::request::{self, GresForm};
use gpufrac_core::submit::{JobRequest, Occasion, Verdict, decide};
use gpufrac_node::clock::BootTime;
use gpufrac_node::gpu::dcgm::Dcgm;
use gpufrac_node::mps::{answer, version};
use gpufrac_node::slice::agreement::asked::{self, Asked};
use gpufrac_node::slice::agreement::job_record::Allocated;
use slurm_sys::client::{JobInfo, JobState};

use crate::crc64;

/// Pools of every mechanism.
const FULL: &str = include_str!("../../../lib/core/tests/config/valid/full.toml");

static CONFIG: LazyLock<Config> =
    LazyLock::new(|| Config::parse(FULL, "full.toml").unwrap_or_else(|errors| panic!("{errors}")));

/// The input as text. Readers only get valid UTF-8.
fn text(input: &[u8]) -> Option<&str> {
    std::str::from_utf8(input).ok()
}

/// Lines: request per node, per task, per job, partitions, and letters for the other inputs.
pub(crate) fn request(input: &[u8]) {
    let Some(input) = text(input) else { return };
    let mut lines = input.split('\n');
    let mut line = || lines.next().filter(|line| !line.is_empty());
    let (per_node, per_task, per_job, partitions) = (line(), line(), line(), line());
    let letters = line().unwrap_or_default();
    let has = |letter: char| letters.contains(letter);
    let number = letters.bytes().find(u8::is_ascii_digit);
    let number = number.map(|digit| u32::from(digit - b'0'));
    let request = JobRequest {
        partitions,
        default_partition: has('d').then_some("gpu"),
        reserved: has('r'),
        form: if has('c') { GresForm::Colon } else { GresForm::Slash },
        tres_per_node: per_node,
        tres_per_job: per_job,
        tres_per_task: per_task,
        tasks_per_gpu: has('g'),
        exclusive: has('e'),
        tasks: number,
        max_nodes: has('n').then_some(1),
        burst: has('b').then_some(Units(75)),
        ..JobRequest::default()
    };
    for list in [per_node, per_task, per_job].into_iter().flatten() {
        if let Ok(items) = request::parse(list) {
            assert_eq!(items.len(), list.split(',').count());
        }
        // The spelled-out text names a fraction if the original does.
        let spelled = request::spelled_out(list);
        assert!(
            request::names_fraction(&spelled) || !request::names_fraction(list),
            "{spelled}"
        );
    }
    let occasion = match () {
        () if has('m') => Occasion::Modify,
        () if has('s') => Occasion::Step,
        () => Occasion::Submit,
    };
    let Ok(Verdict::Rewritten { text, entry, .. }) = decide(&CONFIG, &request, occasion) else {
        return;
    };
    assert_eq!(entry.to_string().parse(), Ok(entry));
    // The written text is taken unchanged, because the other plugin decides after this one.
    let again = if entry.per_task {
        JobRequest {
            tres_per_task: Some(&text),
            ..request
        }
    } else {
        JobRequest {
            tres_per_node: Some(&text),
            ..request
        }
    };
    match decide(&CONFIG, &again, occasion) {
        Ok(Verdict::Rewritten {
            text: same,
            entry: as_before,
            ..
        }) => {
            // A written text names no mechanism: with pools of several mechanisms the device decides.
            let mechanism = entry.mechanism;
            assert_eq!(
                (
                    &same,
                    Entry {
                        mechanism,
                        ..as_before
                    }
                ),
                (&text, entry)
            );
        }
        other => panic!("{text} becomes {other:?}"),
    }
}

pub(crate) fn config(input: &[u8]) {
    let Some(text) = text(input) else { return };
    match Config::parse(text, "gpufrac.toml") {
        Ok(config) => {
            for node in ["n1", "gn01", "login"] {
                let devices = config.devices_of_node(node, 8);
                let lines = GresLines::of(
                    &devices,
                    Path::new("/dev/gpufrac"),
                    &config.count_name,
                    &|_| None,
                );
                assert_eq!(lines.gres.is_empty(), devices.is_empty());
                assert!(
                    lines
                        .gres_conf(node)
                        .iter()
                        .all(|line| !line.contains('\n'))
                );
            }
        }
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
}

/// The body of a lease, to which the checksum is added; and a whole file.
pub(crate) fn lease(input: &[u8]) {
    let Some(text) = text(input) else { return };
    for file in [text.to_owned(), crc64::sealed(text)] {
        let Ok(lease) = Lease::parse(&file) else {
            continue;
        };
        if let Ok(written) = lease.to_text() {
            assert_eq!(Lease::parse(&written).as_ref().ok(), Some(&lease));
        }
    }
}

pub(crate) fn entry(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Ok(entry) = text.parse::<Entry>() {
        assert_eq!(entry.to_string(), text);
        assert!((1..=100).contains(&entry.units.0));
    }
}

pub(crate) fn hostlist(input: &[u8]) {
    let Some(text) = text(input) else { return };
    if let Ok(list) = Hostlist::parse(text) {
        let names: Vec<&str> = list.names().iter().map(String::as_str).collect();
        assert!(!names.is_empty() && names.len() <= hostlist::MAX_HOSTS);
        assert!(names.iter().all(|name| list.contains(name)));
        let short = Hostlist::parse(&hostlist::short(&names)).map(|list| list.names().to_vec());
        assert_eq!(short.as_deref(), Ok(list.names()));
    }
}

/// Lines: the nodes, the request per node, the request per task, then the GRES on each node.
pub(crate) fn gres_of_nodes(input: &[u8]) {
    let Some(input) = text(input) else { return };
    let mut lines = input.split('\n');
    let mut line = || lines.next().unwrap_or_default().to_owned();
    let (nodes, per_node, per_task) = (line(), line(), line());
    let asked = |text: String| (!text.is_empty()).then_some(text);
    let per_task = asked(per_task);
    let info = JobInfo {
        tres_per_node: asked(per_node),
        tres_elsewhere: per_task.iter().cloned().collect(),
        tres_per_task: per_task,
        gres_of_nodes: lines.map(str::to_owned).collect(),
        nodes,
        ..running()
    };
    if let Some(allocated) = Allocated::on(&info, "gn01") {
        for units in [0, 1, 25, u32::MAX] {
            if let Some(slices) = allocated.slices(Units(units)) {
                let held = u64::from(slices) * u64::from(units);
                assert!(held > 0 && held == allocated.shards);
            }
        }
    }
    let asked = Asked::from(&info);
    for device in CONFIG.devices_of_node("gn01", 8) {
        asked.units(&[device]);
        if let Some(units) = asked::units_of_tres(&asked.per_node, &[device]) {
            asked::menu_entry(&device, units);
        }
    }
    asked.is_for_gpu(&CONFIG);
}

/// A job; only its GRES matter.
fn running() -> JobInfo {
    JobInfo {
        job_id: 1,
        user_id: 1000,
        state: JobState::Running,
        partition: "gpu".to_owned(),
        tres_per_node: None,
        tres_elsewhere: Vec::new(),
        tres_per_task: None,
        gres_of_nodes: Vec::new(),
        batch: true,
        restart_count: 0,
        name: String::new(),
        qos: String::new(),
        account: String::new(),
        reservation: String::new(),
        nodes: String::new(),
        node_count: 1,
        array: None,
        het_job_id: 0,
        start_unix: 0,
        end_unix: 0,
        suspend_unix: 0,
        ended_by: None,
        failed: false,
        can_requeue: true,
        mail_user: String::new(),
        admin_comment: String::new(),
        excluded_nodes: String::new(),
        is_held: false,
    }
}

/// Answers of a control daemon: lists of pids, memory, version.
pub(crate) fn mps(input: &[u8]) {
    let Some(text) = text(input) else { return };
    assert!(answer::pids(text).count() <= text.lines().count());
    for line in text.lines() {
        assert!(answer::memory(line).is_none() || line.ends_with(['G', 'M']));
    }
    version::of_text(text).has_partitions();
}

/// An answer of dcgm-exporter, and its page.
pub(crate) fn dcgm(input: &[u8]) {
    let page = [b"HTTP/1.0 200 OK\r\n\r\n", input].concat();
    for answer in [input, &page] {
        let mut dcgm = Dcgm::new(EXPORTER.parse().unwrap_or_else(|()| panic!("{EXPORTER}")));
        for second in [1, 60] {
            let now = BootTime::after_boot(Duration::from_secs(second));
            let Ok(values) = dcgm.take(answer, now) else {
                continue;
            };
            assert!(values.values().all(|value| (0.0..=1.0).contains(value)));
        }
    }
}

const EXPORTER: &str = "http://127.0.0.1:9400/metrics";
