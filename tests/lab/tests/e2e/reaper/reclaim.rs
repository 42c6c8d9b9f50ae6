//! One whole reclaim.

use super::{STOOD_STILL, decisions, expect_spared, lab, submit, wait_until_cancelled};
use gpufrac_lab::LabError;

/// Promise (reaper): a job with an unused slice is warned and ended, and its user is told why.
#[test]
fn an_unused_slice_is_reclaimed_after_a_warning() -> Result<(), LabError> {
    let lab = lab(&[], "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let unused = submit(&lab, user, &["--gres=gpufrac:0.25"], "sleep 1000")?;
    let busy = submit(&lab, user, &["--gres=gpufrac:0.25"], "gpu busy")?;
    wait_until_cancelled(&lab, node, unused)?;
    assert_eq!(decisions(&lab, node, unused)?, ["warn", "cancel"]);
    let output = lab.output(unused)?;
    assert!(output.contains("will be cancelled in 3s"), "{output}");
    // After a standstill the activity is unknown.
    let paused = lab.reaper_log(node)?.contains(STOOD_STILL);
    assert!(
        output.contains("no process has used the slice") || paused,
        "{output}"
    );
    let shown = lab
        .command("scontrol")
        .args(["show", "job", &unused.to_string()])
        .stdout()?;
    assert!(shown.contains("AdminComment=gpufrac: job"), "{shown}");
    let why = lab
        .command("gpufrac")
        .args(["why", &unused.to_string(), "--node", node])
        .stdout()?;
    assert!(why.contains("cancelled"), "{why}");
    assert_eq!(decisions(&lab, node, busy)?, Vec::<String>::new());
    expect_spared(&lab, node, busy)?;
    lab.expect_nothing_left()
}

/// Promise (reaper): a job with several slices on a node is judged by its busiest one.
/// With `a_job_of_several_gpus_is_judged_by_the_busiest`, `a_job_lives_as_long_as_one_of_its_slices_is_used`,
/// `a_job_is_as_busy_as_its_busiest_slice`.
#[test]
fn a_job_with_a_slice_for_each_task_is_judged_by_the_busiest() -> Result<(), LabError> {
    crate::needs_slurm(23, 11)?;
    let lab = lab(&[], "").cores_per_node(16).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let args = ["-n2", "--tres-per-task=gres/gpufrac:0.25"];
    let unused = submit(&lab, user, &args, "sleep 1000")?;
    // The script's program is on the first slice, and no program is on the second.
    let half = submit(&lab, user, &args, "gpu busy")?;
    wait_until_cancelled(&lab, node, unused)?;
    assert_eq!(decisions(&lab, node, unused)?, ["warn", "cancel"]);
    assert_eq!(decisions(&lab, node, half)?, Vec::<String>::new());
    expect_spared(&lab, node, half)?;
    lab.expect_nothing_left()
}

/// GPUs that every Slurm counts by their number.
const WHOLE: &str = r#"
[pool.p]
mechanism = "mig"
layout = "whole"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

#[test]
fn a_job_of_several_gpus_is_judged_by_the_busiest() -> Result<(), LabError> {
    let lab = lab(&[], "").gpus("H100-80", 4).pools(WHOLE).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let unused = submit(&lab, user, &["--gres=gpufrac:2"], "sleep 1000")?;
    // The script's program is on one GPU, and no program is on the other one.
    let half = submit(&lab, user, &["--gres=gpufrac:2"], "gpu busy")?;
    wait_until_cancelled(&lab, node, unused)?;
    assert_eq!(decisions(&lab, node, unused)?, ["warn", "cancel"]);
    let why = lab
        .command("gpufrac")
        .args(["why", &unused.to_string(), "--node", node])
        .stdout()?;
    assert!(
        why.contains("slice: 2 GPUs of pool p") && why.contains("cancelled"),
        "{why}"
    );
    assert_eq!(decisions(&lab, node, half)?, Vec::<String>::new());
    expect_spared(&lab, node, half)?;
    lab.expect_nothing_left()
}
