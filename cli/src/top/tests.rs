//! Screens of `gpufrac top`. The files in `screens` are what it shows of the nodes in `cli/tests/top`; the variable
//! GPUFRAC_UPDATE writes them again.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use gpufrac_core::ids::JobId;
use gpufrac_view::NodeStatus;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

use super::*;
use crate::args::Sort;

/// The clock of the nodes in `cli/tests/top`.
const NOW: u64 = 1_790_000_000;
const ADA: UserId = UserId(1001);
const COLOURS: TerminalAbilities = TerminalAbilities {
    colours: true,
    unicode: true,
};
const ASCII: TerminalAbilities = TerminalAbilities {
    colours: false,
    unicode: false,
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(view: &mut View, place: &Path) {
    view.now = NOW;
    view.take(NodeFiles::new(vec![FileOrFolder::of(place.to_owned())]).read());
    assert_eq!(view.problems, Vec::<String>::new());
}

fn view(reader: Reader) -> View {
    let mut view = View::new(reader, Sort::Place, String::new(), false);
    read(&mut view, &root().join("tests/top"));
    view
}

fn in_job() -> Reader {
    Reader {
        user: Some(ADA),
        job: Some(JobId(4716)),
    }
}

fn drawn(view: &mut View, abilities: TerminalAbilities, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let draw = |frame: &mut ratatui::Frame<'_>| {
        view.scroll(screen::rows_of(frame.area()));
        screen::draw(frame, view, abilities);
    };
    terminal.draw(draw).unwrap();
    terminal.backend().buffer().clone()
}

fn lines(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    let rows = buffer.content.chunks(width);
    let text =
        |row: &[ratatui::buffer::Cell]| row.iter().map(|cell| cell.symbol()).collect::<String>();
    rows.map(|row| text(row).trim_end().to_owned()).collect()
}

fn press(view: &mut View, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{8}' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        };
        assert_eq!(pressed(view, code.into(), 10), Next::Stay);
    }
}

/// Compares a text with a file of the repository.
fn is_file(path: &Path, text: &str) {
    if std::env::var_os("GPUFRAC_UPDATE").is_some() {
        fs::write(path, text).unwrap();
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    let name = path.display();
    assert_eq!(
        expected, text,
        "{name} differs; GPUFRAC_UPDATE=1 writes it again"
    );
}

fn is_screen_file(name: &str, buffer: &Buffer) {
    let path = root().join("src/top/screens").join(name);
    is_file(&path, &(lines(buffer).join("\n") + "\n"));
}

/// Promise (admins): `gpufrac top` shows slices at any size of the terminal, with the slice of this job and own slices
/// first, sorted and filtered.
/// With `no_key_and_no_size_ends_it`, `the_slice_of_this_job_is_first_and_own_slices_follow`,
/// `slices_are_sorted_and_filtered`, `nodes_and_gpus_open_and_close_and_the_cursor_stays`,
/// `three_sizes_and_a_resize_in_tmux`, `keys_change_the_screen_and_new_files_are_shown`.
#[test]
fn every_size_of_a_terminal_has_its_screen() {
    for (width, height) in [(80, 24), (132, 40), (50, 14)] {
        let mut view = view(in_job());
        is_screen_file(
            &format!("{width}x{height}.txt"),
            &drawn(&mut view, COLOURS, width, height),
        );
    }
    let mut view = view(in_job());
    press(&mut view, "?");
    is_screen_file("help.txt", &drawn(&mut view, ASCII, 80, 24));
}

/// Promise (admins): `gpufrac top` needs no colours, and no terminal; it leaves the terminal as it was.
/// With `variables_say_what_the_terminal_shows`, `terminals_without_colours_or_without_a_cursor`,
/// `without_a_terminal_the_rows_are_printed_once`, `a_signal_leaves_the_terminal_as_it_was`.
#[test]
fn a_terminal_without_colours_has_ascii_alone() {
    let mut view = view(in_job());
    let buffer = drawn(&mut view, ASCII, 80, 24);
    is_screen_file("ascii.txt", &buffer);
    for cell in &buffer.content {
        assert!(cell.symbol().is_ascii(), "{}", cell.symbol());
        assert_eq!((cell.fg, cell.bg), (Color::Reset, Color::Reset));
    }
}

#[test]
fn variables_say_what_the_terminal_shows() {
    let of = |variables: &[(&str, &str)]| {
        let abilities = terminal_abilities(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| (*value).to_owned())
        });
        (abilities.colours, abilities.unicode)
    };
    let utf8 = ("LANG", "en_GB.UTF-8");
    assert_eq!(of(&[("TERM", "xterm-256color"), utf8]), (true, true));
    assert_eq!(
        of(&[("TERM", "xterm"), utf8, ("NO_COLOR", "1")]),
        (false, true)
    );
    assert_eq!(
        of(&[("TERM", "xterm"), utf8, ("NO_COLOR", "")]),
        (true, true)
    );
    assert_eq!(
        of(&[("TERM", "xterm"), utf8, ("LC_ALL", "C")]),
        (true, false)
    );
    assert_eq!(of(&[("TERM", "vt100"), utf8]), (false, false));
    assert_eq!(of(&[("TERM", "dumb"), utf8]), (false, false));
    assert_eq!(of(&[]), (false, false));
}

