//! Jobs with several whole GPUs of a node.

use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError, User};

use crate::shared_devices::{
    SEE, Seen, control, finish, ready, release, run, start, start_with_control, submit,
};
use crate::uniform::QUARTERS;
use crate::{since, wait_until_put_back};

/// Whole GPUs only: Slurm before 23.11 counts any number of these.
const WHOLE: &str = r#"
[pool.p]
mechanism = "mig"
layout = "whole"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"

[partition.gpu]
allow_raw = true
"#;

/// Pools of which a job can have some of the GPUs of a node.
fn pools() -> Result<&'static str, LabError> {
    Ok(if since(23, 11)? { QUARTERS } else { WHOLE })
}

fn waits(lab: &Lab, job: JobId) -> Result<(), LabError> {
    lab.wait("Slurm says why", Duration::from_secs(30), || {
        let job = lab.job(job)?;
        assert_eq!(job.state(), "PENDING");
        let reasons = ["Resources", "Priority"];
        Ok(reasons.contains(&job.field("Reason")).then_some(()))
    })
}

/// The MIG UUIDs of a job's GPUs on a node, in the order of the indexes of the GPUs.
fn held(lab: &Lab, node: &str, job: JobId) -> Result<Vec<String>, LabError> {
    let mut leases = lab.leases_of(node, job)?;
    leases.sort_by_key(|lease| lease.slice.gpu_index);
    let uuid = |lease: &gpufrac_core::lease::Lease| {
        assert!(lease.units.0 == 100 && lease.whole_device, "{lease:?}");
        lease.slice.cuda_device().unwrap_or_default().to_owned()
    };
    Ok(leases.iter().map(uuid).collect())
}

/// Checks that the batch script saw the GPUs of the job's leases.
fn expect_gpus(
    lab: &Lab,
    node: &str,
    job: JobId,
    seen: &Seen,
    gpus: usize,
) -> Result<(), LabError> {
    let uuids = held(lab, node, job)?;
    assert_eq!(uuids.len(), gpus);
    assert_eq!(
        seen.get("CUDA_VISIBLE_DEVICES"),
        uuids.join(","),
        "{seen:?}"
    );
    assert_eq!(seen.get("NVIDIA_VISIBLE_DEVICES"), uuids.join(","));
    assert_eq!(seen.get("GPUFRAC_FRACTION"), gpus.to_string());
    let nodes = seen.devices.iter().filter(|name| !name.contains("cap"));
    assert_eq!(nodes.count(), gpus, "{seen:?}");
    Ok(())
}

/// Promise (placement): a job of several GPUs waits for pieces, has all GPUs or none, and returns them.
/// With `two_nodes_with_all_their_gpus`, `four_gpus_without_mig_come_from_gpus_of_pieces_or_shares`,
/// `the_demo_shows_four_gpus_that_pieces_had`, `a_job_of_several_gpus_makes_room`,
/// `one_of_several_gpus_that_fails_gives_the_others_back`,
/// `one_of_several_gpus_that_the_driver_refuses_gives_the_others_back`,
/// `any_call_of_several_gpus_that_fails_leaves_all_or_nothing`, `killed_at_every_step_of_several_gpus`.
#[test]
fn a_job_of_four_gpus_waits_for_pieces_and_returns_what_it_had() -> Result<(), LabError> {
    let smallest = "--gres=gpufrac:0.25";
    let lab = start(Lab::builder().gpus("H100-80", 4).pools(QUARTERS))?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    // Slurm before 23.11 forgets the parts of a GPU that are in use when the first of them is returned.
    let mut pieces = Vec::new();
    for _ in 0..5 {
        pieces.push(run(&lab, &user, &[smallest])?.0);
    }
    // There only all GPUs of a node are counted correctly, and a whole GPU as all parts of one.
    let some = if since(23, 11)? {
        run(&lab, &user, &["--gres=gpufrac:2"])?
    } else {
        run(&lab, &user, &["--gres=gpufrac:1"])?
    };
    if since(23, 11)? {
        expect_gpus(&lab, &node, some.0, &some.1, 2)?;
    }

    let four = submit(&lab, &user, &["--gres=gpufrac:4"])?;
    waits(&lab, four)?;
    let shown = lab.job(four)?;
    assert!(
        shown.field("TresPerNode").contains("gpufrac:400"),
        "{shown:?}"
    );
    finish(&lab, some.0)?;
    waits(&lab, four)?;
    for piece in pieces {
        waits(&lab, four)?;
        finish(&lab, piece)?;
    }
    let seen = ready(&lab, four)?;
    expect_gpus(&lab, &node, four, &seen, 4)?;
    let status = lab.command("gpufrac").args(["status"]);
    let map = status.env("SLURMD_NODENAME", &node).run()?.stdout;
    let own = format!("job {four}");
    let own = map
        .lines()
        .filter(|line| line.starts_with("GPU") && line.contains(&own));
    assert_eq!(own.count(), 4, "{map}");

    // The node is full for everybody.
    let after = submit(&lab, &user, &[smallest])?;
    waits(&lab, after)?;
    // slurmd of 22.05 may lose the prolog of a job that starts again within seconds of its requeue, and drain its node.
    let runs = if since(23, 11)? {
        run_again(&lab, &node, four, after)?;
        2
    } else {
        finish(&lab, four)?;
        ready(&lab, after)?;
        finish(&lab, after)?;
        1
    };
    let path = lab.folder().var(&node).join("usage.jsonl");
    let records = std::fs::read_to_string(path).expect("usage records");
    let own = format!("\"job\":{four},");
    let own = records.lines().filter(|line| line.contains(&own));
    assert_eq!(own.count(), 4 * runs, "four of each run: {records}");
    run(&lab, &user, &[smallest]).and_then(|(job, _)| finish(&lab, job))?;
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}

