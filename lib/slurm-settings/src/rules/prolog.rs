//! Settings of prolog and epilog: that they run as root, at the right time, and for as long as they need.

use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::slurm_release::SlurmSeries;

use super::super::Settings;
use super::super::scripts::HOOKS;
use super::words::{has, is, list, names, plugins, words};
use super::{Context, Fault, Fix, fault};

/// The seconds that gpufrac's prolog or epilog may need if a driver is slow: for a lock, nvidia-smi, a control daemon.
pub(in super::super) const PROLOG_NEEDS: u64 = 60;

/// From this series on slurm.conf may have several lines of `Prolog` and `Epilog`; before, the last one holds.
const SEVERAL_LINES: SlurmSeries = SlurmSeries::new(24, 5);

/// The flags that these flags of PrologFlags include: `prolog_str2flags` in Slurm's `read_config.c`.
fn implied(context: &Context, words: &[&str]) -> Vec<&'static str> {
    let mut implied = Vec::new();
    for word in words {
        match word.to_ascii_lowercase().as_str() {
            "contain" | "x11" => implied.extend(["Alloc", "Contain"]),
            "forcerequeueonfail" => implied.push("Alloc"),
            "deferbatch" if context.since(26, 5) => implied.push("Alloc"),
            _ => {}
        }
    }
    implied
}

pub(super) fn prolog_flags(context: &Context, value: Option<&str>) -> Option<Fault> {
    const NEEDED: [&str; 3] = ["Alloc", "Contain", "DeferBatch"];
    const UNWANTED: [&str; 2] = ["RunInJob", "NoHold"];
    let words = words(value);
    let mut had: Vec<&str> = words.clone();
    had.retain(|word| !has(&UNWANTED, word));
    had.extend(implied(context, &had));
    let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !has(&had, name)).collect();
    let right = || Fix::Value(list(&words, &missing, &UNWANTED));
    if has(&words, "RunInJob") {
        // `PrologFlags` has `RunInJob`. Cure: Remove the word.
        return fault(
            Severity::Error,
            "with RunInJob the prolog is in the control group of its job: it cannot use GPUs, and the processes that it starts end with the job",
            right(),
        );
    }
    if has(&words, "NoHold") {
        // `PrologFlags` has `NoHold`. Cure: Remove the word.
        return fault(
            Severity::Error,
            "with NoHold salloc and srun continue before the slice exists",
            right(),
        );
    }
    let (severity, what) = match missing.first() {
        None => return None,
        // `PrologFlags` lacks `Alloc`. Cure: Write the line of the hint.
        Some(&"Alloc") => (
            Severity::Error,
            "without Alloc jobs start before their slices exist, and the prolog relies on the request in the user's srun",
        ),
        // `PrologFlags` lacks `Contain`. Cure: Write the line of the hint.
        Some(&"Contain") => (
            Severity::Warning,
            "without Contain processes that are in no step, such as those of ssh, are outside of the job and of its fence",
        ),
        // `PrologFlags` lacks `DeferBatch`. Cure: Write the line of the hint.
        Some(_) => (
            Severity::Warning,
            "without DeferBatch the script of a job that its prolog requeues may start",
        ),
    };
    fault(severity, what, right())
}

pub(super) fn prep_plugins(_: &Context, value: Option<&str>) -> Option<Fault> {
    let named = plugins(value, "prep");
    if named.is_empty() || names(&named, "script") {
        None
    } else {
        // `PrepPlugins` lacks `prep/script`. Cure: Write the line of the hint.
        fault(
            Severity::Error,
            "without prep/script Prolog and Epilog are not run",
            Fix::Value(list(&words(value), &["prep/script"], &[])),
        )
    }
}

pub(super) fn timeout(_: &Context, value: Option<&str>) -> Option<Fault> {
    // scontrol prints an unset timeout as 65534 or 0.
    let seconds: u64 = value?.split_whitespace().next()?.parse().ok()?;
    if seconds == 0 || seconds >= PROLOG_NEEDS {
        None
    } else {
        // The timeout of prologs is too short. Cure: Write the line of the hint.
        fault(
            Severity::Warning,
            format!(
                "a slow driver or a busy GPU can take a prolog up to {PROLOG_NEEDS} s, and Slurm drains the node of one that it ended"
            ),
            Fix::Value(PROLOG_NEEDS.to_string()),
        )
    }
}

pub(super) fn slurmd_user(_: &Context, value: Option<&str>) -> Option<Fault> {
    // `SlurmdUser` is not root. Cure: `SlurmdUser=root`.
    match value {
        Some(user) if !is(user, "root") && !user.starts_with("root(") => fault(
            Severity::Error,
            "only root can make slices and fences",
            Fix::Value("root".into()),
        ),
        _ => None,
    }
}

pub(super) fn job_requeue(_: &Context, value: Option<&str>) -> Option<Fault> {
    // `JobRequeue=0`. Cure: `JobRequeue=1`.
    match value.map(str::trim) {
        Some("0") => fault(
            Severity::Note,
            "a job whose slice cannot be made at once ends, where others would go back to the queue",
            Fix::Value("1".into()),
        ),
        _ => None,
    }
}

