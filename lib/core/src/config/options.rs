//! The keys of a pool that only some mechanisms and layouts have.

use super::error::Problem;
use super::keys::POOL;
use super::read::Section;
use crate::fraction::{Fraction, Units};
use crate::layout::LayoutKind;
use crate::mechanism::Mechanism;
use crate::pool::{Burst, PoolOptions, Tenancy};

/// Clients of one MPS server on a GPU of Volta or later (NVIDIA's MPS guide, "client-server connection limits"; newer
/// editions say 60). A MIG instance has its share of them: a half with three of seven compute slices has 20.
const MAX_CLIENTS_PER_GPU: u32 = 48;
const MAX_CLIENTS_PER_HALF: u32 = MAX_CLIENTS_PER_GPU * 3 / 7;

/// The smallest share, in units, at which the shared control daemon has room for a client of every job that Slurm
/// admits.
pub(super) fn least_share(mechanism: Mechanism, options: &PoolOptions) -> Units {
    let (device, clients) = match (mechanism, options.tenancy) {
        (Mechanism::Mps, Tenancy::Shared) => (100_u32, MAX_CLIENTS_PER_GPU),
        (Mechanism::MigMps, _) => (50, MAX_CLIENTS_PER_HALF),
        _ => return Units(1),
    };
    // A share is at least one chunk.
    let places = options
        .sm_chunks
        .map_or(clients, |chunks| chunks.min(clients));
    Units(device.div_ceil(places.max(1)))
}

/// Reads the options. `kind` is None if the layout could not be read.
pub(super) fn read(
    section: &Section<'_>,
    mechanism: Mechanism,
    kind: Option<LayoutKind>,
) -> Option<PoolOptions> {
    let before = section.source.mistakes();
    for key in POOL.keys.iter().filter(|key| !key.mechanisms.is_empty()) {
        let Some(item) = section.get(key.name) else {
            continue;
        };
        match kind {
            _ if !key.mechanisms.contains(&mechanism) => {
                item.meaningless(&format!("mechanism {mechanism}"));
            }
            Some(kind) if !key.layouts.is_empty() && !key.layouts.contains(&kind) => {
                item.meaningless(&format!("layout \"{kind}\""));
            }
            _ => {}
        }
    }
    if section.source.mistakes() > before {
        return None;
    }
    let whole = kind == Some(LayoutKind::Whole);
    if mechanism == Mechanism::Mps && !whole {
        // There is no default, because `tenancy` decides how jobs of different users can affect each other.
        let example = "tenancy = \"shared\" (one control daemon on a GPU, kernels side by side) or \"private\" (one for each job, limits that it cannot raise)";
        section.need("tenancy", example.to_owned());
    }
    if mechanism == Mechanism::Hami && !whole {
        POOL.need(section, "library");
    }
    let mut options = PoolOptions::default();
    POOL.fill(section, &mut options);
    let is_private = options.tenancy == Tenancy::Private;
    if let Some(item) = section.get("sm_chunks").filter(|_| is_private) {
        item.meaningless("tenancy \"private\"");
    }
    options.burst = burst(section, mechanism, &options);
    (section.source.mistakes() == before).then_some(options)
}

/// `burst_max` and `burst_default`.
fn burst(section: &Section<'_>, mechanism: Mechanism, options: &PoolOptions) -> Option<Burst> {
    let (max, default) = (section.get("burst_max"), section.get("burst_default"));
    let of = match options {
        _ if options.tenancy == Tenancy::Private => Some("tenancy \"private\""),
        // A partition has its multiprocessors alone.
        _ if options.sm_chunks.is_some() => Some("a pool with sm_chunks"),
        _ => None,
    };
    for item in [&max, &default].into_iter().flatten() {
        if let Some(of) = of {
            item.meaningless(of);
        }
    }
    let Some(max) = max else {
        if let Some(default) = default.filter(|_| of.is_none()) {
            default.wrong(Problem::BurstWithoutMax);
        }
        return None;
    };
    let most = max.fraction()?;
    let bound = match mechanism {
        // The half of the GPU, which is one instance.
        Mechanism::MigMps if most.units().0 > 50 => Some(("at most 0.5", "a half of the GPU")),
        Mechanism::Hami if most < Fraction::ONE => {
            Some(("1", "HAMi-core, whose limit can only be lifted"))
        }
        _ => None,
    };
    if let Some((write, of)) = bound {
        let value = most.to_string();
        max.wrong(Problem::BurstMax { value, write, of });
        return None;
    }
    let Some(item) = default else {
        let (max, default) = (most.units(), None);
        return Some(Burst { max, default });
    };
    let default = item.fraction()?;
    let is_right = match mechanism {
        Mechanism::Hami => default == most,
        _ => default <= most,
    };
    if !is_right {
        let (default, max) = (default.to_string(), most.to_string());
        item.wrong(Problem::BurstDefault { default, max });
        return None;
    }
    Some(Burst {
        max: most.units(),
        default: Some(default.units()),
    })
}
