//! GPUs whose MIG mode changes for jobs: `whole = "bare"`.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use common::program::{Program, eventually};
use common::{Job, World, job, ready_in};
use gpufrac_core::lease::Held;
use gpufrac_host::files::{DeviceNumber, DeviceRule};
use gpufrac_node::state::record::NodeRecord;
use nix::fcntl::OFlag;
use nvidia_ml::disturb::{What, counted};
use nvidia_ml::node::compute_mode;
use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes::{self, Process, now_us, start_ticks};
use nvidia_ml::store::StoreError;

#[test]
fn child() {
    common::child();
}

const KEYS: &str = "menu = [\"1/2\"]\nwhole = \"bare\"";
const SWITCH: &str = "nvmlDeviceSetMigMode";

/// Two GPUs in MIG mode, which pieces and whole GPUs share by demand; set up.
fn ready_with(more: &str) -> World {
    let keys = format!("{KEYS}\n{more}");
    let world = ready_in("uniform", &["H100-80", "H100-80"], &keys);
    world.count_calls();
    world
}

fn ready() -> World {
    ready_with("")
}

fn half(id: u32) -> Job {
    job(id, 0, 50)
}

fn whole(id: u32) -> Job {
    job(id, 0, 100)
}

fn is_mig(world: &World, gpu: usize) -> bool {
    world.sim.node().unwrap().gpus[gpu].mig
}

/// How often a mode was asked for.
fn switches(world: &World) -> u64 {
    counted(&world.sim.counters().unwrap(), Some(SWITCH))
}

fn reboot(world: &World) {
    world.on_node(|node| node.reboot());
}

/// A process of root's that holds the first GPU without a context, as monitoring does.
fn agent(world: &World, name: &str) -> Program {
    agent_by(world, name, processes::hold)
}

fn agent_by(
    world: &World,
    name: &str,
    hold: impl Fn(&Path, u32, &str) -> Result<(), StoreError>,
) -> Program {
    let sleep = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|folder| folder.join("sleep"))
        .find(|path| path.exists())
        .unwrap();
    let program = world.root().join(name);
    fs::copy(sleep, &program).unwrap();
    // Without a driver behind the node the kernel opens no more of it than its path.
    let device = fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_PATH.bits())
        .open(world.root().join("gpus/dev/nvidia0"))
        .unwrap();
    let agent = Program::start(Command::new(&program).arg("1000").stdin(device));
    let named = || fs::read_to_string(format!("/proc/{}/comm", agent.pid()));
    eventually(|| named().is_ok_and(|comm| comm.trim_end() == name));
    let uuid = world.sim.node().unwrap().gpus[0].uuid.clone();
    hold(world.sim.root(), agent.pid().unsigned_abs(), &uuid).unwrap();
    agent
}

