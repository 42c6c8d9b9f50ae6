//! The text of the lab's configuration files.

use std::fmt::Write as _;

use gpufrac_core::config::Config;
use gpufrac_core::layout::LayoutKind;

use crate::Folder;

/// One Slurm device of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    /// Slurm's `Type`.
    pub type_name: String,
    /// The placeholder's file name.
    pub file: String,
    /// Its minor number.
    pub minor: u64,
    /// What it counts for as `gpufrac`.
    pub units: u32,
    /// Whether jobs may share it.
    pub shared: bool,
}

impl Device {
    fn shards(&self) -> u32 {
        if self.shared { self.units } else { 0 }
    }
}

/// The devices of a node with `gpus` GPUs, each as two halves.
pub(crate) fn halves(gpus: u32) -> Vec<Device> {
    (0..2 * gpus)
        .map(|index| Device {
            type_name: "half".into(),
            file: format!("half{index}"),
            minor: index.into(),
            units: 50,
            shared: true,
        })
        .collect()
}

/// The devices that a node with `gpus` GPUs has by gpufrac.toml.
pub(crate) fn devices_of(config: &Config, node: &str, gpus: u32) -> Vec<Device> {
    let devices = config.devices_of_node(node, gpus);
    devices
        .into_iter()
        .map(|device| Device {
            type_name: device.type_name.into(),
            file: device.file_name(),
            minor: device.index.into(),
            units: device.pool.layout.capacity.0,
            shared: device.pool.layout.kind != LayoutKind::Whole,
        })
        .collect()
}

/// What slurm.conf says of a node's GRES.
pub(crate) fn node_gres(devices: &[Device]) -> String {
    let mut text = String::new();
    let mut types: Vec<&str> = Vec::new();
    for device in devices {
        if !types.contains(&device.type_name.as_str()) {
            types.push(&device.type_name);
        }
    }
    for name in types {
        let count = devices
            .iter()
            .filter(|device| device.type_name == name)
            .count();
        let _ = write!(text, "gpu:{name}:{count},");
    }
    let units: u32 = devices.iter().map(|device| device.units).sum();
    let shards: u32 = devices.iter().map(Device::shards).sum();
    if shards > 0 {
        let _ = write!(text, "shard:{shards},");
    }
    let _ = write!(text, "gpufrac:{units}");
    text
}

/// A node's lines of gres.conf. Shards are given file by file: a single count would be spread over devices of
/// every Type.
pub(crate) fn gres_conf(folder: &Folder, node: &str, devices: &[Device]) -> String {
    let mut text = String::new();
    let place = folder.devices(node);
    for device in devices {
        let (name, file) = (&device.type_name, place.join(&device.file));
        let _ = writeln!(
            text,
            "NodeName={node} Name=gpu Type={name} File={}",
            file.display()
        );
    }
    for device in devices.iter().filter(|device| device.shared) {
        let (units, file) = (device.shards(), place.join(&device.file));
        let _ = writeln!(
            text,
            "NodeName={node} Name=shard Count={units} File={}",
            file.display()
        );
    }
    let units: u32 = devices.iter().map(|device| device.units).sum();
    let _ = writeln!(text, "NodeName={node} Name=gpufrac Count={units}");
    text
}

/// cgroup.conf: devices are fenced; cores and memory are not, so that many jobs fit on few cores.
pub(crate) const CGROUP_CONF: &str = "\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainDevices=yes
ConstrainCores=no
ConstrainRAMSpace=no
ConstrainSwapSpace=no
";

/// What a node's line in slurm.conf depends on.
pub(crate) struct NodeLine {
    pub name: String,
    pub port: u16,
    pub gres: Option<String>,
}

/// All that slurm.conf depends on.
pub(crate) struct SlurmConf<'a> {
    pub folder: &'a Folder,
    pub cluster: &'a str,
    pub host: &'a str,
    pub controller_port: u16,
    pub nodes: &'a [NodeLine],
    pub cpus_per_node: u32,
    /// Names, and what else their lines say.
    pub partitions: &'a [(String, String)],
    pub plugin_path: String,
    pub gpufrac: bool,
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
PlugStackConfig={root}/etc/plugstack.conf
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
TaskPlugin=task/cgroup
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=2,sched_interval=5
PrologFlags=Alloc,Contain,DeferBatch
ReturnToService=2
KillWait=5
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
        if self.nodes.iter().any(|node| node.gres.is_some()) {
            text.push_str("GresTypes=gpu,shard,gpufrac\n");
        }
        if !self.extra.is_empty() {
            let _ = writeln!(text, "{}", self.extra.trim_end());
        }
        for NodeLine { name, port, gres } in self.nodes {
            let _ = write!(
                text,
                "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={}",
                self.cpus_per_node
            );
            if let Some(gres) = gres {
                let _ = write!(text, " Gres={gres}");
            }
            text.push('\n');
        }
        for (index, (name, options)) in self.partitions.iter().enumerate() {
            let default = if index == 0 { " Default=YES" } else { "" };
            let nodes = if options.contains("Nodes=") {
                ""
            } else {
                " Nodes=ALL"
            };
            let _ = writeln!(
                text,
                "PartitionName={name}{nodes}{default} MaxTime=INFINITE State=UP {options}"
            );
        }
        text
    }
}

/// gpufrac.toml: the paths of the lab, then the pools.
pub(crate) fn gpufrac_conf(folder: &Folder, pools: &str) -> String {
    let root = folder.root().display();
    format!(
        "\
version = 1

[paths]
run = \"{root}/run/%n\"
state = \"{root}/var/%n\"
devices = \"{root}/dev/%n\"
driver_root = \"{root}/gpus/%n\"
nvml = \"{root}/gpus/%n/lib/libnvidia-ml.so.1\"

{pools}"
    )
}

/// The pool of a lab whose caller names none: every GPU as two halves.
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

/// A script that Slurm runs as Prolog or Epilog: Slurm gives those no PATH and no configuration.
pub(crate) fn wrapper(folder: &Folder, program: &str) -> String {
    format!(
        "#!/bin/sh\nexport GPUFRAC_CONFIG={} PATH=/usr/sbin:/usr/bin:/sbin:/bin\nexec {} \"$@\"\n",
        folder.gpufrac_conf().display(),
        folder.bin().join(program).display()
    )
}
