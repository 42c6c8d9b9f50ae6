//! Attacks of users on daemons, logs and files: none drains a node, keeps a lock, or affects another user's job.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::program::{Program, eventually, lives};
use common::shares::{Control, Kind};
use common::{World, at_once, job, job_of_tasks};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getsid};

#[test]
fn child() {
    common::child();
}

const STANDIN: Control = Control::Standin("{}");

/// A node whose folder all users can pass.
fn ready(kind: Kind, control: Control) -> World {
    let world = match kind {
        Kind::Mig => World::new(),
        kind => World::shared(kind, control),
    };
    fs::set_permissions(world.root(), fs::Permissions::from_mode(0o711)).unwrap();
    world.setup().ok();
    world
}

/// A program with this name and mode below the folder of a node.
fn program(world: &World, name: &str, of: &str, mode: u32) -> PathBuf {
    let path = world.root().join(name);
    let copied = Command::new("cp").arg(of).arg(&path).status();
    assert!(copied.unwrap().success());
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// Promise (users): a process that has only the name of a control daemon or a server is not taken for one; the wait for
/// a silent daemon happens once.
/// With `a_set_uid_program_under_the_daemons_name_is_none`,
/// `a_private_server_ends_with_its_job_though_its_daemon_died`, `all_clients_of_a_job_cost_one_silence`,
/// `a_silent_daemon_costs_a_job_with_many_slices_one_silence`, `servers_and_logs_of_a_private_daemon`.
#[test]
fn processes_that_are_only_called_servers_keep_nobody() {
    let world = ready(Kind::MpsPrivate, Control::Real);
    let server = program(&world, "nvidia-cuda-mps-server", "/bin/sleep", 0o755);
    let one = job(1, 0, 20);
    world.prolog(one).ok();
    let pipe = world.pipe(one);
    let fake = || {
        let mut command = Command::new(&server);
        command.env("CUDA_MPS_PIPE_DIRECTORY", &pipe);
        Program::start(command.arg("100").uid(one.uid))
    };
    let fakes: Vec<Program> = (0..50).map(|_| fake()).collect();
    eventually(|| world.mps().len() == 51);
    world.epilog(one).ok();
    // Slurm ends the processes of the job by its control group.
    assert!(fakes.iter().all(Program::lives));
    assert!(world.leases().is_empty());
    drop(fakes);
    world.check(&[]);
}

#[test]
fn a_set_uid_program_under_the_daemons_name_is_none() {
    let world = ready(Kind::MpsShared, Control::Real);
    // Like sudo while it waits for a password: all ids are root's; name, arguments and environment are the user's.
    let control = program(&world, "nvidia-cuda-mps-control", "/bin/sh", 0o4755);
    let (one, two) = (job(1, 0, 20), job(2, 0, 20));
    let mut command = Command::new(&control);
    let pipe = world.root().join("run/mps/gpu0/pipe");
    command.env("CUDA_MPS_PIPE_DIRECTORY", &pipe);
    let fake = Program::start(
        command
            .args(["-c", "read line", "-d"])
            .stdin(Stdio::piped()),
    );
    eventually(|| !world.mps().is_empty());
    world.prolog(one).ok();
    world.prolog(two).ok();
    world.epilog(two).ok();
    world.epilog(one).ok();
    assert!(fake.lives(), "root killed a user's program");
    drop(fake);
    world.check(&[]);
}

/// Makes the stand-in start a server for a program, as this program's user; returns its pid.
fn served(world: &World, pipe: &Path, program: &Program) -> (i32, UnixStream) {
    let mut stream = UnixStream::connect(pipe.join("control")).unwrap();
    writeln!(stream, "connect {}", program.pid()).unwrap();
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).unwrap();
    let list = world.mps_control(pipe, "get_server_list");
    let server = list.trim().parse().expect(&answer);
    (server, stream)
}

