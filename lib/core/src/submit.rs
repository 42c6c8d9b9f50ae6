//! The one decision about a job, made by both plugins with the same code.
//!
//! [`decide`] reads what a job asks for, rounds it up to what the pools of its partitions can
//! make and gives the text that Slurm is to count. What it wrote once it takes unchanged, so that
//! the client's plugin and the controller's agree whoever comes first.

use crate::config::Config;
use crate::entry::Entry;
use crate::fraction::{Fraction, Units};
use crate::pool::Pool;
use crate::request::{self, GresForm};

mod asked;
mod granted;
pub mod idle;
mod refusal;
mod tasks;
#[cfg(test)]
mod tests;
mod types;

use asked::Asked;
pub use asked::RawReason;
pub use refusal::Refusal;

/// When the question is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Occasion {
    /// A job is submitted.
    Submit,
    /// A pending job is changed: only what is changed is in the request.
    Modify,
    /// A step starts inside a job's allocation.
    Step,
}

/// What a job asks for, in Slurm's own texts; `None` where it says nothing.
///
/// For the options `--gpus`, `--gpus-per-*` the text is what Slurm makes of it: `gres:gpu:TEXT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobRequest<'a> {
    /// The partitions as given: names with commas between.
    pub partitions: Option<&'a str>,
    /// Where a job goes that names no partition.
    pub default_partition: Option<&'a str>,
    /// Whether it names a reservation. Where it names no partition, that of the reservation comes before the default one
    /// (`_get_job_parts` of `job_mgr.c`), and Slurm alone knows whether there is one.
    pub reserved: bool,
    /// How this Slurm marks a GRES; used for what is added and for items without a mark.
    pub form: GresForm,
    /// `--gres` and `--gpus-per-node`.
    pub tres_per_node: Option<&'a str>,
    /// `--gpus`.
    pub tres_per_job: Option<&'a str>,
    /// `--gpus-per-socket`.
    pub tres_per_socket: Option<&'a str>,
    /// `--gpus-per-task`, `--tres-per-task`.
    pub tres_per_task: Option<&'a str>,
    /// `--cpus-per-gpu`.
    pub cpus_per_tres: Option<&'a str>,
    /// `--mem-per-gpu`.
    pub mem_per_tres: Option<&'a str>,
    /// `--gpu-freq`.
    pub tres_freq: Option<&'a str>,
    /// `--ntasks-per-gpu`: Slurm derives GPUs from it after the job was submitted.
    pub tasks_per_gpu: bool,
    /// `--exclusive`: Slurm then gives the job every GRES of its nodes but the shared ones.
    pub exclusive: bool,
    /// `--core-spec` or `--thread-spec`, where the site takes them: such a job is exclusive.
    pub core_spec: bool,
    /// `--ntasks`.
    pub tasks: Option<u32>,
    /// `--ntasks-per-node`.
    pub tasks_per_node: Option<u32>,
    /// The most nodes of `--nodes`.
    pub max_nodes: Option<u32>,
}

impl JobRequest<'_> {
    /// Whether any part of it speaks of fractions, well-formed or not.
    #[must_use]
    pub fn names_fraction(&self) -> bool {
        let parts = [
            self.tres_per_node,
            self.tres_per_job,
            self.tres_per_socket,
            self.tres_per_task,
        ];
        parts.into_iter().flatten().any(request::names_fraction)
    }
}

/// What is to be done with the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: it is not gpufrac's.
    Untouched,
    /// A fraction is given.
    Rewritten {
        /// The new text of `tres_per_node`, or of `tres_per_task` where the entry is one per task; the same as before
        /// when it was rewritten already.
        text: String,
        /// What the node must know.
        entry: Entry,
        /// What the user should know: that it was rounded up.
        note: Option<String>,
    },
}

/// The partitions of a request, as far as they are known and have pools.
struct Scope<'a> {
    /// Those with a pool; every partition that has one when the request names none.
    partitions: Vec<&'a str>,
    /// All their pools, each once, in the order of the file.
    pools: Vec<&'a Pool>,
    /// Whether the request, or the default, names partitions.
    named: bool,
    /// Whether one of these has no pool, or the job may go to one that has none: a reservation's own.
    others: bool,
}

impl<'a> Scope<'a> {
    fn of(config: &'a Config, request: &JobRequest<'a>, occasion: Occasion) -> Scope<'a> {
        let given = request.partitions.filter(|names| !names.is_empty());
        // A reservation that a fraction is asked in has a partition of its own where the default one has none to give.
        let default = request
            .default_partition
            .filter(|name| !request.reserved || !config.pools_of_partition(name).is_empty());
        let names = match occasion {
            Occasion::Submit => given.or(default),
            // A job or a step that is there already need not be in the default partition.
            Occasion::Modify | Occasion::Step => given,
        };
        let all = || config.pools.iter().flat_map(|pool| &pool.partitions);
        let candidates: Vec<&str> = match names {
            Some(names) => names.split(',').collect(),
            None => all().map(String::as_str).collect(),
        };
        let mut partitions: Vec<&str> = Vec::new();
        let mut others = request.reserved && given.is_none();
        for name in candidates {
            let served = !config.pools_of_partition(name).is_empty();
            others |= !served;
            if served && !partitions.contains(&name) {
                partitions.push(name);
            }
        }
        let serves = |pool: &&Pool| partitions.iter().any(|name| pool.serves(name));
        Scope {
            pools: config.pools.iter().filter(serves).collect(),
            partitions,
            named: names.is_some(),
            others,
        }
    }

    /// `partition gpu` for messages.
    fn title(&self) -> String {
        match (self.named, self.partitions.as_slice()) {
            (true, [one]) => format!("partition {one}"),
            (true, many) => format!("partitions {}", many.join(", ")),
            (false, _) => "this cluster".to_owned(),
        }
    }
}

