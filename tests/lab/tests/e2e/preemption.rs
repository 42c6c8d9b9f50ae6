//! Jobs that preempt others. docs/admin/preemption.md lists the settings.

use std::fs;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabBuilder, LabError};

use test_seed::Dice;

/// A GPU in halves, for all partitions.
const HALVES: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["low", "cheap", "high"]
nodes = "@NODES@"
"#;

/// A GPU in shares of any size, or whole, for all partitions.
const SHARES: &str = r#"
[pool.shares]
mechanism = "timeslice"
gpu = "H100-80"
partitions = ["low", "cheap", "high"]
nodes = "@NODES@"
"#;

/// Three partitions with the same GPU: jobs of `low` are requeued for those of `high`; jobs of `cheap` are warned and
/// ended.
fn by_partition(pools: &str) -> LabBuilder {
    Lab::builder()
        .gpus("H100-80", 1)
        .slurm_conf_extra("PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE")
        .only_partitions(&[
            ("low", "PriorityTier=2"),
            ("cheap", "PriorityTier=1 PreemptMode=CANCEL GraceTime=2"),
            ("high", "PriorityTier=10 PreemptMode=OFF"),
        ])
        .pools(pools)
}

fn submit(lab: &Lab, options: &[&str], fraction: &str, script: &str) -> Result<JobId, LabError> {
    let gres = format!("--gres=gpufrac:{fraction}");
    let wrap = format!("--wrap={script}");
    let args = [options, &[gres.as_str(), wrap.as_str()]].concat();
    lab.sbatch(&lab.users()[0], &args)
}

/// Keeps the output of prologs, which slurmd discards if they succeed.
fn keep_words_of_prologs(lab: &Lab) {
    let path = lab.folder().bin().join("prolog");
    let wrapper = fs::read_to_string(&path).expect("the lab's wrapper");
    let words = lab.folder().log().join("prologs.out");
    let kept = wrapper.replace("\"$@\"", &format!("\"$@\" 2>>{}", words.display()));
    assert_ne!(kept, wrapper);
    fs::write(&path, kept).expect("the lab's wrapper");
}

