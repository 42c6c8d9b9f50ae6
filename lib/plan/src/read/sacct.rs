//! `sacct -P`, of all versions: the header says which fields there are.

use std::io::Read;
use std::path::Path;

use csv::ByteRecord;

use super::held::Held;
use super::value::Devices;
use super::{Progress, ReadError, STEP, jobstats, value};
use crate::job::{Charge, History, Job, Need, Span};

/// The fields of files without a header that are common: those of sonar's `sonar slurm`.
const BARE: &str = "JobIDRaw,JobID,User,Account,State,Start,End,AveCPU,AveDiskRead,AveDiskWrite,AveRSS,AveVMSize,ElapsedRaw,\
ExitCode,Layout,MaxRSS,MaxVMSize,MinCPU,ReqCPUS,ReqMem,ReqNodes,Reservation,Submit,Suspended,SystemCPU,TimelimitRaw,UserCPU,\
NodeList,Partition,AllocTRES,Priority,JobName";

/// The command that prints everything that a plan can use.
pub const COMMAND: &str = "sacct -aPD --starttime=now-90days --format=JobID,User,Account,QOS,Partition,State,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,AllocTRES,NNodes,NodeList,Priority,AdminComment,TRESUsageInMax,TRESUsageInAve";

/// Whether a line is a header.
pub fn is_header(line: &str) -> bool {
    let mut fields = line.split('|');
    line.contains('|')
        && fields.any(|field| ["jobid", "jobidraw"].contains(&field.to_ascii_lowercase().as_str()))
}

/// Whether a line has as many fields as a line of sacct without a header.
pub fn is_bare(line: &str) -> bool {
    line.split('|').count() == BARE.split(',').count()
}

/// A field that a plan reads: its names in the order of preference.
#[derive(Clone, Copy)]
enum Field {
    Id,
    User,
    Account,
    Qos,
    Partition,
    Submit,
    Eligible,
    Start,
    End,
    Elapsed,
    Limit,
    Tres,
    RequestedTres,
    Gres,
    RequestedGres,
    Nodes,
    NodeList,
    Priority,
    Comment,
    UsageMax,
    UsageMean,
}

const FIELDS: [(Field, &[&str]); 21] = [
    (Field::Id, &["jobid", "jobidraw"]),
    (Field::User, &["user", "uid"]),
    (Field::Account, &["account"]),
    (Field::Qos, &["qos"]),
    (Field::Partition, &["partition"]),
    (Field::Submit, &["submit"]),
    (Field::Eligible, &["eligible"]),
    (Field::Start, &["start"]),
    (Field::End, &["end"]),
    (Field::Elapsed, &["elapsedraw", "elapsed"]),
    (Field::Limit, &["timelimitraw", "timelimit"]),
    (Field::Tres, &["alloctres"]),
    (Field::RequestedTres, &["reqtres"]),
    (Field::Gres, &["allocgres"]),
    (Field::RequestedGres, &["reqgres"]),
    (Field::Nodes, &["nnodes", "allocnodes", "reqnodes"]),
    (Field::NodeList, &["nodelist"]),
    (Field::Priority, &["priority"]),
    (Field::Comment, &["admincomment"]),
    (Field::UsageMax, &["tresusageinmax", "tresusageintot"]),
    (Field::UsageMean, &["tresusageinave", "tresusageintot"]),
];

/// Where each field is.
struct Columns {
    at: [Option<usize>; FIELDS.len()],
    count: usize,
}

impl Columns {
    fn of(names: &[String]) -> Columns {
        let mut at = [None; FIELDS.len()];
        for (place, (_, known)) in at.iter_mut().zip(FIELDS) {
            *place = known
                .iter()
                .find_map(|known| names.iter().position(|name| name == known));
        }
        Columns {
            at,
            count: names.len(),
        }
    }

    /// The text of a field; empty where it is missing.
    fn text<'a>(&self, row: &'a ByteRecord, field: Field) -> Result<&'a str, String> {
        let Some(bytes) = self.at[field as usize].and_then(|at| row.get(at)) else {
            return Ok("");
        };
        std::str::from_utf8(bytes)
            .map(str::trim)
            .map_err(|_| "a field is no UTF-8".to_owned())
    }

    fn has(&self, field: Field) -> bool {
        self.at[field as usize].is_some()
    }
}

/// The job of the row before, whose steps and further runs may follow.
struct Before {
    id: Box<str>,
    end: u64,
    /// Its place among the jobs, if it is one.
    job: Option<usize>,
}

