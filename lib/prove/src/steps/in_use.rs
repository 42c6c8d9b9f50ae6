//! What keeps an instance from its end: handles in another session, and monitoring.

use std::fs;

use crate::driver::{Stop, named, said};
use crate::steps::times::{session, target};
use crate::work::Work;

/// Programs of NVIDIA that may hold GPUs, by the name that a process gives itself (15 bytes at most).
const HOLDERS: [&str; 6] = [
    "nv-hostengine",
    "dcgm-exporter",
    "nvidia-persiste",
    "nv-fabricmanage",
    "nvidia-smi",
    "nvsm_core",
];

/// Those of them that run.
pub fn holders() -> Vec<&'static str> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    let names: Vec<String> = names.map(|name| name.trim().to_owned()).collect();
    let runs = |known: &&str| names.iter().any(|name| name == known);
    HOLDERS.into_iter().filter(runs).collect()
}

pub fn in_use(work: &Work<'_, '_>) -> Result<(), Stop> {
    let mut other = session(work)?;
    let Some(made) = work.make_smallest()? else {
        return Ok(());
    };
    let Some(compute) = made.compute.clone() else {
        return work.remove(&made);
    };
    other.hold(&target(work, &made))?;
    let done = work.destroy_compute(&made, compute.ci)?;
    let question = "an instance ends while another session has handles of it";
    work.check(question, "compute instance", "success (0)", said(&done));
    if done.is_ok() {
        let done = work.destroy_bare(&made)?;
        work.check(question, "GPU instance", "success (0)", said(&done));
    }
    drop(other);
    if !work.standing().is_empty() {
        work.remove(&made)?;
    }
    let running = holders();
    let question = "an instance ends while DCGM runs";
    let dcgm = running.iter().find(|name| **name == "nv-hostengine");
    let Some(dcgm) = dcgm else {
        work.not_measured(question, "DCGM does not run here");
        return work.only_own();
    };
    for _ in 0..work.pace.repeats {
        let Some(made) = work.make_smallest()? else {
            break;
        };
        let compute = made.compute.clone();
        let done = match compute {
            Some(compute) => work.destroy_compute(&made, compute.ci)?,
            None => Ok(()),
        };
        work.check(
            question,
            dcgm,
            "success (0)",
            done.map_or_else(named, |()| named(0)),
        );
        work.remove(&made)?;
    }
    work.only_own()
}
