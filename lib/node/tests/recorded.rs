//! Prolog, epilog and node-setup on the recorded answers of drivers: the files of `gpufrac prove` in docs/measured.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;
use std::path::Path;

use common::{Job, World, job};
use nvidia_ml::disturb::Disturbances;
use nvidia_ml::recorded::File;
use test_seed::Dice;

#[test]
fn child() {
    common::child();
}

/// Jobs of random sizes come and go on both halves, as Slurm's count admits them.
fn jobs_come_and_go(world: &World, dice: &mut Dice) {
    let mut running: Vec<Job> = Vec::new();
    for id in 1..40 {
        let device = u32::try_from(dice.below(2)).unwrap();
        let units = [13, 25, 50][dice.below(3)];
        let taken: u32 = running
            .iter()
            .filter(|job| job.device == device)
            .map(|job| job.units)
            .sum();
        if taken + units <= 50 {
            let next = job(id, device, units);
            world.slurm_knows(next);
            world.prolog(next).ok();
            assert!(world.lease(next).is_some(), "{id}");
            running.push(next);
        } else {
            let ended = running.swap_remove(dice.below(running.len()));
            world.epilog(ended).ok();
        }
        world.check(&[]);
    }
    for ended in running {
        world.epilog(ended).ok();
    }
    world.check(&[]);
    assert!(world.leases().is_empty());
}

/// Promise (never): the files of `gpufrac prove` in docs/measured are drivers on which jobs of all sizes come and go.
#[test]
fn every_recorded_driver_serves_jobs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measured");
    let mut played = 0;
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.path().extension().is_none_or(|end| end != "json") {
            continue;
        }
        let text = fs::read_to_string(entry.path()).unwrap();
        let file = File::parse(&text).unwrap_or_else(|| panic!("{}", entry.path().display()));
        // A model without MIG, or one that gpufrac does not know, has no layout of halves.
        let Some(model) = &file.head.model else {
            continue;
        };
        let world = World::with(&[model], "halves", true);
        gpusim::admin::be_like(&world.sim, &file).unwrap();
        // The order of events is what matters here, not the driver's times.
        let hurry = |all: &mut Disturbances| {
            if let Some(latencies) = &mut all.latencies {
                latencies.percent = 1;
            }
        };
        world.sim.disturb(hurry).unwrap();
        world.setup().ok();
        jobs_come_and_go(&world, &mut Dice::new(test_seed::seed()));
        played += 1;
    }
    assert!(played > 0);
}
