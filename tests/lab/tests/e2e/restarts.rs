//! Slurm's daemons and the reaper are restarted at random under jobs of three users, with faults of the driver: each
//! job runs with its own slice or has a message why not, and nothing is left.
//!
//! `GPUFRAC_RESTART_JOBS` and `GPUFRAC_TEST_SEED` set the number of jobs and the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gpufrac_lab::{Job, Lab, LabError};
use nix::sys::signal::Signal;
use test_seed::Dice;

use crate::shared_devices::control;
use crate::soak::number;

/// Instances and shares of a GPU, on each node.
const POOLS: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["halves"]
nodes = "@NODES@"
gpus = [0]

[pool.shares]
mechanism = "mps"
tenancy = "shared"
gpu = "L40S-48"
partitions = ["shares"]
nodes = "@NODES@"
gpus = [1]
"#;

/// The reaper cleans up, and ends no job, because all of them look idle here.
const REAPER: &str = "\
[reaper]
mode = \"on\"
interval = \"1s\"
metrics = \"off\"
never_used = \"1h\"
idle = \"1h\"
finished = \"off\"
over_share = \"1h\"
warn = [\"10m\"]
";

/// The age of an old state with which slurmctld sometimes returns.
const OLD: Duration = Duration::from_secs(10);

/// The state with which slurmctld returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It was ended regularly, and saved its state.
    Saved,
    /// It was killed.
    Killed,
    /// It was killed, and its disk has an older state.
    Old,
    /// It was killed, and its disk is empty.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Restart {
    Slurmctld(State),
    Slurmd(Signal),
    Reaper(Signal),
}

const RESTARTS: [Restart; 8] = [
    Restart::Slurmctld(State::Saved),
    Restart::Slurmctld(State::Killed),
    Restart::Slurmctld(State::Old),
    Restart::Slurmctld(State::Lost),
    Restart::Slurmd(Signal::SIGTERM),
    Restart::Slurmd(Signal::SIGKILL),
    Restart::Reaper(Signal::SIGTERM),
    Restart::Reaper(Signal::SIGKILL),
];

/// Temporary codes of NVML: no node may be drained because of a few of them.
const PASSING: [&str; 12] = [
    "UNINITIALIZED",
    "NOT_FOUND",
    "TIMEOUT",
    "IRQ_ISSUE",
    "OPERATING_SYSTEM",
    "IN_USE",
    "MEMORY",
    "NO_DATA",
    "INSUFFICIENT_RESOURCES",
    "NOT_READY",
    "INVALID_STATE",
    "UNKNOWN",
];

/// Codes of NVML after which an admin must look at the node.
const LASTING: [&str; 18] = [
    "INVALID_ARGUMENT",
    "NOT_SUPPORTED",
    "NO_PERMISSION",
    "ALREADY_INITIALIZED",
    "INSUFFICIENT_SIZE",
    "INSUFFICIENT_POWER",
    "DRIVER_NOT_LOADED",
    "LIBRARY_NOT_FOUND",
    "FUNCTION_NOT_FOUND",
    "CORRUPTED_INFOROM",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "LIB_RM_VERSION_MISMATCH",
    "VGPU_ECC_NOT_SUPPORTED",
    "FREQ_NOT_SUPPORTED",
    "ARGUMENT_VERSION_MISMATCH",
    "DEPRECATED",
    "GPU_NOT_FOUND",
];

/// The codes by which a driver refuses to create an instance.
const REFUSALS: [&str; 2] = ["INSUFFICIENT_RESOURCES", "NOT_SUPPORTED"];

/// A fault of a node's driver.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Code { code: &'static str, after: bool },
    Kill { after: bool },
    Delay,
    DeadTelemetry,
}

impl Fault {
    /// Every kind of fault of the simulator.
    fn all() -> Vec<Fault> {
        let codes = PASSING.iter().chain(&LASTING);
        let codes = codes.flat_map(|code| [false, true].map(|after| Fault::Code { code, after }));
        // A driver returns these codes only if it created no instance (`NvmlError::is_refusal`), so never after it did.
        let is_lie = |fault: &Fault| matches!(fault, Fault::Code { code, after: true } if REFUSALS.contains(code));
        let codes = codes.filter(|fault| !is_lie(fault));
        let kills = [false, true].map(|after| Fault::Kill { after });
        let others = [Fault::Delay, Fault::DeadTelemetry];
        codes.chain(kills).chain(others).collect()
    }

