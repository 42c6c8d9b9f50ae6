//! Slurm's reading of a request: `reader.c` with the library of one series.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use gpufrac_lab::{LabError, Slurm};
use tempfile::TempDir;

use crate::texts::{Field, Texts};

const SOURCE: &str = include_str!("reader.c");

/// The reasons why Slurm's library cannot be called.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// The Slurm lacks something.
    #[error(transparent)]
    Slurm(#[from] LabError),
    /// A file or program could not be used.
    #[error("{what} failed: {source}")]
    Io {
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// The output of the compiler.
    #[error("building reader.c failed: {0}; install a C compiler (cargo xtask setup)")]
    Build(String),
    /// The library cannot be loaded or initialised.
    #[error("Slurm's library did not start: {0}")]
    Start(String),
    /// The answer cannot be parsed.
    #[error("reader.c answered {0:?}; compare its structures with those of this Slurm (gres.h)")]
    Answer(String),
}

fn io(what: &'static str) -> impl FnOnce(io::Error) -> ReaderError {
    move |source| ReaderError::Io { what, source }
}

/// Slurm's reading of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Refused,
    Took(Vec<Entry>),
    /// The parser ended its process; with the way it ended.
    Crashed(String),
}

/// A GRES of a job with one Type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) type_id: u32,
    /// Empty without a Type.
    pub(crate) type_name: Vec<u8>,
    /// By [`Field`].
    pub(crate) counts: [u64; 4],
    /// The total of the job; an update in 22.05 leaves it at zero for GRES that it does not name. 1 in series whose
    /// updates read all texts.
    pub(crate) total: u64,
}

/// The parser of one Slurm.
pub(crate) struct Reader {
    /// The program with its arguments.
    command: Vec<OsString>,
    library: PathBuf,
    folder: TempDir,
}

impl Reader {
    /// Builds `reader.c` and tests it with a text whose answer is known.
    pub(crate) fn build(slurm: &Slurm) -> Result<Self, ReaderError> {
        let folder = TempDir::new().map_err(io("making a folder"))?;
        let program = folder.path().join("reader");
        compile(folder.path(), &program)?;
        let plugins = slurm.libraries()?.join("slurm-wlm");
        // A Slurm with its own prefix has no such folder.
        let plugins = if plugins.exists() { plugins } else { slurm.plugins()? };
        let conf = folder.path().join("slurm.conf");
        fs::write(&conf, slurm_conf(&plugins)).map_err(io("writing slurm.conf"))?;
        let mut command = Vec::new();
        if let Some(root) = slurm.root() {
            // The loader and libraries of that release, without a namespace.
            let libraries = slurm.libraries()?;
            command.push(loader(root)?.into());
            command.push("--library-path".into());
            let folders = [libraries.as_os_str(), plugins.as_os_str()];
            command.push(folders.join(OsStr::new(":")));
        }
        command.push(program.into());
        command.push(slurm.series().into());
        let library = plugins.join("libslurmfull.so");
        command.push(library.clone().into());
        command.push(conf.into());
        let reader = Self {
            command,
            library,
            folder,
        };
        reader.try_known(slurm.since(23, 11))?;
        Ok(reader)
    }

    /// If known texts are read correctly, the structures in `reader.c` match this Slurm.
    fn try_known(&self, slash: bool) -> Result<(), ReaderError> {
        let mark = if slash { "gres/" } else { "gres:" };
        let texts = |parts: &[(Field, &str)]| {
            let mut texts = Texts::default();
            for (field, text) in parts {
                texts.set(*field, Some(text.replace('@', mark).into_bytes()));
            }
            texts
        };
        let entry = |name: &str, type_name: &str, counts: [u64; 4]| Entry {
            name: name.to_owned(),
            type_id: crate::texts::type_id(type_name.as_bytes()),
            type_name: type_name.as_bytes().to_vec(),
            counts,
            total: if slash { 1 } else { counts[0].max(counts[1]) },
        };
        let first = texts(&[
            (Field::Node, "@shard:half:4,@gpufrac:3"),
            (Field::Socket, "@gpufrac:3"),
        ]);
        let second = texts(&[(Field::Job, "@gpufrac:6"), (Field::Task, "@gpufrac:2")]);
        let expected = [
            Answer::Took(vec![
                entry("shard", "half", [4, 0, 0, 0]),
                entry("gpufrac", "", [3, 0, 3, 0]),
            ]),
            Answer::Took(vec![entry("gpufrac", "", [0, 6, 0, 2])]),
        ];
        let answers = self.ask(&[(None, &first), (None, &second)])?;
        if answers == expected {
            Ok(())
        } else {
            Err(ReaderError::Answer(format!("{answers:?}")))
        }
    }

