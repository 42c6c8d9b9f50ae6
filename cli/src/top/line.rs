//! Lines of `gpufrac top`.

use gpufrac_page::words::{gib, percent, plain, span};
use gpufrac_view::{GpuStatus, NodeStatus, Slice, Sums, Use};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::view::{ScreenRow, SliceIndex, View};

/// The abilities of the terminal.
#[derive(Debug, Clone, Copy)]
pub struct TerminalAbilities {
    /// Whether it has colours, and the user wants them.
    pub colours: bool,
    /// Whether it shows characters outside of ASCII.
    pub unicode: bool,
}

impl TerminalAbilities {
    fn ink(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// The style of a quantity that is good, notable or bad, from 0 to 2.
    fn rated(self, rating: u8) -> Style {
        match rating {
            0 => Style::new(),
            1 => self.ink(Color::Yellow),
            _ => self.ink(Color::Red).add_modifier(Modifier::BOLD),
        }
    }

    /// `part` of a whole, 0 to 1, as a bar.
    fn bar(self, part: f64, width: usize) -> String {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let part = part.clamp(0.0, 1.0);
        if !self.unicode {
            let full = (part * width as f64).round() as usize;
            return "#".repeat(full) + &".".repeat(width - full);
        }
        let eighths = (part * width as f64 * 8.0).round() as usize;
        let bar = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
        fit(&bar, width)
    }

    fn sign(self, is_open: bool) -> &'static str {
        match (is_open, self.unicode) {
            (true, true) => "▾",
            (false, true) => "▸",
            (true, false) => "-",
            (false, false) => "+",
        }
    }
}

/// The text, filled or cut to a width.
pub fn fit(text: &str, width: usize) -> String {
    let text = plain(text);
    let mut wide = text.width();
    if wide <= width {
        return text + &" ".repeat(width - wide);
    }
    let mut cut = String::new();
    wide = 0;
    for letter in text.chars() {
        let more = letter.width().unwrap_or(0);
        // The last column says that something was cut.
        if wide + more + 1 > width {
            break;
        }
        cut.push(letter);
        wide += more;
    }
    if wide < width {
        cut.push('~');
        wide += 1;
    }
    cut + &" ".repeat(width - wide)
}

fn right(text: &str, width: usize) -> String {
    let wide = text.width();
    if wide < width { " ".repeat(width - wide) + text } else { fit(text, width) }
}

/// A column of slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Place,
    Job,
    User,
    Size,
    Kind,
    Busy,
    Bar,
    Memory,
    Idle,
    Warned,
}

/// The columns: least and greatest width.
const FIELDS: [(Field, usize, usize); 10] = [
    (Field::Place, 9, 24),
    (Field::Job, 9, 9),
    (Field::User, 8, 20),
    (Field::Size, 5, 5),
    (Field::Kind, 8, 8),
    (Field::Busy, 5, 5),
    (Field::Bar, 8, 20),
    (Field::Memory, 11, 11),
    (Field::Idle, 11, 13),
    (Field::Warned, 13, 13),
];

/// Columns that a narrow terminal has no room for: the first one goes first.
const LESS_NEEDED: [Field; 7] = [
    Field::Bar,
    Field::Kind,
    Field::Size,
    Field::Warned,
    Field::Memory,
    Field::Place,
    Field::Idle,
];

/// Columns that get the width that is left, first those that are cut most often.
const WIDER: [Field; 4] = [Field::Place, Field::User, Field::Idle, Field::Bar];

/// The columns that fit, with their widths.
#[derive(Debug, Clone)]
pub struct Columns(Vec<(Field, usize)>);

impl Columns {
    /// For a terminal of this width.
    pub fn of(width: usize) -> Columns {
        let mut columns: Vec<(Field, usize)> = FIELDS
            .iter()
            .map(|&(field, least, _)| (field, least))
            .collect();
        let needed = |columns: &[(Field, usize)]| {
            let widths: usize = columns.iter().map(|(_, width)| width).sum();
            widths + columns.len() - 1
        };
        for field in LESS_NEEDED {
            if needed(&columns) <= width {
                break;
            }
            columns.retain(|(known, _)| *known != field);
        }
        let mut left = width.saturating_sub(needed(&columns));
        for field in WIDER {
            let most = FIELDS
                .iter()
                .find(|(known, ..)| *known == field)
                .map_or(0, |found| found.2);
            for (_, width) in columns.iter_mut().filter(|(known, _)| *known == field) {
                let more = left.min(most - *width);
                *width += more;
                left -= more;
            }
        }
        Columns(columns)
    }

    pub fn heads(&self) -> String {
        let heads = self.0.iter().map(|&(field, width)| match field {
            Field::Place => fit("NODE:GPU", width),
            Field::Job => right("JOB", width),
            Field::User => fit("USER", width),
            Field::Size => fit("SIZE", width),
            Field::Kind => fit("KIND", width),
            Field::Busy => right("BUSY", width),
            Field::Bar => fit("", width),
            Field::Memory => right("MEMORY GiB", width),
            Field::Idle => fit("IDLE", width),
            Field::Warned => fit("WARNED", width),
        });
        heads.collect::<Vec<_>>().join(" ")
    }
}

