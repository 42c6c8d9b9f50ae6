//! Bursts of jobs, on a driver that is as slow as real ones were observed to be. `GPUFRAC_BURST_JOBS` sets the number.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use gpufrac_core::lease::LeaseState;
use gpufrac_lab::{Lab, LabError};

use crate::since;
use crate::soak::number;

/// Functions of the driver with their times in milliseconds.
const DRIVER: [(&str, &str); 5] = [
    ("nvmlInit_v2", "300"),
    ("nvmlDeviceCreateGpuInstanceWithPlacement", "1000"),
    ("nvmlGpuInstanceCreateComputeInstance", "500"),
    ("nvmlComputeInstanceDestroy", "300"),
    ("nvmlGpuInstanceDestroy", "700"),
];

#[test]
fn jobs_that_start_together_wait_in_line() -> Result<(), LabError> {
    let (limits, told) = if since(25, 5)? {
        (
            "PrologTimeout=70\nEpilogTimeout=80",
            "prolog=Some(70s) epilog=Some(80s)",
        )
    } else {
        (
            "PrologEpilogTimeout=70",
            "prolog=Some(70s) epilog=Some(70s)",
        )
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
    // More jobs than places.
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

#[test]
fn an_array_has_its_instances_made_once_and_nobody_else_has_them() -> Result<(), LabError> {
    let pools = "[pool.p]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\nreuse = \"20s\"\npartitions = [\"gpu\"]\nnodes = \"@NODES@\"\n";
    let lab = Lab::builder()
        .gpus("H100-80", 1)
        .pools(pools)
        .reaper("[reaper]\ninterval = \"5s\"\n")
        .start()?;
    let (one, two) = (&lab.users()[0], &lab.users()[1]);
    let node = &lab.nodes()[0];
    lab.gpusim(node, &["manner", "random-uuids"])?;
    let [hook, hooked] = ["hook", "hooked"].map(|name| lab.folder().root().join(name));
    let script = format!("#!/bin/sh\necho $GPUFRAC_HOOK >>{}\n", hooked.display());
    fs::write(&hook, script).expect("root may");
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).expect("root may");
    let conf = lab.folder().gpufrac_conf();
    let text = fs::read_to_string(&conf).expect("root may");
    let hooks = format!("{text}\n[hooks]\nbefore_destroy = \"{}\"\n", hook.display());
    fs::write(&conf, hooks).expect("root may");
    let devices = |prefix: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(lab.folder().work()).expect("it is there");
        let names = entries.flatten().map(|entry| entry.path());
        let ours = names.filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(prefix))
        });
        ours.map(|path| fs::read_to_string(path).expect("it is a text"))
            .collect()
    };
    let half = "--gres=gpufrac:0.5";
    let wrap = |prefix: &str| format!("--wrap=echo $CUDA_VISIBLE_DEVICES > {prefix}.$SLURM_JOB_ID");
    let array = lab.sbatch(one, &["--array=1-12", half, &wrap("one")])?;
    lab.wait_for_end(array)?;
    lab.wait_until_empty(Duration::from_secs(120))?;
    let made = devices("one.");
    assert!(matches!(made.len(), 1 | 2), "{made:?}");
    assert!(
        lab.leases(node)?
            .iter()
            .all(|it| it.state == LeaseState::Kept)
    );
    // The daemon answers: the prolog of the next job does not start NVML.
    lab.gpusim(node, &["calls", "--start"])?;
    let next = lab.sbatch(one, &[half, &wrap("one")])?;
    assert_eq!(lab.wait_for_end(next)?.state(), "COMPLETED");
    lab.wait_until_empty(Duration::from_secs(60))?;
    assert_eq!(devices("one."), made);
    let calls = lab.gpusim(node, &["calls", "--job", &next.to_string()])?;
    assert!(calls.starts_with("0 "), "{calls}");
    // The other user's jobs take both halves at the same time.
    let long = format!("{}; sleep 1", wrap("two"));
    for _ in 0..2 {
        lab.sbatch(two, &[half, &long])?;
    }
    lab.wait_until_empty(Duration::from_secs(60))?;
    let others = devices("two.");
    assert_eq!(others.len(), 2);
    assert_eq!(made.intersection(&others).next(), None);
    // The reaper destroys them when their time is over, after the hook.
    lab.wait("nothing is kept any more", Duration::from_secs(60), || {
        let left = lab.leases(node)?.len() + lab.instances(node)?.len();
        Ok((left == 0).then_some(()))
    })?;
    assert!(hooked.exists(), "the hook did not run");
    lab.expect_nothing_left()
}
