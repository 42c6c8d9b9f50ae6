//! The chart for terminals.

use std::time::Duration;

use gpufrac_records::evidence::{Decision, Event, Record};
use rasciigraph::{Config, plot_many};

use super::scale::{Coverage, busy_share, life, seconds, step};
use crate::why::words::{done, span};

/// Rows from 0 to 100 %.
const ROWS: u32 = 8;
/// The width of the labels on the left.
const LABEL_WIDTH: usize = 7;
/// The fewest columns, however narrow the terminal is.
const FEWEST_COLUMNS: usize = 20;

/// The activity of a job's slice over its life, above a line of marks, in `width` columns.
pub fn terminal(record: &Record, width: usize) -> Vec<String> {
    if record.series.points.is_empty() {
        return vec!["no sample was taken".to_owned()];
    }
    let columns = columns(
        record,
        width.saturating_sub(LABEL_WIDTH).max(FEWEST_COLUMNS),
    );
    let mut lines = graph(&columns);
    let marks = marks(record, &columns);
    lines.push(format!("{:LABEL_WIDTH$}{marks}", "").trim_end().to_owned());
    lines.push(axis(record, columns.len()));
    lines.extend(legend(record, &marks, width));
    lines
}

/// Percent of activity in a part of the time.
#[derive(Clone, Copy)]
struct Column {
    known: Coverage,
    percent: f64,
}

fn columns(record: &Record, count: usize) -> Vec<Column> {
    let part = life(record) / count as f64;
    let step = step(record);
    let column = |at: usize| {
        let first = (at as f64 * part / step) as usize;
        let next = ((at + 1) as f64 * part / step).ceil() as usize;
        let points = record.series.points.iter();
        let points = points.skip(first).take(next.saturating_sub(first).max(1));
        let nothing = Column {
            known: Coverage::Gap,
            percent: 0.0,
        };
        points.fold(nothing, |column, point| {
            match (Coverage::of(point), column.known) {
                (Coverage::Measured, _) => Column {
                    known: Coverage::Measured,
                    percent: column.percent.max(100.0 * busy_share(point)),
                },
                (Coverage::Unknown, Coverage::Gap) => Column {
                    known: Coverage::Unknown,
                    ..column
                },
                _ => column,
            }
        })
    };
    (0..count).map(column).collect()
}

fn graph(columns: &[Column]) -> Vec<String> {
    let value = |column: &Column| match column.known {
        Coverage::Measured => column.percent,
        _ => f64::NAN,
    };
    let mut values: Vec<f64> = columns.iter().map(value).collect();
    // The graph ends before its last value, so that value is added twice.
    values.push(values.last().copied().unwrap_or(f64::NAN));
    // The height of the graph depends on its values. A further series, right of the shown part, keeps it at 0 to 100.
    let mut scale = vec![f64::NAN; values.len() + 1];
    scale.extend([0.0, f64::NAN, 100.0, f64::NAN]);
    values.resize(scale.len(), f64::NAN);
    let config = Config::default().with_height(ROWS);
    let plotted = plot_many(vec![values, scale], config);
    let rows = plotted.lines().enumerate();
    rows.map(|(row, line)| {
        // The library's labels are replaced: only the part behind the axis is used.
        let drawn = line.split_once(['┤', '┼']).map_or("", |(_, drawn)| drawn);
        let shown = drawn.chars().zip(columns);
        // The library draws a line up to the middle of a gap; a gap must be empty.
        let shown = shown.map(|(c, column)| match column.known {
            Coverage::Measured => c,
            _ => ' ',
        });
        let shown: String = shown.collect();
        format!("{} ┤{shown}", label(row)).trim_end().to_owned()
    })
    .collect()
}

fn label(row: usize) -> &'static str {
    match row {
        0 => "100 %",
        4 => " 50 %",
        8 => "  0 %",
        _ => "     ",
    }
}

/// The mark of an event; in lower case if the decision was only logged.
fn letter(event: &Event) -> char {
    let letter = match event.decision {
        Decision::Warn => 'W',
        Decision::Signal => 'S',
        Decision::Requeue => 'R',
        Decision::Cancel => 'K',
        Decision::Clear => 'C',
        Decision::Refuse => 'N',
    };
    if event.dry_run { letter.to_ascii_lowercase() } else { letter }
}

/// The priority among two events in one column.
fn weight(event: &Event) -> u8 {
    match event.decision {
        Decision::Requeue | Decision::Cancel => 4,
        Decision::Signal => 3,
        Decision::Warn => 2,
        Decision::Refuse => 1,
        Decision::Clear => 0,
    }
}

fn marks(record: &Record, columns: &[Column]) -> String {
    let ground = columns.iter().map(|column| match column.known {
        Coverage::Unknown => '?',
        _ => ' ',
    });
    let mut line: Vec<char> = ground.collect();
    let mut events: Vec<&Event> = record.events.iter().collect();
    events.sort_by_key(|event| weight(event));
    for event in events {
        let place = seconds(event.at_ms) / life(record) * line.len() as f64;
        let place = (place as usize).min(line.len().saturating_sub(1));
        if let Some(mark) = line.get_mut(place) {
            *mark = letter(event);
        }
    }
    line.into_iter().collect()
}

fn axis(record: &Record, columns: usize) -> String {
    let end = span(Duration::from_secs(life(record) as u64));
    let room = columns.saturating_sub(1);
    format!("{:LABEL_WIDTH$}0{end:>room$}", "")
}

/// The meaning of the marks, in lines of `width` characters; no item is broken.
fn legend(record: &Record, marks: &str, width: usize) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    for event in &record.events {
        let dry = if event.dry_run { " (dry-run)" } else { "" };
        let word = format!("{} {}{dry}", letter(event), done(event.decision));
        if marks.contains(letter(event)) && !said.contains(&word) {
            said.push(word);
        }
    }
    if marks.contains('?') {
        said.push("? not known".to_owned());
    }
    let mut lines: Vec<String> = Vec::new();
    for word in said {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() + 3 <= width => {
                line.push_str(", ");
                line.push_str(&word);
            }
            _ => lines.push(format!("{:LABEL_WIDTH$}{word}", "")),
        }
    }
    lines
}
