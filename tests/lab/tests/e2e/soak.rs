//! Hundreds of jobs on one node, observed all the time.
//!
//! `GPUFRAC_SOAK_JOBS` and `GPUFRAC_TEST_SEED` set the number and the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpufrac_core::lease::{Held, Lease, LeaseState};
use gpufrac_lab::{Instance, JobId, Lab, LabError};
use test_seed::Dice;

use crate::bare::BARE_HALVES;
use crate::since;
use crate::uniform::QUARTERS;

/// A look starts two commands of Slurm, and what it looks for lasts.
pub const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

/// Jobs and their states by squeue (`which` selects some); a job whose prolog has not ended is PROLOG.
pub fn queue(lab: &Lab, which: &[&str]) -> Result<BTreeMap<JobId, String>, LabError> {
    let text = lab
        .command("squeue")
        .args(["-h", "-o", "%i %T %r"])
        .args(which)
        .stdout()?;
    let entry = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let state =
            if words.ends_with(&["RUNNING", "Prolog"]) { "PROLOG" } else { *words.get(1)? };
        Some((words.first()?.parse().ok()?, state.to_owned()))
    };
    Ok(text.lines().filter_map(entry).collect())
}

/// The leases of `node` by job, without those that disappeared during the reading.
pub fn leases(lab: &Lab, node: &str) -> Result<BTreeMap<JobId, Lease>, LabError> {
    Ok(lab
        .leases(node)?
        .into_iter()
        .map(|lease| (lease.job_id, lease))
        .collect())
}

fn overlap(a: (usize, u32, u32), b: (usize, u32, u32)) -> bool {
    a.0 == b.0 && a.1 < b.1 + b.2 && b.1 < a.1 + a.2
}

fn place_of(lease: &Lease) -> (usize, u32, u32) {
    let gpu = lease.slice.gpu_index.position();
    match lease.slice.mig().map(|mig| mig.placement) {
        Some(placement) => (gpu, placement.start.into(), placement.size.into()),
        // All of the GPU, with MIG off.
        None => (gpu, 0, 8),
    }
}

fn place(instance: &Instance) -> (usize, u32, u32) {
    (instance.gpu, instance.start, instance.size)
}

/// A job and the number of a slice.
type SliceId = (JobId, u32);

/// The leases of `node`.
fn slices(lab: &Lab, node: &str) -> Result<BTreeMap<SliceId, Lease>, LabError> {
    Ok(lab
        .leases(node)?
        .into_iter()
        .map(|lease| ((lease.job_id, lease.number), lease))
        .collect())
}

/// One observation in the order queue, leases, simulator, leases, queue: facts that are the same in both readings
/// were true at the moment of the simulator's reading.
struct Look {
    queues: [BTreeMap<JobId, String>; 2],
    leases: [BTreeMap<SliceId, Lease>; 2],
    /// MIG mode of each GPU.
    modes: Vec<bool>,
    instances: Vec<Instance>,
}

impl Look {
    fn take(lab: &Lab, node: &str) -> Result<Self, LabError> {
        let first = queue(lab, &[])?;
        let before = slices(lab, node)?;
        let instances = lab.instances(node)?;
        let modes = lab.mig_modes(node)?;
        let after = slices(lab, node)?;
        let second = queue(lab, &[])?;
        Ok(Self {
            queues: [first, second],
            leases: [before, after],
            modes,
            instances,
        })
    }

    /// Leases that were active and the same before and after.
    fn held(&self) -> impl Iterator<Item = &Lease> {
        let [before, after] = &self.leases;
        before.values().filter(|lease| {
            lease.state == LeaseState::Active
                && after.get(&(lease.job_id, lease.number)) == Some(lease)
        })
    }

