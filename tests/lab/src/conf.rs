//! The text of the lab's configuration files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::{Folder, accounting};

/// A node's part of the GRES configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeGres {
    /// For the node's line in slurm.conf.
    pub slurm_conf: String,
    /// Lines of gres.conf.
    pub gres_conf: String,
    /// The names of GRES.
    pub types: String,
}

impl NodeGres {
    /// A GPU that Slurm itself allocates. After all others, so that their numbers stay the same.
    pub fn add_gpu(&mut self, node: &str, type_name: &str, file: &Path) {
        let file = file.display();
        // The one share is for Slurm since 23.11, which requires shares of each Type or no Types.
        let _ = write!(
            self.gres_conf,
            "NodeName={node} Name=gpu Type={type_name} File={file}\n\
             NodeName={node} Name=shard Type={type_name} Count=1 File={file}\n"
        );
        let _ = write!(self.slurm_conf, ",gpu:{type_name}:1,shard:{type_name}:1");
    }
}

/// The devices of a node in a lab without gpufrac: `gpus` GPUs, each as two halves, in the lines that gpufrac prints.
/// Jobs request shards.
pub(crate) fn plain_gres(folder: &Folder, node: &str, gpus: u32) -> NodeGres {
    let place = folder.devices(node);
    let (last, units) = (2 * gpus - 1, 100 * gpus);
    NodeGres {
        types: "gpu,shard,gpufrac".into(),
        slurm_conf: format!("gpu:half:{},shard:half:{units},gpufrac:{units}", 2 * gpus),
        gres_conf: format!(
            "NodeName={node} Name=gpu Type=half File={0}/half[0-{last}]\n\
             NodeName={node} Name=shard Type=half Count={units} File={0}/half[0-{last}]\n\
             NodeName={node} Name=gpufrac Count={units}\n",
            place.display()
        ),
    }
}

/// The lines for one node in the output of `gpufrac conf`.
pub(crate) fn printed_gres(text: &str) -> Option<NodeGres> {
    let (gres_conf, slurm_conf) = text.split_once("# slurm.conf")?;
    let node = slurm_conf
        .lines()
        .find(|line| line.starts_with("NodeName="))?;
    let (_, gres) = node.split_once(" Gres=")?;
    let mut lines = slurm_conf.lines();
    let types = lines.find_map(|line| line.strip_prefix("GresTypes="))?;
    Some(NodeGres {
        types: types.into(),
        slurm_conf: gres.trim().into(),
        gres_conf: gres_conf.into(),
    })
}

/// The values for a node's line in slurm.conf.
pub(crate) struct NodeLine {
    pub name: String,
    pub port: u16,
    pub gres: Option<String>,
    /// The names of GRES that it has.
    pub types: Option<String>,
}

/// The values for slurm.conf.
pub(crate) struct SlurmConf<'a> {
    pub folder: &'a Folder,
    pub cluster: &'a str,
    pub host: &'a str,
    pub controller_port: u16,
    pub nodes: &'a [NodeLine],
    /// An even number, of two threads each.
    pub cores_per_node: u32,
    /// `JobAcctGatherType`.
    pub gather: &'static str,
    /// Names of partitions, and the other keys of their lines.
    pub partitions: &'a [(String, String)],
    pub plugin_path: String,
    pub gpufrac: bool,
    /// slurmdbd's port; None without accounting.
    pub accounting: Option<u16>,
    pub powered_down: bool,
    pub extra: &'a str,
}

