//! The CPUs and the memory that come with a fraction: as much of what the site gives for a GPU.
//!
//! Slurm does this for GPUs that it counts as devices (`DefCpuPerGPU`, `DefMemPerGPU`, `--cpus-per-gpu`,
//! `--mem-per-gpu`), and for no other GRES: a job with shares and without `--mem` could get all memory of its node.

use super::ceilings::Ceilings;
use super::conflicts::names_gpu;
use super::decision::Decision;
use super::gpus::RequestedFraction;
use super::granted::Granted;
use super::job::{JobRequest, Memory, Occasion, Share, SitePerGpu};
use super::refusal::{FractionOption, Refusal};
use crate::per_gpu::{Part, PerGpu};
use crate::request::{self, Kind};

/// The share of a grant, with a note for the user.
/// Errors: an option has no number for a GPU, or the job asks for more than the ceilings of its partitions.
pub(super) fn of(
    decision: &Decision<'_>,
    requested: &RequestedFraction<'_>,
    granted: &Granted<'_>,
) -> Result<(Share, Option<String>), Refusal> {
    let request = &decision.request;
    let options = PerGpu {
        cpus: number("--cpus-per-gpu", request.cpus_per_tres)?,
        memory: number("--mem-per-gpu", request.mem_per_tres)?,
    };
    if decision.occasion != Occasion::Submit {
        return match options.option() {
            None => Ok((Share::default(), None)),
            Some(option) => Err(Refusal::PerGpu { option }),
        };
    }
    let grant = &granted.grant;
    let part = Part::of(grant.size.fraction, grant.entry.units);
    let ceilings = Ceilings::of(decision, part);
    let named = PerGpu {
        cpus: request
            .cpus_per_task
            .or(own_minimum(request))
            .map(u64::from),
        memory: request.memory.map(|_| 0),
    };
    if granted.is_counted_in_devices(request) {
        ceilings.refuse_options(options)?;
        // Slurm itself applies its settings and the options of the job to devices, but gives a node whose tasks are
        // certain their CPUs alone, because the other count of the job brings none.
        let site = ceilings.capped(of_site(decision).without(options).without(named), request);
        let by_task = written(request, requested.option, options.or(site).of(part));
        let is_replaced = options.cpus.is_some() && by_task.cpus_per_task.is_some();
        let brought = Share {
            cpus_per_task: by_task.cpus_per_task,
            memory: by_task
                .memory
                .filter(|_| is_replaced && options.memory.is_some()),
            replaces_options: is_replaced,
            ..Share::default()
        };
        let (mut share, lowered) =
            ceilings.hold(request, requested.option, brought, options.or(site))?;
        share.per_gpu = of_file(decision).without(options).without(named);
        return Ok((share, ceilings.note(lowered)));
    }
    let site = ceilings.capped(of_site(decision).without(named), request);
    let given = options.or(site).of(part);
    let share = Share {
        replaces_options: options != PerGpu::default(),
        ..written(request, requested.option, given)
    };
    let (held, lowered) = ceilings.hold(request, requested.option, share, options.or(site))?;
    let notes = notes(
        decision,
        part,
        options.without(lowered),
        site.without(options).without(lowered),
    );
    let lines: Vec<String> = notes.into_iter().chain(ceilings.note(lowered)).collect();
    Ok((held, (!lines.is_empty()).then(|| lines.join("\n"))))
}

/// What gpufrac.toml gives for a GPU in the partitions of the job, the most if they differ: the job may run in each.
/// Nothing in a client: slurmctld decides.
fn of_file(decision: &Decision<'_>) -> PerGpu {
    if decision.request.per_gpu.is_none() {
        return PerGpu::default();
    }
    let rules = decision
        .partitions
        .iter()
        .filter_map(|name| decision.config.rules(name));
    rules.fold(PerGpu::default(), |most, rules| {
        most.joined(rules.per_gpu, u64::max)
    })
}

