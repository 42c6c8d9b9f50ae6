//! Remains of a job: open descriptors of its devices, and control groups with processes.
//!
//! Simulated devices have the same numbers in all tests that run at the same time: these tests use a GPU that no
//! other test has, and separate users.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::program::Program;
use common::{Ended, Job, World, job};
use gpufrac_core::ids::GpuIndex;
use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes::{Process, now_us, start_ticks};

#[test]
fn child() {
    common::child();
}

/// The first GPU of these tests.
const GPU: u32 = 20;

/// A node with one pool of one GPU.
fn ready(gpu: u32) -> World {
    let names = vec!["H100-80"; gpu as usize + 1];
    common::ready_with(&names, &format!("gpus = [{gpu}]"))
}

/// A job of a separate user.
fn job_of(uid: u32, id: u32) -> Job {
    Job {
        uid,
        ..job(id, 0, 25)
    }
}

/// The capability file of a job's GPU instance, and its minor number.
fn capability(world: &World, job: Job) -> (PathBuf, u32) {
    let lease = world.lease(job).unwrap();
    let minor = lease.slice.instance().unwrap().gi_cap_minor;
    let caps = world.root().join("gpus/dev/nvidia-caps");
    (caps.join(format!("nvidia-cap{minor}")), minor)
}

/// Runs a prolog that waits, and calls `then` when it says so.
fn prolog_that_waits(world: &World, job: Job, words: &str, then: impl FnOnce()) -> Ended {
    let mut prolog = world.job_command("prolog", job);
    let mut prolog = prolog.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(prolog.stderr.take().unwrap());
    let mut stderr = String::new();
    while !stderr.contains("waiting: ") {
        assert_ne!(said.read_line(&mut stderr).unwrap(), 0, "{stderr}");
    }
    assert!(stderr.contains(words), "{stderr}");
    then();
    said.read_to_string(&mut stderr).unwrap();
    Ended {
        code: prolog.wait().unwrap().code(),
        killed: false,
        stderr,
    }
}

/// The only place that is free for the job has the files of this minor, which a process of another user holds open:
/// the prolog waits for the end of the process.
fn gets_the_files_after_their_holder(
    world: &World,
    job: Job,
    holder: &mut Program,
    user: u32,
    minor: u32,
) {
    let held = format!("process {} of user {user} holds", holder.pid());
    let ended = prolog_that_waits(world, job, &held, || {
        holder.end();
    });
    ended.ok();
    assert_eq!(capability(world, job).1, minor);
    world.check(&[]);
}

#[test]
fn an_open_capability_file_does_not_outlive_its_job() {
    let world = ready(GPU);
    let first = job_of(61_001, 1);
    world.prolog(first).ok();
    let (file, minor) = capability(&world, first);
    let gpu = world.root().join(format!("gpus/dev/nvidia{GPU}"));
    let mut own = [&file, &gpu].map(|device| Program::holding(first.uid, device));
    // Any user can pass a descriptor to a process of another user.
    let mut others = Program::holding(61_002, &file);
    world.epilog(first).ok().says("it is killed");
    own.iter_mut().for_each(Program::was_killed);
    assert!(others.lives());
    // The driver would give the next instance the same files, so it gets another place.
    let second = job_of(61_003, 2);
    world
        .prolog(second)
        .ok()
        .says("another instance is granted");
    assert_ne!(capability(&world, second).1, minor);
    world.check(&[]);
    // Then no other place is free.
    gets_the_files_after_their_holder(&world, job_of(61_004, 3), &mut others, 61_002, minor);
}

#[test]
fn a_capability_file_that_is_opened_while_a_prolog_waits_in_line_is_seen() {
    let world = ready(GPU + 4);
    let first = job_of(61_031, 1);
    world.prolog(first).ok();
    let (file, minor) = capability(&world, first);
    world.epilog(first).ok();
    let gpu = world.node().locks().unwrap();
    let gpu = gpu.gpu(GpuIndex(GPU + 4), Duration::from_secs(60)).unwrap();
    let second = job_of(61_032, 2);
    let mut prolog = world.job_command("prolog", second);
    let prolog = prolog.stderr(Stdio::piped()).spawn().unwrap();
    let line = world.root().join(format!("run/locks/gpu{}.line", GPU + 4));
    let start = Instant::now();
    while fs::read_dir(&line).unwrap().count() < 2 {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "it stands in line"
        );
    }
    let others = Program::holding(61_033, &file);
    // A found process would count as new for a moment.
    std::thread::sleep(Duration::from_millis(100));
    drop(gpu);
    let ended = Ended::of(prolog.wait_with_output().unwrap());
    ended.ok().says("another instance is granted");
    assert_ne!(capability(&world, second).1, minor);
    assert!(others.lives());
    world.check(&[]);
}

#[test]
fn a_kept_instance_is_not_taken_over_while_somebody_else_holds_its_files() {
    let gpu = GPU + 5;
    let world = ready(gpu);
    let keeps = format!("gpus = [{gpu}]\nreuse = \"1h\"");
    world.configure("halves", "H100-80", &keeps);
    let first = job_of(61_041, 1);
    world.prolog(first).ok();
    let (file, minor) = capability(&world, first);
    let mut own = Program::holding(first.uid, &file);
    world.epilog(first).ok().says("keeps").says("it is killed");
    own.was_killed();
    let mut others = Program::holding(61_042, &file);
    let second = Job { id: 2, ..first };
    world.prolog(second).ok().says("carved");
    assert_ne!(capability(&world, second).1, minor);
    assert!(others.lives());
    world.check(&[]);
    // No place is free beside the kept instance, so the job takes its place, and the process has its files.
    let third = Job { id: 3, ..first };
    gets_the_files_after_their_holder(&world, third, &mut others, 61_042, minor);
}

