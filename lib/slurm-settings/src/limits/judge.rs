//! Judges limits by what they do to a fraction, which is `gres/shard` and gpufrac's own count to slurmctld, and no
//! `gres/gpu`. Tried on 22.05, 24.11 and 26.05; limits of Types and `DenyOnLimit` on the latter two alone, and
//! `gres/mps` on none.

use std::collections::BTreeSet;

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::fraction::{Fraction, Units};
use gpufrac_core::layout::LayoutKind;
use gpufrac_core::slurm_release::SlurmSeries;
use gpufrac_slurm_conf::counts;

use super::super::gres_lines::is_own_type;
use super::super::{Settings, rules};
use super::{Limit, Owner, are_enforced};

/// The most sizes that a finding lists.
const MOST_LISTED: usize = 8;

/// The facts about the cluster that a limit is judged by.
struct Site<'a> {
    config: &'a Config,
    /// The sizes that Slurm counts as shards.
    sizes: BTreeSet<(Units, Fraction)>,
    /// Types of GPUs on nodes without a pool.
    other_types: BTreeSet<String>,
    /// Whether a node without a pool has GPUs.
    has_others: bool,
    severity: Severity,
    /// What must be done before sacctmgr knows the count.
    before: String,
}

pub(in super::super) fn judge(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let site = Site::of(settings, config);
    for limit in &settings.limits.rows {
        found.extend(of_gpus(limit, &site));
        found.extend(of_shards(limit, &site));
    }
}

