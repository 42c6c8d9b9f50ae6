use super::*;
use test_examples::lease;

fn record(pools: [Option<&str>; 2]) -> NodeRecord {
    let gpus = pools
        .iter()
        .zip(0..)
        .map(|(pool, index)| RecordedGpu {
            index: GpuIndex(index),
            uuid: format!("GPU-{index}"),
            minor: DeviceMinor(index),
            major: 195,
            pool: pool.map(str::to_owned),
            caps: vec![(3 + 135 * index, 137 + 135 * index)],
            further: Vec::new(),
            pci: None,
        })
        .collect();
    NodeRecord::new("n1", gpus, 234, vec![1, 2], 0).unwrap()
}

fn device(major: u32, minor: u32) -> DeviceRule {
    DeviceRule::Device(DeviceNumber { major, minor })
}

#[test]
fn a_job_without_a_slice_gets_few_rules() {
    let rules = record([Some("p"), Some("p")]).rules(&[]);
    assert_eq!(
        rules,
        [device(195, 0), device(195, 1), DeviceRule::Major(234)]
    );
}

/// Promise (isolation): channel devices of IMEX are closed to jobs that have no GPU of another pool.
/// With `two_users_side_by_side_reach_their_own_instance_and_nothing_else`.
#[test]
fn channels_of_imex_are_closed_to_all_that_have_no_other_gpu() {
    let with = |pools| {
        let mut record = record(pools);
        record.imex_major = 507;
        record
    };
    let (shared, mixed) = (with([Some("p"), Some("p")]), with([Some("p"), None]));
    let closed = |record: &NodeRecord, leases: &[Lease]| {
        record.rules(leases).contains(&DeviceRule::Major(507))
    };
    let leases = [lease(7)];
    assert!(closed(&shared, &[]) && closed(&shared, &leases) && closed(&mixed, &leases));
    assert!(!closed(&mixed, &[]));
    // A record from before channels were known.
    let mut old = serde_json::to_value(&shared).unwrap();
    old.as_object_mut().unwrap().remove("imex_major");
    let old: NodeRecord = serde_json::from_value(old).unwrap();
    assert_eq!(old.imex_major, 0);
}

#[test]
fn the_devices_of_a_lease_are_its_gpu_and_its_capabilities() {
    let lease = lease(7);
    let devices = record([Some("p"), Some("p")]).devices(&lease);
    let numbers: Vec<String> = devices.iter().map(DeviceNumber::to_string).collect();
    assert_eq!(numbers, ["195:0", "234:30", "234:31"]);
}

#[test]
fn the_capabilities_of_a_gpu_that_is_not_shared_stay_open() {
    let rules = record([Some("p"), None]).rules(&[]);
    assert_eq!(rules[0], device(195, 0));
    assert!(!rules.contains(&DeviceRule::Major(234)));
    assert!(rules.contains(&device(234, 1)) && rules.contains(&device(234, 137)));
    assert!(!rules.contains(&device(234, 138)));
    assert_eq!(rules.len(), 1 + 135 + 2);
}

#[test]
fn a_job_keeps_its_own_gpu_and_its_two_capabilities() {
    let lease = lease(7);
    let instance = lease.slice.instance().cloned().unwrap();
    let rules = record([Some("p"), Some("p")]).rules(std::slice::from_ref(&lease));
    assert_eq!(lease.slice.gpu_minor, DeviceMinor(0));
    assert_eq!(rules[0], device(195, 1));
    for own in [instance.gi_cap_minor, instance.ci_cap_minor] {
        assert!(!rules.contains(&device(234, own)));
    }
    assert_eq!(rules.len(), 1 + 2 * 135 + 2 - 2);
}

#[test]
fn a_job_keeps_the_capabilities_of_all_its_slices() {
    let (first, mut second) = (lease(7), lease(7));
    second.number = 1;
    if let Some(mig) = second.slice.mig_mut()
        && let Some(instance) = &mut mig.instance
    {
        (instance.gi_cap_minor, instance.ci_cap_minor) = (39, 40);
    }
    let rules = record([Some("p"), Some("p")]).rules(&[first, second]);
    for own in [30, 31, 39, 40] {
        assert!(!rules.contains(&device(234, own)), "{own}");
    }
    assert_eq!(rules.len(), 1 + 2 * 135 + 2 - 4);
}

/// The driver's numbers: GPU instance I has 3 + 135 * GPU + 9 * I, and its compute instances follow.
fn cap(gpu: u32, gi: u32, ci: Option<u32>) -> CapMinor {
    let minor = 3 + 135 * gpu + 9 * gi;
    CapMinor {
        gpu_minor: DeviceMinor(gpu),
        minor: ci.map_or(minor, |ci| minor + 1 + ci),
        opens: Some(match ci {
            Some(ci) => Opens::ComputeInstance(gi, ci),
            None => Opens::GpuInstance(gi),
        }),
    }
}

