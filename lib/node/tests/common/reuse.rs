//! Jobs that follow each other in a pool with `reuse`.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Job, World, job};

pub const KEEPS: &str = "reuse = \"1h\"";

/// Two GPUs in a pool with this `reuse`.
pub fn ready(reuse: &str) -> World {
    super::ready_with(&["H100-80", "H100-80"], reuse)
}

/// A quarter on the first half, for a user.
pub fn job_of(id: u32, uid: u32) -> Job {
    Job {
        uid,
        ..job(id, 0, 25)
    }
}

/// The instance of a job's lease, in any state ([`World::serial`]).
pub fn instance(world: &World, job: Job) -> u64 {
    world.serial(&world.lease(job).unwrap())
}

/// Runs a job; returns its instance.
pub fn run(world: &World, job: Job) -> u64 {
    world.prolog(job).ok();
    world.check(&[]);
    let instance = instance(world, job);
    world.epilog(job).ok();
    world.check(&[]);
    instance
}

/// Waits for a condition that becomes true within moments.
pub fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(60), "never {what}");
        sleep(Duration::from_millis(2));
    }
}
