//! The nodes and partitions that slurmctld makes of slurm.conf: with the values of `DEFAULT` lines, node sets and node
//! lists resolved.
//!
//! Source: `_parse_nodename`, `_parse_partitionname` and `_parse_nodeset` of `src/common/read_config.c`,
//! `nodespec_to_hostlist` of `src/slurmctld/read_config.c`. `tests/lab/tests/e2e/sites.rs` compares all of it with
//! slurmctld.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use gpufrac_core::hostlist::Hostlist;

use crate::conf::{ConfFile, Line, LinePosition};
use crate::running::{Record, Running};

/// A line of a node or partition, with the `DEFAULT` lines before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    own: Line,
    /// The latest first: its values replace those of the earlier ones.
    defaults: Arc<[Line]>,
}

impl Entry {
    /// The place of its line.
    pub fn place(&self) -> &LinePosition {
        &self.own.place
    }

    /// The line itself.
    pub fn line(&self) -> &Line {
        &self.own
    }

    /// A value, and the place where it is written.
    pub fn find(&self, key: &str) -> Option<(&LinePosition, &str)> {
        let mut lines = std::iter::once(&self.own).chain(self.defaults.iter());
        lines.find_map(|line| Some((&line.place, line.get(key)?)))
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.find(key).map(|(_, value)| value)
    }

