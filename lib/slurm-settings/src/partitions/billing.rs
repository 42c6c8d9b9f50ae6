//! Judges what a partition bills: weights of whole GPUs alone make a fraction free.

use std::collections::BTreeSet;

use gpufrac_core::config::Config;
use gpufrac_core::count_name::CountName;
use gpufrac_core::finding::{Finding, Severity};

use super::super::{Settings, gpu_count};

const KEY: &str = "TRESBillingWeights";

/// The finding about the weights of a partition.
pub(in super::super) fn judge(
    settings: &Settings,
    config: &Config,
    name: &str,
    found: &mut Vec<Finding>,
) {
    let count = &config.count_name;
    let others = types_without_pool(settings, config, name);
    let is_free = |weights: &str| weight_of_gpus(weights, count, &others).is_some();
    let Some((place, weights)) = super::bad(settings, name, KEY, &is_free) else {
        return;
    };
    let unit = weight_of_gpus(&weights, count, &others).unwrap_or_default() / 100.0;
    // `TRESBillingWeights` has the weight of whole GPUs alone. Cure: Write the weight of the hint: a hundredth of that
    // of a GPU, for gpufrac's count.
    found.push(Finding {
        severity: Severity::Warning,
        place: Some(place),
        what: format!(
            "partition {name} bills gres/gpu and not gres/{count}: a fraction of a GPU costs no more than its CPUs and memory"
        ),
        fix: format!(
            "write in TRESBillingWeights of partition {name} GRES/{count}={unit} instead of GRES/gpu, 100 are a GPU: {KEY}=\"{}\"{}",
            with_fractions(&weights, count, unit, &others),
            cut_off(unit)
        ),
    });
}

/// Slurm bills whole numbers and cuts the rest off.
fn cut_off(unit: f64) -> &'static str {
    if unit < 1.0 {
        "; Slurm cuts decimals of the bill off: where small sizes would bill 0, multiply all weights of all partitions by 100"
    } else {
        ""
    }
}

/// The Types of GPUs that Slurm itself lends in a partition.
fn types_without_pool(settings: &Settings, config: &Config, name: &str) -> BTreeSet<String> {
    let site = settings.site();
    let nodes = site.partition(name).into_iter().flat_map(|it| &it.nodes);
    let nodes = nodes.filter_map(|node| site.node(node));
    nodes
        .flat_map(|node| gpu_count::types_without_pool(node, config))
        .filter(|kind| !kind.is_empty())
        .collect()
}

/// The weights with that of fractions in place of those of GPUs; GPUs without a pool keep theirs, by their Types.
fn with_fractions(
    weights: &str,
    count: &CountName,
    unit: f64,
    others: &BTreeSet<String>,
) -> String {
    let pairs = || weights.split(',').map(str::trim);
    let named = |pair: &&str| {
        pair.split_once('=')
            .is_some_and(|(name, _)| is_of_gpus(name))
    };
    let kept = pairs().filter(|pair| !named(pair)).map(str::to_owned);
    let of = |wanted: &str| {
        let mut pairs = pairs().filter_map(|pair| pair.split_once('='));
        let pair = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case(wanted));
        pair.map(|(_, weight)| weight)
    };
    let of_others = others.iter().filter_map(|kind| {
        let name = format!("GRES/gpu:{kind}");
        let weight = of(&name).or_else(|| of("gres/gpu"))?;
        Some(format!("{name}={weight}"))
    });
    let own = format!("GRES/{count}={unit}");
    let all = kept.chain(of_others).chain([own]);
    all.collect::<Vec<_>>().join(",")
}

/// Whether a weight is one of whole GPUs, of a Type or of all.
fn is_of_gpus(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    name == "gres/gpu" || name.starts_with("gres/gpu:")
}

/// The weight of a GPU of pools, the greatest of several Types, where weights bill GPUs and no fractions.
fn weight_of_gpus(weights: &str, count: &CountName, others: &BTreeSet<String>) -> Option<f64> {
    let pairs = || weights.split(',').filter_map(|pair| pair.split_once('='));
    let own = [format!("gres/{count}"), "gres/shard".to_owned()];
    let is_billed = |name: &str| {
        own.iter()
            .any(|own| name.trim().to_ascii_lowercase().starts_with(own.as_str()))
    };
    if pairs().any(|(name, _)| is_billed(name)) {
        return None;
    }
    let is_other = |name: &str| {
        let kind = name.trim().split_once(':').map(|(_, kind)| kind);
        kind.is_some_and(|kind| others.iter().any(|other| other.eq_ignore_ascii_case(kind)))
    };
    let of_gpus = pairs().filter(|(name, _)| is_of_gpus(name) && !is_other(name));
    let weights = of_gpus.filter_map(|(_, weight)| weight.trim().parse::<f64>().ok());
    weights.filter(|weight| *weight > 0.0).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_types_are_weights_of_gpus() {
        let count = "frac".parse().unwrap();
        let none = BTreeSet::new();
        let weight = |weights: &str| weight_of_gpus(weights, &count, &none);
        assert_eq!(
            weight("CPU=1,GRES/gpu:h100=50,gres/gpu:a100=100"),
            Some(100.0)
        );
        assert_eq!(weight("CPU=1,GRES/gpu=100,GRES/frac=1"), None);
        assert_eq!(weight("CPU=1,GRES/gpu=0"), None);
        let all = |weights, others| with_fractions(weights, &count, 1.0, others);
        assert_eq!(
            all("CPU=1.0, GRES/gpu:h100=100,Mem=0.25G", &none),
            "CPU=1.0,Mem=0.25G,GRES/frac=1"
        );
        let others = BTreeSet::from(["v100".to_owned()]);
        let typed = "CPU=1,GRES/gpu:h100=100,GRES/gpu:v100=800";
        assert_eq!(all(typed, &others), "CPU=1,GRES/gpu:v100=800,GRES/frac=1");
        assert_eq!(weight_of_gpus(typed, &count, &others), Some(100.0));
        assert_eq!(
            all("GRES/gpu=100", &others),
            "GRES/gpu:v100=100,GRES/frac=1"
        );
        assert_eq!(cut_off(1.0), "");
    }
}
