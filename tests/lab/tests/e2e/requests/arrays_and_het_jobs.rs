//! Pending jobs: arrays, heterogeneous jobs, start times and dependencies.

use std::time::Duration;

use gpufrac_lab::{Job, JobId, Lab, LabError};

use super::{SEE, counts, expect_refusal, lines};
use crate::{HOLD, go};

/// Promise (users): array limits, `--test-only`, `--begin`, dependencies.
/// With `test_only_says_when_a_job_would_start`, `jobs_wait_for_a_time_and_for_each_other_without_a_slice`.
#[test]
fn an_array_with_a_limit_holds_no_more_slices_than_that() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!("--wrap={SEE}; {HOLD}");
    let job = lab.sbatch(
        user,
        &["--array=0-4%2", "-o", "a%a", "--gres=gpufrac:0.25", &script],
    )?;
    let two = |lab: &Lab| -> Result<Option<()>, LabError> {
        let members = lab.show_job(job)?;
        let running = members
            .iter()
            .filter(|job| job.state() == "RUNNING")
            .count();
        Ok((running == 2).then_some(()))
    };
    lab.wait("two tasks run", Duration::from_secs(60), || two(&lab))?;
    assert_eq!(lab.instances(node)?.len(), 2);
    // From now on more tasks may run.
    let id = format!("JobId={job}");
    lab.command("scontrol")
        .user(user)
        .args(["update", &id, "ArrayTaskThrottle=4"])
        .stdout()?;
    lab.wait("four tasks have slices", Duration::from_secs(60), || {
        Ok((lab.instances(node)?.len() == 4).then_some(()))
    })?;
    go(&lab)?;
    lab.wait("the array ended", Duration::from_secs(120), || {
        Ok((!lab.show_job(job)?.iter().any(Job::is_active)).then_some(()))
    })?;
    for task in 0..5 {
        let path = lab.folder().work().join(format!("a{task}"));
        let output = std::fs::read_to_string(path).expect("each task wrote its output");
        assert_eq!(output, "F=0.25 S=25\n", "task {task}");
    }
    lab.expect_nothing_left()
}

/// Promise (users): het jobs of sbatch, salloc and srun, also with a component without a fraction.
#[test]
fn each_component_of_a_het_job_has_what_it_asked_for() -> Result<(), LabError> {
    // Components of one job get separate nodes.
    let lab = Lab::builder().nodes(3).start()?;
    let user = &lab.users()[0];
    let see = "echo $SLURM_HET_SIZE $SLURMD_NODENAME F=$GPUFRAC_FRACTION";
    let components = [
        "-n1",
        "--gres=gpufrac:0.2",
        ":",
        "-n1",
        "--gres=gpu:0.5",
        ":",
        "-n1",
    ];
    let sorted = |output: &str| {
        let mut seen: Vec<String> = output
            .lines()
            .filter_map(|line| Some(line.split_once("F=")?.1.to_owned()))
            .collect();
        seen.sort();
        seen
    };

    let script = format!("--wrap=srun --het-group=0,1,2 sh -c '{see}'");
    let first = lab.sbatch(
        user,
        &[&components[..1], &[&script], &components[1..]].concat(),
    )?;
    for (offset, counted) in [
        (0, "gpufrac:25,shard:25"),
        (1, "gpufrac:50,shard:50"),
        (2, ""),
    ] {
        let seen = counts(&lab, JobId(first.0 + offset))?;
        assert_eq!(seen, counted, "component {offset}");
    }
    assert_eq!(lab.wait_for_end(first)?.state(), "COMPLETED");
    assert_eq!(sorted(&lab.output(first)?), ["", "0.25", "0.5"]);

    let salloc = lab
        .command("salloc")
        .user(user)
        .args(components)
        .args(["srun", "--het-group=0,1,2", "sh", "-c", see])
        .run()?
        .success()?;
    assert_eq!(sorted(&salloc.stdout), ["", "0.25", "0.5"], "{salloc:?}");
    let shell = ["sh", "-c", see];
    let (a, b, c) = (&components[..2], &components[3..5], &components[6..]);
    let srun = [a, &shell, &[":"], b, &shell, &[":"], c, &shell].concat();
    let srun = lab.command("srun").user(user).args(srun).run()?.success()?;
    assert_eq!(sorted(&srun.stdout), ["", "0.25", "0.5"], "{srun:?}");
    assert!(
        srun.stderr.contains("rounded up from 0.2 to 0.25"),
        "{srun:?}"
    );

    // One component that cannot be granted refuses the whole job.
    let args = [
        "-n1",
        "--wrap=true",
        "--gres=gpufrac:0.25",
        ":",
        "-n1",
        "--gres=gpufrac:1.5",
    ];
    expect_refusal(&lab.try_sbatch(user, &args)?, "at most 1 GPU");
    lab.expect_nothing_left()
}

#[test]
fn test_only_says_when_a_job_would_start() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    for (command, tail) in [("sbatch", "--wrap=true"), ("srun", "true")] {
        // With the client's plugin, and with the controller's only.
        for config in [None, Some("/nonexistent")] {
            let test = |gres: &str| {
                let mut test = lab.command(command).user(user);
                if let Some(path) = config {
                    test = test.env("GPUFRAC_CONFIG", path);
                }
                test.args(["--test-only", "-n1", gres, tail]).run()
            };
            let would = test("--gres=gpufrac:0.2")?.success()?;
            assert!(would.stderr.contains("to start at"), "{would:?}");
            assert!(
                would.stderr.contains("rounded up from 0.2 to 0.25"),
                "{would:?}"
            );
            let refused = test("--gres=gpufrac:1")?;
            expect_refusal(&refused, "offers no whole GPU; write --gres=gpufrac:0.125");
        }
    }
    assert!(lab.instances(node)?.is_empty());
    lab.expect_nothing_left()
}

#[test]
fn jobs_wait_for_a_time_and_for_each_other_without_a_slice() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let (wait, see) = (format!("--wrap={HOLD}"), format!("--wrap={SEE}"));
    let submit = |more: &[&str], script: &str| {
        let args = [&["-n1", "--gres=gpufrac:0.25", script], more].concat();
        lab.sbatch(user, &args)
    };
    let first = submit(&["-J", "one"], &wait)?;
    let after = submit(&[&format!("--dependency=afterok:{first}")], &see)?;
    let single = submit(&["-J", "one", "--dependency=singleton"], &see)?;
    let later = submit(&["--begin=now+5"], &see)?;
    lab.wait_for_state(first, &["RUNNING"])?;
    assert_eq!(lab.wait_for_end(later)?.state(), "COMPLETED");
    for job in [after, single] {
        let shown = lab.job(job)?;
        assert_eq!(
            (shown.state(), shown.field("Reason")),
            ("PENDING", "Dependency")
        );
    }
    assert_eq!(lab.instances(node)?.len(), 1);
    go(&lab)?;
    for job in [after, single, later] {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
        assert_eq!(lines(&lab.output(job)?, "F="), ["0.25 S=25"]);
    }
    lab.expect_nothing_left()
}