    /// All contradictions. `killed`: whether programs of root are killed. The lease of a killed epilog's job stays
    /// until the next program of root on the GPU, and Slurm shows a job as running that it is about to put back.
    fn contradictions(&self, killed: bool) -> Vec<String> {
        let mut found = Vec::new();
        for (index, a) in self.instances.iter().enumerate() {
            for b in &self.instances[index + 1..] {
                if overlap(place(a), place(b)) {
                    found.push(format!("instances overlap: {a:?} and {b:?}"));
                }
            }
            let owned = self
                .leases
                .iter()
                .flat_map(BTreeMap::values)
                .any(|l| place_of(l) == place(a));
            if !owned {
                found.push(format!("an instance without a lease: {a:?}"));
            }
        }
        let held: Vec<_> = self.held().collect();
        for (index, lease) in held.iter().enumerate() {
            for other in &held[index + 1..] {
                if overlap(place_of(lease), place_of(other)) {
                    found.push(format!("leases overlap: {lease:?} and {other:?}"));
                }
            }
            let is_bare = lease.slice.held == Held::Bare;
            if self.modes[lease.slice.gpu_index.position()] == is_bare {
                found.push(format!(
                    "MIG mode changed under {lease:?}: {:?}",
                    self.modes
                ));
            }
            let uuid = lease.slice.instance().map(|made| made.mig_uuid.clone());
            let made = self
                .instances
                .iter()
                .find(|instance| place(instance) == place_of(lease));
            let uuids = uuid.map(|uuid| vec![uuid]);
            let differs = if is_bare {
                made.is_some()
            } else {
                made.is_none_or(|instance| Some(&instance.uuids) != uuids.as_ref())
            };
            if differs {
                found.push(format!("no instance for {lease:?}: {made:?}"));
            }
            let states = self.queues.each_ref().map(|queue| queue.get(&lease.job_id));
            let idle = |state: Option<&String>| state.is_none_or(|s| s == "PENDING");
            // A job that was pending before and gone after ran its whole life in this observation.
            let skipped = states[0].is_some() && states[1].is_none();
            if idle(states[0]) && idle(states[1]) && !skipped && !killed {
                found.push(format!(
                    "job {} is {states:?} and holds {lease:?}",
                    lease.job_id
                ));
            }
        }
        let holders: BTreeSet<_> = held.iter().map(|lease| lease.job_id).collect();
        for (job, state) in &self.queues[0] {
            let runs = state == "RUNNING" && self.queues[1].get(job) == Some(state);
            if runs && !holders.contains(job) && !killed {
                let own = |lease: &&Lease| lease.job_id == *job;
                let leases = self.leases.each_ref();
                let seen = leases.map(|leases| leases.values().filter(own).collect::<Vec<_>>());
                found.push(format!("job {job} runs and has no slice: {seen:?}"));
            }
        }
        found
    }
}

/// Promise (placement): 500 random jobs: instances, leases and running jobs agree at every look; nothing overlaps,
/// drains or stays.
#[test]
fn soak_of_random_jobs() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 2).latency(10).start()?;
    let fractions = ["0.5", "0.25", "0.25", "0.125", "0.125", "0.2", "0.06"];
    soak(&lab, number("GPUFRAC_SOAK_JOBS", 200), &fractions)
}