    /// Asks about requests, each with the earlier request of its job. If a request ends the process, a new process
    /// continues after it.
    pub(crate) fn ask(
        &self,
        requests: &[(Option<&Texts>, &Texts)],
    ) -> Result<Vec<Answer>, ReaderError> {
        let mut answers = Vec::with_capacity(requests.len());
        while answers.len() < requests.len() {
            let (status, output, log) = self.run(&requests[answers.len()..])?;
            // A process that ends may leave an incomplete line.
            let whole = output.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let mut lines = whole.lines();
            if lines.next() != Some("ready") {
                return Err(ReaderError::Start(format!("{status}: {}", last_line(&log))));
            }
            for line in lines {
                answers.push(parse(line)?);
            }
            if answers.len() < requests.len() {
                answers.push(Answer::Crashed(format!("{status}: {}", last_line(&log))));
            }
        }
        Ok(answers)
    }

    fn run(
        &self,
        requests: &[(Option<&Texts>, &Texts)],
    ) -> Result<(ExitStatus, String, String), ReaderError> {
        let [input, log] = ["input", "log"].map(|name| self.folder.path().join(name));
        fs::write(&input, encode(requests)).map_err(io("writing requests"))?;
        let mut command = Command::new(&self.command[0]);
        let output = command
            .args(&self.command[1..])
            // Loaded before the C library, which has functions of the same names (`error`).
            .env("LD_PRELOAD", &self.library)
            .stdin(File::open(&input).map_err(io("reading requests"))?)
            .stderr(File::create(&log).map_err(io("writing a log"))?)
            .stdout(Stdio::piped())
            .output()
            .map_err(io("starting reader.c"))?;
        let log = fs::read(&log).map_err(io("reading a log"))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((output.status, text(&output.stdout), text(&log)))
    }
}

fn compile(folder: &Path, program: &Path) -> Result<(), ReaderError> {
    let source = folder.join("reader.c");
    fs::write(&source, SOURCE).map_err(io("writing reader.c"))?;
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-o"])
        .args([program, &source])
        .arg("-ldl")
        .output()
        .map_err(io("starting cc"))?;
    if output.status.success() {
        Ok(())
    } else {
        let words = String::from_utf8_lossy(&output.stderr);
        Err(ReaderError::Build(words.into_owned()))
    }
}

/// The settings that the library needs before it reads a text.
fn slurm_conf(plugins: &Path) -> String {
    format!(
        "ClusterName=differ\nSlurmctldHost=localhost\nSlurmUser=root\nPluginDir={}\nSelectType=select/cons_tres\n\
         GresTypes=gpu,shard,gpufrac\nNodeName=n1\nPartitionName=gpu Nodes=n1\n",
        plugins.display()
    )
}

/// The program loader in the folder of another Debian release.
fn loader(root: &Path) -> Result<PathBuf, ReaderError> {
    let folders = ["usr/lib64", "usr/lib"].map(|name| root.join(name));
    let entries = folders
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok());
    let mut files = entries.flatten().flatten().map(|entry| entry.path());
    let is_loader = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("ld-linux-")
    };
    files
        .find(is_loader)
        .ok_or_else(|| ReaderError::Start(format!("no loader in {}", root.display())))
}

/// Encodes requests for `reader.c`.
fn encode(requests: &[(Option<&Texts>, &Texts)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let none = Texts::default();
    for (before, texts) in requests {
        for texts in [before.unwrap_or(&none), texts] {
            for field in Field::ALL {
                if let Some(text) = texts.get(field) {
                    bytes.push(b'+');
                    bytes.extend(text);
                }
                bytes.push(0);
            }
        }
    }
    bytes
}

fn parse(line: &str) -> Result<Answer, ReaderError> {
    let (word, rest) = line.split_at_checked(1).unwrap_or((line, ""));
    let wrong = || ReaderError::Answer(line.to_owned());
    match word {
        "E" | "B" => Ok(Answer::Refused),
        "T" => {
            let entries = rest.split(';').filter(|part| !part.is_empty());
            let entries = entries.map(|part| entry(part).ok_or_else(wrong));
            entries.collect::<Result<_, _>>().map(Answer::Took)
        }
        _ => Err(wrong()),
    }
}

/// `gpu 1718378856 +68616c66 1 0 0 0 1`.
fn entry(part: &str) -> Option<Entry> {
    let words: Vec<&str> = part.split_ascii_whitespace().collect();
    let [name, type_id, type_name, counts @ .., total] = words.as_slice() else {
        return None;
    };
    let counts: Vec<u64> = counts.iter().filter_map(|word| word.parse().ok()).collect();
    Some(Entry {
        name: (*name).to_owned(),
        type_id: type_id.parse().ok()?,
        type_name: match *type_name {
            "-" => Vec::new(),
            digits => from_hex(digits.strip_prefix('+')?)?,
        },
        counts: counts.try_into().ok()?,
        total: total.parse().ok()?,
    })
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

fn last_line(log: &str) -> &str {
    log.lines().next_back().unwrap_or("it said nothing")
}
