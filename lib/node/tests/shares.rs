//! GPUs that are shared without MIG, or by MPS inside it, on a simulated node. The control daemon is NVIDIA's own
//! where it needs no GPU, otherwise a stand-in.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::program::{Program, eventually, lives};
use common::shares::{Control, Kind, access};
use common::{Ended, Job, LOCK_PATIENCE, World, at_once, job, job_of_tasks};
use gpufrac_core::ids::DeviceIndex;
use gpufrac_core::lease::LeaseState;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{Pid, getsid};
use nvidia_ml::node::compute_mode::{DEFAULT, EXCLUSIVE_PROCESS, PROHIBITED};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};

#[test]
fn child() {
    common::child();
}

const STANDIN: Control = Control::Standin("{}");

fn ready(kind: Kind, control: Control) -> World {
    let world = World::shared(kind, control);
    world.setup().ok();
    world.check(&[]);
    world
}

fn signal(pid: i32, what: Signal) {
    kill(Pid::from_raw(pid), what).unwrap();
}

/// A process with the name of a server of the daemon of `pipe`.
fn impostor(user: u32, pipe: &Path, program: &Path) -> Program {
    let mut command = Command::new(program);
    command.arg("100").uid(user).stdin(Stdio::null());
    command.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    Program::start(&mut command)
}

/// A server with these clients.
fn serve(world: &World, pipe: &Path, clients: &[i32]) -> i32 {
    let server = world.start_server(pipe);
    for client in clients {
        world.mps_control(pipe, &format!("standin client {server} {client}"));
    }
    server
}

/// Promise (users): MPS: daemon, limits and environment of a job, shared and private.
/// With `each_job_has_a_daemon_of_its_own`, `two_users_share_a_daemon_and_nobody_else_reaches_it`,
/// `a_private_daemon_is_its_jobs_alone`.
#[test]
fn the_daemons_limits_are_those_of_the_largest_share() {
    let world = ready(Kind::MpsShared, Control::Real);
    let jobs = [job(1, 0, 20), job(2, 0, 45), job(3, 0, 30), job(4, 1, 10)];
    let mut said = Vec::new();
    let mut check = || {
        world.check(&[]);
        if let Some(first) = world
            .leases()
            .iter()
            .find(|l| l.slice.device_index == DeviceIndex(0))
        {
            let pipe = first.slice.mps().unwrap().pipe();
            let text = world.mps_control(pipe.as_ref(), "get_default_active_thread_percentage");
            said.push(text.trim().to_owned());
        }
    };
    for one in jobs {
        world.prolog(one).ok();
        check();
    }
    let daemon = world.daemon(jobs[0]);
    assert_eq!(daemon, world.daemon(jobs[1]));
    assert_ne!(daemon, world.daemon(jobs[3]));
    let lease = world.lease(jobs[1]).unwrap();
    assert_eq!(lease.slice.memory_mib.0, 81559 * 45 / 100);
    for one in [jobs[1], jobs[0], jobs[3], jobs[2]] {
        world.epilog(one).ok();
        check();
    }
    assert_eq!(
        said,
        ["20.0", "45.0", "45.0", "45.0", "30.0", "30.0", "30.0"]
    );
    assert_eq!(world.usage().len(), 4);
}

/// [`ready`], with more keys of the pool.
fn ready_to_lend(kind: Kind, control: Control, keys: &str) -> World {
    let world = World::shared(kind, control);
    lend(&world, keys);
    world.setup().ok();
    world
}

/// Changes the pool, as an admin does while jobs run.
fn lend(world: &World, keys: &str) {
    let keys = format!("{}\n{keys}", world.kind.keys(world.root()));
    world.configure(world.kind.layout(), "H100-80", &keys);
}

fn bursting(id: u32, units: u32, burst: u32) -> Job {
    Job {
        burst,
        ..job(id, 0, units)
    }
}

/// What the daemon allows a client that unset its own limit, and the memory.
fn allowed(world: &World, one: Job) -> String {
    let ask = "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0";
    world.mps_control(&world.pipe(one), ask)
}

/// Promise (users): --gpufrac-burst raises the ceiling of compute, in the job's environment and the daemon's default,
/// and no memory limit or count.
/// With `a_running_server_gives_new_clients_the_ceiling_of_the_jobs_that_are_there`,
/// `a_burst_in_a_half_is_one_of_the_half`, `a_burst_goes_into_the_entry_and_not_into_the_count`,
/// `a_burst_raises_the_ceiling_and_is_counted_nowhere`, `clients_of_an_owner_and_of_a_borrower`.
#[test]
fn a_burst_raises_the_ceiling_of_compute_and_no_limit_of_memory() {
    let lends = "burst_max = 0.75";
    let world = ready_to_lend(Kind::MpsShared, Control::Real, lends);
    let (plain, bursts, large) = (job(1, 0, 20), bursting(2, 25, 60), bursting(3, 40, 40));
    let mut said = Vec::new();
    for one in [plain, bursts, large] {
        world.prolog(one).ok();
        world.check(&[]);
        said.push(allowed(&world, plain));
    }
    let part = |one: Job| world.lease(one).unwrap().slice.mps().unwrap().clone();
    let of = |one: Job| (part(one).thread_percentage, part(one).burst_percentage);
    assert_eq!(of(plain), (20, None));
    assert_eq!(of(bursts), (25, Some(60)));
    // As much as its share is no burst.
    assert_eq!(of(large), (40, None));
    assert_eq!(part(bursts).memory_limit_mib.0, 81_559 * 25 / 100);
    // The ceiling goes with the job that had it; others keep theirs.
    world.epilog(bursts).ok();
    world.check(&[]);
    said.push(allowed(&world, plain));
    world.epilog(large).ok();
    said.push(allowed(&world, plain));
    world.epilog(plain).ok();
    world.check(&[]);
    assert_eq!(
        said,
        [
            "20.0\n15G\n",
            "60.0\n19G\n",
            "60.0\n31G\n",
            "40.0\n31G\n",
            "20.0\n15G\n"
        ]
    );
}

#[test]
fn a_running_server_gives_new_clients_the_ceiling_of_the_jobs_that_are_there() {
    let lends = "burst_max = 1";
    let world = ready_to_lend(Kind::MpsShared, STANDIN, lends);
    let (plain, bursts) = (job(1, 0, 20), bursting(2, 25, 100));
    world.prolog(plain).ok();
    let pipe = world.pipe(plain);
    let server = serve(&world, &pipe, &[]);
    let limit = || world.mps_control(&pipe, &format!("get_active_thread_percentage {server}"));
    let mut said = Vec::new();
    world.prolog(bursts).ok();
    said.push(limit());
    world.epilog(bursts).ok();
    said.push(limit());
    assert_eq!(said, ["100.0\n", "20.0\n"]);
    world.epilog(plain).ok();
    world.check(&[]);
}

