//! Readers: accounting, traces of others, telemetry, clusters. A broken line is named and skipped.

mod held_per_node;
pub mod jobstats;
pub mod limits;
pub mod nodes;
pub mod openb;
pub mod philly;
pub mod records;
pub mod sacct;
pub mod speeds;
pub mod telemetry;
pub(crate) mod value;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use gpufrac_slurm_conf::table::Header;
use serde::de::DeserializeOwned;

use crate::job::History;

/// Why a file cannot be read at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file does not exist, may not be read by this user, or is damaged.
    /// Cure: Correct the path or the permissions; print the file again.
    #[error("reading {} failed: {source}; name a file that you can read", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The file has another form, or sacct was called with `--noheader`.
    /// Cure: Call `sacct -aPD --format=...` as gpufrac(1) says, or name the fields.
    #[error(
        "reading {} failed: its first line is no header of sacct -P, openb, philly or usage records; print the fields with sacct -P, or name them with --fields",
        .0.display()
    )]
    Form(PathBuf),
    /// sacct was called without this field.
    /// Cure: Add the field to `--format`.
    #[error("reading {} failed: the column {column} is missing; add it", path.display())]
    Column { path: PathBuf, column: &'static str },
    /// The file of `--limits` has another form, or sacctmgr was called with `-n`.
    /// Cure: Call `sacctmgr -P show qos format=...` and `show assoc` as gpufrac(1) says.
    #[error(
        "reading {} failed: its first line is no header of sacctmgr -P show qos or show assoc; print the fields of gpufrac(1), without -n",
        .0.display()
    )]
    Limits(PathBuf),
    /// slurmdbd serves several clusters.
    /// Cure: Call `sacctmgr -P show assoc where cluster=NAME format=...`.
    #[error(
        "reading {} failed: it has the associations of several clusters; print those of one with `where cluster=NAME`",
        .0.display()
    )]
    Clusters(PathBuf),
    /// Each job has `gres/shard`, and the part of a GPU that it had is not known.
    /// Cure: Name slurm.conf or the output of `scontrol -o show node` with `--cluster`.
    #[error(
        "the history has only jobs with shards ({0}), and nothing says how many shards a GPU has; name the nodes with --cluster FILE, with `shard:` in their Gres"
    )]
    OnlyShards(
        /// Number of jobs.
        u64,
    ),
    /// All jobs are without GPUs, or still wait; or `--partition` names another partition.
    /// Cure: Read a longer time, with `AllocTRES`.
    #[error(
        "the history has no job with a GPU that started; read more of it, with the fields of gpufrac(1)"
    )]
    Empty,
}

impl ReadError {
    pub(crate) fn io(path: &Path, source: impl Into<io::Error>) -> ReadError {
        ReadError::Io {
            path: path.to_owned(),
            source: source.into(),
        }
    }
}

/// Why a row is left out.
type Broken = Box<dyn std::error::Error>;

/// Lines read, for a display of progress.
pub type Progress<'a> = &'a mut dyn FnMut(u64);

/// A form of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `sacct -P`.
    Sacct,
    /// Pods of openb.
    Openb,
    /// philly.csv.
    Philly,
    /// Usage records.
    Records,
}

/// How often progress is shown: lines.
pub const STEP: u64 = 50_000;

/// Opens a file, also a compressed one; `-` is stdin. Errors: when the system refuses.
pub fn open(path: &Path) -> Result<Box<dyn BufRead>, ReadError> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let failed = |source: io::Error| ReadError::io(path, source);
    let file = File::open(path).map_err(failed)?;
    let is_compressed = path.extension().is_some_and(|end| end == "gz");
    let reader: Box<dyn Read> =
        if is_compressed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    Ok(Box::new(BufReader::with_capacity(1 << 18, reader)))
}

/// The rows of a table of Slurm's commands: no quotes, and rows of any number of columns.
fn rows<R: Read>(source: R) -> csv::Reader<R> {
    csv::ReaderBuilder::new()
        .delimiter(b'|')
        .quoting(false)
        .flexible(true)
        .has_headers(false)
        .from_reader(source)
}

/// A row as the names of columns.
fn header(row: &csv::ByteRecord) -> Header {
    let names: Vec<_> = row.iter().map(String::from_utf8_lossy).collect();
    Header::of(&names.join("|"))
}

/// Gives each row of a trace to `take`. A line that is none, or that `take` refuses, is named and skipped.
fn trace<T: DeserializeOwned>(
    place: &str,
    source: impl Read,
    history: &mut History,
    mut take: impl FnMut(T, &mut History) -> Result<(), String>,
) -> io::Result<()> {
    let mut reader = csv::Reader::from_reader(source);
    let mut rows = reader.deserialize();
    while let Some(row) = rows.next() {
        let line = rows.reader().position().line();
        let taken = match row {
            Ok(row) => take(row, history),
            Err(error) if error.is_io_error() => return Err(error.into()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = taken {
            history.skipped.line(place, line, &why);
        }
    }
    Ok(())
}

/// Adds the jobs of a file to a history, by the form of its first line. `fields`: the columns of a file without a
/// header. Errors: when the file cannot be read, or has no form that is known.
pub fn history(
    path: &Path,
    fields: Option<&str>,
    history: &mut History,
    progress: Progress<'_>,
) -> Result<Form, ReadError> {
    let failed = |source: io::Error| ReadError::io(path, source);
    let mut reader = open(path)?;
    let mut first = Vec::new();
    reader.read_until(b'\n', &mut first).map_err(failed)?;
    let head = String::from_utf8_lossy(&first).trim().to_owned();
    let place = path.display().to_string();
    let form = form(&head, fields).ok_or_else(|| ReadError::Form(path.to_owned()))?;
    let whole = io::Cursor::new(first).chain(reader);
    match form {
        Form::Sacct => sacct::read(path, whole, fields, history, progress)?,
        Form::Openb => openb::read(&place, whole, history).map_err(failed)?,
        Form::Philly => philly::read(&place, whole, history).map_err(failed)?,
        Form::Records => records::read(&place, whole, history).map_err(failed)?,
    }
    Ok(form)
}

fn form(head: &str, fields: Option<&str>) -> Option<Form> {
    if fields.is_some() || sacct::is_header(head) || sacct::is_bare(head) {
        Some(Form::Sacct)
    } else if head.starts_with("name,cpu_milli,") {
        Some(Form::Openb)
    } else if head.starts_with("timestamp,duration,num_gpus") {
        Some(Form::Philly)
    } else if head.starts_with('{') {
        Some(Form::Records)
    } else {
        None
    }
}
