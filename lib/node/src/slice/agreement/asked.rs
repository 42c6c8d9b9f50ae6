//! The part of its device that a job was granted.
//!
//! job_submit's entry is trusted, but `scontrol update` can change a pending job and cannot change its entry. So
//! Slurm's own record takes precedence if it is available.

use gpufrac_core::config::{Config, Device};
use gpufrac_core::entry::Entry;
use gpufrac_core::fraction::{Fraction, Units};
use gpufrac_core::layout::MenuEntry;
use gpufrac_core::request::{self, Amount, GresForm, Item, Kind, RequestError};
use slurm_sys::client::JobInfo;

/// The GRES requests of a job, as Slurm stores them.
#[derive(Debug)]
pub struct Asked {
    /// `--gres`, which counts on every node.
    pub per_node: String,
    /// `--gpus` and similar options. Their shares do not count per node.
    pub elsewhere: String,
    /// `--tres-per-task`, which `elsewhere` contains, too.
    pub per_task: String,
}

impl From<&JobInfo> for Asked {
    fn from(info: &JobInfo) -> Self {
        Self {
            per_node: info.tres_per_node.clone().unwrap_or_default(),
            elsewhere: info.tres_elsewhere.join(","),
            per_task: info.tres_per_task.clone().unwrap_or_default(),
        }
    }
}

impl Asked {
    /// Whether the job asks for any part of a GPU. A job that does not can hold devices: Slurm gives a job with
    /// `--exclusive` every GRES of the node except shared ones. GPUs of a Type that no pool has do not count.
    pub fn is_for_gpu(&self, config: &Config) -> bool {
        let own = |type_name: Option<&str>| type_name.is_none_or(|name| config.has_type(name));
        let any = |text| {
            // An item that cannot be parsed counts if it names a fraction.
            request::names_fraction(text)
                || items(text).any(|item| match &item.kind {
                    Kind::Gpu(count) => count.count != Some(0) && own(count.type_name),
                    Kind::Shard(count) => count.count != Some(0),
                    _ => false,
                })
        };
        any(&self.per_node) || any(&self.elsewhere)
    }

    /// As [`request::refuse_misread`], for the texts that determine what the job holds on this node.
    /// Errors: the item that Slurm could read in another way.
    pub fn refuse_ambiguous(&self) -> Result<(), RequestError> {
        let mut texts = [&self.per_node, &self.per_task].into_iter();
        texts.try_for_each(|text| {
            // Each version of Slurm writes one kind of marks.
            let form = if text.contains(GresForm::Colon.prefix()) {
                GresForm::Colon
            } else {
                GresForm::Slash
            };
            request::refuse_misread(text, form)
        })
    }

    /// Whether the job asks for a fraction by name, and not only for `gpu` or `shard`.
    pub fn names_fraction(&self) -> bool {
        request::names_fraction(&self.per_node) || request::names_fraction(&self.per_task)
    }

    /// The shares that the job asks for per node, and per task.
    pub fn shares(&self) -> (Option<Units>, Option<Units>) {
        (
            shards_of_tres(&self.per_node),
            shards_of_tres(&self.per_task),
        )
    }

    /// The units of these devices that the job asks for, or those of each task.
    pub fn units(&self, devices: &[Device<'_>]) -> Option<Units> {
        if let (None, Some(per_task)) = self.shares() {
            return Some(per_task);
        }
        let whole = || names_gpu(&self.elsewhere).then(|| all_of(devices));
        units_of_tres(&self.per_node, devices).or_else(whole)
    }

    /// The rule of the partition that forbids the job, and the way out, both in words for the user. A pending job can
    /// be moved to another partition without job_submit seeing its GRES, and job_submit does not know which partitions
    /// have nodes of a pool. `size`: the menu entry that the job would get of `device`.
    pub fn against_rules(
        &self,
        config: &Config,
        partition: &str,
        device: &Device<'_>,
        units: Units,
        size: &MenuEntry,
    ) -> Option<Against> {
        let pool = device.pool;
        if !pool.serves(partition) {
            let right = pool.partitions.first().map_or("PARTITION", String::as_str);
            let gres = if self.names_fraction() { "" } else { " gres=gpufrac:FRACTION" };
            return Some(Against {
                rule: format!(
                    "the GPU is of pool {}, and that is for jobs of {} alone",
                    pool.name,
                    pool.partitions.join(", ")
                ),
                update: format!("partition={right}{gres}"),
            });
        }
        let pools = config.pools_of_partition(partition);
        let rules = config.rules(partition);
        if !self.names_fraction() {
            let closed = !rules.is_some_and(|rules| rules.allow_raw);
            return closed.then(|| Against {
                rule: "`gpu` and `shard` cannot be asked for by themselves there".to_owned(),
                update: "gres=gpufrac:FRACTION".to_owned(),
            });
        }
        // As in job_submit: a size of any pool of the partition with these units.
        let mut sizes = pools
            .iter()
            .filter_map(|pool| pool.layout.entry(units))
            .chain([size]);
        let rules = rules?;
        if sizes.any(|size| rules.allow(size)) {
            return None;
        }
        let bound = |word: &str, bound: Option<Fraction>| {
            bound.map_or(String::new(), |bound| format!(", at {word} {bound}"))
        };
        Some(Against {
            rule: format!(
                "{} of a GPU is not between its bounds{}{}",
                size.fraction,
                bound("least", rules.min),
                bound("most", rules.max)
            ),
            update: "gres=gpufrac:FRACTION".to_owned(),
        })
    }
}

/// The rule of a partition that forbids a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Against {
    pub rule: String,
    /// What `scontrol update` sets, so that the job can start.
    pub update: String,
}

