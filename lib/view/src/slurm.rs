//! Reads the output of sinfo and squeue about fractions. The last field of a line is the one that may have any text.

use gpufrac_core::config::{Config, Device};
use gpufrac_core::count_name::CountName;
use gpufrac_core::fraction::Units;
use gpufrac_core::hostlist::Hostlist;
use gpufrac_core::ids::JobId;
use gpufrac_core::slurm_text::items;

use crate::cluster::{Counted, GpuState, NodeState, OwnJob, Source, Waiting};
use crate::{GpuStatus, Seen, of_pool};

/// Options of sinfo for [`nodes`]. A width of 0 is no limit, and `|` ends each field.
pub const SINFO: [&str; 4] = [
    "-h",
    "-N",
    "-O",
    "NodeList:0|,StateLong:0|,Gres:0|,GresUsed:0|,Reason:0",
];
/// Options of squeue for [`jobs`], whose states follow.
pub const SQUEUE: [&str; 4] = [
    "-h",
    "-O",
    "JobID:0|,JobArrayID:0|,Partition:0|,State:0|,NumNodes:0|,SubmitTime:0|,StartTime:0|,NodeList:0|,tres-per-node:0|,tres-per-task:0|,Reason:0|,UserName:0",
    "-t",
];
/// No node has more devices.
const MOST_DEVICES: usize = 1024;
/// The environment in which squeue and sbatch print times as seconds since 1970.
pub const TIMES: (&str, &str) = ("SLURM_TIME_FORMAT", "%s");

/// A job with a fraction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Slurm's id.
    pub id: JobId,
    /// As squeue prints it: `12_[3-5]`.
    pub name: String,
    /// The partition, or several with commas.
    pub partition: String,
    /// `PENDING`
    pub state: String,
    /// Nodes that it has or asks for.
    pub node_count: u32,
    /// When it was submitted.
    pub submitted: Option<u64>,
    /// When it started, or is expected to start.
    pub starts: Option<u64>,
    /// The nodes on which it runs.
    pub nodes: Vec<String>,
    /// Units on each node, or of each task.
    pub units: u32,
    /// Slurm's reason.
    pub reason: Option<String>,
    pub user: Option<String>,
}

/// The jobs with fractions in squeue's output.
pub fn jobs(text: &str, name: &CountName) -> Vec<Job> {
    text.lines().filter_map(|line| job(line, name)).collect()
}

fn job(line: &str, name: &CountName) -> Option<Job> {
    let mut fields = line.splitn(12, '|').map(str::trim);
    let mut next = || fields.next();
    let id = next()?.parse().ok()?;
    let (array, partition, state) = (next()?, next()?, next()?);
    let node_count = next()?.parse().unwrap_or(1);
    let (submitted, starts) = (time(next()?), time(next()?));
    let nodes = Hostlist::parse(next()?).ok();
    let (per_node, per_task) = (next()?, next()?);
    let units = units(per_node, name).or_else(|| units(per_task, name))?;
    let (reason, user) = (set(next()?), set(next()?));
    Some(Job {
        id,
        name: array.to_owned(),
        partition: partition.to_owned(),
        state: state.to_owned(),
        node_count,
        submitted,
        starts,
        nodes: nodes.map_or_else(Vec::new, |list| list.names().to_vec()),
        units,
        reason,
        user,
    })
}

/// None for Slurm's words for "not set".
fn set(text: &str) -> Option<String> {
    let is_set = !matches!(text, "" | "(null)" | "N/A" | "None" | "Unknown" | "n/a");
    is_set.then(|| text.to_owned())
}

fn time(text: &str) -> Option<u64> {
    text.parse().ok().filter(|time| *time > 0)
}

/// The units in a list of GRES: `gres/gpufrac:25,gres/shard:25`; before 23.11 `gres:gpufrac:25`.
fn units(list: &str, name: &CountName) -> Option<u32> {
    list.split(',').find_map(|item| {
        let item = item.strip_prefix("gres").unwrap_or(item);
        let item = item.trim_start_matches(['/', ':']);
        let rest = item.strip_prefix(name.as_str())?;
        let count = rest.strip_prefix([':', '='])?;
        // `gpufrac:mig:25` where a request was not rewritten yet.
        count.rsplit([':', '=']).next()?.parse().ok()
    })
}