#[test]
fn a_burst_in_a_half_is_one_of_the_half() {
    let lends = "burst_max = 0.5\nburst_default = 0.3";
    let world = ready_to_lend(Kind::MigMps, Control::Real, lends);
    let jobs = [job(1, 0, 10), bursting(2, 15, 50), bursting(3, 25, 25)];
    for one in jobs {
        world.prolog(one).ok();
        world.check(&[]);
    }
    let bursts = jobs.map(|one| {
        let lease = world.lease(one).unwrap();
        let percentage = lease.slice.mps().unwrap().burst_percentage;
        (percentage, lease.burst().map(|units| units.0))
    });
    // The default, what the job asked for, and a job that wants none of the default.
    let want = [(Some(60), Some(30)), (Some(100), Some(50)), (None, None)];
    assert_eq!(bursts, want);
    for one in jobs {
        world.epilog(one).ok();
        world.check(&[]);
    }
}

/// Promise (users): a lowered burst_max applies to pending jobs, and never lowers a job's ceiling below its share.
/// With `the_ceiling_on_a_node_is_what_its_pool_lends_now`, `a_lowered_ceiling_holds_for_jobs_that_wait`.
#[test]
fn the_ceiling_of_the_pool_at_the_start_of_the_job_holds() {
    let world = ready_to_lend(Kind::MpsShared, Control::Real, "burst_max = 1");
    let before = bursting(1, 20, 90);
    world.prolog(before).ok();
    // The admin lowers the ceiling while jobs wait and run.
    lend(&world, "burst_max = 0.6");
    let (cut, small, large) = (bursting(2, 20, 90), bursting(3, 20, 50), bursting(4, 5, 5));
    let told = "--gpufrac-burst=0.9 is more than pool p lends now; the job has 0.6";
    world.prolog(cut).ok().says(told);
    world.prolog(small).ok();
    world.prolog(large).ok();
    let burst = |one: Job| world.lease(one).unwrap().burst().map(|units| units.0);
    assert_eq!(burst(before), Some(90), "a job that runs keeps its ceiling");
    assert_eq!(burst(cut), Some(60));
    assert_eq!(burst(small), Some(50));
    assert_eq!(burst(large), None);
    world.check(&[]);
    // And takes it away.
    lend(&world, "");
    let none = bursting(5, 20, 90);
    let told = "--gpufrac-burst=0.9 is more than pool p lends now; the job has 0.2";
    world.prolog(none).ok().says(told);
    assert_eq!(burst(none), None);
    world.check(&[]);
    for one in [before, cut, small, large, none] {
        world.epilog(one).ok();
        world.check(&[]);
    }
}

#[test]
fn a_burst_in_the_environment_of_a_prolog_counts_for_nothing() {
    let lends = "burst_max = 1";
    let world = ready_to_lend(Kind::MpsShared, Control::Real, lends);
    let one = job(1, 0, 20);
    // What clients leave of the option comes along; the entry alone is job_submit's.
    let mut prolog = world.job_command("prolog", one);
    prolog
        .env("SPANK__SLURM_SPANK_OPTION_gpufrac_gpufrac_burst", "1")
        .env("SLURM_SPANK__SLURM_SPANK_OPTION_gpufrac_gpufrac_burst", "1")
        .env("GPUFRAC_BURST", "1")
        .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100");
    Ended::of(prolog.output().unwrap()).ok();
    assert_eq!(world.lease(one).unwrap().burst(), None);
    assert_eq!(allowed(&world, one), "20.0\n15G\n");
    world.epilog(one).ok();
    world.check(&[]);
}

#[test]
fn a_private_daemon_lends_nothing() {
    let world = ready(Kind::MpsPrivate, Control::Real);
    let one = bursting(1, 20, 90);
    world.prolog(one).ok().says("the job has 0.2");
    assert_eq!(allowed(&world, one), "20.0\n15G\n");
    world.epilog(one).ok();
    world.check(&[]);
}

#[test]
fn each_job_has_a_daemon_of_its_own() {
    let world = ready(Kind::MpsPrivate, Control::Real);
    let jobs = [job(1, 0, 20), job(2, 0, 80)];
    for one in jobs {
        world.prolog(one).ok();
        world.check(&[]);
        let said = world.mps_control(&world.pipe(one), "get_default_active_thread_percentage");
        assert_eq!(said, format!("{}.0\n", one.units));
    }
    assert_ne!(world.daemon(jobs[0]), world.daemon(jobs[1]));
    for one in jobs {
        world.epilog(one).ok();
        world.check(&[]);
    }
}

/// Promise (users): MPS inside MIG: jobs of a half share its instance.
/// With `tenants_of_a_half_share_its_instance`.
#[test]
fn jobs_of_a_half_share_its_instance_and_daemon() {
    let world = ready(Kind::MigMps, Control::Real);
    // The first two belong to one user.
    let jobs = [
        job(1, 0, 10),
        Job {
            uid: 1001,
            ..job(2, 0, 15)
        },
        job(3, 0, 25),
        job(4, 1, 50),
    ];
    for one in jobs {
        world.prolog(one).ok();
        world.check(&[]);
    }
    assert_eq!(world.instances(0).len(), 2);
    assert_eq!(world.daemon(jobs[0]), world.daemon(jobs[2]));
    // 25 of 50 units are half of the half.
    let mps = world.lease(jobs[2]).unwrap().slice.mps().unwrap().clone();
    assert_eq!(mps.thread_percentage, 50);
    for one in jobs {
        world.epilog(one).ok();
        world.check(&[]);
    }
    assert!(world.instances(0).is_empty());
}

#[test]
fn time_slices_need_no_daemon() {
    let world = ready(Kind::Timeslice, Control::None);
    for one in [job(1, 0, 1), job(2, 0, 49), job(3, 0, 50)] {
        world.prolog(one).ok();
        world.check(&[]);
    }
    world.prolog(job(2, 0, 49)).ok().says("kept");
    for one in [job(1, 0, 1), job(2, 0, 49), job(3, 0, 50)] {
        world.epilog(one).ok();
        world.check(&[]);
    }
    assert_eq!(world.usage().len(), 3);
}