/// Promise (isolation): on control groups of version 1 each device has a rule, except a device that a closed capability
/// file already closes.
#[test]
fn each_capability_that_can_be_of_use_has_a_rule_and_all_are_closed_in_rows() {
    let whole = record([Some("p"), Some("p")]);
    let mut record = whole.clone();
    for (gpu, index) in record.gpus.iter_mut().zip(0..) {
        let of_instance = |gi| {
            let inside = (0..8).map(move |ci| cap(index, gi, Some(ci)));
            [cap(index, gi, None)].into_iter().chain(inside)
        };
        let caps: Vec<CapMinor> = (0..15).flat_map(of_instance).collect();
        let caps: Vec<&CapMinor> = caps.iter().collect();
        gpu.further = further(&caps);
    }
    let lease = lease(7);
    let leases = std::slice::from_ref(&lease);
    let own = lease.slice.instance().cloned().unwrap();
    assert_eq!((own.gi_cap_minor, own.ci_cap_minor), (30, 31));
    let (rules, behind): (Vec<DeviceRule>, Vec<DeviceRule>) = record
        .rules(leases)
        .into_iter()
        .partition(|rule| rule.is_alone());
    // With the other GPU, the general capabilities, and the further compute instances of the job's own GPU instance.
    assert_eq!(rules.len(), 1 + 2 * 2 * 15 + 2 + 7 - 2);
    for gi in 0..15 {
        for gpu in 0..2 {
            let is_own = (gpu, gi) == (0, 3);
            let closed = |ci| rules.contains(&device(234, cap(gpu, gi, ci).minor));
            assert_eq!(closed(None), !is_own, "{gpu} {gi}");
            assert_eq!(closed(Some(0)), !is_own, "{gpu} {gi}");
            assert!((1..8).all(|ci| closed(Some(ci)) == is_own), "{gpu} {gi}");
        }
    }
    let sorted = |mut rules: Vec<DeviceRule>| {
        rules.sort_by_key(DeviceRule::to_string);
        rules.iter().map(DeviceRule::to_string).collect::<Vec<_>>()
    };
    let all = whole.rules(leases);
    assert!(all.iter().all(|rule| rule.is_alone()));
    assert_eq!(sorted([rules, behind].concat()), sorted(all));
    // Capabilities whose names do not tell what they open are closed one by one.
    let unknown = CapMinor {
        opens: None,
        ..cap(0, 0, Some(1))
    };
    assert_eq!(further(&[&cap(0, 0, None), &unknown]), []);
}

#[test]
fn a_record_is_read_back_and_refused_after_a_reboot() {
    let keep = tempfile::tempdir().unwrap();
    let run = RootDir::open(&keep.path().canonicalize().unwrap()).unwrap();
    assert!(matches!(
        NodeRecord::read(run.path()),
        Err(RecordError::Absent { .. })
    ));
    let mut record = record([Some("p"), None]);
    record.write(&run).unwrap();
    assert_eq!(NodeRecord::read(run.path()).unwrap(), record);
    record.boot_id = "another".into();
    record.write(&run).unwrap();
    assert!(matches!(
        NodeRecord::read(run.path()),
        Err(RecordError::Stale { .. })
    ));
    assert_eq!(NodeRecord::read_any(run.path()).unwrap(), record);
    run.write(FILE, "{}", 0o644).unwrap();
    assert!(matches!(
        NodeRecord::read(run.path()),
        Err(RecordError::Text { .. })
    ));
}

#[test]
fn a_record_of_the_driver_holds_for_that_driver_only() {
    let keep = tempfile::tempdir().unwrap();
    let run = RootDir::open(&keep.path().canonicalize().unwrap()).unwrap();
    let geometry = Geometry::unsliced("H100");
    let memory = Some(MemoryMib(81559));
    let facts = |geometry: Option<&Geometry>| GpuFacts {
        geometry: geometry.cloned(),
        memory,
    };
    let old = record([Some("p"), None]);
    assert!(!old.has_facts());
    let known = old
        .clone()
        .with_facts("550", vec![facts(Some(&geometry)), facts(None)]);
    known.write(&run).unwrap();
    let known = NodeRecord::read(run.path()).unwrap();
    assert!(known.has_facts());
    let first = known.facts(GpuIndex(0), "550");
    assert_eq!((first.geometry, first.memory), (Some(&geometry), memory));
    assert_eq!(known.facts(GpuIndex(1), "550").geometry, None);
    // Another driver, a GPU that was not there, and a record of an earlier version.
    let nothing = GpuFacts::default();
    assert_eq!(known.facts(GpuIndex(0), "555"), nothing);
    assert_eq!(known.facts(GpuIndex(2), "550"), nothing);
    old.write(&run).unwrap();
    let old = NodeRecord::read(run.path()).unwrap();
    assert_eq!(old.facts(GpuIndex(0), "550"), nothing);
}

#[test]
fn equal_gpus_have_one_geometry() {
    let geometry = Some(Geometry::unsliced("H100"));
    let facts = GpuFacts {
        geometry,
        memory: None,
    };
    let known = record([Some("p"), None]).with_facts("550", vec![facts.clone(), facts]);
    let text = serde_json::to_string(&known).unwrap();
    assert_eq!(text.matches("H100").count(), 1);
}

#[test]
fn numbers_become_ranges() {
    assert_eq!(ranges(vec![5, 3, 4, 9, 4]), [(3, 5), (9, 9)]);
    assert_eq!(ranges(vec![]), []);
}
