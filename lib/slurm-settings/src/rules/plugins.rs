//! Settings of gpufrac's plugins.

use gpufrac_core::finding::{Finding, Severity};

use super::super::Settings;
use super::words::{is, list, names, plugins, without_spellings};
use super::{Context, Fault, Fix, fault};
use crate::containers;
use gpufrac_slurm_conf::PluginLine;

pub(super) fn job_submit(_: &Context, value: Option<&str>) -> Option<Fault> {
    let words = plugins(value, "job_submit");
    let mut order = words.clone();
    order.retain(|word| !is(word, "gpufrac"));
    order.push("gpufrac");
    let right = || Fix::Value(order.join(","));
    if !names(&words, "gpufrac") {
        // `JobSubmitPlugins` lacks `gpufrac`. Cure: Write the line of the hint; restart slurmctld.
        return fault(
            Severity::Error,
            "slurmctld neither accepts `gpufrac:0.25` nor refuses raw shares",
            right(),
        );
    }
    // Another plugin stands behind gpufrac. Cure: Write `gpufrac` last.
    match words.last() {
        Some(last) if is(last, "gpufrac") => None,
        last => fault(
            Severity::Warning,
            format!(
                "what {} writes into a job after gpufrac is not checked",
                last.unwrap_or(&"another plugin")
            ),
            right(),
        ),
    }
}

pub(super) fn cli_filter(_: &Context, value: Option<&str>) -> Option<Fault> {
    let words = without_spellings(&plugins(value, "cli_filter"), "gpufrac");
    if names(&words, "gpufrac") {
        None
    } else {
        // `CliFilterPlugins` lacks `gpufrac`. Cure: Write the line of the hint.
        fault(
            Severity::Warning,
            "`srun --gres=gpufrac:0.25` inside of a job is refused: only this plugin sees steps",
            Fix::Value(list(&words, &["gpufrac"], &[])),
        )
    }
}

pub(super) fn plugstack(settings: &Settings, found: &mut Vec<Finding>) {
    let Some(files) = &settings.files else {
        return;
    };
    let lines = || files.plugins.iter().flatten();
    let line = lines().find(|line| containers::is_ours(line));
    let role = settings.role;
    if let Some(ours) = line.filter(|_| role.is_none_or(|role| role.is_node)) {
        let before = lines().take_while(|line| *line != ours);
        found.extend(
            before
                .filter(|line| containers::belongs_behind(line))
                .map(too_early),
        );
    }
    if let Some(unfit) = unfit(settings) {
        found.push(unfit);
        return;
    }
    match line {
        None => found.push(Finding {
            severity: match role {
                None => Severity::Error,
                Some(role) if role.is_node => Severity::Error,
                Some(role) if role.has_commands => Severity::Warning,
                // slurmctld does not load cli_filter plugins.
                Some(_) => Severity::Note,
            },
            place: Some(files.plugstack.display().to_string()),
            // plugstack.conf has no line for the plugin. Cure: Write the line of the hint.
            what: "spank_gpufrac.so is not there: jobs get no slice into their environment and no fence".into(),
            fix: if role.is_none_or(|role| role.is_node) { "add the line: required spank_gpufrac.so" } else { "add the line on the nodes: required spank_gpufrac.so; and here, where jobs are submitted: optional spank_gpufrac.so" }.into(),
        }),
        // `optional` is right on a host where users only submit jobs: with `required`, every sbatch fails if the
        // plugin cannot be loaded.

        // The line begins with `optional`. Cure: Write `required` on nodes.
        Some(line) if !line.required && role.is_none_or(|role| role.is_node) => found.push(Finding {
            severity: match role {
                Some(_) => Severity::Error,
                None => Severity::Warning,
            },
            place: Some(line.place.to_string()),
            what: "optional spank_gpufrac.so: a job whose fence cannot be set up runs without one".into(),
            fix: format!("write instead: required {}", line.plugin),
        }),
        Some(_) => {}
    }
}

/// The finding about a plugstack.conf to which no line can be added.
pub(in super::super) fn unfit(settings: &Settings) -> Option<Finding> {
    let files = settings.files.as_ref()?;
    let path = files.plugstack.display();
    let setting = files.slurm.last("PlugStackConfig");
    let folder = files.slurm.path.parent()?.display();
    let place = match setting {
        Some((place, _)) => place.to_string(),
        None => path.to_string(),
    };
    // Each program opens the path as it is (`_spank_stack_create` of `src/common/spank.c`).
    if files.plugstack.is_relative() && setting.is_some() {
        // `PlugStackConfig` is a relative path. Cure: Write the line of the hint.
        return Some(Finding::at(
            place,
            Severity::Error,
            format!(
                "PlugStackConfig={path} is a relative path, which each program of Slurm takes from the folder in which it runs: the line of \
                 spank_gpufrac.so is not read"
            ),
            format!("write the whole path: PlugStackConfig={folder}/plugstack.conf"),
        ));
    }
    if !settings.plugstack_is_odd {
        return None;
    }
    // `PlugStackConfig` is /dev/null, or another path that is no file. Cure: Write the line of the hint.
    Some(Finding::at(
        place,
        Severity::Error,
        format!(
            "{path} is no regular file, and the line of spank_gpufrac.so cannot be in it: jobs get no slice into their environment and no fence"
        ),
        format!("name a file, which need not exist yet: PlugStackConfig={folder}/plugstack.conf"),
    ))
}

fn too_early(line: &PluginLine) -> Finding {
    Finding {
        severity: Severity::Warning,
        place: Some(line.place.to_string()),
        // A plugin that starts containers stands before gpufrac's line. Cure: Write gpufrac's line before it.
        what: format!(
            "{} stands before spank_gpufrac.so: in its task_init CUDA_VISIBLE_DEVICES is Slurm's number where Slurm binds \
             tasks to GPUs, and in its init the variables are those of the job that submitted this one",
            containers::file_name(line)
        ),
        fix: "move the line of spank_gpufrac.so before it".into(),
    }
}
