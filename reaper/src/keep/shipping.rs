//! Copies the node's usage records to the folder that nodes share, `<shared>/usage/DAY/NODE.jsonl`, where a report
//! reads the records of all nodes. The node's own file stays the truth.
//!
//! The copy goes on where the last one ended: at an offset of a file that its inode identifies, as logrotate renames
//! the file. The offset is written after the lines. A daemon that dies in between finds its lines at the end of the
//! copies and skips them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::UserId;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_node::state::{private, usage};
use gpufrac_records::usage::{FOLDER, Line, SliceKey, UsageRecord, day};
use serde::{Deserialize, Serialize};

/// The records that have been copied.
const POSITION: &str = "shipped.json";
/// The position of the records that have been copied to the folders of users.
const OWN_POSITION: &str = "shipped-own.json";
/// Bytes of one copy: a round of the daemon must not take long. Several follow where more is left.
const MOST_BYTES: u64 = 1 << 20;
/// Bytes at the end of a copy where lines are looked for that were copied before: all of one copy.
const TAIL_BYTES: u64 = 2 * MOST_BYTES;
/// Bytes before and after the beginning of a copy where the records of slices are looked for. The line about the end of
/// a slice is written within minutes of its record, before or after it.
const NEAR_BYTES: u64 = 4 * MOST_BYTES;
/// Copies of a minute: after a long failure the rest has time.
const MOST_COPIES: usize = 8;

/// Why records could not be copied.
#[derive(Debug, thiserror::Error)]
pub enum ShippingError {
    /// The folder `shared` of `[paths]` is not there or cannot be written.
    /// Cure: Mount it, free space, or let root write there (NFS: `no_root_squash`). No record is lost.
    #[error("copying usage records failed: {0}; they are copied when it works again")]
    File(#[from] FileError),
    /// The same, while a file was read or written.
    /// Cure: Free space, and check the file system.
    #[error("copying usage records failed: {action} `{}`: {source}; they are copied when it works again", path.display())]
    Io {
        /// "read" or "write".
        action: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
}

impl ShippingError {
    fn read(path: &Path, source: std::io::Error) -> ShippingError {
        ShippingError::Io {
            action: "read",
            path: path.to_owned(),
            source,
        }
    }
}

/// How far the records were copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Position {
    inode: u64,
    /// The first byte that was not copied.
    offset: u64,
}

/// Copies what was added since the last time. Says whether more is left. `shared`: the folder of the nodes, which must
/// exist. Errors: a file cannot be read or written. What was not copied is copied the next time.
pub fn ship(state: &Path, shared: &Path, node: &str) -> Result<bool, ShippingError> {
    let state = RootDir::open(state)?;
    // A file system that is not mounted must not get a folder.
    RootDir::open(shared)?;
    let Some(batch) = Batch::read(&state, POSITION)? else {
        return Ok(false);
    };
    for (day, lines) in by_day(&batch.text) {
        let folder = shared.join(FOLDER).join(&day);
        let (dir, _) = RootDir::create(&folder, 0o755)?;
        append(&dir, &format!("{node}.jsonl"), &lines)?;
    }
    batch.done(&state, POSITION)
}

/// As [`ship`], into the folders of users ([`private::own`]): of each user only the user's own lines, in
/// `<shared>/own/UID/usage/DAY`, or in `<state>/own/UID/usage` on a node without a shared folder.
pub fn ship_own(state: &Path, shared: Option<&Path>, node: &str) -> Result<bool, ShippingError> {
    let folder = state;
    let state = RootDir::open(folder)?;
    let Some(batch) = Batch::read(&state, OWN_POSITION)? else {
        return Ok(false);
    };
    for ((user, day), lines) in batch.by_user()? {
        let (dir, name) = match shared {
            Some(shared) => {
                let own = private::make_own(shared, user, FOLDER)?;
                let (dir, _) = RootDir::create(&own.path().join(day), 0o755)?;
                (dir, format!("{node}.jsonl"))
            }
            None => {
                let own = private::make_own(folder, user, FOLDER)?;
                (own, usage::FILE.to_owned())
            }
        };
        append(&dir, &name, &lines)?;
    }
    batch.done(&state, OWN_POSITION)
}

/// Copies what is left, but not for long. Errors: those of `copy`, which says whether more is left.
pub fn all(copy: impl Fn() -> Result<bool, ShippingError>) -> Result<(), ShippingError> {
    for _ in 0..MOST_COPIES {
        if !copy()? {
            break;
        }
    }
    Ok(())
}

/// Lines that were not copied yet.
struct Batch {
    text: String,
    path: PathBuf,
    from: Position,
    next: Position,
    is_more: bool,
}

impl Batch {
    /// Reads the lines after the position in a file of `state`; None where there is none.
    fn read(state: &RootDir, position: &str) -> Result<Option<Batch>, ShippingError> {
        let position = state.read(position)?;
        let position = position.and_then(|text| serde_json::from_str::<Position>(&text).ok());
        let Some((name, from)) = next(state, position)? else {
            return Ok(None);
        };
        let path = state.path().join(&name);
        let io = |source| ShippingError::read(&path, source);
        let mut file = File::open(&path).map_err(io)?;
        file.seek(SeekFrom::Start(from.offset)).map_err(io)?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(io)?;
        let is_last_part = (bytes.len() as u64) < MOST_BYTES;
        // The last line may be in the making; in a file that was renamed a full disk has cut it.
        let whole = match bytes.iter().rposition(|&byte| byte == b'\n') {
            _ if name != usage::FILE && is_last_part => bytes.len(),
            Some(last) => last + 1,
            // No line is that long: it is no record.
            None if bytes.len() as u64 == MOST_BYTES => bytes.len(),
            None => return Ok(None),
        };
        Ok(Some(Batch {
            text: String::from_utf8_lossy(&bytes[..whole]).into_owned(),
            next: Position {
                offset: from.offset + whole as u64,
                ..from
            },
            is_more: bytes.len() as u64 == MOST_BYTES || name != usage::FILE,
            path,
            from,
        }))
    }

