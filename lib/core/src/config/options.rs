//! The keys of a pool that only some mechanisms and layouts have.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::error::Problem;
use super::read::{Field, Section};
use crate::fraction::{Fraction, Units};
use crate::layout::LayoutKind;
use crate::mechanism::Mechanism;
use crate::pool::{Burst, PoolOptions, Tenancy, TimesliceLength, WholeGpu};

/// Clients of one MPS server on a GPU of Volta or later (NVIDIA's MPS guide, "client-server connection limits"; newer
/// editions say 60). A MIG instance has its share of them: a half with three of seven compute slices has 20.
const MAX_CLIENTS_PER_GPU: u32 = 48;
const MAX_CLIENTS_PER_HALF: u32 = MAX_CLIENTS_PER_GPU * 3 / 7;

/// The range of `reuse`. No instance is reused in less than a second; after an hour without a job an instance is no
/// longer useful.
const REUSE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

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

/// The keys, and the mechanisms and layouts for which each has a meaning.
const KEYS: [(&str, &[Mechanism], &[LayoutKind]); 13] = {
    use LayoutKind::{Halves, Shares, Slices, Uniform, Whole};
    use Mechanism::{Hami, Mig, MigMps, Mps, Timeslice};
    [
        ("memory", &[Mps, Timeslice, Hami], &[Shares, Whole]),
        ("equal_halves", &[Mig, MigMps], &[Halves]),
        ("equal", &[Mig], &[Uniform]),
        ("tenancy", &[Mps], &[Shares]),
        ("sm_chunks", &[Mps, MigMps], &[Shares, Halves]),
        ("burst_max", &[Mps, MigMps, Hami], &[Shares, Halves]),
        ("burst_default", &[Mps, MigMps, Hami], &[Shares, Halves]),
        ("memory_limits", &[Mps, Timeslice, Hami], &[Shares]),
        ("timeslice", &[Timeslice], &[Shares]),
        (
            "framework_hints",
            &[Mps, MigMps, Timeslice, Hami],
            &[Shares, Halves],
        ),
        ("library", &[Hami], &[Shares]),
        ("whole", &[Mig], &[Uniform, Whole]),
        ("reuse", &[Mig], &[Halves, Slices, Uniform, Whole]),
    ]
};

/// Reads the options. `kind` is None if the layout could not be read.
pub(super) fn read(
    section: &Section<'_>,
    mechanism: Mechanism,
    kind: Option<LayoutKind>,
) -> Option<PoolOptions> {
    let before = section.source.mistakes();
    for (key, mechanisms, layouts) in KEYS {
        let Some(item) = section.get(key) else {
            continue;
        };
        let of = match kind {
            _ if !mechanisms.contains(&mechanism) => format!("mechanism {mechanism}"),
            Some(kind) if !layouts.contains(&kind) => format!("layout \"{kind}\""),
            _ => continue,
        };
        item.wrong(Problem::Meaningless { of });
    }
    if section.source.mistakes() > before {
        return None;
    }
    let mut options = PoolOptions {
        memory_limits: section.is_on("memory_limits"),
        framework_hints: section.is_on("framework_hints"),
        ..PoolOptions::default()
    };
    let whole = kind == Some(LayoutKind::Whole);
    if mechanism == Mechanism::Mps && !whole {
        // There is no default, because `tenancy` decides how jobs of different users can affect each other.
        let example = "tenancy = \"shared\" (one control daemon on a GPU, kernels side by side) or \"private\" (one for each job, limits that it cannot raise)";
        let words = [("shared", Tenancy::Shared), ("private", Tenancy::Private)];
        let item = section.need("tenancy", example);
        if let Some(tenancy) = item.and_then(|item| item.one_of(&words)) {
            options.tenancy = tenancy;
        }
    }
    if let Some(item) = section.get("sm_chunks") {
        options.sm_chunks = item.count();
        if options.tenancy == Tenancy::Private {
            let of = "tenancy \"private\"".to_owned();
            item.wrong(Problem::Meaningless { of });
        }
    }
    options.burst = burst(section, mechanism, &options);
    let lengths = [
        ("default", TimesliceLength::Default),
        ("short", TimesliceLength::Short),
        ("medium", TimesliceLength::Medium),
        ("long", TimesliceLength::Long),
    ];
    options.timeslice = section.read("timeslice", |item| item.one_of(&lengths));
    let wholes = [("mig", WholeGpu::Mig), ("bare", WholeGpu::Bare)];
    section.set("whole", &mut options.whole, |item| item.one_of(&wholes));
    options.reuse = section.read("reuse", reuse);
    if mechanism == Mechanism::Hami && !whole {
        let item = section.need("library", "library = \"/opt/hami/libvgpu.so\"");
        options.library = item.as_ref().and_then(library);
    }
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
            let of = of.to_owned();
            item.wrong(Problem::Meaningless { of });
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

fn reuse(item: &Field<'_>) -> Option<Duration> {
    let length = item.duration()?;
    let value = humantime::format_duration(length).to_string();
    item.right(if REUSE.contains(&length) { Ok(length) } else { Err(Problem::Reuse { value }) })
}

fn library(item: &Field<'_>) -> Option<String> {
    let value = item.string()?;
    // The dynamic linker splits LD_PRELOAD at colons and blanks.
    let ends = |c: char| c == ':' || c.is_whitespace() || c.is_control();
    item.right(if value.starts_with('/') && !value.contains(ends) {
        Ok(value)
    } else {
        Err(Problem::LibraryPath { value })
    })
}
