//! `gpufrac top` in a terminal: Debian's tmux, which is downloaded once, into the build folder.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use debian::{DebianError, Release};
use serde_json::Value;

/// The clock of the nodes in `tests/top`.
const NOW: u64 = 1_790_000_000;
/// The time limit for a screen on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// tmux and its libraries.
struct Tmux(PathBuf);

fn tmux() -> Result<Tmux, DebianError> {
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tmux");
    let folder = cache.join("tree");
    // Locked from here on, because the tests of this file start at the same time.
    let release = Release::open(&cache, "bookworm")?;
    if !folder.join("complete").exists() {
        for package in ["tmux", "libevent-core-2.1-7", "libutempter0"] {
            debian::extract(&release.package(package)?, &folder)?;
        }
        fs::write(folder.join("complete"), "").unwrap();
    }
    Ok(Tmux(folder))
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// The nodes of `tests/top`, as if they were written now.
fn nodes(folder: &Path) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/top");
    let later = now() - NOW;
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let mut node: Value = serde_json::from_slice(&fs::read(entry.path()).unwrap()).unwrap();
        move_times(&mut node, later);
        fs::write(folder.join(entry.file_name()), node.to_string()).unwrap();
    }
}

fn move_times(value: &mut Value, later: u64) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value.as_u64()) {
                    ("written" | "since" | "ends", Some(time)) => *value = (time + later).into(),
                    _ => move_times(value, later),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| move_times(value, later)),
        _ => {}
    }
}

/// A terminal in which `gpufrac top` runs.
struct Terminal<'a> {
    tmux: &'a Tmux,
    folder: tempfile::TempDir,
}

