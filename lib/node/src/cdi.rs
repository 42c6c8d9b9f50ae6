//! The slices of a job as a device of the Container Device Interface (SPEC.md of cncf/tags/container-device-interface),
//! for runtimes that read such files. It has what is the slices' own; the driver's libraries are in NVIDIA's files.
//! Where the pool has `cdi` the prolog writes the file of a job, and the program that ends its first lease removes it.

use std::path::Path;

use gpufrac_core::ids::JobId;
use gpufrac_core::lease::{Lease, variables};
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_host::log::JobLog;
use serde_json::{Value, json};

use crate::node::Node;
use crate::state::leases::StoreError;

/// The first version with a path on the host, and with names that begin with a digit.
const VERSION: &str = "0.5.0";
const KIND: &str = "gpufrac.io/slice";
/// The driver's nodes that every process needs; a runtime refuses a node that does not exist.
const COMMON: [&str; 3] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];

/// The file of a job's slices on this node. No text in it comes from a user.
pub fn file(node: &Node, leases: &[Lease]) -> Value {
    let dev = node.driver_root.join("dev");
    let common = COMMON.into_iter().filter(|name| dev.join(name).exists());
    let nodes = common.map(str::to_owned).chain(nodes(leases));
    spec(leases, &dev, nodes)
}

/// Writes the file of a job for runtimes, if a pool of its leases says so.
pub fn write(node: &Node, leases: &[Lease]) -> Result<(), FileError> {
    let has_file = |lease: &Lease| {
        let mut pools = node.config.pools.iter();
        pools.any(|pool| pool.name == lease.pool && pool.options.cdi)
    };
    let Some(first) = leases.iter().find(|lease| has_file(lease)) else {
        return Ok(());
    };
    let (folder, _) = RootDir::create(&node.cdi, 0o755)?;
    let text = format!("{:#}\n", file(node, leases));
    folder.write(&name(first.job_id), &text, 0o644)
}

/// Removes the file of a job whose slice ends. A failure does not keep the slice: [`remove_stale`] tries again.
pub fn withdraw(node: &Node, lease: &Lease, log: &JobLog) {
    if let Err(error) = remove(node, lease.job_id) {
        // The file of an ended job stays in the folder of CDI for now. Cure: Follow the text; `paths.cdi` must be a
        // folder that root alone can change.
        log.error(format!("removing the job's file of CDI failed: {error}"));
    }
}

/// Removes the file of a job, and what a killed prolog left of it.
fn remove(node: &Node, job_id: JobId) -> Result<(), FileError> {
    let Some(folder) = folder(node)? else {
        return Ok(());
    };
    let name = name(job_id);
    folder.remove(&RootDir::temporary(&name))?;
    folder.remove(&name).map(|_| ())
}

/// Removes the files of jobs that have no lease any more: those of leases that an admin dropped, and those that
/// could not be removed before.
pub fn remove_stale(node: &Node) -> Result<(), StoreError> {
    let Some(folder) = folder(node)? else {
        return Ok(());
    };
    // The files before the leases: a prolog writes the leases first.
    let jobs: Vec<JobId> = folder
        .names()?
        .iter()
        .filter_map(|name| job(name))
        .collect();
    for job in jobs {
        let (leases, damaged) = node.leases()?.readable_of_job(job)?;
        if damaged.is_empty() && leases.iter().all(|lease| lease.kept_unix.is_some()) {
            remove(node, job)?;
        }
    }
    Ok(())
}

/// The folder, if it exists. What keeps gpufrac from a folder that no pool uses is no error.
fn folder(node: &Node) -> Result<Option<RootDir>, FileError> {
    let is_used = node.config.pools.iter().any(|pool| pool.options.cdi);
    match RootDir::open(&node.cdi) {
        Err(error) if error.is_not_found() || !is_used => Ok(None),
        other => other.map(Some),
    }
}

fn name(job_id: JobId) -> String {
    format!("gpufrac-{job_id}.json")
}

/// The job of a file, or of a temporary file.
fn job(file: &str) -> Option<JobId> {
    let number = file.split_once("gpufrac-")?.1.split_once(".json")?.0;
    let job = JobId(number.parse().ok()?);
    let own = name(job);
    (file == own || file == RootDir::temporary(&own)).then_some(job)
}

/// The device nodes of slices, below /dev.
fn nodes(leases: &[Lease]) -> Vec<String> {
    let mut nodes = Vec::new();
    for lease in leases {
        let caps = lease.slice.capabilities();
        nodes.push(format!("nvidia{}", lease.slice.gpu_minor));
        nodes.extend(caps.map(|minor| format!("nvidia-caps/nvidia-cap{minor}")));
    }
    nodes.sort();
    nodes.dedup();
    nodes
}

/// The folders and files of slices that a container needs at the same path.
fn mounts(leases: &[Lease]) -> Vec<Value> {
    let mut mounts = Vec::new();
    for lease in leases {
        if let Some(mps) = lease.slice.mps() {
            mounts.extend([(mps.pipe(), "rw"), (mps.log(), "rw")]);
            // Programs and the daemon share memory: NVIDIA's device plugin for Kubernetes mounts one into both.
            mounts.push(("/dev/shm".to_owned(), "rw"));
        }
        if let Some(hami) = lease.slice.hami() {
            let cache = Path::new(&hami.cache).parent();
            mounts.push((hami.library.clone(), "ro"));
            mounts.extend(cache.map(|folder| (folder.display().to_string(), "rw")));
        }
    }
    mounts.sort();
    mounts.dedup();
    let value = |(path, mode)| {
        let options = ["rbind", "nosuid", "nodev", mode];
        json!({"hostPath": path, "containerPath": path, "options": options})
    };
    mounts.into_iter().map(value).collect()
}

/// The device has the number of the job as name: with files of several jobs in one folder each name is there once.
fn spec(leases: &[Lease], dev: &Path, nodes: impl Iterator<Item = String>) -> Value {
    let node = |name: String| {
        let (path, host) = (Path::new("/dev").join(&name), dev.join(&name));
        if path == host {
            json!({"path": path, "permissions": "rw"})
        } else {
            json!({"path": path, "hostPath": host, "permissions": "rw"})
        }
    };
    let name = leases.first().map(|lease| lease.job_id.to_string());
    let variables = variables::of_job(leases, None).into_iter();
    let variables = variables.map(|(name, value)| format!("{name}={value}"));
    json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{
            "name": name,
            "containerEdits": {
                "env": variables.collect::<Vec<_>>(),
                "deviceNodes": nodes.map(node).collect::<Vec<_>>(),
                "mounts": mounts(leases),
            },
        }],
    })
}

#[cfg(test)]
mod tests;
