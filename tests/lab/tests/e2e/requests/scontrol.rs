//! Changes of jobs with a fraction by `scontrol`.

use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError, Outcome};

use super::counts;
use crate::{HOLD, go};

/// Two partitions of the same halves; `small` gives no more than a quarter.
const POOLS: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "small"]
nodes = "@NODES@"

[partition.small]
max = 0.25
"#;

fn scontrol(lab: &Lab, args: &[&str]) -> Result<Outcome, LabError> {
    lab.command("scontrol")
        .user(&lab.users()[0])
        .args(args)
        .run()
}

fn update(lab: &Lab, job: JobId, changes: &[&str]) -> Result<Outcome, LabError> {
    let job = format!("JobId={job}");
    lab.try_update(&lab.users()[0], &[&[job.as_str()], changes].concat())
}

#[test]
fn an_update_of_a_pending_job_is_a_request_like_any_other() -> Result<(), LabError> {
    let lab = Lab::builder()
        .partition("small", "")
        .partition("cpu", "")
        .pools(POOLS)
        .start()?;
    let user = &lab.users()[0];
    let job = lab.sbatch(user, &["--hold", "--gres=gpufrac:0.25", "--wrap=true"])?;
    for (change, counted) in [
        ("Gres=gpufrac:0.5", "gpufrac:50,shard:50"),
        ("TresPerNode=gpufrac:0.125", "gpufrac:13,shard:13"),
        ("Gres=gpu:0.5", "gpufrac:50,shard:50"),
        ("Gres=gpufrac:0.2", "gpufrac:25,shard:25"),
    ] {
        // Without its partition in the same request it must be a size of all partitions.
        let done = update(&lab, job, &[change, "Partition=gpu"])?.success()?;
        assert_eq!(counts(&lab, job)?, counted, "{change}");
        // Slurm 22.05 has no message to the user.
        let told = change.ends_with("0.2") && lab.slurm().since(23, 2);
        assert_eq!(
            done.stderr.contains("rounded up from 0.2 to 0.25"),
            told,
            "{done:?}"
        );
    }
    for (changes, words) in [
        (
            &["Gres=gpufrac:1.5"][..],
            "a fraction is at most 1 GPU; write for example gpufrac:0.25",
        ),
        (
            &["Gres=gpufrac:1"],
            "offers no whole GPU; write --gres=gpufrac:0.125",
        ),
        (
            &["Gres=gpufrac:25"],
            "write --gres=gpufrac:0.25 for 25% of a GPU",
        ),
        (
            &["Gres=gpufrac:0.5"],
            "name the job's partition in the same request",
        ),
        (&["Gres=gpu:1"], "write gpufrac:0.25"),
        (
            &["Gres=gpufrac:0.5", "Partition=small"],
            "does not give 0.5 of a GPU; write --gres=gpufrac:0.125",
        ),
        (
            &["Gres=gpufrac:0.25", "Partition=cpu"],
            "use --partition=gpu or --partition=small",
        ),
    ] {
        let refused = update(&lab, job, changes)?;
        assert!(!refused.status.success(), "{refused:?}");
        if lab.slurm().since(23, 2) {
            assert!(
                refused.stderr.contains(words),
                "no {words:?} in {refused:?}"
            );
        } else {
            let log = lab.folder().log().join("slurmctld.log");
            let log = std::fs::read_to_string(log).expect("slurmctld's log");
            assert!(log.contains(words), "no {words:?} in slurmctld's log");
        }
        assert_eq!(counts(&lab, job)?, "gpufrac:25,shard:25", "{changes:?}");
    }
    update(&lab, job, &["Gres=gpufrac:0.125", "Partition=small"])?.success()?;
    assert_eq!(counts(&lab, job)?, "gpufrac:13,shard:13");
    scontrol(&lab, &["release", &job.to_string()])?.success()?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}

