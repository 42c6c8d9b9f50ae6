//! The functions that the client commands call (`src/common/cli_filter.c`, later
//! `src/interfaces/cli_filter.c`).

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int};
use std::path::PathBuf;

use gpufrac_core::config::{self, Config};
use gpufrac_core::request::{GresForm, names_fraction, without_mark};
use gpufrac_core::submit::{JobRequest, Occasion, Verdict, decide};
use slurm_sys::{boundary, host, log, raw};

use crate::options::{Options, SlurmOptions};

const SUCCESS: c_int = raw::SLURM_SUCCESS as c_int;
const REFUSED: c_int = raw::SLURM_ERROR;

/// Options that ask for GPUs in other ways than `--gres`.
const GPU_OPTIONS: &[(&CStr, &str)] = &[
    (c"gpus", "--gpus"),
    (c"gpus-per-node", "--gpus-per-node"),
    (c"gpus-per-socket", "--gpus-per-socket"),
    (c"gpus-per-task", "--gpus-per-task"),
    (c"tres-per-task", "--tres-per-task"),
];

/// Called before the options are read; there is nothing to preset.
#[unsafe(no_mangle)]
pub extern "C" fn cli_filter_p_setup_defaults(_options: *mut SlurmOptions, _early: bool) -> c_int {
    SUCCESS
}

/// Called with the options of each (heterogeneous) component before it is submitted.
///
/// # Safety
/// `options` is Slurm's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cli_filter_p_pre_submit(
    options: *mut SlurmOptions,
    _offset: c_int,
) -> c_int {
    boundary::guard("cli_filter", REFUSED, || {
        boundary::plant("cli_filter_p_pre_submit");
        // SAFETY: by the contract of this function.
        let options = unsafe { Options::new(options) };
        match filter(&options) {
            Ok(()) => SUCCESS,
            Err(refusal) => {
                log::error(&refusal);
                REFUSED
            }
        }
    })
}

/// Called after the submission; there is nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn cli_filter_p_post_submit(_offset: c_int, _job: u32, _step: u32) {}

fn filter(options: &Options) -> Result<(), String> {
    for (option, spelling) in GPU_OPTIONS {
        if options
            .get(option)
            .is_some_and(|value| names_fraction(&value))
        {
            return Err(format!(
                "gpufrac: `{spelling}` takes no fraction; write `--gres=gpufrac:0.25` (per node) instead"
            ));
        }
    }
    let Some(gres) = options.get(c"gres").filter(|gres| names_fraction(gres)) else {
        return Ok(());
    };
    let config = match read_config() {
        Ok(config) => config,
        Err(reason) => {
            // The controller has the file too and rewrites what we leave.
            log::debug(&format!("gpufrac: left to the controller: {reason}"));
            return Ok(());
        }
    };

    let step = is_step(options);
    let partitions = options.get(c"partition").or_else(|| {
        step.then(|| std::env::var("SLURM_JOB_PARTITION").ok())
            .flatten()
    });
    let mut request = JobRequest {
        partitions: partitions.as_deref(),
        form: if slurm_sys::gres_with_slash() {
            GresForm::Slash
        } else {
            GresForm::Colon
        },
        tres_per_node: Some(&gres),
        ..JobRequest::default()
    };
    let occasion = if step {
        Occasion::Step
    } else {
        Occasion::Submit
    };
    let default_partition;
    if partitions.is_none() && !step && partitions_differ(&config, &request) {
        default_partition = host::ask_default_partition();
        request.default_partition = default_partition.as_deref();
    }
    match decide(&config, &request, occasion).map_err(|refusal| refusal.to_string())? {
        Verdict::Untouched => Ok(()),
        Verdict::Rewritten {
            tres_per_node,
            note,
            ..
        } => {
            if let Some(note) = note {
                log::info(&note);
            }
            let plain = without_prefix(&tres_per_node);
            if options.set(c"gres", &plain) {
                Ok(())
            } else {
                Err(format!(
                    "gpufrac: Slurm did not take `--gres={plain}`; please report this"
                ))
            }
        }
    }
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
        decide(config, &there, Occasion::Submit).map_err(|refusal| refusal.to_string())
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
    let srun = std::env::args_os().next().is_some_and(|name| {
        PathBuf::from(name)
            .file_name()
            .is_some_and(|name| name == "srun")
    });
    srun && (std::env::var_os("SLURM_JOB_ID").is_some() || options.get(c"jobid").is_some())
}

fn read_config() -> Result<Config, String> {
    let (text, path) = host::read_configuration(config::PATH_ENV, config::PATH)?;
    Config::parse(&text, &path).map_err(|errors| errors.to_string())
}
