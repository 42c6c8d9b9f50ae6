//! A node in a folder: simulated GPUs, a configuration, and a Slurm made of files. Prolog, epilog and setup run as
//! separate processes (this test binary again, entered at `child`), so that they can be killed, and each loads NVML
//! itself.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

pub mod program;
pub mod reuse;
pub mod scene;
pub mod shares;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Held, Lease, LeaseState};
use gpufrac_host::exit::Exit;
use gpufrac_host::log::JobLog;
use gpufrac_node::gpu::locked::LockedGpu;
use gpufrac_node::gpu::shared_session;
use gpufrac_node::job::environment::JobEnv;
use gpufrac_node::job::slurmctld::{Slurm, SlurmError};
use gpufrac_node::node::Node;
use gpufrac_node::setup::{self, check};
use gpufrac_node::slice::{carve, failpoint, keep, release};
use gpufrac_node::state::leases::LeaseStore;
use nvidia_ml::disturb::{Disturbances, Rule, What, counted};
use nvidia_ml::journal;
use nvidia_ml::latency::Latencies;
use nvidia_ml::model::Model;
use nvidia_ml::node as sim;
use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes::{Process, now_us, start_ticks};
use nvidia_ml::store::Store;
use shares::{Control, Kind};
use slurm_sys::client::{ClientError, Drained, HookLimits, JobInfo, JobState, SpankFiles};

pub const NODE: &str = "n1";
const ACTION: &str = "GPUFRAC_TEST_ACTION";
const SLURM: &str = "GPUFRAC_TEST_SLURM";
/// Set if a run is traced.
const TRACED: &str = "GPUFRAC_TEST_TRACED";
/// The wait for the lock of a GPU, in milliseconds.
pub const LOCK_PATIENCE: &str = "GPUFRAC_TEST_LOCK_PATIENCE";

/// A node with one MIG GPU in halves, after setup.
pub fn ready() -> World {
    ready_with(&["H100-80"], "")
}

/// A node with these GPUs in halves, in a pool with these further keys.
pub fn ready_with(gpus: &[&str], more: &str) -> World {
    ready_in("halves", gpus, more)
}

/// As [`ready_with`], in another layout.
pub fn ready_in(layout: &str, gpus: &[&str], more: &str) -> World {
    let world = World::with(gpus, layout, true);
    world.configure(layout, gpus[0], more);
    world.setup().ok();
    world
}

/// A node in a folder.
pub struct World {
    folder: tempfile::TempDir,
    pub sim: Store,
    pub kind: Kind,
    /// The MPS control program.
    pub control: PathBuf,
    /// The compute mode of GPUs that no job shares.
    pub mode: Cell<u32>,
}

/// Runs all cases in parallel, because most of them mostly wait.
pub fn at_once<T: Send>(cases: impl IntoIterator<Item = T>, run: impl Fn(T) + Sync) {
    std::thread::scope(|scope| {
        let run = &run;
        for case in cases {
            scope.spawn(move || run(case));
        }
    });
}

/// A job as Slurm starts it.
#[derive(Clone, Copy)]
pub struct Job {
    pub id: u32,
    pub uid: u32,
    pub device: u32,
    pub units: u32,
    pub restarts: u32,
    /// The number of tasks on this node, each with its own slice; 0 for a job with one slice.
    pub tasks: u32,
    /// The ceiling that its entry grants, in percent of a GPU; 0 for none.
    pub burst: u32,
    /// How many whole GPUs it has here, from `device` on; 0 for a job with one device.
    pub gpus: u32,
}

impl Job {
    /// How many slices it has here.
    pub fn slices(self) -> usize {
        self.tasks.max(self.gpus).max(1) as usize
    }
}

pub fn job(id: u32, device: u32, units: u32) -> Job {
    Job {
        id,
        uid: 1000 + id,
        device,
        units,
        restarts: 0,
        tasks: 0,
        burst: 0,
        gpus: 0,
    }
}

