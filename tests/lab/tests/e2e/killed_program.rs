//! A killed program leaves nothing of its lab behind.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpufrac_lab::{Lab, LabError};
use nix::sys::signal::Signal;

/// The variable that makes this program the one to be killed.
const VICTIM: &str = "GPUFRAC_LAB_VICTIM";

/// The promise: no daemon remains for longer than a minute.
const LIMIT: Duration = Duration::from_secs(60);

/// The work of the program that is killed.
#[test]
#[ignore = "not a test: the other tests here start it and kill it"]
fn victim() -> Result<(), LabError> {
    match std::env::var(VICTIM).as_deref() {
        Ok("job") => {
            let lab = Lab::builder().start()?;
            let gres = ["--gres=gpufrac:0.25", "--wrap=sleep 1000"];
            let job = lab.sbatch(&lab.users()[0], &gres)?;
            lab.wait_for_state(job, &["RUNNING"])?;
            let srun = lab.command("srun").args(["sleep", "1000"]).spawn()?;
            println!(
                "\nready {} {}",
                lab.folder().root().display(),
                lab.nodes()[0]
            );
            srun.wait().map(drop)
        }
        Ok("start") => Lab::builder().accounting().start().map(drop),
        other => panic!("{VICTIM} is {other:?}"),
    }
}

/// The program, and its output.
fn victim_that(does: &str, temporary: &Path) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([
            "--exact",
            "killed_program::victim",
            "--ignored",
            "--nocapture",
        ])
        .env(VICTIM, does)
        .env("TMPDIR", temporary)
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("this program starts");
    let stdout = child.stdout.take().expect("a pipe");
    (child, BufReader::new(stdout))
}

fn kill(mut child: Child) {
    child.kill().expect("it runs");
    let status = child.wait().expect("a child");
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
}

/// Processes with an open file, a variable or an argument below `place`, and mounts there.
pub(crate) fn left_below(place: &Path) -> Vec<String> {
    let place = place.to_string_lossy();
    let mounts = std::fs::read_to_string("/proc/mounts").expect("/proc/mounts");
    let below = |line: &&str| line.contains(&*place);
    let mut left: Vec<_> = mounts.lines().filter(below).map(str::to_owned).collect();
    for entry in std::fs::read_dir("/proc").expect("/proc").flatten() {
        let proc = entry.path();
        let text = |file| std::fs::read(proc.join(file)).unwrap_or_default();
        let text = |file| String::from_utf8_lossy(&text(file)).replace('\0', " ");
        let (line, environment) = (text("cmdline"), text("environ"));
        let files = std::fs::read_dir(proc.join("fd")).into_iter().flatten();
        let mut files = files
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.path()).ok());
        let holds = files.any(|target| target.to_string_lossy().contains(&*place));
        // A zombie has no command line.
        if (holds || environment.contains(&*place) || line.contains(&*place)) && !line.is_empty() {
            left.push(format!("{}: {line}", proc.display()));
        }
    }
    left
}

fn groups_of(node: &str) -> Vec<PathBuf> {
    let scope = format!("system.slice/{node}_slurmstepd.scope");
    let places = [
        format!("devices/slurm_{node}"),
        format!("freezer/slurm_{node}"),
        format!("unified/{scope}"),
        scope,
    ];
    let groups = places.map(|place| Path::new("/sys/fs/cgroup").join(place));
    groups.into_iter().filter(|path| path.exists()).collect()
}

/// Waits until nothing is left below `temporary`.
fn expect_nothing(temporary: &Path, node: Option<&str>) {
    let killed = Instant::now();
    loop {
        let left = left_below(temporary);
        let groups = node.map(groups_of).unwrap_or_default();
        let files = std::fs::read_dir(temporary).expect("the folder").flatten();
        let files: Vec<_> = files.map(|entry| entry.path()).collect();
        if left.is_empty() && groups.is_empty() && files.is_empty() {
            return;
        }
        assert!(
            killed.elapsed() < LIMIT,
            "left behind: {left:#?}\n{groups:#?}\n{files:#?}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_running_job_and_all_daemons_end_with_it() {
    let temporary = tempfile::tempdir().expect("a folder");
    let (child, mut output) = victim_that("job", temporary.path());
    let node = loop {
        let mut line = String::new();
        let read = output.read_line(&mut line).expect("text");
        assert!(read > 0, "the program ended before its lab was up");
        if let Some(words) = line.trim().strip_prefix("ready ") {
            break words.rsplit_once(' ').expect("two words").1.to_owned();
        }
    };
    assert!(!groups_of(&node).is_empty());
    assert!(!left_below(temporary.path()).is_empty());
    kill(child);
    expect_nothing(temporary.path(), Some(&node));
}

#[test]
fn a_lab_that_is_starting_ends_with_its_program() {
    let temporary = tempfile::tempdir().expect("a folder");
    let has = |wanted: &str| {
        let labs = std::fs::read_dir(temporary.path()).expect("the folder");
        let mut labs = labs.flatten().map(|lab| lab.path());
        labs.any(|lab| lab.join(wanted).exists())
    };
    // At moments from the first file to the first daemon of Slurm.
    for sign in [
        "lab.json",
        "database/data",
        "munge/socket",
        "log/slurmctld.log",
    ] {
        let (mut child, output) = victim_that("start", temporary.path());
        while !has(sign) {
            let ended = child.try_wait().expect("a child");
            assert_eq!(ended, None, "the lab started before it had {sign}");
            std::thread::sleep(Duration::from_millis(1));
        }
        kill(child);
        drop(output);
        expect_nothing(temporary.path(), None);
    }
}
