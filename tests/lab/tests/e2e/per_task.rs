//! A slice for each task: `--tres-per-task=gres/gpufrac:0.25`, from Slurm 23.11 on.

use std::collections::BTreeSet;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};

use crate::{HOLD, go, needs_slurm, since};

const QUARTERS: &str = "--tres-per-task=gres/gpufrac:0.25";
/// Prints the variables of a task's slice.
const SEE: &str =
    "echo TASK=$SLURM_PROCID CUDA=$CUDA_VISIBLE_DEVICES F=$GPUFRAC_FRACTION N=$SLURMD_NODENAME";

/// A lab on a Slurm that counts shares per task; a separate test covers an older one.
fn lab(builder: gpufrac_lab::LabBuilder) -> Result<Lab, LabError> {
    needs_slurm(23, 11)?;
    builder.cores_per_node(16).start()
}

/// The words after `name=`, in the order of lines.
pub(crate) fn words(output: &str, name: &str) -> Vec<String> {
    let words = output.split_whitespace();
    words
        .filter_map(|word| word.strip_prefix(name)?.strip_prefix('='))
        .map(str::to_owned)
        .collect()
}

/// Checks that each word is one MIG device, and that all differ.
pub(crate) fn all_different(output: &str) -> BTreeSet<String> {
    let seen = words(output, "CUDA");
    let different: BTreeSet<String> = seen.iter().cloned().collect();
    assert!(
        different.len() == seen.len()
            && seen
                .iter()
                .all(|uuid| uuid.starts_with("MIG-") && !uuid.contains(',')),
        "{output}"
    );
    different
}

/// Promise (users): a slice for each task is refused before 23.11, if the tasks do not fit, or if another option
/// contradicts it; the message says what to write instead.
/// With `impossible_requests_are_refused_with_an_alternative`, `tasks_that_never_fit_are_refused`,
/// `options_that_exclude_a_fraction_for_each_task`.
#[test]
fn before_slurm_counts_per_task_it_is_refused_with_the_reason() -> Result<(), LabError> {
    if since(23, 11)? {
        test_seed::not_run("this Slurm counts shares per task");
    }
    let lab = Lab::builder().start()?;
    let user = &lab.users()[0];
    for option in ["--gpus-per-task=gpufrac:0.25", "--gpus-per-task=0.25"] {
        let refused = lab.try_sbatch(user, &["-n2", option, "--wrap=true"])?;
        assert!(!refused.status.success(), "{refused:?}");
        assert!(
            refused.stderr.contains("needs Slurm 23.11")
                && refused.stderr.contains("--gres=gpufrac:0.25"),
            "{refused:?}"
        );
    }
    // The commands do not know the option; the plugin adds it to refuse it with the reason.
    for (program, job) in [
        ("sbatch", "--wrap=true"),
        ("srun", "true"),
        ("salloc", "true"),
    ] {
        let args = ["-n2", QUARTERS, job];
        let refused = lab.command(program).user(user).args(args).run()?;
        assert!(!refused.status.success(), "{refused:?}");
        assert!(refused.stderr.contains("needs Slurm 23.11"), "{refused:?}");
        assert!(!refused.stderr.contains("unrecognized"), "{refused:?}");
    }
    let line = format!("#!/bin/sh\n#SBATCH {QUARTERS}\ntrue\n");
    let script = lab.write_work("tasks.sh", &line)?;
    let refused = lab.try_sbatch(user, &["-n2", &script.display().to_string()])?;
    assert!(refused.stderr.contains("needs Slurm 23.11"), "{refused:?}");
    let other = lab.try_sbatch(user, &["--tres-per-task=cpu=2", "--wrap=true"])?;
    // 23.02 has the option, with another form, and answers itself.
    let reason = if lab.slurm().since(23, 2) {
        "Invalid Trackable RESource"
    } else {
        "--tres-per-task needs Slurm 23.11"
    };
    assert!(other.stderr.contains(reason), "{other:?}");
    assert!(!other.stderr.contains("fraction"), "{other:?}");
    lab.expect_nothing_left()
}

