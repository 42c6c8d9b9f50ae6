//! Limits of accounts and QOS: `sacctmgr -P show qos` and `sacctmgr -P show assoc`, of all versions, in one file or several.
//!
//! A header starts a table: one with an account is of associations, another one with a name is of QOS.

use std::io::Read;
use std::path::Path;

use csv::ByteRecord;

use super::ReadError;
use crate::job::Skipped;
use crate::limits::{Association, Group, Kind, Limits, Qos, Single, Tres};

/// The commands that print everything that a plan can use.
pub const COMMANDS: [&str; 2] = [
    "sacctmgr -P show qos format=Name,Flags,LimitFactor,GrpTRES,GrpJobs,MaxTRES,MaxTRESPerNode,MaxTRESPU,MaxJobsPU,MaxTRESPA,MaxJobsPA",
    "sacctmgr -P show assoc format=Cluster,Account,User,Partition,ParentName,GrpTRES,GrpJobs,MaxTRES,MaxTRESPerNode,MaxJobs",
];

/// A limit by one of these names makes a line a header.
const LIMITS: [&str; 9] = [
    "grptres",
    "grpjobs",
    "maxtres",
    "maxtrespernode",
    "maxtrespu",
    "maxjobspu",
    "maxtrespa",
    "maxjobspa",
    "maxjobs",
];

/// Limits that a plan does not count.
const UNCOUNTED: [&str; 8] = [
    "GrpTRESMins",
    "GrpTRESRunMins",
    "GrpWall",
    "MaxTRESMins",
    "MaxTRESRunMinsPA",
    "MaxTRESRunMinsPU",
    "MaxWall",
    "MinTRES",
];

/// A table of a file.
struct Table {
    names: Vec<String>,
    is_qos: bool,
}

impl Table {
    /// The table that a header starts.
    fn of(row: &ByteRecord) -> Option<Table> {
        let names: Vec<String> = row
            .iter()
            .map(|name| String::from_utf8_lossy(name).trim().to_ascii_lowercase())
            .collect();
        let has = |name: &str| names.iter().any(|own| own == name);
        let is_qos = !has("account");
        let is_header = LIMITS.into_iter().any(has) && (!is_qos || has("name"));
        is_header.then_some(Table { names, is_qos })
    }
}

/// A row with the names of its fields.
struct Row<'a> {
    table: &'a Table,
    row: &'a ByteRecord,
}

impl<'a> Row<'a> {
    /// The text of a field; empty where it is missing.
    fn text(&self, name: &str) -> Result<&'a str, String> {
        let mut names = self.table.names.iter();
        let at = names.position(|own| own.eq_ignore_ascii_case(name));
        let Some(bytes) = at.and_then(|at| self.row.get(at)) else {
            return Ok("");
        };
        std::str::from_utf8(bytes)
            .map(str::trim)
            .map_err(|_| "a field is no UTF-8".to_owned())
    }

    fn number(&self, name: &str) -> Result<Option<u64>, String> {
        match self.text(name)? {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| wrong(name, text)),
        }
    }

    /// The limits of a field. Those that a plan does not count are named in `limits`.
    fn tres(&self, name: &str, of_nodes: bool, limits: &mut Limits) -> Result<Tres, String> {
        let mut tres = Tres::new();
        for item in self.text(name)?.split(',').filter(|item| !item.is_empty()) {
            let (resource, value) = item.split_once('=').ok_or_else(|| wrong(name, item))?;
            let (kind, scale) = match resource {
                "gres/gpu" => (Kind::Gpus, 100),
                "gres/gpufrac" => (Kind::Units, 1),
                "node" if of_nodes => (Kind::Nodes, 1),
                _ => match resource.strip_prefix("gres/gpu:") {
                    Some(of) => (Kind::Type(of.to_owned()), 100),
                    None => {
                        limits.uncounted.insert(format!("{name} of {resource}"));
                        continue;
                    }
                },
            };
            let value: u64 = value.parse().map_err(|_| wrong(name, item))?;
            tres.insert(kind, value.saturating_mul(scale));
        }
        Ok(tres)
    }

    fn group(&self, tres: &str, jobs: &str, limits: &mut Limits) -> Result<Group, String> {
        Ok(Group {
            tres: self.tres(tres, false, limits)?,
            jobs: self.number(jobs)?,
        })
    }

    fn single(&self, limits: &mut Limits) -> Result<Single, String> {
        Ok(Single {
            job: self.tres("MaxTRES", true, limits)?,
            node: self.tres("MaxTRESPerNode", false, limits)?,
        })
    }
}