    /// The lines by user and day. The time of GPUs belongs to no user.
    fn by_user(&self) -> Result<BTreeMap<(UserId, String), Vec<&str>>, ShippingError> {
        let lines = self.text.lines();
        let parsed: Vec<_> = lines.map(|line| (line, Line::parse(line))).collect();
        let mut owners = Owners::default();
        for (_, line) in &parsed {
            match line {
                Ok(Line::Slice(record)) => owners.learn(record),
                Ok(Line::End(key, ..)) => owners.want(key),
                Ok(Line::Gpu(_)) | Err(_) => {}
            }
        }
        owners
            .look_for(&self.path, self.from.offset)
            .map_err(|source| ShippingError::read(&self.path, source))?;
        let mut users: BTreeMap<(UserId, String), Vec<&str>> = BTreeMap::new();
        for (line, parsed) in parsed {
            let (user, end) = match parsed {
                Ok(Line::Slice(record)) => (Some(record.uid), record.end),
                Ok(Line::End(key, _, at, _)) => (owners.of(&key), at),
                Ok(Line::Gpu(_)) | Err(_) => continue,
            };
            if let Some(user) = user {
                users.entry((user, day(end))).or_default().push(line);
            }
        }
        Ok(users)
    }

    /// Notes that the lines were copied. Says whether more is left.
    fn done(self, state: &RootDir, position: &str) -> Result<bool, ShippingError> {
        let text = serde_json::to_string(&self.next).unwrap_or_default();
        state.write(position, &text, 0o600)?;
        Ok(self.is_more)
    }
}

/// The file that is next, and where to go on in it. A file that logrotate renamed is finished first.
fn next(
    state: &RootDir,
    position: Option<Position>,
) -> Result<Option<(String, Position)>, FileError> {
    let meta = |name: &str| std::fs::symlink_metadata(state.path().join(name)).ok();
    let is_plain = |meta: &std::fs::Metadata| meta.file_type().is_file();
    let current = meta(usage::FILE).filter(is_plain);
    if let Some(position) = position
        && current
            .as_ref()
            .is_none_or(|current| current.ino() != position.inode)
    {
        // delaycompress of logrotate leaves the last file as it is.
        let names = state.names()?;
        let is_it = |name: &&String| {
            let meta = meta(name).filter(is_plain);
            name.starts_with(usage::FILE)
                && meta.is_some_and(|meta| {
                    meta.ino() == position.inode && meta.len() > position.offset
                })
        };
        if let Some(name) = names.iter().find(is_it) {
            return Ok(Some((name.clone(), position)));
        }
    }
    let Some(current) = current else {
        return Ok(None);
    };
    let begin = Position {
        inode: current.ino(),
        offset: 0,
    };
    let from = position
        .filter(|position| position.inode == current.ino() && position.offset <= current.len())
        .unwrap_or(begin);
    Ok((from.offset < current.len()).then(|| (usage::FILE.to_owned(), from)))
}

/// Lines by the day, in UTC, on which the time of each ended. What is no record belongs to no day: a line that a full
/// disk or a power failure cut.
fn by_day(text: &str) -> BTreeMap<String, Vec<&str>> {
    let mut days: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let end = match Line::parse(line) {
            Ok(Line::Slice(record)) => record.end,
            Ok(Line::End(_, _, at, _)) => at,
            Ok(Line::Gpu(gpu)) => gpu.until,
            Err(_) => continue,
        };
        days.entry(day(end)).or_default().push(line);
    }
    days
}