/// Mostly pieces, and numbers of whole GPUs of a node of four that this Slurm can count.
fn pieces_and_gpus(piece: &'static str) -> Result<Vec<&'static str>, LabError> {
    let several: &[&str] =
        if since(23, 11)? { &["1", "2", "3", "4"] } else { &["1", "1", "0.9", "4"] };
    Ok([&[piece; 5][..], &["0.1"], several].concat())
}

#[test]
fn soak_of_pieces_and_whole_gpus() -> Result<(), LabError> {
    let builder = Lab::builder().gpus("H100-80", 4).latency(10);
    let lab = builder.pools(QUARTERS).start()?;
    let count = number("GPUFRAC_SOAK_JOBS", 100);
    soak(&lab, count, &pieces_and_gpus("0.25")?)
}

/// Promise (placement): MIG mode never changes under a lease, nor on a GPU of another pool or of none.
/// With `soak_of_pieces_and_bare_gpus_with_kills_and_faults`, `the_mode_of_a_leased_gpu_stays`,
/// `only_gpus_of_the_pool_change`.
#[test]
fn soak_of_pieces_and_bare_gpus() -> Result<(), LabError> {
    let builder = Lab::builder().gpus("H100-80", 4).latency(10);
    let lab = builder.pools(BARE_HALVES).start()?;
    let count = number("GPUFRAC_SOAK_JOBS", 60);
    soak(&lab, count, &pieces_and_gpus("0.5")?)
}

#[test]
fn soak_of_pieces_and_whole_gpus_with_kills_and_faults() -> Result<(), LabError> {
    let builder = Lab::builder().gpus("H100-80", 4).latency(10);
    let lab = builder.pools(QUARTERS).start()?;
    let count = number("GPUFRAC_SOAK_JOBS", 40);
    soak_in_trouble(&lab, count, &pieces_and_gpus("0.25")?)
}

#[test]
fn soak_of_pieces_and_bare_gpus_with_kills_and_faults() -> Result<(), LabError> {
    let builder = Lab::builder().gpus("H100-80", 4).latency(10);
    let lab = builder.pools(BARE_HALVES).start()?;
    let count = number("GPUFRAC_SOAK_JOBS", 40);
    soak_in_trouble(&lab, count, &pieces_and_gpus("0.5")?)
}

/// As [`soak`], while calls of the driver fail and programs of root are killed in them.
fn soak_in_trouble(lab: &Lab, count: u64, fractions: &[&str]) -> Result<(), LabError> {
    let node = &lab.nodes()[0];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let trouble = scope.spawn(|| trouble(lab, &done));
        // A scope ends only when its threads have ended, after a panic too.
        let soaked = catch_unwind(AssertUnwindSafe(|| run_jobs(lab, count, fractions, true)));
        done.store(true, Ordering::Release);
        let ends = trouble.join().expect("the thread of faults");
        soaked.unwrap_or_else(|panic| resume_unwind(panic))?;
        eprintln!("{}", ends?);
        // Leases that killed epilogs left are removed by the next programs on their GPUs.
        let all = lab.sbatch(&lab.users()[0], &["--gres=gpufrac:4", "--wrap=true"])?;
        assert_eq!(lab.wait_for_end(all)?.state(), "COMPLETED");
        assert_eq!(lab.drained_nodes()?, Vec::<String>::new(), "{node}");
        lab.expect_nothing_left()
    })
}

/// Errors of the driver that pass.
const CODES: [&str; 5] = ["TIMEOUT", "IN_USE", "NOT_READY", "UNKNOWN", "MEMORY"];

/// Disturbs the driver until `done`; puts drained nodes and jobs that went back to work again, as an admin does.
fn trouble(lab: &Lab, done: &AtomicBool) -> Result<String, LabError> {
    let node = &lab.nodes()[0];
    let mut dice = Dice::new(test_seed::seed() ^ 1);
    let (mut kills, mut faults, mut drains, mut returns) = (0, 0, 0, 0);
    while !done.load(Ordering::Acquire) {
        let nth = (1 + dice.throw(60)).to_string();
        let code = CODES[dice.below(CODES.len())];
        let mut fault = vec!["fault", "--call", "any", "--nth", &nth];
        if dice.one_in(4) {
            fault.push("--kill");
            kills += 1;
        } else {
            fault.extend(["--count", "2", "--code", code]);
            faults += 1;
        }
        if dice.one_in(2) {
            fault.push("--after");
        }
        lab.gpusim(node, &fault)?;
        std::thread::sleep(Duration::from_millis(500 + dice.throw(2500)));
        lab.gpusim(node, &["clear"])?;
        (drains, returns) = (drains + resume(lab)?, returns + put_to_work(lab)?);
    }
    lab.wait("the node is in service", Duration::from_secs(60), || {
        let drained = resume(lab)?;
        drains += drained;
        Ok((drained == 0).then_some(()))
    })?;
    Ok(format!(
        "{faults} faults, {kills} kills, {drains} drains, {returns} jobs put to work again"
    ))
}