#[test]
fn a_private_server_ends_with_its_job_though_its_daemon_died() {
    let world = ready(Kind::MpsPrivate, STANDIN);
    let (one, two) = (job(1, 0, 20), job(2, 0, 20));
    // Also with one user: only its session shows to which daemon a server belongs.
    let same = common::Job {
        uid: one.uid,
        ..job(3, 0, 20)
    };
    let mut running = Vec::new();
    for each in [one, two, same] {
        world.prolog(each).ok();
        let client = Program::of(each.uid);
        let (server, stream) = served(&world, &world.pipe(each), &client);
        let meta = fs::metadata(format!("/proc/{server}")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (each.uid, each.uid));
        running.push((server, stream, client));
    }
    let daemon = world.daemon(one);
    kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
    eventually(|| !lives(daemon));
    assert!(lives(running[0].0));
    world.epilog(one).ok();
    eventually(|| !lives(running[0].0));
    assert!(lives(running[1].0) && lives(running[2].0));
    world.epilog(two).ok();
    world.epilog(same).ok();
    world.check(&[]);
}

/// Promise (users): a server of a private MPS daemon ends with its job, even if its user moved it to another control
/// group.
/// With `a_process_must_be_missing_in_two_searches_before_it_counts_as_ended`.
#[test]
fn a_private_server_that_leaves_its_session_ends_with_its_job() {
    let world = ready(
        Kind::MpsPrivate,
        Control::Standin(r#"{"servers_leave": true}"#),
    );
    let one = job(1, 0, 20);
    let same = common::Job {
        uid: one.uid,
        ..job(2, 0, 20)
    };
    let mut running = Vec::new();
    for each in [one, same] {
        world.prolog(each).ok();
        let client = Program::of(each.uid);
        let (server, stream) = served(&world, &world.pipe(each), &client);
        eventually(|| getsid(Some(Pid::from_raw(server))) == Ok(Pid::from_raw(server)));
        running.push((server, stream, client));
    }
    // Nothing else shows its owner: its daemon has ended, and so has its session.
    let daemon = world.daemon(one);
    kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
    eventually(|| !lives(daemon));
    world.epilog(one).ok();
    eventually(|| !lives(running[0].0));
    assert!(lives(running[1].0), "that of another job of the user");
    world.epilog(same).ok();
    eventually(|| !lives(running[1].0));
    world.check(&[]);
}

#[test]
fn all_clients_of_a_job_cost_one_silence() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, two) = (job(1, 0, 20), job(2, 0, 20));
    world.prolog(one).ok();
    world.prolog(two).ok();
    let clients: Vec<Program> = (0..12).map(|_| Program::of(one.uid)).collect();
    let other = Program::of(two.uid);
    let pipe = world.pipe(one);
    let server = world.start_server(&pipe);
    for client in clients.iter().chain([&other]) {
        world.mps_control(&pipe, &format!("standin client {server} {}", client.pid()));
    }
    world.standin_options(r#"{"hang": ["terminate_client"]}"#);
    world.forget_commands();
    world.epilog(one).ok().says("does not answer");
    let asked = world.commands();
    let asked = asked.iter().filter(|c| c.starts_with("terminate_client"));
    assert_eq!(asked.count(), 1);
    eventually(|| !clients.iter().any(Program::lives));
    assert!(other.lives() && lives(server));
    world.standin_options("{}");
    world.check(&[]);
}

#[test]
fn a_silent_daemon_costs_a_job_with_many_slices_one_silence() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, two) = (job_of_tasks(1, 0, 10, 6), job(2, 0, 10));
    world.slurm_counts(one);
    world.prolog(one).ok();
    world.prolog(two).ok();
    world.standin_options(r#"{"hang": ["get_server_list"]}"#);
    world.forget_commands();
    world.epilog(one).ok().says("does not answer");
    // Asked again after its log was emptied, which may have blocked it.
    assert_eq!(world.commands(), ["get_server_list"; 2]);
    assert!(world.leases_of(one).is_empty());
    world.standin_options("{}");
    world.check(&[]);
}

/// Writes lines to the pipe of a daemon's log as a user, as MPS clients do; the daemon copies them.
fn write_log(world: &World, pipe: &Path, user: u32, lines: usize) {
    let message = [b'x'; 2000];
    let mut record = Vec::new();
    for number in [0xabcd_e000, 1, 2026, 1, 1, 0, 0, 0, 0, 0, 2000, 0_u32] {
        record.extend(number.to_le_bytes());
    }
    record.extend(message);
    let path = world.root().join("records");
    fs::write(&path, record.repeat(lines)).unwrap();
    let mut command = Command::new("dd");
    command.args(["bs=2048", "conv=nocreat", "status=none"]);
    command.arg(format!("of={}", pipe.join("log").display()));
    command.stdin(File::open(&path).unwrap()).uid(user);
    assert!(command.status().unwrap().success());
}

