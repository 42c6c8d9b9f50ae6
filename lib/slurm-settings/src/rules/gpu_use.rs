//! Settings for other uses of GPUs: Slurm's accounting, suspended jobs, and MPS control daemons.

use gpufrac_core::finding::{Finding, Severity};

use super::super::Settings;
use super::words::{has, list, plugins, words};
use super::{Context, Fault, Fix, fault};

/// The effect of SUSPEND and GANG, in slurm.conf and in partitions.
pub(in super::super) const SUSPENDED: &str =
    "a suspended job keeps its slice and its GPU memory, so that nobody else gets them";

pub(in super::super) fn suspends(value: &str) -> bool {
    let words = words(Some(value));
    has(&words, "SUSPEND") || has(&words, "GANG")
}

pub(super) fn preempt_mode(_: &Context, value: Option<&str>) -> Option<Fault> {
    match value {
        Some(value) if suspends(value) => {
            fault(Severity::Warning, SUSPENDED, Fix::Value("REQUEUE".into()))
        }
        _ => None,
    }
}

pub(super) fn energy(context: &Context, value: Option<&str>) -> Option<Fault> {
    match value {
        Some(value)
            if context.uses_mig && has(&plugins(Some(value), "acct_gather_energy"), "gpu") =>
        {
            // `AcctGatherEnergyType=gpu`. Cure: Remove the setting.
            fault(
                Severity::Warning,
                "slurmd keeps the GPUs open, and an open GPU can prevent the creation of instances",
                Fix::Remove,
            )
        }
        _ => None,
    }
}

pub(super) fn job_acct_gather(context: &Context, value: Option<&str>) -> Option<Fault> {
    if !context.uses_mig || !context.detects || context.before(22, 5) {
        return None;
    }
    let words = words(value);
    if has(&words, "DisableGPUAcct") {
        None
    } else {
        // slurmstepd gathers the use of GPUs. Cure: Write the line of the hint.
        fault(
            Severity::Warning,
            "with AutoDetect slurmstepd asks the driver for the use of GPUs, and an open GPU can prevent the creation of instances",
            Fix::Value(list(&words, &["DisableGPUAcct"], &[])),
        )
    }
}

pub(super) fn kill_mode(settings: &Settings, found: &mut Vec<Finding>) {
    if let Some(mode) = settings
        .kill_mode
        .as_deref()
        .filter(|mode| *mode != "process")
    {
        // systemd kills the whole control group of slurmd. Cure: `systemctl edit slurmd`: `[Service]`,
        // `KillMode=process`.
        found.push(Finding {
            severity: Severity::Error,
            place: Some("slurmd.service".into()),
            what: format!(
                "KillMode={mode}: a restart of slurmd ends the control daemons of MPS, and the jobs' GPU work"
            ),
            fix: "`systemctl edit slurmd`, and write: [Service] KillMode=process".into(),
        });
    }
}