/// Promise (placement): with `whole = "bare"` a whole GPU has MIG off and pieces come from the same GPU before and
/// after; the mode changes only when a job needs the other one.
#[test]
fn whole_gpus_without_mig_and_pieces_come_from_the_same_gpu() {
    let world = ready();
    let rounds = |first: u32| {
        for piece in [half(first), half(first + 1)] {
            world.prolog(piece).ok();
        }
        world.check(&[]);
        assert!(is_mig(&world, 0));
        for piece in [half(first), half(first + 1)] {
            world.epilog(piece).ok();
        }
        // Two whole jobs in a row: one switch.
        for id in [first + 2, first + 3] {
            world.prolog(whole(id)).ok();
            world.check(&[]);
            assert!(!is_mig(&world, 0));
            let lease = world.lease(whole(id)).unwrap();
            assert_eq!(lease.slice.held, Held::Bare);
            let uuid = world.sim.node().unwrap().gpus[0].uuid.clone();
            assert_eq!(lease.slice.cuda_device(), Some(&*uuid));
            world.epilog(whole(id)).ok();
        }
        assert!(!is_mig(&world, 0), "a job's end switches nothing");
    };
    rounds(1);
    assert_eq!(switches(&world), 1);
    rounds(11);
    rounds(21);
    assert_eq!(switches(&world), 5, "there and back");
    assert!(is_mig(&world, 1), "the other GPU is as it was");
    assert!(world.leases().is_empty() && world.slurm_was_told().is_empty());
    let profiles: Vec<String> = world
        .usage()
        .iter()
        .map(|record| record["profile"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(profiles.iter().filter(|it| *it == "bare").count(), 6);
}

#[test]
fn a_pool_of_whole_gpus_has_them_without_mig() {
    let world = World::with(&["H100-80"], "whole", false);
    world.configure("whole", "H100-80", "whole = \"bare\"");
    // To see what the model is, once.
    world.setup().ok().says("switched MIG on for GPU 0");
    let before = switches(&world);
    for id in [1, 2] {
        world.prolog(whole(id)).ok();
        world.check(&[]);
        assert_eq!(world.lease(whole(id)).unwrap().slice.held, Held::Bare);
        world.epilog(whole(id)).ok();
    }
    assert_eq!(switches(&world), before + 1);
    // The admin changes the key while a job runs: it keeps its GPU, and its epilog ends it.
    world.prolog(whole(3)).ok();
    world.configure("whole", "H100-80", "");
    let ended = world.setup().says("job 3 has a slice of it");
    assert_eq!((ended.code, switches(&world)), (Some(1), before + 1));
    world.check(&[]);
    world.epilog(whole(3)).ok();
    world.setup().ok().says("switched MIG on");
    world.prolog(whole(4)).ok();
    assert_eq!(world.lease(whole(4)).unwrap().kind(), "7g.80gb");
    world.check(&[]);
}

#[test]
fn a_whole_job_has_its_gpu_and_no_capability_and_others_are_fenced() {
    let world = ready();
    world.prolog(whole(1)).ok();
    world.prolog(job(2, 1, 50)).ok();
    let record = NodeRecord::read(&world.root().join("run")).unwrap();
    let gpu = |index: usize| DeviceNumber {
        major: record.gpus[index].major,
        minor: record.gpus[index].minor.0,
    };
    let lease = |id: u32| world.lease(whole(id)).unwrap();
    assert_eq!(record.devices(&lease(1)), [gpu(0)]);
    let denies = |leases: &[gpufrac_core::lease::Lease], device: DeviceNumber| {
        record.rules(leases).iter().any(|rule| match rule {
            DeviceRule::Major(major) => *major == device.major,
            DeviceRule::Device(denied) | DeviceRule::Behind(denied) => *denied == device,
        })
    };
    let of_whole = [lease(1)];
    assert!(!denies(&of_whole, gpu(0)) && denies(&of_whole, gpu(1)));
    for (first, last) in record.gpus.iter().flat_map(|gpu| &gpu.caps) {
        for minor in *first..=*last {
            let major = record.caps_major;
            assert!(denies(&of_whole, DeviceNumber { major, minor }), "{minor}");
        }
    }
    assert!(denies(&[lease(2)], gpu(0)) && denies(&[], gpu(0)));
}

/// Promise (placement): a process that keeps a GPU from changing its mode is named with its pid and its name in
/// escapes; the job goes back, the node stays.
#[test]
fn a_process_that_holds_the_gpu_is_named_and_the_job_goes_back() {
    let world = ready();
    // Its name is its own choice.
    let mut agent = agent(&world, "dcgm\u{1b}[2J\u{e9}");
    let pid = agent.pid();
    let one = whole(1);
    world.slurm_knows(one);
    let started = std::time::Instant::now();
    world
        .prolog(one)
        .ok()
        .says("is still in MIG mode: process")
        .says(&format!("process {pid} (`dcgm\\x1b[2J\\xc3\\xa9`)"));
    assert!(started.elapsed().as_secs() >= 5, "it is tried for a while");
    assert!(switches(&world) > 2);
    assert_eq!(world.slurm_was_told(), ["requeue 1"]);
    assert!(!world.root().join("slurm/reason").exists(), "no drain");
    assert!(world.leases().is_empty() && is_mig(&world, 0));
    // Pieces come as before, and when the process has gone the whole GPU does.
    world.prolog(half(2)).ok();
    world.epilog(half(2)).ok();
    agent.end();
    world.prolog(one).ok();
    world.check(&[]);
    world.epilog(one).ok();
}

#[test]
fn a_process_that_computes_is_named() {
    let world = ready();
    let mut program = Program::of(0);
    let pid = program.pid().unsigned_abs();
    let process = |world: &World| Process {
        pid,
        start_ticks: start_ticks(pid).unwrap(),
        name: "python".into(),
        gpu_uuid: world.sim.node().unwrap().gpus[0].uuid.clone(),
        instance: None,
        memory_mib: 100,
        pattern: Pattern::Busy,
        began_us: now_us(),
    };
    process(&world).register(world.sim.root()).unwrap();
    let one = whole(1);
    world.slurm_knows(one);
    let said = format!("process {pid} (`sleep`) uses it");
    world.prolog(one).ok().says(&said);
    assert_eq!(world.slurm_was_told(), ["requeue 1"]);
    program.end();
    world.prolog(one).ok();
    world.check(&[]);
}

#[test]
fn a_prolog_waits_for_an_epilog_that_frees_the_gpu_in_time() {
    let world = ready();
    let mut agent = agent(&world, "nv-hostengine");
    let one = whole(1);
    world.slurm_knows(one);
    let running = world.start("prolog", Some(one));
    eventually(|| switches(&world) > 0);
    agent.end();
    assert!(running.wait_with_output().unwrap().status.success());
    world.check(&[]);
    assert!(world.slurm_was_told().is_empty());
}

#[test]
fn the_mode_of_a_leased_gpu_stays() {
    let world = ready();
    let (piece, other) = (half(1), whole(2));
    for job in [piece, other] {
        world.slurm_knows(job);
    }
    world.prolog(piece).ok();
    // Slurm never does this.
    world.prolog(other).ok().says("no room");
    assert!(is_mig(&world, 0));
    world.check(&[]);
    world.epilog(piece).ok();
    world.prolog(other).ok();
    world.prolog(piece).ok().says("no room");
    assert!(!is_mig(&world, 0));
    world.check(&[]);
    // The epilog of the whole job never came, and Slurm says that it is over.
    world.slurm_says(2, "finished - 0");
    world.prolog(piece).ok();
    world.check(&[]);
    assert_eq!(world.leases().len(), 1);
    // A lease of another layout, which takes no room of this one.
    world.epilog(piece).ok();
    world.configure("halves", "H100-80", "");
    world.setup().ok();
    world.prolog(job(3, 1, 50)).ok();
    world.configure("uniform", "H100-80", KEYS);
    world.setup().ok();
    let before = switches(&world);
    let late = whole(4);
    world.slurm_knows(late);
    world.prolog(late).ok().says("job 3 has a slice of it");
    assert_eq!(switches(&world), before);
    world.check(&[]);
}

#[test]
fn an_instance_that_no_lease_names_keeps_the_mode() {
    let world = ready();
    let foreign = world.foreign(19, 0, 1, Some(0));
    let ended = world.prolog(whole(1)).says("gpufrac clean");
    assert_eq!(ended.code, Some(1));
    assert_eq!(switches(&world), 0);
    world.check(&[foreign]);
}

#[test]
fn kept_instances_go_before_the_mode_does() {
    let world = ready_with("reuse = \"1h\"");
    world.prolog(half(1)).ok();
    world.epilog(half(1)).ok();
    assert_eq!(world.instances(0).len(), 1);
    let said = world.prolog(whole(2)).ok();
    world.check(&[]);
    assert!(world.instances(0).is_empty() && !is_mig(&world, 0));
    let said = said.stderr + &world.epilog(whole(2)).ok().stderr;
    assert!(!said.contains("not kept"), "{said}");
    assert!(world.leases().is_empty());
    // One that is taken over needs no switch.
    world.prolog(half(3)).ok();
    world.epilog(half(3)).ok();
    let before = switches(&world);
    world
        .prolog(Job {
            uid: 1003,
            ..half(4)
        })
        .ok();
    assert_eq!(switches(&world), before);
    world.check(&[]);
}

/// Promise (placement): after a reboot without MIG mode the node works again, and nothing else is lost.
#[test]
fn a_reboot_loses_the_mode_and_nothing_else() {
    let world = ready();
    // Nobody had the GPU: what node-setup saw is known, so the mode comes with the next job.
    reboot(&world);
    assert!(!is_mig(&world, 0));
    world.prolog(half(1)).ok();
    world.check(&[]);
    world.epilog(half(1)).ok();
    // The first node-setup after it looks at the GPUs in MIG mode.
    reboot(&world);
    fs::remove_dir_all(world.root().join("run")).unwrap();
    world.setup().ok().says("switched MIG on for GPU 0");
    world.run_check().ok();
    world.prolog(whole(2)).ok();
    world.check(&[]);
    // A later one leaves a job its mode, and the record has all.
    let before = switches(&world);
    world.setup().ok();
    world.run_check().ok();
    assert_eq!(switches(&world), before);
    world.check(&[]);
    world.epilog(whole(2)).ok();
    world.setup().ok();
    assert!(!is_mig(&world, 0), "lazily");
    world.prolog(half(3)).ok();
    world.check(&[]);
}

/// Set up for the first time, a GPU in use waits for an admin as every other does.
#[test]
fn set_up_names_what_keeps_a_gpu_from_mig_mode() {
    let world = World::with(&["H100-80"], "uniform", false);
    world.configure("uniform", "H100-80", KEYS);
    let agent = agent(&world, "dcgm-exporter");
    let ended = world
        .setup()
        .says("is not in MIG mode yet")
        .says(&format!("process {} (`dcgm-exporter`)", agent.pid()));
    assert_eq!(ended.code, Some(1));
}

/// Promise (placement): `whole = "bare"` is refused for models that change their MIG mode only by a reset; their mode
/// stays.
#[test]
fn models_that_need_a_reset_are_refused_and_left_alone() {
    for (layout, menu) in [("uniform", "menu = [\"1/2\"]\n"), ("whole", "")] {
        let world = World::with(&["A100-80"], layout, true);
        world.configure(layout, "A100-80", &format!("{menu}whole = \"bare\""));
        let ended = world
            .setup()
            .says("only by a reset of the GPU")
            .says("write whole = \"mig\"");
        assert_eq!(ended.code, Some(1));
        // A table of the configuration says nothing of resets, the driver does.
        let table = geometry_as_table("A100-80", "mine");
        world.configure(layout, "mine", &format!("{menu}whole = \"bare\"\n{table}"));
        let ended = world
            .setup()
            .says("only by a reset")
            .says("whole = \\\"mig\\\"");
        assert_eq!(ended.code, Some(1));
        assert_eq!(world.run_check().says("only by a reset").code, Some(1));
        world.count_calls();
        let ended = world.prolog(whole(1)).says("hint: write whole = \"mig\"");
        assert_eq!(ended.code, Some(1));
        assert_eq!(switches(&world), 0);
        let gpu = world.sim.node().unwrap().gpus[0].clone();
        assert!(gpu.mig && gpu.mig_pending, "untouched");
        assert_eq!(gpu.compute_mode, compute_mode::DEFAULT);
    }
}

/// A model that the program knows, as an admin describes one.
fn geometry_as_table(model: &str, name: &str) -> String {
    let geometry = gpufrac_core::geometry::Geometry::builtin(model).unwrap();
    let mut text = format!(
        "[geometry.{name}]\nmemory_slices = {}\ncompute_slices = {}\n",
        geometry.memory_slices, geometry.compute_slices
    );
    for profile in &geometry.profiles {
        let places: Vec<String> = profile
            .placements
            .iter()
            .map(|place| format!("{{ start = {}, size = {} }}", place.start, place.size))
            .collect();
        text.push_str(&format!(
            "[[geometry.{name}.profiles]]\nid = {}\nslice_enum = {}\nname = \"{}\"\ncompute_slices = {}\nmultiprocessors = {}\nmemory = {}\nmax_instances = {}\nplacements = [{}]\n",
            profile.id,
            profile.slice_enum,
            profile.name,
            profile.compute_slices,
            profile.multiprocessors,
            profile.memory.0,
            profile.max_instances,
            places.join(", ")
        ));
    }
    text
}

/// Some GPUs change, some are halves, some are nobody's.
#[test]
fn only_gpus_of_the_pool_change() {
    let world = World::with(&["H100-80"; 4], "uniform", true);
    world.configure(
        "uniform",
        "H100-80",
        &format!("{KEYS}\ngpus = [1]\n[pool.q]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"mixed\"]\nnodes = \"n1\"\ngpus = [0, 3]"),
    );
    // Nobody's: in whatever mode its owner has it.
    world
        .sim
        .update(|node| {
            node.gpus[2].mig = false;
            node.gpus[2].mig_pending = false;
            Ok(())
        })
        .unwrap();
    world.setup().ok();
    world.count_calls();
    world.note_calls();
    let modes = || -> Vec<bool> { (0..4).map(|gpu| is_mig(&world, gpu)).collect() };
    assert_eq!(modes(), [true, true, false, true]);
    // The devices: GPU 1 whole, then four halves.
    let (bare, quarter) = (job(1, 0, 100), job(2, 1, 25));
    world.prolog(quarter).ok();
    world.prolog(bare).ok();
    assert_eq!(modes(), [true, false, false, true]);
    assert_eq!(world.lease(bare).unwrap().slice.gpu_index.0, 1);
    world.check(&[]);
    world.epilog(bare).ok();
    world.prolog(half(3)).ok();
    assert_eq!(modes(), [true, true, false, true]);
    world.check(&[]);
    assert_eq!(switches(&world), 2);
    // A half of a GPU of the other pool is never the GPU.
    world.prolog(job(4, 3, 100));
    assert_eq!(world.leases_of(job(4, 3, 100)), []);
    assert_eq!(modes(), [true, true, false, true]);
}

#[test]
fn a_mode_that_takes_its_time_or_fails_for_a_moment_is_waited_for() {
    let world = ready();
    world.next_calls(SWITCH, 1, What::Fail(999));
    world.prolog(whole(1)).ok();
    world.check(&[]);
    world.epilog(whole(1)).ok();
    world.next_calls(SWITCH, 1, What::Delay(1500));
    world.prolog(half(2)).ok().says("switched MIG on for GPU 0");
    world.check(&[]);
}

/// Promise (never): what keeps an empty GPU from its first instance is named.
// The mode is switched, although something uses the GPU, and the first instance is refused.
#[test]
fn what_keeps_an_empty_gpu_from_its_first_instance_is_named() {
    let world = ready();
    world.prolog(whole(1)).ok();
    world.epilog(whole(1)).ok();
    let mut agent = agent_by(&world, "Xorg", |root, pid, uuid| {
        processes::hold(root, pid, &processes::parent(uuid))
    });
    let one = half(2);
    world.slurm_knows(one);
    let named = format!("process {} (`Xorg`) holds its device open", agent.pid());
    let ended = world.prolog(one).ok();
    ended
        .says("has no instance, and is not idle: ")
        .says(&named);
    assert!(is_mig(&world, 0), "the mode was switched");
    assert_eq!(world.slurm_was_told(), ["requeue 2"]);
    assert!(world.leases().is_empty() && !world.root().join("slurm/reason").exists());
    agent.end();
    world.prolog(one).ok();
    world.check(&[]);
    // The first one alone: the same answers beside another instance are of the instance.
    const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";
    for (code, beside) in [(29, true), (999, true), (29, false), (999, false)] {
        if !beside {
            world.epilog(one).ok();
        }
        let next = half(10 + code);
        world.next_calls(CREATE, 1, What::Fail(code));
        let said = world.prolog(next).ok().stderr;
        assert_eq!(said.contains("is not idle"), !beside, "{code}: {said}");
        world.check(&[]);
        world.epilog(next).ok();
    }
}

/// Promise (never): a job of a whole GPU starts when the NVSwitch fabric has the GPU.
// On NVSwitch systems a GPU without MIG computes only when its fabric has it again.
#[test]
fn a_whole_job_starts_when_the_fabric_has_its_gpu() {
    let world = ready();
    let fabric = |ms| {
        world.on_node(|node| node.manners.fabric_after_ms = Some(ms));
    };
    let started = std::time::Instant::now();
    fabric(700);
    world.prolog(whole(1)).ok();
    assert!(started.elapsed().as_millis() >= 700);
    world.check(&[]);
    world.epilog(whole(1)).ok();
    // It never comes: the job goes back, whatever the mode was before.
    fabric(1_000_000_000);
    world.slurm_knows(whole(2));
    let mut command = world.job_command("prolog", whole(2));
    let output = command.env(common::LOCK_PATIENCE, "500").output().unwrap();
    let ended = common::Ended::of(output).ok();
    ended.says("is not in its NVLink fabric");
    assert_eq!(world.slurm_was_told(), ["requeue 2"]);
    assert!(world.leases().is_empty());
}
