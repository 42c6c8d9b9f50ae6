//! Charts as SVG. Colours of text are left to the page.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::sums::Band;

/// The page gives text of this colour its own.
pub const INK: RGBColor = RGBColor(1, 2, 3);

/// Colours of ways of lending; today first.
pub const COLORS: [RGBColor; 5] = [
    RGBColor(150, 150, 150),
    RGBColor(30, 110, 70),
    RGBColor(214, 120, 30),
    RGBColor(120, 110, 190),
    RGBColor(40, 120, 200),
];

const WIDTH: i32 = 640;
const ROW: i32 = 28;
const LABEL: i32 = 130;
const VALUE: i32 = 150;

type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

fn style<'a>(horizontal: HPos, vertical: VPos) -> TextStyle<'a> {
    ("sans-serif", 15)
        .into_font()
        .color(&INK)
        .pos(Pos::new(horizontal, vertical))
}

/// A bar with its band for each name, and the text of its figure.
pub fn bars(rows: &[(String, Band, String)]) -> String {
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = draw_bars(&mut text, rows);
    text
}

fn draw_bars<'a>(text: &'a mut String, rows: &[(String, Band, String)]) -> Result<(), Failed<'a>> {
    let height = ROW * rows.len().max(1) as i32 + 6;
    let root = SVGBackend::with_string(text, (WIDTH as u32, height as u32)).into_drawing_area();
    let most = rows
        .iter()
        .map(|(_, band, _)| band.high)
        .fold(f64::MIN_POSITIVE, f64::max);
    let wide = f64::from(WIDTH - LABEL - VALUE);
    let at = |value: f64| LABEL + (wide * value.max(0.0) / most) as i32;
    for (place, (name, band, value)) in rows.iter().enumerate() {
        let top = place as i32 * ROW + 4;
        let middle = top + ROW / 2 - 2;
        let color = COLORS[place % COLORS.len()];
        root.draw(&Text::new(
            name.clone(),
            (LABEL - 8, middle),
            style(HPos::Right, VPos::Center),
        ))?;
        root.draw(&Rectangle::new(
            [(LABEL, top), (at(band.value), top + ROW - 8)],
            color.filled(),
        ))?;
        let (low, high) = (at(band.low), at(band.high));
        root.draw(&PathElement::new(
            vec![(low, middle), (high, middle)],
            INK.stroke_width(2),
        ))?;
        for edge in [low, high] {
            root.draw(&PathElement::new(
                vec![(edge, middle - 5), (edge, middle + 5)],
                INK.stroke_width(2),
            ))?;
        }
        root.draw(&Text::new(
            value.clone(),
            (high.max(at(band.value)) + 6, middle),
            style(HPos::Left, VPos::Center),
        ))?;
    }
    root.present()
}

/// Lines of GPUs in use over time; `days`: the length of the time.
pub fn course(lines: &[&[f64]], gpus: f64, days: f64) -> String {
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = draw_course(&mut text, lines, gpus, days);
    text
}

fn draw_course<'a>(
    text: &'a mut String,
    lines: &[&[f64]],
    gpus: f64,
    days: f64,
) -> Result<(), Failed<'a>> {
    const HEIGHT: i32 = 240;
    const LEFT: i32 = 60;
    const BASE: i32 = HEIGHT - 26;
    let root = SVGBackend::with_string(text, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
    let most = lines
        .iter()
        .flat_map(|line| line.iter().copied())
        .fold(gpus, f64::max)
        .max(1e-9);
    let high = f64::from(BASE - 12);
    let wide = f64::from(WIDTH - LEFT - 10);
    let y = |value: f64| BASE - (high * value / most) as i32;
    let axis = vec![(LEFT, 12), (LEFT, BASE), (WIDTH - 10, BASE)];
    root.draw(&PathElement::new(axis, INK.stroke_width(1)))?;
    root.draw(&PathElement::new(
        vec![(LEFT, y(gpus)), (WIDTH - 10, y(gpus))],
        INK.mix(0.4).stroke_width(1),
    ))?;
    for value in [0.0, gpus] {
        root.draw(&Text::new(
            format!("{value:.0}"),
            (LEFT - 6, y(value)),
            style(HPos::Right, VPos::Center),
        ))?;
    }
    root.draw(&Text::new(
        "0",
        (LEFT, BASE + 5),
        style(HPos::Left, VPos::Top),
    ))?;
    root.draw(&Text::new(
        format!("{days:.0} days"),
        (WIDTH - 10, BASE + 5),
        style(HPos::Right, VPos::Top),
    ))?;
    for (place, line) in lines.iter().enumerate() {
        let points = line.iter().enumerate().map(|(at, value)| {
            let x = LEFT + (wide * at as f64 / (line.len().max(2) - 1) as f64) as i32;
            (x, y(*value))
        });
        root.draw(&PathElement::new(
            points.collect::<Vec<_>>(),
            COLORS[place % COLORS.len()].stroke_width(2),
        ))?;
    }
    root.present()
}
