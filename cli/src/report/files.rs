//! The files with usage records.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use gpufrac_core::config::Paths;
use gpufrac_node::state::usage;
use gpufrac_records::usage::{FOLDER, day};
use gpufrac_report::period::Period;

use crate::error::CliError;
use crate::own;

/// Folders below which nothing is looked for.
const DEEPEST: u32 = 3;

/// The files that a user names; of a folder all records in it.
pub fn named(places: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    for place in places {
        add(place, 0, &mut files, &|_| true)?;
    }
    Ok(files)
}

/// The files of all nodes, where they share a folder; else those of this node.
pub fn of(paths: &Paths, period: Period) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    match &paths.shared {
        Some(shared) => {
            let shared = Path::new(shared);
            let folder = shared.join(FOLDER);
            let folder = own::readable(folder, shared, FOLDER);
            // A slice is in the folder of the day on which it ended: one that ended before the period has none of it.
            let first = day(period.since);
            if folder.is_dir() {
                add(&folder, 0, &mut files, &|day| day >= first.as_str())?;
            }
        }
        None => {
            let state = Path::new(&paths.state);
            let folder = own::readable(state.to_owned(), state, FOLDER);
            if folder.is_dir() {
                add(&folder, DEEPEST - 1, &mut files, &|_| true)?;
            }
        }
    }
    Ok(files)
}

/// Adds a file, or the records in a folder: names that begin with that of a node's own file, or end with `.jsonl`.
/// `wanted`: the folders of days that count.
fn add(
    place: &Path,
    depth: u32,
    files: &mut Vec<PathBuf>,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<(), CliError> {
    let failed = |source| CliError::Read {
        path: place.to_owned(),
        source,
    };
    let meta = std::fs::metadata(place).map_err(failed)?;
    if !meta.is_dir() {
        files.push(place.to_owned());
        return Ok(());
    }
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(place).map_err(failed)? {
        entries.push(entry.map_err(failed)?.path());
    }
    entries.sort();
    for entry in entries {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        let is_folder = entry.is_dir();
        let is_record = name.starts_with(usage::FILE) || name.ends_with(".jsonl");
        if is_folder && depth + 1 < DEEPEST && wanted(&name) || !is_folder && is_record {
            add(&entry, depth + 1, files, wanted)?;
        }
    }
    Ok(())
}

/// Calls `each` with the number and the text of each line, from 1. logrotate compresses old files.
pub fn lines(path: &Path, mut each: impl FnMut(u64, &str)) -> Result<(), CliError> {
    let failed = |source| CliError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let is_compressed = path.extension().is_some_and(|extension| extension == "gz");
    let reader: Box<dyn Read> =
        if is_compressed { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
    let mut reader = BufReader::with_capacity(1 << 16, reader);
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        if !text.is_empty() {
            each(number, text);
        }
    }
    Ok(())
}