fn log(lab: &Lab, name: &str) -> String {
    let path = lab.folder().log().join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Lines of slurmctld's log about jobs that were preempted.
fn preemptions(lab: &Lab) -> usize {
    let said = log(lab, "slurmctld.log");
    said.lines()
        .filter(|line| line.contains("preempted JobId="))
        .count()
}

/// Checks that every prolog found the place that Slurm had given to its job.
fn expect_no_failed_start(lab: &Lab, preemptors: &[JobId]) -> Result<(), LabError> {
    let words = log(lab, "prologs.out");
    let carved = words.lines().filter(|line| line.contains(": carved "));
    assert!(carved.count() >= preemptors.len(), "{words}");
    // A prolog that gets the GPU's lock before a waiting epilog does the epilog's work. A job can be preempted before
    // its prolog asks for the lock.
    let usual = [
        ": carved ",
        "which was left releasing",
        "the job has already ended",
    ];
    let other: Vec<_> = words
        .lines()
        .filter(|line| !usual.iter().any(|part| line.contains(part)))
        .collect();
    assert_eq!(other, Vec::<&str>::new());
    for name in [
        "slurmctld.log".to_owned(),
        format!("slurmd.{}.log", lab.nodes()[0]),
    ] {
        let said = log(lab, &name);
        let failed = |line: &&str| line.contains("rolog error") || line.contains("aunch fail");
        assert_eq!(said.lines().find(failed), None, "{name}");
    }
    for job in preemptors {
        assert_eq!(lab.job(*job)?.field("Restarts"), "0", "job {job}");
    }
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    Ok(())
}

fn cancel_all(lab: &Lab) -> Result<(), LabError> {
    let jobs = lab.command("squeue").args(["-h", "-o", "%i"]).stdout()?;
    if !jobs.trim().is_empty() {
        lab.command("scancel").args(jobs.split_whitespace()).run()?;
    }
    Ok(())
}

/// Promise (admins): preemption by partition and by QOS (requeue, cancel, grace time): the slice is free when the next
/// job starts, no start fails.
/// With `a_fraction_takes_the_place_of_others_by_qos`, `preemptions_in_a_row_without_one_failed_start`.
// Slurm preempts the fewest jobs for a half, and warned jobs have their time.
#[test]
fn a_fraction_takes_the_place_of_others_by_partition() -> Result<(), LabError> {
    let lab = by_partition(HALVES).start()?;
    keep_words_of_prologs(&lab);
    let node = &lab.nodes()[0];
    // The left half is full of jobs of `cheap`, the right one of `low`.
    let told = "trap 'echo told' TERM; sleep 1000 & wait; sleep 1000";
    let cheap = [
        submit(&lab, &["-p", "cheap"], "0.25", told)?,
        submit(&lab, &["-p", "cheap"], "0.25", told)?,
    ];
    for job in cheap {
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    let low = submit(&lab, &["-p", "low"], "0.5", "sleep 1000")?;
    lab.wait_for_state(low, &["RUNNING"])?;
    let [first, second] = [lab.slice(node, cheap[0])?, lab.slice(node, cheap[1])?];
    let left = [&first, &second].map(|slice| slice.instance.start < 4);
    assert_eq!(left, [true, true], "{first:?} {second:?}");

    // The lowest partition is preempted first; one quarter is enough for a quarter.
    let quarter = submit(&lab, &["-p", "high"], "0.25", "sleep 1000")?;
    lab.wait_for_state(quarter, &["RUNNING"])?;
    lab.slice(node, quarter)?;
    let states = [lab.job(cheap[0])?, lab.job(cheap[1])?];
    let mut states = states.each_ref().map(|job| job.state());
    states.sort_unstable();
    assert_eq!(states, ["PREEMPTED", "RUNNING"]);
    assert_eq!(lab.job(low)?.state(), "RUNNING");
    let outputs = [lab.output(cheap[0])?, lab.output(cheap[1])?].concat();
    assert_eq!(outputs.matches("told\n").count(), 1, "{outputs}");

    // A half is available on the right side only.
    let half = submit(&lab, &["-p", "high"], "0.5", "sleep 1000")?;
    lab.wait_for_state(half, &["RUNNING"])?;
    assert_eq!(lab.slice(node, half)?.instance.start, 4);
    let back = lab.job(low)?;
    assert_eq!((back.state(), back.field("Restarts")), ("PENDING", "1"));
    lab.slice(node, quarter)?;

    // A requeued job runs again when there is room.
    lab.command("scancel").args([half.to_string()]).run()?;
    lab.wait_for_state(low, &["RUNNING"])?;
    lab.slice(node, low)?;
    expect_no_failed_start(&lab, &[quarter, half])?;
    cancel_all(&lab)?;
    lab.expect_nothing_left()
}

/// Promise (admins): whole GPUs take the place of shares, and shares that of whole GPUs.
#[test]
fn a_whole_gpu_takes_the_place_of_shares_and_shares_that_of_a_whole_gpu() -> Result<(), LabError> {
    let lab = by_partition(SHARES).mig(false).start()?;
    keep_words_of_prologs(&lab);
    let node = &lab.nodes()[0];
    let shares =
        ["0.3", "0.3", "0.4"].map(|share| submit(&lab, &["-p", "low"], share, "sleep 1000"));
    let shares = shares.into_iter().collect::<Result<Vec<_>, _>>()?;
    for job in &shares {
        lab.wait_for_state(*job, &["RUNNING"])?;
    }
    // After one share ended, the GPU must not look free of shares.
    lab.command("scancel").args([shares[2].to_string()]).run()?;
    lab.wait_for_end(shares[2])?;
    let whole = submit(&lab, &["-p", "high"], "1", "sleep 1000")?;
    lab.wait_for_state(whole, &["RUNNING"])?;
    let leases: Vec<_> = lab.leases(node)?.iter().map(|lease| lease.job_id).collect();
    assert_eq!(leases, [whole]);
    for job in &shares[..2] {
        assert_eq!(lab.job(*job)?.field("Restarts"), "1");
    }
    cancel_all(&lab)?;
    lab.wait_until_empty(Duration::from_secs(60))?;

    let whole_low = submit(&lab, &["-p", "low"], "1", "sleep 1000")?;
    lab.wait_for_state(whole_low, &["RUNNING"])?;
    let share = submit(&lab, &["-p", "high"], "0.3", "sleep 1000")?;
    lab.wait_for_state(share, &["RUNNING"])?;
    let leases: Vec<_> = lab.leases(node)?.iter().map(|lease| lease.job_id).collect();
    assert_eq!(leases, [share]);
    expect_no_failed_start(&lab, &[whole, share])?;
    cancel_all(&lab)?;
    lab.expect_nothing_left()
}

#[test]
fn preemptions_in_a_row_without_one_failed_start() -> Result<(), LabError> {
    let mut dice = Dice::new(test_seed::seed());
    let mut any = |list: &[&'static str]| {
        let sides = u64::try_from(list.len()).unwrap_or(1);
        list[usize::try_from(dice.throw(sides)).unwrap_or(0)]
    };
    let lab = by_partition(HALVES).gpus("H100-80", 2).start()?;
    keep_words_of_prologs(&lab);
    // More jobs than the GPUs hold, so that all room is used again at once; a requeued job waits for 15 s.
    for _ in 0..60 {
        let partition = any(&["low", "low", "cheap"]);
        let fraction = any(&["0.5", "0.25", "0.25", "0.125", "0.125"]);
        submit(&lab, &["-p", partition], fraction, "sleep 1000")?;
    }
    let mut high = Vec::new();
    while preemptions(&lab) < 20 {
        assert!(
            high.len() < 150,
            "{} preemptions for {} jobs",
            preemptions(&lab),
            high.len()
        );
        let burst: Vec<_> = (0..3)
            .map(|_| {
                let fraction = any(&["0.5", "0.25", "0.125"]);
                let length = any(&["sleep 0", "sleep 1", "sleep 4"]);
                submit(&lab, &["-p", "high"], fraction, length)
            })
            .collect::<Result<_, _>>()?;
        for job in &burst {
            lab.wait_for_state(*job, &["RUNNING", "COMPLETING", "COMPLETED"])?;
        }
        high.extend(burst);
    }
    for job in &high {
        assert_eq!(lab.wait_for_end(*job)?.state(), "COMPLETED");
    }
    eprintln!("{} preemptions for {} jobs", preemptions(&lab), high.len());
    cancel_all(&lab)?;
    lab.expect_nothing_left()?;
    expect_no_failed_start(&lab, &high)
}

#[test]
fn a_fraction_takes_the_place_of_others_by_qos() -> Result<(), LabError> {
    let lab = Lab::builder()
        .gpus("H100-80", 1)
        .accounting()
        .slurm_conf_extra(
            "AccountingStorageEnforce=associations,limits,qos\n\
             PreemptType=preempt/qos\nPreemptMode=REQUEUE",
        )
        .start()?;
    keep_words_of_prologs(&lab);
    let node = &lab.nodes()[0];
    lab.sacctmgr(&["add", "qos", "cheap", "preemptmode=cancel", "gracetime=2"])?;
    lab.sacctmgr(&["add", "qos", "high", "preempt=normal,cheap", "priority=10"])?;
    lab.sacctmgr(&["modify", "account", "lab", "set", "qos=normal,cheap,high"])?;
    // slurmctld gets the change a moment later.
    let normal = lab.wait("the QOS are known", Duration::from_secs(60), || {
        Ok(submit(&lab, &["--qos=high", "--hold"], "0.5", "true").ok())
    })?;
    lab.command("scancel").args([normal.to_string()]).run()?;
    let told = "trap 'echo told' TERM; sleep 1000 & wait; sleep 1000";
    let cheap = submit(&lab, &["--qos=cheap"], "0.5", told)?;
    let normal = submit(&lab, &["--qos=normal"], "0.5", "sleep 1000")?;
    for job in [cheap, normal] {
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    let high = [
        submit(&lab, &["--qos=high"], "0.5", "sleep 1000")?,
        submit(&lab, &["--qos=high"], "0.5", "sleep 1000")?,
    ];
    for job in high {
        lab.wait_for_state(job, &["RUNNING"])?;
        lab.slice(node, job)?;
    }
    assert_eq!(lab.job(cheap)?.state(), "PREEMPTED");
    assert!(lab.output(cheap)?.contains("told\n"));
    let back = lab.job(normal)?;
    assert_eq!((back.state(), back.field("Restarts")), ("PENDING", "1"));
    expect_no_failed_start(&lab, &high)?;
    cancel_all(&lab)?;
    lab.expect_nothing_left()
}

/// Promise (admins): a suspended job keeps its slice.
// Slurm does not count a suspended job's resources as free, so no job gets them.
#[test]
fn a_suspended_job_keeps_its_slice() -> Result<(), LabError> {
    let lab = Lab::builder()
        .gpus("H100-80", 1)
        .cores_per_node(4)
        .slurm_conf_extra("PreemptType=preempt/partition_prio\nPreemptMode=SUSPEND,GANG")
        .only_partitions(&[
            ("low", "PriorityTier=1 OverSubscribe=FORCE:1"),
            ("cheap", "PriorityTier=1 OverSubscribe=FORCE:1"),
            (
                "high",
                "PriorityTier=10 PreemptMode=OFF OverSubscribe=FORCE:1",
            ),
        ])
        .pools(HALVES)
        .start()?;
    keep_words_of_prologs(&lab);
    let node = &lab.nodes()[0];
    let low = submit(&lab, &["-p", "low"], "0.5", "sleep 1000")?;
    lab.wait_for_state(low, &["RUNNING"])?;
    let slice = lab.slice(node, low)?;
    // The other half is free; the other job is suspended for all CPUs of the node.
    let high = submit(&lab, &["-p", "high", "-c8"], "0.5", "sleep 1000")?;
    lab.wait_for_state(high, &["RUNNING"])?;
    lab.wait_for_state(low, &["SUSPENDED"])?;
    assert_eq!(lab.slice(node, low)?.instance, slice.instance);
    assert_ne!(lab.slice(node, high)?.instance.start, slice.instance.start);
    // Nothing is free: the next job waits, although the job in its way is suspended.
    let next = submit(&lab, &["-p", "high"], "0.25", "sleep 1000")?;
    lab.wait("the scheduler saw it", Duration::from_secs(60), || {
        let seen = lab.job(next)?;
        Ok((seen.field("Reason") == "Resources").then_some(()))
    })?;
    lab.command("scancel").args([high.to_string()]).run()?;
    lab.wait_for_state(next, &["RUNNING"])?;
    lab.wait_for_state(low, &["RUNNING"])?;
    assert_eq!(lab.slice(node, low)?.instance, slice.instance);
    expect_no_failed_start(&lab, &[high, next])?;
    cancel_all(&lab)?;
    lab.expect_nothing_left()
}
