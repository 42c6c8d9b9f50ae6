//! The faults of nodes, without the name of the node, so that nodes with the same fault get one finding.

use gpufrac_core::count_name::CountName;
use gpufrac_core::finding::{Finding, Severity};
use gpufrac_core::gres::GresLines;

use super::super::gpu_count::Fact;
use super::super::gres_lines::{Gpu, PLAIN, share_line, short_files};

/// A fault with its place.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub severity: Severity,
    pub place: String,
    pub wrong: Wrong,
}

/// The kinds of faults of a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// Slurm does not know the node.
    Unknown,
    /// Nothing says how many GPUs the node has. `instances`: the MIG instances that Slurm counts there.
    Uncounted { instances: String },
    /// Two facts that do not agree about the number of GPUs.
    Counts([Fact; 2]),
    /// `Gres=` in the line of slurm.conf.
    Written {
        why: String,
        config_overrides: bool,
        right: String,
    },
    /// `Gres=` in slurmctld's record. `is_written`: the one in slurm.conf is right.
    Running {
        why: String,
        is_written: bool,
        right: String,
    },
    /// slurmctld drained the node for this reason.
    Drained { reason: String },
    /// A prolog or epilog that failed drained the node for this reason.
    LeftDrained { reason: String },
    /// `AutoDetect=` of gres.conf.
    AutoDetect { how: String },
    /// MIG instances of the site beside the devices of pools.
    Instances { types: String },
    /// GPUs without a pool that have no Type, or whose Type has no share.
    NoShare {
        type_name: String,
        files: Vec<String>,
    },
    /// Devices and shares in gres.conf.
    Lines {
        why: Vec<WrongLine>,
        right: GresLines,
    },
}

/// The faults of a node's lines in gres.conf.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WrongLine {
    Cores(String),
    /// A flag of the lines of this name.
    Flag {
        name: &'static str,
        flag: &'static str,
    },
    Missing(Gpu),
    Other {
        is: Gpu,
        right: Gpu,
    },
    TooMany(Gpu),
    /// Shares without a Type or File.
    Vague,
    /// A line with `Name=mps`.
    Mps,
    Shards {
        is: Shards,
        right: Shards,
    },
    Fractions {
        name: CountName,
        is: u64,
        right: u64,
    },
}

/// The number of shares and of their devices.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shards {
    pub count: u64,
    pub devices: usize,
}

impl Fault {
    /// The finding for these nodes, a hostlist.
    pub fn finding(self, nodes: &str) -> Finding {
        let (what, fix) = self.wrong.texts(nodes);
        Finding {
            severity: self.severity,
            place: Some(self.place),
            what,
            fix,
        }
    }
}

impl Wrong {
    /// The fault and the cure.
    fn texts(&self, nodes: &str) -> (String, String) {
        match self {
            Wrong::Unknown => (
                format!("gpufrac.toml has a pool on {nodes}, which Slurm does not know"),
                "correct the `nodes` of the pool, or add the nodes to slurm.conf".into(),
            ),
            Wrong::Uncounted { instances } => (
                match instances.as_str() {
                    "" => format!("no GPUs are counted on {nodes}"),
                    all => format!(
                        "Slurm counts MIG instances on {nodes} ({all}), which do not tell the number of GPUs"
                    ),
                },
                format!(
                    "add what `gpufrac conf --node '{nodes}' --gpus N` prints to gres.conf and slurm.conf, with the number of GPUs of a node as N"
                ),
            ),
            Wrong::Counts([one, other]) => (
                format!(
                    "{nodes} has {} GPUs by {}, and {} by {}",
                    one.count, one.source, other.count, other.source
                ),
                "correct what is wrong, or say the number to `gpufrac init` or `gpufrac conf`: --gpus N".into(),
            ),
            Wrong::Written {
                why,
                config_overrides,
                right,
            } => (
                match config_overrides {
                    true => format!(
                        "Gres= of {nodes}: {why}; with SlurmdParameters=config_overrides Slurm then picks no devices"
                    ),
                    false => format!("Gres= of {nodes}: {why}"),
                },
                format!("write in the line of {nodes}: Gres={right}"),
            ),
            Wrong::Running {
                why,
                is_written,
                right,
            } => (
                format!("Gres= of {nodes}: {why}"),
                match is_written {
                    true => {
                        "slurm.conf has it right: restart slurmctld, then slurmd on these nodes"
                            .into()
                    }
                    false => format!("write in the line of {nodes} in slurm.conf: Gres={right}"),
                },
            ),
            Wrong::Drained { reason } => (
                format!(
                    "{nodes} is drained, as its slurmd has other devices than slurmctld counts ({reason})"
                ),
                format!(
                    "compare gres.conf there, restart slurmd, and then: scontrol update NodeName={nodes} State=RESUME"
                ),
            ),
            Wrong::LeftDrained { reason } => (
                format!("{nodes} is drained ({reason}): no job starts there until it is resumed"),
                format!(
                    "remove the cause, which `gpufrac check` on the node names if it is still there, and then: scontrol update NodeName={nodes} State=RESUME"
                ),
            ),
            Wrong::AutoDetect { how } => (
                format!(
                    "AutoDetect={how} holds for {nodes}: Slurm then looks for GPUs itself, and the placeholders are none"
                ),
                format!("add the line: NodeName={nodes} AutoDetect=off"),
            ),
            Wrong::Instances { types } => (
                format!(
                    "{nodes} has MIG instances of the site ({types}) beside gpufrac's devices: from 23.11 on Slurm wants shares of each Type, \
                     which an instance cannot have, and drains the node"
                ),
                "add the GPUs of these instances to a pool (`gpus` in gpufrac.toml), or take the node out of the pools".into(),
            ),
            Wrong::NoShare { type_name, files } => no_share(nodes, type_name, files),
            Wrong::Lines { why, right } => (
                why.iter()
                    .map(|why| why.text(nodes))
                    .collect::<Vec<_>>()
                    .join("; "),
                format!("write for {nodes}:\n{}", right.gres_conf(nodes).join("\n")),
            ),
        }
    }
}