/// The users of slices, as a line about the end of a slice has none.
#[derive(Default)]
struct Owners {
    known: HashMap<SliceKey, UserId>,
    /// Slices with a line about their end.
    wanted: HashSet<SliceKey>,
}

impl Owners {
    fn learn(&mut self, record: &UsageRecord) {
        self.known.insert(record.key(), record.uid);
    }

    fn want(&mut self, key: &SliceKey) {
        self.wanted.insert(key.clone());
    }

    fn of(&self, key: &SliceKey) -> Option<UserId> {
        self.known.get(key).copied()
    }

    /// Looks for the slices of which the lines of a copy have no record, in one pass over the file near the beginning
    /// of the copy.
    fn look_for(&mut self, path: &Path, offset: u64) -> std::io::Result<()> {
        let known = &self.known;
        self.wanted.retain(|key| !known.contains_key(key));
        if self.wanted.is_empty() {
            return Ok(());
        }
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(offset.saturating_sub(NEAR_BYTES)))?;
        for line in BufReader::new(file.take(2 * NEAR_BYTES)).split(b'\n') {
            // The first line and the last one may be parts of lines.
            if let Ok(Line::Slice(record)) = Line::parse(&String::from_utf8_lossy(&line?))
                && self.wanted.contains(&record.key())
            {
                self.learn(&record);
            }
        }
        Ok(())
    }
}

/// Appends the lines that are not there yet.
fn append(dir: &RootDir, name: &str, lines: &[&str]) -> Result<(), ShippingError> {
    let mut file = dir.append(name)?;
    let mut add = || -> std::io::Result<()> {
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut tail = Vec::new();
        file.read_to_end(&mut tail)?;
        let tail = String::from_utf8_lossy(&tail);
        let known: HashSet<&str> = tail.lines().collect();
        let mut text = String::new();
        if !tail.is_empty() && !tail.ends_with('\n') {
            // A full disk cut the last line; it is written again below.
            text.push('\n');
        }
        for line in lines.iter().filter(|line| !known.contains(**line)) {
            text.push_str(line);
            text.push('\n');
        }
        file.write_all(text.as_bytes())?;
        file.sync_data()
    };
    add().map_err(|source| ShippingError::Io {
        action: "write",
        path: dir.path().join(name),
        source,
    })
}

#[cfg(test)]
mod tests {
    use gpufrac_records::usage::Ended;

    use super::*;
    use std::fs;

    const DAY: u64 = 86_400;

    fn line(job: u32, end: u64) -> String {
        format!(
            r#"{{"version":2,"job":{job},"restart_count":0,"user":"ann","uid":1001,"account":null,"partition":"gpu","node":"n1","pool":"p","fraction":"0.25","units":25,"profile":"2g.20gb","gpu_uuid":"GPU-1","start":{},"end":{end},"seconds":60}}"#,
            end - 60
        ) + "\n"
    }

    struct NodeFolders {
        _keep: tempfile::TempDir,
        state: PathBuf,
        shared: PathBuf,
    }

    impl NodeFolders {
        fn new() -> NodeFolders {
            let keep = tempfile::tempdir().unwrap();
            let root = keep.path().canonicalize().unwrap();
            let (state, shared) = (root.join("state"), root.join("shared"));
            for folder in [&state, &shared] {
                fs::create_dir(folder).unwrap();
            }
            NodeFolders {
                _keep: keep,
                state,
                shared,
            }
        }