/// Promise (users): HAMi-core's file lives as long as its job.
#[test]
fn a_cache_file_lives_as_long_as_its_job() {
    let world = ready(Kind::Hami, Control::None);
    let one = job(1, 0, 30);
    world.prolog(one).ok();
    world.prolog(job(2, 0, 30)).ok();
    world.check(&[]);
    let cache = world.root().join("run/hami/1/cache");
    fs::write(&cache, "counters").unwrap();
    // The prolog runs again while the job's programs run.
    world.prolog(one).ok().says("kept");
    assert_eq!(fs::read_to_string(&cache).unwrap(), "counters");
    // Another run of the job does not find the data of the last one.
    world.prolog(Job { restarts: 1, ..one }).ok();
    assert_eq!(fs::read_to_string(&cache).unwrap(), "");
    world.check(&[]);
    world.epilog(one).ok();
    world.epilog(job(2, 0, 30)).ok();
    world.check(&[]);
}

/// Promise (never): an MPS daemon survives its prolog and slurmd; a killed daemon is replaced.
/// With `a_daemon_outlives_slurmd_and_a_killed_one_is_replaced`.
#[test]
fn the_daemon_outlives_its_prolog() {
    let world = ready(Kind::MpsShared, Control::Real);
    let one = job(1, 0, 25);
    let mut prolog = world.job_command("prolog", one);
    let mut prolog = prolog.process_group(0).spawn().unwrap();
    let group = Pid::from_raw(prolog.id() as i32);
    assert!(prolog.wait().unwrap().success());
    let daemon = world.daemon(one);
    let pid = Pid::from_raw(daemon);
    assert_eq!(getsid(Some(pid)), Ok(pid), "a session of its own");
    let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap();
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_whitespace()
        .collect();
    assert_ne!(fields[1], group.to_string(), "parent");
    assert_ne!(fields[2], group.to_string(), "process group");
    // As slurmd does with a prolog that takes too long.
    let _ = killpg(group, Signal::SIGKILL);
    std::thread::sleep(Duration::from_millis(50));
    assert!(lives(daemon));
    world.check(&[]);
    world.epilog(one).ok();
    world.check(&[]);
    assert!(!lives(daemon));
}

/// With `a_daemon_that_died_is_replaced_with_the_next_job`, in which the noted process has ended.
#[test]
fn a_daemon_is_found_where_its_number_was_not_noted() {
    let world = ready(Kind::MpsShared, Control::Real);
    let (one, two) = (job(1, 0, 20), job(2, 0, 10));
    world.prolog(one).ok();
    let daemon = world.daemon(one);
    // The prolog that started it was killed before it wrote the number: the file is missing, or has the number of an
    // earlier daemon, which another process has now.
    let noted = world.pipe(one).with_file_name("pid");
    fs::write(&noted, format!("{}\n", std::process::id())).unwrap();
    world.prolog(two).ok();
    assert_eq!(world.daemon(one), daemon);
    fs::remove_file(&noted).unwrap();
    world.run_check().ok();
    world.epilog(one).ok();
    assert_eq!(world.daemon(two), daemon);
    world.epilog(two).ok();
    world.check(&[]);
    assert!(!lives(daemon));
}

/// Promise (admins): a daemon that died or hangs is replaced with the next job.
/// With `a_daemon_that_hangs_is_replaced_with_the_next_job`.
#[test]
fn a_daemon_that_died_is_replaced_with_the_next_job() {
    at_once([Kind::MpsShared, Kind::MigMps], |kind| {
        let world = ready(kind, Control::Real);
        let (one, two, three) = (job(1, 0, 20), job(2, 0, 10), job(3, 0, 10));
        world.prolog(one).ok();
        world.prolog(two).ok();
        let daemon = world.daemon(one);
        signal(daemon, Signal::SIGKILL);
        eventually(|| !lives(daemon));
        let ended = world.run_check().says("died");
        assert_eq!(ended.code, Some(1));
        world.prolog(three).ok().says("died; it is replaced");
        assert_ne!(world.daemon(one), daemon);
        world.check(&[]);
        // A daemon that dies before a job ends blocks nothing.
        signal(world.daemon(one), Signal::SIGKILL);
        world.epilog(one).ok().says("replaced with the next job");
        // The prolog of a job that has its lease already.
        world.prolog(two).ok().says("kept").says("it is replaced");
        world.check(&[]);
        world.run_check().ok();
        signal(world.daemon(two), Signal::SIGKILL);
        world.epilog(two).ok();
        world.epilog(three).ok();
        world.check(&[]);
    });
}

#[test]
fn a_daemon_that_hangs_is_replaced_with_the_next_job() {
    let world = ready(Kind::MpsShared, Control::Real);
    world.prolog(job(1, 0, 20)).ok();
    let daemon = world.daemon(job(1, 0, 20));
    signal(daemon, Signal::SIGSTOP);
    world
        .prolog(job(2, 0, 10))
        .ok()
        .says("does not answer")
        .says("it is replaced");
    assert_ne!(world.daemon(job(1, 0, 20)), daemon);
    world.check(&[]);
    world.epilog(job(1, 0, 20)).ok();
    world.check(&[]);
}

#[test]
fn a_daemon_that_hangs_ends_with_its_last_job() {
    let world = ready(Kind::MpsShared, Control::Real);
    let one = job(1, 0, 10);
    world.prolog(one).ok();
    let daemon = world.daemon(one);
    signal(daemon, Signal::SIGSTOP);
    world.epilog(one).ok();
    assert!(!lives(daemon));
    world.check(&[]);
}

/// Promise (never): no work of other jobs is ended for a daemon that died or hangs.
/// With `a_daemon_that_hangs_with_servers_of_others_is_left_alone`.
#[test]
fn servers_of_others_outlive_a_daemon_that_died() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, two) = (job(1, 0, 20), job(2, 0, 10));
    world.slurm_knows(two);
    world.prolog(one).ok();
    let server = serve(&world, &world.pipe(one), &[4_000_000]);
    signal(world.daemon(one), Signal::SIGKILL);
    world
        .prolog(two)
        .ok()
        .says("its servers still have clients of jobs 1");
    assert_eq!(world.slurm_was_told(), ["requeue 2"]);
    assert!(lives(server) && world.lease(two).is_none());
    // The job ends with everything that only it used.
    world.epilog(one).ok();
    eventually(|| !lives(server));
    world.prolog(two).ok();
    world.check(&[]);
    world.epilog(two).ok();
    world.check(&[]);
}