fn wrong(name: &str, text: &str) -> String {
    format!("{name} is `{text}`")
}

/// Adds the limits of a file. `cluster`: that of the associations before.
///
/// # Errors
/// When the file has no table of limits or the associations of several clusters, or the system refuses.
pub fn read(
    path: &Path,
    source: impl Read,
    limits: &mut Limits,
    cluster: &mut Option<String>,
    skipped: &mut Skipped,
) -> Result<(), ReadError> {
    let failed = |error: csv::Error| ReadError::Io {
        path: path.to_owned(),
        source: error.into(),
    };
    let mut reader = super::rows(source);
    let place = path.display().to_string();
    let mut row = ByteRecord::new();
    let mut table: Option<Table> = None;
    while reader.read_byte_record(&mut row).map_err(failed)? {
        if let Some(next) = Table::of(&row) {
            // Without parents an account's limit would hold for none of the accounts below.
            if !next.is_qos && !next.names.iter().any(|name| name == "parentname") {
                return Err(ReadError::Column {
                    path: path.to_owned(),
                    column: "ParentName",
                });
            }
            table = Some(next);
            continue;
        }
        let Some(table) = &table else {
            return Err(ReadError::Limits {
                path: path.to_owned(),
            });
        };
        let own = Row { table, row: &row };
        if let Err(why) = take(&own, limits) {
            let line = row.position().map_or(0, csv::Position::line);
            skipped.line(&place, line, &why);
        } else if !table.is_qos
            && let Ok(name) = own.text("Cluster")
            && cluster.get_or_insert_with(|| name.to_owned()) != name
        {
            return Err(ReadError::Clusters {
                path: path.to_owned(),
            });
        }
    }
    match table {
        Some(_) => Ok(()),
        None => Err(ReadError::Limits {
            path: path.to_owned(),
        }),
    }
}

/// Adds the limits of a row.
fn take(row: &Row<'_>, limits: &mut Limits) -> Result<(), String> {
    let (has, wanted) = (row.row.len(), row.table.names.len());
    if has != wanted {
        return Err(format!("the row has {has} fields instead of {wanted}"));
    }
    let name = row.text(if row.table.is_qos { "Name" } else { "Account" })?;
    if name.is_empty() {
        return Err("the row has no name".to_owned());
    }
    for uncounted in UNCOUNTED {
        if !row.text(uncounted)?.is_empty() {
            limits.uncounted.insert(uncounted.to_owned());
        }
    }
    if !row.table.is_qos {
        let texts = [name, row.text("User")?, row.text("Partition")?];
        let association = Association {
            parent: row.text("ParentName")?.to_owned(),
            all: row.group("GrpTRES", "GrpJobs", limits)?,
            jobs: row.number("MaxJobs")?,
            single: row.single(limits)?,
        };
        limits
            .associations
            .insert(texts.map(str::to_owned).into(), association);
        return Ok(());
    }
    let flags = row.text("Flags")?;
    let has_flag = |flag: &str| flags.split(',').any(|own| own.eq_ignore_ascii_case(flag));
    if has_flag("Relative") {
        return Err(format!(
            "the limits of the QOS {name} are percents of the cluster"
        ));
    }
    let factor = match row.text("LimitFactor")? {
        "" => None,
        text => Some(text.parse().map_err(|_| wrong("LimitFactor", text))?),
    };
    // sacctmgr prints the limit of jobs by user also as MaxJobs.
    let by_user = match row.text("MaxJobsPU")? {
        "" => "MaxJobs",
        _ => "MaxJobsPU",
    };
    let qos = Qos {
        all: row.group("GrpTRES", "GrpJobs", limits)?,
        by_user: row.group("MaxTRESPU", by_user, limits)?,
        by_account: row.group("MaxTRESPA", "MaxJobsPA", limits)?,
        single: row.single(limits)?,
        factor,
        is_over_partition: has_flag("OverPartQOS"),
    };
    limits.qos.insert(name.to_owned(), qos);
    Ok(())
}
