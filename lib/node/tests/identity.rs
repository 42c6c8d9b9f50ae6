//! Whose an instance is: one that was made again at the place of a lease, by another program, is not the lease's, even
//! with the same ids, profile, place and MIG UUID.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;
use std::io::Write;

use common::reuse::eventually;
use common::{Ended, Job, World, at_once, job, ready_with};
use gpufrac_core::lease::{Lease, LeaseState};
use nvidia_ml::disturb::{Rule, What, counted};

#[test]
fn child() {
    common::child();
}

const QUARTER: Job = Job {
    id: 7,
    uid: 1007,
    device: 0,
    units: 25,
    restarts: 0,
    tasks: 0,
    burst: 0,
    gpus: 0,
};

/// How the driver marks new instances: the UUIDs are random, the module's parameter forbids changes of files.
const DRIVERS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

fn ready(random: bool, more: &str) -> World {
    let world = ready_with(&["H100-80"], more);
    world.on_node(|node| node.manners.random_uuids = random);
    world
}

/// The GPU is reset, and an admin makes an instance of this profile at the place of the lease; `closed`: with
/// `NVreg_ModifyDeviceFiles=0`. Returns its id.
fn reset_and_made_again(world: &World, lease: &Lease, profile: u32, closed: bool) -> u32 {
    world.on_gpu(nvidia_ml::node::Gpu::reset);
    let place = lease.slice.mig().unwrap().placement;
    let whole = if profile == 14 { 1 } else { 0 };
    let id = world.foreign(profile, place.start.into(), place.size.into(), Some(whole));
    let ours = lease.slice.instance().unwrap();
    assert_eq!(id, ours.gi_id, "the id is used again");
    if closed {
        let folder = format!("gpus/proc/driver/nvidia/capabilities/gpu0/mig/gi{id}");
        let folder = world.root().join(folder);
        for entry in [folder.join("access"), folder.join("ci0/access")] {
            let mut entry = fs::OpenOptions::new().append(true).open(entry).unwrap();
            writeln!(entry, "DeviceFileModify: 0").unwrap();
        }
    }
    id
}

fn uuid_of(world: &World, id: u32) -> String {
    world.sim.node().unwrap().gpus[0]
        .instance(id)
        .unwrap()
        .compute[0]
        .uuid
        .clone()
}

#[test]
fn an_instance_that_was_made_again_is_not_that_of_a_job_that_ends() {
    at_once(DRIVERS, |(random, closed)| {
        let world = ready(random, "");
        world.prolog(QUARTER).ok();
        let lease = world.lease(QUARTER).unwrap();
        let foreign = reset_and_made_again(&world, &lease, 14, closed);
        let same = uuid_of(&world, foreign) == lease.slice.instance().unwrap().mig_uuid;
        assert_eq!(same, !random, "the UUID is used again");
        let ended = world.epilog(QUARTER).ok();
        ended.says("another stands in its place");
        assert!(world.leases().is_empty());
        world.check(&[foreign]);
    });
}

#[test]
fn an_instance_of_another_profile_at_the_place_is_not_the_leases() {
    let world = ready(false, "");
    world.prolog(QUARTER).ok();
    let lease = world.lease(QUARTER).unwrap();
    // 1g.20gb has as much memory as 2g.20gb, so it has the same place and id.
    let foreign = reset_and_made_again(&world, &lease, 15, false);
    world
        .epilog(QUARTER)
        .ok()
        .says("another stands in its place");
    world.check(&[foreign]);
}

#[test]
fn an_instance_that_was_made_again_is_not_given_to_a_job() {
    at_once(DRIVERS, |(random, closed)| {
        // The prolog runs again for a job whose instance is gone.
        let world = ready(random, "");
        world.prolog(QUARTER).ok();
        let lease = world.lease(QUARTER).unwrap();
        let foreign = reset_and_made_again(&world, &lease, 14, closed);
        world.prolog(QUARTER).ok().says("an earlier run of the job");
        world.check(&[foreign]);
        let now = world.lease(QUARTER).unwrap();
        assert_ne!(now.slice.instance().unwrap().gi_id, foreign);
        // A kept instance is gone, and another one stands at its place.
        let world = ready(random, "reuse = \"1h\"");
        world.prolog(QUARTER).ok();
        world.epilog(QUARTER).ok();
        let kept = world.lease(QUARTER).unwrap();
        assert_eq!(kept.state, LeaseState::Kept);
        let foreign = reset_and_made_again(&world, &kept, 14, closed);
        let next = Job { id: 8, ..QUARTER };
        world.prolog(next).ok();
        world.check(&[foreign]);
        world.epilog(next).ok();
        world.check(&[foreign]);
    });
}

/// A compute instance that an admin made in the instance of a job is not destroyed with the job's lease.
#[test]
fn a_compute_instance_that_was_made_again_stays() {
    let world = ready(false, "");
    let eighth = job(7, 0, 13);
    world.prolog(eighth).ok();
    let gi_id = world.lease(eighth).unwrap().slice.instance().unwrap().gi_id;
    // Two changes, because one would leave the driver's files as they are.
    world.on_gpu(|gpu| gpu.instances[0].compute.clear());
    let change = |node: &mut nvidia_ml::node::Node| {
        node.create_compute_instance(0, gi_id, 0, None).map(drop)
    };
    world.sim.update(change).unwrap();
    world
        .epilog(eighth)
        .ok()
        .says("another stands in its place");
    world.check(&[gi_id]);
}

const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";

/// Codes that do not exclude that the driver made the instance.
const FAILURES: [u32; 3] = [2, 19, 999];

/// An admin makes an instance at the place of a lease that is written, before the prolog's own call fails.
#[test]
fn an_instance_that_appears_before_a_failed_creation_stays() {
    let cases = FAILURES.map(|code| [(code, true), (code, false)]);
    at_once(cases.concat(), |(code, complete)| {
        let world = World::with(&["H100-80"], "uniform", true);
        let keys = "menu = [\"1/2\"]\nwhole = \"bare\"";
        world.configure("uniform", "H100-80", keys);
        world.setup().ok();
        let half = job(7, 0, 50);
        world.slurm_knows(half);
        world.disturb(|d| {
            let rule = |call: &str, what| Rule {
                call: Some(call.into()),
                gpu: None,
                first: 0,
                count: 0,
                what,
            };
            // Between the lease and the creation the prolog asks for the mode.
            let slow = rule("nvmlDeviceGetMigMode", What::Delay(700));
            d.rules = vec![slow, rule(CREATE, What::Fail(code))];
        });
        let prolog = world.start("prolog", Some(half));
        eventually("a lease", || world.lease(half).is_some());
        let place = world.lease(half).unwrap().slice.mig().unwrap().clone();
        let (start, size) = (place.placement.start.into(), place.placement.size.into());
        let foreign = world.foreign(place.profile_id, start, size, None);
        if complete {
            let change = |node: &mut nvidia_ml::node::Node| {
                let gpu = &node.gpus[0];
                let profiles = gpu.compute_profiles(gpu.instance(foreign).unwrap())?;
                let whole = profiles.last().unwrap().id;
                node.create_compute_instance(0, foreign, whole, None)
                    .map(drop)
            };
            world.sim.update(change).unwrap();
        }
        eventually("the call", || {
            counted(&world.sim.counters().unwrap(), Some(CREATE)) > 0
        });
        world.calm();
        Ended::of(prolog.wait_with_output().unwrap());
        world.epilog(half).ok();
        world.check(&[foreign]);
    });
}
