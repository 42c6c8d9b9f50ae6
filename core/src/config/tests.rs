//! What a configuration says once it is read. What it may not say is in `tests/config`.

use proptest::prelude::*;

use super::*;
use crate::fraction::Units;
use crate::layout::LayoutKind;

const FULL: &str = include_str!("../../tests/config/valid/full.toml");
const SMALLEST: &str = include_str!("../../tests/config/valid/smallest.toml");

fn full() -> Config {
    Config::parse(FULL, "gpufrac.toml").unwrap()
}

#[test]
fn values_are_read() {
    let config = full();
    let names: Vec<&str> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["h100", "small", "big", "a30", "own"]);
    let h100 = config.pool("h100").unwrap();
    assert_eq!(h100.layout.kind, LayoutKind::Halves);
    assert_eq!(h100.geometry.model, "H100-80");
    assert_eq!(h100.gpus, Some(vec![0, 1]));
    assert_eq!(h100.nodes.names().len(), 16);
    // equal_halves: a half is a 3g on both sides.
    assert_eq!(h100.layout.menu[2].profile_name, "3g.40gb");
    assert_eq!(config.pool("own").unwrap().geometry.model, "HX-32");
    assert_eq!(config.pool("own").unwrap().layout.menu.len(), 1);
    let rules = config.rules("gpu").unwrap();
    assert_eq!(rules.min, Some(Fraction::parse("1/8").unwrap()));
    assert_eq!(rules.max, Some(Fraction::ONE));
    assert!(!rules.allow_raw);
    assert!(config.rules("tiny").unwrap().allow_raw);
    assert_eq!(config.rules("long"), None);
    let pools = |partition: &str| -> Vec<String> {
        let pools = config.pools_of_partition(partition);
        pools.iter().map(ToString::to_string).collect()
    };
    assert_eq!(pools("gpu"), ["h100", "big"]);
    assert_eq!(pools("none"), Vec::<String>::new());
}

#[test]
fn what_is_left_out_has_its_default() {
    let config = Config::parse(SMALLEST, "gpufrac.toml").unwrap();
    assert_eq!(config.paths, Paths::default());
    assert_eq!(config.pools[0].gpus, None);
    let units: Vec<Units> = config.pools[0]
        .layout
        .menu
        .iter()
        .map(|e| e.units)
        .collect();
    assert_eq!(units, [Units(13), Units(25), Units(50)]);
}

#[test]
fn paths_of_a_node() {
    let paths = full().paths.for_node("gn07");
    assert_eq!(paths.state, "/var/lib/gpufrac/gn07");
    assert_eq!(paths.run, "/run/gpufrac");
}

#[test]
fn devices_are_numbered_as_slurm_numbers_them() {
    let config = full();
    let shown = |node: &str, gpus: u32| -> Vec<String> {
        let devices = config.devices_of_node(node, gpus);
        devices
            .iter()
            .map(|d| format!("{} {} gpu{} {}", d.file_name(), d.pool, d.gpu_index, d.side))
            .collect()
    };
    assert_eq!(
        shown("gn01", 4),
        [
            "half0 h100 gpu0 the left half",
            "half1 h100 gpu0 the right half",
            "half2 h100 gpu1 the left half",
            "half3 h100 gpu1 the right half",
            "slices4 small gpu2 the GPU",
            "slices5 small gpu3 the GPU",
        ]
    );
    assert_eq!(
        shown("gn16", 4)[4..],
        ["whole4 big gpu2 the GPU", "whole5 big gpu3 the GPU"]
    );
    // Every GPU of the node.
    assert_eq!(shown("an1", 3).len(), 6);
    assert_eq!(shown("an1", 0).len(), 0);
    assert_eq!(shown("other", 4).len(), 0);
}

proptest! {
    /// Whatever happens to the text: an answer, and every error has a line that exists.
    #[test]
    fn damaged_files_are_read_or_refused(from in 0..FULL.len(), length in 0_usize..60, junk in "[\\[\\]=\"a-z0-9.,\n]{0,12}") {
        let from = FULL.floor_char_boundary(from);
        let to = FULL.floor_char_boundary((from + length).min(FULL.len()));
        let text = format!("{}{junk}{}", &FULL[..from], &FULL[to..]);
        if let Err(ConfigErrors(errors)) = Config::parse(&text, "gpufrac.toml") {
            prop_assert!(!errors.is_empty());
            let lines = text.lines().count() + 1;
            prop_assert!(errors.iter().all(|error| (1..=lines).contains(&error.line)));
            prop_assert!(errors.windows(2).all(|pair| pair[0].line <= pair[1].line));
        }
    }
}
