//! The rules of MIG, checked in every reachable state.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::{BTreeSet, HashSet};

use nvidia_ml::code::Code;
use nvidia_ml::geometry::{Geometry, GpuProfile};
use nvidia_ml::model::{MODELS, Model};
use nvidia_ml::node::Node;

fn node(model: &str) -> Node {
    Node::new("570.172.08", &[Model::find(model).unwrap()], true)
}

/// Whether these instances may exist together, computed from bit masks and NVIDIA's stated limits, independently of
/// the simulator.
fn allowed(geometry: &Geometry, set: &[(&GpuProfile, u32)]) -> bool {
    let mut slices = 0u32;
    for (profile, start) in set {
        let mask = ((1u32 << profile.size) - 1) << start;
        if slices & mask != 0 {
            return false;
        }
        slices |= mask;
    }
    let compute: u32 = set.iter().map(|(profile, _)| profile.slices).sum();
    let count = |wanted: &dyn Fn(&GpuProfile) -> bool| {
        set.iter().filter(|(profile, _)| wanted(profile)).count() as u32
    };
    let with_me = count(&|profile| profile.name.ends_with("+me"));
    let all_me = count(&|profile| profile.name.ends_with("+me.all"));
    let no_me = count(&|profile| profile.name.ends_with("-me"));
    compute <= geometry.compute_slices
        && set
            .iter()
            .all(|(one, _)| count(&|other| other.id == one.id) <= one.max)
        && with_me <= 1
        && (all_me == 0 || all_me + no_me == set.len() as u32)
        && all_me <= 1
}

#[test]
fn every_reachable_state_is_allowed_and_every_allowed_one_is_reached() {
    for model in &MODELS {
        let Some(geometry) = model.geometry() else {
            continue;
        };
        let all: Vec<(&GpuProfile, u32)> = geometry
            .profiles
            .iter()
            .flat_map(|profile| profile.starts.iter().map(move |&start| (profile, start)))
            .collect();
        let mut seen: HashSet<BTreeSet<(u32, u32)>> = HashSet::new();
        let mut open = vec![node(model.name)];
        seen.insert(BTreeSet::new());
        while let Some(state) = open.pop() {
            let here: Vec<(&GpuProfile, u32)> = state.gpus[0]
                .instances
                .iter()
                .map(|gi| (geometry.profile(gi.profile).unwrap(), gi.start))
                .collect();
            let ids: BTreeSet<u32> = state.gpus[0].instances.iter().map(|gi| gi.id).collect();
            assert_eq!(ids.len(), here.len(), "{}: an id twice", model.name);
            assert!(ids.iter().all(|id| *id < 15), "{}: {ids:?}", model.name);
            for (profile, start) in &all {
                let mut with: Vec<_> = here.clone();
                with.push((profile, *start));
                let mut next = state.clone();
                let made = next
                    .create_gpu_instance(0, profile.id, Some((*start, profile.size)))
                    .map(|_| ());
                let expected = if allowed(geometry, &with) {
                    Ok(())
                } else {
                    Err(Code::INSUFFICIENT_RESOURCES)
                };
                let names: Vec<_> = here.iter().map(|(p, s)| (p.name, s)).collect();
                assert_eq!(
                    made, expected,
                    "{}: {} at {start} to {names:?}",
                    model.name, profile.name
                );
                if made.is_ok() {
                    let set = with.iter().map(|(p, s)| (p.id, *s)).collect();
                    if seen.insert(set) {
                        open.push(next);
                    }
                }
            }
        }
        println!("{}: {} states", model.name, seen.len());
        assert!(seen.len() > 10);
    }
}

#[test]
fn capacity_tells_how_many_more_can_be_created() {
    for model in ["A30-24", "A100-40", "RTX-PRO-6000-96"] {
        let mut node = node(model);
        let geometry = node.gpus[0].model().geometry().unwrap();
        for first in &geometry.profiles {
            node.gpus[0].reset();
            node.create_gpu_instance(0, first.id, None).unwrap();
            for profile in &geometry.profiles {
                let told = node.gpus[0].remaining_capacity(geometry, profile);
                let mut trial = node.clone();
                let mut made = 0;
                while trial.create_gpu_instance(0, profile.id, None).is_ok() {
                    made += 1;
                }
                assert_eq!(told, made, "{model}: {} after {}", profile.name, first.name);
            }
        }
    }
}

