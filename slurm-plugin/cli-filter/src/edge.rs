//! The functions that the client commands call (`src/common/cli_filter.c`, later `src/interfaces/cli_filter.c`).

use std::cell::LazyCell;
use std::collections::BTreeSet;
use std::ffi::{CStr, c_int};
use std::path::PathBuf;

use gpufrac_core::config::{self, Config};
use gpufrac_core::pools_sum::is_question;
use gpufrac_core::request::{
    GresForm, Item, Kind, means_fraction, names_fraction, parse, refuse_misspelt, spelled_out,
    without_mark,
};
use gpufrac_core::submit::{
    Existing, JobRequest, Memory, Occasion, Refusal, Share, Verdict, beyond_job, decide,
};
use slurm_sys::release::{self, Foreign};
use slurm_sys::{boundary, host, log, raw};

use crate::beside::Beside;
use crate::error::FilterError;
use crate::options::{Options, SlurmOptions};

const SUCCESS: c_int = raw::SLURM_SUCCESS as c_int;
const REFUSED: c_int = raw::SLURM_ERROR;

slurm_sys::for_slurm! {
    export fn cli_filter_p_setup_defaults(options: *mut SlurmOptions, early: bool) -> c_int, or SUCCESS;
    export fn cli_filter_p_pre_submit(options: *mut SlurmOptions, offset: c_int) -> c_int, or REFUSED;
    export fn cli_filter_p_post_submit(offset: c_int, job: u32, step: u32), or ();
}

/// The option that counts per node as `--gres` does; Slurm joins both in one text.
const PER_NODE: &CStr = c"gpus-per-node";

/// The option that counts per task and may have a fraction.
const PER_TASK: &CStr = c"tres-per-task";