#[test]
fn logs_of_clients_fill_no_file_system() {
    let world = ready(Kind::MpsShared, Control::Real);
    let (one, two, three) = (job(1, 0, 20), job(2, 0, 20), job(3, 1, 20));
    world.prolog(one).ok();
    let (pipe, daemon) = (world.pipe(one), world.daemon(one));
    let log = pipe.with_file_name("log/control.log");
    let size = || fs::metadata(&log).unwrap().len();
    write_log(&world, &pipe, one.uid, 1000);
    eventually(|| size() > 1 << 20);
    write_log(&world, &pipe, one.uid, 8000);
    let space = 8 << 20;
    eventually(|| size() + 4096 > space);
    assert!(size() <= space);
    // It continues without a log until a job starts.
    assert_eq!(world.mps_control(&pipe, "get_server_list"), "");
    world.prolog(two).ok();
    assert_eq!(world.daemon(two), daemon);
    assert!(size() < 1 << 20);
    world.prolog(three).ok();
    for each in [one, two, three] {
        world.epilog(each).ok();
    }
    world.check(&[]);
    assert_eq!(world.mounts(), Vec::<PathBuf>::new());
}

/// Promise (users): a user who fills HAMi-core's file, the daemon's log or /run harms no other job and drains no node.
/// With `logs_of_clients_fill_no_file_system`, `a_full_run_folder_lets_jobs_wait_and_end`, `a_file_of_hami_core`.
#[test]
fn a_job_fills_its_own_cache_and_no_other() {
    let world = ready(Kind::Hami, Control::None);
    let (one, two) = (job(1, 0, 20), job(2, 0, 20));
    world.prolog(one).ok();
    world.prolog(two).ok();
    let cache = |job: common::Job| {
        let lease = world.lease(job).unwrap();
        PathBuf::from(&lease.slice.hami().unwrap().cache)
    };
    let fill = |job: common::Job, of: &Path| {
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", "bs=1M", "count=64", "conv=nocreat"]);
        command.arg(format!("of={}", of.display()));
        let output = command.env("LC_ALL", "C").uid(job.uid).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = fill(one, &cache(one));
    assert!(said.contains("No space left"), "{said}");
    assert!(fs::metadata(cache(one)).unwrap().len() <= 8 << 20);
    let said = fill(one, &cache(two));
    assert!(said.contains("Permission denied"), "{said}");
    let said = fill(one, &cache(one).with_file_name("more"));
    assert!(said.contains("No such file"), "{said}");
    // The library's file has 2 MiB.
    fs::write(cache(two), vec![1; 2 << 20]).unwrap();
    let _held = File::open(cache(one)).unwrap();
    world.epilog(one).ok();
    world.check(&[]);
    world.epilog(two).ok();
    world.check(&[]);
}

/// Uses up all space of a file system.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    while file.write_all(&[0; 4096]).is_ok() {}
}

#[test]
fn a_full_run_folder_lets_jobs_wait_and_end() {
    let kinds = [Kind::Mig, Kind::MpsShared, Kind::Timeslice, Kind::Hami];
    at_once(kinds, |kind| {
        let control = match kind {
            Kind::MpsShared => Control::Real,
            _ => Control::None,
        };
        let world = match kind {
            Kind::Mig => World::new(),
            kind => World::shared(kind, control),
        };
        let run = world.root().join("run");
        fs::create_dir(&run).unwrap();
        let options = ["-t", "tmpfs", "-o", "size=256k,mode=755", "full"];
        let mounted = Command::new("mount").args(options).arg(&run).status();
        assert!(mounted.unwrap().success());
        world.setup().ok();
        let (one, two) = (job(1, 0, 25), job(2, 0, 25));
        world.prolog(one).ok();
        world.slurm_knows(two);
        let filler = run.join("filler");
        fill(&filler);
        world.prolog(two).ok().says("No space left on device");
        assert_eq!(world.slurm_was_told(), ["requeue 2"], "{kind:?}");
        world.epilog(two).ok();
        // Ending a job needs no space.
        world.epilog(one).ok();
        assert!(world.leases().is_empty(), "{kind:?}");
        fs::remove_file(&filler).unwrap();
        world.prolog(two).ok();
        world.check(&[]);
        world.epilog(two).ok();
        world.check(&[]);
    });
}
