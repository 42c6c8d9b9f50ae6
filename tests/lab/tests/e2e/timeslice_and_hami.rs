//! GPUs that are shared without isolation: time slices, HAMi-core.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use gpufrac_lab::{ComputeMode, Lab, LabError};

use crate::shared_devices::{finish, run, start};

/// Two GPUs: one with hints and a length of slices, one with neither.
const TIMESLICE: &str = r#"
[pool.hinted]
mechanism = "timeslice"
gpu = "L40S-48"
timeslice = "medium"
framework_hints = true
partitions = ["gpu"]
nodes = "@NODE1@"

[pool.plain]
mechanism = "timeslice"
gpu = "L40S-48"
partitions = ["plain"]
nodes = "@NODE2@"
"#;

/// A folder that only root can write and all users can read.
pub fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    folder
}

/// Promise (users): time slices and framework hints.
#[test]
fn time_slices() -> Result<(), LabError> {
    let place = folder();
    let (program, calls) = (place.path().join("nvidia-smi"), place.path().join("calls"));
    let script = format!("#!/bin/sh\necho \"$@\" >> {}\n", calls.display());
    fs::write(&program, script).expect("a stand-in");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("its mode");
    let builder = Lab::builder()
        .nodes(2)
        .gpu_list(&["L40S-48"])
        .partition("plain", "Nodes=@NODE2@")
        .nvidia_smi(&program)
        .pools(TIMESLICE);
    let lab = start(builder)?;
    let (users, nodes) = (lab.users(), lab.nodes());
    let uuid = lab.gpu_uuids(&nodes[0])?.remove(0);
    let called = fs::read_to_string(&calls).expect("it was called");
    assert_eq!(
        called,
        format!("compute-policy -i {uuid} --set-timeslice 2\n")
    );

    let (first, seen) = run(&lab, &users[0], &["--gres=gpufrac:0.4"])?;
    let (second, again) = run(&lab, &users[1], &["--gres=gpufrac:0.4"])?;
    let memory = 46_068_u64 * 40 / 100;
    for (name, value) in [
        ("CUDA_VISIBLE_DEVICES", uuid),
        ("GPUFRAC_FRACTION", "0.4".into()),
        ("GPUFRAC_MECHANISM", "timeslice".into()),
        ("GPUFRAC_PROFILE", "timeslice".into()),
        ("GPUFRAC_MEMORY_MIB", memory.to_string()),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.4".into()),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "true".into()),
        ("CUPY_GPU_MEMORY_LIMIT", (memory << 20).to_string()),
    ] {
        assert_eq!(seen.get(name), value, "{name}");
        assert_eq!(again.get(name), value, "{name}");
    }
    assert_eq!(seen.devices, ["nvidia0"]);
    assert_eq!(lab.compute_modes(&nodes[0])?, [ComputeMode::Default]);

    let (plain, seen) = run(&lab, &users[0], &["-p", "plain", "--gres=gpufrac:0.4"])?;
    assert_eq!(seen.get("GPUFRAC_MECHANISM"), "timeslice");
    for prefix in ["XLA_", "TF_", "CUPY_", "CUDA_MPS_", "CUDA_DEVICE_MEM"] {
        assert_eq!(seen.starting(prefix), Vec::<String>::new());
    }
    for job in [first, second, plain] {
        finish(&lab, job)?;
    }
    lab.expect_nothing_left()
}

/// A library that records its variables in each process that loads it.
const LIBRARY: &str = r#"
#include <stdio.h>
#include <stdlib.h>

static const char *get(const char *name) { const char *value = getenv(name); return value ? value : "-"; }

__attribute__((constructor)) static void loaded(void) {
    char name[64];
    snprintf(name, sizeof name, "NAME.%s", get("SLURM_JOB_ID"));
    FILE *file = fopen(name, "a");
    if (!file) return;
    fprintf(file, "%s %s %s\n", get("CUDA_DEVICE_MEMORY_LIMIT"), get("CUDA_DEVICE_SM_LIMIT"),
        get("CUDA_DEVICE_MEMORY_SHARED_CACHE"));
    fclose(file);
}
"#;

