//! `--gpufrac-burst`: which pools lend idle compute, and how much.

use super::*;
use crate::submit::burst::{self, UnknownBurst};

/// Pools that lend compute, and pools that cannot.
const LENDERS: &str = include_str!("lenders.toml");

fn lenders() -> Config {
    Config::parse(LENDERS, "gpufrac.toml").unwrap()
}

#[test]
fn a_burst_goes_into_the_entry_and_not_into_the_count() {
    cases(
        &lenders(),
        "a_burst_goes_into_the_entry_and_not_into_the_count",
    );
}

/// Promise (users): --gpufrac-burst outside of what a pool lends is refused with the limit; a pool that lends nothing
/// says why.
/// With `a_pool_that_lends_nothing_says_why`, `a_burst_that_the_pool_does_not_lend_is_refused_with_the_limit`.
#[test]
fn a_burst_outside_of_what_a_pool_lends_is_refused_with_the_limit() {
    cases(
        &lenders(),
        "a_burst_outside_of_what_a_pool_lends_is_refused_with_the_limit",
    );
}

#[test]
fn a_pool_that_lends_nothing_says_why() {
    cases(&lenders(), "a_pool_that_lends_nothing_says_why");
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
