//! The simulator's tables against gpufrac's own: two readings of the same sources.

use gpufrac_core::geometry::Geometry;
use nvidia_ml::model::Model;

#[test]
fn both_read_the_sources_alike() {
    assert!(Geometry::builtin_names().len() >= 9);
    for name in Geometry::builtin_names() {
        let ours = Geometry::builtin(name).unwrap();
        let model = Model::find(name).unwrap_or_else(|| panic!("{name} is not simulated"));
        let theirs = model.geometry().unwrap();
        assert_eq!(
            u32::from(ours.memory_slices),
            theirs.memory_slices,
            "{name}"
        );
        assert_eq!(
            u32::from(ours.compute_slices),
            theirs.compute_slices,
            "{name}"
        );
        assert_eq!(ours.profiles.len(), theirs.profiles.len(), "{name}");
        for profile in &ours.profiles {
            let other = theirs.profile(profile.id);
            let other =
                other.unwrap_or_else(|| panic!("{name}: {} is not simulated", profile.name));
            let which = format!("{name} {}", profile.name);
            let mut starts: Vec<u32> = profile.placements.iter().map(|p| p.start.into()).collect();
            starts.sort_unstable();
            assert_eq!(profile.slice_enum, other.kind, "{which}");
            assert_eq!(profile.name, other.name, "{which}");
            assert_eq!(u32::from(profile.compute_slices), other.slices, "{which}");
            assert_eq!(profile.max_instances, other.max, "{which}");
            assert_eq!(starts, other.starts, "{which}");
            assert!(
                profile
                    .placements
                    .iter()
                    .all(|p| u32::from(p.size) == other.size),
                "{which}"
            );
            // Rows without a capture are estimates on both sides.
            let estimated = *name == "B200-180" && other.slices >= 3;
            if !estimated {
                assert_eq!(profile.multiprocessors, other.multiprocessors, "{which}");
            }
            // Captures of one model differ by driver and ECC; a node refuses beyond a tenth.
            let (ours, theirs) = (profile.memory.0 as f64, other.memory_mib as f64);
            assert!(
                (ours / theirs - 1.0).abs() < 0.1,
                "{which}: {ours} and {theirs} MiB"
            );
        }
    }
}