/// Promise (users): a slice for each task, from Slurm 23.11: in the batch script, steps side by side, srun, salloc, on
/// several nodes, as shares of a GPU.
/// With `srun_and_salloc`, `tasks_on_several_nodes_have_slices_where_they_are`, `shares_of_a_gpu_by_task`,
/// `each_task_counts`.
#[test]
fn each_task_of_a_batch_job_has_its_own_instance() -> Result<(), LabError> {
    let lab = lab(Lab::builder())?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!(
        "echo SCRIPT=$CUDA_VISIBLE_DEVICES; srun sh -c '{SEE}'; {HOLD}; \
         srun -n1 --exact --mem=50 sh -c 'echo ONE=$CUDA_VISIBLE_DEVICES; sleep 2' & \
         srun -n1 --exact --mem=50 sh -c 'echo TWO=$CUDA_VISIBLE_DEVICES; sleep 2' & wait; \
         srun -n2 --overlap --mem=50 sh -c 'echo OVER=$CUDA_VISIBLE_DEVICES; sleep 2' & \
         srun -n2 --overlap --mem=50 sh -c 'echo OVER=$CUDA_VISIBLE_DEVICES; sleep 2' & wait; \
         srun -n1 --gres=none sh -c 'echo NONE=$CUDA_VISIBLE_DEVICES'"
    );
    // Steps side by side have a core each. The memory of a step that ends still counts for a moment.
    let job = lab.sbatch(
        user,
        &["-n2", "--ntasks-per-core=1", QUARTERS, "--wrap", &script],
    )?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let shown = lab.job(job)?;
    assert_eq!(shown.field("TresPerTask"), "gres/gpufrac:25,gres/shard:25");
    let instances = lab.instances(node)?;
    assert_eq!(instances.len(), 2);
    let uuids: BTreeSet<String> = instances.iter().flat_map(|i| i.uuids.clone()).collect();
    let leases = lab.leases_of(node, job)?;
    let numbers: Vec<u32> = leases.iter().map(|lease| lease.number).collect();
    assert_eq!(numbers, [0, 1]);
    assert!(leases.iter().all(|lease| lease.units.0 == 25));
    let status = lab
        .command("gpufrac")
        .args(["status", "--node", node])
        .stdout()?;
    assert!(status.contains(&format!("{job}.1 ")), "{status}");
    go(&lab)?;

    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let output = lab.output(job)?;
    assert_eq!(all_different(&output), uuids, "{output}");
    let (script, one, two) = (
        words(&output, "SCRIPT"),
        words(&output, "ONE"),
        words(&output, "TWO"),
    );
    let of_script: BTreeSet<String> = script[0].split(',').map(str::to_owned).collect();
    assert_eq!(of_script, uuids, "{output}");
    // Both are task 0 of a step with one task.
    let side_by_side: BTreeSet<String> = one.into_iter().chain(two).collect();
    assert_eq!(side_by_side, uuids, "{output}");
    // Overlapping steps share slices, but the tasks of a step have different ones.
    let mut over = words(&output, "OVER");
    over.sort();
    assert_eq!(over.len(), 4, "{output}");
    assert!(
        over[0] == over[1] && over[1] != over[2] && over[2] == over[3],
        "{output}"
    );
    assert_eq!(words(&output, "NONE"), [""], "{output}");
    assert_eq!(words(&output, "F"), ["0.25", "0.25"], "{output}");
    lab.expect_nothing_left()
}