#[test]
fn tables_are_what_they_should_be() {
    for model in &MODELS {
        let Some(geometry) = model.geometry() else {
            assert!(["L40S-48", "T4-16"].contains(&model.name));
            continue;
        };
        let ids: BTreeSet<u32> = geometry.profiles.iter().map(|profile| profile.id).collect();
        let kinds: BTreeSet<u32> = geometry
            .profiles
            .iter()
            .map(|profile| profile.kind)
            .collect();
        assert_eq!(ids.len(), geometry.profiles.len());
        assert_eq!(kinds.len(), geometry.profiles.len());
        for profile in &geometry.profiles {
            let name = (model.name, profile.name);
            assert!(
                profile
                    .starts
                    .iter()
                    .all(|start| start + profile.size <= geometry.memory_slices),
                "{name:?}"
            );
            assert!(profile.max as usize <= profile.starts.len(), "{name:?}");
            assert!(profile.multiprocessors <= model.multiprocessors, "{name:?}");
            assert!(profile.memory_mib < model.memory_mib, "{name:?}");
            assert!(
                profile.name.starts_with(&format!("{}g.", profile.slices)),
                "{name:?}"
            );
            // The nominal size in the name, in GB, is close to the memory.
            let nominal: f64 = profile
                .name
                .split(['.', 'g'])
                .nth(2)
                .and_then(|digits| digits.parse().ok())
                .unwrap();
            let gib = profile.memory_mib as f64 / 1024.0;
            assert!(
                (gib / nominal - 0.96).abs() < 0.11,
                "{name:?}: {gib} of {nominal}"
            );
            let compute = geometry.compute_profiles(profile);
            let full = compute.last().unwrap();
            assert_eq!(
                (full.slices, full.max, full.starts.as_slice()),
                (profile.slices, 1, &[0][..]),
                "{name:?}"
            );
        }
    }
}

#[test]
fn the_order_of_creation_matters_to_the_driver() {
    // Documented for A100: with small instances first there is no room for the large one.
    let mut small_first = node("A100-40");
    for profile in [19, 19, 14] {
        small_first.create_gpu_instance(0, profile, None).unwrap();
    }
    assert_eq!(
        small_first.create_gpu_instance(0, 9, None).map(|_| ()),
        Err(Code::INSUFFICIENT_RESOURCES)
    );
    let mut large_first = node("A100-40");
    for profile in [9, 14, 19, 19] {
        large_first.create_gpu_instance(0, profile, None).unwrap();
    }
}

#[test]
fn ids_come_from_the_ranges_that_were_observed() {
    let mut node = node("H100-80");
    let make = |node: &mut Node, profile| {
        let id = node.create_gpu_instance(0, profile, None).unwrap().id;
        (profile, id)
    };
    assert_eq!(make(&mut node, 9), (9, 2));
    assert_eq!(make(&mut node, 9), (9, 1));
    node.gpus[0].reset();
    assert_eq!(make(&mut node, 0), (0, 0));
    node.gpus[0].reset();
    for expected in 3..=5 {
        assert_eq!(make(&mut node, 14), (14, expected));
    }
    node.gpus[0].reset();
    let ids: BTreeSet<u32> = (0..7).map(|_| make(&mut node, 19).1).collect();
    assert_eq!(ids, (7..=13).collect());
}

#[test]
fn the_halves_are_swapped_on_some_gpus() {
    let model = Model::find("A100-40").unwrap();
    let mut node = Node::new("570.172.08", &[model, model], true);
    // NVIDIA/DCGM issue 138: profile, start and size; the id on one GPU and on the other.
    for (profile, start, size, ids) in [
        (19, 2, 1, [9, 13]),
        (19, 3, 1, [10, 14]),
        (14, 0, 2, [3, 5]),
        (9, 4, 4, [2, 1]),
    ] {
        let place = Some((start, size));
        let made = [0, 1].map(|gpu| node.create_gpu_instance(gpu, profile, place).unwrap().id);
        assert_eq!(made, ids, "{profile} at {start}");
    }
}

#[test]
fn uuids_tell_the_place_unless_they_are_random() {
    let mut node = node("A30-24");
    let mut make = |random, start| {
        node.manners.random_uuids = random;
        let place = Some((start, 2));
        let gi = node.create_gpu_instance(0, 5, place).unwrap().id;
        let ci = node
            .create_compute_instance(0, gi, 1, None)
            .unwrap()
            .clone();
        node.gpus[0]
            .destroy_compute_instance(gi, ci.id, false)
            .unwrap();
        node.gpus[0].destroy_gpu_instance(gi, false).unwrap();
        (gi, ci.id, ci.uuid, ci.serial)
    };
    let (first, second) = (make(false, 2), make(false, 2));
    assert_eq!((first.0, first.1), (second.0, second.1));
    assert_eq!(first.2, second.2);
    assert!(first.3 < second.3);
    // "MIG-", and the version at the begin of the third group.
    assert_eq!(&first.2[18..19], "5");
    let elsewhere = make(false, 0);
    assert_ne!(elsewhere.2, first.2);
    let (third, fourth) = (make(true, 2), make(true, 2));
    assert_eq!(third.0, fourth.0);
    assert_ne!(third.2, fourth.2);
}