    /// Whether a node may be drained because of the fault.
    fn may_drain(self) -> bool {
        match self {
            Fault::Code { code, .. } => LASTING.contains(&code),
            Fault::Kill { .. } => true,
            Fault::Delay | Fault::DeadTelemetry => false,
        }
    }

    /// The arguments for gpusim; the `nth` call from now is the first that is affected.
    fn words(self, nth: usize) -> Vec<String> {
        let text = match self {
            Fault::Code { code, after } => {
                let after = if after { " --after" } else { "" };
                format!("fault --call any --nth {nth} --count 2 --code {code}{after}")
            }
            Fault::Kill { after } => {
                let after = if after { " --after" } else { "" };
                format!("fault --call any --nth {nth} --kill{after}")
            }
            Fault::Delay => format!("delay --call any --nth {nth} --count 20 --ms 100"),
            Fault::DeadTelemetry => "dead-telemetry on".into(),
        };
        text.split(' ').map(str::to_owned).collect()
    }
}

/// A job, identified by its name, because ids are reused after slurmctld lost its state.
struct Submitted {
    name: String,
    partition: &'static str,
    /// Whether slurmctld later lost the job, or that the job ran.
    forgotten: bool,
}

struct Storm {
    lab: Lab,
    dice: Dice,
    jobs: Vec<Submitted>,
    /// Copies of slurmctld's state.
    copies: Vec<(Instant, PathBuf)>,
    faults: Vec<Fault>,
    /// The actions so far, for the reader of a failure.
    done: Vec<String>,
}

fn shuffled<T>(mut all: Vec<T>, dice: &mut Dice) -> Vec<T> {
    for last in (1..all.len()).rev() {
        all.swap(last, dice.below(last + 1));
    }
    all
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(
        copied.is_ok_and(|status| status.success()),
        "a copy of {}",
        from.display()
    );
}

impl Storm {
    fn state(&self) -> PathBuf {
        self.lab.folder().root().join("state")
    }

    fn note(&mut self, what: String) {
        eprintln!("{what}");
        self.done.push(what);
    }

    fn submit(&mut self) -> Result<(), LabError> {
        let name = format!("j{}", self.jobs.len());
        let partition = ["halves", "shares"][self.dice.below(2)];
        let fraction = ["0.5", "0.25", "0.25", "0.125", "0.1"][self.dice.below(5)];
        let tenths = self.dice.below(30);
        let script = format!(
            "--wrap=echo run $SLURM_JOB_ID ${{CUDA_VISIBLE_DEVICES:-none}} ${{CUDA_MPS_PIPE_DIRECTORY:-none}}; \
             sleep {}.{}; echo done",
            tenths / 10,
            tenths % 10
        );
        let user = &self.lab.users()[self.dice.below(3)];
        let job = self.lab.sbatch(
            user,
            &[
                "--requeue",
                "--open-mode=append",
                &format!("--output=out.{name}"),
                &format!("--job-name={name}"),
                &format!("--partition={partition}"),
                &format!("--gres=gpufrac:{fraction}"),
                &script,
            ],
        )?;
        let note = format!(
            "{name} is job {job} of {}: {fraction} in {partition}",
            user.name
        );
        self.note(note);
        self.jobs.push(Submitted {
            name,
            partition,
            forgotten: false,
        });
        Ok(())
    }

    /// Faults that may drain a node only affect the second one.
    fn disturb(&mut self) -> Result<(), LabError> {
        let Some(fault) = self.faults.pop() else {
            return Ok(());
        };
        let node = if fault.may_drain() { 1 } else { self.dice.below(2) };
        let node = self.lab.nodes()[node].clone();
        let words = fault.words(1 + self.dice.below(40));
        self.note(format!("{node}: {}", words.join(" ")));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.lab.gpusim(&node, &words).map(drop)
    }

    fn restart(&mut self, restart: Restart) -> Result<(), LabError> {
        let node = self.lab.nodes()[self.dice.below(2)].clone();
        let pause = Duration::from_millis(self.dice.throw(1500));
        self.note(format!("{restart:?} after {pause:?} ({node})"));
        match restart {
            Restart::Slurmctld(state) => self.restart_slurmctld(state, pause)?,
            Restart::Slurmd(signal) => {
                self.lab.stop_daemon(&format!("slurmd.{node}"), signal)?;
                std::thread::sleep(pause);
                self.lab.start_slurmd(&node)?;
            }
            Restart::Reaper(signal) => {
                self.lab.stop_reaper(&node, signal)?;
                std::thread::sleep(pause);
                self.lab.start_reaper(&node)?;
            }
        }
        Ok(())
    }