#[test]
fn the_slice_of_this_job_is_first_and_own_slices_follow() {
    let mut view = view(in_job());
    let own = |view: &View| -> Vec<String> {
        let text = text(view, ASCII, 80).join("\n");
        let marked = text
            .split_whitespace()
            .filter(|word| word.starts_with(['>', '*']));
        marked.map(str::to_owned).collect()
    };
    // Once at the top, once at their place.
    assert_eq!(own(&view), [">4716", "*4711", "*4711", ">4716"]);
    for _ in 1..6 {
        press(&mut view, "s");
        assert_eq!(own(&view), [">4716", "*4711"], "{:?}", view.sort);
    }
    press(&mut view, "u");
    assert_eq!(view.rows.len(), 3, "a title and two slices");
}

#[test]
fn slices_are_sorted_and_filtered() {
    let mut view = view(Reader::default());
    let jobs = |view: &View| -> Vec<u32> {
        let slices = view.rows.iter().filter_map(|row| match row {
            view::ScreenRow::Flat(index) | view::ScreenRow::Slice(index) => {
                Some(view.slice(*index))
            }
            _ => None,
        });
        slices
            .map(|slice| slice.owner.as_ref().map_or(0, |owner| owner.job.0))
            .collect()
    };
    assert_eq!(jobs(&view), [4711, 4712, 4720, 4715, 4716, 4801, 4690, 0]);
    for (sort, first) in [
        (Sort::Busy, [4711, 4690, 4720]),
        (Sort::Memory, [4711, 4720, 4690]),
        (Sort::Idle, [4712, 4715, 4716]),
        (Sort::Warned, [4712, 4715, 4711]),
        (Sort::User, [4711, 4716, 4715]),
    ] {
        press(&mut view, "s");
        assert_eq!(view.sort, sort);
        assert_eq!(jobs(&view)[..3], first, "{sort:?}");
        assert_eq!(jobs(&view).len(), 8);
    }
    // The owner that Slurm hides is last.
    assert_eq!(jobs(&view)[7], 0);
    press(&mut view, "s/lise\n");
    assert_eq!(jobs(&view), [4801, 4690]);
    press(&mut view, "/\u{8}\u{8}\u{8}\u{8}471\n");
    assert_eq!(jobs(&view), [4711, 4712, 4715, 4716]);
    assert_eq!(pressed(&mut view, KeyCode::Esc.into(), 10), Next::Stay);
    assert_eq!(jobs(&view).len(), 8);
}

