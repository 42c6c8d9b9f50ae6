//! Tasks in containers that hide what limits them. `hide.c` stands for a plugin that starts containers.

use std::fs;
use std::process::Command;

use gpufrac_lab::{Lab, LabError};

use crate::containers::{POSITIONS, build};
use crate::shared_devices::{control, start_with_control};
use crate::timeslice_and_hami::folder;

/// Two mechanisms whose limits a program meets only if it reaches their daemon or their library.
const POOLS: &str = r#"
[pool.mps]
mechanism = "mps"
tenancy = "private"
gpu = "L40S-48"
partitions = ["mps"]
nodes = "@NODES@"
gpus = [0]

[pool.hami]
mechanism = "hami"
library = "@LIBRARY@"
gpu = "L40S-48"
partitions = ["hami"]
nodes = "@NODES@"
gpus = [1]
"#;

/// A program that would have its first kernel running only after it has started CUDA.
const PROGRAM: &str = "--wrap=sleep 0.5; echo computes";

/// Promise (isolation): a task of a pool of MPS or HAMi-core that cannot reach the daemon's folder or the library does
/// not start, as in a container, whether its plugin stands before gpufrac's line or behind it; the message names what
/// to mount.
#[test]
fn no_task_starts_where_a_container_hides_what_limits_it() -> Result<(), LabError> {
    let place = folder();
    let library = place.path().join("libvgpu.so");
    let built = Command::new("gcc")
        .args(["-shared", "-x", "c", "/dev/null", "-o"])
        .arg(&library)
        .status();
    assert!(built.expect("gcc").success());
    let pools = POOLS.replace("@LIBRARY@", &library.display().to_string());
    let mut builder = Lab::builder().gpu_list(&["L40S-48"; 2]);
    for mechanism in ["mps", "hami"] {
        builder = builder.partition(mechanism, "");
    }
    let lab = start_with_control(builder.pools(&pools), &control())?;
    let [before, behind] = POSITIONS.map(|position| {
        let plugin = build(&lab, "hide.c", position);
        format!("required {}\n", plugin.display())
    });
    let plugstack = lab.folder().etc().join("plugstack.conf");
    let ours = fs::read_to_string(&plugstack).expect("plugstack.conf");
    fs::write(&plugstack, format!("{before}{ours}{behind}")).expect("root may");

    let user = &lab.users()[0];
    let daemons = lab.folder().run(&lab.nodes()[0]).join("mps");
    for (partition, hidden) in [("mps", daemons.as_path()), ("hami", place.path())] {
        let seen = lab.sbatch(user, &["-p", partition, "--gres=gpufrac:0.25", PROGRAM])?;
        assert_eq!(lab.wait_for_end(seen)?.state(), "COMPLETED");
        assert_eq!(lab.output(seen)?, "computes\n");
        for position in POSITIONS {
            let hide = format!("--export=ALL,HIDE_{position}={}", hidden.display());
            let args = ["-p", partition, "--gres=gpufrac:0.25", &hide, PROGRAM];
            let job = lab.sbatch(user, &args)?;
            let (ended, output) = (lab.wait_for_end(job)?, lab.output(job)?);
            assert_eq!(ended.state(), "FAILED", "{partition} {position}: {output}");
            let told = format!("start of the task failed: {}", hidden.display());
            assert!(output.contains(&told), "{partition} {position}: {output}");
            assert!(output.contains("in the container"), "{output}");
            assert!(!output.contains("computes"), "{output}");
        }
    }
    lab.expect_nothing_left()
}