        fn write(&self, text: &str) {
            let path = self.state.join(usage::FILE);
            let mut file = File::options()
                .create(true)
                .append(true)
                .open(path)
                .unwrap();
            file.write_all(text.as_bytes()).unwrap();
        }

        fn ship(&self) {
            while ship(&self.state, &self.shared, "n1").unwrap() {}
        }

        fn copy(&self, day: &str) -> String {
            let path = self.shared.join(format!("usage/{day}/n1.jsonl"));
            fs::read_to_string(path).unwrap_or_default()
        }
    }

    /// Promise (admins): records of all nodes in the shared folder: no line lost, none twice, after a killed daemon, a
    /// full disk, a rotation, or without the folder.
    /// With `a_daemon_that_died_before_it_noted_the_offset_copies_nothing_twice`,
    /// `a_line_cut_by_a_full_disk_is_written_again`, `the_rest_of_a_rotated_file_is_copied_before_the_new_one`,
    /// `a_shared_folder_that_is_not_mounted_is_an_error_and_loses_nothing`.
    #[test]
    fn lines_are_copied_by_day_once_each() {
        let node = NodeFolders::new();
        node.ship();
        node.write(&(line(1, 100) + &line(2, DAY - 1) + &line(3, DAY + 5)));
        node.ship();
        node.ship();
        node.write(&line(4, DAY + 6));
        node.ship();
        assert_eq!(node.copy("1970-01-01"), line(1, 100) + &line(2, DAY - 1));
        assert_eq!(
            node.copy("1970-01-02"),
            line(3, DAY + 5) + &line(4, DAY + 6)
        );
    }

    #[test]
    fn a_daemon_that_died_before_it_noted_the_offset_copies_nothing_twice() {
        let node = NodeFolders::new();
        node.write(&(line(1, 100) + &line(2, 200)));
        node.ship();
        let position = node.state.join(POSITION);
        let before = fs::read_to_string(&position).unwrap();
        node.write(&line(3, 300));
        node.ship();
        fs::write(&position, before).unwrap();
        node.write(&line(4, 400));
        node.ship();
        fs::remove_file(&position).unwrap();
        node.ship();
        let all: String = (1..5).map(|job| line(job, 100 * u64::from(job))).collect();
        assert_eq!(node.copy("1970-01-01"), all);
    }

    #[test]
    fn a_line_in_the_making_is_copied_when_it_is_whole() {
        let node = NodeFolders::new();
        let text = line(1, 100);
        node.write(&text[..40]);
        node.ship();
        assert_eq!(node.copy("1970-01-01"), "");
        node.write(&text[40..]);
        node.ship();
        assert_eq!(node.copy("1970-01-01"), text);
    }

    #[test]
    fn a_line_cut_by_a_full_disk_is_written_again() {
        let node = NodeFolders::new();
        node.write(&(line(1, 100) + &line(2, 200)));
        // The first line went into the copy, and a part of the second one.
        let folder = node.shared.join("usage/1970-01-01");
        fs::create_dir_all(&folder).unwrap();
        let cut = line(1, 100) + &line(2, 200)[..50];
        fs::write(folder.join("n1.jsonl"), cut).unwrap();
        node.ship();
        let copy = node.copy("1970-01-01");
        let whole: Vec<&str> = copy
            .lines()
            .filter(|line| Line::parse(line).is_ok())
            .collect();
        assert_eq!(whole, [line(1, 100).trim_end(), line(2, 200).trim_end()]);
    }

    #[test]
    fn the_rest_of_a_rotated_file_is_copied_before_the_new_one() {
        let node = NodeFolders::new();
        node.write(&line(1, 100));
        node.ship();
        node.write(&line(2, 200));
        let path = node.state.join(usage::FILE);
        fs::rename(&path, node.state.join("usage.jsonl-20261101")).unwrap();
        node.ship();
        node.write(&line(3, 300));
        node.ship();
        let all: String = (1..4).map(|job| line(job, 100 * u64::from(job))).collect();
        assert_eq!(node.copy("1970-01-01"), all);
    }

    #[test]
    fn a_rotated_file_that_ends_with_a_cut_line_keeps_no_later_one_back() {
        let node = NodeFolders::new();
        node.write(&(line(1, 100) + &line(2, 200)[..40]));
        node.ship();
        let path = node.state.join(usage::FILE);
        fs::rename(&path, node.state.join("usage.jsonl-20261101")).unwrap();
        node.ship();
        node.write(&line(3, 300));
        node.ship();
        assert_eq!(node.copy("1970-01-01"), line(1, 100) + &line(3, 300));
    }

