//! The use of a job over time: two pictures without text, which grow with the page, and their labels beside them.

use std::fmt::Write;

use gpufrac_page::html::Html;
use gpufrac_page::words;

use crate::{History, Point};

/// The size of a picture in its own units; the page stretches it.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;

/// `limit`: memory of all slices, in MiB.
pub fn draw(page: &mut Html, history: &History, limit: u64) {
    let points = &history.points;
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        page.paragraph("No sample was taken yet.");
        return;
    };
    let is_empty = |point: &Point| point.activity.is_none() && point.memory_mib.is_none();
    if points.iter().all(is_empty) {
        page.paragraph("No sample had a value yet.");
        return;
    }
    let span = (first.at, last.at);
    let activity = |point: &Point| point.activity;
    let memory = |point: &Point| Some(point.memory_mib? as f64 / limit.max(1) as f64);
    picture(
        page,
        "Greatest activity of a slice, 0 to 100 %",
        "busy",
        points,
        activity,
    );
    ends(page, span);
    let most = points.iter().filter_map(|point| point.memory_mib).max();
    let most = most.map_or(String::new(), |most| {
        format!(", at most {}", words::gib(most))
    });
    let title = format!("Memory in GiB, 0 to {}{most}", words::gib(limit));
    picture(page, &title, "changing", points, memory);
    ends(page, span);
}

fn ends(page: &mut Html, (from, to): (u64, u64)) {
    page.raw("<div class=\"ends\"><span>")
        .text(words::utc_minute(from))
        .raw("</span><span>");
    page.text(words::utc_minute(to))
        .raw("</span></div></figure>\n");
}

fn picture(
    page: &mut Html,
    title: &str,
    colour: &'static str,
    points: &[Point],
    value: impl Fn(&Point) -> Option<f64>,
) {
    page.raw("<figure><figcaption>")
        .text(title)
        .raw("</figcaption>");
    page.raw("<svg class=\"chart\" viewBox=\"0 0 1000 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"");
    page.text(title)
        .raw("\"><path fill=\"var(--")
        .raw(colour)
        .raw(")\" d=\"");
    page.text(path(points, value)).raw("\"/></svg>");
}

/// Filled steps: each value holds from its sample to the next one. Samples without a value are gaps.
fn path(points: &[Point], value: impl Fn(&Point) -> Option<f64>) -> String {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return String::new();
    };
    let length = (last.at - first.at) as f64;
    let step = length / (points.len().max(2) - 1) as f64;
    // The last value holds as long as the others.
    let whole = (length + step).max(1.0);
    let x = |at: u64| WIDTH * (at - first.at) as f64 / whole;
    let mut path = String::new();
    for (place, point) in points.iter().enumerate() {
        let Some(value) = value(point) else {
            continue;
        };
        let from = x(point.at);
        let to = points.get(place + 1).map_or(WIDTH, |next| x(next.at));
        // A line of half a unit says that a value is 0, and not unknown.
        let y = HEIGHT - (HEIGHT * value.clamp(0.0, 1.0)).max(0.5);
        let _ = write!(path, "M{from:.1} {HEIGHT}V{y:.1}H{to:.1}V{HEIGHT}Z");
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_steps_and_missing_ones_gaps() {
        let point = |at, activity| Point {
            at,
            activity,
            memory_mib: None,
        };
        let points = [
            point(100, Some(1.0)),
            point(200, None),
            point(300, Some(0.5)),
            point(400, Some(0.0)),
        ];
        let drawn = path(&points, |point| point.activity);
        assert_eq!(
            drawn,
            "M0.0 100V0.0H250.0V100ZM500.0 100V50.0H750.0V100ZM750.0 100V99.5H1000.0V100Z"
        );
        assert_eq!(
            path(&points[..1], |point| point.activity),
            "M0.0 100V0.0H1000.0V100Z"
        );
    }
}
