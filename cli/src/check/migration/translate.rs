//! What to write instead of a request by Slurm's own names, in the sizes of a partition.

use std::collections::BTreeSet;

use gpufrac_core::config::{Config, Pool};
use gpufrac_core::fraction::{Fraction, Units};
use gpufrac_core::layout::MenuEntry;
use gpufrac_core::mig_type::MigType;

use gpufrac_core::request::{self, Kind};
use gpufrac_slurm_conf::counts;
use gpufrac_slurm_settings::{Settings, gpu_count};

use super::request::Request;

/// What a partition offers.
pub struct Partition {
    /// Parts of a GPU, the smallest first.
    sizes: Vec<MenuEntry>,
    /// The most whole GPUs of a node; 0 where none is lent.
    most_gpus: u32,
    /// Types of its GPUs without a pool.
    others: BTreeSet<String>,
    /// Whether it has such GPUs on nodes without any pool, where a request needs no Type.
    has_other_nodes: bool,
    /// Shards of a GPU, while Slurm still counts the site's own.
    shards: Option<f64>,
}

/// What a request wants.
#[derive(Debug, PartialEq)]
enum Wanted<'a> {
    Gpus(u64),
    /// A part of a GPU, and the MIG profile that it named.
    Part(f64, Option<&'a str>),
    Unknown,
}

impl Partition {
    pub fn of(name: &str, settings: &Settings, config: &Config) -> Partition {
        let pools = config.pools_of_partition(name);
        let rules = config.rules(name);
        let menu = pools.iter().flat_map(|pool| &pool.layout.menu);
        let allowed = menu.filter(|size| rules.is_none_or(|rules| rules.allow(size)));
        let (whole, mut sizes): (Vec<MenuEntry>, Vec<MenuEntry>) = allowed
            .cloned()
            .partition(|size| size.units == Units::WHOLE);
        sizes.sort_by_key(|size| size.units);
        let lending = pools
            .iter()
            .filter(|pool| pool.lends_whole() && !whole.is_empty());
        let site = settings.site();
        let nodes = site
            .partition(name)
            .map(|partition| partition.nodes.clone());
        let nodes: Vec<_> = nodes
            .iter()
            .flatten()
            .filter_map(|name| site.node(name))
            .collect();
        let others = nodes
            .iter()
            .flat_map(|node| gpu_count::types_without_pool(node, config));
        Partition {
            most_gpus: lending
                .map(|pool| pool.most_gpus())
                .max()
                .unwrap_or_default(),
            others: others.collect(),
            has_other_nodes: nodes.iter().any(|node| {
                let gres = counts(node.gres().unwrap_or_default());
                config.pools_of_node(&node.name).is_empty()
                    && gres.keys().any(|(name, _)| name == "gpu")
            }),
            shards: nodes
                .iter()
                .find_map(|node| shards_of_a_gpu(&node.name, settings, config)),
            sizes,
        }
    }

    /// What to write instead; None for a request that Slurm still serves.
    pub fn instead(&self, asked: &Request) -> Option<String> {
        let items = request::parse(&asked.gres).ok()?;
        let mut ended = items.iter().filter_map(|item| self.wanted(&item.kind));
        let wanted = ended.next()?;
        let others = items.iter().filter(|item| matches!(item.kind, Kind::Other));
        let others: String = others
            .map(|item| format!(",{}", request::without_mark(item.text)))
            .collect();
        Some(match self.size(&wanted) {
            Some(size) => format!("--gres=gpufrac:{size}{others}"),
            None => "no request of this partition".to_owned(),
        })
    }

    fn wanted<'k>(&self, kind: &Kind<'k>) -> Option<Wanted<'k>> {
        match kind {
            Kind::Gpu(count) => {
                let number = count.count.unwrap_or(1);
                let type_name = count.type_name.unwrap_or_default();
                let is_served = match type_name {
                    "" => self.has_other_nodes,
                    name => self.others.contains(name),
                };
                if number == 0 || is_served {
                    return None;
                }
                Some(match MigType::of(type_name) {
                    Some(instance) => of_instances(&instance, type_name, number),
                    None => Wanted::Gpus(number),
                })
            }
            Kind::Shard(count) => {
                let number = count.count.filter(|number| *number > 0)?;
                Some(
                    self.shards
                        .map_or(Wanted::Unknown, |all| part(number as f64 / all, None)),
                )
            }
            Kind::Mps(count) => {
                let number = count.count.filter(|number| *number > 0)?;
                Some(part(number as f64 / 100.0, None))
            }
            _ => None,
        }
    }

    /// The amount behind `gpufrac:`; None where the partition has nothing as large.
    fn size(&self, wanted: &Wanted<'_>) -> Option<String> {
        let gpus = |number: u64| (number <= self.most_gpus.into()).then(|| number.to_string());
        match wanted {
            // Without whole GPUs the largest part is the nearest to one.
            Wanted::Gpus(1) => gpus(1).or_else(|| Some(self.sizes.last()?.fraction.to_string())),
            Wanted::Gpus(number) => gpus(*number),
            Wanted::Part(part, profile) => {
                let same = self
                    .sizes
                    .iter()
                    .find(|size| profile.is_some_and(|name| name.ends_with(&size.profile_name)));
                // NVIDIA's and Slurm's parts are rounded.
                let enough = |size: &&MenuEntry| value(size.fraction) + 0.01 >= *part;
                let size = same.or_else(|| self.sizes.iter().find(enough));
                size.map(|size| size.fraction.to_string())
                    .or_else(|| gpus(1))
            }
            Wanted::Unknown => {
                let sizes: Vec<String> = self
                    .sizes
                    .iter()
                    .map(|size| size.fraction.to_string())
                    .collect();
                match sizes.as_slice() {
                    [] => gpus(1),
                    [one] => Some(one.clone()),
                    [first, .., last] => Some(format!("{first} to gpufrac:{last}")),
                }
            }
        }
    }
}

