//! The chart as SVG.

use std::ops::Range;

use gpufrac_page::words::{clipped, utc};
use gpufrac_records::evidence::{Decision, Event, Point, Record};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::scale::{Coverage, busy_share, life, seconds, step, unit};
use crate::why::words::done;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;
type Panel<'a, 'b> = ChartContext<'b, SVGBackend<'a>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

const SIZE: (u32, u32) = (900, 520);
/// Pixels left of the axes, and of the right edge.
const LEFT: i32 = 78;
const RIGHT: i32 = 22;
/// Pixels of the left margin.
const EDGE: i32 = 14;
/// The vertical ranges of the panels, in pixels from the top.
const ACTIVITY: Range<i32> = 128..316;
const MEMORY: Range<i32> = 330..476;
/// Pixels for the labels of times.
const BELOW: i32 = 24;
/// The lowest lane for labels of marks, and the distance between lanes, in pixels.
const LANE: (i32, i32) = (120, 15);
const LANES: usize = 5;
/// The width of a character in pixels; the average width of common sans-serif fonts is smaller.
const CHARACTER: i32 = 7;

const INK: RGBColor = RGBColor(40, 40, 40);
const PALE: RGBColor = RGBColor(228, 228, 228);
const GREY: RGBColor = RGBColor(150, 150, 150);
const BLUE: RGBColor = RGBColor(31, 100, 180);
const GREEN: RGBColor = RGBColor(30, 130, 76);
const ORANGE: RGBColor = RGBColor(196, 98, 0);
const PURPLE: RGBColor = RGBColor(120, 60, 170);
const RED: RGBColor = RGBColor(190, 25, 35);

/// The activity and memory of a job's slice over its life, with the decisions.
pub fn svg(record: &Record) -> String {
    let mut text = String::new();
    // Writing to memory does not fail; if it did, half a picture is better than none.
    let _ = draw(&mut text, record);
    text
}

fn draw<'a>(text: &'a mut String, record: &Record) -> Result<(), Failed<'a>> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    titles(&root, record)?;
    let axis = Axis::new(record);
    let upper = root
        .clone()
        .shrink((0, ACTIVITY.start), (SIZE.0, height(&ACTIVITY)));
    let unknown = runs(record, |point| Coverage::of(point) == Coverage::Unknown);
    let mut panel = panel(&upper, &axis, 100.0, 0)?;
    mesh(&mut panel, &axis, "GPU busy, %")?;
    for run in &unknown {
        hatch(&root, &axis.columns(record, run), &ACTIVITY)?;
    }
    let measured = runs(record, |point| Coverage::of(point) == Coverage::Measured);
    for run in measured {
        steps(&mut panel, record, &axis, run, BLUE, |point| {
            100.0 * busy_share(point)
        })?;
    }
    let row = memory(&root, record, &axis)?;
    marks(&root, record, &axis)?;
    share(&root, record, row)?;
    legend(&root, record)?;
    root.present()
}

fn height(panel: &Range<i32>) -> u32 {
    (panel.end - panel.start) as u32
}

/// The axis of time.
struct Axis {
    /// The shown time in seconds.
    life: f64,
    /// The seconds in the unit of the labels.
    unit: f64,
    name: &'static str,
}

impl Axis {
    fn new(record: &Record) -> Axis {
        let life = life(record);
        let (unit, name) = unit(life);
        Axis { life, unit, name }
    }

    /// The pixel of a time in seconds.
    fn pixel(&self, seconds: f64) -> i32 {
        let wide = f64::from(SIZE.0 as i32 - LEFT - RIGHT);
        LEFT + ((seconds / self.life).clamp(0.0, 1.0) * wide).round() as i32
    }

    /// The pixels of a range of points.
    fn columns(&self, record: &Record, run: &Range<usize>) -> Range<i32> {
        let step = step(record);
        self.pixel(run.start as f64 * step)..self.pixel(run.end as f64 * step)
    }
}

fn font<'a>(size: i32, color: &RGBColor) -> TextStyle<'a> {
    // plotters reduces every font size by this factor.
    let size = f64::from(size) * 1.24;
    ("sans-serif", size).into_font().color(color)
}