/// As [`of_file`], with Slurm's values where the file has none.
fn of_site(decision: &Decision<'_>) -> PerGpu {
    let Some(SitePerGpu(of_slurm)) = decision.request.per_gpu else {
        return PerGpu::default();
    };
    let of_partition = |name: &&str| {
        let of_file = decision.config.rules(name).map(|rules| rules.per_gpu);
        of_file.unwrap_or_default().or(of_slurm(name))
    };
    let all = decision.partitions.iter().map(of_partition);
    all.fold(PerGpu::default(), |most, one| most.joined(one, u64::max))
}

/// `gpufrac: 2 CPUs and 4000 MB with it (a quarter of this partition's share of a GPU)`.
fn notes(decision: &Decision<'_>, part: Part, options: PerGpu, site: PerGpu) -> Vec<String> {
    let of_options = [
        options.cpus.map(|cpus| format!("--cpus-per-gpu={cpus}")),
        options
            .memory
            .map(|memory| format!("--mem-per-gpu={memory}M")),
    ];
    let of_options: Vec<String> = of_options.into_iter().flatten().collect();
    let of_site = match decision.partitions.as_slice() {
        [_] => "this partition's share of a GPU",
        _ => "the largest share of a GPU in these partitions",
    };
    let lines =
        [(options, of_options.join(" ").as_str()), (site, of_site)].map(|(per_gpu, source)| {
            let amount = per_gpu.of(part).words()?;
            Some(format!(
                "gpufrac: {amount} with it ({}{source})",
                part.words()
            ))
        });
    lines.into_iter().flatten().collect()
}

/// The CPUs of `--mincpus`. Slurm's commands write those of `--ntasks-per-node` there, which name none.
fn own_minimum(request: &JobRequest<'_>) -> Option<u32> {
    request
        .cpus_per_node
        .filter(|cpus| Some(*cpus) != request.tasks_per_node)
}

/// The fields for a share of a node or, for a fraction per task, of a task.
fn written(request: &JobRequest<'_>, option: FractionOption, given: PerGpu) -> Share {
    let cpus = given.cpus.map(clamped);
    if option == FractionOption::TresPerTask {
        let cpus_of_task = cpus.or(request.cpus_per_task).unwrap_or(1).max(1);
        return Share {
            cpus_per_task: cpus,
            memory: given
                .memory
                .map(|memory| Memory::PerCpu((memory / u64::from(cpus_of_task)).max(1))),
            ..Share::default()
        };
    }
    let memory = given.memory.map(Memory::PerNode);
    // Where the tasks of a node are given, Slurm gives the node their CPUs, whatever else is asked for. Never more than
    // the share, so that all pieces have room.
    if let (Some(cpus), Some(tasks @ 1..)) = (cpus, tasks_of_a_node(request)) {
        return Share {
            cpus_per_task: Some(cpus / tasks).filter(|cpus| *cpus > 1),
            memory,
            ..Share::default()
        };
    }
    Share {
        cpus_per_node: cpus.map(|cpus| cpus.max(request.cpus_per_node.unwrap_or(0))),
        memory,
        ..Share::default()
    }
}

/// The tasks of each node, where they are certain.
fn tasks_of_a_node(request: &JobRequest<'_>) -> Option<u32> {
    let of_job = || {
        request
            .tasks
            .filter(|tasks| *tasks == 1 || request.max_nodes == Some(1))
    };
    request.tasks_per_node.or_else(of_job)
}

fn clamped(cpus: u64) -> u32 {
    u32::try_from(cpus).unwrap_or(u32::MAX)
}

/// The number for a GPU in a text of `--cpus-per-gpu` or `--mem-per-gpu`.
fn number(option: &'static str, text: Option<&str>) -> Result<Option<u64>, Refusal> {
    let Some(text) = text.filter(|text| names_gpu(text)) else {
        return Ok(None);
    };
    let unreadable = || Refusal::PerGpu { option };
    // Slurm itself writes no suffix there, and would multiply MB.
    if text.ends_with(|last: char| !last.is_ascii_digit()) {
        return Err(unreadable());
    }
    let items = request::parse(text).map_err(|_| unreadable())?;
    let [item] = items.as_slice() else {
        return Err(unreadable());
    };
    match item.kind {
        Kind::Gpu(count) if count.type_name.is_none() => {
            count.count.map(Some).ok_or_else(unreadable)
        }
        _ => Err(unreadable()),
    }
}
