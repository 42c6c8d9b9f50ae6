//! Compares the simulator's tables with gpufrac's own: two independent readings of the same sources.

use gpufrac_core::geometry::{Evidence, Geometry};
use gpusim::admin::parse_gpus;
use nvidia_ml::model::{MODELS, Model};

#[test]
fn both_read_the_sources_alike() {
    assert!(Geometry::builtin_names().len() >= 13);
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
            let evidence = Geometry::evidence_of_figures(name, &profile.name);
            let estimated = evidence == Some(Evidence::Assumed);
            if !estimated {
                assert_eq!(profile.multiprocessors, other.multiprocessors, "{which}");
            }
            // Captures of one model differ by driver and ECC; a node refuses differences of more than a tenth.
            let (ours, theirs) = (profile.memory.0 as f64, other.memory_mib as f64);
            assert!(
                (ours / theirs - 1.0).abs() < 0.1,
                "{which}: {ours} and {theirs} MiB"
            );
        }
    }
}

#[test]
fn a_model_has_one_name() {
    for model in &MODELS {
        let name = model.name;
        let without = Geometry::without_mig(name);
        // The names with MIG are compared above.
        assert_eq!(
            Geometry::builtin(name).is_some(),
            model.geometry.is_some(),
            "{name}"
        );
        assert_eq!(without.is_some(), model.geometry.is_none(), "{name}");
        if let Some((_, memory)) = without {
            assert_eq!(memory.0, model.memory_mib, "{name}");
        }
    }
    let unknown = parse_gpus("L40S:1").unwrap_err().to_string();
    for model in &MODELS {
        assert!(unknown.contains(model.name), "{unknown}");
    }
}