    fn restart_slurmctld(&mut self, state: State, pause: Duration) -> Result<(), LabError> {
        let old = self.copies.iter().rfind(|(at, _)| at.elapsed() >= OLD);
        let (at, old) = old.unwrap_or(&self.copies[0]).clone();
        if state == State::Old {
            std::thread::sleep(OLD.saturating_sub(at.elapsed()));
        }
        let signal = match state {
            State::Saved => Signal::SIGTERM,
            _ => Signal::SIGKILL,
        };
        self.lab.stop_daemon("slurmctld", signal)?;
        std::thread::sleep(pause);
        if matches!(state, State::Old | State::Lost) {
            let place = self.state();
            fs::remove_dir_all(&place).expect("slurmctld's state goes");
            match state {
                State::Old => copy(&old, &place),
                _ => fs::create_dir(&place).expect("a new folder"),
            }
            for job in &mut self.jobs {
                job.forgotten = true;
            }
        }
        if state == State::Killed {
            // The events of the last seconds are not on its disk.
            for job in &mut self.jobs {
                job.forgotten = true;
            }
        }
        self.lab.start_slurmctld()
    }

    fn keep_state(&mut self) {
        let name = format!("state.{}", self.copies.len());
        let place = self.lab.folder().root().join(name);
        copy(&self.state(), &place);
        self.copies.push((Instant::now(), place));
    }

    /// Ends all faults, and starts daemons that a fault killed.
    fn calm(&mut self) -> Result<(), LabError> {
        for node in self.lab.nodes().to_vec() {
            self.lab.gpusim(&node, &["clear"])?;
        }
        for name in self.lab.ended_daemons() {
            let node = name.strip_prefix("reaperd.");
            let node = node
                .unwrap_or_else(|| panic!("{name} ended: {:?}", self.done))
                .to_owned();
            self.lab.stop_reaper(&node, Signal::SIGKILL)?;
            self.lab.start_reaper(&node)?;
        }
        Ok(())
    }

    /// Waits until all jobs have ended. An admin repairs the second node and cancels held jobs; returns their
    /// reasons, by name.
    fn settle(&self) -> Result<BTreeMap<String, String>, LabError> {
        let mut held = BTreeMap::new();
        let (lab, spared) = (&self.lab, &self.lab.nodes()[0]);
        lab.wait("all jobs are over", Duration::from_secs(60), || {
            for drained in lab.drained_nodes()? {
                assert!(
                    !drained.starts_with(spared),
                    "{drained}\n{}",
                    self.done.join("\n")
                );
                let node = format!("nodename={}", lab.nodes()[1]);
                lab.command("scontrol")
                    .args(["update", &node, "state=resume"])
                    .run()?;
            }
            let jobs = lab.jobs()?;
            for job in jobs.iter().filter(|job| is_held(job)) {
                let why = job.field("Reason").to_owned();
                held.insert(job.field("JobName").to_owned(), why);
                lab.command("scancel").args([job.id().to_string()]).run()?;
            }
            Ok((!jobs.iter().any(Job::is_active)).then_some(()))
        })?;
        Ok(held)
    }

    /// The contradictions: jobs that ran without their own slice, and jobs that ended without a message.
    fn contradictions(&self, held: &BTreeMap<String, String>) -> Result<Vec<String>, LabError> {
        let known = self.lab.jobs()?;
        let mut found = Vec::new();
        let mut owners: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        let mut ran = 0;
        for job in &self.jobs {
            let path = self.lab.folder().work().join(format!("out.{}", job.name));
            let text = fs::read_to_string(path).unwrap_or_default();
            for run in text.lines().filter(|line| line.starts_with("run ")) {
                let words: Vec<&str> = run.split(' ').collect();
                let [_, _, device, pipe] = words[..] else {
                    panic!("{run}");
                };
                match job.partition {
                    "halves" if device.starts_with("MIG-") => {
                        owners.entry(device.into()).or_default().insert(&job.name);
                    }
                    "shares" if device.starts_with("GPU-") && pipe != "none" => {}
                    _ => found.push(format!("{} ran without a slice: {run}", job.name)),
                }
            }
            if text.lines().any(|line| line == "done") {
                ran += 1;
                continue;
            }
            let record = known.iter().rfind(|it| it.field("JobName") == job.name);
            let said = text.contains("gpufrac") || text.contains("slurmstepd: error");
            match record {
                None if job.forgotten => {}
                None => found.push(format!("{} is not known any more", job.name)),
                Some(record) => {
                    let reason = record.field("Reason");
                    let why = reason != "None" || held.contains_key(&job.name) || said;
                    if record.state() == "COMPLETED" || !why {
                        found.push(format!("{} did not run: {record:?}: {text}", job.name));
                    }
                }
            }
        }
        let shared = owners.iter().filter(|(_, jobs)| jobs.len() > 1);
        found.extend(shared.map(|(uuid, jobs)| format!("{jobs:?} had {uuid}, each of them")));
        eprintln!(
            "{ran} of {} jobs ran to their end, {} were held",
            self.jobs.len(),
            held.len()
        );
        Ok(found)
    }
}

