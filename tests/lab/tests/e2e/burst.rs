//! Many jobs at once, on a driver that takes as long as real ones were seen to take. `GPUFRAC_BURST_JOBS` sets how many.

use std::time::Duration;

use gpufrac_lab::{Lab, LabError};

use crate::since;
use crate::soak::number;

/// Functions of the driver and their milliseconds.
const DRIVER: [(&str, &str); 5] = [
    ("nvmlInit_v2", "300"),
    ("nvmlDeviceCreateGpuInstanceWithPlacement", "1000"),
    ("nvmlGpuInstanceCreateComputeInstance", "500"),
    ("nvmlComputeInstanceDestroy", "300"),
    ("nvmlGpuInstanceDestroy", "700"),
];

#[test]
fn jobs_that_start_together_wait_in_line() -> Result<(), LabError> {
    let (limits, told) = match since(25, 5)? {
        true => (
            "PrologTimeout=70\nEpilogTimeout=80",
            "prolog=Some(70s) epilog=Some(80s)",
        ),
        false => (
            "PrologEpilogTimeout=70",
            "prolog=Some(70s) epilog=Some(70s)",
        ),
    };
    let lab = Lab::builder()
        .gpus("H100-80", 1)
        .slurm_conf_extra(limits)
        .start()?;
    let client = lab.command("slurm-client").args(["limits", "0"]);
    assert_eq!(client.stdout()?.trim_end(), told);
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    for (call, milliseconds) in DRIVER {
        lab.gpusim(node, &["delay", "--call", call, "--ms", milliseconds])?;
    }
    // More than have a place at once.
    let mut jobs = Vec::new();
    for _ in 0..number("GPUFRAC_BURST_JOBS", 9) {
        jobs.push(lab.sbatch(user, &["--gres=gpufrac:0.125", "--wrap=sleep 1"])?);
    }
    let shown = || {
        lab.command("scontrol")
            .args(["-o", "show", "jobs"])
            .stdout()
    };
    let waits =
        format!("AdminComment=gpufrac: prolog: the job waits on {node} for its turn at GPU 0");
    lab.wait(
        "a user sees why the job does not start",
        Duration::from_secs(60),
        || Ok(shown()?.contains(&waits).then_some(())),
    )?;
    for job in jobs {
        let ended = lab.wait_for_end(job)?;
        assert_eq!((ended.state(), ended.field("Restarts")), ("COMPLETED", "0"));
    }
    assert!(!shown()?.contains("gpufrac: prolog"));
    assert_eq!(lab.drained_nodes()?, [""; 0]);
    lab.expect_nothing_left()
}
