//! Charts as SVG. Their colours and the colour of their texts are variables of the page's style.

use crate::html::Html;

/// A colour of the page's style, and its meaning.
pub type Part = (&'static str, String);

/// A horizontal bar.
#[derive(Debug, Clone)]
pub struct Bar {
    pub name: String,
    /// Lengths and colours, from the left.
    pub parts: Vec<(f64, &'static str)>,
    /// A range around the end of the bar.
    pub band: Option<(f64, f64)>,
    /// The text behind the bar.
    pub value: String,
}

/// The picture of a chart; the words that describe it are the page's.
#[derive(Debug, Clone)]
pub enum Chart {
    /// A horizontal bar for each row.
    Bars(Vec<Bar>),
    /// A vertical bar for each name, such as a day.
    Days(Vec<Bar>),
    /// Lines over time with their colours, from 0 to `ceiling` or higher; `end` is the text below the right end.
    Course {
        lines: Vec<(Vec<f64>, &'static str)>,
        ceiling: f64,
        end: String,
    },
}

const WIDTH: f64 = 640.0;
const ROW: f64 = 28.0;
/// Width of a letter, and the most letters of a name.
const LETTER: f64 = 9.0;
const MOST_LETTERS: usize = 24;
/// Width of the texts behind bars.
const VALUE: f64 = 150.0;

impl Bar {
    fn sum(&self) -> f64 {
        self.parts.iter().map(|(length, _)| length).sum()
    }

    fn most(&self) -> f64 {
        self.band.map_or(0.0, |(_, high)| high).max(self.sum())
    }
}

fn most(bars: &[Bar]) -> f64 {
    bars.iter().map(Bar::most).fold(f64::MIN_POSITIVE, f64::max)
}

impl Chart {
    /// Draws the picture. `label` says in words what it shows.
    pub fn draw(&self, page: &mut Html, label: &str) {
        let height = match self {
            Chart::Bars(bars) => ROW * bars.len().max(1) as f64,
            Chart::Days(_) | Chart::Course { .. } => 240.0,
        };
        page.raw("<svg class=\"bars\" role=\"img\" viewBox=\"0 0 ")
            .text(format!("{WIDTH} {height}"))
            .raw("\" aria-label=\"")
            .text(label)
            .raw("\">");
        match self {
            Chart::Bars(bars) => rows(page, bars),
            Chart::Days(bars) => days(page, bars, height),
            Chart::Course {
                lines,
                ceiling,
                end,
            } => course(page, lines, *ceiling, end, height),
        }
        page.raw("</svg>\n");
    }
}

fn rows(page: &mut Html, bars: &[Bar]) {
    let most = most(bars);
    let longest = bars.iter().map(|bar| bar.name.chars().count()).max();
    let left = 8.0 + LETTER * longest.unwrap_or(0).clamp(5, MOST_LETTERS) as f64;
    let x = |value: f64| left + (WIDTH - left - VALUE) * value.max(0.0) / most;
    for (place, bar) in bars.iter().enumerate() {
        let (top, middle) = (ROW * place as f64 + 4.0, ROW * (place as f64 + 0.5));
        let name: String = bar.name.chars().take(MOST_LETTERS).collect();
        text(page, (left - 8.0, middle), "end", &name);
        let mut from = 0.0;
        for (length, colour) in &bar.parts {
            let end = x(from + length);
            rectangle(page, (x(from), top), (end - x(from), ROW - 8.0), colour);
            from += length;
        }
        if let Some((low, high)) = bar.band {
            let (low, high, up, down) = (x(low), x(high), middle - 5.0, middle + 5.0);
            let path =
                format!("M{low:.1} {middle}H{high:.1}M{low:.1} {up}V{down}M{high:.1} {up}V{down}");
            line(page, "ink", path);
        }
        text(page, (x(bar.most()) + 6.0, middle), "start", &bar.value);
    }
}

fn days(page: &mut Html, bars: &[Bar], height: f64) {
    let (left, base, most) = (44.0, height - 24.0, most(bars));
    let step = (WIDTH - left - 8.0) / bars.len().max(1) as f64;
    let y = |value: f64| base - (base - 16.0) * value / most;
    let highest = bars.iter().find(|bar| bar.most() >= most);
    text(
        page,
        (left - 6.0, y(most)),
        "end",
        highest.map_or("", |bar| &bar.value),
    );
    text(page, (left - 6.0, base), "end", "0");
    line(page, "ink", format!("M{left} {base}H{WIDTH}"));
    // As many names as have room.
    let every = (5.5 * LETTER / step).ceil().max(1.0) as usize;
    for (place, bar) in bars.iter().enumerate() {
        let at = left + step * place as f64;
        let mut from = 0.0;
        for (length, colour) in &bar.parts {
            let (top, bottom) = (y(from + length), y(from));
            rectangle(page, (at, top), (step * 0.8, bottom - top), colour);
            from += length;
        }
        if place % every == 0 && at + 5.0 * LETTER <= WIDTH {
            text(page, (at, base + 14.0), "start", &bar.name);
        }
    }
}

fn course(
    page: &mut Html,
    lines: &[(Vec<f64>, &'static str)],
    ceiling: f64,
    end: &str,
    height: f64,
) {
    let (left, base) = (60.0, height - 26.0);
    let values = lines.iter().flat_map(|(line, _)| line.iter().copied());
    let most = values.fold(ceiling, f64::max).max(1e-9);
    let y = |value: f64| base - (base - 12.0) * value / most;
    line(page, "ink", format!("M{left} 12V{base}H{WIDTH}"));
    line(page, "line", format!("M{left} {:.1}H{WIDTH}", y(ceiling)));
    text(
        page,
        (left - 6.0, y(ceiling)),
        "end",
        &format!("{ceiling:.0}"),
    );
    text(page, (left - 6.0, base), "end", "0");
    text(page, (WIDTH, base + 14.0), "end", end);
    for (values, colour) in lines {
        let step = (WIDTH - left) / (values.len().max(2) - 1) as f64;
        let points = values.iter().enumerate().map(|(at, value)| {
            let sign = if at == 0 { 'M' } else { 'L' };
            format!("{sign}{:.1} {:.1}", left + step * at as f64, y(*value))
        });
        line(page, colour, points.collect());
    }
}

fn text(page: &mut Html, (x, y): (f64, f64), anchor: &'static str, words: &str) {
    page.raw("<text dominant-baseline=\"central\" text-anchor=\"")
        .raw(anchor)
        .numbers(&[("x", x), ("y", y)]);
    page.text(words).raw("</text>");
}

fn rectangle(
    page: &mut Html,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
    colour: &'static str,
) {
    if width > 0.0 && height > 0.0 {
        page.raw("<rect fill=\"var(--")
            .raw(colour)
            .raw(")")
            .numbers(&[("x", x), ("y", y), ("width", width), ("height", height)]);
        page.raw("</rect>");
    }
}

fn line(page: &mut Html, colour: &'static str, path: String) {
    page.raw("<path class=\"line\" style=\"stroke:var(--")
        .raw(colour)
        .raw(")\" d=\"")
        .text(path)
        .raw("\"/>");
}
