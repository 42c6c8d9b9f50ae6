//! Settings that hold for the whole cluster, each by itself.

use gpufrac_core::config::Config;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::slurm_release::{SlurmRelease, SlurmSeries};

use super::conf::{ConfFile, PluginLine};
use super::{Running, Settings};

/// Seconds that a prolog or epilog of ours may take where a driver is slow: a lock, nvidia-smi, a control daemon.
const PROLOG_NEEDS: u64 = 60;

/// What is wrong with a value.
struct Fault {
    severity: Severity,
    what: String,
    fix: Fix,
}

enum Fix {
    /// This value is right.
    Value(String),
    /// The line has to go.
    Remove,
}

/// What judging a value may depend on.
struct Context {
    release: Option<SlurmRelease>,
    uses_mig: bool,
    accounting: bool,
    detects: bool,
}

impl Context {
    fn of(settings: &Settings, config: &Config) -> Context {
        let stores = value(settings, "AccountingStorageType");
        let detects = settings.files.iter().any(|files| {
            let mut lines = files.gres.lines.iter();
            lines.any(|line| line.get("AutoDetect").is_some_and(|how| !is(how, "off")))
        });
        Context {
            release: settings.running.as_ref().and_then(Running::release),
            uses_mig: config.pools.iter().any(|pool| pool.mechanism.uses_mig()),
            accounting: stores.is_some_and(|kind| kind.contains("slurmdbd")),
            detects,
        }
    }

    /// Whether the release is known and older than the series.
    fn before(&self, major: u8, minor: u8) -> bool {
        let series = SlurmSeries::new(major, minor);
        self.release.is_some_and(|own| own.series < series)
    }

    /// Whether the release is known and of this series or a newer one.
    fn since(&self, major: u8, minor: u8) -> bool {
        let series = SlurmSeries::new(major, minor);
        self.release.is_some_and(|own| own.series >= series)
    }
}

pub(super) fn value(settings: &Settings, key: &str) -> Option<String> {
    let running = settings.running.as_ref().and_then(|r| r.get(key));
    let file = || settings.files.as_ref()?.slurm.last(key).map(|(_, v)| v);
    running.or_else(file).map(str::to_owned)
}

type Judge = fn(&Context, Option<&str>) -> Option<Fault>;

const SLURM_CONF: &[(&str, Judge)] = &[
    ("SelectType", select_type),
    ("SelectTypeParameters", select_parameters),
    ("GresTypes", gres_types),
    ("PrologFlags", prolog_flags),
    ("TaskPlugin", task_plugin),
    ("ProctrackType", proctrack),
    ("JobSubmitPlugins", job_submit),
    ("CliFilterPlugins", cli_filter),
    ("PrEpPlugins", prep_plugins),
    ("PrologEpilogTimeout", timeout),
    ("PrologTimeout", timeout),
    ("EpilogTimeout", timeout),
    ("SlurmdUser", slurmd_user),
    ("JobRequeue", job_requeue),
    ("PreemptMode", preempt_mode),
    ("AcctGatherEnergyType", energy),
    ("JobAcctGatherParams", job_acct_gather),
    ("AccountingStorageTRES", accounting_tres),
];

const CGROUP_CONF: &[(&str, Judge)] = &[
    ("ConstrainDevices", constrain_devices),
    ("CgroupPlugin", cgroup_plugin),
];

