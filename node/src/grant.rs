//! How much of its device a job was granted.
//!
//! job_submit's entry is trusted, but a pending job can be changed with `scontrol update`, and the
//! entry cannot; so Slurm's own word goes before it where there is one.

use gpufrac_core::config::{Config, Device};
use gpufrac_core::entry::Entry;
use gpufrac_core::fraction::Units;
use gpufrac_core::layout::MenuEntry;
use gpufrac_core::request::{self, Amount, Kind};
use slurm_sys::client::JobInfo;

/// All that a job asks for in GRES, however it was asked for, as one text.
pub fn text_of(info: &JobInfo) -> String {
    let all: Vec<&str> = info
        .tres_per_node
        .iter()
        .chain(&info.tres_elsewhere)
        .map(String::as_str)
        .collect();
    all.join(",")
}

/// Whether a job asks for any part of a GPU. One that does not can hold devices all the same:
/// Slurm gives a job with `--exclusive` every GRES of the node but the shared ones.
pub fn asks_for_gpu(tres: &str) -> bool {
    request::parse(tres).is_ok_and(|items| {
        items.iter().any(|item| match &item.kind {
            Kind::Gpu(count) | Kind::Shard(count) => count.count != Some(0),
            Kind::Gpufrac { .. } => true,
            Kind::None | Kind::Other => false,
        })
    })
}

/// What a partition's rules have against a job with so many units, in the words of an admin; a
/// pending job can be moved to another partition without job_submit seeing its GRES.
pub fn against_rules(config: &Config, partition: &str, tres: &str, units: Units) -> Option<String> {
    if config.pools_of_partition(partition).is_empty() {
        return None;
    }
    let rules = config.rules(partition);
    if !request::names_fraction(tres) && !rules.is_some_and(|rules| rules.allow_raw) {
        return Some("`gpu` and `shard` can not be asked for by themselves there".to_owned());
    }
    let rules = rules?;
    match (rules.max, rules.min) {
        (Some(max), _) if units > max.units() => {
            Some(format!("at most {max} of a GPU is given there"))
        }
        (_, Some(min)) if units < min.units() => {
            Some(format!("at least {min} of a GPU is given there"))
        }
        _ => None,
    }
}

/// The units that a job holds on one device by Slurm's text, e.g.
/// `gres:gpufrac:25,gres:shard:25`. Shards are what Slurm counts on the device; `gpufrac` says it for a
/// whole device, and a device asked for by its type is all of it. None if there is none of these.
pub fn units_of_tres(tres_per_node: &str, device: &Device<'_>) -> Option<Units> {
    let items = request::parse(tres_per_node).ok()?;
    let count = |units: u64| u32::try_from(units).ok().map(Units);
    let shards = items.iter().find_map(|item| match &item.kind {
        Kind::Shard(shards) => count(shards.count?).filter(|units| units.0 > 0),
        _ => None,
    });
    let fraction = items.iter().find_map(|item| match item.kind {
        Kind::Gpufrac {
            amount: Amount::Units(units),
            ..
        } => count(units).filter(|units| units.0 > 0),
        Kind::Gpufrac {
            amount: Amount::Fraction(fraction),
            ..
        } => Some(fraction.units()),
        _ => None,
    });
    let whole = || {
        items
            .iter()
            .any(|item| matches!(&item.kind, Kind::Gpu(gpus) if gpus.count != Some(0)))
            .then_some(device.pool.layout.capacity)
    };
    shards.or(fraction).or_else(whole)
}

/// What Slurm and the entry say together.
pub fn granted(
    tres_per_node: Option<&str>,
    entry: Option<Entry>,
    device: &Device<'_>,
) -> Option<Units> {
    tres_per_node
        .and_then(|text| units_of_tres(text, device))
        .or(entry.map(|entry| entry.units))
}

/// The largest entry of the pool's menu that costs no more than what was granted.
pub fn menu_entry<'a>(device: &Device<'a>, granted: Units) -> Option<&'a MenuEntry> {
    let menu = &device.pool.layout.menu;
    menu.iter().rev().find(|entry| entry.units <= granted)
}

