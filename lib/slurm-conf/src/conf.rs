//! Slurm's configuration files: every line with its place.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gpufrac_core::hostlist::Hostlist;
use gpufrac_core::slurm_text::{DEPTH, included, logical_lines};

/// The place of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinePosition {
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
}

impl std::fmt::Display for LinePosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A line of `Key=Value` pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The place of its first line.
    pub place: LinePosition,
    /// Keys as written, values without quotes.
    pub pairs: Vec<(String, String)>,
    /// `NodeName=` expanded, computed on first use: a cluster has thousands of nodes, and each is looked up.
    nodes: OnceLock<Option<Hostlist>>,
}

impl Line {
    /// A line of these pairs.
    pub fn new(place: LinePosition, pairs: Vec<(String, String)>) -> Line {
        Line {
            place,
            pairs,
            nodes: OnceLock::new(),
        }
    }

    /// The value of a key, the last one if the line has several; upper and lower case are the same.
    pub fn get(&self, key: &str) -> Option<&str> {
        let mut pairs = self.pairs.iter().rev();
        pairs
            .find(|(name, _)| name.eq_ignore_ascii_case(key))
            .map(|(_, value)| value.as_str())
    }

    /// Whether its `NodeName=` contains a node; `ALL` contains every node.
    pub fn covers(&self, node: &str) -> bool {
        let Some(text) = self.get("NodeName") else {
            return false;
        };
        let nodes = self.nodes.get_or_init(|| Hostlist::as_slurm(text).ok());
        text.eq_ignore_ascii_case("ALL") || nodes.as_ref().is_some_and(|nodes| nodes.contains(node))
    }

    /// The first key of the line.
    pub fn first(&self) -> &str {
        self.pairs.first().map_or("", |(key, _)| key.as_str())
    }
}

/// A file with what it includes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfFile {
    /// The path of the file.
    pub path: PathBuf,
    /// Whether the file exists.
    pub exists: bool,
    /// Lines in the order in which Slurm reads them.
    pub lines: Vec<Line>,
}

impl ConfFile {
    /// The last line that sets a key of its own; Slurm uses the last one.
    pub fn last(&self, key: &str) -> Option<(&LinePosition, &str)> {
        self.all(key).pop()
    }

    /// All lines that set a key of their own.
    pub fn all(&self, key: &str) -> Vec<(&LinePosition, &str)> {
        self.lines
            .iter()
            .filter(|line| !is_list(line.first()))
            .filter_map(|line| Some((&line.place, line.get(key)?)))
            .collect()
    }

    /// Lines that begin with this key.
    pub fn starting<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a Line> {
        self.lines
            .iter()
            .filter(move |line| line.first().eq_ignore_ascii_case(key))
    }
}

/// Keys that begin a line whose other keys belong to them.
fn is_list(key: &str) -> bool {
    [
        "NodeName",
        "PartitionName",
        "NodeSet",
        "DownNodes",
        "FrontendName",
        "Name",
    ]
    .iter()
    .any(|known| known.eq_ignore_ascii_case(key))
}

/// Reads one file as text.
pub type Read<'a> = &'a dyn Fn(&Path) -> io::Result<String>;

/// Reads a file of `Key=Value` lines with its includes.
/// Errors: the file cannot be read. An include that cannot be read is left out.
pub fn read_conf(path: &Path, read: Read<'_>) -> io::Result<ConfFile> {
    let mut file = ConfFile {
        path: path.to_owned(),
        exists: true,
        lines: Vec::new(),
    };
    each_line(path, read, &mut |place, pairs, _| {
        if !pairs.is_empty() {
            file.lines.push(Line::new(place, pairs));
        }
    })?;
    Ok(file)
}

/// Takes the place of a line, its pairs, and its text as written.
type Each<'a> = &'a mut dyn FnMut(LinePosition, Vec<(String, String)>, &str);

/// Calls `each` for the lines of a file and of those that it includes. A line that includes a file which cannot be read
/// is a line like others: slurmctld does not start then, and reports it itself.
pub(crate) fn each_line(path: &Path, read: Read<'_>, each: Each<'_>) -> io::Result<()> {
    // Slurm takes every included file from the folder of slurm.conf (`get_extra_conf_path`).
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut walk = Walk {
        folder,
        read,
        each,
        cluster: None,
    };
    walk.file(path, 0)
}

struct Walk<'a> {
    folder: &'a Path,
    read: Read<'a>,
    each: Each<'a>,
    /// The last `ClusterName`.
    cluster: Option<String>,
}

impl Walk<'_> {
    fn file(&mut self, path: &Path, depth: usize) -> io::Result<()> {
        let text = (self.read)(path)?;
        for line in logical_lines(&text) {
            if let Some(name) = included(&line.text).filter(|_| depth < DEPTH) {
                let name = match &self.cluster {
                    Some(cluster) => name.replace("%c", &cluster.to_ascii_lowercase()),
                    None => name.to_owned(),
                };
                if self.file(&self.folder.join(name), depth + 1).is_ok() {
                    continue;
                }
            }
            let place = LinePosition {
                file: path.to_owned(),
                line: line.number,
            };
            let pairs = pairs(&line.text);
            let mut names = pairs.iter().rev();
            if let Some((_, name)) = names.find(|(key, _)| key.eq_ignore_ascii_case("ClusterName"))
            {
                self.cluster = Some(name.clone());
            }
            (self.each)(place, pairs, &text[line.range]);
        }
        Ok(())
    }
}

/// `Key=Value` pairs; a value in quotes may have blanks.
pub(crate) fn pairs(text: &str) -> Vec<(String, String)> {
    let spans = spans(text).into_iter();
    spans
        .map(|(key, value)| (text[key].to_owned(), text[value].to_owned()))
        .collect()
}

/// The ranges of keys and values in a line, values without quotes.
pub(crate) fn spans(text: &str) -> Vec<(Range<usize>, Range<usize>)> {
    let mut spans = Vec::new();
    let mut at = 0;
    while let Some(sign) = text[at..].find('=').map(|found| at + found) {
        // Words that are not `Key=Value` are skipped.
        let before = text[at..sign].trim_end();
        let word = before.rsplit(char::is_whitespace).next().unwrap_or(before);
        let key = at + before.len() - word.len()..at + before.len();
        let rest = &text[sign + 1..];
        let blanks = rest.len() - rest.trim_start().len();
        let mut start = sign + 1 + blanks;
        let quoted = text[start..].starts_with('"');
        start += usize::from(quoted);
        let ends = |c: char| if quoted { c == '"' } else { c.is_whitespace() };
        let length = text[start..].find(ends).unwrap_or(text.len() - start);
        spans.push((key, start..start + length));
        at = (start + length + usize::from(quoted)).min(text.len());
    }
    spans
}
