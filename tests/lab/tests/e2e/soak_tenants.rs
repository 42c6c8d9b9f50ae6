//! Hundreds of jobs that share devices by MPS, with NVIDIA's own control daemon, observed all the time.
//!
//! `GPUFRAC_SOAK_TENANTS` and `GPUFRAC_TEST_SEED` set the number and the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpufrac_core::ids::GpuIndex;
use gpufrac_core::layout::Side;
use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_core::mechanism::Mechanism;
use gpufrac_lab::{ComputeMode, Instance, JobId, Lab, LabError, MpsProcess};

use crate::shared_devices::{control, daemons};
use test_seed::Dice;

use crate::soak::{BETWEEN_LOOKS, leases, number, queue};

/// Shared daemons and instances on the first node, private daemons on the second.
const POOLS: &str = r#"
[pool.shared]
mechanism = "mps"
tenancy = "shared"
gpu = "L40S-48"
partitions = ["shared", "any"]
nodes = "@NODE1@"
gpus = [0]

[pool.halves]
mechanism = "mig+mps"
gpu = "H100-80"
partitions = ["halves", "any"]
nodes = "@NODE1@"
gpus = [1]

[pool.private]
mechanism = "mps"
tenancy = "private"
gpu = "L40S-48"
partitions = ["private"]
nodes = "@NODE2@"
gpus = [0]
"#;

const PARTITIONS: [&str; 4] = ["shared", "halves", "any", "private"];

/// One observation of a node in the order queue, leases, daemons and GPUs, leases, queue: facts that are the same in
/// both readings were true at the moment between.
struct Look {
    queues: [BTreeMap<JobId, String>; 2],
    leases: [BTreeMap<JobId, Lease>; 2],
    daemons: Vec<MpsProcess>,
    instances: Vec<Instance>,
    modes: Vec<ComputeMode>,
}

impl Look {
    fn take(lab: &Lab, node: &str) -> Result<Self, LabError> {
        let first = queue(lab, &["-w", node])?;
        let before = leases(lab, node)?;
        let daemons = daemons(lab, node);
        let instances = lab.instances(node)?;
        let modes = lab.compute_modes(node)?;
        let after = leases(lab, node)?;
        let second = queue(lab, &["-w", node])?;
        Ok(Self {
            queues: [first, second],
            leases: [before, after],
            daemons,
            instances,
            modes,
        })
    }

    /// Leases that were active and the same before and after.
    fn held(&self) -> impl Iterator<Item = &Lease> {
        let [before, after] = &self.leases;
        before.values().filter(|lease| {
            lease.state == LeaseState::Active && after.get(&lease.job_id) == Some(lease)
        })
    }

    /// All contradictions.
    fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut taken: BTreeMap<(GpuIndex, Side), u32> = BTreeMap::new();
        for lease in self.leases[0].values() {
            let device = (lease.slice.gpu_index, lease.slice.side);
            *taken.entry(device).or_default() += lease.units.0;
        }
        for ((gpu, side), units) in taken {
            let capacity = if side == Side::Whole { 100 } else { 50 };
            if units > capacity {
                found.push(format!("{units} units on {side} of GPU {gpu}"));
            }
        }
        let mut tenants: BTreeMap<PathBuf, Vec<JobId>> = BTreeMap::new();
        for lease in self.held() {
            if let Some(mps) = lease.slice.mps() {
                let jobs = tenants.entry(mps.pipe().into()).or_default();
                jobs.push(lease.job_id);
                if mps.private && jobs.len() > 1 {
                    found.push(format!("jobs {jobs:?} share a private daemon"));
                }
            }
            found.extend(self.against(lease));
        }
        // Daemons without a job start and end at any time.
        for (pipe, jobs) in &tenants {
            let count = self.daemons.iter().filter(|d| d.pipe == *pipe).count();
            if count != 1 {
                found.push(format!(
                    "{count} daemons for jobs {jobs:?}: {}",
                    pipe.display()
                ));
            }
        }
        for instance in &self.instances {
            let mut all = self.leases.iter().flat_map(BTreeMap::values);
            if !all.any(|lease| is_at(lease, instance)) {
                found.push(format!("an instance without a lease: {instance:?}"));
            }
        }
        let holders: BTreeSet<_> = self.held().map(|lease| lease.job_id).collect();
        for (job, state) in &self.queues[0] {
            let runs = state == "RUNNING" && self.queues[1].get(job) == Some(state);
            if runs && !holders.contains(job) {
                let seen = self.leases.each_ref().map(|leases| leases.get(job));
                found.push(format!("job {job} runs and has no slice: {seen:?}"));
            }
        }
        found
    }

    /// A contradiction of an active lease.
    fn against(&self, lease: &Lease) -> Option<String> {
        let mode = self.modes.get(lease.slice.gpu_index.position());
        if lease.mechanism() == Mechanism::MigMps {
            let made = lease
                .slice
                .instance()
                .map(|made| vec![made.mig_uuid.clone()]);
            let standing = self.instances.iter().find(|found| is_at(lease, found));
            let same = standing.is_some_and(|found| Some(&found.uuids) == made.as_ref());
            return (!same).then(|| format!("no instance for {lease:?}: {standing:?}"));
        }
        let shared = lease.slice.mps().is_some_and(|mps| !mps.private);
        let expected = if shared { ComputeMode::ExclusiveProcess } else { ComputeMode::Default };
        (mode != Some(&expected)).then(|| format!("compute mode {mode:?} with {lease:?}"))
    }
}