impl SlurmConf<'_> {
    pub fn text(&self) -> String {
        let root = self.folder.root().display();
        let Self {
            cluster,
            host,
            controller_port,
            plugin_path,
            gather,
            ..
        } = self;
        let mut text = format!(
            "\
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# Short-lived credentials: a requeued job waits for their end before it may start again.
AuthInfo=socket={root}/munge/socket,cred_expire=15
PluginDir={plugin_path}
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/pid/slurmctld
SlurmdPidFile={root}/pid/slurmd.%n
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
LogTimeFormat=iso8601_ms
MailProg=/bin/true
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity,task/cgroup
JobAcctGatherType={gather}
JobAcctGatherFrequency=30
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=1,sched_interval=5
PrologFlags=Alloc,Contain,DeferBatch
ReturnToService=2
# Less than the five seconds that an extern step waits for the others: slurmd's signal at its end may hang it and drain
# the node before 25.05 (SchedMD's ticket 22864).
KillWait=3
MinJobAge=3600
MaxJobCount=20000
# Jobs of the lab use next to no CPU, so that nodes may claim more of them than the machine has.
SlurmdParameters=config_overrides
"
        );
        if self.gpufrac {
            let _ = write!(
                text,
                "JobSubmitPlugins=gpufrac\nCliFilterPlugins=gpufrac\n\
                 Prolog={root}/bin/prolog\nEpilog={root}/bin/epilog\n"
            );
        }
        let mut types = self.nodes.iter().filter_map(|node| node.types.as_deref());
        if let Some(types) = types.next() {
            let _ = writeln!(text, "GresTypes={types}");
        }
        text.push_str(&match self.accounting {
            Some(port) => accounting::slurm_conf(self.folder, port),
            None => "AccountingStorageType=accounting_storage/none\n".into(),
        });
        if !self.extra.is_empty() {
            let _ = writeln!(text, "{}", self.extra.trim_end());
        }
        self.add_nodes(&mut text);
        self.add_partitions(&mut text);
        text
    }

    fn add_nodes(&self, text: &mut String) {
        let host = self.host;
        for NodeLine {
            name, port, gres, ..
        } in self.nodes
        {
            let cores = self.cores_per_node;
            let _ = write!(
                text,
                "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} \
                 CPUs={} Sockets=2 CoresPerSocket={} ThreadsPerCore=2 RealMemory=1000000",
                2 * cores,
                cores / 2
            );
            if let Some(gres) = gres {
                let _ = write!(text, " Gres={gres}");
            }
            if self.powered_down {
                text.push_str(" State=CLOUD");
            }
            text.push('\n');
        }
    }

    fn add_partitions(&self, text: &mut String) {
        for (index, (name, options)) in self.partitions.iter().enumerate() {
            let default = if index == 0 { " Default=YES" } else { "" };
            let nodes = if options.contains("Nodes=") { "" } else { " Nodes=ALL" };
            let weights = if options.contains("TRESBillingWeights") {
                ""
            } else {
                "TRESBillingWeights=CPU=1,Mem=0.25G "
            };
            let _ = writeln!(
                text,
                "PartitionName={name}{nodes}{default} MaxTime=INFINITE State=UP {weights}{options}"
            );
        }
    }
}

/// gpufrac.toml: the paths of the lab and `more`, then the pools.
pub(crate) fn gpufrac_conf(folder: &Folder, more: &[(&str, PathBuf)], pools: &str) -> String {
    let root = folder.root().display();
    let mut paths = String::new();
    for (name, path) in more {
        let _ = writeln!(paths, "{name} = \"{}\"", path.display());
    }
    format!(
        "\
version = 1

[paths]
run = \"{root}/run/%n\"
state = \"{root}/var/%n\"
devices = \"{root}/dev/%n\"
cdi = \"{root}/cdi/%n\"
driver_root = \"{root}/gpus/%n\"
nvml = \"{root}/gpus/%n/lib/libnvidia-ml.so.1\"
{paths}
{pools}"
    )
}

/// The default pool of a lab: every GPU as two halves.
pub(crate) fn default_pool(model: &str, partition: &str, nodes: &[String]) -> String {
    let nodes = nodes.join(",");
    format!(
        "\
[pool.halves]
mechanism = \"mig\"
layout = \"halves\"
gpu = \"{model}\"
partitions = [\"{partition}\"]
nodes = \"{nodes}\"
"
    )
}

/// A script that Slurm runs as Prolog or Epilog; Slurm gives these no PATH and no configuration.
pub(crate) fn wrapper(folder: &Folder, program: &str) -> String {
    format!(
        "#!/bin/sh\nexport GPUFRAC_CONFIG={} PATH=/usr/sbin:/usr/bin:/sbin:/bin\nexec {} \"$@\"\n",
        folder.gpufrac_conf().display(),
        folder.bin().join(program).display()
    )
}
