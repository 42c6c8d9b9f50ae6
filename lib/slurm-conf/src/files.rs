//! slurm.conf and the files beside it.

use std::io;
use std::path::{Path, PathBuf};

use gpufrac_core::slurm_text::{DEPTH, logical_lines};

use crate::conf::{ConfFile, LinePosition, Read, read_conf};
use crate::site::Site;

/// A line of plugstack.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginLine {
    /// The place of the line.
    pub place: LinePosition,
    /// The number of the line of plugstack.conf itself that leads to it: the line, or an `include`.
    pub top: usize,
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
    /// The files about namespaces of jobs that are there, with their texts: that of Slurm before 26.05, and that since.
    pub namespaces: Vec<(PathBuf, String)>,
}

/// Lists the files that match a pattern.
pub type Glob<'a> = &'a dyn Fn(&Path) -> Vec<PathBuf>;

impl Files {
    /// Reads slurm.conf and the files beside it.
    /// Errors: slurm.conf cannot be read. Other files that cannot be read count as absent.
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
        let known = read_plugstack(&plugstack, read, glob, &[], &mut lines).is_ok();
        Ok(Files {
            gres: beside("gres.conf"),
            cgroup: beside("cgroup.conf"),
            site: Site::of(&slurm),
            slurm,
            plugstack,
            plugins: known.then_some(lines),
            namespaces: ["job_container.conf", "namespace.yaml"]
                .into_iter()
                .filter_map(|name| Some((folder.join(name), read(&folder.join(name)).ok()?)))
                .collect(),
        })
    }
}

fn read_plugstack(
    path: &Path,
    read: Read<'_>,
    glob: Glob<'_>,
    includes: &[usize],
    lines: &mut Vec<PluginLine>,
) -> io::Result<()> {
    let text = read(path)?;
    for line in logical_lines(&text) {
        let mut words = line.text.split_whitespace();
        let here = [includes, &[line.number]].concat();
        match (words.next(), words.next()) {
            (Some("include"), Some(pattern)) if includes.len() < DEPTH => {
                let folder = path.parent().unwrap_or(Path::new("/"));
                for file in glob(&folder.join(pattern)) {
                    // SPANK continues without an included file that it cannot read.
                    let _ = read_plugstack(&file, read, glob, &here, lines);
                }
            }
            (Some(kind), Some(plugin)) => {
                let arguments: Vec<&str> = words.collect();
                let config = |word: &&str| Some(word.strip_prefix("config=")?.into());
                let is_unknown = |word: &&&str| !word.starts_with("config=/");
                let unknown = arguments.iter().find(is_unknown);
                lines.push(PluginLine {
                    place: LinePosition {
                        file: path.to_owned(),
                        line: line.number,
                    },
                    top: here[0],
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