/// Slurm's variables of the outer job, which sbatch passes on, must not affect the steps of the inner one.
#[test]
fn a_job_from_inside_asks_for_its_own_alone() -> Result<(), LabError> {
    let lab = lab(Lab::builder())?;
    let user = &lab.users()[0];
    lab.write_work(
        "inner.sh",
        &format!("#!/bin/bash\nsrun sh -c '{SEE}'; srun true && echo again\n"),
    )?;
    let submit =
        "sbatch --parsable -n1 --gres=gpufrac:0.125 inner.sh; sbatch --parsable -n1 inner.sh";
    let script = format!("{submit}; srun -n1 sh -c '{submit}'");
    let outer = lab.sbatch(user, &["-n2", QUARTERS, "--wrap", &script])?;
    assert_eq!(lab.wait_for_end(outer)?.state(), "COMPLETED");
    let output = lab.output(outer)?;
    let inner: Vec<u32> = output
        .lines()
        .map(|line| line.parse().unwrap_or_else(|_| panic!("{output}")))
        .collect();
    assert_eq!(inner.len(), 4, "{output}");
    for (job, fraction) in inner.into_iter().zip(["0.125", "", "0.125", ""]) {
        let job = JobId(job);
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
        let output = lab.output(job)?;
        assert_eq!(words(&output, "F"), [fraction], "{output}");
        assert!(output.ends_with("again\n"), "{output}");
    }
    lab.expect_nothing_left()
}

/// Promise (isolation): tasks reach the instances of their job and no other.
#[test]
fn tasks_reach_the_instances_of_their_job_and_no_other() -> Result<(), LabError> {
    let lab = lab(Lab::builder())?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    // A job of the same user, against which file modes do not help.
    let other = lab.sbatch(user, &["--gres=gpufrac:0.5", "--wrap", HOLD])?;
    lab.wait_for_state(other, &["RUNNING"])?;
    let caps = lab.folder().gpus(node).join("dev/nvidia-caps");
    // A device answers like one without a driver.
    let probe = format!(
        "for file in {}/*; do case $( (exec 3<\"$file\") 2>&1 ) in *\"No such device\"*) echo REACHED=${{file##*cap}};; esac; done",
        caps.display()
    );
    let probe = lab.write_work("probe.sh", &probe)?;
    let script = format!("{HOLD}; srun sh {}", probe.display());
    let job = lab.sbatch(user, &["-n2", QUARTERS, "--wrap", &script])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let leases = lab.leases_of(node, job)?;
    let own: BTreeSet<String> = leases
        .iter()
        .filter_map(|lease| lease.slice.instance())
        .flat_map(|made| [made.gi_cap_minor.to_string(), made.ci_cap_minor.to_string()])
        .collect();
    assert_eq!(own.len(), 4);
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let output = lab.output(job)?;
    let reached = words(&output, "REACHED");
    assert_eq!(reached.len(), 8, "two tasks: {output}");
    assert_eq!(
        reached.into_iter().collect::<BTreeSet<_>>(),
        own,
        "{output}"
    );
    lab.expect_nothing_left()
}

#[test]
fn srun_and_salloc() -> Result<(), LabError> {
    let lab = lab(Lab::builder())?;
    let user = &lab.users()[0];
    let direct = lab
        .command("srun")
        .user(user)
        .args([
            "-N1",
            "-n3",
            "--tres-per-task=gres/gpufrac:0.125",
            "sh",
            "-c",
            SEE,
        ])
        .stdout()?;
    assert_eq!(all_different(&direct).len(), 3, "{direct}");
    let script = format!("srun sh -c '{SEE}'; srun sh -c '{SEE}'");
    let inside = lab
        .command("salloc")
        .user(user)
        .args(["-n2", QUARTERS, "sh", "-c", &script])
        .stdout()?;
    let seen = words(&inside, "CUDA");
    // The second step has the slices of the first step again.
    let different: BTreeSet<&String> = seen.iter().collect();
    assert!(seen.len() == 4 && different.len() == 2, "{inside}");
    lab.expect_nothing_left()
}

