//! Judges the settings of the whole cluster, each by itself.

mod counting;
mod fence;
mod gpu_use;
mod hosts;
mod namespaces;
pub(super) mod plugins;
pub(super) mod prolog;
mod words;

use gpufrac_core::config::Config;
use gpufrac_core::count_name::CountName;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::slurm_release::{SlurmRelease, SlurmSeries};

use super::{Running, Settings};
pub(super) use gpu_use::{SUSPENDED, suspends};
use gpufrac_slurm_conf::ConfFile;
pub(super) use hosts::{no_answer, of_slurmctld, other_slurm_conf};
pub(super) use words::is;

/// The names of plugins of this kind in a list.
pub(super) fn plugins_of<'a>(value: &'a str, kind: &str) -> Vec<&'a str> {
    words::plugins(Some(value), kind)
}

struct Fault {
    severity: Severity,
    what: String,
    fix: Fix,
}

enum Fix {
    /// This value is right.
    Value(String),
    /// The line must be removed.
    Remove,
}

/// The facts that the judgement of a value depends on.
struct Context {
    release: Option<SlurmRelease>,
    uses_mig: bool,
    accounting: bool,
    detects: bool,
    count_name: CountName,
}

impl Context {
    fn of(settings: &Settings, config: &Config) -> Context {
        let stores = settings.value("AccountingStorageType");
        let detects = settings.files.iter().any(|files| {
            let mut lines = files.gres.lines.iter();
            lines.any(|line| line.get("AutoDetect").is_some_and(|how| !is(how, "off")))
        });
        Context {
            release: settings.release(),
            uses_mig: config.pools.iter().any(|pool| pool.mechanism.uses_mig()),
            accounting: stores.is_some_and(|kind| kind.contains("slurmdbd")),
            detects,
            count_name: config.count_name.clone(),
        }
    }

    /// Whether the release is known and older than this series.
    fn before(&self, major: u8, minor: u8) -> bool {
        let series = SlurmSeries::new(major, minor);
        self.release.is_some_and(|own| own.series < series)
    }

    /// Whether the release is known, and of this series or a newer one.
    fn since(&self, major: u8, minor: u8) -> bool {
        let series = SlurmSeries::new(major, minor);
        self.release.is_some_and(|own| own.series >= series)
    }
}

/// A setting with a wrong value, and the right value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrongValue {
    pub is: Option<String>,
    pub right: String,
}

/// The rule for a key, and the file of the key.
fn known<'a>(files: Option<&'a super::Files>, key: &str) -> Option<(Judge, Option<&'a ConfFile>)> {
    let of = |table: &[(&str, Judge)]| {
        let mut rows = table.iter();
        rows.find(|(name, _)| *name == key).map(|(_, judge)| *judge)
    };
    let slurm = of(SLURM_CONF).map(|judge| (judge, files.map(|files| &files.slurm)));
    slurm.or_else(|| of(CGROUP_CONF).map(|judge| (judge, files.map(|files| &files.cgroup))))
}

fn wrong_value(judge: Judge, context: &Context, is: Option<&str>) -> Option<WrongValue> {
    let fault = judge(context, is)?;
    match fault.fix {
        Fix::Value(right) if fault.severity != Severity::Note => Some(WrongValue {
            is: is.map(str::to_owned),
            right,
        }),
        _ => None,
    }
}

/// The wrong value of a setting in the files, if another value is right.
pub(super) fn wrong_in_files(
    settings: &Settings,
    config: &Config,
    key: &str,
) -> Option<WrongValue> {
    let (judge, file) = known(settings.files.as_ref(), key)?;
    let running = settings.running.as_ref();
    let running = running.filter(|_| !WITHOUT_DEFAULT.contains(&key));
    let written = file?.last(key).map(|(_, value)| value);
    let is = written.or_else(|| running?.get(key));
    wrong_value(judge, &Context::of(settings, config), is)
}

/// As [`wrong_in_files`], for the running Slurm.
pub(super) fn wrong_in_running(
    settings: &Settings,
    config: &Config,
    key: &str,
) -> Option<WrongValue> {
    let (judge, _) = known(None, key)?;
    let is = settings.running.as_ref()?.get(key);
    wrong_value(judge, &Context::of(settings, config), is)
}