/// Whether Slurm holds a job until an admin looks at it.
fn is_held(job: &Job) -> bool {
    let reason = job.field("Reason").to_lowercase();
    job.state() == "PENDING" && (job.field("Priority") == "0" || reason.contains("held"))
}

/// Mount points below the lab's folder, as slurmd sees them.
fn mounts(lab: &Lab) -> BTreeSet<String> {
    let root = lab.folder().root().display().to_string();
    let pid = lab
        .daemon_pid(&format!("slurmd.{}", lab.nodes()[0]))
        .expect("slurmd runs");
    let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("its mounts");
    let places = table.lines().filter_map(|line| line.split(' ').nth(4));
    places
        .filter(|place| place.starts_with(&root))
        .map(str::to_owned)
        .collect()
}

/// Processes of jobs, found by their working directory.
fn processes(lab: &Lab) -> Vec<String> {
    let work = lab.folder().work();
    let entries = fs::read_dir("/proc").expect("processes").flatten();
    let of_jobs = entries
        .filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|place| place == work));
    let named = of_jobs.map(|entry| {
        let line = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        format!(
            "process {:?}: {}",
            entry.file_name(),
            line.replace('\0', " ")
        )
    });
    named.collect()
}

/// Promise (never): slurmctld (with its state, an old one, none), slurmd and the reaper restarted at random, with
/// faults of the driver: each job has its slice or a reason.
#[test]
#[ignore = "full: daemons restart at random, in real time"]
fn each_job_has_its_slice_or_a_reason() -> Result<(), LabError> {
    let control = control();
    let count = number("GPUFRAC_RESTART_JOBS", 15) as usize;
    let seed = test_seed::seed();
    let mut dice = Dice::new(seed);
    let lab = Lab::builder()
        .nodes(2)
        .gpu_list(&["H100-80:mig", "L40S-48"])
        .only_partitions(&[("halves", ""), ("shares", "")])
        .mps_control(control)
        .pools(POOLS)
        .reaper(REAPER)
        .start()?;
    let mounted = mounts(&lab);
    // The short run has most kinds of restarts; the long one has each kind several times, and each fault.
    let rounds = (count / 2).max(6);
    let faults = shuffled(Fault::all(), &mut dice);
    let faults_each = (count / 15).max(1);
    let mut restarts = Vec::new();
    while restarts.len() < rounds {
        restarts.extend(shuffled(RESTARTS.to_vec(), &mut dice));
    }
    // The last jobs come after all faults have ended.
    let late = count / 5;
    let mut storm = Storm {
        lab,
        dice,
        jobs: Vec::new(),
        copies: Vec::new(),
        faults,
        done: Vec::new(),
    };
    for (round, restart) in restarts.into_iter().take(rounds).enumerate() {
        storm.keep_state();
        while storm.jobs.len() < (count - late) * (round + 1) / rounds {
            storm.submit()?;
        }
        for _ in 0..faults_each {
            storm.disturb()?;
        }
        let pause = storm.dice.throw(2000);
        std::thread::sleep(Duration::from_millis(pause));
        storm.restart(restart)?;
    }
    storm.calm()?;
    while storm.jobs.len() < count {
        storm.submit()?;
    }
    let held = storm.settle()?;
    let found = storm.contradictions(&held)?;
    assert_eq!(found, [""; 0], "seed {seed}\n{}", storm.done.join("\n"));
    let lab = &storm.lab;
    let mut left = Vec::new();
    let gone = lab.wait("nothing is left", Duration::from_secs(60), || {
        left = lab.leftovers()?;
        left.extend(processes(lab));
        Ok(left.is_empty().then_some(()))
    });
    assert!(
        gone.is_ok(),
        "{left:#?}\nseed {seed}\n{}",
        storm.done.join("\n")
    );
    assert_eq!(mounts(lab), mounted, "mounts");
    Ok(())
}
