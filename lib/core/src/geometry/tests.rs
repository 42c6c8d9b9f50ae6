//! The built-in tables.

use super::*;

#[test]
fn every_name_has_a_table_that_adds_up() {
    for name in Geometry::builtin_names() {
        let geometry = Geometry::builtin(name).unwrap();
        assert_eq!(geometry.model, *name);
        for profile in &geometry.profiles {
            let size = profile.memory_slices();
            assert!(size > 0, "{name} {}", profile.name);
            for placement in &profile.placements {
                assert_eq!(placement.size, size);
                assert!(placement.end() <= u32::from(geometry.memory_slices));
            }
            assert!(profile.max_instances as usize <= profile.placements.len());
            // The name's first figure is the number of compute slices.
            let slices: u8 = profile.name.split('g').next().unwrap().parse().unwrap();
            assert_eq!(slices, profile.compute_slices, "{name} {}", profile.name);
            // An instance holds at most its share of the nominal memory, and not much less.
            let full = geometry.profiles.iter().map(|p| p.memory.0).max().unwrap();
            let share = full * u64::from(size) / u64::from(geometry.memory_slices);
            let ratio = profile.memory.0 as f64 / share as f64;
            assert!(
                (0.89..1.02).contains(&ratio),
                "{name} {}: {ratio}",
                profile.name
            );
        }
        assert!(geometry.differences(&geometry).is_empty());
    }
    assert_eq!(Geometry::builtin("H100"), None);
}

#[test]
fn memory_is_what_the_tools_print() {
    let h100 = Geometry::builtin("H100-80").unwrap();
    let mib = |name: &str| {
        h100.profiles
            .iter()
            .find(|p| p.name == name)
            .unwrap()
            .memory
            .0
    };
    assert_eq!(mib("1g.10gb"), 9984);
    assert_eq!(mib("1g.20gb"), 20096);
    assert_eq!(mib("7g.80gb"), 81152);
    let a100 = Geometry::builtin("A100-40").unwrap();
    assert_eq!(a100.profile(19).unwrap().memory.0, 4864);
    assert_eq!(MemoryMib(20096).to_string(), "19.6 GiB");
    assert_eq!(MemoryMib(512).to_string(), "0.5 GiB");
}

#[test]
fn differences_name_what_differs() {
    let expected = Geometry::builtin("H100-80").unwrap();
    let mut real = expected.clone();
    // Differences that do not matter: the ECC setting, a newer driver's profile, the multiprocessors of the PCIe board.
    for profile in &mut real.profiles {
        profile.memory.0 = profile.memory.0 * 95 / 100;
        profile.multiprocessors -= 2;
        profile.placements.reverse();
    }
    real.profiles.retain(|profile| profile.is_plain());
    real.profiles.push(Profile {
        id: 77,
        ..expected.profiles[0].clone()
    });
    assert_eq!(expected.differences(&real), Vec::<String>::new());

    let a100 = Geometry::builtin("A100-40").unwrap();
    let differences = expected.differences(&a100);
    assert!(
        differences
            .iter()
            .any(|d| d == "profile 14 (2g.20gb): memory: expected 19.6 GiB, the GPU has 9.6 GiB"),
        "{differences:?}"
    );
    real.profiles.retain(|profile| profile.id != 14);
    real.profiles[0].placements.pop();
    real.profiles[0].max_instances = 6;
    real.compute_slices = 6;
    assert_eq!(
        expected.differences(&real),
        [
            "compute slices: expected 7, the GPU has 6",
            "profile 19 (1g.10gb): instances at most: expected 7, the GPU has 6",
            "profile 19 (1g.10gb): positions: expected {0:1,1:1,2:1,3:1,4:1,5:1,6:1}, the GPU has {1:1,2:1,3:1,4:1,5:1,6:1}",
            "profile 14 (2g.20gb): the GPU does not have it",
        ]
    );
}