/// Requeues a job of four GPUs for the one that waits for them, and lets it run once more.
fn run_again(lab: &Lab, node: &str, four: JobId, after: JobId) -> Result<(), LabError> {
    lab.command("scontrol")
        .args(["requeue", &four.to_string()])
        .stdout()?;
    wait_until_put_back(lab, four)?;
    std::fs::remove_file(lab.folder().work().join(format!("ready.{four}")))
        .expect("of its first run");
    ready(lab, after)?;
    begin_now(lab, four)?;
    finish(lab, after)?;
    let seen = ready(lab, four)?;
    expect_gpus(lab, node, four, &seen, 4)?;
    finish(lab, four)
}

/// Slurm lets a requeued job wait for two minutes; this job may start now. slurmd compares in seconds when the last run
/// was ended and when the next one was allowed, and ends one of the same second ("already killed").
fn begin_now(lab: &Lab, job: JobId) -> Result<(), LabError> {
    std::thread::sleep(Duration::from_secs(1));
    let seen = lab.job(job)?;
    assert_eq!(seen.state(), "PENDING", "{seen:?}");
    lab.update(&[&format!("JobId={job}"), "StartTime=now"])
        .map(drop)
}

#[test]
fn steps_have_some_of_their_jobs_gpus() -> Result<(), LabError> {
    let lab = start(Lab::builder().gpus("H100-80", 4).pools(pools()?))?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let step = |gres: &str, name: &str| {
        format!(
            "srun -n1 {gres} bash -c 'echo $CUDA_VISIBLE_DEVICES $GPUFRAC_FRACTION; bash reach.sh' > {name}; "
        )
    };
    let script = format!(
        "{}{}{}{}touch ready; while [ ! -e go ]; do sleep 0.05; done",
        step("", "all"),
        step("--gres=gpufrac:2", "two"),
        step("--gres=gpufrac:1", "one"),
        step("--gres=none", "none"),
    );
    let job = lab.sbatch(user, &["--gres=gpufrac:3", &format!("--wrap={script}")])?;
    let work = lab.folder().work();
    lab.wait("the steps ran", Duration::from_secs(90), || {
        Ok(work.join("ready").exists().then_some(()))
    })?;
    let uuids = held(&lab, node, job)?;
    let read = |name: &str| std::fs::read_to_string(work.join(name)).expect("what a step saw");
    for (name, gpus) in [("all", 3), ("two", 2), ("one", 1)] {
        let seen = read(name);
        let first = seen.lines().next().unwrap_or_default();
        let (devices, fraction) = first.split_once(' ').unwrap_or_default();
        assert_eq!(fraction, gpus.to_string(), "{name}: {seen}");
        let devices: Vec<&str> = devices.split(',').collect();
        assert_eq!(devices.len(), gpus, "{name}: {seen}");
        // Each once, in the order of the job's GPUs.
        let places: Vec<_> = devices
            .iter()
            .map(|device| uuids.iter().position(|own| own == device))
            .collect();
        assert!(
            places.iter().all(Option::is_some) && places.is_sorted(),
            "{name}: {seen} of {uuids:?}"
        );
    }
    assert_eq!(read("none").lines().next().map(str::trim), Some(""));
    lab.write_work("go", "")?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    // More than the job has.
    let refused = lab.try_sbatch(user, &["--gres=gpufrac:17", "--wrap=true"])?;
    assert!(
        refused
            .stderr
            .contains("write --gres=gpufrac:0.17 for 17% of a GPU"),
        "{refused:?}"
    );
    lab.expect_nothing_left()
}

