//! Limits of QOS and associations, and reservations, that count GPUs in a way which fractions change.
//!
//! The limits are those of `sacctmgr`, not of `scontrol show assoc_mgr`: with `wopinfo` sacctmgr prints a limit once,
//! at the account or user that has it, and a line to write must name that one. slurmctld's own list repeats it at each
//! user below, is longer by far on a large cluster, and holds slurmctld's locks.

mod judge;
mod read;
mod reservations;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use gpufrac_slurm_conf::{Record, reservations as records};
use nix::unistd::geteuid;

use super::ask::{AskError, ask_slurm, joined};
use super::{Settings, rules};

pub(super) use judge::judge;
pub(super) use reservations::judge as judge_reservations;

/// What slurmdbd and slurmctld say of limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    rows: Vec<Limit>,
    reservations: BTreeMap<String, Record>,
    /// What could not be asked, with the reason.
    pub unknown: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Limit {
    owner: Owner,
    /// The column of `sacctmgr show`, which is also the name in `sacctmgr modify`.
    key: &'static str,
    /// The counts of GRES by name: `gpu`, `gpu:h100`, `shard`.
    gres: BTreeMap<String, u64>,
    /// Whether the QOS refuses a job over its limit (`DenyOnLimit`).
    denies: bool,
}

/// Whose limit it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Qos(String),
    Cluster(String),
    Account {
        name: String,
        cluster: String,
    },
    /// Users with the same limit in the same account.
    Users {
        names: Vec<String>,
        account: String,
        cluster: String,
        partition: String,
    },
}

/// Asks slurmdbd for the limits and slurmctld for the reservations.
pub(super) fn ask(settings: &Settings) -> Limits {
    let mut limits = Limits::default();
    if settings.running.is_some() {
        match ask_slurm("scontrol", &["-a", "-o", "show", "reservation"]) {
            Ok(text) => limits.reservations = records(&text),
            Err(error) => limits
                .unknown
                .push(format!("{error}: reservations are not judged")),
        }
    }
    let stores = settings.value("AccountingStorageType");
    if !stores.is_some_and(|kind| kind.contains("slurmdbd")) {
        return limits;
    }
    match rows(settings.value("ClusterName").unwrap_or_default()) {
        Ok(rows) => limits.rows = rows,
        Err(error) => limits.unknown.push(format!(
            "{error}: limits of accounts and QOS are not judged"
        )),
    }
    let hides = settings.value("PrivateData").unwrap_or_default();
    if !geteuid().is_root() && ["accounts", "users"].iter().any(|it| hides.contains(it)) {
        let why = "PrivateData hides limits of other accounts and users from this user: they are not judged";
        limits.unknown.push(why.to_owned());
    }
    limits
}

fn rows(cluster: &str) -> Result<Vec<Limit>, AskError> {
    let qos = format!("format={}", read::columns_of_qos());
    let associations = format!("format={}", read::columns_of_associations());
    let cluster = format!("cluster={}", cluster.to_ascii_lowercase());
    let shown = ["-P", "show", "assoc", "wopinfo", "where", &cluster];
    // Both wait for slurmdbd, so they run in parallel.
    let (qos, associations) = std::thread::scope(|scope| {
        let qos = scope.spawn(|| ask_slurm("sacctmgr", &["-P", "show", "qos", &qos]));
        let associations = ask_slurm("sacctmgr", &[&shown[..], &[&associations]].concat());
        (joined("sacctmgr", qos), associations)
    });
    let mut rows = read::qos(&qos?);
    rows.extend(read::associations(&associations?));
    Ok(rows)
}

/// Whether slurmctld enforces limits at all; true where it is not known.
fn are_enforced(settings: &Settings) -> bool {
    let running = settings.running.as_ref();
    let Some(enforced) = running.and_then(|running| running.get("AccountingStorageEnforce")) else {
        return running.is_none();
    };
    let mut words = enforced.split(',').map(str::trim);
    words.any(|word| {
        ["limits", "safe", "all"]
            .iter()
            .any(|all| rules::is(word, all))
    })
}
