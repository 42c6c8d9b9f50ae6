//! The content of gres.conf and `Gres=` for one node.

use std::collections::{BTreeMap, BTreeSet};

use gpufrac_core::config::Pool;
use gpufrac_core::count_name::CountName;
use gpufrac_core::hostlist::{self, Hostlist};

use gpufrac_slurm_conf::{ConfFile, Line, LinePosition, number};

use super::rules;

/// Whether a Type is one of gpufrac's devices.
pub(super) fn is_own_type(type_name: &str) -> bool {
    Pool::TYPE_NAMES.contains(&type_name)
}

/// A device of a line with `Name=gpu`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GresDevice {
    pub type_name: Option<String>,
    pub file: String,
}

impl GresDevice {
    /// Whether several files are this one device, as those of a MIG instance are.
    fn is_instance(&self) -> bool {
        self.file.contains(',')
    }
}

/// Flags with which a job gets no device or variable of it, or all shares of a node come from one device
/// (`_parse_gres_config2_flags` and `gres_flags_parse` of Slurm).
const UNWANTED_FLAGS: [(&str, &str); 4] = [
    ("gpu", "CountOnly"),
    ("gpu", "no_gpu_env"),
    ("shard", "CountOnly"),
    ("shard", "one_sharing"),
];

/// The content of gres.conf for a node.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeLines {
    /// The GPUs in the order by which Slurm numbers them.
    pub gpus: Vec<GresDevice>,
    /// GPU lines with `Cores=`, and the place of the first.
    pub cores: Vec<(LinePosition, String)>,
    /// Shares (units) by file.
    pub shards: BTreeMap<String, u64>,
    /// The number of all shares, with and without files.
    pub shard_count: u64,
    /// The Types of the shares of GPUs without a pool.
    pub plain_shares: BTreeSet<String>,
    /// The place of a shard line without a Type or File.
    pub vague: Option<LinePosition>,
    /// The count of `Name=gpufrac`.
    pub fractions: u64,
    /// A flag that takes devices from jobs: the name of its line, and the flag.
    pub flag: Option<(&'static str, &'static str)>,
    /// The line of AutoDetect that holds.
    detect: Option<Detect>,
    /// The first line with `Name=mps`.
    pub mps: Option<LinePosition>,
    /// The first line of the node.
    pub place: Option<LinePosition>,
}

/// A line with AutoDetect.
#[derive(Debug, Clone)]
pub(super) struct Detect {
    pub place: LinePosition,
    pub how: String,
    /// Whether the line has NodeName.
    pub is_own: bool,
}

impl Detect {
    fn is_on(&self) -> bool {
        !rules::is(&self.how, "off")
    }

    /// Whether this line holds in place of one before it: a node's own takes precedence over that of all nodes. Of two
    /// own ones, which must be equal for slurmd (`_handle_local_autodetect` of Slurm), the one to change is shown.
    fn replaces(&self, before: &Detect) -> bool {
        match (self.is_own, before.is_own) {
            (false, true) => false,
            (true, true) => !before.is_on(),
            (_, false) => true,
        }
    }
}

/// The folder of the capability devices of MIG instances.
const CAPABILITIES: &str = "/dev/nvidia-caps/";

impl NodeLines {
    /// The number of whole GPUs whose device files the lines name. None where they name none, or instances without
    /// their GPU.
    pub fn whole_gpus(&self) -> Option<u32> {
        let mut gpus = BTreeSet::new();
        let is_whole = |gpu: &&GresDevice| !gpu.type_name.as_deref().is_some_and(is_own_type);
        for gpu in self.gpus.iter().filter(is_whole) {
            let files = files_of(&gpu.file);
            let own = files
                .into_iter()
                .find(|file| !file.starts_with(CAPABILITIES))?;
            gpus.insert(own);
        }
        u32::try_from(gpus.len()).ok().filter(|count| *count > 0)
    }

    /// The line that switches AutoDetect on, if it is.
    pub fn detects(&self) -> Option<&Detect> {
        self.detect.as_ref().filter(|detect| detect.is_on())
    }

    /// Whether lines with this Type, empty for none, name MIG instances.
    pub fn has_instances_of(&self, type_name: &str) -> bool {
        let mut gpus = self.gpus.iter();
        gpus.any(|gpu| {
            gpu.type_name.as_deref().unwrap_or_default() == type_name
                && gpu.file.contains(CAPABILITIES)
        })
    }

    pub fn of(file: &ConfFile, node: &str, fractions: &CountName) -> NodeLines {
        let mut found = NodeLines::default();
        for line in &file.lines {
            let nodes = line.get("NodeName");
            if nodes.is_some() && !line.covers(node) {
                continue;
            }
            if let Some(how) = line.get("AutoDetect") {
                let detect = Detect {
                    place: line.place.clone(),
                    how: how.to_owned(),
                    is_own: nodes.is_some(),
                };
                found.detect = Some(match found.detect.take() {
                    Some(before) if !detect.replaces(&before) => before,
                    _ => detect,
                });
            }
            let Some(name) = line.get("Name") else {
                continue;
            };
            found.place.get_or_insert_with(|| line.place.clone());
            let files = line.get("File").map(files_of).unwrap_or_default();
            let count = line.get("Count").and_then(number);
            let flags = line.get("Flags").unwrap_or_default().to_ascii_lowercase();
            let unwanted = UNWANTED_FLAGS.into_iter().find(|(of, flag)| {
                name.eq_ignore_ascii_case(of) && flags.contains(&flag.to_ascii_lowercase())
            });
            found.flag = found.flag.or(unwanted);
            match name.to_ascii_lowercase().as_str() {
                "gpu" => found.add_gpus(line, files),
                "mps" => {
                    found.mps.get_or_insert_with(|| line.place.clone());
                }
                "shard" => found.add_shards(line, files, count.unwrap_or(0)),
                name if name == fractions.as_str() => found.fractions += count.unwrap_or(1),
                _ => {}
            }
        }
        found
    }