/// A size in units as users write it.
pub fn fraction(config: &Config, partition: &str, units: u32) -> String {
    let of_partitions = partition.split(',');
    let mut entries = of_partitions
        .flat_map(|name| config.pools_of_partition(name))
        .filter_map(|pool| pool.layout.entry(Units(units)));
    match (entries.next(), Units(units).gpus()) {
        (Some(entry), _) => entry.fraction.to_string(),
        (None, Some(gpus)) => gpus.to_string(),
        (None, None) => Units(units).fraction().to_string(),
    }
}

impl Job {
    /// The job as one that waits.
    pub fn waits(self, config: &Config) -> Waiting {
        Waiting {
            fraction: fraction(config, &self.partition, self.units),
            job: self.id,
            name: self.name,
            user: self.user,
            partition: self.partition,
            units: self.units,
            nodes: self.node_count,
            since: self.submitted,
            starts: self.starts,
            reason: self.reason.unwrap_or_default(),
        }
    }

    /// The job as one of the user who asks, without its slices.
    pub fn own(self, config: &Config) -> OwnJob {
        let is_pending = self.state == "PENDING";
        OwnJob {
            fraction: fraction(config, &self.partition, self.units),
            job: self.id,
            name: self.name,
            partition: self.partition,
            state: self.state,
            units: self.units,
            nodes: self.nodes,
            starts: self.starts.filter(|_| is_pending),
            reason: self.reason.filter(|_| is_pending),
            slices: Vec::new(),
        }
    }
}

/// The nodes of pools in sinfo's output, each once, with the units that Slurm counts on their GPUs.
pub fn nodes(text: &str, config: &Config) -> Vec<NodeState> {
    let mut nodes: Vec<NodeState> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for line in text.lines() {
        let mut fields = line.splitn(5, '|').map(str::trim);
        let mut next = || fields.next();
        let (Some(name), Some(state), Some(all), Some(used)) = (next(), next(), next(), next())
        else {
            continue;
        };
        // A node has a line for each of its partitions.
        if !seen.insert(name) || config.pools_of_node(name).is_empty() {
            continue;
        }
        nodes.push(NodeState {
            node: name.to_owned(),
            source: Source::Slurm,
            state: set(state).map(|state| state.to_lowercase()),
            reason: fields.next().and_then(set),
            gpus: gpus(name, all, used, config),
            ..NodeState::default()
        });
    }
    nodes
}

/// The counts of a Type in sinfo's `GresUsed`.
#[derive(Debug, PartialEq, Eq)]
struct Used<'a> {
    type_name: &'a str,
    /// Taken and all shares of each device; None for a device that is given whole.
    devices: Vec<(Option<u32>, u32)>,
}

/// Reads `shard:half:75(25/50,50/50)` in a list.
fn used(list: &str) -> Vec<Used<'_>> {
    let items = list.split("shard:").skip(1);
    let items = items.filter_map(|item| {
        let (head, rest) = item.split_once('(')?;
        let (counts, _) = rest.split_once(')')?;
        let (type_name, _) = head.split_once(':')?;
        let devices = counts.split(',').filter_map(|count| {
            let (taken, all) = count.split_once('/')?;
            // A dash from 26.05 on.
            Some((taken.parse().ok(), all.parse().ok()?))
        });
        Some(Used {
            type_name,
            devices: devices.collect(),
        })
    });
    items.collect()
}

/// The devices in the items with a prefix: those that are given whole for `gpu:half:2(IDX:0,3-4)` and `gpu:`.
fn indexes(list: &str, prefix: &str) -> Vec<u32> {
    let lists = items(list).filter_map(|item| {
        let (_, indexes) = item.strip_prefix(prefix)?.split_once("IDX:")?;
        indexes.split(')').next()
    });
    let ranges = lists.flat_map(|indexes| indexes.split(','));
    let ranges = ranges.filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?)
    });
    // More devices than a node can have are a damaged text.
    ranges.flat_map(|range| range.take(MOST_DEVICES)).collect()
}