fn no_share(nodes: &str, type_name: &str, files: &[String]) -> (String, String) {
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let (what, name) = match type_name {
        "" => (
            format!(
                "{nodes} has GPUs without a pool and without a Type: beside GPUs with Types slurmd does not start"
            ),
            PLAIN,
        ),
        name => (
            format!(
                "{nodes} has GPUs of Type {name} without a pool, and no share of that Type: from 23.11 on Slurm then drains the node"
            ),
            name,
        ),
    };
    let fix = format!(
        "write for them in gres.conf, behind the lines of gpufrac:\nNodeName={nodes} Name=gpu Type={name} File={}\nNodeName={nodes} {}\n\
         and in Gres= of slurm.conf: gpu:{name}:{count},shard:{name}:{count}",
        short_files(&files),
        share_line(name, &files),
        count = files.len(),
    );
    (what, fix)
}

impl WrongLine {
    fn text(&self, nodes: &str) -> String {
        match self {
            WrongLine::Cores(cores) => format!(
                "Cores={cores} on a line of gpus of {nodes}: before Slurm 23.11.5 a job of a whole GPU can then get one with fractions on it"
            ),
            WrongLine::Flag { name, flag } => format!(
                "Flags={flag} on a line with Name={name} of {nodes}: jobs then get no device of Slurm, or wait while devices are idle"
            ),
            WrongLine::Missing(gpu) => format!("{nodes} lacks the device {}", show(gpu)),
            WrongLine::Other { is, right } => format!(
                "{nodes} has {} where {} must stand: devices are known by their number",
                show(is),
                show(right)
            ),
            WrongLine::TooMany(gpu) => format!("{nodes} has {} too many", show(gpu)),
            WrongLine::Vague => format!(
                "shards of {nodes} without Type= or File=: Slurm forgets the Type that a job asked for and refuses its steps, and divides shards among whole GPUs, too"
            ),
            WrongLine::Mps => format!(
                "a line with Name=mps holds for {nodes}, whose GPUs are in pools: a job that asks for mps gets none of them"
            ),
            WrongLine::Shards { is, right } if is == right => {
                format!("the shards of {nodes} are on other devices")
            }
            WrongLine::Shards { is, right } => format!(
                "{nodes} has {} shards on {} devices and must have {} on {}",
                is.count, is.devices, right.count, right.devices
            ),
            WrongLine::Fractions { name, is, right } => {
                format!("{nodes} has Name={name} Count={is} and must have {right}")
            }
        }
    }
}

fn show(gpu: &Gpu) -> String {
    let type_name = gpu.type_name.as_deref().unwrap_or("without one");
    format!("Type {type_name} File={}", gpu.file)
}