#[test]
fn a_daemon_that_hangs_with_servers_of_others_is_left_alone() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, two) = (job(1, 0, 20), job(2, 0, 10));
    world.slurm_knows(two);
    world.prolog(one).ok();
    let server = serve(&world, &world.pipe(one), &[4_000_000]);
    let daemon = world.daemon(one);
    signal(daemon, Signal::SIGSTOP);
    world.prolog(two).ok().says("requeued");
    assert_eq!(world.slurm_was_told(), ["requeue 2"]);
    assert!(lives(server) && lives(daemon));
    signal(daemon, Signal::SIGCONT);
    world.prolog(two).ok();
    assert_eq!(world.daemon(one), daemon);
    assert!(lives(server));
    world.check(&[]);
}

/// Promise (never): a server that failed by a client's fault is replaced, and the daemon stays.
#[test]
fn a_server_that_a_client_brought_down_is_replaced() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, two) = (job(1, 0, 20), job(2, 0, 10));
    world.prolog(one).ok();
    let (pipe, daemon) = (world.pipe(one), world.daemon(one));
    let server = serve(&world, &pipe, &[4_000_000]);
    world.mps_control(&pipe, &format!("standin status {server} FAULT"));
    assert_eq!(world.run_check().says("is in FAULT").code, Some(1));
    world.forget_commands();
    world
        .prolog(two)
        .ok()
        .says(&format!("MPS server {server} is in state FAULT"))
        .says("one of the jobs 1 ");
    let command = format!("shutdown_server {server} -f");
    assert!(world.commands().contains(&command));
    assert!(!lives(server));
    assert_eq!(world.daemon(one), daemon, "only the server");
    world.check(&[]);
    world.run_check().ok();
}

#[test]
fn limits_reach_servers_that_run() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, two) = (job(1, 0, 20), job(2, 0, 40));
    world.prolog(one).ok();
    let pipe = world.pipe(one);
    let server = serve(&world, &pipe, &[4_000_000]);
    let ask =
        format!("get_active_thread_percentage {server}\nget_device_pinned_mem_limit {server} 0");
    assert_eq!(world.mps_control(&pipe, &ask), "20.0\n15G\n");
    world.prolog(two).ok();
    assert_eq!(world.mps_control(&pipe, &ask), "40.0\n31G\n");
    world.epilog(two).ok();
    assert_eq!(world.mps_control(&pipe, &ask), "20.0\n15G\n");
    assert!(lives(server));
    world.check(&[]);
}

/// A node with a GPU that no other test has, as its last one: clients hold it open.
fn ready_for_clients(gpu: u32) -> (World, std::path::PathBuf) {
    let names = vec!["H100-80"; gpu as usize + 1];
    let world = World::shared_on(&names, Kind::MpsShared, STANDIN);
    world.setup().ok();
    let device = world.root().join(format!("gpus/dev/nvidia{gpu}"));
    (world, device)
}

/// Promise (never): a remaining MPS client of an ended job is terminated, then killed; a client of another job never
/// is.
/// With `a_client_of_the_users_other_job_is_left_alone`.
#[test]
fn a_leftover_client_is_terminated_and_then_killed() {
    let (world, device) = ready_for_clients(21);
    let of = |id: u32| Job {
        uid: 62_000 + id,
        ..job(id, 21, 20)
    };
    let (one, two) = (of(1), of(2));
    world.prolog(one).ok();
    world.prolog(two).ok();
    let [own, other] = [one, two].map(|job| Program::holding(job.uid, &device));
    let pipe = world.pipe(one);
    let server = serve(&world, &pipe, &[own.pid(), other.pid()]);
    let command = format!("terminate_client {server} {}", own.pid());
    world.forget_commands();
    // It must not be killed before MPS has released it.
    world.standin_options(r#"{"hang": ["terminate_client"]}"#);
    let epilog = world
        .job_command("epilog", one)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually(|| world.commands().contains(&command));
    std::thread::sleep(Duration::from_millis(300));
    assert!(own.lives(), "killed before it was terminated");
    world.standin_options("{}");
    let output = epilog.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("is still a client of MPS"), "{said}");
    eventually(|| !own.lives());
    assert!(other.lives());
    assert!(lives(server));
    let clients = world.mps_control(&pipe, &format!("get_client_list {server}"));
    assert_eq!(clients, format!("{}\n", other.pid()));
    let terminated = world.commands();
    let mut terminated = terminated.iter().filter(|c| c.starts_with("terminate"));
    assert!(terminated.all(|one| *one == command));
    assert!(world.lease(one).is_none());
    world.check(&[]);
}

#[test]
fn a_client_of_the_users_other_job_is_left_alone() {
    let (world, device) = ready_for_clients(22);
    let [one, two] = [1, 2].map(|id| Job {
        uid: 62_010,
        ..job(id, 22, 20)
    });
    world.prolog(one).ok();
    world.prolog(two).ok();
    let program = Program::holding(one.uid, &device);
    let pipe = world.pipe(one);
    let server = serve(&world, &pipe, &[program.pid()]);
    world.epilog(one).ok();
    assert!(program.lives());
    // Its owner is unknown, but the user may keep it.
    world.check(&[]);
    world.epilog(two).ok();
    eventually(|| !program.lives());
    assert!(!lives(server));
    world.check(&[]);
}

