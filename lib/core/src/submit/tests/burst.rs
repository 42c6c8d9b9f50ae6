//! `--gpufrac-burst`: which pools lend idle compute, and how much.

use super::*;
use crate::submit::burst::{self, UnknownBurst};

/// Pools that lend compute, and pools that cannot.
const LENDERS: &str = r#"
version = 1
[pool.shared]
mechanism = "mps"
tenancy = "shared"
burst_max = 0.75
gpu = "L40S-48"
partitions = ["shared", "both", "withmig", "loose"]
nodes = "sn[1-4]"
[pool.more]
mechanism = "mps"
tenancy = "shared"
burst_max = 1
burst_default = "1/2"
gpu = "L40S-48"
partitions = ["both"]
nodes = "bn[1-4]"
[pool.strict]
mechanism = "mps"
tenancy = "shared"
gpu = "L40S-48"
partitions = ["strict"]
nodes = "nn[1-4]"
[pool.private]
mechanism = "mps"
tenancy = "private"
gpu = "L40S-48"
partitions = ["private"]
nodes = "pn[1-4]"
[pool.halves]
mechanism = "mig+mps"
burst_max = 0.5
gpu = "H100-80"
partitions = ["halves"]
nodes = "hn[1-4]"
[pool.mig]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
menu = ["1/2", "1/4"]
partitions = ["mig", "withmig"]
nodes = "mn[1-4]"
[pool.turns]
mechanism = "timeslice"
gpu = "T4-16"
partitions = ["turns", "loose"]
nodes = "tn[1-4]"
[pool.hami]
mechanism = "hami"
library = "/opt/hami/libvgpu.so"
burst_max = 1
gpu = "T4-16"
partitions = ["hami"]
nodes = "an[1-4]"
"#;

fn lenders() -> Config {
    Config::parse(LENDERS, "gpufrac.toml").unwrap()
}

fn ask(partition: &str, tres: &str, burst: &str) -> Result<Verdict, Refusal> {
    let request = JobRequest {
        burst: Some(burst::parse(burst).unwrap()),
        ..job(partition, tres)
    };
    decide(&lenders(), &request, Occasion::Submit)
}

fn entry(partition: &str, tres: &str, burst: &str) -> String {
    match ask(partition, tres, burst) {
        Ok(Verdict::Rewritten { entry, text, .. }) => {
            // Slurm counts the share alone.
            let plain = job(partition, tres);
            let plain = decide(&lenders(), &plain, Occasion::Submit).unwrap();
            let Verdict::Rewritten { text: counted, .. } = plain else {
                panic!("{plain:?}")
            };
            assert_eq!(text, counted);
            entry.to_string()
        }
        other => panic!("{partition} {tres} {burst}: {other:?}"),
    }
}

fn refused(partition: &str, tres: &str, burst: &str) -> String {
    ask(partition, tres, burst).unwrap_err().to_string()
}

#[test]
fn a_burst_goes_into_the_entry_and_not_into_the_count() {
    for (partition, tres, burst, want) in [
        (
            "shared",
            "gpufrac:0.25",
            "0.75",
            "v1:units=25:mech=mps:burst=75",
        ),
        (
            "shared",
            "gpufrac:0.25",
            "0.25",
            "v1:units=25:mech=mps:burst=25",
        ),
        (
            "shared",
            "gpufrac:0.25",
            "0.601",
            "v1:units=25:mech=mps:burst=61",
        ),
        (
            "both",
            "gpufrac:0.25",
            ".75",
            "v1:units=25:mech=mps:burst=75",
        ),
        (
            "halves",
            "gpufrac:0.1",
            "0.5",
            "v1:units=10:mech=mig+mps:burst=50",
        ),
        (
            "hami",
            "gpufrac:0.25",
            "1",
            "v1:units=25:mech=hami:burst=100",
        ),
    ] {
        assert_eq!(entry(partition, tres, burst), want);
    }
    // What a client rewrote is taken with the option, as the plugin of the controller sees both.
    let again = entry("shared", "gres/gpufrac:25,gres/shard:25", "0.75");
    assert_eq!(again, "v1:units=25:mech=mps:burst=75");
    // By a name of the mechanism the pools that cannot lend are none of the job's.
    assert_eq!(
        entry("loose", "gpufrac:mps:0.25", "0.75"),
        "v1:units=25:mech=mps:burst=75"
    );
}