/// A job with whole GPUs.
pub fn job_of_gpus(id: u32, first: u32, gpus: u32) -> Job {
    Job {
        gpus,
        ..job(id, first, gpus * 100)
    }
}

/// A job with a slice of `units` for each task.
pub fn job_of_tasks(id: u32, device: u32, units: u32, tasks: u32) -> Job {
    Job {
        tasks,
        ..job(id, device, units)
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub killed: bool,
    pub stderr: String,
}

impl Ended {
    pub fn of(output: Output) -> Ended {
        Ended {
            code: output.status.code(),
            killed: output.status.signal() == Some(9),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    pub fn ok(self) -> Ended {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    #[track_caller]
    pub fn says(self, text: &str) -> Ended {
        assert!(
            self.stderr.contains(text),
            "no `{text}` in: {}",
            self.stderr
        );
        self
    }
}

impl World {
    /// One H100 in halves.
    pub fn new() -> World {
        World::with(&["H100-80"], "halves", true)
    }

    pub fn with(names: &[&str], layout: &str, mig: bool) -> World {
        // For device nodes.
        test_seed::needs_root();
        let folder = tempfile::tempdir_in(gpusim::memory::folder()).unwrap();
        let root = folder.path();
        let models: Vec<&Model> = names.iter().map(|m| Model::find(m).unwrap()).collect();
        let node = sim::Node::new("550.54.15", &models, mig);
        let sim = Store::create(&root.join("gpus"), &node).unwrap();
        // The order of events is that of a slow driver; a hundredth of its times is enough for that.
        let latencies = Latencies {
            percent: 1,
            ..Latencies::default()
        };
        sim.disturb(|d| d.latencies = Some(latencies)).unwrap();
        // The library that cargo built beside this test.
        let built = std::env::current_exe()
            .unwrap()
            .with_file_name("libnvidia_ml.so");
        fs::create_dir_all(root.join("gpus/lib")).unwrap();
        fs::copy(&built, root.join("gpus/lib/libnvidia-ml.so.1")).unwrap();
        fs::create_dir(root.join("slurm")).unwrap();
        let world = World {
            folder,
            sim,
            kind: Kind::Mig,
            control: "/nonexistent".into(),
            mode: Cell::new(sim::compute_mode::DEFAULT),
        };
        world.configure(layout, names[0], "");
        world
    }

    /// Two H100 that are shared without MIG, or one in halves.
    pub fn shared(kind: Kind, control: Control) -> World {
        World::shared_on(&["H100-80", "H100-80"], kind, control)
    }

    pub fn shared_on(names: &[&str], kind: Kind, control: Control) -> World {
        let names = if kind.uses_mig() { &names[..1] } else { names };
        let mut world = World::with(names, "halves", kind.uses_mig());
        world.control = control.install(world.root());
        world.kind = kind;
        world.configure(kind.layout(), names[0], &kind.keys(world.root()));
        world
    }

    pub fn configure(&self, layout: &str, model: &str, more: &str) {
        let root = self.root();
        let control = self.control.display();
        let mechanism = self.kind.mechanism();
        let text = format!(
            "version = 1\n[paths]\nrun = \"{0}/run\"\nstate = \"{0}/state\"\ndevices = \"{0}/dev\"\ncdi = \"{0}/cdi\"\ndriver_root = \"{0}/gpus\"\nnvml = \"{0}/gpus/lib/libnvidia-ml.so.1\"\nmps_control = \"{control}\"\nnvidia_smi = \"{0}/nvidia-smi\"\n[pool.p]\nmechanism = \"{mechanism}\"\nlayout = \"{layout}\"\ngpu = \"{model}\"\npartitions = [\"gpu\"]\nnodes = \"{NODE}\"\n{more}\n",
            root.display()
        );
        fs::write(self.config(), text).unwrap();
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn config(&self) -> PathBuf {
        self.root().join("gpufrac.toml")
    }

    pub fn node(&self) -> Node {
        Node::load(&self.config(), NODE).unwrap()
    }

    pub fn command(&self, action: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--nocapture", "--quiet"])
            .env(ACTION, action)
            .env(SLURM, self.root().join("slurm"))
            .env("GPUFRAC_CONFIG", self.config())
            .env("SLURMD_NODENAME", NODE)
            .env_remove("NVML_SIM_ROOT");
        command
    }

    pub fn job_command(&self, action: &str, job: Job) -> Command {
        let mut command = self.command(action);
        let devices = job.device..job.device + job.gpus.max(1);
        let devices: Vec<String> = devices.map(|device| device.to_string()).collect();
        command
            .env("SLURM_JOB_ID", job.id.to_string())
            .env("SLURM_JOB_UID", job.uid.to_string())
            .env("SLURM_JOB_GID", job.uid.to_string())
            .env("SLURM_JOB_USER", format!("u{}", job.uid))
            .env("SLURM_JOB_PARTITION", "gpu")
            .env("SLURM_JOB_ACCOUNT", "physics")
            .env("SLURM_JOB_RESTART_COUNT", job.restarts.to_string())
            .env("SLURM_JOB_GPUS", devices.join(","))
            .env(
                "SPANK_GPUFRAC",
                format!(
                    "v1:units={}:mech={}{}{}",
                    job.units,
                    self.kind.mechanism(),
                    if job.tasks > 0 { ":per=task" } else { "" },
                    match job.burst {
                        0 => String::new(),
                        burst => format!(":burst={burst}"),
                    }
                ),
            );
        command
    }

    pub fn setup(&self) -> Ended {
        Ended::of(self.command("setup").output().unwrap())
    }

    /// Starts a program that runs beside others.
    pub fn start(&self, action: &str, job: Option<Job>) -> Child {
        let mut command = match job {
            Some(job) => self.job_command(action, job),
            None => self.command(action),
        };
        let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// `gpufrac check` on the node.
    pub fn run_check(&self) -> Ended {
        Ended::of(self.command("check").output().unwrap())
    }

    pub fn prolog(&self, job: Job) -> Ended {
        Ended::of(self.job_command("prolog", job).output().unwrap())
    }

    pub fn epilog(&self, job: Job) -> Ended {
        Ended::of(self.job_command("epilog", job).output().unwrap())
    }

    /// Runs a program that is killed at a point.
    pub fn killed_at(&self, point: &str, action: &str, job: Job) {
        let output = self
            .job_command(action, job)
            .env(failpoint::ENV, point)
            .output()
            .unwrap();
        let ended = Ended::of(output);
        assert!(ended.killed, "{action} does not come to {point}: {ended:?}");
    }

    /// Runs a program that is killed at a system call, if it reaches the call. Its output is in `said`.
    #[cfg(target_arch = "x86_64")]
    pub fn traced(&self, action: &str, job: Job, death: Option<tracer::Death>) -> tracer::Run {
        let said = fs::File::create(self.root().join("said")).unwrap();
        let mut command = self.job_command(action, job);
        command.env(TRACED, "1").stderr(said);
        let driver_lock = self.root().join("gpus/state/lock").canonicalize().unwrap();
        tracer::run(command, &driver_lock, death).unwrap()
    }

    /// Sets Slurm's answer about a job: `running gres:shard:25 0`.
    pub fn slurm_says(&self, job_id: u32, text: &str) {
        fs::write(self.root().join("slurm").join(job_id.to_string()), text).unwrap();
    }

    /// Slurm's record of the job matches its entry.
    pub fn slurm_knows(&self, job: Job) {
        let Job { units, .. } = job;
        let text = format!(
            "running gres/gpufrac:{units},gres/shard:{units} {}",
            job.restarts
        );
        self.slurm_says(job.id, &text);
    }

    /// Slurm does not answer for `seconds` of its own clock.
    pub fn slurm_is_silent_for(&self, seconds: u32) {
        fs::write(self.root().join("slurm/silent"), seconds.to_string()).unwrap();
    }

    /// Sets Slurm's answer about a job with a slice for each task, or with several whole GPUs.
    pub fn slurm_counts(&self, job: Job) {
        let Job {
            units, tasks, gpus, ..
        } = job;
        if gpus > 0 {
            let name = match self.kind {
                Kind::Mig => "uniform",
                kind => kind.mechanism(),
            };
            let tres = format!("gres/gpu:{name}:{gpus},gres/gpufrac:{units}");
            return self.slurm_says(job.id, &format!("running {tres} {}", job.restarts));
        }
        let held = units * tasks;
        let text = format!(
            "running - {} gres/gpufrac:{units},gres/shard:{units} gpufrac(CNT:{held}),shard:half:{held}({held}/50,0/50)",
            job.restarts
        );
        self.slurm_says(job.id, &text);
    }

    /// The leases of a job, by number.
    pub fn leases_of(&self, job: Job) -> Vec<Lease> {
        let mut leases = self.leases();
        leases.retain(|lease| lease.job_id.0 == job.id);
        leases
    }

    /// The requests to Slurm: `requeue 7`.
    pub fn slurm_was_told(&self) -> Vec<String> {
        fs::read_to_string(self.root().join("slurm/told"))
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    }

    pub fn leases(&self) -> Vec<Lease> {
        let store = LeaseStore::open(&self.root().join("run")).unwrap();
        store.list().unwrap()
    }

    pub fn lease(&self, job: Job) -> Option<Lease> {
        self.leases().into_iter().find(|l| l.job_id.0 == job.id)
    }

    /// The serial number of a lease's instance, which no other instance has; the MIG UUID tells only the place.
    #[track_caller]
    pub fn serial(&self, lease: &Lease) -> u64 {
        let gi_id = lease.slice.instance().unwrap().gi_id;
        let node = self.sim.node().unwrap();
        let mut gpus = node.gpus.iter();
        let gpu = gpus.find(|gpu| gpu.uuid == lease.slice.gpu_uuid).unwrap();
        gpu.instance(gi_id).unwrap().serial
    }

    pub fn instances(&self, gpu: usize) -> Vec<sim::GpuInstance> {
        self.sim.node().unwrap().gpus[gpu].instances.clone()
    }

    /// Creates a small instance on a GPU outside of gpufrac.
    pub fn foreign_on(&self, gpu: usize) {
        self.sim
            .update(|node| node.create_gpu_instance(gpu, 19, Some((0, 1))).map(drop))
            .unwrap();
    }

    /// Changes the first GPU without NVML.
    pub fn on_gpu(&self, change: impl Fn(&mut sim::Gpu)) {
        self.on_node(|node| change(&mut node.gpus[0]));
    }

    pub fn on_node(&self, change: impl Fn(&mut sim::Node)) {
        let changed = self.sim.update(|node| {
            change(node);
            Ok(())
        });
        changed.unwrap();
    }

    /// Puts the first GPU, which has no instance, in a mode.
    pub fn set_mig(&self, on: bool) {
        self.on_gpu(|gpu| {
            assert!(gpu.instances.is_empty());
            (gpu.mig, gpu.mig_pending) = (on, on);
        });
    }

    /// Creates an instance without gpufrac.
    pub fn foreign(&self, profile: u32, start: u32, size: u32, compute: Option<u32>) -> u32 {
        self.sim
            .update(|node| {
                let place = Some((start, size));
                let id = node.create_gpu_instance(0, profile, place)?.id;
                if let Some(profile) = compute {
                    node.create_compute_instance(0, id, profile, None)?;
                }
                Ok(id)
            })
            .unwrap()
    }

    /// Lets this test's process hold memory on the slice of a job.
    pub fn use_slice(&self, job: Job, pid: u32) -> Process {
        let lease = self.lease(job).unwrap();
        let node = self.sim.node().unwrap();
        let gpu = &node.gpus[lease.slice.gpu_index.position()];
        let id = lease.slice.instance().unwrap().gi_id;
        let gi = gpu.instance(id).unwrap();
        let process = Process {
            pid,
            start_ticks: start_ticks(pid).unwrap(),
            name: "train".into(),
            gpu_uuid: gpu.uuid.clone(),
            instance: Some((gi.serial, gi.compute[0].serial)),
            memory_mib: 100,
            pattern: Pattern::Busy,
            began_us: now_us(),
        };
        process.register(self.sim.root()).unwrap();
        process
    }

    /// The number of NVML calls so far.
    pub fn calls(&self) -> u64 {
        counted(&self.sim.counters().unwrap(), None)
    }

    pub fn disturb(&self, change: impl FnOnce(&mut Disturbances)) {
        self.sim.disturb(change).unwrap();
    }

    /// Only counts calls.
    pub fn count_calls(&self) {
        self.disturb(|d| {
            d.rules.clear();
            d.counting = true;
        });
    }

    /// Clears the log of calls, and logs later ones.
    pub fn note_calls(&self) {
        journal::forget(self.sim.root()).unwrap();
        self.disturb(|d| d.journal = true);
    }

    /// The logged calls of a job's programs.
    pub fn calls_of(&self, job: Job) -> Vec<journal::Entry> {
        let mut entries = journal::read(self.sim.root()).unwrap();
        entries.retain(|entry| entry.job == Some(job.id));
        entries
    }

    /// Affects the `nth` call from now on, of any function.
    pub fn nth_call(&self, nth: u64, what: What) {
        let first = self.calls() + nth;
        self.disturb(|d| {
            d.counting = true;
            d.rules = vec![Rule {
                call: None,
                gpu: None,
                first,
                count: 1,
                what,
            }];
        });
    }

    /// Affects the next calls of one function.
    pub fn next_calls(&self, call: &str, count: u64, what: What) {
        let first = counted(&self.sim.counters().unwrap(), Some(call)) + 1;
        self.disturb(|d| {
            d.counting = true;
            d.rules = vec![Rule {
                call: Some(call.into()),
                gpu: None,
                first,
                count,
                what,
            }];
        });
    }

    pub fn calm(&self) {
        self.disturb(|d| d.rules.clear());
    }

    /// Checks the invariants: the active and kept leases are the instances, except those in `foreign`, which all
    /// exist; nothing overlaps; the files of each active slice belong to its user only, those of a kept one to root.
    /// Without MIG, or with MPS inside it: [`World::check_shares`].
    #[track_caller]
    pub fn check(&self, foreign: &[u32]) {
        if self.kind != Kind::Mig {
            return self.check_shares(foreign);
        }
        let node = self.sim.node().unwrap();
        let leases = self.leases();
        for (index, gpu) in node.gpus.iter().enumerate() {
            let mut known: BTreeSet<u32> =
                if index == 0 { foreign.iter().copied().collect() } else { BTreeSet::new() };
            for id in &known {
                assert!(gpu.instance(*id).is_some(), "foreign instance {id} is gone");
            }
            for lease in leases.iter().filter(|l| l.slice.gpu_uuid == gpu.uuid) {
                let owner = match lease.state {
                    LeaseState::Active => lease.user_id.0,
                    LeaseState::Kept => 0,
                    _ => panic!("{lease:?}"),
                };
                if lease.slice.held == Held::Bare {
                    assert!(!gpu.mig && gpu.instances.is_empty(), "MIG is on");
                    let here = leases.iter().filter(|l| l.slice.gpu_uuid == gpu.uuid);
                    assert_eq!(here.count(), 1, "nobody else has it");
                    continue;
                }
                let instance = lease.slice.instance().unwrap();
                let gi = gpu.instance(instance.gi_id).expect("the instance stands");
                let placement = lease.slice.mig().unwrap().placement;
                assert_eq!(
                    (gi.profile, gi.start),
                    (
                        lease.slice.mig().unwrap().profile_id,
                        placement.start.into()
                    )
                );
                assert_eq!(gi.compute.len(), 1);
                assert_eq!(gi.compute[0].uuid, instance.mig_uuid);
                assert!(known.insert(instance.gi_id), "two leases of one instance");
                for cap in [instance.gi_cap_minor, instance.ci_cap_minor] {
                    assert_eq!(self.cap(cap), (owner, 0o400), "cap {cap}");
                }
            }
            let standing: BTreeSet<u32> = gpu.instances.iter().map(|i| i.id).collect();
            assert_eq!(standing, known, "instances against leases and foreign ones");
        }
        for (at, a) in leases.iter().enumerate() {
            for b in &leases[at + 1..] {
                let same = a.slice.gpu_uuid == b.slice.gpu_uuid;
                let (Some(_), Some(_)) = (a.slice.mig(), b.slice.mig()) else {
                    assert!(!same, "a whole GPU is nobody else's");
                    continue;
                };
                assert!(
                    !same
                        || !a
                            .slice
                            .mig()
                            .unwrap()
                            .placement
                            .overlaps(b.slice.mig().unwrap().placement)
                );
            }
        }
    }

    /// Owner and mode of a capability's node.
    pub fn cap(&self, minor: u32) -> (u32, u32) {
        let path = self
            .root()
            .join(format!("gpus/dev/nvidia-caps/nvidia-cap{minor}"));
        let meta = fs::metadata(path).unwrap();
        (meta.uid(), meta.mode() & 0o7777)
    }

    pub fn usage(&self) -> Vec<serde_json::Value> {
        fs::read_to_string(self.root().join("state/usage.jsonl"))
            .unwrap_or_default()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// The entry point of the processes that [`World`] starts; does nothing if a person runs the tests.
pub fn child() {
    let Ok(action) = std::env::var(ACTION) else {
        return;
    };
    #[cfg(target_arch = "x86_64")]
    if std::env::var_os(TRACED).is_some() {
        tracer::wait().unwrap();
    }
    let slurm = Files {
        dir: std::env::var_os(SLURM).unwrap().into(),
        began: Instant::now(),
        asked: Cell::new(0),
    };
    let lookup = |name: &str| std::env::var_os(name);
    let config = gpufrac_node::job::environment::config_path(lookup);
    let node = Node::load(&config, NODE).map(|mut node| {
        node.nodes = node.run.join("nodes");
        node
    });
    let exit = match node {
        Err(error) => {
            eprintln!("{error}");
            Exit::Broken
        }
        Ok(node) if action == "setup" => match setup::setup(&node) {
            Ok(report) => {
                eprintln!("{report:#?}");
                if report.problems.is_empty() { Exit::Done } else { Exit::Broken }
            }
            Err(error) => {
                eprintln!("{error}");
                Exit::Broken
            }
        },
        Ok(node) if action == "answer" => {
            let mut server =
                shared_session::Server::bind(&node.run, &node.nvml, node.caps()).unwrap();
            server.serve();
        }
        Ok(node) if action == "reap" => {
            reap(&node);
            Exit::Done
        }
        Ok(node) if action == "check" => {
            let problems = check::check(&node);
            eprintln!("{problems:#?}");
            if problems.is_empty() { Exit::Done } else { Exit::Broken }
        }
        Ok(mut node) => {
            if let Ok(text) = std::env::var(LOCK_PATIENCE) {
                node.lock_patience = Duration::from_millis(text.parse().unwrap());
                node.fabric_patience = node.lock_patience;
            }
            let job = JobEnv::read(lookup).unwrap();
            let log = JobLog::new(job.job_id);
            match action.as_str() {
                "prolog" => carve::prolog(&job, &node, &slurm, &log),
                "epilog" => release::epilog(&node, job.job_id, &slurm, &log),
                other => panic!("no action {other}"),
            }
        }
    };
    std::process::exit(exit as i32);
}

/// The work of gpufrac-reaperd on instances whose time is over.
fn reap(node: &Node) {
    let (session, log) = (node.nvml().unwrap(), JobLog::new(JobId(0)));
    let (locks, store) = (node.locks().unwrap(), node.leases().unwrap());
    for gpu in session.gpus().unwrap() {
        let lock = locks.gpu(gpu.index, node.lock_patience).unwrap();
        let mut locked = LockedGpu::new(lock, node, &store, gpu, &log);
        keep::end_due(&mut locked).unwrap();
    }
}

/// A Slurm made of files: `<job>` has `STATE TRES RESTARTS`, optionally followed by `TRES-PER-TASK GRES-HELD`: the
/// request of each task (`-` for none) and the job's allocation here, if that differs from the request. Without the
/// file there is no answer, and requests about the job fail. Further files: with `no-library` its library cannot be
/// loaded; with `late` it refuses to end or requeue jobs; with `silent` it does not answer for as many seconds; with
/// `uncounted` it does not tell allocations; `limit` has the milliseconds that a prolog or an epilog may take;
/// `plugstack.conf` is what slurmstepd reads; `reason` is that of the node; `<job>.explained` has the lines that a user
/// was shown. Each question takes time by a separate clock, and no real time.
struct Files {
    dir: PathBuf,
    began: Instant,
    asked: Cell<u32>,
}

/// The duration of a question by that clock: as long as the real one is waited for.
const QUESTION: Duration = Duration::from_secs(3);

impl Files {
    /// Asks for the job first, as the real one does.
    fn record(&self, job_id: JobId, line: String) -> Result<(), SlurmError> {
        if self.job(job_id)?.is_none() {
            return Err(Self::error(slurm_sys::raw::ESLURM_INVALID_JOB_ID as i32));
        }
        if self.dir.join("late").exists() {
            return Err(Self::error(slurm_sys::raw::ESLURM_ALREADY_DONE as i32));
        }
        let path = self.dir.join("told");
        let mut text = fs::read_to_string(&path).unwrap_or_default();
        text.push_str(&line);
        text.push('\n');
        fs::write(path, text).unwrap();
        Ok(())
    }

    fn answers(&self) -> Result<(), SlurmError> {
        self.asked.set(self.asked.get() + 1);
        if self.still("silent") { Err(SlurmError::TooSlow(QUESTION)) } else { Ok(()) }
    }

    /// Whether the seconds in a file are not over yet.
    fn still(&self, name: &str) -> bool {
        let text = fs::read_to_string(self.dir.join(name)).ok();
        let limit = text.map(|text| Duration::from_secs(text.trim().parse().unwrap()));
        limit.is_some_and(|limit| self.now().duration_since(self.began) < limit)
    }

    fn library(&self) -> Result<(), SlurmError> {
        if self.dir.join("no-library").exists() {
            return Err(SlurmError::NotLoaded(ClientError::Call {
                call: "slurm_init".into(),
                code: 0,
                message: "no libslurm.so.38".into(),
            }));
        }
        Ok(())
    }

    fn error(code: i32) -> SlurmError {
        SlurmError::Client(ClientError::Call {
            call: "slurm_load_job".into(),
            code,
            message: "no answer".into(),
        })
    }
}

/// Slurm's allocation for a request, on the device in the prolog's variable: a mark is found anywhere in an item, and
/// of several items with one name the last one counts.
fn allocated(tres: &str) -> String {
    let device = std::env::var("SLURM_JOB_GPUS").unwrap_or_default();
    let mut counts: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for item in tres.split(',') {
        let after = |mark| item.rfind(mark).map(|at| &item[at + "gres/".len()..]);
        let item = after("gres/").or_else(|| after("gres:")).unwrap_or(item);
        let mut words = item.split(':');
        let name = words.next().unwrap_or_default();
        let rest: Vec<&str> = words.collect();
        let counted = match rest[..] {
            [count] => ("", count),
            [type_name, count] => (type_name, count),
            _ => ("", "1"),
        };
        counts.insert(name, counted);
    }
    let texts = counts.into_iter().map(|(name, (type_name, count))| {
        let title = match type_name {
            "" => name.to_owned(),
            type_name => format!("{name}:{type_name}"),
        };
        match name {
            "gpu" | "shard" => format!("{title}:{count}(IDX:{device})"),
            _ => format!("{title}(CNT:{count})"),
        }
    });
    texts.collect::<Vec<_>>().join(",")
}

impl Slurm for Files {
    fn prefetch(&self, _: JobId) {}

    fn job(&self, job_id: JobId) -> Result<Option<JobInfo>, SlurmError> {
        self.library()?;
        self.answers()?;
        let Ok(text) = fs::read_to_string(self.dir.join(job_id.to_string())) else {
            return Err(Self::error(5000));
        };
        let mut words = text.split_whitespace();
        let state = match words.next().unwrap() {
            "unknown" => return Ok(None),
            "finished" => JobState::Finished,
            "pending" => JobState::Pending,
            "completing" => JobState::Completing,
            _ => JobState::Running,
        };
        let tres = words.next().filter(|tres| *tres != "-");
        let restart_count = words.next().map_or(0, |n| n.parse().unwrap());
        let per_task = words.next().filter(|tres| *tres != "-").map(str::to_owned);
        Ok(Some(JobInfo {
            job_id: job_id.0,
            user_id: 0,
            state,
            partition: "gpu".into(),
            tres_per_node: tres.map(str::to_owned),
            tres_elsewhere: per_task.iter().cloned().collect(),
            tres_per_task: per_task,
            gres_of_nodes: words
                .next()
                .map(str::to_owned)
                .or_else(|| tres.map(allocated))
                .filter(|_| !self.still("uncounted"))
                .into_iter()
                .collect(),
            batch: !self.dir.join("interactive").exists(),
            restart_count,
            name: String::new(),
            qos: String::new(),
            account: String::new(),
            reservation: String::new(),
            // With `--no-kill` the job goes on without a node that failed.
            nodes: if text.starts_with("elsewhere") { "n2" } else { "n1" }.into(),
            node_count: 1,
            array: None,
            het_job_id: 0,
            start_unix: 0,
            end_unix: 0,
            suspend_unix: 0,
            ended_by: None,
            failed: false,
            can_requeue: true,
            mail_user: String::new(),
            admin_comment: String::new(),
            excluded_nodes: String::new(),
            is_held: false,
        }))
    }

    fn requeue(&self, job_id: JobId, hold: bool) -> Result<(), SlurmError> {
        self.job(job_id)?;
        if self.dir.join("interactive").exists() {
            return Err(Self::error(slurm_sys::raw::ESLURM_BATCH_ONLY as i32));
        }
        let hold = if hold { "hold" } else { "" };
        self.record(job_id, format!("requeue{hold} {job_id}"))
    }

    fn cancel(&self, job_id: JobId) -> Result<(), SlurmError> {
        self.record(job_id, format!("cancel {job_id}"))
    }

    fn notify(&self, job_id: JobId, line: &str) -> Result<(), SlurmError> {
        self.record(job_id, format!("notify {job_id} {line}"))
    }

    fn hook_limits(&self) -> Option<HookLimits> {
        let text = fs::read_to_string(self.dir.join("limit")).ok()?;
        let limit = Some(Duration::from_millis(text.trim().parse().unwrap()));
        Some(HookLimits {
            prolog: limit,
            epilog: limit,
        })
    }

    fn drain(&self, node: &str, reason: &str) -> Result<Drained, SlurmError> {
        self.library()?;
        self.answers()?;
        let path = self.dir.join("reason");
        if let Ok(reason) = fs::read_to_string(&path) {
            return Ok(Drained::Reasoned(reason));
        }
        fs::write(path, format!("{node}: {reason}")).unwrap();
        Ok(Drained::Done)
    }

    fn spank_files(&self) -> Option<SpankFiles> {
        let plugstack = self.dir.join("plugstack.conf");
        plugstack.exists().then(|| SpankFiles {
            plugstack,
            folders: vec![self.dir.clone()],
        })
    }

    fn explain(&self, job_id: JobId, why: &str) {
        let path = self.dir.join(format!("{job_id}.explained"));
        let text = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, format!("{text}{why}\n")).unwrap();
    }

    fn flush(&self) {}

    fn now(&self) -> Instant {
        Instant::now() + QUESTION * self.asked.get()
    }
}