/// The Types of a node's GPUs that have no pool.
fn value(fraction: Fraction) -> f64 {
    fraction.to_string().parse().unwrap_or(1.0)
}

fn part(part: f64, profile: Option<&str>) -> Wanted<'_> {
    if part > 1.0 {
        Wanted::Gpus(part.ceil() as u64)
    } else {
        Wanted::Part(part, profile)
    }
}

fn of_instances<'k>(instance: &MigType<'k>, name: &'k str, number: u64) -> Wanted<'k> {
    let profile = (number == 1).then_some(name);
    part(instance.part().share() * number as f64, profile)
}

/// Shards of a GPU of a node, while its shards are the site's own.
fn shards_of_a_gpu(node: &str, settings: &Settings, config: &Config) -> Option<f64> {
    let site = settings.site();
    let counts = counts(site.node(node)?.gres()?);
    let own = |kind: &str| Pool::TYPE_NAMES.contains(&kind);
    let is_own = counts
        .keys()
        .any(|(name, kind)| name == config.count_name.as_str() || own(kind));
    let shards = counts.iter().filter(|((name, _), _)| name == "shard");
    let shards: u64 = shards.map(|(_, count)| *count).sum();
    let gpus = gpu_count::of(settings, config, node)
        .number()
        .filter(|gpus| *gpus > 0)?;
    (shards > 0 && !is_own).then(|| shards as f64 / f64::from(gpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(layout: &str) -> Partition {
        let pools = format!(
            "version = 1\n[pool.h]\nmechanism = \"mig\"\nlayout = \"{layout}\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"gn[01-02]\"\n"
        );
        let config = Config::parse(&pools, "gpufrac.toml").unwrap();
        Partition::of("gpu", &Settings::default(), &config)
    }

    fn instead(partition: &Partition, gres: &str) -> Option<String> {
        let new = partition.instead(&Request::of_option("--gres", gres).unwrap());
        new.map(|new| new.replace("--gres=", ""))
    }

    #[test]
    fn gpus_without_a_pool_keep_their_types() {
        let pools = "version = 1\n[pool.h]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\ngpus = [0]\npartitions = [\"gpu\"]\nnodes = \"gn01\"\n";
        let config = Config::parse(pools, "gpufrac.toml").unwrap();
        for (node, expected) in [
            ("gn01", &["h100"][..]),
            // In no pool.
            ("gn02", &["h100"]),
        ] {
            let text = format!("NodeName={node} Gres=gpu:half:2,gpu:h100:3,shard:h100:3\n");
            let read = |_: &std::path::Path| Ok(text.clone());
            let file = gpufrac_slurm_conf::read_conf("slurm.conf".as_ref(), &read).unwrap();
            let site = gpufrac_slurm_conf::Site::of(&file);
            let types = gpu_count::types_without_pool(site.node(node).unwrap(), &config);
            assert_eq!(types, expected, "{node}");
        }
    }

    #[test]
    fn each_old_request_has_a_new_one_of_the_menu() {
        let halves = partition("halves");
        for (old, new) in [
            ("gpu:h100:1", "gpufrac:0.5"),
            ("gpu:2", "no request of this partition"),
            ("gpu:1g.10gb:1", "gpufrac:0.125"),
            ("gpu:h100_3g.40gb:1", "gpufrac:0.5"),
            ("mps:20", "gpufrac:0.25"),
            ("mps:100,tmpdisk:5", "no request of this partition"),
            ("shard:4", "gpufrac:0.125 to gpufrac:0.5"),
        ] {
            assert_eq!(instead(&halves, old).as_deref(), Some(new), "{old}");
        }
        let part = Partition {
            others: ["h100".to_owned()].into(),
            ..partition("halves")
        };
        assert_eq!(instead(&part, "gpu:h100:1"), None);
        assert_eq!(instead(&part, "gpu:1").as_deref(), Some("gpufrac:0.5"));
        let whole = partition("whole");
        assert_eq!(
            instead(&whole, "gpu:h100:4,tmpdisk:5").as_deref(),
            Some("gpufrac:4,tmpdisk:5")
        );
        assert_eq!(instead(&whole, "gpu:0"), None);
        let shards = Partition {
            shards: Some(10.0),
            ..partition("halves")
        };
        assert_eq!(instead(&shards, "shard:2").as_deref(), Some("gpufrac:0.25"));
        // Nodes without a pool still serve it.
        let mixed = Partition {
            others: BTreeSet::from(["a100".to_owned()]),
            has_other_nodes: true,
            ..partition("halves")
        };
        assert_eq!(instead(&mixed, "gpu:a100:1"), None);
        assert_eq!(instead(&mixed, "gpu:1"), None);
        assert_eq!(
            instead(&mixed, "gpu:h100:1").as_deref(),
            Some("gpufrac:0.5")
        );
    }
}
