//! Settings of control groups, which keep a job from other jobs' GPUs.

use gpufrac_core::finding::Severity;

use super::words::{is, list, names, without_spellings, words};
use super::{Context, Fault, Fix, fault};

pub(super) fn task_plugin(_: &Context, value: Option<&str>) -> Option<Fault> {
    const NONE: [&str; 2] = ["task/none", "none"];
    let mut words = without_spellings(&words(value), "task/cgroup");
    let has_none = words.iter().any(|word| NONE.contains(word));
    words.retain(|word| !NONE.contains(word));
    let has_ours = names(&words, "task/cgroup") || names(&words, "cgroup");
    let right = || {
        if has_ours {
            list(&words, &[], &[])
        } else {
            list(&["task/cgroup"], &words, &[])
        }
    };
    match (has_ours, has_none) {
        (true, false) => None,
        // `TaskPlugin` has `task/none` and another plugin. Cure: Write the line of the hint; restart slurmd.
        (true, true) => fault(
            Severity::Error,
            "with task/none beside it Slurm uses no task plugin at all: a job can use GPUs of other jobs",
            Fix::Value(right()),
        ),
        // `TaskPlugin` lacks `task/cgroup`. Cure: Write the line of the hint; restart slurmd.
        (false, _) => fault(
            Severity::Error,
            "without task/cgroup a job can use GPUs of other jobs",
            Fix::Value(right()),
        ),
    }
}

pub(super) fn proctrack(_: &Context, value: Option<&str>) -> Option<Fault> {
    // proctrack/cgroup is the default.
    let value = value.unwrap_or("proctrack/cgroup");
    if value.trim() == "proctrack/cgroup" {
        None
    } else {
        // `ProctrackType` is another plugin. Cure: `ProctrackType=proctrack/cgroup`.
        fault(
            Severity::Warning,
            "only proctrack/cgroup finds all processes of a job: others outlive it and keep its slice in use",
            Fix::Value("proctrack/cgroup".into()),
        )
    }
}

pub(super) fn constrain_devices(_: &Context, value: Option<&str>) -> Option<Fault> {
    // cgroup.conf lacks `ConstrainDevices=yes`. Cure: Write the line of the hint; restart slurmd.
    match value {
        // The words that Slurm reads as yes (`_handle_boolean`, `parse_config.c`).
        Some(value) if ["yes", "up", "true", "1"].iter().any(|yes| is(value, yes)) => None,
        _ => fault(
            Severity::Error,
            "a job can use GPUs of other jobs",
            Fix::Value("yes".into()),
        ),
    }
}

pub(super) fn cgroup_plugin(_: &Context, value: Option<&str>) -> Option<Fault> {
    // `CgroupPlugin=disabled`. Cure: `CgroupPlugin=autodetect`.
    match value {
        Some(value) if is(value, "disabled") => fault(
            Severity::Error,
            "without control groups a job can use GPUs of other jobs",
            Fix::Value("autodetect".into()),
        ),
        _ => None,
    }
}