/// What to tell a user whose step asks for more than its job has, by the job's own `GPUFRAC_FRACTION`. Slurm refuses
/// such a step, from 23.02 on without a word about the reason.
#[must_use]
pub fn beyond_job(own: &str, step: &Entry) -> Option<String> {
    let fraction = Fraction::parse_decimal(own).ok()?;
    if fraction == Fraction::ONE && step.units < Units::WHOLE {
        return Some(
            "gpufrac: the job has a whole GPU, which Slurm does not divide among steps; leave --gres out, with --overlap \
             for steps side by side"
                .to_owned(),
        );
    }
    (step.units.0 > fraction.ceil_of(100)).then(|| {
        format!(
            "gpufrac: the job has {fraction} of a GPU on each of its nodes, and a step can have no more of it; \
             write at most --gres=gpufrac:{fraction}, or leave --gres out for all of it"
        )
    })
}

/// Decides about a request.
///
/// # Errors
/// When it can not be given: the refusal says what to write instead.
pub fn decide(
    config: &Config,
    request: &JobRequest<'_>,
    occasion: Occasion,
) -> Result<Verdict, Refusal> {
    let scope = Scope::of(config, request, occasion);
    if let Some(list) = request
        .tres_per_task
        .filter(|list| request::names_fraction(list))
    {
        return tasks::decide(config, &scope, request, occasion, list);
    }
    let list = request.tres_per_node.unwrap_or("");
    let items = request::parse(list)?;
    let asked = asked::read(&items, &scope.pools, config)?;
    let elsewhere = asked::elsewhere(request, config)?;
    match asked {
        Asked::Fraction(fraction) => {
            fraction_alone(config, &scope, request, &elsewhere)?;
            granted::rewrite(config, &scope, request, occasion, &items, &fraction)
        }
        Asked::Raw {
            reason: RawReason::Unequal,
            ..
        } if scope.pools.is_empty() => Err(granted::not_served(config, request)),
        Asked::Raw { name, reason } => {
            refuse_raw(config, &scope, occasion, name, reason).map(|()| Verdict::Untouched)
        }
        Asked::Nothing { none } => {
            if let Some(name) = elsewhere.raw {
                refuse_raw(config, &scope, occasion, name, RawReason::Plain)?;
                return Ok(Verdict::Untouched);
            }
            let silent = !none
                && !elsewhere.any
                && !request.exclusive
                && !request.core_spec
                && asked::bound_to_gpu(request).is_none();
            // Where one partition has no GPUs to give, a job that wants none may well be meant for that one.
            if occasion == Occasion::Submit && scope.named && !scope.others && silent {
                return granted::default(config, &scope, request);
            }
            Ok(Verdict::Untouched)
        }
    }
}

/// Whether nothing in the request stands against a fraction, whatever its size.
fn fraction_alone(
    config: &Config,
    scope: &Scope<'_>,
    request: &JobRequest<'_>,
    elsewhere: &asked::Elsewhere,
) -> Result<(), Refusal> {
    if let Some(option) = elsewhere.gpu {
        return Err(Refusal::GpuElsewhere { option });
    }
    if let Some(option) = asked::bound_to_gpu(request) {
        return Err(Refusal::PerGpu { option });
    }
    if request.exclusive {
        return Err(Refusal::Exclusive);
    }
    if request.core_spec {
        return Err(Refusal::CoreSpec);
    }
    if scope.pools.is_empty() {
        return Err(granted::not_served(config, request));
    }
    Ok(())
}

/// Whether `shard` or `gpu` may be asked for as they are.
fn refuse_raw(
    config: &Config,
    scope: &Scope<'_>,
    occasion: Occasion,
    name: &'static str,
    reason: RawReason,
) -> Result<(), Refusal> {
    let allowed = |partition: &&str| config.rules(partition).is_some_and(|rules| rules.allow_raw);
    let closed = scope.partitions.iter().find(|name| !allowed(name));
    // A client that does not know where the job will go leaves it to the controller.
    let undecided = occasion == Occasion::Submit && !scope.named;
    match closed {
        None => Ok(()),
        Some(_) if occasion == Occasion::Step || undecided => Ok(()),
        Some(_) if !scope.named => Err(Refusal::RawUnknownPartition { name }),
        Some(partition) => Err(Refusal::Raw {
            name,
            partition: (*partition).to_owned(),
            reason,
        }),
    }
}
