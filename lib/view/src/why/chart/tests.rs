use gpufrac_core::policy::Stall;
use gpufrac_records::evidence::{Decision, Event, Record};
use test_examples::evidence::{event, record};

use super::{svg, terminal};

/// The texts of a picture. If the variable GPUFRAC_PICTURES names a folder, the picture is written there.
fn texts(name: &str, record: &Record) -> Vec<String> {
    let picture = svg(record);
    if let Some(folder) = std::env::var_os("GPUFRAC_PICTURES") {
        let path = std::path::Path::new(&folder).join(name);
        std::fs::write(path.with_extension("svg"), &picture).unwrap();
    }
    let document = roxmltree::Document::parse(&picture).unwrap();
    let root = document.root_element();
    assert_eq!(
        (root.attribute("width"), root.attribute("height")),
        (Some("900"), Some("520"))
    );
    let texts = document
        .descendants()
        .filter(|node| node.has_tag_name("text"));
    texts
        .map(|node| node.text().unwrap_or("").trim().to_owned())
        .collect()
}

fn count(texts: &[String], wanted: &str) -> usize {
    texts.iter().filter(|text| *text == wanted).count()
}

#[test]
fn the_picture_names_everything() {
    let texts = texts("all", &record());
    for wanted in [
        "Job 4242 of alice: 0.25 GPU (2g.20gb) on gn07",
        "from 2026-11-18 11:06:44 UTC",
        "GPU busy, %",
        "memory, GiB",
        "share 19.6 GiB",
        "warned (dry-run)",
        "warned",
        "used again",
        "signalled",
        "not done",
        "requeued",
        "job over",
        "could not be told (8 % of samples)",
        "blank: no samples",
        "2 h",
        "100",
    ] {
        assert_eq!(count(&texts, wanted), 1, "{wanted}: {texts:?}");
    }
}

#[test]
fn names_are_text_and_nothing_else() {
    let mut odd = record();
    odd.user = "<&\"'>\u{1}\u{ffff}</text><script>".to_owned();
    odd.node = "]]>&amp;".to_owned();
    let texts = texts("odd", &odd);
    assert_eq!(
        texts[0],
        "Job 4242 of <&\"'>??</text><script>: 0.25 GPU (2g.20gb) on ]]>&amp;"
    );
}

#[test]
fn gaps_and_what_is_not_known_are_not_drawn_as_idle() {
    let mut known = record();
    known.events.clear();
    let polygons = |record: &Record| svg(record).matches("<polygon").count();
    // Activity: before the gap, and after the unknown samples. Memory: before the gap, and after it.
    assert_eq!(polygons(&known), 4);
    for point in &mut known.series.points {
        point.samples = 0;
    }
    assert_eq!(polygons(&known), 0);
    let texts = texts("none", &known);
    assert_eq!(count(&texts, "blank: no samples"), 1);
}

#[test]
fn labels_of_many_marks_do_not_overlap() {
    let mut busy = record();
    busy.events = (0..60)
        .map(|at| event(at * 10, Decision::Warn, Stall::Idle))
        .collect();
    busy.events
        .extend((0..59).map(|at| event(at * 10 + 5, Decision::Clear, Stall::Idle)));
    busy.events.push(event(600, Decision::Cancel, Stall::Idle));
    let texts = texts("many", &busy);
    assert_eq!(count(&texts, "cancelled"), 1);
    assert!(count(&texts, "warned") < 60, "{texts:?}");
}

/// No content of a file causes a panic.
#[test]
fn odd_records_are_drawn() {
    let mut empty = record();
    empty.series.points.clear();
    empty.events.clear();
    empty.ended_ms = None;
    let mut short = record();
    short.series.step_ms = 0;
    short.series.points.truncate(1);
    short.events.clear();
    short.ended_ms = Some(1);
    let mut long = record();
    long.series.step_ms = u64::MAX;
    long.ended_ms = Some(u64::MAX);
    long.began_unix = u64::MAX;
    long.memory_mib = u64::MAX;
    long.series.points[0].peak = f32::MAX;
    long.series.points[1].memory_mib = u32::MAX;
    let mut late = record();
    late.events
        .push(event(u64::MAX / 60_000, Decision::Cancel, Stall::Idle));
    let mut none = record();
    none.memory_mib = 0;
    none.series
        .points
        .iter_mut()
        .for_each(|point| point.memory_mib = 0);
    for (name, record) in [
        ("empty", empty),
        ("short", short),
        ("long", long),
        ("late", late),
        ("zero", none),
    ] {
        texts(name, &record);
        for width in [0, 21, 80, 1000] {
            assert!(!terminal(&record, width).is_empty());
        }
    }
}

#[test]
fn the_chart_of_a_terminal() {
    let mut told = record();
    told.events.push(Event {
        dry_run: true,
        ..event(330, Decision::Warn, Stall::Idle)
    });
    let lines = terminal(&told, 67);
    let wanted = [
        "100 % ┤  ╭╮ ╭╮  ╭╮ ╭╮  ╭╮",
        "      ┤ ╭╯│╭╯│ ╭╯│╭╯│ ╭╯│╭─",
        "      ┤ │ ╰╯ │╭╯ ╰╯ │╭╯ ╰╯",
        "      ┤ │    ╰╯     ╰╯",
        " 50 % ┤ │",
        "      ┤ │",
        "      ┤ │                           ──╮",
        "      ┤ │                             │",
        "  0 % ┤─╯                             ╰────────────────────────────",
        "         w                      ????    w                      W  R",
        "       0                                                     10h00m",
        "       w warned (dry-run), W warned, R requeued, ? not known",
    ];
    assert_eq!(lines, wanted, "\n{}", lines.join("\n"));
}