/// Promise (admins): node-setup says what a control daemon cannot do, and a node without one drains for shares.
/// With `without_a_control_program`.
#[test]
fn a_daemon_without_a_server_for_all_users() {
    let old = Control::Standin(r#"{"version": 12020, "multiuser": false, "partitions": false}"#);
    let world = World::shared(Kind::MpsShared, old);
    let ended = world
        .setup()
        .says("-multiuser-server")
        .says("needs driver 555 or later");
    assert_eq!(ended.code, Some(1));
    let ended = world
        .prolog(job(1, 0, 25))
        .says("did not start a control daemon: Cannot find MPS control daemon process")
        .says("hint: install the driver's nvidia-cuda-mps-control");
    assert_eq!(ended.code, Some(1));
    assert!(world.slurm_was_told().is_empty());
    world.check(&[]);
    // A private daemon needs no such server.
    world.configure("shares", "H100-80", "tenancy = \"private\"");
    world.setup().ok();
    world.prolog(job(1, 0, 25)).ok();
    assert!(world.commands().iter().any(|c| c == "-d"));
    world.epilog(job(1, 0, 25)).ok();
    world.check(&[]);
}

#[test]
fn without_a_control_program() {
    let world = World::shared(Kind::MpsShared, Control::None);
    let ended = world
        .setup()
        .says("starting")
        .says("mps_control in [paths]");
    assert_eq!(ended.code, Some(1));
    assert_eq!(world.run_check().says("starting").code, Some(1));
    let ended = world.prolog(job(1, 0, 25)).says("starting").says("hint:");
    assert_eq!(ended.code, Some(1));
    world.check(&[]);
    // A whole GPU needs none.
    world.prolog(job(1, 0, 100)).ok();
    world.check(&[]);
}

/// Promise (never): an MPS daemon that does not start delays no other job, and is found after a crash.
/// With `a_prolog_that_was_killed_while_the_daemon_starts`.
#[test]
fn a_daemon_that_does_not_start_holds_nobody_up_for_long() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, other) = (job(1, 0, 25), job(2, 1, 25));
    // The time that a prolog and an epilog need on this machine now.
    let start = Instant::now();
    world.prolog(other).ok();
    world.epilog(other).ok();
    let usual = start.elapsed();
    world.standin_options(r#"{"hang": ["-d"]}"#);
    world.slurm_knows(one);
    let start = Instant::now();
    world.prolog(one).ok().says("requeued");
    assert!(start.elapsed() < Duration::from_secs(15) + 10 * usual);
    assert_eq!(world.slurm_was_told(), ["requeue 1"]);
    world.check(&[]);
}

#[test]
fn a_prolog_that_was_killed_while_the_daemon_starts() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, two) = (job(1, 0, 25), job(2, 0, 25));
    for by_epilog in [true, false] {
        world.forget_commands();
        world.standin_options(r#"{"hang": ["-d"]}"#);
        let mut prolog = world.job_command("prolog", one).spawn().unwrap();
        eventually(|| world.commands().iter().any(|c| c.ends_with("-d")));
        prolog.kill().unwrap();
        prolog.wait().unwrap();
        assert_eq!(world.mps().len(), 1, "what hangs is still there");
        world.standin_options("{}");
        if by_epilog {
            world.epilog(one).ok();
        } else {
            world.prolog(two).ok();
            world.epilog(two).ok();
        }
        world.check(&[]);
        assert!(world.leases().is_empty());
    }
}

/// Promise (admins): node-setup looks at GPUs without MIG, at the library, and sets time slices.
/// With `set_up_looks_at_the_library`, `set_up_sets_the_time_slice`.
#[test]
fn set_up_says_what_is_wrong_with_a_gpu_that_is_not_in_mig_mode() {
    let world = World::shared(Kind::MpsShared, Control::Real);
    let switch = |mig| {
        world
            .sim
            .update(|node| {
                node.gpus[1].mig = mig;
                Ok(())
            })
            .unwrap();
    };
    switch(true);
    let ended = world
        .setup()
        .says("is in MIG mode, and pool `p` shares it by mps")
        .says("nvidia-smi -i 1 -mig 0");
    assert_eq!(ended.code, Some(1));
    assert_eq!(world.run_check().says("is in MIG mode").code, Some(1));
    let ended = world.prolog(job(1, 1, 25)).says("hint: switch MIG off");
    assert_eq!(ended.code, Some(1));
    // The other one can be used.
    world.prolog(job(1, 0, 25)).ok();
    world.epilog(job(1, 0, 25)).ok();
    switch(false);
    world.setup().ok();
    world.configure("shares", "H200-141", "tenancy = \"shared\"");
    let ended = world
        .setup()
        .says("has 79.6 GiB, and pool `p` expects 139.7 GiB")
        .says("or `memory` to what it has");
    assert_eq!(ended.code, Some(1));
    // The file was changed since the setup.
    let ended = world.prolog(job(1, 0, 25)).ok().says("memory: expected");
    // There is no Slurm here to hold the job.
    ended.says("the job's tasks do not start without a slice");
    world.configure("shares", "H200-141", "tenancy = \"shared\"\nmemory = 81559");
    world.setup().ok();
    world.run_check().ok();
    world.check(&[]);
}