impl Terminal<'_> {
    fn start<'a>(
        tmux: &'a Tmux,
        (width, height): (u16, u16),
        variables: &str,
        args: &str,
    ) -> Terminal<'a> {
        let folder = tempfile::tempdir().unwrap();
        // Other users may read, as on a node.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let status = folder.path().join("status");
        fs::create_dir(&status).unwrap();
        nodes(&status);
        let program = env!("CARGO_BIN_EXE_gpufrac");
        let line = format!(
            "env -u NO_COLOR SLURM_JOB_ID=4716 LC_ALL=C.UTF-8 {variables} {program} top --delay 1 --from {} {args}; echo ended with $?; sleep 600",
            status.display()
        );
        let terminal = Terminal { tmux, folder };
        let size = [width.to_string(), height.to_string()];
        let session = ["new-session", "-d", "-x", &size[0], "-y", &size[1], &line];
        let started = terminal.ask(&session);
        assert!(started.status.success(), "{started:?}");
        terminal
    }

    fn ask(&self, args: &[&str]) -> Output {
        let libraries = self.tmux.0.join("usr/lib/x86_64-linux-gnu");
        let mut command = Command::new(self.tmux.0.join("usr/bin/tmux"));
        command
            .arg("-S")
            .arg(self.folder.path().join("socket"))
            .args(["-f", "/dev/null"])
            .args(args)
            .env("LC_ALL", "C.UTF-8")
            .env_remove("TMUX")
            .env("LD_LIBRARY_PATH", libraries);
        command.output().unwrap()
    }

    fn screen(&self) -> String {
        let output = self.ask(&["capture-pane", "-p"]);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits for a screen with these texts.
    fn wait(&self, wanted: &[&str]) -> String {
        let began = Instant::now();
        loop {
            let screen = self.screen();
            if wanted.iter().all(|text| screen.contains(text)) {
                return screen;
            }
            assert!(began.elapsed() < PATIENCE, "no {wanted:?} in:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn keys(&self, keys: &[&str]) {
        assert!(self.ask(&[&["send-keys"], keys].concat()).status.success());
    }

    fn resize(&self, width: u16, height: u16) {
        let size = [width.to_string(), height.to_string()];
        let done = self.ask(&["resize-window", "-x", &size[0], "-y", &size[1]]);
        assert!(done.status.success(), "{done:?}");
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.ask(&["kill-server"]);
    }
}

/// The pid of the program that the shell of the terminal runs.
fn program(terminal: &Terminal<'_>) -> i32 {
    let shell = terminal.ask(&["display-message", "-p", "#{pane_pid}"]);
    let shell = String::from_utf8(shell.stdout).unwrap();
    let children =
        fs::read_to_string(format!("/proc/{0}/task/{0}/children", shell.trim())).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

/// As at the end of an ssh session. A program that reads its lost terminal for ever would need a core.
#[test]
fn the_program_ends_with_its_terminal() {
    let tmux = test_seed::needed(tmux());
    let terminal = Terminal::start(&tmux, (80, 24), "", "");
    terminal.wait(&["q quit"]);
    let program = format!("/proc/{}", program(&terminal));
    drop(terminal);
    let began = Instant::now();
    while Path::new(&program).exists() {
        assert!(began.elapsed() < PATIENCE, "it still runs");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Each line of the screen fits, and its first and last lines are there.
fn is_whole(screen: &str, (width, height): (usize, usize)) {
    let lines: Vec<&str> = screen.lines().collect();
    assert!(
        lines.iter().all(|line| line.chars().count() <= width),
        "{screen}"
    );
    assert!(lines[0].starts_with("3 nodes, 5 GPUs"), "{screen}");
    assert!(
        lines.iter().any(|line| line.starts_with("q quit")),
        "{screen}"
    );
    assert!(lines.len() <= height, "{screen}");
}

#[test]
fn three_sizes_and_a_resize_in_tmux() {
    let tmux = test_seed::needed(tmux());
    for (width, height) in [(80, 24), (132, 43), (50, 14)] {
        let terminal = Terminal::start(&tmux, (width, height), "", "");
        let screen = terminal.wait(&[">4716", "q quit"]);
        is_whole(&screen, (width.into(), height.into()));
        // Without a key: the screen follows the size.
        let (wide, high) = (width + 20, height + 6);
        terminal.resize(wide, high);
        let follows = |screen: &str| {
            let keys = screen.lines().position(|line| line.starts_with("q quit"));
            keys == Some(usize::from(high) - 1)
        };
        let began = Instant::now();
        while !follows(&terminal.screen()) {
            assert!(began.elapsed() < PATIENCE, "{}", terminal.screen());
            std::thread::sleep(Duration::from_millis(50));
        }
        is_whole(&terminal.screen(), (wide.into(), high.into()));
        terminal.keys(&["q"]);
        terminal.wait(&["ended with 0"]);
    }
}

#[test]
fn keys_change_the_screen_and_new_files_are_shown() {
    let tmux = test_seed::needed(tmux());
    let terminal = Terminal::start(&tmux, (80, 24), "", "");
    terminal.wait(&["sort: place", "All nodes"]);
    terminal.keys(&["s"]);
    terminal.wait(&["sort: busy", "Slices of others"]);
    terminal.keys(&["/"]);
    terminal.keys(&["-l", "lise"]);
    terminal.keys(&["Enter"]);
    let screen = terminal.wait(&["filter: lise", "4690"]);
    assert!(!screen.contains("4711"), "{screen}");
    terminal.keys(&["?"]);
    terminal.wait(&["filter by user or job id"]);
    terminal.keys(&["x"]);
    // The node gn02 has ended its job.
    fs::remove_file(terminal.folder.path().join("status/gn02.json")).unwrap();
    let began = Instant::now();
    while terminal.screen().contains("4690") {
        assert!(began.elapsed() < PATIENCE, "{}", terminal.screen());
        std::thread::sleep(Duration::from_millis(50));
    }
    terminal.wait(&["2 nodes"]);
    terminal.keys(&["C-c"]);
    terminal.wait(&["ended with 0"]);
}

/// Whether a text sets a colour: 39 and 49 are the terminal's own.
fn has_colour(text: &str) -> bool {
    let codes = text.split("\u{1b}[").skip(1);
    let mut codes = codes
        .filter_map(|code| code.split_once('m'))
        .flat_map(|(code, _)| code.split(';'));
    codes.any(|code| matches!(code.parse(), Ok(30..=38 | 40..=48 | 90..=107)))
}

#[test]
fn terminals_without_colours_or_without_a_cursor() {
    let tmux = test_seed::needed(tmux());
    for variables in ["NO_COLOR=1", "TERM=vt100"] {
        let terminal = Terminal::start(&tmux, (80, 24), variables, "");
        terminal.wait(&[">4716", "q quit"]);
        let coloured = terminal.ask(&["capture-pane", "-p", "-e"]);
        let text = String::from_utf8(coloured.stdout).unwrap();
        assert!(!has_colour(&text), "{variables}: {text:?}");
    }
    let terminal = Terminal::start(&tmux, (80, 24), "", "");
    terminal.wait(&[">4716"]);
    let coloured = terminal.ask(&["capture-pane", "-p", "-e"]);
    assert!(has_colour(&String::from_utf8(coloured.stdout).unwrap()));
    // Prints the rows once.
    let terminal = Terminal::start(&tmux, (80, 43), "TERM=dumb", "");
    let screen = terminal.wait(&[">4716", "ended with 0"]);
    assert!(
        screen.starts_with("3 nodes") && !screen.contains("q quit"),
        "{screen}"
    );
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let tmux = test_seed::needed(tmux());
    let terminal = Terminal::start(&tmux, (80, 24), "", "");
    terminal.wait(&["q quit"]);
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(program(&terminal)),
        nix::sys::signal::SIGTERM,
    )
    .unwrap();
    let screen = terminal.wait(&["ended with 0"]);
    assert!(
        !screen.contains("q quit"),
        "the screen before is back: {screen}"
    );
}

fn top(args: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpufrac"));
    command.args(["top", "--from"]).arg(folder).args(args);
    command.env_remove("SLURM_JOB_ID").env("COLUMNS", "80");
    command.output().unwrap()
}

#[test]
fn without_a_terminal_the_rows_are_printed_once() {
    let folder = tempfile::tempdir().unwrap();
    nodes(folder.path());
    let output = top(&[], folder.path());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("4711") && text.contains("ends in"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    fs::write(folder.path().join("gn04.json"), "{").unwrap();
    let output = top(&[], folder.path());
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("gn04.json` failed"), "{errors}");
    let nothing = tempfile::tempdir().unwrap();
    let output = top(&[], nothing.path());
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("hint: gpufrac-reaperd writes them"),
        "{errors}"
    );
}

#[test]
fn the_slices_of_a_thousand_nodes_are_shown_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let mut slices = 0;
    for node in test_examples::nodes(1000, 7) {
        slices += node.gpus.iter().map(|gpu| gpu.slices.len()).sum::<usize>();
        let path = folder.path().join(format!("{}.json", node.node));
        fs::write(path, serde_json::to_string(&node).unwrap()).unwrap();
    }
    let began = Instant::now();
    let output = top(&["--sort", "idle"], folder.path());
    let took = began.elapsed();
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap().lines().count();
    println!("{slices} slices of 1000 nodes: {} s", took.as_secs_f64());
    // The head has two lines.
    assert_eq!(lines, slices + 2);
    // A build without optimization on a busy machine.
    assert!(took < Duration::from_secs(20), "{took:?}");
}
