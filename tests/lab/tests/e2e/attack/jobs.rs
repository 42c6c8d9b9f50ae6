//! Attacks by jobs of several parts: tasks of an array, nodes, components of a heterogeneous job, steps.

use std::collections::BTreeSet;
use std::time::Duration;

use gpufrac_lab::{Job, JobId, Lab, LabError, User};

use super::Attack;
use crate::HOLD;
use crate::fence::{LOOK, answers, own_devices, reached};

/// The change of one part; `@` stands for the mark of the series.
const CHANGES: [&str; 8] = [
    "TresPerNode=@gpufrac:50,@shard:50,x@shard:1,x@gpufrac:1",
    "TresPerNode=@gpufrac:50,@shard:1",
    "TresPerNode=@shard:1",
    "TresPerNode=@gpu:half:2,@gpufrac:1",
    "TresPerJob=@shard:1",
    "TresPerSocket=@shard:1",
    "TresPerTask=@shard:1",
    "Gres=gpufrac:0.125",
];

/// Whether Slurm has decided about a job: it runs, waits for resources, or is held.
fn is_settled(job: &Job) -> bool {
    let undecided = ["None", "JobHeldUser", "Priority", "BeginTime"];
    match job.state() {
        "PENDING" => job.field("Priority") == "0" || !undecided.contains(&job.field("Reason")),
        state => state != "CONFIGURING",
    }
}

/// All jobs of a user that have not ended.
fn active(lab: &Lab, user: &User) -> Result<Vec<Job>, LabError> {
    let owner = format!("{}(", user.name);
    let mut jobs = lab.jobs()?;
    jobs.retain(|job| job.is_active() && job.field("UserId").starts_with(&owner));
    Ok(jobs)
}

/// Lets the jobs of a user start, compares what they got, and ends them.
fn start_and_compare(attack: &mut Attack<'_>, user: &User) -> Result<(), LabError> {
    let lab = attack.lab;
    for job in active(lab, user)? {
        let release = lab.command("scontrol").user(user);
        release.args(["release", &job.id().to_string()]).run()?;
    }
    // Only some of the jobs find a place; a job that waits for one is settled.
    let settled = || Ok(active(lab, user)?.iter().all(is_settled).then_some(()));
    lab.wait("the jobs are settled", Duration::from_secs(60), settled)?;
    let jobs = active(lab, user)?;
    assert!(jobs.iter().any(|job| job.state() == "RUNNING"), "{jobs:?}");
    for job in &jobs {
        attack.compare(job.id())?;
    }
    lab.command("scancel")
        .args(["--user", &user.name])
        .stdout()?;
    lab.wait("the jobs are over", Duration::from_secs(60), || {
        Ok(active(lab, user)?.is_empty().then_some(()))
    })
}

/// Promise (users): parts of a job (tasks of an array, nodes, components, steps) get no more than Slurm counts for
/// them, however they are changed.
/// With `steps_that_ask_for_more_than_their_job_has`.
#[test]
fn parts_of_a_job_that_are_changed_apart() -> Result<(), LabError> {
    let lab = Lab::builder().nodes(3).start()?;
    let mut attack = Attack::begin(&lab, "changes to a part of an array or a het job")?;
    let user = &lab.users()[0];
    let mark = if lab.slurm().since(23, 11) { "gres/" } else { "gres:" };
    let script = format!("--wrap={HOLD}");
    let first = |outcome: &str| -> JobId { outcome.trim().parse().expect("the number of a job") };
    let submit = |args: &[&str]| -> Result<JobId, LabError> {
        let sent = lab.try_sbatch(user, args)?.success()?;
        Ok(first(&sent.stdout))
    };
    let change = |part: &str, change: &str| {
        let change = change.replace('@', mark);
        let id = format!("JobId={part}");
        let with = lab.try_update(user, &[&id, "Partition=gpu", &change])?;
        lab.try_update(user, &[&id, &change, "NumNodes=1"])?;
        Ok::<_, LabError>(with.status.success())
    };
    // Tasks of an array: each is changed in another way, then all together.
    let tasks = CHANGES.len() - 1;
    let array = format!("--array=0-{tasks}");
    let job = submit(&["--hold", &array, "--gres=gpufrac:0.5", &script])?;
    for (task, what) in CHANGES.iter().enumerate() {
        change(&format!("{job}_{task}"), what)?;
    }
    assert!(change(&format!("{job}_0"), "Gres=gpufrac:0.125")?);
    change(&job.to_string(), CHANGES[0])?;
    start_and_compare(&mut attack, user)?;
    // The job gets fewer nodes, and components with different sizes.
    for what in CHANGES {
        let nodes = submit(&["--hold", "-N2", "--gres=gpufrac:0.5", &script])?;
        change(&nodes.to_string(), what)?;
        let het = [
            "--hold",
            "-n1",
            "--gres=gpufrac:0.25",
            &script,
            ":",
            "-n1",
            "--gres=gpufrac:0.5",
        ];
        let het = submit(&het)?;
        change(&format!("{het}+1"), what)?;
        change(&(het.0 + 1).to_string(), what)?;
        start_and_compare(&mut attack, user)?;
    }
    attack.end()
}

/// Requests of steps that exceed or contradict their job, with the step's view of its allocation.
const STEPS: [&str; 10] = [
    "--gres=gpufrac:0.5",
    "--gres=gpufrac:1",
    "--gres=@shard:50",
    "--gres=@gpu:half:2",
    "--gres=@gpufrac:50,@shard:50,x@shard:1",
    "--gres=none",
    "--gres=@shard:1",
    "--gpus=2",
    "--external-launcher",
    "--overlap",
];

#[test]
fn steps_that_ask_for_more_than_their_job_has() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let mut attack = Attack::begin(&lab, "steps that ask for more than their job")?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let devices = lab.folder().gpus(node).join("dev").display().to_string();
    lab.write_work("look.sh", LOOK)?;
    let script = format!("--wrap={HOLD}");
    // The target: another job of the same user, whose files the user may open.
    let jobs = [
        lab.sbatch(user, &["--gres=gpufrac:0.25", &script])?,
        lab.sbatch(user, &["--gres=gpufrac:0.25", &script])?,
    ];
    for job in jobs {
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    let own = own_devices(&lab, jobs[0])?;
    let id = format!("--jobid={}", jobs[0]);
    let mut seen = 0;
    for option in STEPS {
        // Marks of both forms, and none as users write them.
        for mark in ["gres/", "gres:", ""] {
            let step = lab.command("srun").user(user);
            let step = step
                .current_dir(lab.folder().work())
                .env("SLURM_STEP_GPUS", "0,1,2,3")
                .env("SLURM_JOB_GPUS", "0,1,2,3")
                .env("SLURM_GPUS_ON_NODE", "4")
                .env("SLURM_SHARDS_ON_NODE", "50")
                .args([&id, "-n1", "--immediate=5", &option.replace('@', mark)])
                .args(["bash", "look.sh", &devices, "step"])
                .run()?;
            if step.status.success() {
                let found = reached(&answers(&step.stdout, "step"), option);
                seen += 1;
                let more: BTreeSet<_> = found.difference(&own).collect();
                if !more.is_empty() {
                    attack.reached(format!("{option}: {more:?}"));
                }
            }
            if !option.contains('@') {
                break;
            }
        }
    }
    assert!(seen > 1, "hardly any step ran");
    attack.compare(jobs[0])?;
    attack.end()
}
