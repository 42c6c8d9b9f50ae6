//! `gpufrac cdi`: the slice of a job as a device of the Container Device Interface (SPEC.md of
//! cncf/tags/container-device-interface), for runtimes that read such files. It has what is the slice's own; the
//! driver's libraries are in NVIDIA's files.

use std::path::Path;

use gpufrac_core::lease::Lease;
use gpufrac_host::exit::Exit;
use serde_json::{Value, json};

use crate::args::JobArgs;
use crate::env;
use crate::error::CliError;

/// The first version with a path on the host, and with names that begin with a digit.
const VERSION: &str = "0.5.0";
const KIND: &str = "gpufrac.io/slice";
/// The driver's nodes that every process needs; a runtime refuses a node that does not exist.
const COMMON: [&str; 3] = ["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"];

pub fn run(args: &JobArgs) -> Result<Exit, CliError> {
    let (node, leases) = env::leases(args)?;
    let dev = node.driver_root.join("dev");
    let common = COMMON.into_iter().filter(|name| dev.join(name).exists());
    let nodes = common.map(str::to_owned).chain(nodes(&leases));
    let spec = spec(&leases, &dev, nodes, &env::variables(&leases, None));
    println!("{spec:#}");
    Ok(Exit::Done)
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
fn spec(
    leases: &[Lease],
    dev: &Path,
    nodes: impl Iterator<Item = String>,
    variables: &[(&str, String)],
) -> Value {
    let node = |name: String| {
        let (path, host) = (Path::new("/dev").join(&name), dev.join(&name));
        if path == host {
            json!({"path": path, "permissions": "rw"})
        } else {
            json!({"path": path, "hostPath": host, "permissions": "rw"})
        }
    };
    let name = leases.first().map(|lease| lease.job_id.to_string());
    let variable = |(name, value): &(&str, String)| format!("{name}={value}");
    json!({
        "cdiVersion": VERSION,
        "kind": KIND,
        "devices": [{
            "name": name,
            "containerEdits": {
                "env": variables.iter().map(variable).collect::<Vec<_>>(),
                "deviceNodes": nodes.map(node).collect::<Vec<_>>(),
                "mounts": mounts(leases),
            },
        }],
    })
}

#[cfg(test)]
mod tests;
