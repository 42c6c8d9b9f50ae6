//! Layout `uniform`: pieces of GPUs and whole GPUs from the same pool.

use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};

use crate::shared_devices::{finish, ready, run, start, submit};

/// Quarters and whole GPUs, which may also be requested as `gpu`.
pub const QUARTERS: &str = r#"
[pool.p]
mechanism = "mig"
layout = "uniform"
menu = ["1/4"]
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"

[partition.gpu]
allow_raw = true
"#;

/// GPU and size in memory slices of each instance of the node, sorted.
fn instances(lab: &Lab) -> Result<Vec<(usize, u32)>, LabError> {
    let instances = lab.instances(&lab.nodes()[0])?;
    let mut sizes: Vec<_> = instances.iter().map(|it| (it.gpu, it.size)).collect();
    sizes.sort_unstable();
    Ok(sizes)
}

/// The GPU of a job's lease, by NVML's index.
fn gpu_of(lab: &Lab, job: JobId) -> Result<usize, LabError> {
    let leases = lab.leases_of(&lab.nodes()[0], job)?;
    Ok(leases[0].slice.gpu_index.position())
}

/// Promise (placement): with `uniform`, whole GPUs and pieces come from the same GPUs by demand, and whatever Slurm
/// starts has a place.
/// With `soak_of_pieces_and_whole_gpus`, `soak_of_pieces_and_whole_gpus_with_kills_and_faults`,
/// `uniform_pieces_and_the_whole_gpu`, `uniform_takes_one_size_that_is_safe`.
#[test]
fn whole_gpus_and_pieces_come_from_the_same_gpus() -> Result<(), LabError> {
    let lab = start(Lab::builder().gpus("H100-80", 2).pools(QUARTERS))?;
    let user = lab.users()[0].clone();
    let mut pieces = Vec::new();
    for _ in 0..5 {
        pieces.push(run(&lab, &user, &["--gres=gpufrac:0.25"])?.0);
    }
    // One GPU is full, and the other one has one piece.
    assert_eq!(instances(&lab)?.len(), 5);
    assert!(instances(&lab)?.iter().all(|(_, size)| *size == 2));
    let whole = submit(&lab, &user, &["--gres=gpufrac:1"])?;
    // Slurm before 23.11.5 allocates a device as a whole as soon as the first of its pieces is free.
    let raw = if lab.slurm().since(23, 11) {
        "--gres=gpu:uniform:1"
    } else {
        "--gres=gpufrac:1"
    };
    let second = submit(&lab, &user, &[raw])?;
    let waits = |job: JobId| -> Result<(), LabError> {
        lab.wait("Slurm says why", Duration::from_secs(30), || {
            let job = lab.job(job)?;
            assert_eq!(job.state(), "PENDING");
            let reasons = ["Resources", "Priority"];
            Ok(reasons.contains(&job.field("Reason")).then_some(()))
        })
    };
    waits(whole)?;
    waits(second)?;

    // The GPU with one piece becomes empty first.
    let last = pieces.pop().expect("the fifth");
    let freed = gpu_of(&lab, last)?;
    let full = 1 - freed;
    finish(&lab, last)?;
    let seen = ready(&lab, whole)?;
    assert!(
        seen.get("CUDA_VISIBLE_DEVICES").starts_with("MIG-"),
        "{seen:?}"
    );
    assert_eq!(gpu_of(&lab, whole)?, freed);
    let sizes = instances(&lab)?;
    assert!(sizes.contains(&(freed, 8)), "{sizes:?}");
    assert_eq!(sizes.len(), 5);
    waits(second)?;

    // The other one is also given whole, after the last of its pieces ended.
    for piece in pieces {
        waits(second)?;
        finish(&lab, piece)?;
    }
    ready(&lab, second)?;
    assert_eq!(gpu_of(&lab, second)?, full);
    assert_eq!(instances(&lab)?, [(0, 8), (1, 8)]);
    let piece = submit(&lab, &user, &["--gres=gpufrac:0.25"])?;
    waits(piece)?;
    finish(&lab, whole)?;
    ready(&lab, piece)?;
    assert_eq!(gpu_of(&lab, piece)?, freed);
    for job in [second, piece] {
        finish(&lab, job)?;
    }
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}