/// Whether the Prolog or Epilog in `key` runs `program` on the nodes.
pub(in super::super) fn script(
    settings: &Settings,
    key: &str,
    program: &str,
    found: &mut Vec<Finding>,
) {
    let lines: Vec<_> = settings
        .files
        .iter()
        .flat_map(|files| files.slurm.all(key))
        .collect();
    let running = settings.running.as_ref();
    let running: Option<Vec<&str>> = running.map(|running| running.all(key));
    let place = match (lines.last(), &settings.files) {
        (Some((place, _)), _) => place.to_string(),
        (None, Some(files)) => files.slurm.path.display().to_string(),
        (None, None) => "scontrol show config".to_owned(),
    };
    let error = |place: String, what: String, fix: String| Finding {
        severity: Severity::Error,
        place: Some(place),
        what,
        fix,
    };
    let right = format!("/usr/sbin/{program}");
    let unset = format!("{key} is not set: no slice is made and unmade without it");
    // The running Slurm may still have a line that was removed from the file; it lasts until the next restart.
    let is_known = running.as_ref().is_some_and(|values| !values.is_empty());
    if lines.is_empty() && (settings.files.is_some() || !is_known) {
        found.push(error(place, unset, format!("add the line: {key}={right}")));
        return;
    }
    if running.as_ref().is_some_and(Vec::is_empty) {
        let fix = format!("{place} has it: `scontrol reconfigure`");
        let place = "scontrol show config".to_owned();
        found.push(error(place, unset, fix));
        return;
    }
    // Tested with 24.11: slurmctld sends the file as text, which ends at the first zero byte; that is the eighth byte
    // of a program.
    let parameters = words(settings.value("SlurmctldParameters"));
    let configless = has(&parameters, "enable_configless");
    let sent = lines.iter().find(|(_, value)| *value == program);
    if let Some((place, value)) = sent.filter(|_| configless) {
        let what = format!(
            "{key}={value}: a path that is not absolute is of a file that nodes without slurm.conf get from \
             slurmctld, and Slurm sends scripts alone: they would have no program to run"
        );
        let fix = format!("write instead: {key}={right}");
        found.push(error(place.to_string(), what, fix));
        return;
    }
    let last_alone = settings
        .release()
        .is_some_and(|own| own.series < SEVERAL_LINES);
    let first = if last_alone { lines.len().saturating_sub(1) } else { 0 };
    let written: Vec<&str> = lines.iter().skip(first).map(|(_, value)| *value).collect();
    let running = running.unwrap_or_default();
    let of_file = runs(settings, key, program, &written, place.clone());
    let is_error = |finding: &Finding| finding.severity == Severity::Error;
    // One of the two may be right: the line that was corrected since, or the line from before the mistake.
    let of_running = if running == written || of_file.as_ref().is_some_and(is_error) {
        None
    } else {
        runs(
            settings,
            key,
            program,
            &running,
            "scontrol show config".into(),
        )
    };
    found.extend(match (of_file, of_running) {
        (None, Some(finding)) if !written.is_empty() && is_error(&finding) => Some(Finding {
            fix: format!("{place} has another: `scontrol reconfigure`"),
            ..finding
        }),
        (None, finding) if written.is_empty() => finding,
        (of_file, _) => of_file,
    });
}

/// Whether one of the values of `key` is `program`, or a script that names it.
fn runs(
    settings: &Settings,
    key: &str,
    program: &str,
    values: &[&str],
    place: String,
) -> Option<Finding> {
    let value = values.last().copied()?;
    let is_program = |value: &&str| value.rsplit('/').next() == Some(program);
    let names_program = |value: &&str| {
        let name = value.rsplit('/').next().unwrap_or_default();
        if HOOKS.iter().any(|(_, ours)| *ours == name) {
            return Some(name == program);
        }
        let mut scripts = settings.scripts.iter();
        let script = scripts.find(|script| script.key == key && script.path == **value);
        script?.names_ours
    };
    let seen: Vec<Option<bool>> = values.iter().map(names_program).collect();
    if values.iter().any(is_program) || seen.contains(&Some(true)) {
        return None;
    }
    let (severity, what) = if seen.contains(&None) {
        // A script of the site runs in place of gpufrac's program. Cure: Let the script call the program and end with
        // its status.
        (
            Severity::Note,
            format!("whether it runs {program} cannot be seen from here"),
        )
    } else {
        // `Prolog=` or `Epilog=` names another program. Cure: Write the line of the hint, or call gpufrac's program
        // from your script.
        (
            Severity::Error,
            format!("it does not name {program}, which makes and removes slices"),
        )
    };
    let right = format!("/usr/sbin/{program}");
    Some(Finding {
        severity,
        place: Some(place),
        what: format!("{key}={value}: {what}"),
        fix: format!(
            "let it run {right} and end with its exit status, or write instead: {key}={right}"
        ),
    })
}
