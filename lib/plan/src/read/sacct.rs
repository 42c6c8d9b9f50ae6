//! `sacct -P`, of all versions: the header says which fields there are.

use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

use csv::ByteRecord;
use gpufrac_slurm_conf::table::{Header, Row, RowError, wrong};

use super::held_per_node::HeldPerNode;
use super::value::Devices;
use super::{Broken, Progress, ReadError, STEP, header, jobstats, rows, value};
use crate::job::{Charge, History, Job, Need, Span};

/// The fields of files without a header that are common: those of sonar's `sonar slurm`.
const BARE: &str = "JobIDRaw,JobID,User,Account,State,Start,End,AveCPU,AveDiskRead,AveDiskWrite,AveRSS,AveVMSize,ElapsedRaw,\
ExitCode,Layout,MaxRSS,MaxVMSize,MinCPU,ReqCPUS,ReqMem,ReqNodes,Reservation,Submit,Suspended,SystemCPU,TimelimitRaw,UserCPU,\
NodeList,Partition,AllocTRES,Priority,JobName";

/// The command that prints everything that a plan can use.
pub const COMMAND: &str = "sacct -aPD --starttime=now-90days --format=JobID,User,Account,QOS,Partition,State,Submit,Eligible,Start,End,ElapsedRaw,TimelimitRaw,AllocTRES,NNodes,NodeList,Priority,TRESUsageInMax,TRESUsageInAve,AdminComment";

/// Whether a line is a header.
pub fn is_header(line: &str) -> bool {
    let mut fields = line.split('|');
    let is_id = |field: &str| ID.iter().any(|id| field.eq_ignore_ascii_case(id));
    line.contains('|') && fields.any(is_id)
}

/// Whether a line has as many fields as a line of sacct without a header.
pub fn is_bare(line: &str) -> bool {
    line.split('|').count() == BARE.split(',').count()
}

const ID: [&str; 2] = ["JobID", "JobIDRaw"];

/// Lists of what a job had, else of what it asked for.
const DEVICES: [&str; 4] = ["AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES"];

/// The job of the row before, whose steps and further runs may follow.
struct Before {
    id: Box<str>,
    end: u64,
    /// Its place among the jobs, if it is one.
    job: Option<usize>,
}

/// Adds the jobs of a file. Errors: when a column is missing, or the system refuses.
pub fn read(
    path: &Path,
    source: impl Read,
    fields: Option<&str>,
    history: &mut History,
    progress: Progress<'_>,
) -> Result<(), ReadError> {
    let failed = |error| ReadError::io(path, error);
    let mut reader = rows(source);
    let mut record = ByteRecord::new();
    let mut is_there = reader.read_byte_record(&mut record).map_err(failed)?;
    // `sacct -p` ends each line with a mark, which is a field without a name.
    let mut names = header(&record);
    if names.has(&ID) {
        is_there = reader.read_byte_record(&mut record).map_err(failed)?;
    } else {
        names = Header::of(fields.unwrap_or(BARE));
    }
    for (needed, column) in [
        (&ID[..], "JobID"),
        (&["Start"], "Start"),
        (&DEVICES, "AllocTRES"),
    ] {
        if !names.has(needed) {
            return Err(ReadError::Column {
                path: path.to_owned(),
                column,
            });
        }
    }
    let place = path.display().to_string();
    let mut before = None;
    let mut lines = 0;
    while is_there {
        lines += 1;
        if lines % STEP == 0 {
            progress(lines);
        }
        let fields = joined(&names, &record);
        let row = names.row(fields.iter().map(AsRef::as_ref));
        let row = row.map_err(Broken::from);
        if let Err(why) = row.and_then(|row| take(&row, history, &mut before)) {
            let line = record.position().map_or(lines, csv::Position::line);
            history.skipped.line(&place, line, &why);
        }
        is_there = reader.read_byte_record(&mut record).map_err(failed)?;
    }
    progress(lines);
    Ok(())
}

/// The columns whose text may contain sacct's mark between fields. sacct does not quote it.
const FREE: [&str; 4] = ["AdminComment", "Comment", "JobName", "SystemComment"];

/// The fields of a row. Where one column may contain marks, the fields that its text was cut into are joined again; of
/// several such columns it is not known which.
fn joined<'a>(names: &Header, row: &'a ByteRecord) -> Vec<Cow<'a, [u8]>> {
    let mut fields: Vec<Cow<'a, [u8]>> = row.iter().map(Cow::Borrowed).collect();
    let surplus = fields.len().saturating_sub(names.columns());
    if surplus > 0
        && let Some(at) = names.only(&FREE)
    {
        let text = fields[at..=at + surplus].join(&b'|');
        fields.splice(at..=at + surplus, [Cow::Owned(text)]);
    }
    fields
}