fn titles<'a>(root: &Area<'a>, record: &Record) -> Result<(), Failed<'a>> {
    let title = format!(
        "Job {} of {}: {} GPU ({}) on {}",
        record.job,
        clipped(&record.user, 24),
        clipped(&record.fraction, 8),
        clipped(&record.profile, 16),
        clipped(&record.node, 32),
    );
    let style = ("sans-serif", 17.0 * 1.24, FontStyle::Bold);
    let style = style.into_font().color(&INK);
    root.draw(&Text::new(title, (EDGE, 12), style))?;
    let since = format!("from {}", utc(record.began_unix));
    root.draw(&Text::new(since, (EDGE, 36), font(13, &INK)))
}

fn panel<'a, 'b>(
    area: &'b Area<'a>,
    axis: &Axis,
    top: f64,
    below: i32,
) -> Result<Panel<'a, 'b>, Failed<'a>> {
    ChartBuilder::on(area)
        .margin_right(RIGHT)
        .margin_left(EDGE)
        .set_label_area_size(LabelAreaPosition::Left, LEFT - EDGE)
        .set_label_area_size(LabelAreaPosition::Bottom, below)
        .build_cartesian_2d(0.0..axis.life / axis.unit, 0.0..top)
}

fn mesh<'a>(panel: &mut Panel<'a, '_>, axis: &Axis, what: &str) -> Result<(), Failed<'a>> {
    let time = |value: &f64| format!("{} {}", decimal(*value), axis.name);
    let amount = |value: &f64| decimal(*value);
    panel
        .configure_mesh()
        .x_labels(10)
        .y_labels(5)
        .x_label_formatter(&time)
        .y_label_formatter(&amount)
        .y_desc(what)
        .axis_desc_style(font(12, &INK))
        .label_style(font(11, &INK))
        .axis_style(INK)
        .bold_line_style(PALE)
        .light_line_style(TRANSPARENT)
        .draw()
}

/// A label without rounding errors of binary fractions.
fn decimal(value: f64) -> String {
    let rounded = (value * 100.0).round() / 100.0;
    // Turns -0 into 0.
    format!("{}", rounded + 0.0)
}

/// The ranges of consecutive points that `wanted` accepts.
fn runs(record: &Record, wanted: impl Fn(&Point) -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, point) in record.series.points.iter().enumerate() {
        if !wanted(point) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == at => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// A range of points as filled steps.
fn steps<'a>(
    panel: &mut Panel<'a, '_>,
    record: &Record,
    axis: &Axis,
    run: Range<usize>,
    color: RGBColor,
    value: impl Fn(&Point) -> f64,
) -> Result<(), Failed<'a>> {
    let step = step(record) / axis.unit;
    let first = run.start;
    let points = record.series.points.get(run).unwrap_or_default();
    let stairs = points.iter().zip(first..).flat_map(|(point, at)| {
        let height = value(point);
        [(at as f64 * step, height), ((at + 1) as f64 * step, height)]
    });
    let area = AreaSeries::new(stairs, 0.0, color.mix(0.25));
    panel.draw_series(area.border_style(color.stroke_width(1)))?;
    Ok(())
}

/// Grey with oblique lines, for samples with unknown activity.
fn hatch<'a>(root: &Area<'a>, columns: &Range<i32>, rows: &Range<i32>) -> Result<(), Failed<'a>> {
    let corners = [(columns.start, rows.start), (columns.end, rows.end)];
    root.draw(&Rectangle::new(corners, PALE.filled()))?;
    let high = rows.end - rows.start;
    for from in (columns.start - high..columns.end).step_by(8) {
        let ends = [from.max(columns.start), (from + high).min(columns.end)];
        if ends[0] < ends[1] {
            let line = ends.map(|x| (x, rows.end - (x - from)));
            root.draw(&PathElement::new(line.to_vec(), GREY.stroke_width(1)))?;
        }
    }
    Ok(())
}