/// Adds the jobs of a file.
///
/// # Errors
/// When a column is missing, or the system refuses.
pub fn read(
    path: &Path,
    source: impl Read,
    fields: Option<&str>,
    history: &mut History,
    progress: Progress<'_>,
) -> Result<(), ReadError> {
    let failed = |error: csv::Error| ReadError::Io {
        path: path.to_owned(),
        source: error.into(),
    };
    let mut reader = super::rows(source);
    let mut row = ByteRecord::new();
    let mut is_there = reader.read_byte_record(&mut row).map_err(failed)?;
    let first: Vec<String> = row
        .iter()
        .map(|name| String::from_utf8_lossy(name).trim().to_ascii_lowercase())
        .collect();
    let has_header = first
        .iter()
        .any(|name| name == "jobid" || name == "jobidraw");
    let names = match (has_header, fields) {
        (true, _) => first,
        (false, fields) => fields
            .unwrap_or(BARE)
            .split(',')
            .map(|name| name.trim().to_ascii_lowercase())
            .collect(),
    };
    // `sacct -p` ends each line with a mark, which is a field without a name.
    let columns = Columns::of(&names);
    for (field, name) in [(Field::Id, "JobID"), (Field::Start, "Start")] {
        if !columns.has(field) {
            return Err(ReadError::Column {
                path: path.to_owned(),
                column: name,
            });
        }
    }
    if ![
        Field::Tres,
        Field::RequestedTres,
        Field::Gres,
        Field::RequestedGres,
    ]
    .into_iter()
    .any(|field| columns.has(field))
    {
        return Err(ReadError::Column {
            path: path.to_owned(),
            column: "AllocTRES",
        });
    }
    if has_header {
        is_there = reader.read_byte_record(&mut row).map_err(failed)?;
    }
    let place = path.display().to_string();
    let mut before = None;
    let mut lines = 0;
    while is_there {
        lines += 1;
        if lines % STEP == 0 {
            progress(lines);
        }
        if let Err(why) = take(&columns, &row, history, &mut before) {
            let line = row.position().map_or(lines, csv::Position::line);
            history.skipped.line(&place, line, &why);
        }
        is_there = reader.read_byte_record(&mut row).map_err(failed)?;
    }
    progress(lines);
    Ok(())
}

/// Adds the job of a row, or the telemetry of a step to its job.
fn take(
    columns: &Columns,
    row: &ByteRecord,
    history: &mut History,
    before: &mut Option<Before>,
) -> Result<(), String> {
    if row.len() != columns.count {
        return Err(format!(
            "the row has {} fields instead of {}",
            row.len(),
            columns.count
        ));
    }
    let id = columns.text(row, Field::Id)?;
    if id.is_empty() || id.eq_ignore_ascii_case("jobid") {
        return Err("the row has no id of a job".to_owned());
    }
    if let Some((job, _)) = id.split_once('.') {
        if let Some(before) = before.as_ref().filter(|before| *before.id == *job)
            && let Some(job) = before.job
        {
            step(columns, row, &mut history.jobs[job].need)?;
        }
        return Ok(());
    }
    if !id.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(format!("`{id}` is no id of a job"));
    }
    let known_end = before
        .take()
        .filter(|before| *before.id == *id)
        .map_or(0, |before| before.end);
    let (end, job) = match job(columns, row, history, known_end)? {
        Some(job) => {
            let end = job.submit + job.waited + job.ran;
            history.jobs.push(job);
            (end, Some(history.jobs.len() - 1))
        }
        None => (known_end, None),
    };
    *before = Some(Before {
        id: id.into(),
        end,
        job,
    });
    Ok(())
}

