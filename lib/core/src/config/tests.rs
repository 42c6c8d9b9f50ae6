//! The content of a configuration. Its mistakes are in `tests/config`.

use proptest::prelude::*;

use std::time::Duration;

use super::*;
use crate::fraction::{Fraction, MemoryMib, Units};
use crate::ids::GpuIndex;
use crate::layout::LayoutKind;
use crate::policy::{Action, Breaker, Facts, IdleWish, Mail, Mode, Policy, Reaper, Stall};
use crate::rates::{Millionths, Rate};

const FULL: &str = include_str!("../../tests/config/valid/full.toml");
const SMALLEST: &str = include_str!("../../tests/config/valid/smallest.toml");
const SAMPLE: &str = include_str!("../../../../etc/gpufrac.toml");
const REAPER: &str = include_str!("../../tests/config/valid/reaper.toml");

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
    assert_eq!(h100.gpus, Some(vec![GpuIndex(0), GpuIndex(1)]));
    assert_eq!(h100.nodes.names().len(), 16);
    // With `equal_halves` the larger half has a 3g, too.
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
    assert_eq!(config.count_name.as_str(), "frac");
    let other = Config::parse(SMALLEST, "gpufrac.toml").unwrap();
    assert!(other.count_name.is_default());
}

#[test]
fn a_whole_gpu_is_an_instance_or_the_gpu() {
    let text = include_str!("../../tests/config/valid/whole.toml");
    let config = Config::parse(text, "gpufrac.toml").unwrap();
    for (name, whole, profile) in [
        ("by-demand", WholeGpu::Bare, "whole GPU"),
        ("whole", WholeGpu::Bare, "whole GPU"),
        ("ampere", WholeGpu::Mig, "7g.80gb"),
    ] {
        let pool = config.pool(name).unwrap();
        assert_eq!(pool.options.whole, whole, "{name}");
        assert_eq!(pool.switches_mig(), whole == WholeGpu::Bare);
        assert!(pool.lends_whole());
        assert_eq!(pool.layout.largest().unwrap().profile_name, profile);
        assert_eq!(pool.layout.largest().unwrap().units, Units::WHOLE);
    }
    let pieces = &config.pool("by-demand").unwrap().layout;
    assert_eq!(pieces.menu[0].profile_name, "2g.20gb");
    assert!(!full().pool("h100").unwrap().switches_mig());
}

#[test]
fn every_type_of_a_pool_is_known() {
    for pool in &full().pools {
        assert!(Pool::TYPE_NAMES.contains(&pool.type_name()), "{pool}");
    }
    for mechanism in Mechanism::ALL {
        assert!(Pool::TYPE_NAMES.contains(&mechanism.name()) || mechanism.uses_mig());
    }
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
    // Every menu has the whole GPU, too.
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
    assert!(options.memory_limits && options.framework_hints && options.cdi);
    assert_eq!(options.visible, crate::lease::visible::Visible::Index);
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

/// The control daemon has room for every job that Slurm admits: for the jobs' clients, and for their chunks of
/// multiprocessors.
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
        // The smallest share is not larger than necessary: one unit less, and a job has no room.
        let smaller = layout.menu[0].units.0 - 1;
        assert!(smaller * room < layout.capacity.0, "{pool}");
        // A menu may have only larger shares.
        let menu = text.replace("partitions", "menu = [\"1/2\", \"1/4\"]\npartitions");
        assert!(Config::parse(&menu, "gpufrac.toml").is_ok());
    }
}

