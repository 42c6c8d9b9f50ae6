//! The number of calls of the driver, and of questions to slurmctld, of a job.

use std::time::Duration;

use gpufrac_lab::{Lab, LabError};

/// Calls of all of its programs: prolog, slurmstepd, the job itself, epilog.
#[test]
fn a_jobs_life_takes_few_calls_of_the_driver() -> Result<(), LabError> {
    let lab = Lab::builder().latency(20).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    lab.gpusim(node, &["calls", "--start"])?;
    let script = "--wrap=echo CUDA=$CUDA_VISIBLE_DEVICES";
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", script])?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    assert!(lab.output(job)?.contains("CUDA=MIG-"));
    lab.wait("its slice is gone", Duration::from_secs(60), || {
        Ok(lab.instances(node)?.is_empty().then_some(()))
    })?;
    lab.expect_nothing_left()?;
    // `20 any 640 ms`, and a line for each function.
    let calls = lab.gpusim(node, &["calls", "--job", &job.to_string()])?;
    let count = calls.split(' ').next().and_then(|text| text.parse().ok());
    assert!(
        count.is_some_and(|count: u32| (10..=20).contains(&count)),
        "{calls}"
    );
    for slow in [
        "nvmlDeviceGetHandleByUUID",
        "nvmlDeviceGetMigDeviceHandleByIndex",
    ] {
        assert!(!calls.contains(slow), "{calls}");
    }
    Ok(())
}

/// A prolog is run as slurmd runs it, because the lab's own commands ask slurmctld as well.
#[test]
fn a_prolog_asks_slurmctld_one_question() -> Result<(), LabError> {
    let lab = Lab::builder().nodes(1).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let hook = |program: &str| {
        let path = lab.folder().bin().join(program);
        let variables = Lab::hook_environment(node, user, "4000000");
        let hook = lab.command(&path.display().to_string());
        let hook = variables
            .into_iter()
            .fold(hook, |hook, (name, value)| hook.env(name, value));
        hook.env("SLURM_JOB_GPUS", "0")
            .env("SPANK_GPUFRAC", "v1:units=25:mech=mig")
            .stdout()
    };
    lab.command("sdiag").args(["--reset"]).stdout()?;
    hook("gpufrac-prolog")?;
    let counts = lab.command("sdiag").stdout()?;
    // `REQUEST_JOB_INFO_SINGLE ( 2021) count:1 ...`; the question for these counts is one of them.
    let questions = counts.lines().map(str::trim);
    let questions = questions.filter(|line| line.starts_with("REQUEST_"));
    let asked: Vec<&str> = questions
        .filter(|line| !line.starts_with("REQUEST_STATS_INFO"))
        .collect();
    let [asked] = asked[..] else {
        panic!("{asked:?}\n{counts}");
    };
    let is_one = asked.starts_with("REQUEST_JOB_INFO_SINGLE") && asked.contains("count:1 ");
    assert!(is_one, "{asked}");
    hook("gpufrac-epilog")?;
    lab.expect_nothing_left()
}