/// Draws the lower panel; returns the row of the share.
fn memory<'a>(root: &Area<'a>, record: &Record, axis: &Axis) -> Result<i32, Failed<'a>> {
    let rows = height(&MEMORY) + BELOW as u32;
    let area = root.clone().shrink((0, MEMORY.start), (SIZE.0, rows));
    let gib = |mib: f64| mib / 1024.0;
    let share = gib(record.memory_mib as f64);
    let held = |point: &Point| gib(f64::from(point.memory_mib));
    let most = record.series.points.iter().map(held).fold(share, f64::max);
    let top = (most * 1.25).max(0.1);
    let mut panel = panel(&area, axis, top, BELOW)?;
    mesh(&mut panel, axis, "memory, GiB")?;
    for run in runs(record, |point| point.samples > 0) {
        steps(&mut panel, record, axis, run, GREEN, held)?;
    }
    let row = panel.backend_coord(&(0.0, share)).1;
    dashes(root, (LEFT, row), (SIZE.0 as i32 - RIGHT, row), &INK)?;
    Ok(row)
}

/// Labels the dashed line.
fn share<'a>(root: &Area<'a>, record: &Record, row: i32) -> Result<(), Failed<'a>> {
    let gib = record.memory_mib as f64 / 1024.0;
    let said = format!("share {} GiB", (gib * 10.0).floor() / 10.0);
    let end = LEFT + 10 + said.chars().count() as i32 * CHARACTER;
    root.draw(&Rectangle::new(
        [(LEFT + 5, row - 16), (end, row - 3)],
        WHITE.filled(),
    ))?;
    let style = font(11, &INK).pos(Pos::new(HPos::Left, VPos::Center));
    root.draw(&Text::new(said, (LEFT + 8, row - 10), style))
}

/// A dashed line, horizontal or vertical.
fn dashes<'a>(
    area: &Area<'a>,
    from: (i32, i32),
    to: (i32, i32),
    color: &RGBColor,
) -> Result<(), Failed<'a>> {
    let length = (to.0 - from.0) + (to.1 - from.1);
    for start in (0..length).step_by(9) {
        let end = (start + 5).min(length);
        let place =
            |at: i32| if to.0 > from.0 { (from.0 + at, from.1) } else { (from.0, from.1 + at) };
        let ends = vec![place(start), place(end)];
        area.draw(&PathElement::new(ends, color.stroke_width(1)))?;
    }
    Ok(())
}

/// A vertical line through both panels.
struct Mark {
    x: i32,
    label: String,
    color: RGBColor,
    dry_run: bool,
    /// The priority of its label if there is no room for all.
    weight: u8,
}

impl Mark {
    fn of(event: &Event, axis: &Axis) -> Mark {
        let (color, weight) = match event.decision {
            Decision::Requeue | Decision::Cancel => (RED, 5),
            Decision::Signal => (PURPLE, 4),
            Decision::Warn => (ORANGE, 3),
            Decision::Clear => (GREEN, 1),
            Decision::Refuse => (GREY, 2),
        };
        let dry = if event.dry_run { " (dry-run)" } else { "" };
        Mark {
            x: axis.pixel(seconds(event.at_ms)),
            label: format!("{}{dry}", done(event.decision)),
            color,
            dry_run: event.dry_run,
            weight,
        }
    }

    fn end(ended_ms: u64, axis: &Axis) -> Mark {
        Mark {
            x: axis.pixel(seconds(ended_ms)),
            label: "job over".to_owned(),
            color: INK,
            dry_run: false,
            weight: 0,
        }
    }

    /// The columns of the label: right of the line; left of it at the right edge.
    fn columns(&self) -> Range<i32> {
        let wide = self.label.chars().count() as i32 * CHARACTER + 6;
        if self.x + wide > SIZE.0 as i32 - 4 {
            self.x - wide..self.x
        } else {
            self.x..self.x + wide
        }
    }
}