    #[test]
    fn a_shared_folder_that_is_not_mounted_is_an_error_and_loses_nothing() {
        let node = NodeFolders::new();
        node.write(&line(1, 100));
        fs::remove_dir(&node.shared).unwrap();
        let error = ship(&node.state, &node.shared, "n1")
            .unwrap_err()
            .to_string();
        assert!(error.contains("copied when it works again"), "{error}");
        assert!(!node.shared.exists());
        fs::create_dir(&node.shared).unwrap();
        node.ship();
        assert_eq!(node.copy("1970-01-01"), line(1, 100));
    }

    #[test]
    fn lines_that_are_no_records_are_not_copied() {
        let node = NodeFolders::new();
        node.write(&("{\"version\":2,\"jo\n".to_owned() + &line(1, 100)));
        node.ship();
        assert_eq!(node.copy("1970-01-01"), line(1, 100));
    }

    fn end_of(job: u32, ended: Ended) -> String {
        let key = SliceKey {
            job: gpufrac_core::ids::JobId(job),
            slice: 0,
            restart_count: 0,
            start: 140,
            node: "n1".to_owned(),
        };
        Line::End(key, ended, 200, None).to_text().unwrap()
    }

    #[test]
    fn ends_of_slices_reach_their_users_from_one_pass_over_the_lines_near_them() {
        let node = NodeFolders::new();
        let ship = || while ship_own(&node.state, Some(&node.shared), "n1").unwrap() {};
        let own = || {
            let path = node.shared.join("own/1001/usage/1970-01-01/n1.jsonl");
            fs::read_to_string(path).unwrap_or_default()
        };
        // The daemon may see the end before the epilog has written the record.
        let ends: String = (1..500)
            .map(|job| end_of(job, Ended::NodeFailure))
            .collect();
        let records: String = (1..500).map(|job| line(job, 200)).collect();
        node.write(&(ends.clone() + &records));
        ship();
        assert_eq!(own(), ends.clone() + &records);
        // The records are in an earlier copy.
        let more: String = (1..500).map(|job| end_of(job, Ended::Preempted)).collect();
        node.write(&more);
        ship();
        assert_eq!(own(), ends.clone() + &records + &more);
        // A record that is far away is not looked for.
        let filler = "x".repeat(1023) + "\n";
        node.write(&filler.repeat(2 * NEAR_BYTES as usize / 1024));
        ship();
        node.write(&end_of(1, Ended::Done));
        ship();
        assert_eq!(own(), ends + &records + &more);
        let path = node.state.join(usage::FILE);
        let position = fs::read_to_string(node.state.join(OWN_POSITION)).unwrap();
        let length = fs::metadata(path).unwrap().len();
        assert!(position.contains(&length.to_string()), "{position}");
    }

    #[test]
    fn each_user_gets_the_own_lines_once() {
        let node = NodeFolders::new();
        let bob = |job| line(job, 200).replace("ann", "bob").replace("1001", "1002");
        let end = end_of(2, Ended::NodeFailure);
        node.write(&(line(1, 100) + &bob(2) + &line(3, DAY + 5)));
        let ship = || while ship_own(&node.state, Some(&node.shared), "n1").unwrap() {};
        ship();
        node.write(&end);
        ship();
        ship();
        let own = |user: u32, day: &str| {
            let path = node.shared.join(format!("own/{user}/usage/{day}/n1.jsonl"));
            fs::read_to_string(path).unwrap_or_default()
        };
        assert_eq!(own(1001, "1970-01-01"), line(1, 100));
        assert_eq!(own(1001, "1970-01-02"), line(3, DAY + 5));
        assert_eq!(own(1002, "1970-01-01"), bob(2) + &end);
        // The copies for root go on where they were.
        node.ship();
        assert_eq!(node.copy("1970-01-01"), line(1, 100) + &bob(2) + &end);
        // Without a shared folder.
        fs::remove_file(node.state.join(OWN_POSITION)).unwrap();
        while ship_own(&node.state, None, "n1").unwrap() {}
        let path = node.state.join("own/1001/usage/usage.jsonl");
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(text, line(1, 100) + &line(3, DAY + 5));
    }
}
