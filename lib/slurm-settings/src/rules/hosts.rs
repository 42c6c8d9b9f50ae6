//! Differences between this host and slurmctld's.

use gpufrac_core::finding::{Finding, Severity};

use super::super::Settings;
use super::words::{has, words};

/// The name of slurmctld's host, for commands.
pub(in super::super) fn of_slurmctld(settings: &Settings) -> &str {
    let host = settings.value("SlurmctldHost").unwrap_or("slurmctld");
    host.split('(').next().unwrap_or(host)
}

/// A warning if slurm.conf is not the one by which slurmctld runs. scontrol compares the checksums of both.
pub(in super::super) fn other_slurm_conf(settings: &Settings, found: &mut Vec<Finding>) {
    let Some(running) = &settings.running else {
        return;
    };
    let differs = running.get("HASH_VAL");
    let differs = differs.is_some_and(|value| value.starts_with("Different"));
    // A site with this flag has different files on purpose.
    let is_wanted = has(&words(running.get("DebugFlags")), "NO_CONF_HASH");
    if !differs || is_wanted || settings.files.is_none() {
        return;
    }
    let (file, host) = (settings.slurm_conf(), of_slurmctld(settings));
    let fix = if settings.is_of_controller() {
        "restart slurmctld".to_owned()
    } else {
        format!(
            "where this file is the old one: `scp {host}:{file} {file}`, then restart slurmd; where it is the new one: copy it to {host} and restart slurmctld"
        )
    };
    // slurm.conf of this host is older or newer than slurmctld's (`HASH_VAL` of `scontrol show config`). Cure: Copy the
    // newer file to the other host; restart slurmctld, then slurmd.
    found.push(Finding {
        severity: Severity::Warning,
        place: Some(file),
        what: "this is not the file by which slurmctld runs: each daemon uses its own".to_owned(),
        fix,
    });
}

/// A warning if slurmctld gave no answer: then half of the settings were not judged, and jobs may not start here.
pub(in super::super) fn no_answer(settings: &Settings, found: &mut Vec<Finding>) {
    if let Some(why) = &settings.no_answer {
        // slurmctld does not run, or refuses this host: munge, or a clock that differs. Cure: `scontrol ping`; `munge
        // -n | unmunge` and `timedatectl` on both hosts.
        found.push(Finding {
            severity: Severity::Warning,
            place: Some("scontrol show config".to_owned()),
            what: format!("{why}: the running Slurm was not judged"),
            fix: "`scontrol ping` shows whether slurmctld runs; `munge -n | unmunge` and `timedatectl` on both hosts show why it refuses a host".to_owned(),
        });
    }
}
