//! Slurm's configuration files: every line with its place.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use gpufrac_core::hostlist::Hostlist;

use crate::site::Site;

/// The greatest depth of include lines.
const DEPTH: usize = 8;

/// The place of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub file: PathBuf,
    /// The line, counted from 1.
    pub line: usize,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// A line of `Key=Value` pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The place of its first line.
    pub place: Place,
    /// Keys as written, values without quotes.
    pub pairs: Vec<(String, String)>,
    /// `NodeName=` expanded, computed on first use: a cluster has thousands of nodes, and each is looked up.
    nodes: OnceLock<Option<Hostlist>>,
}

impl Line {
    /// A line of these pairs.
    #[must_use]
    pub fn new(place: Place, pairs: Vec<(String, String)>) -> Line {
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
    pub fn last(&self, key: &str) -> Option<(&Place, &str)> {
        self.all(key).pop()
    }

    /// All lines that set a key of their own.
    pub fn all(&self, key: &str) -> Vec<(&Place, &str)> {
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

/// A line of plugstack.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginLine {
    /// The place of the line.
    pub place: Place,
    /// Whether it is `required`.
    pub required: bool,
    /// The plugin, by name or path.
    pub plugin: String,
    /// The gpufrac.toml that the line names for gpufrac's plugin.
    pub config: Option<PathBuf>,
    /// The first argument that is not `config=PATH`.
    pub unknown: Option<String>,
}

/// The configuration files of a Slurm.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Files {
    pub slurm: ConfFile,
    /// The nodes and partitions of slurm.conf.
    pub site: Site,
    pub gres: ConfFile,
    pub cgroup: ConfFile,
    /// plugstack.conf.
    pub plugstack: PathBuf,
    /// The lines of plugstack.conf; None if the file does not exist.
    pub plugins: Option<Vec<PluginLine>>,
    /// The file that gives jobs their own user namespaces.
    pub user_namespaces: Option<Place>,
}

/// Reads one file as text.
pub type Read<'a> = &'a dyn Fn(&Path) -> io::Result<String>;
/// Lists the files that match a pattern.
pub type Glob<'a> = &'a dyn Fn(&Path) -> Vec<PathBuf>;

impl Files {
    /// Reads slurm.conf and the files beside it.
    ///
    /// # Errors
    /// slurm.conf cannot be read. Other files that cannot be read count as absent.
    pub fn read(slurm_conf: &Path, read: Read<'_>, glob: Glob<'_>) -> io::Result<Files> {
        let folder = slurm_conf.parent().unwrap_or(Path::new("/"));
        let slurm = read_conf(slurm_conf, read)?;
        let beside = |name: &str| {
            let path = folder.join(name);
            read_conf(&path, read).unwrap_or(ConfFile {
                path,
                ..ConfFile::default()
            })
        };
        let plugstack = match slurm.last("PlugStackConfig") {
            Some((_, path)) => PathBuf::from(path),
            None => folder.join("plugstack.conf"),
        };
        let mut lines = Vec::new();
        let known = read_plugstack(&plugstack, read, glob, 0, &mut lines).is_ok();
        Ok(Files {
            gres: beside("gres.conf"),
            cgroup: beside("cgroup.conf"),
            site: Site::of(&slurm),
            slurm,
            plugstack,
            plugins: known.then_some(lines),
            // The name before 26.05, and the name since.
            user_namespaces: ["job_container.conf", "namespace.yaml"]
                .into_iter()
                .find_map(|name| user_namespaces(&folder.join(name), read)),
        })
    }
}

fn user_namespaces(path: &Path, read: Read<'_>) -> Option<Place> {
    let text = read(path).ok()?;
    let mut lines = text.lines().zip(1..);
    lines.find_map(|(text, line)| {
        let (setting, _) = text.split_once('#').unwrap_or((text, ""));
        setting.contains("CLONE_NEWUSER").then(|| Place {
            file: path.to_owned(),
            line,
        })
    })
}

/// Reads a file of `Key=Value` lines with its includes.
///
/// # Errors
/// The file cannot be read. An include that cannot be read is left out.
pub fn read_conf(path: &Path, read: Read<'_>) -> io::Result<ConfFile> {
    let mut file = ConfFile {
        path: path.to_owned(),
        exists: true,
        lines: Vec::new(),
    };
    // Slurm takes every included file from the folder of slurm.conf (`get_extra_conf_path`).
    let folder = path.parent().unwrap_or(Path::new("/"));
    add(path, folder, read, 0, &mut file.lines)?;
    Ok(file)
}

fn add(
    path: &Path,
    folder: &Path,
    read: Read<'_>,
    depth: usize,
    lines: &mut Vec<Line>,
) -> io::Result<()> {
    let text = read(path)?;
    for (line, text) in logical_lines(&text) {
        let cluster = lines.iter().rev().find_map(|line| line.get("ClusterName"));
        if let Some(name) = included(&text, cluster) {
            if depth < DEPTH {
                // Without the included file slurmctld does not start, and reports it itself.
                let _ = add(&folder.join(name), folder, read, depth + 1, lines);
            }
            continue;
        }
        let pairs = pairs(&text);
        if !pairs.is_empty() {
            let place = Place {
                file: path.to_owned(),
                line,
            };
            lines.push(Line::new(place, pairs));
        }
    }
    Ok(())
}

/// The file that a line includes.
fn included(line: &str, cluster: Option<&str>) -> Option<String> {
    let mut words = line.split_whitespace();
    words
        .next()
        .filter(|word| word.eq_ignore_ascii_case("include"))?;
    let name = words.next().unwrap_or_default();
    Some(match cluster {
        Some(cluster) => name.replace("%c", &cluster.to_ascii_lowercase()),
        None => name.to_owned(),
    })
}

/// The text of a file as written, with the texts of the files that it includes in place of the lines that include them.
///
/// # Errors
/// The file cannot be read. A line that includes a file which cannot be read stays.
pub fn with_includes(path: &Path, read: Read<'_>) -> io::Result<String> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let mut whole = Whole {
        text: String::new(),
        cluster: None,
    };
    whole.add(path, folder, read, 0)?;
    Ok(whole.text)
}