fn marks<'a>(root: &Area<'a>, record: &Record, axis: &Axis) -> Result<(), Failed<'a>> {
    let events = record.events.iter().map(|event| Mark::of(event, axis));
    let end = record.ended_ms.map(|ended| Mark::end(ended, axis));
    let mut marks: Vec<Mark> = events.chain(end).collect();
    // From right to left, so that the line of a label in a higher lane passes left of the labels below.
    marks.sort_by_key(|mark| std::cmp::Reverse((mark.weight, mark.x)));
    let lanes = lanes(&marks);
    for (mark, lane) in marks.iter().zip(&lanes) {
        let top = lane.map_or(ACTIVITY.start, row);
        let (from, to) = ((mark.x, top), (mark.x, MEMORY.end));
        if mark.dry_run {
            dashes(root, from, to, &mark.color)?
        } else {
            root.draw(&PathElement::new(
                vec![from, to],
                mark.color.stroke_width(1),
            ))?
        }
    }
    for (mark, lane) in marks.iter().zip(&lanes) {
        if let Some(lane) = lane {
            label(root, mark, row(*lane))?;
        }
    }
    Ok(())
}

/// The middle row of a lane.
fn row(lane: usize) -> i32 {
    LANE.0 - LANE.1 * lane as i32
}

/// For each mark the lowest lane in which its label overlaps no other; None if there is none.
fn lanes(marks: &[Mark]) -> Vec<Option<usize>> {
    let mut taken: Vec<Vec<Range<i32>>> = vec![Vec::new(); LANES];
    let place = |mark: &Mark| {
        let wanted = mark.columns();
        let free = |labels: &Vec<Range<i32>>| {
            let clear = |other: &Range<i32>| other.end <= wanted.start || wanted.end <= other.start;
            labels.iter().all(clear)
        };
        let lane = taken.iter().position(free)?;
        taken.get_mut(lane)?.push(wanted);
        Some(lane)
    };
    marks.iter().map(place).collect()
}

fn label<'a>(root: &Area<'a>, mark: &Mark, row: i32) -> Result<(), Failed<'a>> {
    let columns = mark.columns();
    // The background of the label covers the lines of other marks.
    let corners = [(columns.start + 1, row - 6), (columns.end - 1, row + 6)];
    root.draw(&Rectangle::new(corners, WHITE.filled()))?;
    let (x, side) = if columns.start == mark.x {
        (mark.x + 4, HPos::Left)
    } else {
        (mark.x - 4, HPos::Right)
    };
    let style = font(12, &mark.color).pos(Pos::new(side, VPos::Center));
    root.draw(&Text::new(mark.label.clone(), (x, row), style))
}

/// The last line: the meaning of the colours.
fn legend<'a>(root: &Area<'a>, record: &Record) -> Result<(), Failed<'a>> {
    const ROW: i32 = 508;
    let points = &record.series.points;
    let sum = |of: fn(&Point) -> u32| points.iter().map(|point| u64::from(of(point))).sum::<u64>();
    let (samples, unknown) = (sum(|point| point.samples), sum(|point| point.unknown));
    let mut x = LEFT;
    let mut say = |text: String, swatch: Option<RGBColor>| {
        let columns = x..x + 14;
        let rows = ROW - 6..ROW + 6;
        match swatch {
            Some(color) => {
                let corners = [(columns.start, rows.start), (columns.end, rows.end)];
                root.draw(&Rectangle::new(corners, color.mix(0.25).filled()))?;
                let border = if color == WHITE { GREY } else { color };
                root.draw(&Rectangle::new(corners, border.stroke_width(1)))?;
            }
            None => hatch(root, &columns, &rows)?,
        }
        let style = font(12, &INK).pos(Pos::new(HPos::Left, VPos::Center));
        x = columns.end + 6 + text.chars().count() as i32 * CHARACTER + 16;
        root.draw(&Text::new(text, (columns.end + 6, ROW), style))
    };
    say("activity (peak)".to_owned(), Some(BLUE))?;
    say("memory held".to_owned(), Some(GREEN))?;
    if unknown > 0 {
        let percent = (100 * unknown).div_ceil(samples.max(1)).min(100);
        say(format!("could not be told ({percent} % of samples)"), None)?;
    }
    if points.iter().any(|point| point.samples == 0) {
        say("blank: no samples".to_owned(), Some(WHITE))?;
    }
    Ok(())
}