fn is_at(lease: &Lease, instance: &Instance) -> bool {
    lease.slice.mig().is_some_and(|mig| {
        lease.slice.gpu_index.position() == instance.gpu
            && u32::from(mig.placement.start) == instance.start
            && u32::from(mig.placement.size) == instance.size
    })
}

/// A job, with its possible ends.
struct Submitted {
    job: JobId,
    fails: bool,
    cancelled: bool,
}

/// Promise (placement): 200 random jobs that share GPUs: daemons, limits, access, leases and running jobs agree at
/// every look.
#[test]
fn soak_of_random_tenants() -> Result<(), LabError> {
    let control = control();
    let count = number("GPUFRAC_SOAK_TENANTS", 120);
    let seed = test_seed::seed();
    let lab = Lab::builder()
        .nodes(2)
        .gpu_list(&["L40S-48", "H100-80:mig"])
        .partition("shared", "Nodes=@NODE1@")
        .partition("halves", "Nodes=@NODE1@")
        .partition("any", "Nodes=@NODE1@")
        .partition("private", "Nodes=@NODE2@")
        .latency(10)
        .mps_control(&control)
        .pools(POOLS)
        .start()?;
    let done = AtomicBool::new(false);
    let (jobs, (looks, most)) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let (mut looks, mut most) = (0_u32, 0);
            while !done.load(Ordering::Acquire) {
                for node in lab.nodes() {
                    let look = Look::take(&lab, node)?;
                    assert_eq!(look.contradictions(), Vec::<String>::new(), "seed {seed}");
                    most = most.max(look.held().count());
                    looks += 1;
                }
                std::thread::sleep(BETWEEN_LOOKS);
            }
            Ok::<_, LabError>((looks, most))
        });
        let jobs = submit(&lab, count, seed).and_then(|jobs| {
            lab.wait_until_empty(Duration::from_secs(600))?;
            Ok(jobs)
        });
        // In any case: the watcher must end before the scope can end.
        done.store(true, Ordering::Release);
        let seen = watcher.join().expect("the watcher found no contradiction");
        Ok::<_, LabError>((jobs?, seen?))
    })?;
    eprintln!("{looks} looks, at most {most} jobs at once on a node");
    assert!(u64::from(looks) >= count / 10, "only {looks} looks");
    lab.expect_nothing_left()?;
    let ended: BTreeMap<_, _> = lab.jobs()?.into_iter().map(|job| (job.id(), job)).collect();
    for Submitted {
        job,
        fails,
        cancelled,
    } in jobs
    {
        let seen = &ended[&job];
        assert_eq!(
            seen.field("Restarts"),
            "0",
            "job {job} could not be placed: {seen:?}"
        );
        match seen.state() {
            "COMPLETED" if !fails => {
                let output = lab.output(job)?;
                assert!(
                    output.starts_with("GPU-") || output.starts_with("MIG-"),
                    "{output}"
                );
            }
            "FAILED" if fails => assert_eq!(seen.field("ExitCode"), "3:0", "{seen:?}"),
            "CANCELLED" if cancelled => {}
            state => panic!("job {job} is {state}, seed {seed}: {seen:?}"),
        }
    }
    Ok(())
}

/// Submits `count` jobs and cancels some.
fn submit(lab: &Lab, count: u64, seed: u64) -> Result<Vec<Submitted>, LabError> {
    let mut dice = Dice::new(seed);
    let mut pick = |sides: usize| usize::try_from(dice.throw(sides as u64)).unwrap_or(0);
    let mut jobs: Vec<Submitted> = Vec::new();
    for _ in 0..count {
        let user = &lab.users()[pick(3)];
        let partition = PARTITIONS[pick(4)];
        let fractions = [
            "0.03", "0.05", "0.1", "0.13", "0.25", "0.3", "0.5", "0.75", "1",
        ];
        // A half is the largest part of an instance.
        let fraction = fractions[pick(match partition {
            "halves" | "any" => 7,
            _ => 9,
        })];
        let (length, fails) = (pick(1500), pick(10) == 0);
        let script = format!(
            "--wrap=echo $CUDA_VISIBLE_DEVICES; sleep {}.{:03}; exit {}",
            length / 1000,
            length % 1000,
            if fails { 3 } else { 0 }
        );
        let gres = format!("--gres=gpufrac:{fraction}");
        let job = lab.sbatch(user, &["-p", partition, &gres, &script])?;
        jobs.push(Submitted {
            job,
            fails,
            cancelled: false,
        });
        if pick(6) == 0 {
            // Mostly one of the newest: pending, in its prolog, running or ended.
            let back = pick(20).min(jobs.len() - 1);
            let index = jobs.len() - 1 - back;
            jobs[index].cancelled = true;
            let id = jobs[index].job.to_string();
            lab.command("scancel").args([id]).run()?;
        }
        // Sometimes the queue becomes empty, so that the last job of a daemon is seen as well.
        if pick(40) == 0 {
            std::thread::sleep(Duration::from_secs(2));
        }
    }
    Ok(jobs)
}