impl<'a> Site<'a> {
    fn of(settings: &Settings, config: &'a Config) -> Site<'a> {
        let others = settings.site().nodes.into_iter();
        let others = others.filter(|node| config.pools_of_node(&node.name).is_empty());
        let others: Vec<_> = others
            .flat_map(|node| counts(node.gres().unwrap_or_default()))
            .collect();
        let others = || others.iter().filter(|((name, _), _)| name == "gpu");
        let tracked = settings.value("AccountingStorageTRES").unwrap_or_default();
        let tres = format!("gres/{}", config.count_name);
        let is_known = tracked.split(',').any(|known| rules::is(known, &tres));
        Site {
            config,
            sizes: sizes(settings, config),
            other_types: others().map(|((_, kind), _)| kind.clone()).collect(),
            has_others: others().next().is_some(),
            severity: if are_enforced(settings) { Severity::Warning } else { Severity::Note },
            before: if is_known {
                String::new()
            } else {
                format!("first add {tres} to AccountingStorageTRES and restart slurmctld, then: ")
            },
        }
    }

    /// The requests for more shards than this; None if there are none.
    fn sizes_over(&self, most: u64) -> Option<String> {
        let over = self
            .sizes
            .iter()
            .filter(|(units, _)| u64::from(units.0) > most);
        let over: Vec<String> = over.map(|(_, size)| format!("gpufrac:{size}")).collect();
        match over.as_slice() {
            [] => None,
            [first, .., last] if over.len() > MOST_LISTED => Some(format!("{first} to {last}")),
            all => Some(all.join(", ")),
        }
    }

    fn fault(&self, what: String, limit: &Limit) -> Finding {
        Finding {
            severity: self.severity,
            place: Some(limit.owner.place()),
            what,
            fix: format!("{}{}", self.before, line(limit, self)),
        }
    }
}

impl Limit {
    /// Whether the limit is one of counts times minutes.
    fn is_of_minutes(&self) -> bool {
        self.key.contains("Mins")
    }
}

/// The sizes of all pools that Slurm counts as shards. Up to 23.02 job_submit asks for a whole GPU of a pool with parts
/// so, too.
fn sizes(settings: &Settings, config: &Config) -> BTreeSet<(Units, Fraction)> {
    let whole_too = settings
        .release()
        .is_some_and(|own| own.series <= SlurmSeries::new(23, 2));
    let shared = config
        .pools
        .iter()
        .filter(|pool| pool.layout.kind != LayoutKind::Whole);
    let menus = shared.flat_map(|pool| &pool.layout.menu);
    let sizes = menus.map(|size| (size.units, size.fraction));
    sizes
        .filter(|(units, _)| whole_too || *units < Units::WHOLE)
        .collect()
}

/// The limit in sacctmgr's words, with the counts that `of` chooses.
fn shown(limit: &Limit, of: impl Fn(&str) -> bool) -> String {
    let named = limit.gres.iter().filter(|(name, _)| of(name));
    let named: Vec<String> = named
        .map(|(name, count)| format!("gres/{name}={count}"))
        .collect();
    format!("{}={}", limit.key, named.join(","))
}

/// Whether a name is one under which Slurm counted whole GPUs, or their percents, and counts no fraction.
fn counts_gpus(name: &str, site: &Site<'_>) -> bool {
    match name.split_once(':') {
        Some(("gpu", kind)) => !is_own_type(kind) && !site.other_types.contains(kind),
        Some(_) => false,
        None => name == "gpu" || name == "mps",
    }
}

/// A limit on GPUs that holds no fraction.
fn of_gpus(limit: &Limit, site: &Site<'_>) -> Option<Finding> {
    let own = site.config.count_name.as_str();
    let count = |name: &str| limit.gres.get(name).copied().unwrap_or_default();
    let is_minimum = limit.key == "MinTRES";
    let of = |name: &str| counts_gpus(name, site) && !(is_minimum && count(name) == 0);
    if !limit.gres.keys().any(|name| of(name)) {
        return None;
    }
    let limited = shown(limit, of);
    match (is_minimum, limit.denies) {
        // The same, with `DenyOnLimit`. Cure: The `sacctmgr` of the hint.
        (true, true) => Some(site.fault(
            format!("{limited}: every fraction is refused, because Slurm counts no gres/gpu for it"),
            limit,
        )),
        // A QOS has `MinTRES` of GPUs. Cure: The `sacctmgr` of the hint.
        (true, false) => Some(site.fault(
            format!("{limited}: every fraction waits for ever (QOSMinGRES), because Slurm counts no gres/gpu for it"),
            limit,
        )),
        (false, _) if limit.gres.contains_key(own) => None,
        // A QOS or an association limits `gres/gpu`, a Type of GPUs that ended, or mps; a fraction is none of them.
        // Cure: The `sacctmgr` of the hint: 100 of gpufrac's count for each GPU.
        (false, _) => Some(site.fault(
            format!("{limited} limits no fraction: Slurm counts it as gres/{own}"),
            limit,
        )),
    }
}

/// A limit on shards, which holds parts of GPUs in hundredths and no whole GPU.
fn of_shards(limit: &Limit, site: &Site<'_>) -> Option<Finding> {
    let most = *limit.gres.get("shard")?;
    let limited = shown(limit, |name| name == "shard");
    if limit.key == "MinTRES" {
        return (most > 0).then(|| {
            // A QOS has `MinTRES` of shards. Cure: The `sacctmgr` of the hint.
            site.fault(
                format!("{limited}: a fraction below it waits for ever (QOSMinGRES), and so does a whole GPU, which has no shards"),
                limit,
            )
        });
    }
    match (site.sizes_over(most), limit.denies) {
        // The same, with `DenyOnLimit`. Cure: As above.
        (Some(over), true) if !limit.is_of_minutes() => Some(site.fault(
            format!("{limited} counts parts of GPUs, 100 a GPU: a request for {over} is refused"),
            limit,
        )),
        // A limit on `gres/shard` is below a size on offer. Cure: The `sacctmgr` of the hint permits each size once;
        // write a larger number for more.
        (Some(over), false) if !limit.is_of_minutes() => Some(site.fault(
            format!(
                "{limited} counts parts of GPUs, 100 a GPU: a request for {over} waits for ever"
            ),
            limit,
        )),
        _ if limit.gres.contains_key(site.config.count_name.as_str()) => None,
        // A limit on `gres/shard` stands where one on gpufrac's count is meant. Cure: The `sacctmgr` of the hint.
        _ => Some(site.fault(
            format!(
                "{limited} counts parts of GPUs, 100 a GPU, and no whole GPU, which has no shards"
            ),
            limit,
        )),
    }
}

/// The command that gives the limit for GPUs to fractions, too, and ends the one on shards. sacctmgr changes only the
/// counts that are named; -1 removes one.
fn line(limit: &Limit, site: &Site<'_>) -> String {
    let own = site.config.count_name.as_str();
    let mut words = Vec::new();
    for (name, count) in &limit.gres {
        match name.as_str() {
            "gpu" if limit.key != "MinTRES" => words.push(format!("gres/gpu={count}")),
            "gpu" | "shard" => words.push(format!("gres/{name}=-1")),
            _ if counts_gpus(name, site) => words.push(format!("gres/{name}=-1")),
            _ => {}
        }
    }
    let needed = match limit.gres.get(own) {
        Some(_) => None,
        None => units(limit, site),
    };
    words.extend(needed.map(|units| format!("gres/{own}={units}")));
    limit
        .owner
        .modify(&format!("{}={}", limit.key, words.join(",")))
}

/// The limit in units; None where none would be right.
fn units(limit: &Limit, site: &Site<'_>) -> Option<u64> {
    let count = |name: &str| limit.gres.get(name).copied();
    if limit.key == "MinTRES" {
        // The GPUs of other nodes have no units.
        let smallest = site.sizes.first().map_or(Units::WHOLE, |(units, _)| *units);
        let smallest = count("shard").unwrap_or(smallest.0.into());
        return (!site.has_others).then_some(smallest);
    }
    let typed = limit
        .gres
        .iter()
        .filter(|(name, _)| name.starts_with("gpu:"));
    let typed = typed.filter(|(name, _)| counts_gpus(name, site));
    let gpus = count("gpu").or_else(|| {
        typed
            .map(|(_, count)| *count)
            .reduce(|one, next| one.saturating_add(next))
    });
    let of_gpus = gpus.map(|gpus| gpus.saturating_mul(Units::WHOLE.0.into()));
    let shards = count("shard").map(|shards| match (shards, site.sizes.last()) {
        // The smallest limit that permits each size. Zero forbids, and still does.
        (1.., Some((largest, _))) if !limit.is_of_minutes() => shards.max(largest.0.into()),
        (shards, _) => shards,
    });
    of_gpus.or(shards).or_else(|| count("mps"))
}

impl Owner {
    /// Where the limit can be seen.
    fn place(&self) -> String {
        match self {
            Owner::Qos(name) => format!("sacctmgr show qos {name}"),
            Owner::Cluster(name) => format!("sacctmgr show assoc cluster={name} account=root"),
            Owner::Account { name, .. } => format!("sacctmgr show assoc account={name}"),
            Owner::Users { names, account, .. } => {
                format!(
                    "sacctmgr show assoc account={account} user={}",
                    names.join(",")
                )
            }
        }
    }

    /// The command that changes a limit.
    fn modify(&self, limit: &str) -> String {
        let whose = match self {
            Owner::Qos(name) => format!("qos {name}"),
            Owner::Cluster(name) => format!("cluster {name}"),
            Owner::Account { name, cluster } => {
                format!("account where name={name} cluster={cluster}")
            }
            Owner::Users {
                names,
                account,
                cluster,
                partition,
            } => {
                let of = match partition.as_str() {
                    "" => String::new(),
                    partition => format!(" partition={partition}"),
                };
                format!(
                    "user where name={} account={account} cluster={cluster}{of}",
                    names.join(",")
                )
            }
        };
        format!("sacctmgr modify {whose} set {limit}")
    }
}