#[test]
fn two_nodes_with_all_their_gpus() -> Result<(), LabError> {
    let builder = Lab::builder().nodes(2).gpus("H100-80", 8);
    let lab = start(builder.pools(QUARTERS))?;
    let (user, nodes) = (&lab.users()[0], lab.nodes().to_vec());
    let piece = run(&lab, user, &["--gres=gpufrac:0.25"])?.0;
    let refused = lab.try_sbatch(user, &["--gres=gpufrac:9", "--wrap=true"])?;
    let reason = "more whole GPUs than a job can have of a node; write at most --gres=gpufrac:8";
    assert!(refused.stderr.contains(reason), "{refused:?}");
    for options in [
        &["-N2", "--gres=gpufrac:8"][..],
        &["-N2", "--gpus-per-node=gpufrac:8"],
        // A raw request, which the partition allows.
        &["-N2", "--gpus-per-node=8"],
        // With nodes of its own: Slurm then counts all GPUs of the nodes.
        &["-N2", "--exclusive", "--gres=gpufrac:8"],
        &["-N2", "--exclusive", "--gres=gpufrac:2"],
    ] {
        let job = submit(&lab, user, options)?;
        if options[1] == "--gres=gpufrac:8" {
            waits(&lab, job)?;
            finish(&lab, piece)?;
        }
        let seen = ready(&lab, job)?;
        expect_gpus(&lab, &nodes[0], job, &seen, 8)?;
        assert_eq!(held(&lab, &nodes[1], job)?.len(), 8, "{options:?}");
        finish(&lab, job)?;
        lab.wait_until_empty(Duration::from_secs(60))?;
    }
    lab.expect_nothing_left()
}

/// Promise (placement): before Slurm 23.11 a job of several whole GPUs of a shared pool has all GPUs of its nodes; a
/// smaller number is refused with the reason.
/// With `several_gpus_are_limited_by_the_nodes_of_slurm_conf`, `all_gpus_of_a_node_leave_no_unit_to_others`,
/// `before_23_11_a_whole_gpu_is_all_shares_of_a_device`.
// A request that Slurm cannot count correctly is refused, and the message says what to write.
#[test]
fn some_shared_gpus_of_a_node_are_refused_on_an_old_slurm() -> Result<(), LabError> {
    let lab = start(Lab::builder().gpus("H100-80", 3).pools(QUARTERS))?;
    let user = &lab.users()[0];
    let tried = lab.try_sbatch(user, &["--gres=gpufrac:2", "--wrap=true"])?;
    assert!(!tried.status.success(), "{tried:?}");
    let ways = "write --gres=gpufrac:1, on several nodes with --nodes, or --gres=gpufrac:3 for all GPUs of a node";
    assert!(tried.stderr.contains(ways), "{tried:?}");
    let job = run(&lab, user, &["--gres=gpufrac:1"])?.0;
    finish(&lab, job)?;
    lab.expect_nothing_left()
}

/// A job of several GPUs is requeued for one of a higher tier, and runs again.
#[test]
fn a_job_of_several_gpus_makes_room() -> Result<(), LabError> {
    let pools = QUARTERS
        .replace("[\"gpu\"]", "[\"low\", \"high\"]")
        .replace("partition.gpu", "partition.low");
    let lab = start(
        Lab::builder()
            .gpus("H100-80", 4)
            .slurm_conf_extra("PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE")
            .only_partitions(&[
                ("low", "PriorityTier=2"),
                ("high", "PriorityTier=10 PreemptMode=OFF"),
            ])
            .pools(&pools),
    )?;
    let (user, node): (&User, _) = (&lab.users()[0], &lab.nodes()[0]);
    let low = run(&lab, user, &["-p", "low", "--gres=gpufrac:4"])?.0;
    let (high, seen) = run(&lab, user, &["-p", "high", "--gres=gpufrac:4"])?;
    expect_gpus(&lab, node, high, &seen, 4)?;
    wait_until_put_back(&lab, low)?;
    std::fs::remove_file(lab.folder().work().join(format!("ready.{low}")))
        .expect("of its first run");
    finish(&lab, high)?;
    lab.update(&[&format!("JobId={low}"), "StartTime=now"])?;
    let seen = ready(&lab, low)?;
    expect_gpus(&lab, node, low, &seen, 4)?;
    release(&lab, low)?;
    assert_eq!(lab.wait_for_end(low)?.state(), "COMPLETED");
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}