#[test]
fn a_missing_key_has_its_default() {
    let config = Config::parse(SMALLEST, "gpufrac.toml").unwrap();
    assert_eq!(config.paths, Paths::default());
    assert_eq!(config.reaper, Reaper::default());
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
    assert_eq!(paths.shared.as_deref(), Some("/shared/gpufrac/gn07"));
}

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn the_reaper_is_read() {
    let reaper = full().reaper;
    assert_eq!(reaper.interval, Duration::from_secs(5));
    assert_eq!(reaper.metrics, "[::1]:9836".parse().ok());
    let exporter = reaper.dcgm_exporter.map(|url| url.to_string());
    assert_eq!(exporter.as_deref(), Some("http://127.0.0.1:9400/metrics"));
    assert_eq!(reaper.keep, 30 * 24 * HOUR);
    assert_eq!(reaper.reaps_per_hour, 10);
    let breaker = Breaker {
        node_share: 50,
        cluster_share: 20,
        least: 2,
    };
    assert_eq!(reaper.breaker, breaker);
    let mail = Mail {
        sendmail: None,
        program: Some("/usr/bin/mail".into()),
        from: Some("gpufrac@example.org".into()),
        domain: Some("example.org".into()),
        admins: vec!["root".into(), "hpc@example.org".into()],
        contact: Some("Write to hpc@example.org.".into()),
    };
    assert_eq!(reaper.mail, mail);
}

/// Promise (admins): a mistake in the prices of gpufrac.toml stops no job.
#[test]
fn prices_are_read_and_a_mistake_in_them_stops_no_job() {
    let rates = full().rates;
    let of = |gpu_hour, idle_hour| Rate {
        gpu_hour: Millionths(gpu_hour),
        idle_hour: Millionths(idle_hour),
    };
    assert_eq!(rates.currency, "CHF");
    assert_eq!(rates.of_pool("small"), of(1_250_000, 400_000));
    assert_eq!(rates.of_pool("h100"), of(2_000_000, 400_000));
    assert_eq!(rates.factor("low.1"), Millionths(500_000));
    assert_eq!(rates.factor("normal"), Millionths::ONE);
    let text = FULL.replace("gpu_hour = 1.25", "gpu_hour = -1");
    let error = Config::parse(&text, "gpufrac.toml")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("report.gpu_hour: -1 is not a price"),
        "{error}"
    );
    let (config, errors) = Config::parse_pools(&text, "gpufrac.toml").unwrap();
    assert_eq!(config.pools, full().pools);
    assert_eq!(errors.unwrap().0.len(), 1);
}

#[test]
fn the_general_policy_is_read() {
    let policy = full().reaper.general;
    assert_eq!((policy.name.as_str(), policy.mode), ("", Mode::On));
    assert_eq!(policy.grace, 10 * MINUTE);
    let windows = Stall::ALL.map(|stall| policy.window(stall, IdleWish::Default));
    let expected = [Some(3 * HOUR), Some(30 * HOUR), Some(90 * MINUTE), None];
    assert_eq!(windows, expected);
    let long = policy.window(Stall::Idle, IdleWish::Long);
    assert_eq!(long, Some(90 * HOUR));
    assert_eq!((policy.busy_above, policy.cpu_busy_above), (0.5, 2.0));
    // The longest first, in whatever order they are written.
    assert_eq!(policy.warn, [HOUR, 15 * MINUTE]);
    assert_eq!(policy.signal, Some(("USR1".parse().unwrap(), 2 * MINUTE)));
    assert_eq!(policy.action, Action::Requeue);
    // `--gpufrac-idle` allows all values by default.
    assert_eq!(policy.idle_option, IdleWish::ALL);
}

#[test]
fn rules_have_what_they_say_and_else_what_holds_for_everybody() {
    let reaper = full().reaper;
    let names = reaper.policies().map(|policy| policy.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["", "notebooks", "chess"]);
    let facts = Facts {
        pool: Some("h100"),
        partition: Some("jupyter"),
        qos: Some("high"),
        account: Some("chess1"),
        user: Some("ada"),
        reservation: Some("course"),
        name: Some("train-7"),
        interactive: Some(true),
    };
    let notebooks = reaper.policy(&facts);
    assert_eq!(notebooks.name, "notebooks");
    assert_eq!(notebooks.idle, Some(2 * HOUR));
    assert_eq!(notebooks.signal, None);
    assert_eq!(notebooks.action, Action::Cancel);
    assert_eq!((notebooks.mode, notebooks.grace), (Mode::On, 10 * MINUTE));
    let batch = Facts {
        interactive: Some(false),
        ..facts
    };
    let chess = reaper.policy(&batch);
    assert_eq!((chess.name.as_str(), chess.mode), ("chess", Mode::Off));
    // The rule keeps the signal of `[reaper]`.
    assert_eq!(chess.signal, Some(("USR1".parse().unwrap(), 20 * MINUTE)));
    let other = Facts {
        reservation: Some(""),
        ..batch
    };
    assert_eq!(reaper.policy(&other).name, "");
}

