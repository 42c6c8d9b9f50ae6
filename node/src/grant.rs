//! How much of its device a job was granted.
//!
//! job_submit's entry is trusted, but a pending job can be changed with `scontrol update`, and the
//! entry cannot; so Slurm's own word goes before it where there is one.

use gpufrac_core::config::Device;
use gpufrac_core::entry::Entry;
use gpufrac_core::fraction::Units;
use gpufrac_core::layout::MenuEntry;
use gpufrac_core::request::{self, Amount, Kind};

/// The units that a job holds on one device by Slurm's text, e.g.
/// `gres:gpufrac:25,gres:shard:25`. Shards are what Slurm counts on the device; `gpufrac` says it for a
/// whole device, and a device asked for by its type is all of it. None if there is none of these.
pub fn units_of_tres(tres_per_node: &str, device: &Device<'_>) -> Option<Units> {
    let items = request::parse(tres_per_node).ok()?;
    let count = |units: u64| u32::try_from(units).ok().map(Units);
    let shards = items.iter().find_map(|item| match &item.kind {
        Kind::Shard(shards) => count(shards.count?),
        _ => None,
    });
    let fraction = items.iter().find_map(|item| match item.kind {
        Kind::Gpufrac {
            amount: Amount::Units(units),
            ..
        } => count(units),
        Kind::Gpufrac {
            amount: Amount::Fraction(fraction),
            ..
        } => Some(fraction.units()),
        _ => None,
    });
    let whole = || {
        items
            .iter()
            .any(|item| matches!(item.kind, Kind::Gpu(_)))
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
        assert_eq!(units(None), Some(50));
        assert_eq!(granted(Some("gres:tmpdisk:10"), None, &device), None);
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
