//! `gpufrac top`: the slices of a node or a cluster, live, from the files that gpufrac-reaperd writes. It needs neither
//! root nor NVML.

mod line;
mod screen;
mod view;

#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpufrac_core::ids::UserId;
use gpufrac_host::exit::Exit;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal;

use crate::args::TopArgs;
use crate::error::CliError;
use crate::node_files::{self, FileOrFolder, Found, NodeFiles};

use line::{Lines, TerminalAbilities};
use view::{Reader, View};

/// The time after which ages on the screen are drawn again, and a signal is seen.
const TICK: Duration = Duration::from_millis(500);
/// The time in which the loop restores the terminal and ends.
const GRACE: Duration = Duration::from_secs(2);
/// The width of a terminal that does not tell its own.
const WIDTH: u16 = 80;

pub fn run(args: &TopArgs) -> Result<Exit, CliError> {
    let files = files(args)?;
    let filter = args.user.clone().unwrap_or_default();
    let view = View::new(reader(), args.sort, filter, args.me);
    if args.once || !is_screen() {
        once(files, view)
    } else {
        live(files, view, args.delay)
    }
}

fn files(args: &TopArgs) -> Result<NodeFiles, CliError> {
    if !args.from.is_empty() {
        let places = args.from.iter().cloned().map(FileOrFolder::of);
        return Ok(NodeFiles::new(places.collect()));
    }
    let (config, node) = (args.config.read()?, args.config.node_name());
    let own = node_files::own_places(&config, &node);
    Ok(NodeFiles::new(node_files::places(&config, &node)).with_own(own))
}

fn reader() -> Reader {
    let job = std::env::var("SLURM_JOB_ID").ok();
    let user = nix::unistd::getuid();
    Reader {
        user: (!user.is_root()).then(|| UserId(user.as_raw())),
        job: job.and_then(|job| job.parse().ok()),
    }
}

/// Whether the terminal can show a screen.
fn is_screen() -> bool {
    let can_move = std::env::var_os("TERM").is_some_and(|name| name != "dumb" && !name.is_empty());
    can_move && io::stdout().is_terminal() && io::stdin().is_terminal()
}

/// What the terminal shows, by the variables that say so.
fn terminal_abilities(lookup: impl Fn(&str) -> Option<String>) -> TerminalAbilities {
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let term = set("TERM").unwrap_or_default();
    // The terminal vt100, and others of its time, have no colours.
    let plain = term.is_empty() || term == "dumb" || term.starts_with("vt") || term.ends_with("-m");
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| set(name));
    let locale = locale.unwrap_or_default().to_lowercase();
    TerminalAbilities {
        colours: !plain && set("NO_COLOR").is_none(),
        unicode: !plain && (locale.contains("utf-8") || locale.contains("utf8")),
    }
}

fn variables(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

/// Prints all rows once.
fn once(mut files: NodeFiles, mut view: View) -> Result<Exit, CliError> {
    view.now = now();
    view.take(files.read());
    if view.nodes.is_empty() && view.problems.is_empty() {
        return Err(CliError::NoNodeFile);
    }
    let columns = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse().ok());
    let of_terminal = || terminal::size().ok().map(|(width, _)| width);
    let width = columns.or_else(of_terminal).filter(|width| *width > 0);
    for line in text(&view, terminal_abilities(variables), width.unwrap_or(WIDTH)) {
        println!("{line}");
    }
    for problem in &view.problems {
        eprintln!("gpufrac: {problem}");
    }
    Ok(if view.problems.is_empty() { Exit::Done } else { Exit::Broken })
}

/// All rows as text.
fn text(view: &View, abilities: TerminalAbilities, width: u16) -> Vec<String> {
    if view.rows.is_empty() {
        return screen::empty(view);
    }
    let lines = Lines::of(view, abilities, usize::from(width));
    let rows = view.rows.iter().map(|&row| lines.line(row).to_string());
    let all = [screen::head(view), lines.heads()].into_iter().chain(rows);
    all.map(|line| line.trim_end().to_owned()).collect()
}