/// Options that ask for GPUs and cannot have a fraction, each with the refusal.
fn without_fraction() -> [(&'static CStr, Refusal); 3] {
    let per_task = if slurm_sys::gres_with_slash() {
        Refusal::GpusPerTask
    } else {
        Refusal::TasksTooEarly
    };
    let not_per_node = |option| Refusal::NotPerNode { option };
    [
        (c"gpus", not_per_node("--gpus")),
        (c"gpus-per-socket", not_per_node("--gpus-per-socket")),
        (c"gpus-per-task", per_task),
    ]
}

/// Called before the options are read; nothing to do.
fn cli_filter_p_setup_defaults(_options: *mut SlurmOptions, _early: bool) -> c_int {
    SUCCESS
}

/// Called with the options of each (heterogeneous) component before it is submitted.
///
/// # Safety
/// `options` is Slurm's.
unsafe fn cli_filter_p_pre_submit(options: *mut SlurmOptions, _offset: c_int) -> c_int {
    boundary::plant("cli_filter_p_pre_submit");
    // SAFETY: by the contract of this function.
    let options = unsafe { Options::new(options) };
    if let Some(foreign) = release::foreign() {
        leave(&options, foreign);
        return SUCCESS;
    }
    match filter(&options) {
        Ok(()) => SUCCESS,
        Err(refusal) => {
            log::error(&refusal.to_string());
            REFUSED
        }
    }
}

/// Called after the submission; nothing to do.
fn cli_filter_p_post_submit(_offset: c_int, _job: u32, _step: u32) {}

/// In a Slurm that this build is not for: leaves the request as it is, and warns a user who asks for a fraction.
/// Options are read through functions that are the same in all series. The request is not refused, because slurmctld
/// may have a plugin for it.
fn leave(options: &Options, foreign: Foreign) {
    let others = without_fraction().map(|(option, _)| option);
    let mut names = others.into_iter().chain([PER_TASK]);
    let named = |option| {
        options
            .get(option)
            .is_some_and(|value| names_fraction(&value))
    };
    if per_node(options).is_some() || names.any(named) {
        // The client's plugin cannot work on this host; slurmctld's plugin still does its part. Cure: Install the
        // packages of the same series on this host.
        log::error(&format!(
            "gpufrac: cli_filter_gpufrac.so of this host: {foreign}"
        ));
    }
}

/// The GRES requested per node, if they contain a fraction.
fn per_node(options: &Options) -> Option<String> {
    let gpus = options.get(PER_NODE).map(|gpus| format!("gpu:{gpus}"));
    let texts = [options.get(c"gres"), gpus].into_iter().flatten();
    let list = texts.collect::<Vec<_>>().join(",");
    // A question of `gpufrac check` goes to slurmctld unchanged.
    (means_fraction(&list) && !is_question(&list)).then_some(list)
}

/// Environment variables that the commands read as `--gpus-per-node`, each with the variable to set instead.
const PER_NODE_VARIABLES: [(&str, &str); 3] = [
    ("SBATCH_GPUS_PER_NODE", "SBATCH_GRES"),
    ("SALLOC_GPUS_PER_NODE", "SALLOC_GRES"),
    ("SLURM_GPUS_PER_NODE", "SLURM_GRES"),
];

/// Sets `--gres` to `list`, and clears the other option.
fn set_per_node(options: &Options, list: &str) -> Result<(), FilterError> {
    if let Some(gpus) = options.get(PER_NODE) {
        let from = |(name, _): &&(&str, &str)| std::env::var(name).is_ok_and(|value| value == gpus);
        if slurm_sys::gres_excludes_gpus_per_node()
            && let Some((variable, instead)) = PER_NODE_VARIABLES.iter().find(from)
        {
            return Err(FilterError::FromVariable {
                variable,
                instead,
                list: spelled_out(&format!("gpu:{gpus}")),
            });
        }
        options.reset(PER_NODE);
    }
    if options.set(c"gres", list) {
        Ok(())
    } else {
        Err(FilterError::NotTaken {
            option: "gres",
            value: list.to_owned(),
        })
    }
}

/// The variable that Slurm sets for the steps of a job with a fraction per task; srun reads it as an option.
const OF_TASKS: &str = "SLURM_TRES_PER_TASK";

/// Removes the variable of the surrounding job from the environment of a job that is submitted inside it. Slurm
/// passes it on; if the new job has no fraction per task, each of its steps would request one that the job does not
/// have.
fn forget_tasks_of_outer_job() {
    let inside = std::env::var_os("SLURM_JOB_ID").is_some();
    if inside && !is_srun() && is_per_task_around() {
        // SAFETY: sbatch and salloc have one thread until they have submitted.
        unsafe { std::env::remove_var(OF_TASKS) };
    }
}

/// Whether this command runs inside a job with a slice for each task.
fn is_per_task_around() -> bool {
    let Ok(list) = std::env::var(OF_TASKS) else {
        return false;
    };
    let config = host::read_configuration(config::PATH_ENV, config::PATH, Config::parse);
    let name = config.map(|config| config.count_name).unwrap_or_default();
    names_fraction(&name.read(&list))
}

fn filter(options: &Options) -> Result<(), FilterError> {
    forget_tasks_of_outer_job();
    for (option, refusal) in without_fraction() {
        // As Slurm writes it: a plain number is a number of GPUs.
        let named =
            |value: String| means_fraction(&value) || means_fraction(&format!("gpu:{value}"));
        if options.get(option).is_some_and(named) {
            return Err(Box::new(refusal).into());
        }
    }
    // The controller refuses a fraction in both options. A step may divide per node what its job has per task.
    if let Some(list) = per_node(options) {
        rewrite(options, &Text::PerNode(list))?;
    }
    match options.get(PER_TASK).filter(|list| means_fraction(list)) {
        Some(list) => rewrite(options, &Text::PerTask(list)),
        None => Ok(()),
    }
}

/// An option's text that names a fraction.
enum Text {
    PerNode(String),
    PerTask(String),
}

impl Text {
    /// Whether the text has a fraction that no plugin has rounded yet.
    fn is_to_be_rounded(&self) -> bool {
        let (Text::PerNode(list) | Text::PerTask(list)) = self;
        let is_shard = |item: &Item<'_>| matches!(item.kind, Kind::Shard(_));
        // A text that cannot be read was not written by a plugin.
        parse(list).map_or(true, |items| !items.iter().any(is_shard))
    }

    fn set(&self, options: &Options, text: &str) -> Result<(), FilterError> {
        match self {
            Text::PerNode(_) => set_per_node(options, &without_prefix(text)),
            Text::PerTask(_) if options.set(PER_TASK, text) => Ok(()),
            Text::PerTask(_) => Err(FilterError::NotTaken {
                option: "tres-per-task",
                value: text.to_owned(),
            }),
        }
    }
}

/// The controller's plugin has a configuration, too, and rewrites the text. But Slurm's clients only accept texts that
/// they can parse.
fn leave_to_controller(options: &Options, asked: &Text) -> Result<(), FilterError> {
    match asked {
        Text::PerNode(list) => set_per_node(options, &spelled_out(list)),
        Text::PerTask(_) => Ok(()),
    }
}

fn rewrite(options: &Options, asked: &Text) -> Result<(), FilterError> {
    let (Text::PerNode(list) | Text::PerTask(list)) = asked;
    refuse_misspelt(list).map_err(|error| Box::new(Refusal::from(error)))?;
    let step = is_step(options);
    let config = match host::read_configuration(config::PATH_ENV, config::PATH, Config::parse) {
        Ok(config) => config,
        // The controller's plugin does not see steps, so a step is refused here.
        Err(reason) if step && asked.is_to_be_rounded() => {
            return Err(FilterError::StepWithoutConfig(reason));
        }
        Err(reason) => {
            log::debug(&format!("gpufrac: left to the controller: {reason}"));
            return leave_to_controller(options, asked);
        }
    };
    // Other clusters have partitions, pools and a slurmctld of their own. srun makes its step by the same text, which
    // no plugin of slurmctld sees.
    if !is_srun()
        && options
            .get(c"clusters")
            .is_some_and(|names| !names.is_empty())
    {
        return leave_to_controller(options, asked);
    }

    let partitions = if step { partition_of_job(options) } else { options.get(c"partition") };
    let beside = if step { Beside::default() } else { Beside::read(options) };
    let mut request = JobRequest {
        partitions: partitions.as_deref(),
        reserved: options.get(c"reservation").is_some(),
        forgets_shares: slurm_sys::forgets_shares(),
        form: if slurm_sys::gres_with_slash() { GresForm::Slash } else { GresForm::Colon },
        tres_per_node: match asked {
            Text::PerNode(list) => Some(list),
            Text::PerTask(_) => None,
        },
        tres_per_task: match asked {
            Text::PerNode(_) => beside.per_task(),
            Text::PerTask(list) => Some(list),
        },
        ..beside.request()
    };
    let occasion = if step { Occasion::Step } else { Occasion::Submit };
    // One RPC, if the decision depends on the answer, or a refusal recommends a partition; then no job is submitted.
    let known = LazyCell::new(host::ask_partitions);
    if partitions.is_none() && !step && partitions_differ(&config, &request) {
        request.default_partition = known.as_ref().and_then(|known| known.default.as_deref());
    }
    let exists = |name: &str| {
        let mut names = known.iter().flat_map(|known| &known.names);
        known.is_none() || names.any(|known| known == name)
    };
    request.existing = Some(Existing(&exists));
    let verdict = decide(&config, &request, occasion).map_err(Box::new)?;
    let Verdict::Rewritten {
        text,
        entry,
        share,
        note,
    } = verdict
    else {
        return Ok(());
    };
    if let Some(note) = note {
        log::info(&note);
    }
    if step
        && let Some(hint) =
            own_fraction(options).and_then(|own| beyond_job(&own, &entry, request.forgets_shares))
    {
        log::info(&hint);
    }
    set_share(options, &share)?;
    asked.set(options, &text)
}

/// Sets the CPUs and the memory that replace `--cpus-per-gpu` and `--mem-per-gpu`. Steps of the job would read the
/// options from its environment, and Slurm refuses both without a GPU.
fn set_share(options: &Options, share: &Share) -> Result<(), FilterError> {
    if share.replaces_options {
        options.reset(c"cpus-per-gpu");
        options.reset(c"mem-per-gpu");
    }
    let (per_node, per_cpu) = match share.memory {
        Some(Memory::PerNode(mib)) => (Some(format!("{mib}M")), None),
        Some(Memory::PerCpu(mib)) => (None, Some(format!("{mib}M"))),
        None => (None, None),
    };
    let values = [
        (c"mincpus", share.cpus_per_node.map(|cpus| cpus.to_string())),
        (
            c"cpus-per-task",
            share.cpus_per_task.map(|cpus| cpus.to_string()),
        ),
        (c"mem", per_node),
        (c"mem-per-cpu", per_cpu),
    ];
    for (option, value) in values {
        if let Some(value) = value.filter(|value| !options.set(option, value)) {
            return Err(FilterError::NotTaken {
                option: option.to_str().unwrap_or_default(),
                value,
            });
        }
    }
    Ok(())
}

/// The partition of a step's job, if the environment has it. Slurm ignores `--partition` of a step, which srun also
/// takes from `SLURM_PARTITION`.
fn partition_of_job(options: &Options) -> Option<String> {
    let own = is_in_surrounding_job(options).then(|| std::env::var("SLURM_JOB_PARTITION").ok());
    own.flatten()
}

/// The fraction of the surrounding job, if the command starts a step in it.
fn own_fraction(options: &Options) -> Option<String> {
    // With a slice per task the job has several slices.
    if is_per_task_around() || !is_in_surrounding_job(options) {
        return None;
    }
    std::env::var("GPUFRAC_FRACTION").ok()
}

/// Whether a step is one of the job that the environment describes, and not of a further component of it.
fn is_in_surrounding_job(options: &Options) -> bool {
    let Ok(own) = std::env::var("SLURM_JOB_ID") else {
        return false;
    };
    let named = options.get(c"jobid").unwrap_or_default();
    (named.is_empty() || named == own) && options.get(c"het-group").is_none()
}

/// Whether the decision depends on the partition of the job. Asking slurmctld for its default partition is an RPC,
/// which would be most of the cost of a submission.
fn partitions_differ(config: &Config, request: &JobRequest<'_>) -> bool {
    let names: BTreeSet<&str> = config
        .pools
        .iter()
        .flat_map(|pool| &pool.partitions)
        .map(String::as_str)
        .collect();
    let mut verdicts = names.into_iter().map(|name| {
        let there = JobRequest {
            partitions: Some(name),
            ..*request
        };
        decide(config, &there, Occasion::Submit).map_err(Box::new)
    });
    let first = verdicts.next();
    verdicts.any(|verdict| Some(&verdict) != first.as_ref())
}

/// `gres:a:1,gres:b:2` -> `a:1,b:2`: the option takes names; Slurm adds the prefix itself.
fn without_prefix(tres: &str) -> String {
    let plain: Vec<&str> = tres.split(',').map(without_mark).collect();
    plain.join(",")
}

/// Whether this command starts a step in an allocation. Only srun does; sbatch and salloc inside a job submit a new
/// one.
fn is_step(options: &Options) -> bool {
    is_srun() && (std::env::var_os("SLURM_JOB_ID").is_some() || options.get(c"jobid").is_some())
}

fn is_srun() -> bool {
    let program = std::env::args_os().next().map(PathBuf::from);
    program.is_some_and(|path| path.file_name().is_some_and(|name| name == "srun"))
}