/// Draws the rows of a view.
pub struct Lines<'a> {
    view: &'a View,
    abilities: TerminalAbilities,
    width: usize,
    columns: Columns,
}

impl<'a> Lines<'a> {
    /// For a terminal of this width.
    pub fn of(view: &'a View, abilities: TerminalAbilities, width: usize) -> Lines<'a> {
        Lines {
            view,
            abilities,
            width,
            columns: Columns::of(width),
        }
    }

    /// The heads of the columns.
    pub fn heads(&self) -> String {
        self.columns.heads()
    }

    pub fn line(&self, row: ScreenRow) -> Line<'static> {
        match row {
            ScreenRow::Title(title) => {
                let style = Style::new().add_modifier(Modifier::BOLD);
                Line::styled(fit(title, self.width), style)
            }
            ScreenRow::Node(node) => self.node(&self.view.nodes[node]),
            ScreenRow::Gpu(node, gpu) => self.gpu(&self.view.nodes[node], self.view.gpu(node, gpu)),
            ScreenRow::Slice(index) => self.slice(index, false),
            ScreenRow::Flat(index) => self.slice(index, true),
        }
    }

    fn node(&self, node: &NodeStatus) -> Line<'static> {
        let sign = self.abilities.sign(self.view.is_open(node));
        let age = self.view.now.saturating_sub(node.written);
        let (age, style) = match self.view.stale(node) {
            Some(age) => (
                format!("no news for {}", span(age)),
                self.abilities.rated(2),
            ),
            None => (format!("{} ago", span(age)), Style::new()),
        };
        let faults = node.gpus.iter().filter(|gpu| gpu.fault.is_some()).count();
        let faults = match faults {
            0 => String::new(),
            count => format!(", {count} with a fault"),
        };
        let stuck = match node.stuck.len() {
            0 => String::new(),
            count => format!(", {count} stuck"),
        };
        let totals = Sums::of([node]).text();
        let text = format!("{sign} {}  {totals}{faults}{stuck}", node.node);
        let text = fit(&text, self.width.saturating_sub(age.width() + 1));
        let bold = Style::new().add_modifier(Modifier::BOLD);
        Line::from(vec![
            Span::styled(text, bold),
            Span::raw(" "),
            Span::styled(age, style),
        ])
    }

    fn gpu(&self, node: &NodeStatus, gpu: &GpuStatus) -> Line<'static> {
        let sign = self.abilities.sign(self.view.is_gpu_open(node, gpu));
        let name = format!("{sign} {} {} {}", gpu.index, gpu.model, gpu.pool);
        let name_width = (self.width / 4).clamp(12, 30);
        let mut spans = vec![
            Span::raw("  "),
            Span::raw(fit(&name, name_width)),
            Span::raw(" "),
        ];
        let taken = name_width + 3;
        let slices = usize::from(gpu.memory_slices);
        // At least this width is left for the room.
        let most = self.width.saturating_sub(taken + 27).clamp(8, 80);
        let bar = match slices {
            0 => most.min(40),
            _ => slices * (most / slices).clamp(1, 10),
        };
        spans.extend(self.cells(gpu, bar));
        let rest = self.width.saturating_sub(taken + bar + 1);
        let (text, style) = match &gpu.fault {
            Some(fault) => (fault.clone(), self.abilities.rated(2)),
            None => (room(gpu), Style::new()),
        };
        spans.push(Span::raw(" "));
        spans.push(Span::styled(fit(&text, rest), style));
        Line::from(spans)
    }

    /// The slices of a GPU side by side: `[12 87%  ][13 0% ]........`.
    fn cells(&self, gpu: &GpuStatus, width: usize) -> Vec<Span<'static>> {
        if gpu.fault.is_some() {
            return vec![Span::styled("x".repeat(width), self.abilities.rated(2))];
        }
        let mut spans = Vec::new();
        let mut at = 0;
        for (slice, span, whole) in gpu.spans() {
            let scale = |part: u32| (part as usize * width) / whole as usize;
            let (from, to) = (scale(span.start), scale(span.end));
            let (from, to) = (from.max(at).min(width), to.min(width));
            spans.push(self.free(from - at));
            spans.push(self.cell(slice, to.saturating_sub(from)));
            at = to.max(from);
        }
        spans.push(self.free(width - at));
        spans
    }

    fn free(&self, width: usize) -> Span<'static> {
        let sign = if self.abilities.unicode { "·" } else { "." };
        Span::styled(sign.repeat(width), self.abilities.ink(Color::DarkGray))
    }

    fn cell(&self, slice: &Slice, width: usize) -> Span<'static> {
        let owner = slice.owner.as_ref();
        let text = owner.map_or_else(String::new, |owner| owner.job.to_string());
        let inner = width.saturating_sub(2);
        // A part of a number would be another number.
        let text = if text.len() <= inner { text } else { String::new() };
        let text = match width {
            0 => String::new(),
            1 => "|".to_owned(),
            _ => format!("[{}]", fit(&text, inner)),
        };
        Span::styled(text, self.style(slice))
    }

    /// The style of a slice: how it is used, and whether it is the reader's.
    fn style(&self, slice: &Slice) -> Style {
        let style = match Use::of(slice) {
            Use::Changing => self.abilities.ink(Color::Blue),
            Use::Unknown => Style::new(),
            Use::Warned => self.abilities.ink(Color::Red),
            Use::Idle => self.abilities.ink(Color::Yellow),
            Use::Busy => self.abilities.ink(Color::Green),
        };
        if self.view.is_own(slice) { style.add_modifier(Modifier::BOLD) } else { style }
    }

    fn slice(&self, index: SliceIndex, flat: bool) -> Line<'static> {
        let (node, gpu, _) = index;
        let slice = self.view.slice(index);
        let mut spans = Vec::new();
        for &(field, width) in &self.columns.0 {
            if !spans.is_empty() {
                spans.push(Span::raw(" "));
            }
            spans.push(match field {
                Field::Place => {
                    let text = if flat {
                        place(&self.view.nodes[node].node, self.view.gpu(node, gpu), width)
                    } else {
                        "    ".to_owned() + &positions(slice)
                    };
                    Span::raw(fit(&text, width))
                }
                field => self.field(slice, field, width),
            });
        }
        Line::from(spans)
    }

    fn field(&self, slice: &Slice, field: Field, width: usize) -> Span<'static> {
        let owner = slice.owner.as_ref();
        let usage = slice.usage.as_ref();
        let mut style = self.style(slice);
        let text = match field {
            Field::Place => String::new(),
            Field::Job => {
                // Without colours, too, the reader finds the own jobs.
                let mark = match (self.view.is_this_job(slice), self.view.is_own(slice)) {
                    (true, _) => ">",
                    (false, true) => "*",
                    (false, false) => "",
                };
                let job = owner.map_or("-".to_owned(), |owner| owner.job.to_string());
                right(&format!("{mark}{job}"), width)
            }
            Field::User => fit(owner.map_or("hidden", |owner| &owner.user), width),
            Field::Size => fit(&slice.fraction, width),
            Field::Kind => fit(&slice.kind, width),
            Field::Busy => {
                let busy = usage.and_then(|usage| usage.activity);
                right(&busy.map_or("?".to_owned(), percent), width)
            }
            Field::Bar => {
                let busy = usage.and_then(|usage| usage.activity);
                busy.map_or_else(|| " ".repeat(width), |busy| self.abilities.bar(busy, width))
            }
            Field::Memory => {
                let used = usage.and_then(|usage| usage.memory_mib);
                let used = used.map_or("?".to_owned(), gib);
                right(&format!("{used}/{}", gib(slice.memory_limit_mib)), width)
            }
            Field::Idle => fit(&idle(slice), width),
            Field::Warned => {
                let (text, rating) = warned(slice, self.view.now);
                style = self.abilities.rated(rating);
                fit(&text, width)
            }
        };
        Span::styled(text, style)
    }
}

