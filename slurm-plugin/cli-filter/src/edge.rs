//! The functions that the client commands call (`src/common/cli_filter.c`, later
//! `src/interfaces/cli_filter.c`).

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int};
use std::path::PathBuf;

use gpufrac_core::config::{self, Config};
use gpufrac_core::pools_sum::is_question;
use gpufrac_core::request::{
    GresForm, Item, Kind, means_fraction, names_fraction, parse, refuse_misspelt, spelled_out,
    without_mark,
};
use gpufrac_core::submit::{JobRequest, Occasion, Refusal, Verdict, beyond_job, decide};
use slurm_sys::release::{self, Release};
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

/// What counts per node, as `--gres` does: Slurm puts both in one text.
const PER_NODE: &CStr = c"gpus-per-node";

/// What counts per task and may have a fraction: that of each task.
const PER_TASK: &CStr = c"tres-per-task";

/// Options that ask for GPUs and can have no fraction, with what is said of one there.
fn without_fraction() -> [(&'static CStr, Refusal); 3] {
    let per_task = match slurm_sys::gres_with_slash() {
        true => Refusal::GpusPerTask,
        false => Refusal::TasksTooEarly,
    };
    let not_per_node = |option| Refusal::NotPerNode { option };
    [
        (c"gpus", not_per_node("--gpus")),
        (c"gpus-per-socket", not_per_node("--gpus-per-socket")),
        (c"gpus-per-task", per_task),
    ]
}

/// Called before the options are read; there is nothing to preset.
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
    if let Some(host) = release::foreign() {
        leave(&options, host);
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

/// Called after the submission; there is nothing to do.
fn cli_filter_p_post_submit(_offset: c_int, _job: u32, _step: u32) {}

/// In a Slurm of another series: the request stays as it is, and who names a fraction is told. Options are read
/// through functions that are the same in all series. It is no refusal, as slurmctld may have a plugin that fits.
fn leave(options: &Options, host: Release) {
    let others = without_fraction().map(|(option, _)| option);
    let mut names = others.into_iter().chain([PER_TASK]);
    let named = |option| {
        options
            .get(option)
            .is_some_and(|value| names_fraction(&value))
    };
    if per_node(options).is_some() || names.any(named) {
        log::error(&format!(
            "gpufrac: cli_filter_gpufrac.so of this host: {}",
            release::refusal(host)
        ));
    }
}

/// What is asked for per node, if a fraction is among it.
fn per_node(options: &Options) -> Option<String> {
    let gpus = options.get(PER_NODE).map(|gpus| format!("gpu:{gpus}"));
    let texts = [options.get(c"gres"), gpus].into_iter().flatten();
    let list = texts.collect::<Vec<_>>().join(",");
    // A question of `gpufrac check` is for slurmctld.
    (means_fraction(&list) && !is_question(&list)).then_some(list)
}

/// Variables from which the commands take `--gpus-per-node`, and the one to set instead.
const PER_NODE_VARIABLES: [(&str, &str); 3] = [
    ("SBATCH_GPUS_PER_NODE", "SBATCH_GRES"),
    ("SALLOC_GPUS_PER_NODE", "SALLOC_GRES"),
    ("SLURM_GPUS_PER_NODE", "SLURM_GRES"),
];

/// Leaves `list` in `--gres`, and nothing in the other option.
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
    match options.set(c"gres", list) {
        true => Ok(()),
        false => Err(FilterError::NotTaken {
            option: "gres",
            value: list.to_owned(),
        }),
    }
}

/// What Slurm tells the steps of a job with a fraction for each task: srun takes it for an option.
const OF_TASKS: &str = "SLURM_TRES_PER_TASK";

/// Keeps that of the job in which this runs away from a job that is submitted here. Slurm hands it on, and where the
/// new job has none of its own, each of its steps would ask for what it does not have.
fn forget_tasks_of_outer_job() {
    let inside = std::env::var_os("SLURM_JOB_ID").is_some();
    if inside && !is_srun() && is_per_task_around() {
        // SAFETY: sbatch and salloc have one thread until they have submitted.
        unsafe { std::env::remove_var(OF_TASKS) };
    }
}

/// Whether the job in which this runs has a slice for each task.
fn is_per_task_around() -> bool {
    std::env::var(OF_TASKS).is_ok_and(|list| names_fraction(&list))
}

fn filter(options: &Options) -> Result<(), FilterError> {
    forget_tasks_of_outer_job();
    for (option, refusal) in without_fraction() {
        // As Slurm writes it: a bare number is one of GPUs.
        let named =
            |value: String| means_fraction(&value) || means_fraction(&format!("gpu:{value}"));
        if options.get(option).is_some_and(named) {
            return Err(Box::new(refusal).into());
        }
    }
    // That not both have one is the controller's to say: a step may divide, per node, what its job has per task.
    if let Some(list) = per_node(options) {
        rewrite(options, &Text::PerNode(list))?;
    }
    match options.get(PER_TASK).filter(|list| means_fraction(list)) {
        Some(list) => rewrite(options, &Text::PerTask(list)),
        None => Ok(()),
    }
}

/// A text that names a fraction.
enum Text {
    PerNode(String),
    PerTask(String),
}

impl Text {
    /// Whether there is a fraction in it that no plugin has rounded yet.
    fn is_to_be_rounded(&self) -> bool {
        let (Text::PerNode(list) | Text::PerTask(list)) = self;
        let is_shard = |item: &Item<'_>| matches!(item.kind, Kind::Shard(_));
        // What cannot be understood is not what a plugin wrote.
        parse(list).map_or(true, |items| !items.iter().any(is_shard))
    }

    /// Leaves `text` in the option of this one.
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

fn rewrite(options: &Options, asked: &Text) -> Result<(), FilterError> {
    let (Text::PerNode(list) | Text::PerTask(list)) = asked;
    refuse_misspelt(list).map_err(|error| Box::new(Refusal::from(error)))?;
    let step = is_step(options);
    let config = match host::read_configuration(config::PATH_ENV, config::PATH, Config::parse) {
        Ok(config) => config,
        // Steps are no business of the controller's plugin.
        Err(reason) if step && asked.is_to_be_rounded() => {
            return Err(FilterError::StepWithoutConfig(reason));
        }
        Err(reason) => {
            // The controller has the file too and rewrites what we leave. But Slurm's clients take only
            // such texts as they understand.
            log::debug(&format!("gpufrac: left to the controller: {reason}"));
            return match asked {
                Text::PerNode(list) => set_per_node(options, &spelled_out(list)),
                Text::PerTask(_) => Ok(()),
            };
        }
    };

    let partitions = options.get(c"partition").or_else(|| {
        step.then(|| std::env::var("SLURM_JOB_PARTITION").ok())
            .flatten()
    });
    let beside = match step {
        true => Beside::default(),
        false => Beside::read(options),
    };
    let mut request = JobRequest {
        partitions: partitions.as_deref(),
        reserved: options.get(c"reservation").is_some(),
        form: if slurm_sys::gres_with_slash() {
            GresForm::Slash
        } else {
            GresForm::Colon
        },
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
    let occasion = if step {
        Occasion::Step
    } else {
        Occasion::Submit
    };
    let known;
    if partitions.is_none() && !step && partitions_differ(&config, &request) {
        known = host::ask_partitions();
        request.default_partition = known.as_ref().and_then(|known| known.default.as_deref());
    }
    let verdict = decide(&config, &request, occasion).map_err(recommendable)?;
    let (text, entry, note) = match verdict {
        Verdict::Untouched => return Ok(()),
        Verdict::Rewritten { text, entry, note } => (text, entry, note),
    };
    if let Some(note) = note {
        log::info(&note);
    }
    if step
        && let Some(hint) =
            own_fraction(options).and_then(|own| beyond_job(&own, &entry, request.form))
    {
        log::info(&hint);
    }
    asked.set(options, &text)
}

/// A refusal that recommends only partitions that Slurm has. One RPC, in the way of nothing: no job is submitted.
fn recommendable(mut refusal: Refusal) -> Box<Refusal> {
    refusal.recommend_only(|names| {
        if let Some(known) = host::ask_partitions() {
            names.retain(|name| known.names.contains(name));
        }
    });
    Box::new(refusal)
}

/// The fraction of the job that a step belongs to, where this runs inside of it.
fn own_fraction(options: &Options) -> Option<String> {
    let own = std::env::var("SLURM_JOB_ID").ok()?;
    // Where each task has a slice, the job has several of them.
    if is_per_task_around() {
        return None;
    }
    let named = options.get(c"jobid").unwrap_or_default();
    let same = named.is_empty() || named == own;
    same.then(|| std::env::var("GPUFRAC_FRACTION").ok())
        .flatten()
}

/// Does it matter which partition the job goes to? Asking slurmctld for its default one is an
/// RPC, which would be the greater part of what a submission costs.
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

/// `gres:a:1,gres:b:2` -> `a:1,b:2`: the option takes names, Slurm adds the prefix itself.
fn without_prefix(tres: &str) -> String {
    let plain: Vec<&str> = tres.split(',').map(without_mark).collect();
    plain.join(",")
}

/// Does this call start a step inside an allocation? Only srun does; sbatch and salloc
/// inside a job submit a new one.
fn is_step(options: &Options) -> bool {
    is_srun() && (std::env::var_os("SLURM_JOB_ID").is_some() || options.get(c"jobid").is_some())
}

fn is_srun() -> bool {
    let program = std::env::args_os().next().map(PathBuf::from);
    program.is_some_and(|path| path.file_name().is_some_and(|name| name == "srun"))
}
