//! A GPU's part of the file, from its pool and its leases.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::collections::HashSet;

use gpufrac_core::config::Config;
use gpufrac_core::fraction::{Fraction, Units};
use gpufrac_core::ids::GpuIndex;
use gpufrac_core::layout::Side;
use gpufrac_core::lease::{Held, Lease, LeaseState};
use gpufrac_view::{GpuStatus, NodeStatus, Place, Seen, Stuck, stuck};

/// The GPU 0 of a node with one pool.
fn gpu(pool: &str, leases: &[Lease], seen: Seen) -> GpuStatus {
    let text = format!("version = 1\n[pool.p]\n{pool}\npartitions = [\"gpu\"]\nnodes = \"n1\"\n");
    let config = Config::parse(&text, "gpufrac.toml").unwrap();
    let devices = config.devices_of_node("n1", 1);
    let leases: Vec<&Lease> = leases.iter().collect();
    GpuStatus::of(&devices[0], "GPU-0", &leases, seen)
}

/// `fraction:jobs` for each size.
fn room(gpu: &GpuStatus) -> String {
    let rooms = gpu.room.iter();
    let rooms = rooms.map(|room| format!("{}:{}", room.fraction, room.jobs));
    rooms.collect::<Vec<_>>().join(" ")
}

const HALVES: &str = "mechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"";
const SLICES: &str = "mechanism = \"mig\"\nlayout = \"slices\"\ngpu = \"A100-40\"";
const UNIFORM: &str = "mechanism = \"mig\"\nlayout = \"uniform\"\nmenu = [\"1/4\"]\nwhole = \"bare\"\ngpu = \"H100-80\"";
const MPS: &str = "mechanism = \"mps\"\ntenancy = \"shared\"\ngpu = \"L40S-48\"";
const MIG_MPS: &str = "mechanism = \"mig+mps\"\ngpu = \"H100-80\"\nmenu = [\"1/2\", \"1/4\"]";

#[test]
fn an_empty_gpu_has_room_for_its_whole_menu() {
    let empty = |pool| room(&gpu(pool, &[], Seen::default()));
    assert_eq!(empty(HALVES), "0.5:2 0.25:4 0.125:6");
    assert_eq!(empty(SLICES), "0.143:7");
    assert_eq!(empty(UNIFORM), "1:1 0.25:4");
    assert_eq!(empty(MIG_MPS), "0.5:2 0.25:4");
}

#[test]
fn room_is_what_slurm_still_counts() {
    // A quarter on the left half.
    let quarter = test_examples::lease(12);
    let used = |pool| room(&gpu(pool, std::slice::from_ref(&quarter), Seen::default()));
    assert_eq!(used(HALVES), "0.5:1 0.25:3 0.125:4");
    let mut whole = quarter.clone();
    (whole.slice.side, whole.units) = (Side::Whole, Units(25));
    // A device of which a part is taken is not given whole, and one that is given whole has no parts.
    assert_eq!(
        room(&gpu(UNIFORM, &[whole.clone()], Seen::default())),
        "1:0 0.25:3"
    );
    whole.whole_device = true;
    whole.slice.held = Held::Bare;
    let bare = gpu(
        UNIFORM,
        &[whole],
        Seen {
            mig: Some(false),
            ..Seen::default()
        },
    );
    assert_eq!(room(&bare), "1:0 0.25:0");
    assert_eq!(bare.mig, Some(false));
    assert_eq!(bare.slices[0].place, Some(Place { start: 0, size: 8 }));
    let mut kept = quarter;
    kept.state = LeaseState::Kept;
    assert_eq!(
        room(&gpu(HALVES, &[kept], Seen::default())),
        "0.5:2 0.25:4 0.125:6"
    );
}

#[test]
fn a_pool_of_every_percent_names_the_largest_part_that_is_free() {
    let mut share = test_examples::lease(12);
    share.slice.side = Side::Whole;
    share.slice.held = Held::Timeslice;
    (share.units, share.fraction) = (Units(37), Fraction::new(37, 100).unwrap());
    let gpu = gpu(MPS, &[share], Seen::default());
    assert_eq!(room(&gpu), "1:0 0.75:0 0.63:1 0.5:1 0.25:2 0.1:6 0.03:21");
    assert_eq!(
        (gpu.memory_slices, gpu.mig, gpu.slices[0].place),
        (0, None, None)
    );
}

#[test]
fn an_instance_without_a_lease_takes_places() {
    let seen = |start, size| Seen {
        unleased: vec![Place { start, size }],
        ..Seen::default()
    };
    assert_eq!(room(&gpu(HALVES, &[], seen(6, 1))), "0.5:1 0.25:3 0.125:5");
    assert_eq!(room(&gpu(HALVES, &[], seen(0, 8))), "0.5:0 0.25:0 0.125:0");
    assert_eq!(room(&gpu(MIG_MPS, &[], seen(0, 1))), "0.5:1 0.25:2");
}

