//! Sums and the places of slices as pages and terminals show them.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use gpufrac_view::{NodeStatus, Slice, Sums};
use serde_json::{Value, json};

/// A slice of these units in this memory slice and those behind it.
fn slice(job: u32, state: &str, units: u32, (start, size): (u8, u8)) -> Value {
    json!({
        "owner": {"job": job, "user": "ada", "uid": 1000, "partition": "gpu"}, "fraction": "0.25", "units": units,
        "kind": "4g.40gb", "place": {"start": start, "size": size}, "state": state, "since": 1, "memory_limit_mib": 1,
    })
}

fn node(mechanism: &str, gpus: &[Value]) -> NodeStatus {
    let gpu = |gpu: &Value| {
        let mut whole = json!({
            "index": 0, "uuid": "GPU-0", "model": "H100-80", "pool": "p", "mechanism": mechanism, "partitions": ["gpu"],
            "memory_slices": 8, "room": [], "slices": [], "unleased": [],
        });
        whole
            .as_object_mut()
            .unwrap()
            .extend(gpu.as_object().unwrap().clone());
        whole
    };
    let gpus: Vec<Value> = gpus.iter().map(gpu).collect();
    let node = json!({
        "version": 1, "node": "n1", "written": 1, "interval": 60, "build": "0.1.0", "gpus": gpus,
    });
    serde_json::from_value(node).unwrap()
}

#[test]
fn shares_of_one_instance_stand_side_by_side() {
    let shares = [
        slice(11, "active", 25, (0, 4)),
        slice(12, "active", 13, (0, 4)),
        slice(13, "active", 25, (4, 4)),
    ];
    let parts = |mechanism: &str| -> Vec<(u32, u32, u32)> {
        let node = node(mechanism, &[json!({"slices": shares})]);
        let parts = node.gpus[0].spans();
        parts
            .map(|(_, part, whole)| (part.start, part.end, whole))
            .collect()
    };
    assert_eq!(
        parts("mig+mps"),
        [(0, 25, 100), (25, 38, 100), (50, 75, 100)]
    );
    assert_eq!(parts("mig"), [(0, 4, 8), (0, 4, 8), (4, 8, 8)]);
}

/// Promise (users): a kept instance counts as free, and a GPU that cannot be used does not.
#[test]
fn kept_instances_are_free_and_faulty_gpus_are_not() {
    let slices = [slice(1, "kept", 50, (0, 4)), slice(2, "active", 25, (4, 2))];
    let node = node(
        "mig",
        &[
            json!({"slices": slices}),
            json!({"fault": "fallen off the bus"}),
        ],
    );
    assert!(Slice::is_kept(&node.gpus[0].slices[0]));
    assert_eq!(
        Sums::of([&node]).text(),
        "2 GPUs, 0.25 used, 0.75 free, 0 of 1 slices idle"
    );
}
