//! Limits of accounts and QOS: `sacctmgr -P show qos` and `sacctmgr -P show assoc`, of all versions, in one file or
//! several.
//!
//! A header starts a table: one with an account is of associations, another one with a name is of QOS.

use std::io::Read;
use std::path::Path;

use csv::ByteRecord;
use gpufrac_slurm_conf::table::{Header, Row, RowError, wrong};

use super::{Broken, ReadError, header, rows};
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

/// Whether the table of a header is one of QOS; None where the line is no header.
fn is_of_qos(header: &Header) -> Option<bool> {
    let is_of_qos = !header.has(&["Account"]);
    (header.has(&LIMITS) && (!is_of_qos || header.has(&["Name"]))).then_some(is_of_qos)
}

/// The limits of a field. Those that a plan does not count are named in `limits`.
fn tres(row: &Row<'_>, name: &str, of_nodes: bool, limits: &mut Limits) -> Result<Tres, RowError> {
    let mut tres = Tres::new();
    let items = row.text(&[name])?.split(',');
    for item in items.filter(|item| !item.is_empty()) {
        let (resource, value) = item.split_once('=').ok_or_else(|| wrong(name, item))?;
        let (kind, scale) = match resource {
            "gres/gpu" => (Kind::Gpus, 100),
            // The second is the name that `gpufrac init` writes to `[gres]`.
            "gres/gpufrac" | "gres/frac" => (Kind::Units, 1),
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

fn group(row: &Row<'_>, name: &str, jobs: &str, limits: &mut Limits) -> Result<Group, RowError> {
    Ok(Group {
        tres: tres(row, name, false, limits)?,
        jobs: row.number(&[jobs])?,
    })
}

fn single(row: &Row<'_>, limits: &mut Limits) -> Result<Single, RowError> {
    Ok(Single {
        job: tres(row, "MaxTRES", true, limits)?,
        node: tres(row, "MaxTRESPerNode", false, limits)?,
    })
}

/// Adds the limits of a file. `cluster`: that of the associations before.
/// Errors: when the file has no table of limits or the associations of several clusters, or the system refuses.
pub fn read(
    path: &Path,
    source: impl Read,
    limits: &mut Limits,
    cluster: &mut Option<String>,
    skipped: &mut Skipped,
) -> Result<(), ReadError> {
    let owned = || path.to_owned();
    let mut reader = rows(source);
    let place = path.display().to_string();
    let mut row = ByteRecord::new();
    let mut table: Option<(Header, bool)> = None;
    while reader
        .read_byte_record(&mut row)
        .map_err(|error| ReadError::io(path, error))?
    {
        let names = header(&row);
        if let Some(is_of_qos) = is_of_qos(&names) {
            // Without parents an account's limit would hold for none of the accounts below.
            if !is_of_qos && !names.has(&["ParentName"]) {
                return Err(ReadError::Column {
                    path: owned(),
                    column: "ParentName",
                });
            }
            table = Some((names, is_of_qos));
            continue;
        }
        let Some((names, is_of_qos)) = &table else {
            return Err(ReadError::Limits(owned()));
        };
        let of_row = names.row(row.iter()).map_err(Broken::from);
        let of_cluster = of_row.and_then(|row| {
            take(&row, *is_of_qos, limits)?;
            Ok(row.text(&["Cluster"]).ok())
        });
        match of_cluster {
            Err(why) => {
                let line = row.position().map_or(0, csv::Position::line);
                skipped.line(&place, line, &why);
            }
            Ok(Some(name))
                if !is_of_qos && cluster.get_or_insert_with(|| name.to_owned()) != name =>
            {
                return Err(ReadError::Clusters(owned()));
            }
            Ok(_) => {}
        }
    }
    table.map(drop).ok_or_else(|| ReadError::Limits(owned()))
}

/// Adds the limits of a row.
fn take(row: &Row<'_>, is_of_qos: bool, limits: &mut Limits) -> Result<(), Broken> {
    let name = row.text(&[if is_of_qos { "Name" } else { "Account" }])?;
    if name.is_empty() {
        return Err("the row has no name".into());
    }
    for uncounted in UNCOUNTED {
        if !row.text(&[uncounted])?.is_empty() {
            limits.uncounted.insert(uncounted.to_owned());
        }
    }
    if !is_of_qos {
        let texts = [name, row.text(&["User"])?, row.text(&["Partition"])?];
        let association = Association {
            parent: row.text(&["ParentName"])?.to_owned(),
            all: group(row, "GrpTRES", "GrpJobs", limits)?,
            jobs: row.number(&["MaxJobs"])?,
            single: single(row, limits)?,
        };
        limits
            .associations
            .insert(texts.map(str::to_owned).into(), association);
        return Ok(());
    }
    let flags = row.text(&["Flags"])?;
    let has_flag = |flag: &str| flags.split(',').any(|own| own.eq_ignore_ascii_case(flag));
    if has_flag("Relative") {
        return Err(format!("the limits of the QOS {name} are percents of the cluster").into());
    }
    // sacctmgr prints the limit of jobs by user also as MaxJobs.
    let by_user = match row.text(&["MaxJobsPU"])? {
        "" => "MaxJobs",
        _ => "MaxJobsPU",
    };
    let qos = Qos {
        factor: row.number(&["LimitFactor"])?,
        all: group(row, "GrpTRES", "GrpJobs", limits)?,
        by_user: group(row, "MaxTRESPU", by_user, limits)?,
        by_account: group(row, "MaxTRESPA", "MaxJobsPA", limits)?,
        single: single(row, limits)?,
        is_over_partition: has_flag("OverPartQOS"),
    };
    limits.qos.insert(name.to_owned(), qos);
    Ok(())
}