pub(super) fn judge(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let context = Context::of(settings, config);
    let running = settings.running.as_ref();
    let slurm = settings.files.as_ref().map(|files| &files.slurm);
    for (key, judge) in SLURM_CONF {
        one(&context, running, slurm, key, *judge, found);
    }
    // Where no plugin reads cgroup.conf, slurmctld has nothing to show of it.
    let running = running.filter(|running| running.get("ConstrainDevices").is_some());
    let cgroup = settings.files.as_ref().map(|files| &files.cgroup);
    for (key, judge) in CGROUP_CONF {
        one(&context, running, cgroup, key, *judge, found);
    }
    script(settings, "Prolog", "gpufrac-prolog", found);
    script(settings, "Epilog", "gpufrac-epilog", found);
    plugstack(settings, found);
    if let Some(place) = settings
        .files
        .as_ref()
        .and_then(|files| files.user_namespaces.as_ref())
    {
        found.push(Finding {
            severity: Severity::Warning,
            place: Some(place.to_string()),
            what: "CLONE_NEWUSER: in a user namespace there is no right to fence a task, and one that can not be \
                   fenced does not start (not tried)"
                .into(),
            fix: "leave it out where there are pools".into(),
        });
    }
    if let Some(mode) = settings
        .kill_mode
        .as_deref()
        .filter(|mode| *mode != "process")
    {
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

/// Where a value is wrong, in the file, in the running Slurm, or in both.
fn one(
    context: &Context,
    running: Option<&Running>,
    file: Option<&ConfFile>,
    key: &str,
    judge: Judge,
    found: &mut Vec<Finding>,
) {
    let line = file.and_then(|file| file.last(key));
    let now = running.and_then(|running| judge(context, running.get(key)));
    let written = match line {
        Some((_, value)) => judge(context, Some(value)),
        // What is not written has its default, which the running one shows.
        None if running.is_some() => None,
        None => file.and_then(|_| judge(context, None)),
    };
    let place = match (line, file) {
        (Some((place, _)), _) => place.to_string(),
        (None, Some(file)) => file.path.display().to_string(),
        (None, None) => "scontrol show config".into(),
    };
    let fault = match (now, written) {
        (Some(now), None) if line.is_some() => {
            let value = running.and_then(|running| running.get(key));
            found.push(Finding {
                severity: now.severity,
                place: Some("scontrol show config".into()),
                what: format!("{}: {}", named(key, value), now.what),
                fix: format!("{place} has it right: restart slurmctld, then slurmd on every node"),
            });
            return;
        }
        (_, Some(written)) => written,
        (Some(now), None) => now,
        (None, None) => return,
    };
    let value = line
        .map(|(_, value)| value)
        .or_else(|| running.and_then(|running| running.get(key)));
    let fix = match (fault.fix, line) {
        (Fix::Value(value), Some(_)) => format!("write instead: {key}={value}"),
        (Fix::Value(value), None) => format!("add the line: {key}={value}"),
        (Fix::Remove, _) => format!("remove the line {}", named(key, value)),
    };
    found.push(Finding {
        severity: fault.severity,
        place: Some(place),
        what: format!("{}: {}", named(key, value), fault.what),
        fix,
    });
}

fn named(key: &str, value: Option<&str>) -> String {
    match value {
        Some(value) => format!("{key}={value}"),
        None => format!("{key} is not set"),
    }
}

pub(super) fn is(value: &str, name: &str) -> bool {
    value.trim().eq_ignore_ascii_case(name)
}

fn words(value: Option<&str>) -> Vec<&str> {
    let words = value.into_iter().flat_map(|value| value.split(','));
    words
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect()
}

fn has(words: &[&str], name: &str) -> bool {
    words.iter().any(|word| is(word, name))
}

/// The list with what is missing at its end and without what is not wanted.
fn list(words: &[&str], missing: &[&str], unwanted: &[&str]) -> String {
    let kept = words.iter().filter(|word| !has(unwanted, word)).copied();
    let new = missing.iter().filter(|name| !has(words, name)).copied();
    kept.chain(new).collect::<Vec<_>>().join(",")
}

fn fault(severity: Severity, what: impl Into<String>, fix: Fix) -> Option<Fault> {
    Some(Fault {
        severity,
        what: what.into(),
        fix,
    })
}

fn select_type(_: &Context, value: Option<&str>) -> Option<Fault> {
    let right = Fix::Value("select/cons_tres".into());
    match value {
        Some(value) if is(value, "select/cons_tres") => None,
        Some(_) => fault(
            Severity::Error,
            "only select/cons_tres counts shares of a GPU",
            right,
        ),
        None => fault(
            Severity::Warning,
            "only select/cons_tres counts shares of a GPU, and not every release has it by default",
            right,
        ),
    }
}

fn select_parameters(context: &Context, value: Option<&str>) -> Option<Fault> {
    let words = words(value);
    for name in ["MULTIPLE_SHARING_GRES_PJ", "ONE_TASK_PER_SHARING_GRES"] {
        if has(&words, name) {
            let what = match name {
                "MULTIPLE_SHARING_GRES_PJ" => {
                    "Slurm may then divide a job's shares among several GPUs, and a slice is of one"
                }
                _ => "a job of several tasks then needs a GPU for each, and its slice is of one",
            };
            return fault(Severity::Error, what, without(&words, name));
        }
    }
    if has(&words, "LL_SHARED_GRES") && !context.before(23, 11) {
        return fault(
            Severity::Note,
            "fractions are spread over the devices instead of packed, so that large ones wait longer",
            without(&words, "LL_SHARED_GRES"),
        );
    }
    None
}

fn without(words: &[&str], name: &str) -> Fix {
    match list(words, &[], &[name]) {
        rest if rest.is_empty() => Fix::Remove,
        rest => Fix::Value(rest),
    }
}

fn gres_types(_: &Context, value: Option<&str>) -> Option<Fault> {
    const NEEDED: [&str; 3] = ["gpu", "shard", "gpufrac"];
    let words = words(value);
    let missing: Vec<&str> = NEEDED
        .into_iter()
        .filter(|name| !has(&words, name))
        .collect();
    if missing.is_empty() {
        return None;
    }
    fault(
        Severity::Error,
        format!("fractions are counted as {}", missing.join(" and ")),
        Fix::Value(list(&words, &NEEDED, &[])),
    )
}

/// What these flags of the prolog bring with them: `prolog_str2flags` in Slurm's `read_config.c`.
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

fn prolog_flags(context: &Context, value: Option<&str>) -> Option<Fault> {
    const NEEDED: [&str; 3] = ["Alloc", "Contain", "DeferBatch"];
    const UNWANTED: [&str; 2] = ["RunInJob", "NoHold"];
    let words = words(value);
    let mut had: Vec<&str> = words.clone();
    had.retain(|word| !has(&UNWANTED, word));
    had.extend(implied(context, &had));
    let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !has(&had, name)).collect();
    let right = || Fix::Value(list(&words, &missing, &UNWANTED));
    if has(&words, "RunInJob") {
        return fault(
            Severity::Error,
            "with RunInJob the prolog is in the control group of its job: it reaches no GPU, and what it starts ends with the job",
            right(),
        );
    }
    if has(&words, "NoHold") {
        return fault(
            Severity::Error,
            "with NoHold salloc and srun go on before the slice is there",
            right(),
        );
    }
    let (severity, what) = match missing.first() {
        None => return None,
        Some(&"Alloc") => (
            Severity::Error,
            "without Alloc jobs start before their slices are there, and a prolog believes what the user's srun says",
        ),
        Some(&"Contain") => (
            Severity::Warning,
            "without Contain processes that are in no step, such as those of ssh, are outside of the job and of its fence",
        ),
        Some(_) => (
            Severity::Warning,
            "without DeferBatch the script of a job that its prolog puts back may be started",
        ),
    };
    fault(severity, what, right())
}

fn task_plugin(_: &Context, value: Option<&str>) -> Option<Fault> {
    let words = words(value);
    match has(&words, "task/cgroup") || has(&words, "cgroup") {
        true => None,
        false => fault(
            Severity::Error,
            "without task/cgroup nothing keeps a job from GPUs that are not its own",
            Fix::Value(list(&["task/cgroup"], &words, &["task/none", "none"])),
        ),
    }
}

fn proctrack(_: &Context, value: Option<&str>) -> Option<Fault> {
    // It is the default.
    let value = value.unwrap_or("proctrack/cgroup");
    match is(value, "proctrack/cgroup") {
        true => None,
        false => fault(
            Severity::Warning,
            "only proctrack/cgroup finds all processes of a job: others outlive it and keep its slice in use",
            Fix::Value("proctrack/cgroup".into()),
        ),
    }
}

/// Slurm takes the names of some plugins with their kind before them, too; in small letters alone.
fn plugins<'a>(value: Option<&'a str>, kind: &str) -> Vec<&'a str> {
    let mut words = words(value);
    for word in &mut words {
        if let Some((_, name)) = word.split_once('/').filter(|(before, _)| *before == kind) {
            *word = name;
        }
    }
    words
}

