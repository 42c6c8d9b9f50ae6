//! The screen of `gpufrac top`: a head, rows, keys.

use gpufrac_page::words::plain;
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Clear, Paragraph};

use super::line::{Lines, TerminalAbilities, fit};
use super::view::View;

const KEYS: &str = "q quit  s sort  / filter  u mine  enter open  ? help";

const HELP: [&str; 14] = [
    "up, down, k, j      move",
    "page up, page down  move by a page",
    "home, end           first, last line",
    "enter, space        open or close a node or GPU",
    "right, left         open, close",
    "s                   sort: place, busy, memory,",
    "                    idle, warned, user",
    "/                   filter by user or job id",
    "u                   own slices only",
    "r                   read the files now",
    "q, ctrl-c           quit",
    "",
    "> slice of this job     * other own slice",
    "IDLE: idle time / time at which the job ends",
];

/// The area of the rows: the lines between head and keys.
pub fn rows_of(area: Rect) -> usize {
    usize::from(area.height.saturating_sub(4))
}

/// Draws the screen. The view must be scrolled to the rows of this area.
pub fn draw(frame: &mut Frame<'_>, view: &View, abilities: TerminalAbilities) {
    let area = frame.area();
    let width = usize::from(area.width);
    let lines = Lines::of(view, abilities, width);
    let reversed = Style::new().add_modifier(Modifier::REVERSED);
    let mut screen = vec![
        Line::from(fit(&head(view), width)),
        Line::from(fit(&state(view), width)),
        Line::styled(fit(&lines.heads(), width), reversed),
    ];
    let height = rows_of(area);
    if view.rows.is_empty() {
        screen.extend(
            empty(view)
                .into_iter()
                .map(|line| Line::from(fit(&line, width))),
        );
    }
    for (at, &row) in view.rows.iter().enumerate().skip(view.top).take(height) {
        let line = lines.line(row);
        screen.push(if at == view.cursor { line.patch_style(reversed) } else { line });
    }
    screen.truncate(height + 3);
    screen.resize(height + 3, Line::default());
    let keys = if view.is_typing {
        format!(
            "filter by user or job id: {}_   enter: done, esc: none",
            view.filter
        )
    } else {
        KEYS.to_owned()
    };
    screen.push(Line::styled(fit(&keys, width), reversed));
    frame.render_widget(Paragraph::new(screen), area);
    if view.help {
        help(frame, area);
    }
}

/// The sums of all nodes.
pub fn head(view: &View) -> String {
    let name = if view.nodes.len() == 1 { "node" } else { "nodes" };
    format!("{} {name}, {}", view.nodes.len(), view.sums.text())
}

/// The state of the view, and the first problem.
fn state(view: &View) -> String {
    let mut text = format!("sort: {}", view.sort.name());
    if !view.filter.is_empty() {
        text += &format!("  filter: {}", plain(&view.filter));
    }
    if view.only_mine {
        text += "  own slices only";
    }
    match view.problems.as_slice() {
        [] => {}
        [problem] => text += &format!("  {problem}"),
        [problem, others @ ..] => text += &format!("  {} more and {problem}", others.len()),
    }
    text
}

/// The reason why there is no row.
pub fn empty(view: &View) -> Vec<String> {
    let lines: &[&str] = match (view.is_read, view.nodes.is_empty()) {
        (false, _) => &["", "  reading ..."],
        (true, true) => &[
            "",
            "  No file of a node was found. gpufrac-reaperd writes them:",
            "  run this on a node with fractional GPUs, or set `[paths] shared` in",
            "  gpufrac.toml so that every host sees the files of all nodes.",
        ],
        (true, false) => &["", "  No slice is to be shown."],
    };
    lines.iter().map(|&line| line.to_owned()).collect()
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let width = 52.min(area.width);
    let height = (HELP.len() as u16 + 2).min(area.height);
    let place = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, place);
    let lines: Vec<Line<'_>> = HELP.iter().map(|&line| Line::from(line)).collect();
    // A border of ASCII: not every terminal has lines.
    let rule = |letter: char| {
        letter
            .to_string()
            .repeat(usize::from(width.saturating_sub(2)))
    };
    let edge = format!("+{}+", rule('-'));
    let mut all = vec![Line::from(edge.clone())];
    all.extend(lines.into_iter().map(|line| {
        Line::from(format!(
            "| {}|",
            fit(&line.to_string(), usize::from(width.saturating_sub(3)))
        ))
    }));
    all.truncate(usize::from(height.saturating_sub(1)));
    all.push(Line::from(edge));
    frame.render_widget(Paragraph::new(all), place);
}