/// `gn01:3`; of a long name the end is shown, where names of nodes differ.
fn place(node: &str, gpu: &GpuStatus, width: usize) -> String {
    let text = format!("{}:{}", plain(node), gpu.index);
    let letters = text.chars().count();
    if letters > width {
        "~".to_owned() + &text.chars().skip(letters + 1 - width).collect::<String>()
    } else {
        text
    }
}

/// The memory slices: `0-3`.
fn positions(slice: &Slice) -> String {
    match slice.place {
        Some(place) if place.size > 1 => {
            format!(
                "{}-{}",
                place.start,
                u32::from(place.start) + u32::from(place.size) - 1
            )
        }
        Some(place) => place.start.to_string(),
        None => "-".to_owned(),
    }
}

fn idle(slice: &Slice) -> String {
    if slice.state != "active" {
        return slice.state.clone();
    }
    match &slice.usage {
        None => "?".to_owned(),
        Some(usage) => match usage.window {
            Some(window) => format!("{}/{}", span(usage.idle), span(window)),
            None => span(usage.idle),
        },
    }
}

/// What the policy will do, and how bad that is.
fn warned(slice: &Slice, now: u64) -> (String, u8) {
    let Some(usage) = &slice.usage else {
        return (String::new(), 0);
    };
    match (usage.ends, usage.warnings) {
        (Some(ends), _) => (format!("ends in {}", span(ends.saturating_sub(now))), 2),
        (None, 0) => (String::new(), 0),
        (None, 1) => ("1 warning".to_owned(), 1),
        (None, many) => (format!("{many} warnings"), 1),
    }
}

/// The sizes that have room: `free: 1x0.5 2x0.25`.
fn room(gpu: &GpuStatus) -> String {
    let room = gpu.room.iter().filter(|room| room.jobs > 0);
    let room: Vec<String> = room
        .map(|room| format!("{}x{}", room.jobs, room.fraction))
        .collect();
    if room.is_empty() {
        "full".to_owned()
    } else {
        format!("free {}", room.join(" "))
    }
}