/// The items that can be parsed.
fn items(tres: &str) -> impl Iterator<Item = Item<'_>> {
    tres.split(',')
        .filter_map(|item| request::parse(item).ok())
        .flatten()
}

fn names_gpu(tres: &str) -> bool {
    items(tres).any(|item| matches!(&item.kind, Kind::Gpu(gpus) if gpus.count != Some(0)))
}

/// The units of these devices in a text of Slurm, e.g. `gres:gpufrac:25,gres:shard:25`. The count of shards is what
/// Slurm counts on a device; `gpufrac` has the count for whole devices; devices requested by their Type are whole
/// ones. None if the text has none of these.
pub fn units_of_tres(tres_per_node: &str, devices: &[Device<'_>]) -> Option<Units> {
    let fraction = items(tres_per_node).find_map(|item| match item.kind {
        Kind::Gpufrac { amount, .. } => match amount {
            Amount::Integer(units) => positive(units),
            Amount::Fraction(fraction) => Some(fraction.units()),
            Amount::Percent(_) | Amount::Memory(_) => None,
        },
        _ => None,
    });
    let whole = || names_gpu(tres_per_node).then(|| all_of(devices));
    shards_of_tres(tres_per_node).or(fraction).or_else(whole)
}

/// All units of these devices.
pub(super) fn all_of<'d>(devices: impl IntoIterator<Item = &'d Device<'d>>) -> Units {
    let each = devices
        .into_iter()
        .map(|device| device.pool.layout.capacity.0);
    Units(each.sum())
}

fn shards_of_tres(tres: &str) -> Option<Units> {
    items(tres).find_map(|item| match &item.kind {
        Kind::Shard(shards) => positive(shards.count?),
        _ => None,
    })
}

fn positive(count: u64) -> Option<Units> {
    let count = u32::try_from(count).ok();
    count.filter(|count| *count > 0).map(Units)
}

/// The units by Slurm's record, otherwise by the entry.
pub fn granted(
    asked: Option<&Asked>,
    entry: Option<Entry>,
    devices: &[Device<'_>],
) -> Option<Units> {
    asked
        .and_then(|asked| asked.units(devices))
        .or(entry.map(|entry| entry.units))
}

/// The largest menu entry of the pool with a price of at most the granted units.
pub fn menu_entry<'a>(device: &Device<'a>, granted: Units) -> Option<&'a MenuEntry> {
    let menu = &device.pool.layout.menu;
    menu.iter().rev().find(|entry| entry.units <= granted)
}

#[cfg(test)]
mod tests {
    use gpufrac_core::config::Config;
    use gpufrac_core::mechanism::Mechanism;
    use gpufrac_core::policy::IdleWish;

    use super::*;

    fn config(layout: &str) -> Config {
        let text = format!(
            "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"{layout}\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"n1\"\n"
        );
        Config::parse(&text, "test").unwrap()
    }

    fn asked(per_node: &str, elsewhere: &str) -> Asked {
        Asked {
            per_node: per_node.to_owned(),
            elsewhere: elsewhere.to_owned(),
            per_task: String::new(),
        }
    }

    #[test]
    fn slurms_shards_go_before_the_entry() {
        let config = config("halves");
        let device = config.devices_of_node("n1", 1)[0];
        let entry = Some(Entry {
            units: Units(50),
            mechanism: Some(Mechanism::Mig),
            per_task: false,
            wish: IdleWish::Default,
            burst: None,
        });
        let units = |tres: Option<&str>| {
            let asked = tres.map(|tres| asked(tres, ""));
            granted(asked.as_ref(), entry, &[device]).map(|units| units.0)
        };
        assert_eq!(units(Some("gres:gpufrac:25,gres:shard:25")), Some(25));
        assert_eq!(units(Some("gres/tmpdisk:10,gres/shard:13")), Some(13));
        assert_eq!(units(Some("gres:gpu:half:1")), Some(50));
        assert_eq!(units(Some("gres:tmpdisk:10")), Some(50));
        assert_eq!(
            units(Some("gres:shard:0,gres:gpufrac:25,gres:shard:25")),
            Some(25)
        );
        assert_eq!(units(None), Some(50));
        let nothing = asked("gres:tmpdisk:10", "");
        assert_eq!(granted(Some(&nothing), None, &[device]), None);
        // A GPU for the whole job is a device; shares for the whole job are not those of one node.
        assert_eq!(asked("", "gres:gpu:1").units(&[device]), Some(Units(50)));
        assert_eq!(asked("", "gres:shard:50").units(&[device]), None);
        // One item that cannot be parsed does not hide the others.
        assert_eq!(
            asked("gres:gpufrac:x,gres:shard:25", "").units(&[device]),
            Some(Units(25))
        );
    }