/// Slurm finds a mark anywhere in a text, and takes the last of two items with the same name: one text could be 50
/// units to a reader of its items, and one unit to Slurm.
#[test]
fn a_text_that_slurm_reads_otherwise_is_refused() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!("--wrap={HOLD}");
    let job = lab.sbatch(user, &["--hold", "--gres=gpufrac:0.5", &script])?;
    let bare = lab.sbatch(user, &["--hold", &script])?;
    let mark = if lab.slurm().since(23, 11) { "gres/" } else { "gres:" };
    for text in [
        "@gpufrac:50,@shard:50,x@shard:1,x@gpufrac:1",
        "@gpufrac:50,@shard:50,x@shard:1",
        "@shard:50,@gpufrac:50,@shard:1",
        "@gpu:whole:1,@gpufrac:100,y@gpu:whole:1",
        "x@shard:1,zgpufrac:1",
        "@shard:+50,@gpufrac:50",
        "@@shard:50,@gpufrac:50",
    ] {
        let change = format!("TresPerNode={}", text.replace('@', mark));
        for job in [job, bare] {
            let refused = update(&lab, job, &[&change, "Partition=gpu"])?;
            assert!(!refused.status.success(), "{change}: {refused:?}");
        }
        assert_eq!(counts(&lab, job)?, "gpufrac:50,shard:50", "{change}");
    }
    for job in [job, bare] {
        scontrol(&lab, &["release", &job.to_string()])?.success()?;
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    assert_eq!(lab.slice(node, job)?.lease.units.0, 50);
    assert!(lab.lease(node, bare)?.is_none());
    go(&lab)?;
    for job in [job, bare] {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    lab.expect_nothing_left()
}

#[test]
fn a_fraction_can_be_taken_from_a_pending_job_and_given_to_one() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!("--wrap=echo F=$GPUFRAC_FRACTION C=$CUDA_VISIBLE_DEVICES; {HOLD}");
    let less = lab.sbatch(user, &["--hold", "--gres=gpufrac:0.25", &script])?;
    let more = lab.sbatch(user, &["--hold", &script])?;
    let taken = update(&lab, less, &["Gres="])?;
    update(&lab, more, &["Gres=gpufrac:0.5"])?.success()?;
    // Before 26.05.5 Slurm itself still counts the removed GRES.
    let takes = lab.slurm().since(26, 5);
    assert_eq!(taken.status.success(), takes, "{taken:?}");
    if !takes {
        assert_eq!(counts(&lab, less)?, "gpufrac:25,shard:25");
    }
    for job in [less, more] {
        scontrol(&lab, &["release", &job.to_string()])?.success()?;
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    assert_eq!(lab.lease(node, less)?.is_none(), takes);
    let slice = lab.slice(node, more)?;
    assert_eq!((slice.lease.units.0, slice.instance.size), (50, 4));
    go(&lab)?;
    for job in [less, more] {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    let output = lab.output(less)?;
    let expected = if takes { "F= C=" } else { "F=0.25 C=MIG-" };
    assert!(output.starts_with(expected), "{output}");
    assert_eq!(
        lab.output(more)?,
        format!("F=0.5 C={}\n", slice.instance.uuids[0])
    );
    lab.expect_nothing_left()
}

/// Promise (users): requeuehold gives the slice back, a suspended job keeps it.
/// With `scontrol.rs::a_suspended_job_keeps_its_slice`.
#[test]
fn a_job_that_goes_back_to_the_queue_gives_its_slice_back() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!("--wrap={HOLD}");
    let job = lab.sbatch(user, &["--requeue", "--gres=gpufrac:0.5", &script])?;
    let id = job.to_string();
    lab.wait_for_state(job, &["RUNNING"])?;
    lab.slice(node, job)?;
    scontrol(&lab, &["requeuehold", &id])?.success()?;
    lab.wait("the slice is gone", Duration::from_secs(60), || {
        Ok(lab.instances(node)?.is_empty().then_some(()))
    })?;
    lab.wait_for_state(job, &["PENDING"])?;
    assert_eq!(counts(&lab, job)?, "gpufrac:50,shard:50");
    // A held job may be changed, and gets the new size in its next run.
    update(&lab, job, &["Gres=gpufrac:0.125"])?.success()?;
    lab.command("scontrol").args(["release", &id]).stdout()?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let slice = lab.slice(node, job)?;
    assert_eq!((slice.lease.units.0, slice.instance.size), (13, 1));
    go(&lab)?;
    let ended = lab.wait_for_end(job)?;
    assert_eq!((ended.state(), ended.field("Restarts")), ("COMPLETED", "1"));
    lab.expect_nothing_left()
}

#[test]
fn a_suspended_job_keeps_its_slice() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!("--wrap={HOLD}; echo C=$CUDA_VISIBLE_DEVICES");
    let submit = || lab.sbatch(user, &["--gres=gpufrac:0.5", &script]);
    let jobs = [submit()?, submit()?];
    for job in jobs {
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    let before = lab.slice(node, jobs[0])?;
    let root = |args: &[&str]| lab.command("scontrol").args(args).stdout();
    root(&["suspend", &jobs[0].to_string()])?;
    lab.wait_for_state(jobs[0], &["SUSPENDED"])?;
    // Its half is not given to another job, although its CPUs are free. A pending job can be moved to the top.
    let (third, fourth) = (submit()?, submit()?);
    root(&["top", &fourth.to_string()])?;
    lab.wait("the others wait", Duration::from_secs(60), || {
        let (third, fourth) = (lab.job(third)?, lab.job(fourth)?);
        let waits = |job: &gpufrac_lab::Job| job.state() == "PENDING";
        let resources = [&third, &fourth].map(|job| job.field("Reason") == "Resources");
        Ok((waits(&third) && waits(&fourth) && resources.contains(&true)).then_some(()))
    })?;
    assert_eq!(lab.instances(node)?.len(), 2);
    assert_eq!(lab.slice(node, jobs[0])?.instance, before.instance);
    root(&["resume", &jobs[0].to_string()])?;
    lab.wait_for_state(jobs[0], &["RUNNING"])?;
    assert_eq!(lab.slice(node, jobs[0])?.instance, before.instance);
    go(&lab)?;
    for job in [jobs[0], jobs[1], third, fourth] {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    let output = lab.output(jobs[0])?;
    assert_eq!(output, format!("C={}\n", before.instance.uuids[0]));
    lab.expect_nothing_left()
}