/// The job of a row; None where it had no GPU or has not started. `known_end`: the end of an earlier run of the same job.
fn job(
    columns: &Columns,
    row: &ByteRecord,
    history: &mut History,
    known_end: u64,
) -> Result<Option<Job>, String> {
    let text = |field| columns.text(row, field);
    let time = |field, name| -> Result<Option<u64>, String> {
        let text = text(field)?;
        value::time(text).map_err(|()| wrong(name, text))
    };
    let devices = devices(columns, row)?;
    let start = time(Field::Start, "Start")?;
    if devices.is_empty() {
        history.skipped.without_gpu += 1;
        return Ok(None);
    }
    let Some(start) = start else {
        history.skipped.not_started += 1;
        return Ok(None);
    };
    let ran = length(text(Field::Elapsed)?, start, time(Field::End, "End")?)?;
    let submit = time(Field::Submit, "Submit")?.unwrap_or(start);
    let eligible = time(Field::Eligible, "Eligible")?.unwrap_or(submit);
    let submit = submit.max(eligible).max(known_end).min(start);
    let limit = text(Field::Limit)?;
    let limit = value::limit(limit).map_err(|()| wrong("Timelimit", limit))?;
    let nodes = match text(Field::Nodes)? {
        "" => value::tres(text(Field::Tres)?, "node")
            .and_then(|count| count.parse().ok())
            .unwrap_or(1),
        nodes => nodes.parse::<u32>().map_err(|_| wrong("NNodes", nodes))?,
    };
    let list = text(Field::NodeList)?;
    let Some(held) = Held::of(&devices, nodes, list, &history.per_gpu) else {
        history.skipped.with_shards += 1;
        return Ok(None);
    };
    let user = history.users.number(text(Field::User)?);
    let charge = Charge {
        account: history.accounts.number(text(Field::Account)?),
        qos: history.qos.number(text(Field::Qos)?),
        gpu_type: history.gpu_types.number(devices.gpu_type),
    };
    // A job that was submitted to several partitions shows all of them until it starts.
    let partition = text(Field::Partition)?
        .split(',')
        .next()
        .unwrap_or_default();
    let partition = history.partitions.number(partition);
    let cpus = value::tres(text(Field::Tres)?, "cpu")
        .and_then(|count| count.parse::<u32>().ok())
        .unwrap_or(0);
    if !list.is_empty() && !list.starts_with("None") {
        let list = history.placed.lists.number(list);
        history.placed.spans.push(Span {
            list,
            partition,
            start,
            end: start + ran,
            gpus: held.filled,
        });
    }
    let mut need = jobstats::need(text(Field::Comment)?);
    need.share = held.share;
    step(columns, row, &mut need)?;
    Ok(Some(Job {
        id: text(Field::Id)?.into(),
        user,
        charge,
        partition,
        submit,
        waited: start - submit,
        ran,
        limit,
        nodes: held.nodes,
        gpus: held.gpus,
        cpus: cpus / held.nodes,
        priority: text(Field::Priority)?.parse().unwrap_or(0),
        need,
        idle: Vec::new(),
    }))
}

fn wrong(name: &str, text: &str) -> String {
    format!("{name} is `{text}`")
}

/// GPUs of a row on all nodes: those that were allocated, else those that were asked for.
fn devices<'a>(columns: &Columns, row: &'a ByteRecord) -> Result<Devices<'a>, String> {
    for field in [
        Field::Tres,
        Field::Gres,
        Field::RequestedTres,
        Field::RequestedGres,
    ] {
        let text = columns.text(row, field)?;
        let devices = Devices::of(text).map_err(|()| wrong("the list of TRES", text))?;
        if !devices.is_empty() {
            return Ok(devices);
        }
    }
    Ok(Devices::default())
}

/// How long a job ran: seconds.
fn length(elapsed: &str, start: u64, end: Option<u64>) -> Result<u64, String> {
    match (elapsed, end) {
        ("", Some(end)) => Ok(end.saturating_sub(start)),
        ("", None) => Err("neither Elapsed nor End is there".to_owned()),
        (elapsed, _) => match elapsed
            .parse()
            .ok()
            .filter(|ran| *ran <= value::LONGEST)
            .or_else(|| value::span(elapsed))
        {
            Some(ran) => Ok(ran),
            None => Err(wrong("Elapsed", elapsed)),
        },
    }
}

/// A number of Slurm from here on stands for none (`NO_VAL64`, `INFINITE64`). Memory: bytes.
const NO_VALUE: f64 = (1_u64 << 63) as f64;

/// The telemetry of Slurm itself (`AccountingStorageTRES=gres/gpumem,gres/gpuutil`): the greatest of all steps.
///
/// Slurm writes 0 for both where it cannot measure, such as on MIG instances: a job is idle only if it had memory.
fn step(columns: &Columns, row: &ByteRecord, need: &mut Need) -> Result<(), String> {
    let most = columns.text(row, Field::UsageMax)?;
    let memory = value::tres(most, "gres/gpumem")
        .and_then(value::mib)
        .filter(|mib| *mib > 0.0 && *mib < NO_VALUE / value::MIB);
    if let Some(memory) = memory {
        need.memory_mib = Some(need.memory_mib.unwrap_or(0.0).max(memory as f32));
    }
    let mean = columns.text(row, Field::UsageMean)?;
    let percent = value::tres(mean, "gres/gpuutil")
        .and_then(|text| text.parse::<f64>().ok())
        .filter(|percent| *percent < NO_VALUE && (*percent > 0.0 || memory.is_some()));
    if let Some(percent) = percent {
        let activity = (percent / 100.0).clamp(0.0, 1.0) as f32;
        need.activity = Some(need.activity.unwrap_or(0.0).max(activity));
    }
    Ok(())
}
