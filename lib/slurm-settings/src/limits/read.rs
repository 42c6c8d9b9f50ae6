//! Reads the tables of `sacctmgr -P show qos` and `show assoc`. A column that a release does not have is no limit.

use std::collections::BTreeMap;

use super::{Limit, Owner};
use gpufrac_slurm_conf::number;
use gpufrac_slurm_conf::table::{Header, Row};

/// How many of [`KEYS`], the first ones, associations have.
const OF_ASSOCIATIONS: usize = 6;
/// The columns that are limits of a QOS.
const KEYS: [&str; 11] = [
    "GrpTRES",
    "GrpTRESMins",
    "GrpTRESRunMins",
    "MaxTRES",
    "MaxTRESPerNode",
    "MaxTRESMins",
    "MaxTRESPU",
    "MaxTRESPA",
    "MinTRES",
    "MaxTRESRunMinsPU",
    "MaxTRESRunMinsPA",
];

pub(super) fn columns_of_qos() -> String {
    format!("Name,Flags,{}", KEYS.join(","))
}

pub(super) fn columns_of_associations() -> String {
    let limits = KEYS[..OF_ASSOCIATIONS].join(",");
    format!("Cluster,Account,User,Partition,{limits}")
}

/// The limits of all rows of a table.
fn table(text: &str, of_row: impl Fn(&Row<'_>) -> Vec<Limit>) -> Vec<Limit> {
    let mut lines = text.lines();
    let header = Header::of(lines.next().unwrap_or_default());
    let rows = lines.filter_map(|line| header.open_line(line).ok());
    rows.flat_map(|row| of_row(&row)).collect()
}

pub(super) fn qos(text: &str) -> Vec<Limit> {
    table(text, |row| {
        let owner = Owner::Qos(of(row, "Name"));
        limits(row, &owner, of(row, "Flags").contains("DenyOnLimit"))
    })
}

/// The limits of associations. Users with the same limits stand together, because a class may have hundreds of them.
pub(super) fn associations(text: &str) -> Vec<Limit> {
    let mut found: Vec<Limit> = Vec::new();
    for limit in table(text, |row| limits(row, &owner(row), false)) {
        let same = found.iter_mut().find_map(|known| users_with(known, &limit));
        match (same, limit.owner) {
            (Some(known), Owner::Users { names, .. }) => known.extend(names),
            (_, owner) => found.push(Limit { owner, ..limit }),
        }
    }
    found
}

/// The users of a limit to which those of another can be added.
fn users_with<'l>(known: &'l mut Limit, other: &Limit) -> Option<&'l mut Vec<String>> {
    let is_same = known.key == other.key && known.gres == other.gres;
    let (
        Owner::Users {
            names,
            account,
            cluster,
            partition,
        },
        Owner::Users {
            account: a,
            cluster: c,
            partition: p,
            ..
        },
    ) = (&mut known.owner, &other.owner)
    else {
        return None;
    };
    (is_same && (&*account, &*cluster, &*partition) == (a, c, p)).then_some(names)
}

fn owner(row: &Row<'_>) -> Owner {
    let (account, cluster) = (of(row, "Account"), of(row, "Cluster"));
    match (of(row, "User"), account.as_str()) {
        (user, "root") if user.is_empty() => Owner::Cluster(cluster),
        (user, _) if user.is_empty() => Owner::Account {
            name: account,
            cluster,
        },
        (user, _) => Owner::Users {
            names: vec![user],
            account,
            cluster,
            partition: of(row, "Partition"),
        },
    }
}

fn of(row: &Row<'_>, key: &str) -> String {
    row.text(&[key]).unwrap_or_default().to_owned()
}

fn limits(row: &Row<'_>, owner: &Owner, denies: bool) -> Vec<Limit> {
    let found = KEYS.iter().filter_map(|key| {
        let gres = gres(row.text(&[key]).ok()?);
        (!gres.is_empty()).then(|| Limit {
            owner: owner.clone(),
            key,
            gres,
            denies,
        })
    });
    found.collect()
}

/// The counts of GRES in `cpu=50,gres/gpu=1`, by name.
pub(super) fn gres(tres: &str) -> BTreeMap<String, u64> {
    let items = tres.split(',').filter_map(|item| {
        let (name, count) = item.split_once('=')?;
        Some((name.strip_prefix("gres/")?.to_owned(), number(count)?))
    });
    items.collect()
}
