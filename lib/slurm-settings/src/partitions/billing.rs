//! Judges what a partition bills: weights of whole GPUs alone make a fraction free.

use gpufrac_core::config::Config;
use gpufrac_core::count_name::CountName;
use gpufrac_core::finding::{Finding, Severity};

use super::super::Settings;

const KEY: &str = "TRESBillingWeights";

/// The finding about the weights of a partition.
pub(in super::super) fn judge(
    settings: &Settings,
    config: &Config,
    name: &str,
    found: &mut Vec<Finding>,
) {
    let count = &config.count_name;
    let is_free = |weights: &str| weight_of_gpus(weights, count).is_some();
    let Some((place, weights)) = super::bad(settings, name, KEY, &is_free) else {
        return;
    };
    let unit = weight_of_gpus(&weights, count).unwrap_or_default() / 100.0;
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
            with_fractions(&weights, count, unit),
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

/// The weights with that of fractions in place of those of GPUs.
fn with_fractions(weights: &str, count: &CountName, unit: f64) -> String {
    let pairs = weights.split(',').map(str::trim);
    let kept = pairs.filter(|pair| {
        !pair
            .split_once('=')
            .is_some_and(|(name, _)| is_of_gpus(name))
    });
    let own = format!("GRES/{count}={unit}");
    kept.chain([own.as_str()]).collect::<Vec<_>>().join(",")
}

/// Whether a weight is one of whole GPUs, of a Type or of all.
fn is_of_gpus(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase();
    name == "gres/gpu" || name.starts_with("gres/gpu:")
}

/// The weight of a GPU, the greatest of several Types, where weights bill GPUs and no fractions.
fn weight_of_gpus(weights: &str, count: &CountName) -> Option<f64> {
    let pairs = || weights.split(',').filter_map(|pair| pair.split_once('='));
    let own = [format!("gres/{count}"), "gres/shard".to_owned()];
    let is_billed = |name: &str| {
        own.iter()
            .any(|own| name.trim().to_ascii_lowercase().starts_with(own.as_str()))
    };
    if pairs().any(|(name, _)| is_billed(name)) {
        return None;
    }
    let of_gpus = pairs().filter(|(name, _)| is_of_gpus(name));
    let weights = of_gpus.filter_map(|(_, weight)| weight.trim().parse::<f64>().ok());
    weights.filter(|weight| *weight > 0.0).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_types_are_weights_of_gpus() {
        let count = "frac".parse().unwrap();
        let weight = |weights: &str| weight_of_gpus(weights, &count);
        assert_eq!(
            weight("CPU=1,GRES/gpu:h100=50,gres/gpu:a100=100"),
            Some(100.0)
        );
        assert_eq!(weight("CPU=1,GRES/gpu=100,GRES/frac=1"), None);
        assert_eq!(weight("CPU=1,GRES/gpu=0"), None);
        let all = with_fractions("CPU=1.0, GRES/gpu:h100=100,Mem=0.25G", &count, 1.0);
        assert_eq!(all, "CPU=1.0,Mem=0.25G,GRES/frac=1");
        assert_eq!(cut_off(1.0), "");
    }
}
