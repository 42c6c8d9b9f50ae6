//! Bars of hours, as SVG for a page. Colours of text are left to the page.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::hours;
use crate::sums::Sums;

/// Parts of a bar, from its beginning: name and colour. They differ in lightness, too.
pub const PARTS: [(&str, RGBColor); 4] = [
    ("busy", RGBColor(30, 110, 70)),
    ("idle", RGBColor(214, 120, 30)),
    ("unknown", RGBColor(150, 150, 150)),
    ("suspended", RGBColor(120, 110, 190)),
];

/// The page gives text of this colour its own.
pub const INK: RGBColor = RGBColor(1, 2, 3);

const WIDTH: u32 = 520;
const ROW: i32 = 26;
/// Width of a letter of a label, and of the widest label.
const LETTER: i32 = 8;
const LONGEST: usize = 24;
const VALUE: i32 = 62;

type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn parts(sums: &Sums) -> [u64; 4] {
    [sums.busy, sums.idle, sums.unknown, sums.suspended]
}

/// A horizontal bar for each name.
#[must_use]
pub fn bars(rows: &[(String, &Sums)]) -> String {
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = draw_bars(&mut text, rows);
    text
}

fn style<'a>(pos: Pos) -> TextStyle<'a> {
    ("sans-serif", 16).into_font().color(&INK).pos(pos)
}

fn draw_bars<'a>(text: &'a mut String, rows: &[(String, &Sums)]) -> Result<(), Failed<'a>> {
    let height = ROW * rows.len().max(1) as i32 + 6;
    let root = SVGBackend::with_string(text, (WIDTH, height as u32)).into_drawing_area();
    let most = rows
        .iter()
        .map(|(_, sums)| sums.allocated)
        .max()
        .unwrap_or(0);
    let longest = rows.iter().map(|(name, _)| name.chars().count()).max();
    let label = 8 + LETTER * longest.unwrap_or(0).clamp(5, LONGEST) as i32;
    let wide = f64::from(WIDTH as i32 - label - VALUE);
    for (place, (name, sums)) in rows.iter().enumerate() {
        let top = place as i32 * ROW + 4;
        let middle = top + ROW / 2 - 2;
        let left = Pos::new(HPos::Right, VPos::Center);
        root.draw(&Text::new(
            clipped(name, LONGEST),
            (label - 8, middle),
            style(left),
        ))?;
        let mut from = f64::from(label);
        for (part, (_, color)) in parts(sums).into_iter().zip(PARTS) {
            let to = from + wide * part as f64 / most.max(1) as f64;
            if part > 0 {
                let corners = [(from as i32, top), (to.ceil() as i32, top + ROW - 8)];
                root.draw(&Rectangle::new(corners, color.filled()))?;
            }
            from = to;
        }
        let right = Pos::new(HPos::Left, VPos::Center);
        let value = format!("{:.1}", hours(sums.allocated));
        root.draw(&Text::new(value, (from as i32 + 6, middle), style(right)))?;
    }
    root.present()
}

/// A vertical bar for each day.
#[must_use]
pub fn days(days: &[(String, Sums)]) -> String {
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = draw_days(&mut text, days);
    text
}

fn draw_days<'a>(text: &'a mut String, days: &[(String, Sums)]) -> Result<(), Failed<'a>> {
    const HEIGHT: i32 = 200;
    const BELOW: i32 = 24;
    const LEFT: i32 = 44;
    let root = SVGBackend::with_string(text, (WIDTH, HEIGHT as u32)).into_drawing_area();
    let most = days
        .iter()
        .map(|(_, sums)| sums.allocated)
        .max()
        .unwrap_or(0);
    let high = f64::from(HEIGHT - BELOW - 16);
    let step = f64::from(WIDTH as i32 - LEFT - 8) / days.len().max(1) as f64;
    let base = HEIGHT - BELOW;
    root.draw(&PathElement::new(
        vec![(LEFT, base), (WIDTH as i32 - 8, base)],
        INK.stroke_width(1),
    ))?;
    let top = Pos::new(HPos::Right, VPos::Center);
    root.draw(&Text::new(
        format!("{:.0}", hours(most)),
        (LEFT - 6, 16),
        style(top),
    ))?;
    root.draw(&Text::new("0", (LEFT - 6, base), style(top)))?;
    // As many labels as have room.
    let every = (44.0 / step).ceil().max(1.0) as usize;
    for (place, (name, sums)) in days.iter().enumerate() {
        let left = f64::from(LEFT) + step * place as f64;
        let right = left + step * 0.8;
        let mut bottom = f64::from(base);
        for (part, (_, color)) in parts(sums).into_iter().zip(PARTS) {
            let to = bottom - high * part as f64 / most.max(1) as f64;
            if part > 0 {
                let corners = [
                    (left as i32, to as i32),
                    (right.ceil() as i32, bottom as i32),
                ];
                root.draw(&Rectangle::new(corners, color.filled()))?;
            }
            bottom = to;
        }
        if place % every == 0 {
            let below = Pos::new(HPos::Left, VPos::Top);
            root.draw(&Text::new(
                name.clone(),
                (left as i32, base + 5),
                style(below),
            ))?;
        }
    }
    root.present()
}

fn clipped(text: &str, most: usize) -> String {
    if text.chars().count() > most {
        text.chars().take(most - 1).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}
