//! The files of nodes that gpufrac-reaperd writes ([`gpufrac_view`]), read again where they changed.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpufrac_core::config::Config;
use gpufrac_view::NodeStatus;

use crate::own;

/// The file of a node in `<run>`.
const OWN_FILE: &str = "reaper/status.json";
/// The folder of the files of all nodes in the folder that nodes share.
pub const FOLDER: &str = "status";
/// The end of a file's name; others are files in the making.
const SUFFIX: &str = ".json";
/// No node has a larger file; a larger one is not read.
const MOST_BYTES: u64 = 4 << 20;

/// A file or a folder of files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOrFolder {
    /// The file of one node.
    File(PathBuf),
    /// A folder with a file for each node.
    Folder(PathBuf),
}

impl FileOrFolder {
    /// Where a path leads to.
    pub fn of(path: PathBuf) -> FileOrFolder {
        if path.is_dir() {
            FileOrFolder::Folder(path)
        } else {
            FileOrFolder::File(path)
        }
    }

    /// Whether every user may read the file, or list the folder. A missing place is public.
    pub fn is_public(&self) -> bool {
        match self {
            FileOrFolder::File(path) => has_mode(path, 0o004),
            FileOrFolder::Folder(path) => is_listed(path),
        }
    }
}

/// Whether every user may list a folder. A missing one is listed.
pub fn is_listed(folder: &Path) -> bool {
    has_mode(folder, 0o005)
}

fn has_mode(path: &Path, needed: u32) -> bool {
    match fs::metadata(path) {
        Ok(meta) => meta.mode() & needed == needed,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The files that a host can read: of the nodes that share a folder, and of the node that the host is. Where Slurm
/// hides jobs they have no owners.
pub fn places(config: &Config, node: &str) -> Vec<FileOrFolder> {
    let paths = config.paths.for_node(node);
    let shared = paths.shared.map(|folder| Path::new(&folder).join(FOLDER));
    let own = Path::new(&paths.run).join(OWN_FILE);
    let shared = shared.map(FileOrFolder::Folder).into_iter();
    shared.chain([FileOrFolder::File(own)]).collect()
}

/// The files for the user alone, where Slurm hides jobs: with the user's own slices, and for root with all
/// ([`NodeFiles::with_own`]).
pub fn own_places(config: &Config, node: &str) -> Vec<FileOrFolder> {
    let paths = config.paths.for_node(node);
    let above = paths.shared.into_iter().chain([paths.run]);
    let own = above.map(|above| own::folder(Path::new(&above)).join(FOLDER));
    own.map(FileOrFolder::Folder).collect()
}

/// What was found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The nodes, by name.
    pub nodes: Vec<Arc<NodeStatus>>,
    /// Files that cannot be read.
    pub problems: Vec<String>,
}

/// Says whether a file changed.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Stamp {
        Stamp {
            inode: meta.ino(),
            bytes: meta.len(),
            changed: (meta.mtime(), meta.mtime_nsec()),
        }
    }
}

/// Reads the files of places.
#[derive(Debug)]
pub struct NodeFiles {
    places: Vec<FileOrFolder>,
    own: Vec<FileOrFolder>,
    known: HashMap<PathBuf, ParsedFile>,
}

impl NodeFiles {
    /// Without a file read.
    pub fn new(places: Vec<FileOrFolder>) -> NodeFiles {
        NodeFiles {
            places,
            own: Vec::new(),
            known: HashMap::new(),
        }
    }

    /// With files for the user alone. They are written less often than those for all, and count unless they are stale.
    pub fn with_own(self, own: Vec<FileOrFolder>) -> NodeFiles {
        NodeFiles { own, ..self }
    }

    /// The nodes as their files are now.
    pub fn read(&mut self) -> Found {
        let mut before = std::mem::take(&mut self.known);
        let mut problems = Vec::new();
        let all = paths(&self.places, &mut problems);
        let own = paths(&self.own, &mut problems);
        let mut nodes = self.newest(all, &mut before, &mut problems);
        for (name, own) in self.newest(own, &mut before, &mut problems) {
            let newer = nodes.get(&name);
            if !newer.is_some_and(|newer| own.is_stale(newer.written)) {
                nodes.insert(name, own);
            }
        }
        Found {
            nodes: nodes.into_values().collect(),
            problems,
        }
    }

    /// The nodes of these files. Of several files of a node the one that was written last.
    fn newest(
        &mut self,
        paths: Vec<PathBuf>,
        before: &mut HashMap<PathBuf, ParsedFile>,
        problems: &mut Vec<String>,
    ) -> BTreeMap<String, Arc<NodeStatus>> {
        let mut nodes: BTreeMap<String, Arc<NodeStatus>> = BTreeMap::new();
        for path in paths {
            let (stamp, found) = match read_if_changed(&path, before.remove(&path)) {
                Ok(Some(found)) => found,
                // A node without the file, or removed since the folder was listed.
                Ok(None) => continue,
                Err(error) => {
                    problems.push(failed(&path, &error));
                    continue;
                }
            };
            match &found {
                Ok(node) => {
                    let newer = |known: &Arc<NodeStatus>| known.written >= node.written;
                    if !nodes.get(&node.node).is_some_and(newer) {
                        nodes.insert(node.node.clone(), Arc::clone(node));
                    }
                }
                Err(problem) => problems.push(problem.clone()),
            }
            self.known.insert(path, (stamp, found));
        }
        nodes
    }
}