#[cfg(test)]
mod tests {
    use gpufrac_core::config::Config;
    use gpufrac_core::mechanism::Mechanism;

    use super::*;

    fn config(layout: &str) -> Config {
        let text = format!(
            "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"{layout}\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"n1\"\n"
        );
        Config::parse(&text, "test").unwrap()
    }

    #[test]
    fn slurms_shards_go_before_the_entry() {
        let config = config("halves");
        let device = config.devices_of_node("n1", 1)[0];
        let entry = Some(Entry {
            units: Units(50),
            mechanism: Mechanism::Mig,
        });
        let units = |tres| granted(tres, entry, &device).map(|units| units.0);
        assert_eq!(units(Some("gres:gpufrac:25,gres:shard:25")), Some(25));
        assert_eq!(units(Some("gres/tmpdisk:10,gres/shard:13")), Some(13));
        assert_eq!(units(Some("gres:gpu:half:1")), Some(50));
        assert_eq!(units(Some("gres:tmpdisk:10")), Some(50));
        assert_eq!(
            units(Some("gres:shard:0,gres:gpufrac:25,gres:shard:25")),
            Some(25)
        );
        assert_eq!(units(None), Some(50));
        assert_eq!(granted(Some("gres:tmpdisk:10"), None, &device), None);
    }

    #[test]
    fn who_asks_for_no_gpu_is_known() {
        for tres in ["", "gres:tmpdisk:5", "gres:gpu:0", "cpu:1", "gres/none"] {
            assert!(!asks_for_gpu(tres), "{tres}");
        }
        for tres in [
            "gres:gpu:1",
            "cpu:1,gres:gpu:half:2",
            "gres/shard:5",
            "gres/gpufrac:25",
        ] {
            assert!(asks_for_gpu(tres), "{tres}");
        }
    }

    #[test]
    fn rules_hold_for_a_job_that_was_moved() {
        let text = "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\", \"small\", \"raw\"]\nnodes = \"n1\"\n[partition.small]\nmin = 0.25\nmax = 0.25\n[partition.raw]\nallow_raw = true\n";
        let config = Config::parse(text, "test").unwrap();
        let pair = "gres:gpufrac:50,gres:shard:50";
        let against =
            |partition, tres, units| against_rules(&config, partition, tres, Units(units));
        assert_eq!(against("gpu", pair, 50), None);
        assert_eq!(against("cpu", "gres:gpu:1", 50), None);
        assert!(against("small", pair, 50).unwrap().contains("at most 0.25"));
        assert!(
            against("small", pair, 13)
                .unwrap()
                .contains("at least 0.25")
        );
        assert_eq!(against("small", pair, 25), None);
        assert!(against("gpu", "gres:gpu:half:1", 50).is_some());
        assert!(against("gpu", "gres:shard:50", 50).is_some());
        assert_eq!(against("raw", "gres:gpu:half:1", 50), None);
    }

    #[test]
    fn a_whole_device_is_all_of_it() {
        let config = config("whole");
        let device = config.devices_of_node("n1", 1)[0];
        for tres in ["gres:gpu:whole:1,gres:gpufrac:100", "gres/gpu:whole:1"] {
            assert_eq!(units_of_tres(tres, &device), Some(Units(100)), "{tres}");
        }
        assert_eq!(
            menu_entry(&device, Units(100)).map(|entry| entry.units),
            Some(Units(100))
        );
        assert!(menu_entry(&device, Units(99)).is_none());
    }

    #[test]
    fn what_is_not_on_the_menu_is_rounded_down() {
        let config = config("halves");
        let device = config.devices_of_node("n1", 1)[0];
        let units = |granted| menu_entry(&device, Units(granted)).map(|entry| entry.units.0);
        assert_eq!(units(50), Some(50));
        assert_eq!(units(49), Some(25));
        assert_eq!(units(24), Some(13));
        assert_eq!(units(12), None);
    }
}