#[test]
fn set_up_looks_at_the_library() {
    let world = World::shared(Kind::Hami, Control::None);
    let library = world.root().join("libvgpu.so");
    world.setup().ok();
    world.run_check().ok();
    fs::remove_file(&library).unwrap();
    let ended = world.setup().says("libvgpu.so` does not exist");
    assert_eq!(ended.code, Some(1));
    assert_eq!(world.run_check().says("does not exist").code, Some(1));
    // In a folder that others can change.
    let folder = world.root().join("open");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let library = folder.join("libvgpu.so");
    fs::write(&library, "").unwrap();
    let key = format!("library = \"{}\"", library.display());
    world.configure("shares", "H100-80", &key);
    assert_eq!(world.setup().says("mode 0777").code, Some(1));
    // The file itself.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    world.setup().ok();
    fs::set_permissions(&library, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(world.setup().says("mode 0666").code, Some(1));
}

#[test]
fn set_up_sets_the_time_slice() {
    let world = World::shared(Kind::Timeslice, Control::None);
    let script = |text: &str| {
        let path = world.root().join("nvidia-smi");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    world.configure("shares", "H100-80", "timeslice = \"short\"");
    let ended = world
        .setup()
        .says("cannot be set: ")
        .says("nvidia_smi in [paths]");
    assert_eq!(ended.code, Some(1));
    let record = world.root().join("record");
    script(&format!("echo \"$@\" >>{}", record.display()));
    world.setup().ok().says("set the time slice of GPU 0");
    let gpus = world.sim.node().unwrap().gpus.clone();
    let lines = gpus
        .iter()
        .map(|gpu| format!("compute-policy -i {} --set-timeslice 1\n", gpu.uuid));
    assert_eq!(
        fs::read_to_string(&record).unwrap(),
        lines.collect::<String>()
    );
    script("echo 'Not Supported'; exit 3");
    let ended = world.setup().says("cannot be set: Not Supported");
    assert_eq!(ended.code, Some(1));
}

/// Promise (admins): the compute mode is restored.
#[test]
fn the_compute_mode_is_what_it_was_before() {
    for kind in [Kind::MpsShared, Kind::MpsPrivate, Kind::Timeslice] {
        let world = ready(kind, Control::Real);
        let (one, two) = (job(1, 0, 30), job(2, 0, 30));
        for mode in [DEFAULT, PROHIBITED, EXCLUSIVE_PROCESS] {
            world.set_mode(mode);
            world.prolog(one).ok();
            world.check(&[]);
            world.prolog(two).ok();
            // Slurm runs the prolog again: the earlier mode is not the one that gpufrac set.
            world.prolog(two).ok().says("kept");
            world.check(&[]);
            world.epilog(one).ok();
            world.check(&[]);
            world.epilog(two).ok();
            world.check(&[]);
            assert_eq!(world.compute_mode(0), mode);
        }
        // An old note does not apply to the mode that an admin set since.
        let note = world.root().join("run/modes").join(world.gpu_uuid(0));
        fs::write(note, "exclusive_thread").unwrap();
        world.set_mode(PROHIBITED);
        world.prolog(one).ok();
        world.epilog(one).ok();
        world.check(&[]);
    }
}

#[test]
fn the_whole_gpu_is_one_jobs_alone() {
    let world = ready(Kind::MpsShared, Control::Real);
    world.set_mode(PROHIBITED);
    let (whole, share) = (job(1, 0, 100), job(2, 0, 25));
    world.prolog(whole).ok();
    world.check(&[]);
    let lease = world.lease(whole).unwrap();
    assert!(lease.slice.mps().is_none());
    assert_eq!(lease.slice.memory_mib.0, 81559);
    assert!(world.mps().is_empty());
    assert_eq!(world.compute_mode(0), PROHIBITED);
    world.slurm_says(1, "running gres:gpu:mps:1,gres:gpufrac:100 0");
    world.slurm_knows(share);
    world.prolog(share).ok().says("no room for 25 units");
    assert_eq!(world.slurm_was_told(), ["requeue 2"]);
    world.epilog(whole).ok();
    world.check(&[]);
    world.prolog(share).ok();
    world.check(&[]);
    // A job that has ended without an epilog does not block.
    world.slurm_says(2, "finished - 0");
    world.prolog(whole).ok().says("its epilog did not run");
    world.check(&[]);
    assert_eq!(world.leases().len(), 1);
}

/// Promise (users): static partitions (with a stand-in for the daemon).
#[test]
fn a_share_is_a_partition_of_whole_chunks() {
    for (kind, units) in [(Kind::MpsShared, [25, 33, 7]), (Kind::MigMps, [13, 16, 7])] {
        let world = World::shared(kind, STANDIN);
        let keys = format!("{}\nsm_chunks = 15", kind.keys(world.root()));
        world.configure(kind.layout(), "H100-80", &keys);
        world.setup().ok();
        let jobs = [0, 1, 2].map(|index| job(1 + index, 0, units[index as usize]));
        let mut wanted = Vec::new();
        for one in jobs {
            world.prolog(one).ok();
            let lease = world.lease(one).unwrap();
            let name = lease.slice.mps().unwrap().sm_partition.clone();
            let device = lease.slice.cuda_device().unwrap();
            let name = name.expect("the lease names it");
            assert!(name.starts_with(&format!("{device}/")), "{name}");
            wanted.push((name, 15 * one.units / kind.capacity()));
            assert_eq!(world.partitions(&world.pipe(one)), wanted);
            world.prolog(one).ok().says("kept");
        }
        let pipe = world.pipe(jobs[2]);
        assert_eq!(world.partitions(&pipe), wanted);
        world.check(&[]);
        world.epilog(jobs[1]).ok();
        wanted.remove(1);
        assert_eq!(world.partitions(&pipe), wanted);
        world.epilog(jobs[0]).ok();
        world.epilog(jobs[2]).ok();
        world.check(&[]);
    }
}

#[test]
fn a_prolog_that_fails_leaves_the_limits_of_the_others() {
    let world = World::shared(Kind::MpsShared, STANDIN);
    let keys = format!("{}\nsm_chunks = 15", world.kind.keys(world.root()));
    world.configure(world.kind.layout(), "H100-80", &keys);
    world.setup().ok();
    let (one, two) = (job(1, 0, 20), job(2, 0, 50));
    world.prolog(one).ok();
    let ask = "get_default_active_thread_percentage\nget_default_device_pinned_mem_limit 0";
    let before = world.mps_control(&world.pipe(one), ask);
    world.standin_options(r#"{"chunks": 7}"#);
    world.slurm_knows(two);
    world.prolog(two);
    assert!(world.lease(two).is_none());
    assert_eq!(world.mps_control(&world.pipe(one), ask), before);
}

/// Promise (admins): `sm_chunks` may be added or removed while jobs run: the next jobs get another GPU until they end.
#[test]
fn jobs_with_and_without_partitions_share_no_daemon() {
    for has_chunks in [true, false] {
        let world = World::shared(Kind::MpsShared, STANDIN);
        let configure = |has_chunks: bool| {
            let more = if has_chunks { "\nsm_chunks = 15" } else { "" };
            let keys = world.kind.keys(world.root()) + more;
            world.configure(world.kind.layout(), "H100-80", &keys);
            world.setup().ok();
        };
        configure(has_chunks);
        let (one, two) = (job(1, 0, 20), job(2, 0, 10));
        world.slurm_knows(two);
        world.prolog(one).ok();
        configure(!has_chunks);
        world.prolog(two).ok().says("by an earlier configuration");
        assert_eq!(world.slurm_was_told(), ["requeue 2"]);
        world.epilog(one).ok();
        world.prolog(two).ok();
        world.check(&[]);
    }
}

/// Fills the pipe of a daemon's log as a user can; returns the final error.
fn fill_log(pipe: &Path, user: u32) -> String {
    let mut command = Command::new("dd");
    command.args(["if=/dev/zero", "oflag=nonblock", "conv=nocreat", "bs=4096"]);
    command.arg(format!("of={}", pipe.join("log").display()));
    // More than a pipe can hold.
    command.args(["count=4096"]).env("LC_ALL", "C").uid(user);
    let output = command.stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_full_log_pipe_keeps_nobody_out() {
    let world = ready(Kind::MpsShared, Control::Real);
    fs::set_permissions(world.root(), fs::Permissions::from_mode(0o711)).unwrap();
    let (one, two) = (job(1, 0, 20), job(2, 0, 10));
    world.prolog(one).ok();
    let (pipe, daemon) = (world.pipe(one), world.daemon(one));
    let said = fill_log(&pipe, two.uid);
    assert!(said.contains("Permission denied"), "{said}");
    let said = fill_log(&pipe, one.uid);
    assert!(said.contains("temporarily unavailable"), "{said}");
    world.prolog(two).ok();
    assert_eq!(world.daemon(two), daemon, "the same daemon");
    world.check(&[]);
    // Its server list is requested first, and the jobs end.
    fill_log(&pipe, one.uid);
    world.epilog(two).ok();
    world.check(&[]);
    fill_log(&pipe, one.uid);
    world.epilog(one).ok();
    world.check(&[]);
}

/// A client that connects to a daemon and sends nothing.
fn silent_client(pipe: &Path) -> OwnedFd {
    let client = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&client, &SocketAddrUnix::new(pipe.join("control")).unwrap()).unwrap();
    client
}

#[test]
fn a_silent_client_costs_the_daemon_not_the_next_job() {
    let world = ready(Kind::MpsShared, Control::Real);
    let (one, two, three) = (job(1, 0, 20), job(2, 0, 10), job(3, 0, 10));
    world.prolog(one).ok();
    world.prolog(two).ok();
    let daemon = world.daemon(one);
    let _silent = silent_client(&world.pipe(one));
    world
        .prolog(three)
        .ok()
        .says("does not answer")
        .says("it is replaced, jobs 1, 2 use it");
    assert_ne!(world.daemon(one), daemon);
    world.check(&[]);
}

/// Whether a user can connect to a daemon.
fn reaches(user: u32, pipe: &Path) -> bool {
    let mut command = Command::new("test");
    command.arg("-w").arg(pipe.join("control")).uid(user);
    command.status().unwrap().success()
}

#[test]
fn nobody_reaches_a_replaced_daemon_before_its_limits_are_set() {
    let world = ready(Kind::MpsShared, STANDIN);
    fs::set_permissions(world.root(), fs::Permissions::from_mode(0o711)).unwrap();
    let jobs = [job(1, 0, 20), job(2, 0, 10), job(3, 0, 10)];
    world.prolog(jobs[0]).ok();
    world.prolog(jobs[1]).ok();
    let pipe = world.pipe(jobs[0]);
    signal(world.daemon(jobs[0]), Signal::SIGKILL);
    world.forget_commands();
    let first = "set_default_active_thread_percentage";
    world.standin_options(&format!(r#"{{"hang": ["{first}"]}}"#));
    let mut prolog = world.job_command("prolog", jobs[2]).spawn().unwrap();
    eventually(|| world.commands().iter().any(|c| c.starts_with(first)));
    assert!(access(&pipe).is_empty());
    assert!(jobs.iter().all(|job| !reaches(job.uid, &pipe)));
    world.standin_options("{}");
    assert!(prolog.wait().unwrap().success());
    // The users with access, and the folders.
    world.check(&[]);
    assert!(jobs.iter().all(|job| reaches(job.uid, &pipe)));
    assert!(!reaches(2000, &pipe));
}

#[test]
fn jobs_of_an_earlier_configuration_keep_their_gpu() {
    at_once([Kind::MpsPrivate, Kind::Timeslice], |kind| {
        let mut world = ready(Kind::MpsShared, Control::Real);
        let (one, two) = (job(1, 0, 20), job(2, 0, 10));
        world.set_mode(PROHIBITED);
        world.slurm_knows(two);
        world.prolog(one).ok();
        let daemon = world.daemon(one);
        world.kind = kind;
        world.configure(kind.layout(), "H100-80", &kind.keys(world.root()));
        world.setup().ok();
        world
            .prolog(two)
            .ok()
            .says("is still shared by mps with job 1, by an earlier configuration");
        assert_eq!(world.slurm_was_told(), ["requeue 2"]);
        assert!(world.lease(two).is_none());
        assert_eq!(world.compute_mode(0), EXCLUSIVE_PROCESS);
        assert_eq!(world.daemon(one), daemon);
        // The other GPU has the new mode.
        world.prolog(job(3, 1, 10)).ok();
        world.epilog(one).ok();
        world.check(&[]);
        world.prolog(two).ok();
        world.check(&[]);
        world.epilog(two).ok();
        world.check(&[]);
        assert_eq!(world.compute_mode(0), PROHIBITED);
    });
}

#[test]
fn a_client_is_killed_although_terminate_client_hangs() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, two) = (job(1, 0, 20), job(2, 0, 20));
    world.prolog(one).ok();
    world.prolog(two).ok();
    let (own, other) = (Program::of(one.uid), Program::of(two.uid));
    let server = serve(&world, &world.pipe(one), &[own.pid(), other.pid()]);
    world.standin_options(r#"{"hang": ["terminate_client"]}"#);
    world.epilog(one).ok().says("does not answer");
    eventually(|| !own.lives());
    assert!(other.lives() && lives(server));
    assert!(world.lease(one).is_none());
    world.standin_options("{}");
    world.check(&[]);
}

#[test]
fn a_faulty_server_is_killed_although_shutdown_server_hangs() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, two) = (job(1, 0, 20), job(2, 0, 10));
    world.prolog(one).ok();
    let (pipe, daemon) = (world.pipe(one), world.daemon(one));
    let server = serve(&world, &pipe, &[4_000_000]);
    world.mps_control(&pipe, &format!("standin status {server} FAULT"));
    world.standin_options(r#"{"hang": ["shutdown_server"]}"#);
    world
        .prolog(two)
        .ok()
        .says("is in state FAULT")
        .says("does not answer `shutdown_server");
    assert!(!lives(server));
    assert_eq!(world.daemon(two), daemon);
    world.check(&[]);
}

#[test]
fn servers_of_a_job_that_is_over_keep_nobody_out() {
    let world = ready(Kind::MpsShared, STANDIN);
    let (one, two) = (job(1, 0, 20), job(2, 0, 10));
    world.prolog(one).ok();
    let server = serve(&world, &world.pipe(one), &[4_000_000]);
    let daemon = world.daemon(one);
    signal(daemon, Signal::SIGSTOP);
    world.slurm_says(1, "finished - 0");
    world
        .prolog(two)
        .ok()
        .says("its servers still have clients of jobs 1")
        .says("its epilog did not run");
    assert!(world.slurm_was_told().is_empty());
    assert!(!lives(server) && !lives(daemon));
    world.check(&[]);
    assert_eq!(world.leases().len(), 1);
    assert_eq!(world.usage().len(), 1);
}

#[test]
fn leases_whose_epilog_got_no_lock_are_ended_by_the_next_job() {
    let world = ready(Kind::MpsShared, Control::Real);
    let (one, two) = (job_of_tasks(1, 0, 10, 2), job(2, 0, 10));
    world.slurm_counts(one);
    world.prolog(one).ok();
    let file = fs::File::open(world.root().join("run/locks/gpu0")).unwrap();
    let lock = Flock::lock(file, FlockArg::LockExclusive).unwrap();
    let mut epilog = world.job_command("epilog", one);
    epilog.env(LOCK_PATIENCE, "1000");
    let said = Ended::of(epilog.output().unwrap()).ok().stderr;
    let waits = said.split("stayed locked by another prolog or epilog for ");
    let mut waits: Vec<f64> = waits
        .skip(1)
        .map(|rest| rest.split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(waits.len(), 2, "{said}");
    // The second daemon is not waited for again.
    waits.sort_by(f64::total_cmp);
    assert!(waits[0] < 0.5 && waits[1] >= 1.0, "{said}");
    let left = world.leases_of(one);
    let marked = left.iter().filter(|l| l.state == LeaseState::Releasing);
    assert_eq!((left.len(), marked.count()), (2, 2));
    drop(lock);
    world
        .prolog(two)
        .ok()
        .says("ended the lease of job 1, which was left releasing");
    world.check(&[]);
    assert_eq!(world.leases().len(), 1);
    assert_eq!(world.usage().len(), 2);
}

#[test]
fn a_users_program_that_calls_itself_a_server_is_none() {
    // A user can start a set-uid program under any name: su, by a link.
    for mode in [0o755, 0o4755] {
        let world = ready(Kind::MpsShared, Control::Real);
        fs::set_permissions(world.root(), fs::Permissions::from_mode(0o711)).unwrap();
        let program = world.root().join("nvidia-cuda-mps-server");
        let copied = Command::new("cp").arg("/bin/sleep").arg(&program).status();
        assert!(copied.unwrap().success());
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        let (one, two) = (job(1, 0, 20), job(2, 0, 10));
        world.prolog(one).ok();
        let fake = impostor(one.uid, &world.pipe(one), &program);
        eventually(|| world.mps().iter().any(|p| p.pid == fake.pid()));
        let daemon = world.daemon(one);
        signal(daemon, Signal::SIGKILL);
        eventually(|| !lives(daemon));
        world.prolog(two).ok().says("died; it is replaced");
        world.epilog(two).ok();
        world.epilog(one).ok();
        assert!(fake.lives());
        drop(fake);
        world.check(&[]);
    }
}

/// Removes the driver's files for MIG.
fn without_mig(world: &World) {
    let gpus = world.root().join("gpus");
    fs::remove_dir_all(gpus.join("proc/driver/nvidia-caps")).unwrap();
    fs::remove_dir_all(gpus.join("dev/nvidia-caps")).unwrap();
    let path = gpus.join("proc/devices");
    let text = fs::read_to_string(&path).unwrap();
    let lines = text.lines().filter(|line| !line.contains("nvidia-caps"));
    let text: Vec<&str> = lines.collect();
    fs::write(&path, text.join("\n")).unwrap();
}

#[test]
fn a_driver_without_mig_can_share_by_time() {
    let world = World::shared(Kind::Timeslice, Control::None);
    without_mig(&world);
    world.setup().ok();
    world.run_check().ok();
    world.prolog(job(1, 0, 50)).ok();
    world.check(&[]);
    world.epilog(job(1, 0, 50)).ok();
    world.check(&[]);
    let world = World::shared(Kind::Mig, Control::None);
    without_mig(&world);
    assert_eq!(world.setup().says("nvidia-caps").code, Some(1));
}

#[test]
fn placeholders_of_gpus_without_mig_have_the_gpus_number() {
    let world = World::shared(Kind::Timeslice, Control::None);
    world.setup().ok();
    let dev = world.root().join("dev");
    let check = || {
        for gpu in 0..2 {
            let meta = fs::metadata(dev.join(format!("timeslice{gpu}"))).unwrap();
            let gpus = world.root().join(format!("gpus/dev/nvidia{gpu}"));
            assert_eq!(meta.rdev(), fs::metadata(gpus).unwrap().rdev());
            assert_eq!((meta.uid(), meta.mode() & 0o7777), (0, 0o600));
        }
        world.run_check().ok();
    };
    check();
    let make = |name: &str, major, minor| {
        let mode = Mode::from_bits_truncate(0o666);
        mknod(&dev.join(name), SFlag::S_IFCHR, mode, makedev(major, minor)).unwrap();
    };
    // Files of an earlier layout, and other files.
    make("half3", 60, 3);
    make("null", 1, 3);
    fs::write(dev.join("half4"), "mine").unwrap();
    fs::remove_file(dev.join("timeslice1")).unwrap();
    make("timeslice1", 60, 1);
    let open = fs::Permissions::from_mode(0o666);
    fs::set_permissions(dev.join("timeslice0"), open).unwrap();
    assert_eq!(world.run_check().says("is device 60:1, not").code, Some(1));
    world
        .setup()
        .ok()
        .says("half3`, which no pool has any more");
    check();
    assert!(!dev.join("half3").exists());
    assert!(dev.join("null").exists() && dev.join("half4").exists());
}

#[test]
fn limits_in_unknown_words_are_a_warning() {
    let mut world = World::shared(Kind::MpsShared, STANDIN);
    let program = world.control.clone();
    let wrapper = world.root().join("in-other-words");
    let text = format!(
        "#!/bin/sh\n[ $# -gt 0 ] && exec {0} \"$@\"\n{0} | sed 's/G$/ gibibytes/'\n",
        program.display()
    );
    fs::write(&wrapper, text).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    world.control = wrapper;
    world.configure("shares", "H100-80", &world.kind.keys(world.root()));
    world.control = program;
    world.setup().ok().says("in words that are not known");
    let one = job(1, 0, 20);
    world
        .prolog(one)
        .ok()
        .says("in words that are not known: `20.0`, `15 gibibytes`");
    world.check(&[]);
    world.epilog(one).ok();
    world.check(&[]);
}

#[test]
fn check_names_a_compute_mode_that_was_changed_under_jobs() {
    for (kind, right, wrong) in [
        (Kind::MpsShared, "EXCLUSIVE_PROCESS", DEFAULT),
        (Kind::Timeslice, "DEFAULT", PROHIBITED),
    ] {
        let world = ready(kind, STANDIN);
        let one = job(1, 0, 25);
        world.prolog(one).ok();
        world.run_check().ok();
        let before = world.compute_mode(0);
        world.set_mode(wrong);
        let fix = format!("`nvidia-smi -i 0 -c {right}`");
        let said = world.run_check().says("is in compute mode ").says(&fix);
        assert_eq!(said.code, Some(1));
        world.set_mode(before);
        world.run_check().ok();
        world.epilog(one).ok();
        assert_eq!(world.compute_mode(0), DEFAULT);
    }
}