type Judge = fn(&Context, Option<&str>) -> Option<Fault>;

const SLURM_CONF: &[(&str, Judge)] = &[
    ("SelectType", counting::select_type),
    ("SelectTypeParameters", counting::select_parameters),
    ("GresTypes", counting::gres_types),
    ("PrologFlags", prolog::prolog_flags),
    ("TaskPlugin", fence::task_plugin),
    ("ProctrackType", fence::proctrack),
    ("JobSubmitPlugins", plugins::job_submit),
    ("CliFilterPlugins", plugins::cli_filter),
    ("PrEpPlugins", prolog::prep_plugins),
    ("PrologEpilogTimeout", prolog::timeout),
    ("PrologTimeout", prolog::timeout),
    ("EpilogTimeout", prolog::timeout),
    ("SlurmdUser", prolog::slurmd_user),
    ("JobRequeue", prolog::job_requeue),
    ("PreemptMode", gpu_use::preempt_mode),
    ("AcctGatherEnergyType", gpu_use::energy),
    ("JobAcctGatherParams", gpu_use::job_acct_gather),
    ("AccountingStorageTRES", counting::accounting_tres),
    ("AccountingStorageType", counting::accounting_type),
];

const CGROUP_CONF: &[(&str, Judge)] = &[
    ("ConstrainDevices", fence::constrain_devices),
    ("CgroupPlugin", fence::cgroup_plugin),
];

/// Settings that are empty by default in every release: a running value without a line comes from a line that was
/// removed.
const WITHOUT_DEFAULT: &[&str] = &[
    "GresTypes",
    "PrologFlags",
    "JobSubmitPlugins",
    "CliFilterPlugins",
];

/// The finding about what accounting counts.
pub(super) fn accounting(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let context = Context::of(settings, config);
    let slurm = settings.files.as_ref().map(|files| &files.slurm);
    let key = "AccountingStorageTRES";
    let running = settings.running.as_ref();
    one(
        &context,
        running,
        slurm,
        key,
        counting::accounting_tres,
        found,
    );
}

pub(super) fn judge(settings: &Settings, config: &Config, found: &mut Vec<Finding>) {
    let context = Context::of(settings, config);
    let running = settings.running.as_ref();
    let slurm = settings.files.as_ref().map(|files| &files.slurm);
    for (key, judge) in SLURM_CONF {
        one(&context, running, slurm, key, *judge, found);
    }
    // If no plugin reads cgroup.conf, slurmctld has no values of it.
    let running = running.filter(|running| running.get("ConstrainDevices").is_some());
    let cgroup = settings.files.as_ref().map(|files| &files.cgroup);
    // slurmctld shows the cgroup.conf of its own host; slurmd reads that of its node.
    let is_node = settings.role.is_some_and(|role| role.is_node);
    for (key, judge) in CGROUP_CONF {
        let is_absent = cgroup.is_some_and(|file| file.last(key).is_none());
        let running = running.filter(|_| !(is_node && is_absent));
        one(&context, running, cgroup, key, *judge, found);
    }
    prolog::script(settings, "Prolog", "gpufrac-prolog", found);
    prolog::script(settings, "Epilog", "gpufrac-epilog", found);
    plugins::plugstack(settings, found);
    namespaces::users(settings, found);
    namespaces::shared_memory(settings, config, found);
    gpu_use::kill_mode(settings, found);
}

/// The finding about one setting: in the file, in the running Slurm, or in both.
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
        // A setting without a line has its default, which the running Slurm shows.
        None if running.is_some() && !WITHOUT_DEFAULT.contains(&key) => None,
        None => file.and_then(|_| judge(context, None)),
    };
    let now_is_wrong = now.is_some();
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
        .or_else(|| running.filter(|_| now_is_wrong)?.get(key));
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

fn fault(severity: Severity, what: impl Into<String>, fix: Fix) -> Option<Fault> {
    Some(Fault {
        severity,
        what: what.into(),
        fix,
    })
}