/// Adds the job of a row, or the telemetry of a step to its job.
fn take(row: &Row<'_>, history: &mut History, before: &mut Option<Before>) -> Result<(), Broken> {
    let id = row.text(&ID)?;
    if id.is_empty() || id.eq_ignore_ascii_case("jobid") {
        return Err("the row has no id of a job".into());
    }
    if let Some((job, _)) = id.split_once('.') {
        if let Some(before) = before.as_ref().filter(|before| *before.id == *job)
            && let Some(job) = before.job
        {
            step(row, &mut history.jobs[job].need)?;
        }
        return Ok(());
    }
    if !id.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(format!("`{id}` is no id of a job").into());
    }
    let known_end = before
        .take()
        .filter(|before| *before.id == *id)
        .map_or(0, |before| before.end);
    let (end, job) = match job(row, history, known_end)? {
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

/// The job of a row; None where it had no GPU or has not started. `known_end`: the end of an earlier run of the same
/// job.
fn job(row: &Row<'_>, history: &mut History, known_end: u64) -> Result<Option<Job>, Broken> {
    let text = |name| row.text(&[name]);
    let devices = devices(row)?;
    let start = row.time("Start")?;
    if devices.is_empty() {
        history.skipped.without_gpu += 1;
        return Ok(None);
    }
    let Some(start) = start else {
        history.skipped.not_started += 1;
        return Ok(None);
    };
    let ran = length(
        row.text(&["ElapsedRaw", "Elapsed"])?,
        start,
        row.time("End")?,
    )?;
    let submit = row.time("Submit")?.unwrap_or(start);
    let eligible = row.time("Eligible")?.unwrap_or(submit);
    let submit = submit.max(eligible).max(known_end).min(start);
    let limit = row.text(&["TimelimitRaw", "Timelimit"])?;
    let limit = value::limit(limit).map_err(|_| wrong("Timelimit", limit))?;
    let tres = text("AllocTRES")?;
    let count = |name| value::tres(tres, name)?.parse::<u32>().ok();
    let nodes = row.number(&["NNodes", "AllocNodes", "ReqNodes"])?;
    let nodes = nodes.or_else(|| count("node")).unwrap_or(1);
    let list = text("NodeList")?;
    let Some(held) = HeldPerNode::of(&devices, nodes, list, &history.shares_per_gpu) else {
        history.skipped.with_shards += 1;
        return Ok(None);
    };
    let user = history.users.number(row.text(&["User", "UID"])?);
    let charge = Charge {
        account: history.accounts.number(text("Account")?),
        qos: history.qos.number(text("QOS")?),
        gpu_type: history.gpu_types.number(devices.gpu_type),
    };
    // A job that was submitted to several partitions shows all of them until it starts.
    let partition = text("Partition")?.split(',').next().unwrap_or_default();
    let partition = history.partitions.number(partition);
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
    let mut need = jobstats::need(text("AdminComment")?);
    need.share = held.share;
    step(row, &mut need)?;
    Ok(Some(Job {
        id: row.text(&ID)?.into(),
        user,
        charge,
        partition,
        submit,
        waited: start - submit,
        ran,
        limit,
        nodes: held.nodes,
        gpus: held.gpus,
        cpus: count("cpu").unwrap_or(0) / held.nodes,
        memory: memory(text("AllocTRES")?) / held.nodes,
        priority: text("Priority")?.parse().unwrap_or(0),
        need,
        ..Job::default()
    }))
}

/// MiB of all nodes; 0 where the text has none.
fn memory(tres: &str) -> u32 {
    let bytes = value::tres(tres, "mem").and_then(value::bytes);
    bytes.map_or(0, |bytes| (bytes / f64::from(1 << 20)) as u32)
}

/// GPUs of a row on all nodes.
fn devices<'a>(row: &Row<'a>) -> Result<Devices<'a>, RowError> {
    for name in DEVICES {
        let text = row.text(&[name])?;
        let devices = Devices::of(text).map_err(|()| wrong("the list of TRES", text))?;
        if !devices.is_empty() {
            return Ok(devices);
        }
    }
    Ok(Devices::default())
}

/// How long a job ran: seconds.
fn length(elapsed: &str, start: u64, end: Option<u64>) -> Result<u64, Broken> {
    if elapsed.is_empty() {
        let end = end.ok_or("neither Elapsed nor End is there")?;
        return Ok(end.saturating_sub(start));
    }
    let seconds = elapsed.parse().ok().filter(|ran| *ran <= value::LONGEST);
    seconds
        .or_else(|| Some(value::span(elapsed)?.as_secs()))
        .ok_or_else(|| wrong("Elapsed", elapsed).into())
}

/// A number of Slurm from here on stands for none (`NO_VAL64`, `INFINITE64`). Memory: bytes.
const NO_VALUE: f64 = (1_u64 << 63) as f64;

/// The telemetry of Slurm itself (`AccountingStorageTRES=gres/gpumem,gres/gpuutil`): the greatest of all steps.
///
/// Slurm writes 0 for both where it cannot measure, such as on MIG instances: a job is idle only if it had memory.
fn step(row: &Row<'_>, need: &mut Need) -> Result<(), RowError> {
    let most = row.text(&["TRESUsageInMax", "TRESUsageInTot"])?;
    let memory = value::tres(most, "gres/gpumem")
        .and_then(value::mib)
        .filter(|mib| *mib > 0.0 && *mib < NO_VALUE / value::MIB);
    if let Some(memory) = memory {
        need.memory_mib = Some(need.memory_mib.unwrap_or(0.0).max(memory as f32));
    }
    let mean = row.text(&["TRESUsageInAve", "TRESUsageInTot"])?;
    let percent = value::tres(mean, "gres/gpuutil")
        .and_then(|text| text.parse::<f64>().ok())
        .filter(|percent| *percent < NO_VALUE && (*percent > 0.0 || memory.is_some()));
    if let Some(percent) = percent {
        let activity = (percent / 100.0).clamp(0.0, 1.0) as f32;
        need.activity = Some(need.activity.unwrap_or(0.0).max(activity));
    }
    Ok(())
}