    fn add_gpus(&mut self, line: &Line, files: Vec<String>) {
        // CPUs is the old name of Cores.
        if let Some(cores) = line.get("Cores").or_else(|| line.get("CPUs")) {
            self.cores.push((line.place.clone(), cores.to_owned()));
        }
        let type_name = line.get("Type").map(str::to_owned);
        // All these files are one device: an instance with its GPU.
        if let Some(file) = line.get("MultipleFiles") {
            self.gpus.push(GresDevice {
                type_name: type_name.clone(),
                file: file.to_owned(),
            });
        }
        self.gpus.extend(files.into_iter().map(|file| GresDevice {
            type_name: type_name.clone(),
            file,
        }));
    }

    /// The files of the GPUs without a pool by their Types, empty for none.
    pub fn plain_gpus(&self) -> BTreeMap<&str, Vec<&str>> {
        let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for gpu in self.without_pool().filter(|gpu| !gpu.is_instance()) {
            let name = gpu.type_name.as_deref().unwrap_or_default();
            found.entry(name).or_default().push(&gpu.file);
        }
        found
    }

    /// The Types of the site's MIG instances, and the number of each, beside the devices of pools.
    pub fn instances_beside(&self) -> BTreeMap<&str, u64> {
        let mut found = BTreeMap::new();
        for gpu in self.without_pool().filter(|gpu| gpu.is_instance()) {
            *found
                .entry(gpu.type_name.as_deref().unwrap_or_default())
                .or_default() += 1;
        }
        found
    }

    /// GPUs that are no devices of pools, where there are such devices.
    fn without_pool(&self) -> impl Iterator<Item = &GresDevice> {
        let is_own = |gpu: &&GresDevice| gpu.type_name.as_deref().is_some_and(is_own_type);
        let has_pools = self.gpus.iter().any(|gpu| is_own(&gpu));
        self.gpus
            .iter()
            .filter(move |gpu| has_pools && !is_own(gpu))
    }

    fn add_shards(&mut self, line: &Line, files: Vec<String>, count: u64) {
        if let Some(name) = line.get("Type").filter(|name| !is_own_type(name)) {
            self.plain_shares.insert(name.to_owned());
            return;
        }
        self.shard_count += count;
        if files.is_empty() || line.get("Type").is_none() {
            self.vague.get_or_insert_with(|| line.place.clone());
        }
        let each = count / u64::try_from(files.len()).unwrap_or(1).max(1);
        for file in files {
            *self.shards.entry(file).or_default() += each;
        }
    }
}

/// The Type of a GPU without a pool that has none. If some GPUs of a node have a Type and others have none, slurmd does
/// not start (`_foreach_slurm_conf` of `src/interfaces/gres.c`).
pub(super) const PLAIN: &str = "plain";

/// The line of gres.conf, without its `NodeName=`, that gives each of these GPUs without a pool one share. From Slurm
/// 23.11 on a node whose shares have Types needs a share of the Type of each GPU, or slurmctld drains it
/// (`_valid_gres_type` of `src/interfaces/gres.c`: `gres/shard type (h100) reported but not configured`).
pub(super) fn share_line(type_name: &str, files: &[impl AsRef<str>]) -> String {
    let (count, files) = (files.len(), short_files(files));
    format!("Name=shard Type={type_name} Count={count} File={files}")
}

/// `/dev/nvidia[2-7]`.
pub(super) fn short_files(files: &[impl AsRef<str>]) -> String {
    let folder_of = |file: &str| file.rfind('/').map_or(0, |slash| slash + 1);
    let mut runs: Vec<String> = Vec::new();
    let files: Vec<&str> = files.iter().map(AsRef::as_ref).collect();
    for same in files.chunk_by(|a, b| a[..folder_of(a)] == b[..folder_of(b)]) {
        let folder = &same[0][..folder_of(same[0])];
        let names: Vec<&str> = same.iter().map(|file| &file[folder.len()..]).collect();
        let short = hostlist::short(&names);
        runs.extend(short.split(',').map(|run| format!("{folder}{run}")));
    }
    runs.join(",")
}

/// Expands `/dev/x/half[0-3],/dev/y` into single paths.
pub(super) fn files_of(text: &str) -> Vec<String> {
    // A hostlist has no slashes, so each slash is replaced by a word that no path contains.
    const SLASH: &str = "__SLASH__";
    let masked = text.replace('/', SLASH);
    match Hostlist::parse(&masked) {
        Ok(list) => list
            .names()
            .iter()
            .map(|name| name.replace(SLASH, "/"))
            .collect(),
        Err(_) => vec![text.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_a_gpu_names_its_file() {
        for (files, line) in [
            (
                &["/dev/nvidia2", "/dev/nvidia3", "/dev/nvidia7"][..],
                "Name=shard Type=h100 Count=3 File=/dev/nvidia[2-3],/dev/nvidia7",
            ),
            (
                &["/dev/a/g0", "/dev/b/g0"][..],
                "Name=shard Type=h100 Count=2 File=/dev/a/g0,/dev/b/g0",
            ),
        ] {
            assert_eq!(share_line("h100", files), line);
        }
    }

    #[test]
    fn files_are_read_as_slurm_writes_them() {
        assert_eq!(
            files_of("/dev/g-1/half[0-2],/dev/whole3"),
            [
                "/dev/g-1/half0",
                "/dev/g-1/half1",
                "/dev/g-1/half2",
                "/dev/whole3"
            ]
        );
    }
}