#[test]
fn tasks_on_several_nodes_have_slices_where_they_are() -> Result<(), LabError> {
    let lab = lab(Lab::builder().nodes(2))?;
    let user = &lab.users()[0];
    let output = lab
        .command("srun")
        .user(user)
        .args([
            "-N2",
            "-n3",
            "-c2",
            QUARTERS,
            "sh",
            "-c",
            &format!("{SEE}; sleep 1"),
        ])
        .stdout()?;
    assert_eq!(all_different(&output).len(), 3, "{output}");
    let mut nodes = words(&output, "N");
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), 2, "{output}");
    lab.wait_until_empty(Duration::from_secs(60))?;
    let state = lab.folder().root().join("var");
    let records = lab.nodes().iter().map(|node| {
        let text = std::fs::read_to_string(state.join(node).join("usage.jsonl"));
        text.unwrap_or_default().lines().count()
    });
    assert_eq!(records.sum::<usize>(), 3);
    lab.expect_nothing_left()
}

#[test]
fn shares_of_a_gpu_by_task() -> Result<(), LabError> {
    let pool = "[pool.shared]\nmechanism = \"timeslice\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"@NODES@\"\n";
    let lab = lab(Lab::builder().mig(false).pools(pool))?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!("srun sh -c '{SEE}'; {HOLD}");
    let job = lab.sbatch(user, &["-N1", "-n4", QUARTERS, "--wrap", &script])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    assert_eq!(lab.leases_of(node, job)?.len(), 4);
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let output = lab.output(job)?;
    let gpus: BTreeSet<String> = words(&output, "CUDA").into_iter().collect();
    assert!(
        gpus.len() == 1 && words(&output, "CUDA").len() == 4,
        "{output}"
    );
    assert!(gpus.iter().all(|gpu| gpu.starts_with("GPU-")), "{output}");
    lab.expect_nothing_left()
}

#[test]
fn impossible_requests_are_refused_with_an_alternative() -> Result<(), LabError> {
    let lab = lab(Lab::builder().nodes(2))?;
    let user = &lab.users()[0];
    for (args, tells) in [
        (&["-N1", "-n3", QUARTERS][..], "write --nodes=2 --ntasks=3"),
        (
            &["-n3", "--ntasks-per-node=3", QUARTERS],
            "at most 2 tasks on a node",
        ),
        (
            &["-n2", "--gpus-per-task=gpufrac:0.25"],
            "write --tres-per-task=gres/gpufrac:0.25",
        ),
        (
            &["-n2", "--gres=gpufrac:0.25", QUARTERS],
            "both per node and per task",
        ),
        (
            &["-n2", "--tres-per-task=gres/gpufrac:0.75"],
            "--tres-per-task=gres/gpufrac:0.5",
        ),
    ] {
        let refused = lab.try_sbatch(user, &[args, &["--wrap=true"]].concat())?;
        assert!(!refused.status.success(), "{refused:?}");
        assert!(refused.stderr.contains(tells), "{refused:?}");
    }
    // A pending job keeps the slices of its tasks.
    let two = ["--hold", "-N2", "--ntasks-per-node=1", "-n2"];
    let job = lab.sbatch(user, &[&two[..], &[QUARTERS, "--wrap=true"]].concat())?;
    let id = format!("JobId={job}");
    let change = ["update", &id, "TresPerTask=gres/gpufrac:0.125"];
    let changed = lab.command("scontrol").user(user).args(change).run()?;
    assert!(changed.stderr.contains("cannot be changed"), "{changed:?}");
    // An addition per node holds the job when it starts, on both nodes at once, and its user reads why; no node is
    // drained.
    let change = ["update", &id, "gres=gpufrac:0.25"];
    lab.command("scontrol").args(change).stdout()?;
    lab.command("scontrol")
        .args(["release", &job.to_string()])
        .stdout()?;
    lab.wait("the job is held", Duration::from_secs(60), || {
        let show = lab
            .command("scontrol")
            .args(["show", "job", &job.to_string()]);
        let shown = show.stdout()?;
        let words = ["JobState=PENDING", "Priority=0", "both per node"];
        Ok(words.iter().all(|word| shown.contains(word)).then_some(()))
    })?;
    lab.command("scancel").args([job.to_string()]).stdout()?;
    assert_eq!(lab.wait_for_end(job)?.state(), "CANCELLED");
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}