/// The count after a name in a list of GRES: 800 of `shard:half:800(S:0-1)` for `shard:half`.
fn count(list: &str, name: &str) -> u32 {
    let counts = items(list).filter_map(|item| {
        let rest = item.strip_prefix(name)?.strip_prefix(':')?;
        let digits = rest.split(|letter: char| !letter.is_ascii_digit());
        digits.into_iter().next()?.parse::<u32>().ok()
    });
    counts.fold(0, u32::saturating_add)
}

/// The Types of GPUs with shares in a list of GRES, in its order.
fn types(list: &str) -> Vec<&str> {
    let names = items(list);
    let names = names.filter_map(|item| item.strip_prefix("shard:")?.split(':').next());
    names.collect()
}

/// The counts of a Slurm before 23.11, whose `GresUsed` names the devices of which jobs have shares, and not how many:
/// `shard:half:2(IDX:0-1),gpufrac:75`. The units of the node are spread over these devices in their order, because
/// Slurm fills one device after the other.
fn used_by_devices<'a>(all: &'a str, list: &str, name: &CountName) -> Vec<Used<'a>> {
    let (given, shared) = (indexes(list, "gpu:"), indexes(list, "shard:"));
    let mut devices = Vec::new();
    for type_name in types(all) {
        let count_of_type = count(all, &format!("gpu:{type_name}"));
        let shares = count(all, &format!("shard:{type_name}")) / count_of_type.max(1);
        let of_type = (0..count_of_type).map(|_| (type_name, shares));
        devices.extend(of_type.take(MOST_DEVICES));
    }
    let units_of = |index: &u32| {
        let device = usize::try_from(*index).ok().and_then(|at| devices.get(at));
        // A device that is only lent whole has one share.
        device.map_or(0, |(_, shares)| if *shares == 1 { 100 } else { *shares })
    };
    let mut left = count(list, name.as_str());
    left = left.saturating_sub(given.iter().map(units_of).sum());
    let mut others = u32::try_from(shared.len()).unwrap_or(u32::MAX);
    let mut types: Vec<Used<'a>> = Vec::new();
    for (index, (type_name, shares)) in (0..).zip(devices.iter().copied()) {
        let taken = match (given.contains(&index), shared.contains(&index)) {
            (true, _) => None,
            (false, false) => Some(0),
            (false, true) => {
                others = others.saturating_sub(1);
                let taken = left.saturating_sub(others).clamp(1, shares.max(1));
                left = left.saturating_sub(taken);
                Some(taken)
            }
        };
        match types.last_mut().filter(|it| it.type_name == type_name) {
            Some(of_type) => of_type.devices.push((taken, shares)),
            None => types.push(Used {
                type_name,
                devices: vec![(taken, shares)],
            }),
        }
    }
    types
}

fn gpus(node: &str, all: &str, list: &str, config: &Config) -> Vec<GpuState> {
    let (mut used, whole) = (used(list), indexes(list, "gpu:"));
    if used.iter().all(|it| it.devices.is_empty()) {
        used = used_by_devices(all, list, &config.count_name);
    }
    let count_of = |type_name: &str| {
        let of_type = used.iter().find(|it| it.type_name == type_name);
        of_type.map_or(0, |it| it.devices.len())
    };
    let pools = config.pools_of_node(node).into_iter();
    let counts = pools.map(|pool| {
        let sides = pool.layout.sides.len().max(1);
        count_of(pool.type_name()) / sides
    });
    let count = u32::try_from(counts.max().unwrap_or(0)).unwrap_or(0);
    let devices = config.devices_of_node(node, count);
    let mut gpus: Vec<GpuState> = Vec::new();
    for device in &devices {
        let counted = counted(device, &devices, &used, &whole);
        match gpus.iter_mut().find(|it| it.gpu.index == device.gpu_index) {
            Some(gpu) => gpu.counted.push(counted),
            None => gpus.push(GpuState {
                gpu: GpuStatus::of(device, "", &[], Seen::default()),
                counted: vec![counted],
            }),
        }
    }
    for gpu in &mut gpus {
        if let Some(pool) = config.pool(&gpu.gpu.pool) {
            gpu.gpu.room = of_pool::room_by_count(pool, &gpu.counted);
        }
    }
    gpus.sort_by_key(|it| it.gpu.index);
    gpus
}