/// The commented lines of the sample have the default values.
#[test]
fn the_sample_of_the_reaper_shows_the_defaults() {
    let (pools, reaper) = SAMPLE.split_at(SAMPLE.find("\n[reaper]").unwrap());
    let shown: String = reaper
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(shown) if shown.starts_with('[') || shown.contains(" = ") => format!("{shown}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let shown = Config::parse(&format!("{pools}{shown}"), "shown").unwrap();
    let default = Reaper::default();
    let reaper = Reaper {
        is_written: false,
        dcgm_exporter: default.dcgm_exporter.clone(),
        mail: default.mail.clone(),
        rules: Vec::new(),
        general: Policy {
            signal: None,
            ..shown.reaper.general
        },
        ..shown.reaper
    };
    assert_eq!(reaper, default);
    assert_eq!(shown.reaper.rules.len(), 2);
    assert_eq!(
        Config::parse(SAMPLE, "sample").unwrap().reaper.general,
        default.general
    );
}

#[test]
fn a_reaper_at_the_edges() {
    let reaper = Config::parse(REAPER, "gpufrac.toml").unwrap().reaper;
    assert_eq!(reaper.metrics, None);
    let windows = Stall::ALL.map(|stall| reaper.general.window(stall, IdleWish::Default));
    let idle = Some(Duration::from_millis(601));
    assert_eq!(windows, [None, idle, None, None]);
    assert_eq!(reaper.general.grace, Duration::ZERO);
    let (signal, checkpoint) = reaper.general.signal.unwrap();
    assert_eq!((signal.number(), checkpoint), (15, 5 * MINUTE));
    let students = &reaper.rules[0].policy;
    assert_eq!(students.signal, Some((signal, MINUTE)));
    assert_eq!(students.action, Action::RequeueHold);
    assert_eq!(students.idle_option, [IdleWish::Default]);
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
    // The pool takes every GPU of the node.
    assert_eq!(shown("an1", 3).len(), 6);
    assert_eq!(shown("an1", 0).len(), 0);
    assert_eq!(shown("other", 4).len(), 0);
}

proptest! {
    /// A damaged text is either read or refused, and each error has a line of the file.
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

#[test]
fn windows_that_nobody_named_make_room_for_warnings() {
    let reaper = "\n[reaper]\nwarn = [\"1h\", \"15m\"]\n";
    let config = Config::parse(&format!("{SMALLEST}{reaper}"), "gpufrac.toml").unwrap();
    let general = config.reaper.general;
    let hours = |count: u64| Some(std::time::Duration::from_secs(3600 * count));
    assert_eq!((general.finished, general.over_share), (hours(2), hours(2)));
    assert_eq!((general.never_used, general.idle), (hours(2), hours(4)));
}

#[test]
fn the_checksum_of_a_configuration_covers_its_values_alone() {
    let text = include_str!("../../../../etc/gpufrac.toml");
    let sum = |text: &str| Config::parse(text, "gpufrac.toml").unwrap().sum();
    let own = sum(text);
    assert_eq!(sum(&format!("# a comment\n{text}")), own);
    let (from, to) = (
        "version = 1\n",
        "version = 1\n[report]\ncurrency = \"EUR\"\n",
    );
    assert!(text.contains(from), "{text}");
    assert_ne!(sum(&text.replacen(from, to, 1)), own);
}