#[test]
fn a_gpu_with_a_fault_has_no_room() {
    let seen = Seen {
        fault: Some("it fell off the bus".to_owned()),
        ..Seen::default()
    };
    assert_eq!(room(&gpu(HALVES, &[], seen)), "0.5:0 0.25:0 0.125:0");
}

#[test]
fn a_device_or_a_node_that_is_stuck_has_no_room() {
    let text = format!("version = 1\n[pool.p]\n{HALVES}\npartitions = [\"gpu\"]\nnodes = \"n1\"\n");
    let config = Config::parse(&text, "gpufrac.toml").unwrap();
    let devices = config.devices_of_node("n1", 2);
    let left_of_1 = devices[2].index;
    let room = |gpu: u32, places: &[Stuck]| {
        let device = &devices[2 * gpu as usize];
        let seen = Seen {
            lost: stuck::lost(places, GpuIndex(gpu), &devices),
            ..Seen::default()
        };
        room(&GpuStatus::of(device, "GPU-0", &[], seen))
    };
    // A slice that cannot be removed has a lease, which counts.
    let slice = test_examples::stuck();
    assert_eq!(room(1, std::slice::from_ref(&slice)), room(1, &[]));
    let half = Stuck {
        gpu: Some(GpuIndex(1)),
        device: Some(left_of_1),
        ..slice.clone()
    };
    assert_eq!(room(0, std::slice::from_ref(&half)), room(0, &[]));
    assert_eq!(room(1, &[half]), "0.5:1 0.25:2 0.125:3");
    let node = Stuck { gpu: None, ..slice };
    assert_eq!(room(0, &[node]), "0.5:0 0.25:0 0.125:0");
}

#[test]
fn a_stuck_place_is_one_line_on_which_nothing_moves_the_cursor() {
    let mut place = test_examples::stuck();
    let now = place.since + 780;
    assert_eq!(
        place.text(now),
        "GPU 0 1g.10gb at 3:1 is stuck for 13m: in use (19); DCGM's daemon (nv-hostengine, pid 812) runs"
    );
    place.cause = Some("\u{1b}[2J\n".to_owned());
    assert!(place.text(now).ends_with("13m: ?[2J?"));
    place.cause = None;
    assert!(place.text(now).ends_with("13m: root can see why"));
}

#[test]
fn made_up_nodes_are_whole_and_repeatable() {
    let nodes = test_examples::nodes(40, 7);
    assert_eq!(nodes, test_examples::nodes(40, 7));
    assert_ne!(nodes, test_examples::nodes(40, 8));
    let mut jobs = HashSet::new();
    for gpu in nodes.iter().flat_map(|node| &node.gpus) {
        let mut end = 0;
        for slice in &gpu.slices {
            let owner = slice.owner.as_ref().unwrap();
            assert!(jobs.insert(owner.job), "{owner:?}");
            if let Some(place) = slice.place.filter(|_| gpu.mechanism == "mig") {
                assert!(place.start >= end, "{gpu:?}");
                end = place.start + place.size;
            }
        }
        assert!(end <= gpu.memory_slices);
    }
    assert!(jobs.len() > 200, "{}", jobs.len());
    for node in &nodes {
        let text = serde_json::to_string(node).unwrap();
        assert_eq!(*node, NodeStatus::parse(&text).unwrap());
    }
    let stale = |node: &&NodeStatus| node.is_stale(test_examples::NOW);
    assert_eq!(nodes.iter().filter(stale).count(), 2);
}

#[test]
fn another_version_and_another_text_are_refused() {
    let mut node = test_examples::nodes(1, 1).remove(0);
    node.version = 2;
    let text = serde_json::to_string(&node).unwrap();
    let why = NodeStatus::parse(&text).unwrap_err().to_string();
    assert_eq!(why, "it is of version 2, and this gpufrac reads version 1");
    let of_later_build = text.replacen("\"version\":2", "\"version\":1,\"later\":{}", 1);
    assert!(NodeStatus::parse(&of_later_build).is_ok());
    for text in ["", "{}", "[]", "{\"version\":1}", "\u{0}"] {
        let why = NodeStatus::parse(text).unwrap_err().to_string();
        assert!(why.starts_with("it does not describe a node: "), "{why}");
    }
}

#[test]
fn a_file_is_stale_after_three_intervals() {
    let mut node = test_examples::nodes(1, 1).remove(0);
    (node.written, node.interval) = (1_000, 10);
    assert!(!node.is_stale(0) && !node.is_stale(1_030) && node.is_stale(1_031));
}