#[test]
fn a_burst_outside_of_what_a_pool_lends_is_refused_with_the_limit() {
    assert_eq!(
        refused("shared", "gpufrac:0.25", "0.76"),
        "gpufrac: --gpufrac-burst=0.76 is more than pool shared lends, at most 0.75; \
         write --gpufrac-burst=F with F from 0.25 to 0.75, or leave it out"
    );
    assert_eq!(
        refused("shared", "gpufrac:0.25", "0.1"),
        "gpufrac: --gpufrac-burst=0.1 is less than the job's share of 0.25; \
         write --gpufrac-burst=F with F from 0.25 to 0.75, or leave it out"
    );
    assert_eq!(
        refused("shared", "gpufrac:0.8", "0.9"),
        "gpufrac: --gpufrac-burst=0.9 is more than pool shared lends, at most 0.75; \
         write no --gpufrac-burst: the share is as much"
    );
    // Of several pools the one that lends least: Slurm may take any.
    assert!(refused("both", "gpufrac:0.25", "1").contains("pool shared lends, at most 0.75"));
    assert!(refused("halves", "gpufrac:0.25", "0.6").contains("at most 0.5"));
    assert_eq!(
        refused("hami", "gpufrac:0.25", "0.5"),
        "gpufrac: --gpufrac-burst=0.5 cannot be set in pool hami: HAMi-core can only lift its limit of compute; \
         write --gpufrac-burst=1, or leave it out"
    );
}

#[test]
fn a_pool_that_lends_nothing_says_why() {
    for (partition, tres, why) in [
        (
            "mig",
            "gpufrac:0.25",
            "pool mig takes no --gpufrac-burst: each of its jobs has a MIG instance",
        ),
        ("withmig", "gpufrac:0.25", "pool mig takes no"),
        ("turns", "gpufrac:0.25", "without a limit of compute"),
        ("loose", "gpufrac:0.25", "pool turns takes no"),
        (
            "private",
            "gpufrac:0.25",
            "with tenancy \"private\" its jobs take turns",
        ),
        (
            "strict",
            "gpufrac:0.25",
            "gpufrac.toml sets no burst_max for it",
        ),
        ("shared", "gpufrac:1", "the job has a whole GPU"),
    ] {
        let text = refused(partition, tres, "0.75");
        assert!(text.contains(why), "{text}");
        assert!(text.ends_with("; leave the option out"), "{text}");
    }
}

#[test]
fn finds_the_option_among_what_clients_send() {
    let environment = |variables: &[&str]| -> Result<Option<u32>, UnknownBurst> {
        let variables: Vec<String> = variables.iter().map(|text| (*text).to_owned()).collect();
        Ok(burst::asked(&variables)?.map(|units| units.0))
    };
    let plain = "_SLURM_SPANK_OPTION_gpufrac_gpufrac_burst=";
    for prefix in ["", "SPANK_", "SPANK_SPANK_"] {
        let variable = format!("{prefix}{plain}0.75");
        assert_eq!(environment(&["A=b", &variable, "C"]), Ok(Some(75)));
    }
    let (first, last) = (format!("{plain}0.5"), format!("{plain}0.75"));
    assert_eq!(environment(&[&first, &last]), Ok(Some(75)));
    for none in [
        &[][..],
        &["SPANK_GPUFRAC=v1:units=25:mech=mps:burst=75"],
        &["_SLURM_SPANK_OPTION_gpufrac_gpufrac_idle=off"],
        &["_SLURM_SPANK_OPTION_other_gpufrac_burst=0.75"],
        &["_SLURM_SPANK_OPTION_gpufrac_gpufrac_burst"],
        &["_SLURM_SPANK_OPTION_gpufrac_gpufrac_burst_x=1"],
    ] {
        assert_eq!(environment(none), Ok(None), "{none:?}");
    }
    for wrong in ["", "0", "75", "75%", "1.5", "-1", "1/2", "off", "0.5 "] {
        let text = environment(&[&format!("{plain}{wrong}")])
            .unwrap_err()
            .to_string();
        assert!(text.starts_with("gpufrac: --gpufrac-burst="), "{text}");
        assert!(
            text.contains("write for example --gpufrac-burst=0.5"),
            "{text}"
        );
    }
}

#[test]
fn the_ceiling_on_a_node_is_what_its_pool_lends_now() {
    let config = lenders();
    let pool = |name: &str| config.pools.iter().find(|pool| pool.name == name).unwrap();
    for (name, share, asked, want) in [
        ("shared", 25, None, None),
        ("shared", 25, Some(75), Some(75)),
        // Submitted before the admin lowered burst_max.
        ("shared", 25, Some(100), Some(75)),
        ("shared", 80, Some(100), None),
        ("shared", 25, Some(25), None),
        ("shared", 100, Some(100), None),
        // The default, which a share can be above, and a job without a burst of its own.
        ("more", 25, None, Some(50)),
        ("more", 60, None, None),
        ("more", 25, Some(25), None),
        ("more", 25, Some(100), Some(100)),
        // Submitted before the admin took it away.
        ("strict", 25, Some(75), None),
        ("private", 25, Some(75), None),
        ("mig", 25, Some(75), None),
        ("halves", 10, Some(75), Some(50)),
        ("hami", 25, Some(75), None),
        ("hami", 25, Some(100), Some(100)),
    ] {
        let ceiling = pool(name).ceiling(Units(share), asked.map(Units));
        assert_eq!(ceiling, want.map(Units), "{name} {share} {asked:?}");
    }
}