/// Reads the files again and again, until nobody takes them. A message on `wanted` asks for them now.
fn follow(mut files: NodeFiles, delay: u16, wanted: &Receiver<()>, to: &Sender<Found>) {
    let delay = Duration::from_secs(delay.into());
    while to.send(files.read()).is_ok() {
        if wanted.recv_timeout(delay) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

fn live(files: NodeFiles, mut view: View, delay: u16) -> Result<Exit, CliError> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ended);
    // SIGTERM and SIGHUP end the loop, so that the terminal is restored. Without them only a kill leaves it as it is.
    let _ = ctrlc::set_handler(move || end(&flag));
    let flag = Arc::clone(&ended);
    std::thread::spawn(move || {
        wait_for_hang_up();
        end(&flag);
    });
    let (to, found) = mpsc::channel();
    let (ask, wanted) = mpsc::channel();
    // A shared folder may be slow; the keys must not wait for it.
    std::thread::spawn(move || follow(files, delay, &wanted, &to));
    let terminal = ratatui::try_init().map_err(CliError::Terminal)?;
    let done = turn(terminal, &mut view, &ended, &found, &ask);
    let restored = ratatui::try_restore();
    // A terminal that is gone, such as that of a closed ssh session, needs no restoring.
    if ended.load(Ordering::Relaxed) {
        return Ok(Exit::Done);
    }
    done.and(restored).map_err(CliError::Terminal)?;
    Ok(Exit::Done)
}

/// Ends the loop, and then the program: crossterm reads a terminal that is gone again and again, and does not return.
fn end(ended: &AtomicBool) {
    ended.store(true, Ordering::Relaxed);
    std::thread::sleep(GRACE);
    let _ = ratatui::try_restore();
    std::process::exit(0);
}

/// Returns when the terminal is gone, such as that of a closed ssh session.
fn wait_for_hang_up() {
    let stdin = io::stdin();
    let mut terminal = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
    while matches!(
        poll(&mut terminal, PollTimeout::NONE),
        Err(Errno::EINTR) | Ok(0)
    ) {}
}

fn turn(
    mut terminal: ratatui::DefaultTerminal,
    view: &mut View,
    ended: &AtomicBool,
    found: &Receiver<Found>,
    ask: &Sender<()>,
) -> io::Result<()> {
    let abilities = terminal_abilities(variables);
    while !ended.load(Ordering::Relaxed) {
        view.now = now();
        while let Ok(found) = found.try_recv() {
            view.take(found);
        }
        let mut lines = 0;
        terminal.draw(|frame| {
            lines = screen::rows_of(frame.area());
            view.scroll(lines);
            screen::draw(frame, view, abilities);
        })?;
        // The files are shown as soon as they are read for the first time.
        let wait = if view.is_read { TICK } else { TICK / 10 };
        if !event::poll(wait)? {
            continue;
        }
        let Event::Key(key) = event::read()? else {
            continue;
        };
        match pressed(view, key, lines) {
            Next::Stay => {}
            Next::Read => {
                let _ = ask.send(());
            }
            Next::End => return Ok(()),
        }
    }
    Ok(())
}

/// What follows a key.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Stay,
    Read,
    End,
}

/// `lines`: rows on the screen.
fn pressed(view: &mut View, key: KeyEvent, lines: usize) -> Next {
    if key.kind == KeyEventKind::Release {
        return Next::Stay;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Next::End,
            _ => Next::Stay,
        };
    }
    if view.help {
        view.help = false;
        return Next::Stay;
    }
    if view.is_typing {
        match key.code {
            KeyCode::Enter => view.is_typing = false,
            KeyCode::Esc => {
                view.is_typing = false;
                view.filter(String::clear);
            }
            KeyCode::Backspace => view.filter(|filter| {
                filter.pop();
            }),
            KeyCode::Char(letter) => view.filter(|filter| filter.push(letter)),
            _ => {}
        }
        return Next::Stay;
    }
    let page = isize::try_from(lines).unwrap_or(isize::MAX);
    match key.code {
        KeyCode::Char('q') => return Next::End,
        KeyCode::Char('r') => return Next::Read,
        KeyCode::Char('s') => view.next_sort(),
        KeyCode::Char('u') => view.turn_mine(),
        KeyCode::Esc => view.filter(String::clear),
        KeyCode::Char('/') => view.is_typing = true,
        KeyCode::Char('?' | 'h') => view.help = true,
        KeyCode::Up | KeyCode::Char('k') => view.move_by(-1),
        KeyCode::Down | KeyCode::Char('j') => view.move_by(1),
        KeyCode::PageUp => view.move_by(-page),
        KeyCode::PageDown => view.move_by(page),
        KeyCode::Home | KeyCode::Char('g') => view.move_by(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => view.move_by(isize::MAX),
        KeyCode::Enter | KeyCode::Char(' ') => view.open(None),
        KeyCode::Right => view.open(Some(true)),
        KeyCode::Left => view.open(Some(false)),
        _ => {}
    }
    Next::Stay
}
