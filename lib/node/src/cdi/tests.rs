//! The device of each mechanism, and its form.

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::lease::{HamiSlice, Held, Instance, MigSlice, MpsSlice};

use super::*;

/// The device of leases, for a driver whose nodes are in `dev`.
fn device(leases: &[Lease], dev: &str) -> Value {
    let all = nodes(leases).into_iter();
    let mut spec = spec(leases, Path::new(dev), all);
    fits(&spec).unwrap();
    spec["devices"][0]["containerEdits"].take()
}

fn lease(held: Held) -> Lease {
    let mut lease = test_examples::lease(4711);
    lease.slice.held = held;
    lease
}

fn mps() -> MpsSlice {
    MpsSlice {
        folder: "/run/gpufrac/mps/job4711".to_owned(),
        private: true,
        thread_percentage: 50,
        burst_percentage: None,
        memory_limit_mib: MemoryMib(10048),
        sm_partition: None,
    }
}

fn mig(minor: u32) -> MigSlice {
    let mut lease = test_examples::lease(4711);
    let mut mig = lease.slice.mig_mut().unwrap().clone();
    mig.instance = Some(Instance {
        gi_id: 3,
        ci_id: 0,
        mig_uuid: format!("MIG-{minor}"),
        gi_cap_minor: minor,
        ci_cap_minor: minor + 1,
    });
    mig
}

/// The form that SPEC.md of version 0.5.0 asks for. A runtime refuses a file with other keys.
fn fits(spec: &Value) -> Result<(), String> {
    let object = |required: Value, properties: Value| json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false});
    let list = |items: Value| json!({"type": "array", "minItems": 1, "items": items});
    let text = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let path = text("^/");
    let edits = object(
        json!([]),
        json!({
            "env": list(text("^[A-Z_]+=")),
            "deviceNodes": list(object(json!(["path"]), json!({"path": path, "hostPath": path, "permissions": text("^[rwm]+$")}))),
            "mounts": {"type": "array", "items": object(
                json!(["hostPath", "containerPath"]),
                json!({"hostPath": path, "containerPath": path, "options": list(text("^[a-z]+$"))}),
            )},
        }),
    );
    let name = "^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$";
    let device = object(
        json!(["name", "containerEdits"]),
        json!({"name": text(name), "containerEdits": edits}),
    );
    let schema = object(
        json!(["cdiVersion", "kind", "devices"]),
        json!({
            "cdiVersion": {"const": "0.5.0"},
            "kind": text("^[a-z][-a-z0-9]*([.][a-z0-9][-a-z0-9]*)*/[A-Za-z0-9]([-_A-Za-z0-9]{0,61}[A-Za-z0-9])?$"),
            "devices": list(device),
        }),
    );
    let (mut schemas, mut compiler) = (boon::Schemas::new(), boon::Compiler::new());
    compiler.add_resource("file:///cdi", schema).unwrap();
    let index = compiler.compile("file:///cdi", &mut schemas).unwrap();
    schemas
        .validate(spec, index)
        .map_err(|error| error.to_string())
}

fn paths<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    let all = list.as_array().unwrap().iter();
    all.map(|item| item[key].as_str().unwrap()).collect()
}

/// Promise (users): `gpufrac cdi` prints the slices of a job as a device of CDI 0.5.0, with the instances' nodes.
#[test]
fn a_device_has_the_nodes_of_all_instances_of_the_job() {
    let leases = [165, 12].map(|minor| lease(Held::Mig(mig(minor))));
    let gpu = format!("nvidia{}", leases[0].slice.gpu_minor);
    let device = device(&leases, "/dev");
    let expected = [
        format!("/dev/{gpu}"),
        "/dev/nvidia-caps/nvidia-cap12".to_owned(),
        "/dev/nvidia-caps/nvidia-cap13".to_owned(),
        "/dev/nvidia-caps/nvidia-cap165".to_owned(),
        "/dev/nvidia-caps/nvidia-cap166".to_owned(),
    ];
    let mut found = paths(&device["deviceNodes"], "path");
    found.sort_unstable();
    let mut expected = expected.each_ref().map(String::as_str);
    expected.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(device["mounts"], json!([]));
    let env = device["env"].as_array().unwrap();
    assert!(env.contains(&json!("CUDA_VISIBLE_DEVICES=MIG-165,MIG-12")));
}

#[test]
fn a_driver_elsewhere_has_paths_on_the_host() {
    let node = &device(&[lease(Held::Timeslice)], "/root/dev")["deviceNodes"][0];
    let name = test_examples::lease(1).slice.gpu_minor;
    assert_eq!(node["path"], format!("/dev/nvidia{name}"));
    assert_eq!(node["hostPath"], format!("/root/dev/nvidia{name}"));
}

/// Promise (users): the device of CDI mounts the folders of MPS, and the library and the folder of HAMi-core.
#[test]
fn a_device_mounts_what_its_variables_name() {
    let folders = [
        "/dev/shm",
        "/run/gpufrac/mps/job4711/log",
        "/run/gpufrac/mps/job4711/pipe",
    ];
    let mig_mps = Held::MigMps {
        mig: mig(12),
        mps: mps(),
    };
    for held in [Held::Mps(Some(mps())), mig_mps] {
        let device = device(&[lease(held)], "/dev");
        assert_eq!(paths(&device["mounts"], "hostPath"), folders);
        assert_eq!(paths(&device["mounts"], "containerPath"), folders);
    }
    let hami = HamiSlice {
        library: "/opt/hami/libvgpu.so".to_owned(),
        cache: "/run/gpufrac/hami/4711/cache".to_owned(),
        sm_limit: 25,
        burst: false,
    };
    let device = device(&[lease(Held::Hami(Some(hami)))], "/dev");
    let expected = ["/opt/hami/libvgpu.so", "/run/gpufrac/hami/4711"];
    assert_eq!(paths(&device["mounts"], "hostPath"), expected);
    let env = device["env"].as_array().unwrap();
    assert!(env.contains(&json!("LD_PRELOAD=/opt/hami/libvgpu.so")));
}

#[test]
fn the_form_refuses_other_keys_and_bad_names() {
    let leases = [lease(Held::Timeslice)];
    let nodes = || nodes(&leases).into_iter();
    let good = spec(&leases, Path::new("/dev"), nodes());
    fits(&good).unwrap();
    for (pointer, wrong) in [
        ("/kind", json!("slice")),
        ("/devices", json!([])),
        ("/devices/0/name", json!(null)),
        (
            "/devices/0/containerEdits/deviceNodes/0/path",
            json!("dev/nvidia0"),
        ),
        ("/devices/0/containerEdits", json!({"devices": []})),
    ] {
        let mut spec = good.clone();
        *spec.pointer_mut(pointer).unwrap() = wrong;
        assert!(fits(&spec).is_err(), "{pointer}");
    }
}
