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
    assert_eq!(names[..5], ["h100", "small", "big", "a30", "own"]);
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
fn every_mechanism_has_its_options() {
    let config = full();
    let pool = |name: &str| config.pool(name).unwrap();
    let shown = |name: &str| {
        let pool = pool(name);
        let ends = [pool.layout.menu.first(), pool.layout.menu.last()];
        let ends = ends.map(|size| size.unwrap().to_string());
        (pool.type_name(), pool.layout.menu.len(), ends)
    };
    let ends = |first: &str, last: &str| [first.to_owned(), last.to_owned()];
    // A menu has the whole GPU as well.
    assert_eq!(
        shown("l40s"),
        ("mps", 3, ends("0.25 (mps, 10.9 GiB)", "1 (mps, 43.9 GiB)"))
    );
    assert_eq!(
        shown("private"),
        ("mps", 100, ends("0.01 (mps, 0.0 GiB)", "1 (mps, 8.0 GiB)"))
    );
    assert_eq!(
        shown("shared-halves"),
        (
            "mpshalf",
            48,
            ends("0.03 (3g.40gb+mps, 2.3 GiB)", "0.5 (3g.40gb+mps, 39.5 GiB)")
        )
    );
    assert_eq!(
        shown("t4"),
        (
            "timeslice",
            100,
            ends("0.01 (timeslice, 0.1 GiB)", "1 (timeslice, 15.0 GiB)")
        )
    );
    let whole = "1 (whole GPU, 15.0 GiB)";
    assert_eq!(shown("t4-whole"), ("whole", 1, ends(whole, whole)));
    assert_eq!(shown("hami").0, "hami");
    let lending = config.pools.iter().filter(|pool| pool.lends_whole());
    let lending: Vec<&str> = lending.map(|pool| pool.name.as_str()).collect();
    assert_eq!(
        lending,
        ["big", "l40s", "private", "t4", "t4-whole", "hami"]
    );

    let options = &pool("l40s").options;
    assert_eq!(options.tenancy, Tenancy::Shared);
    assert_eq!(options.sm_chunks, Some(15));
    assert!(options.memory_limits && options.framework_hints);
    assert_eq!(pool("l40s").gpu_memory, MemoryMib(45000));
    assert_eq!(pool("private").options.tenancy, Tenancy::Private);
    assert_eq!(pool("private").geometry.model, "GTX-8");
    let slice = pool("t4").options.timeslice.unwrap();
    assert_eq!((slice, slice.number()), (TimesliceLength::Short, 1));
    assert_eq!(
        pool("hami").options.library.as_deref(),
        Some("/opt/hami/libvgpu.so")
    );
    assert_eq!(pool("h100").options, PoolOptions::default());
    let devices = config.devices_of_node("tn1", 2);
    let files: Vec<String> = devices.iter().map(Device::file_name).collect();
    assert_eq!(files, ["timeslice0", "whole1"]);
}

/// Whatever counting admits, the daemon of a device has room for: jobs times the client limit, and
/// chunks of multiprocessors.
#[test]
fn shares_that_fit_by_counting_have_room_at_the_daemon() {
    for (pool, room) in [
        (
            "mechanism = \"mps\"\ntenancy = \"shared\"\ngpu = \"L40S-48\"",
            48,
        ),
        ("mechanism = \"mig+mps\"\ngpu = \"H100-80\"", 48 * 3 / 7),
        ("mechanism = \"mig+mps\"\ngpu = \"A30-24\"", 48 * 2 / 4),
        (
            "mechanism = \"mps\"\ntenancy = \"shared\"\nsm_chunks = 15\ngpu = \"H100-80\"",
            15,
        ),
        (
            "mechanism = \"mig+mps\"\nsm_chunks = 7\ngpu = \"H100-80\"",
            7,
        ),
    ] {
        let text = format!("version = 1\n[pool.p]\n{pool}\npartitions = [\"a\"]\nnodes = \"n1\"\n");
        let config = Config::parse(&text, "gpufrac.toml").unwrap();
        let layout = &config.pools[0].layout;
        let jobs = layout.capacity.0 / layout.menu[0].units.0;
        assert!(jobs <= room, "{jobs} jobs: {pool}");
        // And the least is no larger than one place for each makes it.
        let smaller = layout.menu[0].units.0 - 1;
        assert!(smaller * room < layout.capacity.0, "{pool}");
        // A menu may be of larger shares.
        let menu = text.replace("partitions", "menu = [\"1/2\", \"1/4\"]\npartitions");
        assert!(Config::parse(&menu, "gpufrac.toml").is_ok());
    }
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

#[test]
fn placeholders_are_known_by_their_names() {
    for mechanism in ["mig\"\nlayout = \"halves", "mig+mps", "timeslice"] {
        let text = format!(
            "version = 1\n[pool.p]\nmechanism = \"{mechanism}\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"n1\"\n"
        );
        let config = Config::parse(&text, "test").unwrap();
        for device in config.devices_of_node("n1", 2) {
            assert!(Device::is_file_name(&device.file_name()));
        }
    }
    for other in ["null", "half", "nvidia0", "tty1", "7"] {
        assert!(!Device::is_file_name(other), "{other}");
    }
}