/// Builds the library; `name` is its name, also in its records.
pub fn build(place: &Path, name: &str) -> String {
    let (source, library) = (place.join("library.c"), place.join(format!("lib{name}.so")));
    fs::write(&source, LIBRARY.replace("NAME", name)).expect("the source");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    assert!(built.expect("cc").success());
    library.display().to_string()
}

/// Promise (users): HAMi-core's library is preloaded, with the job's limits in its variables.
#[test]
fn hami_core_is_preloaded_and_told_its_limits() -> Result<(), LabError> {
    let place = folder();
    let (library, own) = (build(place.path(), "vgpu"), build(place.path(), "own"));
    let pool = format!(
        "[pool.p]\nmechanism = \"hami\"\nlibrary = \"{library}\"\ngpu = \"L40S-48\"\n\
         partitions = [\"gpu\"]\nnodes = \"@NODES@\"\n"
    );
    let builder = Lab::builder().gpu_list(&["L40S-48"]).partition("cpu", "");
    let lab = start(builder.pools(&pool))?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);
    let preload = format!("--export=ALL,LD_PRELOAD={own}");
    let (first, of_first) = run(&lab, &users[0], &["--gres=gpufrac:0.25"])?;
    let (second, of_second) = run(&lab, &users[1], &["--gres=gpufrac:0.5", &preload])?;
    let noted = |name: &str, job| {
        let path = lab.folder().work().join(format!("{name}.{job}"));
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for (job, seen, user, percent) in [
        (first, &of_first, &users[0], 25),
        (second, &of_second, &users[1], 50),
    ] {
        let memory = format!("{}m", 46_068 * percent / 100);
        let lease = lab.lease(node, job)?;
        let hami = lease.as_ref().and_then(|lease| lease.slice.hami());
        let cache = &hami.expect("a slice of HAMi-core").cache;
        assert_eq!(seen.get("GPUFRAC_MECHANISM"), "hami");
        assert_eq!(seen.get("CUDA_DEVICE_MEMORY_LIMIT"), memory);
        assert_eq!(seen.get("CUDA_DEVICE_SM_LIMIT"), percent.to_string());
        assert_eq!(seen.get("CUDA_DEVICE_MEMORY_SHARED_CACHE"), cache);
        let told = format!("{memory} {percent} {cache}");
        let lines = noted("vgpu", job);
        assert!(
            !lines.is_empty() && lines.iter().all(|line| *line == told),
            "{lines:?}"
        );
        // The file is mounted in Slurm's namespace.
        let file = lab.command("stat").args(["-c", "%u %a", cache]).stdout()?;
        assert_eq!(file.trim(), format!("{} 600", user.uid));
    }
    assert_eq!(of_first.get("LD_PRELOAD"), library);
    // A library that the user preloads comes after it.
    assert_eq!(of_second.get("LD_PRELOAD"), format!("{library}:{own}"));
    assert!(!noted("own", second).is_empty() && noted("own", first).is_empty());
    assert_eq!(lab.compute_modes(node)?, [ComputeMode::Default]);

    // A whole GPU, or none, needs no limits, and a job does not inherit them.
    let inherited = format!(
        "--export=ALL,GPUFRAC_MECHANISM=hami,CUDA_DEVICE_SM_LIMIT=25,LD_PRELOAD={library}:{own}"
    );
    let (none, seen) = run(&lab, &users[0], &["-p", "cpu", &inherited])?;
    assert_eq!(seen.get("LD_PRELOAD"), own);
    assert_eq!(seen.get("CUDA_DEVICE_SM_LIMIT"), "");
    for job in [first, second, none] {
        finish(&lab, job)?;
    }
    let (whole, seen) = run(&lab, &users[0], &["--gres=gpufrac:1"])?;
    assert_eq!(
        (seen.get("LD_PRELOAD"), seen.get("CUDA_DEVICE_SM_LIMIT")),
        ("", "")
    );
    finish(&lab, whole)?;
    lab.expect_nothing_left()
}