#[test]
fn bad_arguments_are_told_from_lack_of_room() {
    let mut node = node("H100-80");
    let refused = |node: &mut Node, profile, placement| {
        node.create_gpu_instance(0, profile, placement)
            .map(|gi| gi.id)
            .unwrap_err()
    };
    assert_eq!(refused(&mut node, 1, None), Code::INVALID_ARGUMENT);
    assert_eq!(refused(&mut node, 9, Some((2, 4))), Code::INVALID_ARGUMENT);
    assert_eq!(refused(&mut node, 9, Some((0, 3))), Code::INVALID_ARGUMENT);
    assert_eq!(refused(&mut node, 19, Some((7, 1))), Code::INVALID_ARGUMENT);
    node.create_gpu_instance(0, 9, Some((0, 4))).unwrap();
    assert_eq!(
        refused(&mut node, 5, Some((0, 4))),
        Code::INSUFFICIENT_RESOURCES
    );
    node.gpus[0].mig = false;
    assert_eq!(refused(&mut node, 19, None), Code::NOT_SUPPORTED);
}

#[test]
fn compute_instances_share_a_gpu_instance() {
    let mut node = node("A100-40");
    let gi = node.create_gpu_instance(0, 9, None).unwrap().id;
    let two = node
        .create_compute_instance(0, gi, 1, None)
        .unwrap()
        .clone();
    assert_eq!((two.id, two.start, two.size), (0, 0, 2));
    let one = node
        .create_compute_instance(0, gi, 0, None)
        .unwrap()
        .clone();
    assert_eq!((one.id, one.start, one.size), (1, 2, 1));
    let refused = node.create_compute_instance(0, gi, 0, None).map(|_| ());
    assert_eq!(refused, Err(Code::INSUFFICIENT_RESOURCES));
    let gpu = &mut node.gpus[0];
    assert_eq!(gpu.destroy_gpu_instance(gi, false), Err(Code::IN_USE));
    assert_eq!(gpu.destroy_compute_instance(gi, 0, true), Err(Code::IN_USE));
    gpu.destroy_compute_instance(gi, 0, false).unwrap();
    assert_eq!(
        gpu.destroy_compute_instance(gi, 0, false),
        Err(Code::NOT_FOUND)
    );
    gpu.destroy_compute_instance(gi, 1, false).unwrap();
    assert_eq!(gpu.destroy_gpu_instance(gi, true), Err(Code::IN_USE));
    gpu.destroy_gpu_instance(gi, false).unwrap();
    assert_eq!(gpu.destroy_gpu_instance(gi, false), Err(Code::NOT_FOUND));
}

#[test]
fn the_mode_is_switched_as_the_architecture_has_it() {
    let mode = |node: &Node| (node.gpus[0].mig, node.gpus[0].mig_pending);
    let mut ampere = node("A100-40");
    assert_eq!(
        ampere.gpus[0].set_mig_mode(false, false),
        Ok(Err(Code::RESET_REQUIRED))
    );
    assert_eq!(mode(&ampere), (true, false));
    ampere.gpus[0].reset();
    assert_eq!(mode(&ampere), (false, false));
    assert_eq!(
        ampere.gpus[0].set_mig_mode(true, false),
        Ok(Err(Code::RESET_REQUIRED))
    );
    ampere.reboot();
    assert_eq!(mode(&ampere), (true, true), "Ampere keeps it over a reboot");

    let mut hopper = node("H100-80");
    assert_eq!(
        hopper.gpus[0].set_mig_mode(false, true),
        Ok(Err(Code::IN_USE))
    );
    assert_eq!(hopper.gpus[0].set_mig_mode(false, false), Ok(Ok(())));
    assert_eq!(hopper.gpus[0].set_mig_mode(true, false), Ok(Ok(())));
    hopper.create_gpu_instance(0, 0, None).unwrap();
    hopper.reboot();
    assert_eq!(mode(&hopper), (false, false), "Hopper forgets it");
    assert!(hopper.gpus[0].instances.is_empty());

    let mut none = Node::new("570", &[Model::find("L40S-48").unwrap()], true);
    assert_eq!(
        none.gpus[0].set_mig_mode(true, false),
        Err(Code::NOT_SUPPORTED)
    );
}