    #[test]
    fn a_job_without_a_request_for_gpus_is_recognized() {
        let text = "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"n1\"\n";
        let config = Config::parse(text, "test").unwrap();
        for tres in [
            "",
            "gres:tmpdisk:5",
            "gres:gpu:0",
            "cpu:1",
            "gres/none",
            "gres:gpu:t4:1",
        ] {
            assert!(!asked(tres, "").is_for_gpu(&config), "{tres}");
            assert!(!asked("", tres).is_for_gpu(&config), "{tres}");
        }
        for tres in [
            "gres:gpu:1",
            "cpu:1,gres:gpu:half:2",
            "gres/shard:5",
            "gres/gpufrac:25",
            "gres:gpufrac:x",
        ] {
            assert!(asked(tres, "").is_for_gpu(&config), "{tres}");
            assert!(asked("", tres).is_for_gpu(&config), "{tres}");
        }
    }

    #[test]
    fn rules_hold_for_a_job_that_was_moved() {
        let text = "version = 1\n[pool.p]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\", \"small\", \"raw\"]\nnodes = \"n1\"\ngpus = [0]\n[pool.s]\nmechanism = \"mig\"\nlayout = \"slices\"\ngpu = \"H100-80\"\npartitions = [\"seven\"]\nnodes = \"n1\"\ngpus = [1]\n[partition.small]\nmin = 0.25\nmax = 0.25\n[partition.raw]\nallow_raw = true\nmax = 0.25\n[partition.seven]\nmin = \"1/7\"\n";
        let config = Config::parse(text, "test").unwrap();
        let devices = config.devices_of_node("n1", 2);
        let against = |partition, tres, units, device: usize| {
            let size = menu_entry(&devices[device], Units(units)).unwrap();
            let asked = asked(tres, "");
            asked.against_rules(&config, partition, &devices[device], Units(units), size)
        };
        let pair = "gres:gpufrac:50,gres:shard:50";
        assert_eq!(against("gpu", pair, 50, 0), None);
        // A partition without a pool, on the same nodes, does not evade the rules and limits of those that have one.
        for tres in ["gres:gpu:1", "gres:shard:50", pair] {
            let Against { rule, update } = against("cpu", tres, 50, 0).unwrap();
            assert!(rule.contains("pool p"), "{rule}");
            let asks = if tres == pair { "" } else { " gres=gpufrac:FRACTION" };
            assert_eq!(update, format!("partition=gpu{asks}"));
        }
        assert!(against("seven", pair, 50, 0).is_some());
        assert!(
            against("small", pair, 50, 0)
                .unwrap()
                .rule
                .contains("at most 0.25")
        );
        assert!(
            against("small", pair, 13, 0)
                .unwrap()
                .rule
                .contains("at least 0.25")
        );
        assert_eq!(against("small", pair, 25, 0), None);
        // 1/7 is 14 units of a menu entry, whatever 1/7 of 100 is.
        let slice = devices
            .iter()
            .position(|device| device.pool.name == "s")
            .unwrap();
        assert_eq!(
            against("seven", "gres:gpufrac:14,gres:shard:14", 14, slice),
            None
        );
        assert!(against("gpu", "gres:gpu:half:1", 50, 0).is_some());
        assert!(against("gpu", "gres:shard:50", 50, 0).is_some());
        assert_eq!(against("raw", "gres:gpu:half:1", 50, 0), None);
    }

    #[test]
    fn a_whole_device_is_all_of_it() {
        let config = config("whole");
        let device = config.devices_of_node("n1", 1)[0];
        for tres in ["gres:gpu:whole:1,gres:gpufrac:100", "gres/gpu:whole:1"] {
            assert_eq!(units_of_tres(tres, &[device]), Some(Units(100)), "{tres}");
        }
        let devices = config.devices_of_node("n1", 4);
        for tres in [
            "gres:gpu:whole:4,gres:gpufrac:400",
            "gres/gpu:whole:4",
            "gres:gpu:4",
        ] {
            assert_eq!(units_of_tres(tres, &devices), Some(Units(400)), "{tres}");
        }
        assert_eq!(
            menu_entry(&device, Units(100)).map(|entry| entry.units),
            Some(Units(100))
        );
        assert!(menu_entry(&device, Units(99)).is_none());
    }

    #[test]
    fn a_size_outside_of_the_menu_is_rounded_down() {
        let config = config("halves");
        let device = config.devices_of_node("n1", 1)[0];
        let units = |granted| menu_entry(&device, Units(granted)).map(|entry| entry.units.0);
        assert_eq!(units(50), Some(50));
        assert_eq!(units(49), Some(25));
        assert_eq!(units(24), Some(13));
        assert_eq!(units(12), None);
    }
}
