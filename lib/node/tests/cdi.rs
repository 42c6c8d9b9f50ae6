//! The files of CDI of pools with `cdi`: from the prolog to the end of the first lease.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use common::{Ended, Job, World, at_once, job, job_of_tasks, ready_with};
use gpufrac_core::ids::JobId;
use serde_json::Value;

const KEY: &str = "cdi = true";

#[test]
fn child() {
    common::child();
}

fn folder(world: &World) -> PathBuf {
    world.root().join("cdi")
}

fn names(world: &World) -> Vec<String> {
    let entries = fs::read_dir(folder(world)).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn file(job: Job) -> String {
    format!("gpufrac-{}.json", job.id)
}

/// Files that a killed program leaves, and files of others.
fn litter(folder: &Path) {
    for name in ["gpufrac-7.json", ".gpufrac-8.json.tmp"] {
        fs::write(folder.join(name), "{").unwrap();
    }
    for name in OTHERS {
        fs::write(folder.join(name), "{}").unwrap();
    }
}

const OTHERS: [&str; 3] = ["gpufrac-07.json", "gpufrac-site.json", "nvidia.yaml"];

/// Promise (admins): with `cdi` the prolog writes the slices of a job to one file that every runtime can read and root
/// alone can change, and the epilog removes it.
/// With `a_file_that_cannot_be_written_stops_no_job`, `files_of_jobs_without_a_lease_are_removed`.
#[test]
fn a_job_has_one_file_with_all_of_its_slices() {
    let world = ready_with(&["H100-80"], KEY);
    let (one, tasks) = (job(1, 0, 25), job_of_tasks(2, 1, 13, 2));
    world.slurm_counts(tasks);
    for job in [one, tasks] {
        world.prolog(job).ok();
    }
    assert_eq!(names(&world), [file(one), file(tasks)]);
    let path = folder(&world).join(file(tasks));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode(), 0o100_644);
    let spec: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let devices = spec["devices"].as_array().unwrap();
    assert_eq!((devices.len(), &devices[0]["name"]), (1, &Value::from("2")));
    let nodes = devices[0]["containerEdits"]["deviceNodes"].to_string();
    for lease in world.leases_of(tasks) {
        for minor in lease.slice.capabilities() {
            assert!(
                nodes.contains(&format!("/dev/nvidia-caps/nvidia-cap{minor}\"")),
                "{nodes}"
            );
        }
    }
    for word in ["u1000", "physics"] {
        assert!(!spec.to_string().contains(word), "{word}: {spec}");
    }
    // Slurm may run it again.
    fs::remove_file(&path).unwrap();
    world.prolog(tasks).ok();
    assert!(path.exists());
    for job in [one, tasks] {
        world.epilog(job).ok();
    }
    assert_eq!(names(&world), [""; 0]);
    world.configure("halves", "H100-80", "");
    world.prolog(one).ok();
    assert_eq!(names(&world), [""; 0]);
}

#[test]
fn a_file_that_cannot_be_written_stops_no_job() {
    at_once(["a link", "a file", "open"], |what| {
        let world = ready_with(&["H100-80"], KEY);
        let folder = folder(&world);
        match what {
            "a link" => symlink(world.root(), &folder).unwrap(),
            "a file" => fs::write(&folder, "").unwrap(),
            _ => {
                fs::create_dir(&folder).unwrap();
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
            }
        }
        let job = job(1, 0, 25);
        world
            .prolog(job)
            .ok()
            .says("writing the job's file of CDI failed");
        assert!(world.lease(job).is_some(), "{what}");
        world
            .epilog(job)
            .ok()
            .says("removing the job's file of CDI failed");
        assert!(
            world.leases().is_empty() && world.slurm_was_told().is_empty(),
            "{what}"
        );
        world.setup().says(folder.to_str().unwrap());
        // Without the key the folder is not gpufrac's matter.
        world.configure("halves", "H100-80", "");
        let said = [world.prolog(job), world.epilog(job), world.setup()].map(Ended::ok);
        let said = said.map(|ended| ended.stderr).concat();
        assert!(!said.contains("CDI"), "{what}: {said}");
    });
}

/// A kept instance is a lease of its old job, which has no slice.
#[test]
fn files_of_jobs_without_a_lease_are_removed() {
    let world = ready_with(&["H100-80"], "cdi = true\nreuse = \"1h\"");
    let (kept, runs) = (job(1, 0, 25), job(2, 1, 25));
    for job in [kept, runs] {
        world.prolog(job).ok();
    }
    world.epilog(kept).ok();
    assert_eq!(names(&world), [file(runs)]);
    litter(&folder(&world));
    fs::write(folder(&world).join(file(kept)), "{}").unwrap();
    world.setup().ok();
    let mut expected = OTHERS.map(str::to_owned).to_vec();
    expected.push(file(runs));
    expected.sort();
    assert_eq!(names(&world), expected);
    // Nothing is known of the job of a lease that cannot be read.
    let lease = world.root().join("run/leases").join(JobId(2).to_string());
    fs::write(lease, "half of").unwrap();
    gpufrac_node::cdi::remove_stale(&world.node()).unwrap();
    assert_eq!(names(&world), expected);
}