#[test]
fn nodes_and_gpus_open_and_close_and_the_cursor_stays() {
    let mut view = view(Reader::default());
    let all = view.rows.len();
    press(&mut view, "j\n");
    assert_eq!(view.rows.len(), all - 3, "the first GPU is closed");
    press(&mut view, "k\n");
    assert_eq!(
        view.rows[..2],
        [view::ScreenRow::Node(0), view::ScreenRow::Node(1)]
    );
    press(&mut view, "j");
    read(&mut view, &root().join("tests/top/gn02.json"));
    assert_eq!(
        (view.cursor, view.rows[0]),
        (0, view::ScreenRow::Node(0)),
        "gn02 is now the first"
    );
    press(&mut view, "G");
    assert_eq!(view.cursor, view.rows.len() - 1);
    press(&mut view, "gu");
    assert!(view.rows.is_empty());
    assert!(
        lines(&drawn(&mut view, ASCII, 80, 24))
            .join("\n")
            .contains("No slice")
    );
}

#[test]
fn a_filter_opens_nodes_that_were_opened_by_hand() {
    let mut view = view(Reader::default());
    let nodes = (1..=10).map(|number| {
        let mut node = NodeStatus::clone(&view.nodes[0]);
        node.node = format!("gn{number:02}");
        node.into()
    });
    let nodes = nodes.collect();
    view.take(Found {
        nodes,
        problems: Vec::new(),
    });
    let all = view.rows.len();
    press(&mut view, "g\n");
    let opened = view.rows.len();
    assert!(opened > all, "the first of ten nodes is open");
    press(&mut view, "/4711\n");
    let found = view.rows.iter();
    let found = found.filter(|row| matches!(row, view::ScreenRow::Slice(_)));
    assert_eq!(found.count(), 10);
    assert_eq!(pressed(&mut view, KeyCode::Esc.into(), 10), Next::Stay);
    assert_eq!(view.rows.len(), opened);
}

#[test]
fn q_and_control_c_end_it() {
    let mut view = view(Reader::default());
    let control = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(pressed(&mut view, control, 10), Next::End);
    assert_eq!(pressed(&mut view, KeyCode::Char('q').into(), 10), Next::End);
    press(&mut view, "/q");
    assert_eq!(view.filter, "q", "a letter of the filter");
    assert_eq!(pressed(&mut view, control, 10), Next::End);
}

#[test]
fn a_node_with_a_stuck_place_says_so() {
    let mut view = view(Reader::default());
    let mut node = NodeStatus::clone(&view.nodes[0]);
    node.stuck = vec![test_examples::stuck()];
    view.take(Found {
        nodes: vec![node.into()],
        problems: Vec::new(),
    });
    let text = lines(&drawn(&mut view, ASCII, 120, 24)).concat();
    assert!(text.contains(", 1 stuck "), "{text}");
}

/// Promise (admins): names of users, jobs and nodes cannot control the terminal of `gpufrac top`.
#[test]
fn a_hostile_name_cannot_move_the_cursor() {
    let mut view = view(Reader::default());
    let mut node = NodeStatus::clone(&view.nodes[0]);
    let owner = node.gpus[0].slices[0].owner.as_mut().unwrap();
    owner.user = "\u{1b}[2J\u{202e}eve\n".to_owned();
    node.node = "\u{1b}]0;x\u{7}".to_owned();
    view.take(Found {
        nodes: vec![node.into()],
        problems: vec!["\u{1b}c".to_owned()],
    });
    press(&mut view, "ss");
    let buffer = drawn(&mut view, COLOURS, 80, 24);
    let text = lines(&buffer).concat() + &super::text(&view, COLOURS, 80).concat();
    assert!(text.contains("?[2J?ev"), "{text}");
    assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{text}");
}