/// Returns a drained node to service.
fn resume(lab: &Lab) -> Result<u32, LabError> {
    if lab.drained_nodes()?.is_empty() {
        return Ok(0);
    }
    let name = format!("NodeName={}", lab.nodes()[0]);
    // Slurm refuses this while the node still completes a job.
    lab.command("scontrol")
        .args(["update", &name, "State=RESUME"])
        .run()?;
    Ok(1)
}

/// Releases jobs that are held, and starts those that wait for Slurm's delay after a requeue.
fn put_to_work(lab: &Lab) -> Result<u32, LabError> {
    let pending = lab.command("squeue");
    let pending = pending
        .args(["-h", "-t", "PD", "-o", "%i %Q %r"])
        .stdout()?;
    if pending.contains("BeginTime") && !crate::since(23, 11)? {
        // The slurmd of 22.05 refuses a credential of the second in which it ended the run before, and Slurm then ends
        // the job.
        std::thread::sleep(Duration::from_millis(1100));
    }
    let mut found = 0;
    for line in pending.lines() {
        let mut words = line.splitn(3, ' ');
        let [id, priority, reason] =
            [words.next(), words.next(), words.next()].map(Option::unwrap_or_default);
        if priority == "0" {
            lab.command("scontrol").args(["release", id]).run()?;
            found += 1;
        } else if reason == "BeginTime" {
            let job = format!("JobId={id}");
            lab.command("scontrol")
                .args(["update", &job, "StartTime=now"])
                .run()?;
            found += 1;
        }
    }
    Ok(found)
}

/// The lines of the daemons' logs that say that a job had no place. `killed`: a job may wait for a slice whose epilog
/// was killed, and which the driver refuses to destroy for a moment.
fn without_place(lab: &Lab, killed: bool) -> Vec<String> {
    let logs = std::fs::read_dir(lab.folder().log()).expect("the folder of the logs");
    let mut found = Vec::new();
    for log in logs.flatten() {
        let text = std::fs::read(log.path()).expect("a log");
        let text = String::from_utf8_lossy(&text);
        let lines = text
            .lines()
            .filter(|line| line.contains("no position is free"))
            .filter(|line| {
                !(killed && line.contains(": waiting: ") && line.ends_with("(releasing)"))
            });
        found.extend(lines.map(str::to_owned));
    }
    found
}

/// As [`run_jobs`], on a node without faults: each job starts at its first try.
fn soak(lab: &Lab, count: u64, fractions: &[&str]) -> Result<(), LabError> {
    run_jobs(lab, count, fractions, false)?;
    lab.expect_nothing_left()
}