fn paths(places: &[FileOrFolder], problems: &mut Vec<String>) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for place in places {
        match place {
            FileOrFolder::File(path) => paths.push(path.clone()),
            FileOrFolder::Folder(folder) => match list(folder) {
                Ok(found) => paths.extend(found),
                // No node has written yet.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => problems.push(failed(folder, &error)),
            },
        }
    }
    paths
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!("reading `{}` failed: {error}", path.display())
}

fn list(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        if text.ends_with(SUFFIX) && !text.starts_with('.') {
            paths.push(folder.join(name));
        }
    }
    Ok(paths)
}

type ParsedFile = (Stamp, Result<Arc<NodeStatus>, String>);

/// A file; None where there is none.
fn read_if_changed(path: &Path, known: Option<ParsedFile>) -> io::Result<Option<ParsedFile>> {
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let stamp = Stamp::of(&meta);
    if let Some(known) = known.filter(|known| known.0 == stamp) {
        return Ok(Some(known));
    }
    if !meta.is_file() || meta.len() > MOST_BYTES {
        let why = "it is no file of a node";
        return Ok(Some((stamp, Err(unusable(path, why)))));
    }
    let mut text = String::new();
    File::open(path)?
        .take(MOST_BYTES)
        .read_to_string(&mut text)?;
    let node = NodeStatus::parse(&text).map(Arc::new);
    let node = node.map_err(|why| unusable(path, &why.to_string()));
    Ok(Some((stamp, node)))
}

fn unusable(path: &Path, why: &str) -> String {
    format!("reading `{}` failed: {why}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(name: &str, written: u64) -> String {
        format!(
            r#"{{"version":1,"node":"{name}","written":{written},"interval":60,"build":"x","gpus":[],"later":1}}"#
        )
    }

    fn names(found: &Found) -> Vec<(&str, u64)> {
        let nodes = found.nodes.iter();
        nodes
            .map(|node| (node.node.as_str(), node.written))
            .collect()
    }

    #[test]
    fn changed_files_are_read_again_and_the_newest_of_a_node_counts() {
        let folder = tempfile::tempdir().unwrap();
        let shared = folder.path().join("status");
        let own = folder.path().join("own.json");
        let places = [
            FileOrFolder::Folder(shared.clone()),
            FileOrFolder::File(own.clone()),
        ];
        let mut files = NodeFiles::new(places.to_vec());
        assert!(files.read().nodes.is_empty() && files.read().problems.is_empty());
        fs::create_dir(&shared).unwrap();
        let write = |name: &str, text: &str| fs::write(shared.join(name), text).unwrap();
        write("n1.json", &text("n1", 100));
        write("n2.json", &text("n2", 100));
        write(".n3.json", "{");
        write("n3.json.tmp", "{");
        assert_eq!(names(&files.read()), [("n1", 100), ("n2", 100)]);
        fs::write(&own, text("n1", 160)).unwrap();
        write("n2.json", &text("n2", 1600));
        assert_eq!(names(&files.read()), [("n1", 160), ("n2", 1600)]);
        fs::remove_file(shared.join("n2.json")).unwrap();
        assert_eq!(names(&files.read()), [("n1", 160)]);
    }

    #[test]
    fn the_file_of_the_user_counts_until_it_is_stale() {
        let folder = tempfile::tempdir().unwrap();
        let (own, all) = (folder.path().join("own.json"), folder.path().join("all"));
        fs::create_dir(&all).unwrap();
        fs::write(&own, text("n1", 1000)).unwrap();
        let mut files = NodeFiles::new(vec![FileOrFolder::Folder(all.clone())])
            .with_own(vec![FileOrFolder::File(own.clone())]);
        assert_eq!(names(&files.read()), [("n1", 1000)]);
        for (written, expected) in [(990, 1000), (1060, 1000), (1180, 1000), (1181, 1181)] {
            fs::write(all.join("n1.json"), text("n1", written)).unwrap();
            assert_eq!(names(&files.read()), [("n1", expected)]);
        }
        fs::remove_file(own).unwrap();
        fs::write(all.join("n1.json"), text("n1", 1060)).unwrap();
        assert_eq!(names(&files.read()), [("n1", 1060)]);
    }

    #[test]
    fn files_that_cannot_be_read_are_named_and_the_others_shown() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("a.json", "{\"version\":1");
        write("b.json", "{\"version\":2,\"nodes\":[]}");
        write("c.json", &text("c", 1));
        fs::create_dir(folder.path().join("d.json")).unwrap();
        let found = NodeFiles::new(vec![FileOrFolder::of(folder.path().to_owned())]).read();
        assert_eq!(names(&found), [("c", 1)]);
        let problems = found.problems.join("\n");
        for wanted in [
            "a.json` failed: it does not describe a node",
            "of version 2",
            "d.json` failed: it is no file",
        ] {
            assert!(problems.contains(wanted), "{problems}");
        }
        assert_eq!(found.problems.len(), 3, "{problems}");
    }

    #[test]
    fn files_that_users_may_not_read_are_not_public() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (file, shared) = (
            folder.path().join("status.json"),
            folder.path().join(FOLDER),
        );
        let places = [
            FileOrFolder::File(file.clone()),
            FileOrFolder::Folder(shared.clone()),
        ];
        // A node that has not written yet.
        assert!(places.iter().all(FileOrFolder::is_public));
        fs::write(&file, text("n1", 1)).unwrap();
        fs::create_dir(&shared).unwrap();
        for (mode, folder_mode, public) in [(0o644, 0o755, true), (0o600, 0o711, false)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            fs::set_permissions(&shared, fs::Permissions::from_mode(folder_mode)).unwrap();
            assert!(places.iter().all(|place| place.is_public() == public));
        }
    }
}