/// Any keys on any size of the terminal.
fn keys() -> impl Strategy<Value = Vec<(char, u16, u16)>> {
    let key = proptest::sample::select("jkGg s/\nu?rx4\u{8}".chars().collect::<Vec<_>>());
    proptest::collection::vec((key, 1_u16..140, 1_u16..50), 1..40)
}

proptest! {
    #[test]
    fn no_key_and_no_size_ends_it(keys in keys()) {
        let mut view = view(in_job());
        for (key, width, height) in keys {
            let code = match key {
                '\n' => KeyCode::Enter,
                key => KeyCode::Char(key),
            };
            prop_assert!(pressed(&mut view, code.into(), usize::from(height)) != Next::End);
            let buffer = drawn(&mut view, COLOURS, width, height);
            let rows = screen::rows_of(buffer.area);
            prop_assert!(view.rows.is_empty() || view.cursor < view.rows.len());
            prop_assert!(rows == 0 || view.rows.is_empty() || (view.top..view.top + rows).contains(&view.cursor));
        }
    }
}

/// The colours of a terminal in the manual's picture.
fn colour(colour: Color) -> &'static str {
    match colour {
        Color::Red => "#ff7b72",
        Color::Yellow => "#e3b341",
        Color::Green => "#7ee787",
        Color::Blue => "#79c0ff",
        Color::DarkGray => "#8b949e",
        _ => "#e6edf3",
    }
}

/// A screen as a picture.
fn picture(buffer: &Buffer) -> String {
    const CELL: (u32, u32) = (8, 18);
    let (width, height) = (u32::from(buffer.area.width), u32::from(buffer.area.height));
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"gpufrac top in a terminal\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n\
         <g font-family=\"ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace\" font-size=\"13\">\n",
        width * CELL.0 + 20,
        height * CELL.1 + 20
    );
    for (row, cells) in (0_u32..).zip(buffer.content.chunks(width as usize)) {
        let mut at = 0;
        while at < cells.len() {
            let style = cells[at].style();
            let same = cells[at..].iter().take_while(|cell| cell.style() == style);
            let text: String = same.clone().map(|cell| cell.symbol()).collect();
            run_of_cells(
                &mut svg,
                &text,
                style,
                (at as u32 * CELL.0 + 10, row * CELL.1 + 10),
                CELL,
            );
            at += same.count();
        }
    }
    svg + "</g>\n</svg>\n"
}

/// Cells of one style that follow each other.
fn run_of_cells(svg: &mut String, text: &str, style: Style, (x, y): (u32, u32), cell: (u32, u32)) {
    let letters = text.chars().count() as u32;
    let reversed = style.add_modifier.contains(Modifier::REVERSED);
    let ink = if reversed { "#0d1117" } else { colour(style.fg.unwrap_or_default()) };
    if reversed {
        let paper = colour(style.fg.unwrap_or_default());
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{}\" height=\"{}\" fill=\"{paper}\"/>",
            letters * cell.0,
            cell.1
        );
    }
    let bold = if style.add_modifier.contains(Modifier::BOLD) {
        " font-weight=\"bold\""
    } else {
        ""
    };
    // Each word has its place: readers of SVG differ in spaces.
    let mut at = x;
    for word in text.split(' ') {
        let letters = word.chars().count() as u32;
        if letters > 0 {
            let word = word.replace('&', "&amp;").replace('<', "&lt;");
            let _ = writeln!(
                svg,
                "<text x=\"{at}\" y=\"{}\" textLength=\"{}\" fill=\"{ink}\"{bold}>{word}</text>",
                y + 14,
                letters * cell.0
            );
        }
        at += (letters + 1) * cell.0;
    }
}

/// Promise (admins): the picture of `gpufrac top` in the manual is its screen.
#[test]
fn the_picture_of_the_manual_is_this_screen() {
    let mut view = view(in_job());
    press(&mut view, "j");
    let buffer = drawn(&mut view, COLOURS, 100, 26);
    is_file(&root().join("../docs/images/top.svg"), &picture(&buffer));
}