/// Random jobs with these fractions; each must get its own instances. `killed`: as in [`Look::contradictions`].
fn run_jobs(lab: &Lab, count: u64, fractions: &[&str], killed: bool) -> Result<(), LabError> {
    let seed = test_seed::seed();
    let node = &lab.nodes()[0];
    let done = AtomicBool::new(false);
    // So that the outputs tell whether two jobs had one instance.
    lab.gpusim(node, &["manner", "random-uuids"])?;

    let (jobs, looks) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut looks, mut most) = (0_u32, 0);
            while !done.load(Ordering::Acquire) {
                let look = Look::take(lab, node)?;
                let contradictions = look.contradictions(killed);
                assert_eq!(contradictions, Vec::<String>::new(), "seed {seed}");
                looks += 1;
                most = most.max(look.instances.len());
                std::thread::sleep(BETWEEN_LOOKS);
            }
            Ok::<_, LabError>((looks, most))
        });
        let jobs = submit(lab, count, seed, fractions).and_then(|jobs| {
            lab.wait_until_empty(Duration::from_secs(600 + 4 * count))?;
            Ok(jobs)
        });
        // In any case: the watcher must end before the scope can end.
        done.store(true, Ordering::Release);
        let looks = watcher.join().expect("the watcher found no contradiction");
        Ok::<_, LabError>((jobs?, looks?))
    })?;

    let (looks, most) = looks;
    eprintln!("{looks} looks, at most {most} instances at once");
    assert!(u64::from(looks) >= count / 10, "only {looks} looks");
    assert_eq!(
        without_place(lab, killed),
        Vec::<String>::new(),
        "seed {seed}"
    );

    let ended: BTreeMap<_, _> = lab.jobs()?.into_iter().map(|job| (job.id(), job)).collect();
    let (mut completed, mut cancelled) = (0, 0);
    for (job, cancel, _) in &jobs {
        let seen = &ended[job];
        assert!(
            killed || seen.field("Restarts") == "0",
            "job {job} could not be placed: {seen:?}"
        );
        match seen.state() {
            "COMPLETED" => completed += 1,
            "CANCELLED" if *cancel => cancelled += 1,
            state => panic!("job {job} is {state}, seed {seed}: {seen:?}"),
        }
    }
    eprintln!("{completed} completed, {cancelled} cancelled");
    assert_eq!(completed + cancelled, jobs.len());
    let (mut uuids, mut whole) = (Vec::new(), Vec::new());
    for (job, _, fraction) in &jobs {
        if ended[job].state() != "COMPLETED" {
            continue;
        }
        let output = lab.output(*job)?;
        let own: Vec<_> = output.trim().split(',').map(str::to_owned).collect();
        let gpus = fraction.parse::<usize>().unwrap_or(1);
        assert_eq!(
            own.len(),
            gpus,
            "job {job} of {fraction}, seed {seed}: {output}"
        );
        // A whole GPU with MIG off goes to one job after the other.
        if own[0].starts_with("GPU-") { whole.extend(own) } else { uuids.extend(own) }
    }
    assert!(
        uuids.iter().all(|uuid| uuid.starts_with("MIG-")),
        "seed {seed}"
    );
    let with_instance = uuids.len();
    uuids.sort();
    uuids.dedup();
    assert_eq!(
        uuids.len(),
        with_instance,
        "each completed job had instances of its own"
    );
    Ok(())
}

/// A job, whether it was cancelled, and its request.
type Submitted<'f> = (JobId, bool, &'f str);

/// Submits `count` jobs and cancels some.
fn submit<'f>(
    lab: &Lab,
    count: u64,
    seed: u64,
    fractions: &[&'f str],
) -> Result<Vec<Submitted<'f>>, LabError> {
    let mut dice = Dice::new(seed);
    let mut jobs: Vec<Submitted<'f>> = Vec::new();
    for _ in 0..count {
        let user = &lab.users()[usize::try_from(dice.throw(2)).unwrap_or(0)];
        let fraction = fractions[dice.below(fractions.len())];
        let length = dice.throw(1500);
        let script = format!(
            "--wrap=echo $CUDA_VISIBLE_DEVICES; sleep {}.{:03}",
            length / 1000,
            length % 1000
        );
        let gres = format!("--gres=gpufrac:{fraction}");
        jobs.push((lab.sbatch(user, &[&gres, &script])?, false, fraction));
        if dice.throw(6) == 0 {
            // Mostly one of the newest: pending, in its prolog, running or ended.
            let back = usize::try_from(dice.throw(30))
                .unwrap_or(0)
                .min(jobs.len() - 1);
            let index = jobs.len() - 1 - back;
            jobs[index].1 = true;
            lab.command("scancel")
                .args([jobs[index].0.to_string()])
                .run()?;
        }
        // Sometimes the queue becomes empty, so that placement also starts with an empty GPU.
        if dice.throw(40) == 0 {
            std::thread::sleep(Duration::from_secs(2));
        }
    }
    Ok(jobs)
}