fn counted(device: &Device<'_>, all: &[Device<'_>], used: &[Used<'_>], whole: &[u32]) -> Counted {
    let units = device.pool.layout.capacity.0;
    let of_type = all.iter().filter(|it| it.type_name == device.type_name);
    let position = of_type.take_while(|it| it.index < device.index).count();
    let used = used.iter().find(|it| it.type_name == device.type_name);
    let shares = used.and_then(|used| used.devices.get(position));
    let taken = match shares {
        _ if whole.contains(&device.index.0) => units,
        // A device that is only lent whole has one share.
        Some((Some(taken), all)) => units * taken / (*all).max(1),
        Some((None, _)) => units,
        None => 0,
    };
    Counted {
        taken: taken.min(units),
        units,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = r#"version = 1
[pool.h100]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "gn[01-02]"
gpus = [0, 1]
[pool.whole]
mechanism = "mig"
layout = "whole"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "gn[01-02]"
gpus = [2]
[pool.l40s]
mechanism = "mps"
tenancy = "shared"
gpu = "L40S-48"
partitions = ["inference"]
nodes = "ln01"
"#;

    fn config() -> Config {
        Config::parse(CONFIG, "gpufrac.toml").unwrap()
    }

    #[test]
    fn slurms_count_of_each_device_becomes_that_of_its_gpu() {
        // The second node of 26.05 has a half that is given whole, the first one of 22.05 too.
        let text = "gn01|mixed|gpu:half:4,gpu:whole:1|gpu:half:1(IDX:3),gpu:whole:0(IDX:N/A),shard:half:75(25/50,50/50,0/50,0/50),shard:whole:0(0/1),gpufrac:75|none\n\
                    gn01|mixed|repeated|for the next partition|\n\
                    gn02|drained*|gpu:half:4,gpu:whole:1|gpu:half:1(IDX:0),gpu:whole:1(IDX:4),shard:half:13(-/50,13/50,0/50,0/50),shard:whole:1(1/1),gpufrac:13|bad fan | of the GPU\n\
                    ln01|idle|gpu:mps:2|gpu:mps:0(IDX:N/A),shard:mps:37(37/100,0/100),gpufrac:37|none\n\
                    cpu01|idle|||none\n";
        let nodes = nodes(text, &config());
        let said: Vec<String> = nodes
            .iter()
            .map(|node| {
                let gpus = node.gpus.iter().map(|gpu| {
                    let devices = gpu.counted.iter();
                    let devices = devices.map(|it| format!("{}/{}", it.taken, it.units));
                    let room = gpu.gpu.room.iter();
                    let room = room.map(|it| format!("{}:{}", it.fraction, it.jobs));
                    let (devices, room): (Vec<_>, Vec<_>) = (devices.collect(), room.collect());
                    format!(
                        "{} {} ({})",
                        gpu.gpu.index,
                        devices.join("+"),
                        room.join(" ")
                    )
                });
                let open = if node.takes_jobs() { "open" } else { "closed" };
                format!(
                    "{} {open}: {}",
                    node.node,
                    gpus.collect::<Vec<_>>().join(", ")
                )
            })
            .collect();
        assert_eq!(
            said,
            [
                "gn01 open: 0 25/50+50/50 (0.5:0 0.25:1 0.125:1), 1 0/50+50/50 (0.5:1 0.25:2 0.125:3), 2 0/100 (1:1)",
                "gn02 closed: 0 50/50+13/50 (0.5:0 0.25:1 0.125:2), 1 0/50+0/50 (0.5:2 0.25:4 0.125:6), 2 100/100 (1:0)",
                "ln01 open: 0 37/100 (1:0 0.75:0 0.63:1 0.5:1 0.25:2 0.1:6 0.03:21), 1 0/100 (1:1 0.75:1 0.5:2 0.25:4 0.1:10 0.03:33)",
            ]
        );
        assert_eq!(nodes[1].reason.as_deref(), Some("bad fan | of the GPU"));
    }

    /// The texts of 22.05: tests/lab/tests/neighbours.
    #[test]
    fn before_23_11_units_are_spread_over_the_devices_in_use() {
        let all = "gpu:half:4,gpu:whole:1,shard:half:200(S:0),shard:whole:1,gpufrac:300";
        for (list, expected) in [
            (
                "gpu:half:0(IDX:N/A),shard:half:2(IDX:0-1),gpufrac:75",
                "50+25, 0+0, 0",
            ),
            (
                "gpu:half:0(IDX:N/A),gpu:whole:1(IDX:4),shard:half:2(IDX:0,3),gpufrac:126",
                "25+0, 0+1, 100",
            ),
            (
                "gpu:half:1(IDX:0,2),shard:half:0(IDX:N/A),gpufrac:0",
                "50+0, 50+0, 0",
            ),
            ("", "0+0, 0+0, 0"),
            (
                "shard:half:9(IDX:0-4000000000),gpufrac:99999999999",
                "1+1, 1+1, 100",
            ),
        ] {
            let nodes = nodes(&format!("gn01|mixed|{all}|{list}|none\n"), &config());
            let gpus = nodes[0].gpus.iter().map(|gpu| {
                let taken = gpu.counted.iter().map(|it| it.taken.to_string());
                taken.collect::<Vec<_>>().join("+")
            });
            let gpus: Vec<String> = gpus.collect();
            assert_eq!(gpus.join(", "), expected, "{list}");
        }
    }

    #[test]
    fn jobs_with_fractions_are_read_in_each_form() {
        let text = "12|12_[3-5]|gpu|PENDING|1|1790000000|N/A||gres/gpufrac:13,gres/shard:13|N/A|Resources|ada\n\
                    13|13|gpu,short|PENDING|2|1790000000|1790003600||gres:gpufrac:25,gres:shard:25|N/A|Priority|a|b\n\
                    14|14|gpu|RUNNING|2|1790000000|1790000001|gn[01-02]|N/A|gres/gpufrac:50|None|ada\n\
                    15|15|gpu|PENDING|1|1790000000|N/A||gres/gpufrac:400|N/A|Resources|ada\n\
                    16|16|gpu|PENDING|1|1790000000|N/A||gres/gpu:2|N/A|Resources|ada\n\
                    17|17|gpu|PENDING|1|1790000000|N/A||N/A|N/A|Resources|ada\n\
                    nonsense\n";
        let (config, name) = (config(), CountName::default());
        let jobs = jobs(text, &name);
        let waiting: Vec<Waiting> = jobs.iter().cloned().map(|job| job.waits(&config)).collect();
        let said: Vec<String> = waiting
            .iter()
            .map(|it| format!("{} {} {}", it.name, it.fraction, it.reason))
            .collect();
        assert_eq!(
            said,
            [
                "12_[3-5] 0.125 Resources",
                "13 0.25 Priority",
                "14 0.5 ",
                "15 4 Resources"
            ]
        );
        assert_eq!(waiting[1].user.as_deref(), Some("a|b"));
        assert_eq!(waiting[1].starts, Some(1_790_003_600));
        let own = jobs[2].clone().own(&config);
        assert_eq!((own.nodes.len(), own.starts, own.reason), (2, None, None));
        let renamed: CountName = "frac".parse().unwrap();
        assert_eq!(units("gres/frac:25,gres/shard:25", &renamed), Some(25));
        assert_eq!(units("gres/gpufrac:25", &renamed), None);
    }
}