#[test]
fn files_held_by_the_jobs_own_user_do_not_block_it() {
    let world = ready(GPU + 1);
    let first = job_of(61_011, 1);
    world.prolog(first).ok();
    let (file, minor) = capability(&world, first);
    world.epilog(first).ok();
    let mut own = Program::holding(61_012, &file);
    let second = job_of(61_012, 2);
    world.prolog(second).ok();
    assert_eq!(capability(&world, second).1, minor);
    assert!(own.lives());
    world.epilog(second).ok();
    own.was_killed();
    assert!(world.leases().is_empty());
}

/// Promise (isolation): a slice becomes active only while no process of others computes on it; the reaper reports
/// processes that do so later.
/// With `a_process_that_computes_without_a_lease_is_reported`.
#[test]
fn a_slice_with_a_strangers_process_on_it_is_not_granted() {
    let world = ready(GPU + 2);
    let node = world.sim.node().unwrap();
    let mut stranger = Program::of(61_021);
    let pid = stranger.pid() as u32;
    let process = Process {
        pid,
        start_ticks: start_ticks(pid).unwrap(),
        name: "miner".into(),
        gpu_uuid: node.gpus[GPU as usize + 2].uuid.clone(),
        // The next instance, and the compute instance in it.
        instance: Some((node.next_serial, node.next_serial + 1)),
        memory_mib: 100,
        pattern: Pattern::Busy,
        began_us: now_us(),
    };
    process.register(world.sim.root()).unwrap();
    let one = job_of(61_022, 1);
    let said = format!("process {pid} runs on the job's new instance");
    let ended = prolog_that_waits(&world, one, &said, || {
        stranger.end();
    });
    ended.ok();
    world.check(&[]);
    world.epilog(one).ok();
}

/// A job's group on control groups of version 1, as Slurm 22.05 makes it; removed at the end of the test.
struct Group(PathBuf);

impl Group {
    fn new(job: Job) -> Group {
        Group::at(&format!("slurm_n1/uid_{}/job_{}", job.uid, job.id))
    }

    /// A group below the root of the hierarchy of devices.
    fn at(path: &str) -> Group {
        let devices = Path::new("/sys/fs/cgroup/devices");
        let path = devices.join(path);
        if devices.join("tasks").exists() && fs::create_dir_all(&path).is_ok() {
            Group(path)
        } else {
            test_seed::not_run("no control groups of version 1")
        }
    }

    fn put(&self, below: &str, process: &Program) {
        let folder = self.0.join(below);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.procs"), process.pid().to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        fn remove(path: &Path) {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    remove(&entry.path());
                }
            }
            let _ = fs::remove_dir(path);
        }
        remove(&self.0);
        // Others may have created the node's folder.
        let _ = fs::remove_dir(self.0.parent().unwrap());
        let _ = fs::remove_dir(self.0.parent().unwrap().parent().unwrap());
    }
}

/// A job that began under Slurm 24.11 has no SLUID in its lease; the groups of its steps have one from 26.05 on.
#[test]
fn a_step_of_the_users_other_job_lives_on_after_an_upgrade_of_slurm() {
    let world = ready(GPU + 4);
    let (one, two) = (job_of(61_041, 1), job_of(61_041, 2));
    world.prolog(one).ok();
    world.prolog(two).ok();
    let gpu = world.root().join(format!("gpus/dev/nvidia{}", GPU + 4));
    let [step, mut stray] = [(), ()].map(|()| Program::holding(one.uid, &gpu));
    let group = Group::at("slurm_n1/n1_slurmstepd.scope/sEKNKTV3WPV500");
    group.put("step_1", &step);
    world.epilog(one).ok().says("it is killed");
    stray.was_killed();
    assert!(step.lives());
    world.check(&[]);
}

#[test]
fn remains_of_a_jobs_group_of_version_1_are_fenced_and_ended() {
    let world = ready(GPU + 3);
    let one = job_of(61_031, 61_031);
    let group = Group::new(one);
    world.prolog(one).ok();
    // A process of the user's other job, in a group that the user made below that of a task.
    let mut moved = Program::of(one.uid);
    group.put("step_0/task_0/mine", &moved);
    // Slurm's own process, which leaves late.
    let device = world.root().join(format!("gpus/dev/nvidia{}", GPU + 3));
    let script = format!("read go; cat {}; true", device.display());
    let mut slurmstepd = Program::start(
        Command::new("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .env("LC_ALL", "C"),
    );
    group.put("step_0", &slurmstepd);
    world.epilog(one).ok().says("control group: it is killed");
    moved.was_killed();
    assert!(!group.0.join("step_0/task_0").exists());
    assert!(slurmstepd.lives());
    let mut pipe = slurmstepd.child().stdin.take().unwrap();
    pipe.write_all(b"go\n").unwrap();
    let mut said = String::new();
    let mut stderr = slurmstepd.child().stderr.take().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    assert!(said.contains("Operation not permitted"), "{said}");
    slurmstepd.child().wait().unwrap();
    // The group is empty now: the epilog removes it.
    let start = Instant::now();
    while group.0.exists() {
        assert!(start.elapsed() < Duration::from_secs(60));
        world.epilog(one).ok();
    }
}