struct Whole {
    text: String,
    cluster: Option<String>,
}

impl Whole {
    fn add(&mut self, path: &Path, folder: &Path, read: Read<'_>, depth: usize) -> io::Result<()> {
        let text = read(path)?;
        for line in crate::edit::logical_lines(&text) {
            if let Some(name) = included(&line.text, self.cluster.as_deref())
                && depth < DEPTH
                && self
                    .add(&folder.join(name), folder, read, depth + 1)
                    .is_ok()
            {
                continue;
            }
            let mut pairs = pairs(&line.text).into_iter();
            if let Some((_, name)) = pairs.find(|(key, _)| key.eq_ignore_ascii_case("ClusterName"))
            {
                self.cluster = Some(name);
            }
            crate::edit::append(&mut self.text, text[line.range].trim_end_matches('\n'));
        }
        Ok(())
    }
}

/// Lines without comments; a line that ends with a backslash is joined with the next. Each has the number of its
/// first line.
fn logical_lines(text: &str) -> Vec<(usize, String)> {
    let lines = crate::edit::logical_lines(text).into_iter();
    lines.map(|line| (line.number, line.text)).collect()
}

pub(crate) fn without_comment(line: &str) -> &str {
    let mut escaped = false;
    for (at, character) in line.char_indices() {
        if character == '#' && !escaped {
            return line[..at].trim_end();
        }
        escaped = character == '\\' && !escaped;
    }
    line.trim_end()
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

fn read_plugstack(
    path: &Path,
    read: Read<'_>,
    glob: Glob<'_>,
    depth: usize,
    lines: &mut Vec<PluginLine>,
) -> io::Result<()> {
    let text = read(path)?;
    for (line, text) in logical_lines(&text) {
        let mut words = text.split_whitespace();
        match (words.next(), words.next()) {
            (Some("include"), Some(pattern)) if depth < DEPTH => {
                let folder = path.parent().unwrap_or(Path::new("/"));
                for file in glob(&folder.join(pattern)) {
                    // SPANK continues without an included file that it cannot read.
                    let _ = read_plugstack(&file, read, glob, depth + 1, lines);
                }
            }
            (Some(kind), Some(plugin)) => {
                let arguments: Vec<&str> = words.collect();
                let config = |word: &&str| Some(word.strip_prefix("config=")?.into());
                let is_unknown = |word: &&&str| !word.starts_with("config=/");
                let unknown = arguments.iter().find(is_unknown);
                lines.push(PluginLine {
                    place: Place {
                        file: path.to_owned(),
                        line,
                    },
                    required: kind == "required",
                    plugin: plugin.to_owned(),
                    config: arguments.iter().find_map(config),
                    unknown: unknown.map(|word| (*word).to_owned()),
                });
            }
            _ => {}
        }
    }
    Ok(())
}
