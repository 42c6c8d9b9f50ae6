//! Jobs that share one MIG instance by MPS.

use std::collections::BTreeSet;

use gpufrac_lab::{Lab, LabError};

use crate::shared_devices::{
    connect, control, daemons, finish, limits, pipe, run, start_with_control,
};

const POOL: &str = r#"
[pool.p]
mechanism = "mig+mps"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

/// Promise (isolation): an instance that jobs share is open to their users alone.
#[test]
fn tenants_of_a_half_share_its_instance() -> Result<(), LabError> {
    let control = control();
    let builder = Lab::builder().gpu_list(&["H100-80:mig"]).pools(POOL);
    let lab = start_with_control(builder, &control)?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);

    let (first, of_first) = run(&lab, &users[0], &["--gres=gpufrac:0.25"])?;
    let (second, of_second) = run(&lab, &users[1], &["--gres=gpufrac:0.1"])?;
    let (other, of_other) = run(&lab, &users[0], &["--gres=gpufrac:0.5"])?;
    let (stranger, of_stranger) = run(&lab, &users[2], &[])?;
    let slices = [first, second, other].map(|job| lab.slice(node, job));
    let [slice, same, elsewhere] = slices;
    let (slice, same, elsewhere) = (slice?, same?, elsewhere?);
    assert_eq!(slice.instance, same.instance);
    assert_ne!(slice.instance, elsewhere.instance);
    assert_eq!(lab.instances(node)?.len(), 2);

    let (uuid, memory) = (&slice.instance.uuids[0], slice.lease.slice.memory_mib.0);
    assert_eq!(of_first.get("CUDA_VISIBLE_DEVICES"), uuid);
    assert_eq!(of_second.get("CUDA_VISIBLE_DEVICES"), uuid);
    assert_eq!(
        of_other.get("CUDA_VISIBLE_DEVICES"),
        elsewhere.instance.uuids[0]
    );
    // The fraction is of the GPU, the percentage of the instance.
    for (seen, fraction, percentage) in [
        (&of_first, "0.25", "50"),
        (&of_second, "0.1", "20"),
        (&of_other, "0.5", "100"),
    ] {
        assert_eq!(seen.get("GPUFRAC_FRACTION"), fraction);
        assert_eq!(seen.get("GPUFRAC_MECHANISM"), "mig+mps");
        assert_eq!(seen.connected, "connected");
        assert_eq!(seen.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), percentage);
    }
    let limit = format!("0={memory}M");
    assert_eq!(of_first.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), limit);
    let all = elsewhere.lease.slice.memory_mib.0;
    assert!(
        (all / 2 - 1..=all / 2).contains(&memory),
        "{memory} of {all}"
    );

    // Both jobs reach the instance and no other; a job without a slice reaches none.
    let own = |held: &gpufrac_lab::HeldSlice| {
        let made = held
            .lease
            .slice
            .instance()
            .expect("an active lease")
            .clone();
        let cap = |minor| format!("nvidia-cap{minor}");
        BTreeSet::from([
            "nvidia0".into(),
            cap(made.gi_cap_minor),
            cap(made.ci_cap_minor),
        ])
    };
    let reached = |devices: &[String]| devices.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(reached(&of_first.devices), own(&slice));
    assert_eq!(reached(&of_second.devices), own(&slice));
    assert_eq!(reached(&of_other.devices), own(&elsewhere));
    assert_eq!(of_stranger.devices, Vec::<String>::new());

    // A daemon for each half.
    let [left, right] = ["gpu0l", "gpu0r"].map(|name| pipe(&lab, node, name));
    let found: BTreeSet<_> = daemons(&lab, node).into_iter().map(|d| d.pipe).collect();
    assert_eq!(found, BTreeSet::from([left.clone(), right.clone()]));
    let mine = of_first.get("CUDA_MPS_PIPE_DIRECTORY").to_owned();
    let (shared, alone) =
        if mine == left.display().to_string() { (left, right) } else { (right, left) };
    assert_eq!(limits(&lab, &shared)?.0, "50.0");
    assert_eq!(limits(&lab, &alone)?.0, "100.0");
    for (user, expected) in users
        .iter()
        .zip(["connected", "connected", "Permission denied"])
    {
        assert_eq!(connect(&lab, user, &shared)?, expected, "{}", user.name);
    }
    assert_eq!(connect(&lab, &users[1], &alone)?, "Permission denied");

    // The first job created the instance; the last one removes it.
    finish(&lab, first)?;
    assert_eq!(lab.slice(node, second)?.instance, slice.instance);
    assert_eq!(connect(&lab, &users[0], &shared)?, "Permission denied");
    finish(&lab, second)?;
    assert_eq!(lab.instances(node)?, [elsewhere.instance]);
    assert!(!shared.exists());
    finish(&lab, other)?;
    finish(&lab, stranger)?;
    lab.expect_nothing_left()
}