    /// A value whose key has two names: a line's own value comes first under either of them.
    fn either(&self, keys: [&str; 2]) -> Option<&str> {
        let own = keys.iter().find_map(|key| self.own.get(key));
        own.or_else(|| keys.iter().find_map(|key| self.get(key)))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmNode {
    pub name: String,
    /// Its values, which it shares with the other nodes of its line.
    pub entry: Arc<Entry>,
}

impl SlurmNode {
    /// Its `Gres=`.
    pub fn gres(&self) -> Option<&str> {
        self.entry.get("Gres")
    }

    /// The CPUs for jobs, by the keys of scontrol, then by those of slurm.conf; None where neither says it.
    pub fn cpus(&self) -> Option<u32> {
        let number = |key| self.number(key).and_then(|cpus| u32::try_from(cpus).ok());
        let product = || {
            let sockets = number("Sockets").or_else(|| {
                number("SocketsPerBoard")?.checked_mul(number("Boards").unwrap_or(1))
            })?;
            let cores = sockets.checked_mul(number("CoresPerSocket").unwrap_or(1))?;
            cores.checked_mul(number("ThreadsPerCore").unwrap_or(1))
        };
        let known = ["CPUTot", "CPUs", "Procs"].into_iter();
        let all = || known.filter_map(number).next().or_else(product);
        let for_jobs = || all()?.checked_sub(self.reserved_cpus());
        number("CPUEfctv")
            .or_else(for_jobs)
            .filter(|cpus| *cpus > 0)
    }

    /// The CPUs that jobs do not get: `CpuSpecList`, or all threads of `CoreSpecCount` cores (slurm.conf(5)).
    fn reserved_cpus(&self) -> u32 {
        if let Some(list) = self.entry.get("CpuSpecList") {
            let listed = Hostlist::parse(&format!("cpu[{list}]"));
            let count = listed.map_or(0, |listed| listed.names().len());
            return u32::try_from(count).unwrap_or(0);
        }
        let number = |key| {
            self.number(key)
                .and_then(|number| u32::try_from(number).ok())
        };
        let threads = number("ThreadsPerCore").unwrap_or(1);
        number("CoreSpecCount").unwrap_or(0).saturating_mul(threads)
    }

    /// The memory for jobs in MiB; None where nothing says it.
    pub fn memory(&self) -> Option<u64> {
        let reserved = self.number("MemSpecLimit").unwrap_or(0);
        self.number("RealMemory")?
            .checked_sub(reserved)
            .filter(|mib| *mib > 1)
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.entry.get(key)?.parse().ok()
    }

    fn has_feature(&self, feature: &str) -> bool {
        let features = self.entry.either(["Feature", "Features"]);
        features.is_some_and(|all| all.split(',').any(|own| own.trim() == feature))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    pub name: String,
    pub entry: Arc<Entry>,
    /// Its nodes, each once, in the order of the configuration.
    pub nodes: Vec<String>,
    /// Whether nodes may belong to it that only slurmctld knows: those of a block or switch of its topology, or dynamic
    /// nodes, which have no line in slurm.conf.
    pub is_open: bool,
}

/// The nodes and partitions of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site {
    /// The nodes in the order of the configuration.
    pub nodes: Vec<SlurmNode>,
    /// The partitions in the order of the configuration.
    pub partitions: Vec<Partition>,
    places: HashMap<String, usize>,
}

impl Site {
    /// Reads the lines of slurm.conf. Node lists that Slurm refuses have no nodes.
    pub fn of(file: &ConfFile) -> Site {
        let mut site = Site::default();
        for (names, entry) in entries(file, "NodeName") {
            let entry = Arc::new(entry);
            let names = Hostlist::as_slurm(&names).unwrap_or_default();
            for name in names.names() {
                site.add(name, &entry);
            }
        }
        let sets = node_sets(file);
        let has_dynamic_nodes = file.last("MaxNodeCount").is_some();
        for (name, entry) in entries(file, "PartitionName") {
            let text = entry.get("Nodes").unwrap_or_default();
            site.partitions.push(Partition {
                name,
                nodes: site.members(text, &sets),
                is_open: has_dynamic_nodes
                    || functions(text).0.iter().any(|(name, _)| *name != FEATURE),
                entry: Arc::new(entry),
            });
        }
        site
    }

    /// The nodes and partitions of the running slurmctld, which has resolved everything; without places in files. Nodes
    /// of the cloud that are switched off, which slurmctld does not show before 23.02, are taken from `written`.
    pub fn of_running(running: &Running, written: Option<&Site>) -> Site {
        let mut site = Site::default();
        for (name, record) in &running.nodes {
            site.add(name, &Arc::new(answer(record)));
        }
        for node in written.iter().flat_map(|written| &written.nodes) {
            if !site.places.contains_key(&node.name) {
                site.add(&node.name, &node.entry);
            }
        }
        for (name, record) in &running.partitions {
            let nodes = site.members(record.get("Nodes").unwrap_or_default(), &[]);
            site.partitions.push(Partition {
                name: name.clone(),
                entry: Arc::new(answer(record)),
                nodes,
                is_open: false,
            });
        }
        site
    }

    pub fn node(&self, name: &str) -> Option<&SlurmNode> {
        self.nodes.get(*self.places.get(name)?)
    }

    pub fn partition(&self, name: &str) -> Option<&Partition> {
        let mut partitions = self.partitions.iter();
        partitions.find(|partition| partition.name == name)
    }

    /// The nodes that stand in the same line as a node, itself among them.
    pub fn beside<'a>(&'a self, node: &'a SlurmNode) -> impl Iterator<Item = &'a SlurmNode> {
        let nodes = self.nodes.iter();
        nodes.filter(|other| Arc::ptr_eq(&other.entry, &node.entry))
    }

    fn add(&mut self, name: &str, entry: &Arc<Entry>) {
        self.places.insert(name.to_owned(), self.nodes.len());
        self.nodes.push(SlurmNode {
            name: name.to_owned(),
            entry: entry.clone(),
        });
    }

    /// The nodes of a `Nodes=`. Each set replaces its name in the list, one after another, so that a set may name a
    /// later one.
    fn members(&self, text: &str, sets: &[Line]) -> Vec<String> {
        let all = || self.nodes.iter().map(|node| node.name.clone());
        if text.eq_ignore_ascii_case("ALL") {
            return all().collect();
        }
        let with = |feature: &str| {
            let nodes = self.nodes.iter().filter(|node| node.has_feature(feature));
            nodes.map(|node| node.name.clone()).collect::<Vec<_>>()
        };
        let expand = |text: &str| {
            let list = Hostlist::as_slurm(text).unwrap_or_default();
            list.names().to_vec()
        };
        let (functions, list) = functions(text);
        let mut names = expand(&list);
        for set in sets {
            let Some(at) = names
                .iter()
                .position(|name| set.get("NodeSet") == Some(name))
            else {
                continue;
            };
            names.remove(at);
            if let Some(feature) = set.get("Feature") {
                names.extend(with(feature));
            }
            match set.get("Nodes").unwrap_or_default() {
                list if list.eq_ignore_ascii_case("ALL") => names.extend(all()),
                list => names.extend(expand(list)),
            }
        }
        for (_, feature) in functions.iter().filter(|(name, _)| *name == FEATURE) {
            names.extend(with(feature));
        }
        // slurmctld leaves nodes out that it does not know.
        let names: HashSet<String> = names.into_iter().collect();
        all().filter(|name| names.contains(name)).collect()
    }
}

/// The entries that begin with a key, each with the value of that key.
fn entries(file: &ConfFile, key: &'static str) -> Vec<(String, Entry)> {
    let mut defaults: Arc<[Line]> = Arc::new([]);
    let mut entries = Vec::new();
    for line in file.starting(key) {
        let name = line.get(key).unwrap_or_default();
        if name.eq_ignore_ascii_case("DEFAULT") {
            let lines = std::iter::once(line).chain(defaults.iter());
            defaults = lines.cloned().collect();
            continue;
        }
        let entry = Entry {
            own: line.clone(),
            defaults: defaults.clone(),
        };
        entries.push((name.to_owned(), entry));
    }
    entries
}

/// The function that gives the nodes with a feature.
const FEATURE: &str = "feature";

/// The functions in a list of nodes, each with what it is given: `feature{ib}`, `block{b[1-2]}` (24.11,
/// `parse_hostlist_functions` of `src/common/node_conf.c`); and the list without them.
fn functions(mut text: &str) -> (Vec<(&str, &str)>, String) {
    let (mut functions, mut rest) = (Vec::new(), String::new());
    while let Some((before, (given, after))) = text
        .split_once('{')
        .and_then(|(before, behind)| Some((before, behind.split_once('}')?)))
    {
        let name = before
            .trim_end()
            .rsplit([',', ' ', '\t'])
            .next()
            .unwrap_or_default();
        functions.push((name, given));
        rest += before.trim_end().strip_suffix(name).unwrap_or(before);
        text = after;
    }
    (functions, rest + text)
}

fn node_sets(file: &ConfFile) -> Vec<Line> {
    file.starting("NodeSet").cloned().collect()
}

/// What scontrol shows of one node or partition, as an entry.
fn answer(record: &Record) -> Entry {
    let place = LinePosition {
        file: PathBuf::from("scontrol show"),
        line: 0,
    };
    Entry {
        own: Line::new(place, record.pairs()),
        defaults: Arc::new([]),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::conf::read_conf;

    fn site(files: &[(&str, &str)]) -> Site {
        let read = |path: &Path| {
            let mut known = files.iter();
            let text = known.find(|(name, _)| Path::new("/etc/slurm").join(name) == path);
            let text = text.map(|(_, text)| (*text).to_owned());
            text.ok_or(std::io::ErrorKind::NotFound.into())
        };
        Site::of(&read_conf(Path::new("/etc/slurm/slurm.conf"), &read).unwrap())
    }

    fn of_partition<'a>(site: &'a Site, name: &str) -> Vec<&'a str> {
        let nodes = &site.partition(name).unwrap().nodes;
        nodes.iter().map(String::as_str).collect()
    }

    /// Promise (admins): cloud nodes that slurmctld does not show are read from slurm.conf.
    // Slurm 22.05 shows no node of the cloud that is switched off, though partitions name it.
    #[test]
    fn nodes_that_slurmctld_does_not_show_are_those_of_the_file() {
        let text = "NodeName=gn[1-2] Gres=gpu:8 State=CLOUD\nNodeName=cn1\nPartitionName=gpu Nodes=gn[1-2]\n";
        let file = crate::read_conf(Path::new("slurm.conf"), &|_| Ok(text.to_owned())).unwrap();
        let shown = Running::parse(
            "",
            "NodeName=cn1 State=IDLE",
            "PartitionName=gpu Nodes=gn[1-2]\n",
        );
        let site = Site::of_running(&shown, Some(&Site::of(&file)));
        assert_eq!(site.partition("gpu").unwrap().nodes, ["gn1", "gn2"]);
        assert_eq!(site.node("gn2").unwrap().gres(), Some("gpu:8"));
        assert!(site.node("cn1").unwrap().entry.get("State").is_some());
    }

    #[test]
    fn defaults_hold_for_the_lines_behind_them() {
        let site = site(&[
            (
                "slurm.conf",
                "ClusterName=Big\nInclude nodes.%c\nPartitionName=DEFAULT MaxTime=1-0 QOS=part\r\nPartitionName = gpu Nodes=gn[1-2]\npartitionname=long nodes=\\\n  gn1 \\\n  MaxTime=7-0\n",
            ),
            (
                "nodes.big",
                "NodeName=gn0\nNodeName=DEFAULT CPUs=4 Gres=gpu:4\nNodeName=DEFAULT Gres=gpu:h100:2\nNodeName=gn[1-2] CPUs=8\nInclude more\nNodeName=gn3 Gres=gpu:1",
            ),
            ("more", "nodename=gn4 gres=\"gpu:8\" GRES=gpu:9\n"),
        ]);
        let gres = |name| site.node(name).unwrap().gres();
        assert_eq!(gres("gn0"), None);
        assert_eq!(gres("gn1"), Some("gpu:h100:2"));
        assert_eq!(gres("gn3"), Some("gpu:1"));
        assert_eq!(gres("gn4"), Some("gpu:9"));
        assert_eq!(site.node("gn2").unwrap().entry.get("CPUs"), Some("8"));
        assert_eq!(site.node("gn3").unwrap().entry.get("cpus"), Some("4"));
        let time = |name| site.partition(name).unwrap().entry.get("MaxTime");
        assert_eq!((time("gpu"), time("long")), (Some("1-0"), Some("7-0")));
        assert_eq!(of_partition(&site, "gpu"), ["gn1", "gn2"]);
        assert_eq!(of_partition(&site, "long"), ["gn1"]);
        let beside = site.beside(site.node("gn1").unwrap());
        assert_eq!(
            beside.map(|node| &*node.name).collect::<Vec<_>>(),
            ["gn1", "gn2"]
        );
    }

    #[test]
    fn node_sets_are_their_nodes() {
        let site = site(&[(
            "slurm.conf",
            "NodeName=DEFAULT Features=slow\nNodeName=gn[1-3] Feature=gpu,ib\nNodeName=cn[1-2]\nNodeSet=one Nodes=gn1\nNodeSet=fast Feature=gpu Nodes=two\nNodeSet=two Nodes=cn2\nNodeSet=slow Feature=slow\nNodeSet=every Nodes=ALL\nPartitionName=a Nodes=one,gn3,,gn3,nobody\nPartitionName=b Nodes=fast\nPartitionName=c Nodes=two,cn1\nPartitionName=d Nodes=slow\nPartitionName=e Nodes=every\nPartitionName=f Nodes=\"gn[1,3]\"\nPartitionName=g\n",
        )]);
        assert_eq!(of_partition(&site, "a"), ["gn1", "gn3"]);
        assert_eq!(of_partition(&site, "b"), ["gn1", "gn2", "gn3", "cn2"]);
        assert_eq!(of_partition(&site, "c"), ["cn1", "cn2"]);
        assert_eq!(of_partition(&site, "d"), ["cn1", "cn2"]);
        assert_eq!(of_partition(&site, "e").len(), 5);
        assert_eq!(of_partition(&site, "f"), ["gn1", "gn3"]);
        assert!(of_partition(&site, "g").is_empty());
    }

    #[test]
    fn functions_are_their_nodes_or_stay_open() {
        let nodes = "NodeName=gn[1-3] Feature=gpu,ib\nNodeName=cn[1-2]\nNodeSet=one Nodes=gn1\n";
        let partitions = "PartitionName=a Nodes=feature{gpu}\nPartitionName=b Nodes=cn2,feature{ib},block{b[1,3]}\nPartitionName=c Nodes=one\n";
        let written = site(&[("slurm.conf", &format!("{nodes}{partitions}"))]);
        assert_eq!(of_partition(&written, "a"), ["gn1", "gn2", "gn3"]);
        assert_eq!(of_partition(&written, "b"), ["gn1", "gn2", "gn3", "cn2"]);
        let open = |site: &Site, name: &str| site.partition(name).unwrap().is_open;
        assert_eq!(
            ["a", "b", "c"].map(|name| open(&written, name)),
            [false, true, false]
        );
        let dynamic = site(&[(
            "slurm.conf",
            &format!("MaxNodeCount=64\n{nodes}{partitions}"),
        )]);
        assert!(open(&dynamic, "a"));
    }
}