/// Pieces, and whole GPUs with MIG off.
const BARE: &str = r#"
[pool.p]
mechanism = "mig"
layout = "uniform"
menu = ["1/4"]
whole = "bare"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

/// GPUs that are shared without MIG.
const TIMESLICE: &str = r#"
[pool.p]
mechanism = "timeslice"
gpu = "L40S-48"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

/// The job has plain GPUs: all of them, and no capability.
#[test]
fn four_gpus_without_mig_come_from_gpus_of_pieces_or_shares() -> Result<(), LabError> {
    let shares = |lines: &str| TIMESLICE.replace("mechanism = \"timeslice\"", lines);
    let place = crate::timeslice_and_hami::folder();
    let library = crate::timeslice_and_hami::build(place.path(), "vgpu");
    let hami = format!("mechanism = \"hami\"\nlibrary = \"{library}\"");
    let mut kinds = vec![
        ("H100-80", BARE.to_owned(), None),
        ("L40S-48", TIMESLICE.to_owned(), None),
        ("L40S-48", shares(&hami), None),
    ];
    for tenancy in ["shared", "private"] {
        let mps = format!("mechanism = \"mps\"\ntenancy = \"{tenancy}\"");
        kinds.push(("L40S-48", shares(&mps), Some(control())));
    }
    for (model, pools, control) in kinds {
        let builder = Lab::builder().gpus(model, 4).pools(&pools);
        let lab = match control {
            Some(control) => start_with_control(builder, &control)?,
            None => start(builder)?,
        };
        let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
        let piece = run(&lab, user, &["--gres=gpufrac:0.25"])?.0;
        let four = submit(&lab, user, &["--gres=gpufrac:4"])?;
        waits(&lab, four)?;
        finish(&lab, piece)?;
        let seen = ready(&lab, four)?;
        expect_gpus(&lab, node, four, &seen, 4)?;
        assert_eq!(
            seen.get("CUDA_VISIBLE_DEVICES"),
            lab.gpu_uuids(node)?.join(",")
        );
        assert_eq!(seen.devices.len(), 4, "{seen:?}");
        assert_eq!(lab.mig_modes(node)?, [false; 4]);
        finish(&lab, four)?;
        let piece = run(&lab, user, &["--gres=gpufrac:0.25"])?.0;
        finish(&lab, piece)?;
        lab.expect_nothing_left()?;
    }
    Ok(())
}

/// GPU 0 is nobody's, GPUs 1 and 2 are lent whole or in pieces, GPU 3 is halves for another partition.
const MIXED: &str = r#"
[pool.change]
mechanism = "mig"
layout = "uniform"
menu = ["1/2"]
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [1, 2]