fn job_submit(_: &Context, value: Option<&str>) -> Option<Fault> {
    let words = plugins(value, "job_submit");
    let mut order = words.clone();
    order.retain(|word| !is(word, "gpufrac"));
    order.push("gpufrac");
    let right = || Fix::Value(order.join(","));
    if !has(&words, "gpufrac") {
        return fault(
            Severity::Error,
            "slurmctld takes no `gpufrac:0.25`, and refuses no raw shares",
            right(),
        );
    }
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

fn cli_filter(_: &Context, value: Option<&str>) -> Option<Fault> {
    let words = plugins(value, "cli_filter");
    match has(&words, "gpufrac") {
        true => None,
        false => fault(
            Severity::Warning,
            "`srun --gres=gpufrac:0.25` inside of a job is refused: only this plugin sees steps",
            Fix::Value(list(&words, &["gpufrac"], &[])),
        ),
    }
}

fn prep_plugins(_: &Context, value: Option<&str>) -> Option<Fault> {
    let named = plugins(value, "prep");
    match named.is_empty() || has(&named, "script") {
        true => None,
        false => fault(
            Severity::Error,
            "without prep/script Prolog and Epilog are not run",
            Fix::Value(list(&words(value), &["prep/script"], &[])),
        ),
    }
}

fn timeout(_: &Context, value: Option<&str>) -> Option<Fault> {
    // Unset is 65534 or 0.
    let seconds: u64 = value?.split_whitespace().next()?.parse().ok()?;
    match seconds == 0 || seconds >= PROLOG_NEEDS {
        true => None,
        false => fault(
            Severity::Warning,
            format!(
                "a slow driver or a busy GPU can take a prolog up to {PROLOG_NEEDS} s, and Slurm drains the node of one that it ended"
            ),
            Fix::Value(PROLOG_NEEDS.to_string()),
        ),
    }
}

fn slurmd_user(_: &Context, value: Option<&str>) -> Option<Fault> {
    match value {
        Some(user) if !is(user, "root") && !user.starts_with("root(") => fault(
            Severity::Error,
            "only root can make slices and fences",
            Fix::Value("root".into()),
        ),
        _ => None,
    }
}

fn job_requeue(_: &Context, value: Option<&str>) -> Option<Fault> {
    match value.map(str::trim) {
        Some("0") => fault(
            Severity::Note,
            "a job whose slice can not be made at once ends, where others would go back to the queue",
            Fix::Value("1".into()),
        ),
        _ => None,
    }
}

/// What SUSPEND and GANG do, in slurm.conf and in partitions.
pub(super) const SUSPENDED: &str =
    "a suspended job keeps its slice and its GPU memory, so that nobody else gets them";

pub(super) fn suspends(value: &str) -> bool {
    let words = words(Some(value));
    has(&words, "SUSPEND") || has(&words, "GANG")
}

fn preempt_mode(_: &Context, value: Option<&str>) -> Option<Fault> {
    match value {
        Some(value) if suspends(value) => {
            fault(Severity::Warning, SUSPENDED, Fix::Value("REQUEUE".into()))
        }
        _ => None,
    }
}

fn energy(context: &Context, value: Option<&str>) -> Option<Fault> {
    match value {
        Some(value)
            if context.uses_mig && has(&plugins(Some(value), "acct_gather_energy"), "gpu") =>
        {
            fault(
                Severity::Warning,
                "slurmd keeps the GPUs open, and an open GPU can keep instances from being made",
                Fix::Remove,
            )
        }
        _ => None,
    }
}

fn job_acct_gather(context: &Context, value: Option<&str>) -> Option<Fault> {
    if !context.uses_mig || !context.detects || context.before(22, 5) {
        return None;
    }
    let words = words(value);
    match has(&words, "DisableGPUAcct") {
        true => None,
        false => fault(
            Severity::Warning,
            "with AutoDetect slurmstepd asks the driver for the use of GPUs, and an open GPU can keep instances from being made",
            Fix::Value(list(&words, &["DisableGPUAcct"], &[])),
        ),
    }
}

fn accounting_tres(context: &Context, value: Option<&str>) -> Option<Fault> {
    let words = words(value);
    let ours = words
        .iter()
        .any(|word| word.to_ascii_lowercase().starts_with("gres/gpufrac"));
    if ours || !context.accounting {
        return None;
    }
    // The running value has Slurm's own, which need not be written.
    let own = [
        "cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages",
    ];
    fault(
        Severity::Note,
        "sacct, sreport and limits do not see fractions",
        Fix::Value(list(&words, &["gres/gpufrac"], &own)),
    )
}

fn constrain_devices(_: &Context, value: Option<&str>) -> Option<Fault> {
    match value {
        // What Slurm takes for yes (`_handle_boolean`, `parse_config.c`).
        Some(value) if ["yes", "up", "true", "1"].iter().any(|yes| is(value, yes)) => None,
        _ => fault(
            Severity::Error,
            "nothing keeps a job from GPUs that are not its own",
            Fix::Value("yes".into()),
        ),
    }
}

fn cgroup_plugin(_: &Context, value: Option<&str>) -> Option<Fault> {
    match value {
        Some(value) if is(value, "disabled") => fault(
            Severity::Error,
            "without control groups nothing keeps a job from GPUs that are not its own",
            Fix::Value("autodetect".into()),
        ),
        _ => None,
    }
}

fn script(settings: &Settings, key: &str, program: &str, found: &mut Vec<Finding>) {
    let running = settings.running.as_ref();
    let lines: Vec<_> = settings
        .files
        .iter()
        .flat_map(|files| files.slurm.all(key))
        .collect();
    let mut values: Vec<&str> = lines.iter().map(|(_, value)| *value).collect();
    values.extend(running.into_iter().flat_map(|running| running.all(key)));
    let file = settings
        .files
        .as_ref()
        .map(|files| files.slurm.path.display().to_string());
    let place = match lines.last() {
        Some((place, _)) => place.to_string(),
        None => file.unwrap_or("scontrol show config".into()),
    };
    let right = format!("/usr/sbin/{program}");
    let named_so = |value: &&str| value.rsplit('/').next() == Some(program);
    let running_has = running.is_none_or(|running| !running.all(key).is_empty());
    if values.is_empty() {
        found.push(Finding {
            severity: Severity::Error,
            place: Some(place),
            what: format!("{key} is not set: no slice is made and unmade without it"),
            fix: format!("add the line: {key}={right}"),
        });
        return;
    }
    if !running_has {
        found.push(Finding {
            severity: Severity::Error,
            place: Some("scontrol show config".into()),
            what: format!("{key} is not set: no slice is made and unmade without it"),
            fix: format!("{place} has it: `scontrol reconfigure`"),
        });
        return;
    }
    // Tried with 24.11: it is sent as text, which ends at its first zero byte, the eighth of a program.
    let configless = value(settings, "SlurmctldParameters")
        .is_some_and(|list| has(&words(Some(&list)), "enable_configless"));
    let sent = lines
        .iter()
        .find(|(_, value)| *value == program && configless);
    if let Some((place, value)) = sent {
        found.push(Finding {
            severity: Severity::Error,
            place: Some(place.to_string()),
            what: format!(
                "{key}={value}: a path that is not absolute is of a file that nodes without slurm.conf get from \
                 slurmctld, and Slurm sends scripts alone: they would have no program to run"
            ),
            fix: format!("write instead: {key}={right}"),
        });
        return;
    }
    if values.iter().any(named_so) {
        return;
    }
    let seen = |value: &&str| {
        let mut scripts = settings.scripts.iter();
        scripts.find(|script| script.path == **value)?.names_ours
    };
    let seen: Vec<Option<bool>> = values.iter().map(seen).collect();
    if seen.contains(&Some(true)) {
        return;
    }
    let value = values.last().copied().unwrap_or_default();
    let (severity, what) = match seen.contains(&None) {
        true => (
            Severity::Note,
            format!("whether it runs {program} can not be seen from here"),
        ),
        false => (
            Severity::Error,
            format!("it does not name {program}, which makes and unmakes slices"),
        ),
    };
    found.push(Finding {
        severity,
        place: Some(place),
        what: format!("{key}={value}: {what}"),
        fix: format!(
            "let it run {right} and end with its exit status, or write instead: {key}={right}"
        ),
    });
}

fn plugstack(settings: &Settings, found: &mut Vec<Finding>) {
    let Some(files) = &settings.files else {
        return;
    };
    let ours = |line: &&PluginLine| line.plugin.rsplit('/').next() == Some("spank_gpufrac.so");
    let line = files.plugins.iter().flatten().find(ours);
    match line {
        None => found.push(Finding {
            severity: Severity::Error,
            place: Some(files.plugstack.display().to_string()),
            what: "spank_gpufrac.so is not there: jobs get no slice into their environment and no fence".into(),
            fix: "add the line: required spank_gpufrac.so".into(),
        }),
        Some(line) if !line.required => found.push(Finding {
            severity: Severity::Warning,
            place: Some(line.place.to_string()),
            what: "optional spank_gpufrac.so: a job whose fence can not be set up runs without one".into(),
            fix: format!("write instead: required {}", line.plugin),
        }),
        Some(_) => {}
    }
}
