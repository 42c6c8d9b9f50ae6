//! Parts of a request that contradict a fraction of any size.

use super::decision::Decision;
use super::gpus::{RequestedFraction, is_of_no_pool};
use super::job::{JobRequest, Occasion};
use super::refusal::{RawReason, Refusal};
use crate::request::{self, Item, Kind};

/// The items of options that do not count per node.
#[derive(Default)]
pub(super) struct Elsewhere {
    /// The option that asks for a GPU.
    pub(super) gpu: Option<&'static str>,
    /// `gpu`, `shard` or `mps`, if one that may be of a pool is asked for.
    pub(super) raw: Option<&'static str>,
    /// Whether one of the items names a GPU, even `gpu:0`.
    pub(super) any: bool,
}

/// Reads the items that do not count per node, each with its option. A fraction there is refused, because gpufrac
/// could not distinguish it from one GPU for the whole job.
pub(super) fn elsewhere<'i, 't: 'i>(
    decision: &Decision<'_>,
    items: impl Iterator<Item = (&'static str, &'i Item<'t>)>,
) -> Result<Elsewhere, Refusal> {
    let mut found = Elsewhere::default();
    if decision.request.tasks_per_gpu {
        found = Elsewhere {
            gpu: Some("--ntasks-per-gpu"),
            raw: Some("gpu"),
            any: true,
        };
    }
    for (option, item) in items {
        let (name, count) = match item.kind {
            Kind::Gpufrac { .. } => return Err(Refusal::NotPerNode { option }),
            Kind::Gpu(count) => ("gpu", count),
            Kind::Shard(count) => ("shard", count),
            Kind::Mps(count) => ("mps", count),
            Kind::None | Kind::Other => continue,
        };
        found.any = true;
        if count.count != Some(0) {
            found.gpu = found.gpu.or(Some(option));
            if name != "gpu" || !is_of_no_pool(&count, decision.config) {
                found.raw = found.raw.or(Some(name));
            }
        }
    }
    Ok(found)
}

/// Whether a text of Slurm's options for a GPU (`--cpus-per-gpu`, `--mem-per-gpu`, `--gpu-freq`) is about GPUs.
pub(super) fn names_gpu(text: &str) -> bool {
    text.split([',', ':', '/', '='])
        .any(|word| word.eq_ignore_ascii_case("gpu"))
}

/// Checks that nothing in the request contradicts a fraction of any size.
pub(super) fn fraction_alone(
    decision: &Decision<'_>,
    elsewhere: &Elsewhere,
    fraction: &RequestedFraction<'_>,
) -> Result<(), Refusal> {
    if let Some(option) = elsewhere.gpu {
        return Err(Refusal::GpuElsewhere {
            option,
            with: fraction.option,
            amount: request::quoted(&fraction.text),
        });
    }
    if decision.request.tres_freq.is_some_and(names_gpu) {
        return Err(Refusal::PerGpu {
            option: "--gpu-freq",
        });
    }
    if decision.pools.is_empty() {
        return Err(not_served(decision));
    }
    Ok(())
}

/// Refuses shares for a job that has its nodes alone: Slurm then gives whole devices and no shares.
pub(super) fn refuse_shares_of_own_nodes(request: &JobRequest<'_>) -> Result<(), Refusal> {
    if request.exclusive {
        return Err(Refusal::Exclusive);
    }
    if request.core_spec {
        return Err(Refusal::CoreSpec);
    }
    Ok(())
}

/// Refuses `shard`, `mps` and `gpu` where they may not be asked for directly.
pub(super) fn refuse_raw(
    decision: &Decision<'_>,
    name: &'static str,
    reason: RawReason,
    gpus: u64,
) -> Result<(), Refusal> {
    match decision.closed_to_raw() {
        None => Ok(()),
        Some(_) if decision.occasion == Occasion::Step || decision.lacks_partition() => Ok(()),
        Some(_) if !decision.named => Err(Refusal::RawUnknownPartition { name }),
        Some(partition) => {
            let (sizes, elsewhere) = decision.instead_of_gpus();
            let mut lending = decision.pools.iter().filter(|pool| pool.lends_whole());
            let has_enough = lending.any(|pool| u64::from(pool.most_gpus()) >= gpus);
            Err(Refusal::Raw {
                name,
                partition: partition.to_owned(),
                reason,
                gpus: if has_enough { gpus } else { 1 },
                sizes,
                elsewhere,
            })
        }
    }
}

/// Refuses GPUs of a Type that no node has, in a partition with shared GPUs: usually the Type before gpufrac, or a
/// MIG profile. Slurm says only that the node configuration is not available.
pub(super) fn refuse_unknown_type<'i, 't: 'i>(
    decision: &Decision<'_>,
    mut items: impl Iterator<Item = &'i Item<'t>>,
) -> Result<(), Refusal> {
    // Of an update the partition may not be known; such a job can start in none.
    let decided = match decision.occasion {
        Occasion::Submit => decision.named,
        Occasion::Modify => true,
        Occasion::Step => false,
    };
    let Some(nodes) = decision.request.nodes.filter(|_| decided) else {
        return Ok(());
    };
    let Some(partition) = decision.closed_to_raw() else {
        return Ok(());
    };
    let unknown = items.find_map(|item| match &item.kind {
        Kind::Gpu(count) if count.count != Some(0) && is_of_no_pool(count, decision.config) => {
            let name = count.type_name?;
            (!nodes.has_type(name)).then_some(name)
        }
        _ => None,
    });
    let Some(type_name) = unknown else {
        return Ok(());
    };
    let (sizes, elsewhere) = decision.instead_of_gpus();
    Err(Refusal::NoSuchType {
        type_name: request::quoted(type_name),
        destination: if decision.named {
            format!("partition {partition}")
        } else {
            decision.title()
        },
        sizes,
        elsewhere,
    })
}

/// The refusal of a fraction in a partition without a pool.
pub(super) fn not_served(decision: &Decision<'_>) -> Refusal {
    let mut served: Vec<String> = Vec::new();
    for name in decision
        .config
        .pools
        .iter()
        .flat_map(|pool| &pool.partitions)
    {
        if !served.contains(name) {
            served.push(name.clone());
        }
    }
    let JobRequest {
        partitions,
        default_partition,
        ..
    } = decision.request;
    let given = partitions.or(default_partition);
    Refusal::NotServed {
        partition: request::quoted(given.unwrap_or("")),
        served: decision.existing(served),
    }
}