[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["small"]
nodes = "@NODES@"
gpus = [3]
"#;

#[test]
fn only_the_pools_gpus_of_a_mixed_node_are_lent() -> Result<(), LabError> {
    let builder = Lab::builder()
        .gpu_list(&["H100-80", "H100-80:mig", "H100-80:mig", "H100-80:mig"])
        .partition("small", "")
        .plain_gpu("own", 0);
    let lab = start(builder.pools(MIXED))?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let gpus = |job| -> Result<Vec<usize>, LabError> {
        let mut leases = lab.leases_of(node, job)?;
        leases.sort_by_key(|lease| lease.slice.gpu_index);
        let gpus = leases.iter().map(|lease| lease.slice.gpu_index.position());
        Ok(gpus.collect())
    };
    let quarter = run(&lab, user, &["-p", "small", "--gres=gpufrac:0.25"])?.0;
    let half = run(&lab, user, &["-p", "gpu", "--gres=gpufrac:0.5"])?.0;
    // Slurm before 23.11 cannot count two of the GPUs: others of the node have units, too.
    if since(23, 11)? {
        let two = submit(&lab, user, &["-p", "gpu", "--gres=gpufrac:2"])?;
        waits(&lab, two)?;
        finish(&lab, half)?;
        let seen = ready(&lab, two)?;
        assert_eq!(gpus(two)?, [1, 2]);
        let nodes = seen.devices.iter().filter(|name| !name.contains("cap"));
        let nodes: Vec<&String> = nodes.collect();
        assert_eq!(nodes, ["nvidia1", "nvidia2"], "{seen:?}");
        finish(&lab, two)?;
    } else {
        finish(&lab, half)?;
    }
    // Alone on the node, beside GPUs that are not for this partition.
    let alone = submit(
        &lab,
        user,
        &["-p", "gpu", "--exclusive", "--gres=gpufrac:2"],
    )?;
    waits(&lab, alone)?;
    finish(&lab, quarter)?;
    let seen = ready(&lab, alone)?;
    assert_eq!(gpus(alone)?, [1, 2]);
    assert!(!seen.devices.contains(&"nvidia3".to_owned()), "{seen:?}");
    assert_eq!(seen.get("GPUFRAC_FRACTION"), "2");
    finish(&lab, alone)?;
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}

/// Each task of an array, each component of a het job and a suspended job has its own GPUs.
#[test]
fn arrays_het_jobs_and_suspended_jobs_have_several_gpus() -> Result<(), LabError> {
    let builder = Lab::builder().nodes(2).gpus("H100-80", 2);
    let lab = start(builder.pools(pools()?))?;
    let (user, nodes) = (&lab.users()[0], lab.nodes().to_vec());

    for node in &nodes {
        lab.gpusim(node, &["manner", "random-uuids"])?;
    }
    let devices = "echo $CUDA_VISIBLE_DEVICES > devices-$SLURM_ARRAY_TASK_ID";
    let wrap = format!("--wrap={devices}");
    let array = lab.sbatch(user, &["--array=0-5", "--gres=gpufrac:2", &wrap])?;
    let tasks = lab.wait("the array ended", Duration::from_secs(120), || {
        let tasks = lab.show_job(array)?;
        let over = !tasks.iter().any(gpufrac_lab::Job::is_active);
        Ok(over.then_some(tasks))
    })?;
    assert_eq!(tasks.len(), 6);
    let mut uuids = Vec::new();
    for (index, task) in tasks.iter().enumerate() {
        assert_eq!(task.state(), "COMPLETED", "{task:?}");
        let path = lab.folder().work().join(format!("devices-{index}"));
        let seen = std::fs::read_to_string(path).expect("what the task saw");
        uuids.extend(seen.trim().split(',').map(str::to_owned));
    }
    uuids.sort();
    uuids.dedup();
    assert_eq!(uuids.len(), 12, "two instances of its own for each task");

    let script = format!(
        "#!/bin/sh\n#SBATCH -N1 -n1 --gres=gpufrac:2\n#SBATCH hetjob\n#SBATCH -N1 -n1 --gres=gpufrac:1\n\
         srun --het-group=0,1 sh -c 'echo $GPUFRAC_FRACTION $CUDA_VISIBLE_DEVICES'\n{SEE}\n"
    );
    let script = lab.write_work("het.sh", &script)?;
    let first = lab.sbatch(user, &[&script.display().to_string()])?;
    let second = JobId(first.0 + 1);
    let seen = ready(&lab, first)?;
    let mut expected = Vec::new();
    for (component, gpus) in [(first, 2), (second, 1)] {
        let node = lab.job(component)?.field("NodeList").to_owned();
        let devices = held(&lab, &node, component)?;
        assert_eq!(devices.len(), gpus);
        expected.push(format!("{gpus} {}", devices.join(",")));
    }
    assert_eq!(seen.get("GPUFRAC_FRACTION"), "2");
    finish(&lab, first)?;
    let output = lab.output(first)?;
    let mut seen: Vec<&str> = output.lines().collect();
    seen.sort_by(|a, b| b.cmp(a));
    assert_eq!(seen, expected);
    lab.wait_until_empty(Duration::from_secs(60))?;

    let job = run(&lab, user, &["-w", &nodes[0], "--gres=gpufrac:2"])?.0;
    let gpus = held(&lab, &nodes[0], job)?;
    for (word, state) in [("suspend", "SUSPENDED"), ("resume", "RUNNING")] {
        let done = lab.command("scontrol").args([word, &job.to_string()]);
        done.stdout()?;
        lab.wait_for_state(job, &[state])?;
        assert_eq!(held(&lab, &nodes[0], job)?, gpus, "{state}");
    }
    finish(&lab, job)?;
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}
