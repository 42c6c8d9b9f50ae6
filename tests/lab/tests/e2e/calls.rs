//! The number of driver calls of a job.

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
