//! The GPU trace of Alibaba of 2023 (openb): pods and nodes. What a pod requested of a GPU counts as its need.

use std::io::{self, Read};

use serde::Deserialize;

use super::value;
use crate::cluster::{self, Cluster, Partition};
use crate::job::{History, Job, Need};

/// Thousandths of a CPU or GPU.
const MILLI: u32 = 1000;

/// A row of the trace, in its own words.
#[derive(Deserialize)]
pub struct Pod {
    name: String,
    pub cpu_milli: u32,
    pub memory_mib: u32,
    pub num_gpu: u32,
    pub gpu_milli: u32,
    #[serde(default)]
    pub gpu_spec: String,
    creation_time: Option<f64>,
    deletion_time: Option<f64>,
    scheduled_time: Option<f64>,
}

/// A row of the list of nodes.
#[derive(Deserialize)]
pub struct OpenbNode {
    sn: String,
    pub cpu_milli: u32,
    pub memory_mib: u32,
    pub gpu: u32,
    #[serde(default)]
    pub model: String,
}

/// Adds the pods that ran as jobs, in the partition `openb`. Errors: when the system refuses.
pub fn read(place: &str, source: impl Read, history: &mut History) -> io::Result<()> {
    let partition = history.partitions.number("openb");
    let user = history.users.number("");
    super::trace(place, source, history, |pod: Pod, history| {
        if pod.num_gpu == 0 {
            history.skipped.without_gpu += 1;
            return Ok(());
        }
        let (Some(created), Some(start), Some(end)) =
            (pod.creation_time, pod.scheduled_time, pod.deletion_time)
        else {
            history.skipped.not_started += 1;
            return Ok(());
        };
        let share = pod.gpu_milli as f32 / MILLI as f32;
        history.jobs.push(Job {
            id: pod.name.into(),
            user,
            partition,
            submit: value::seconds(created),
            waited: value::seconds(start - created),
            ran: value::seconds(end - start),
            nodes: 1,
            gpus: pod.num_gpu,
            cpus: pod.cpu_milli.div_ceil(MILLI),
            need: Need {
                // A pod that asked for a whole GPU needs it, for all that is known.
                share: (pod.num_gpu == 1).then_some(share),
                ..Need::default()
            },
            ..Job::default()
        });
        Ok(())
    })
}

/// The nodes of a cluster, in the order of their names. Errors: when a line is no node, or the system refuses.
pub fn nodes(source: impl Read) -> Result<Vec<OpenbNode>, csv::Error> {
    let mut nodes = csv::Reader::from_reader(source)
        .deserialize()
        .collect::<Result<Vec<OpenbNode>, _>>()?;
    nodes.sort_by(|one, other| one.sn.cmp(&other.sn));
    Ok(nodes)
}

/// The nodes of a cluster with GPUs, in one partition. Errors: when a line is no node, or the system refuses.
pub fn cluster(source: impl Read) -> Result<Cluster, csv::Error> {
    let all = nodes(source)?;
    let with_gpus = all.iter().filter(|node| node.gpu > 0).enumerate();
    let nodes: Vec<cluster::ClusterNode> = with_gpus
        .map(|(number, node)| cluster::ClusterNode {
            name: format!("openb{number:04}"),
            gpus: node.gpu,
            cpus: Some(node.cpu_milli / MILLI),
            ..cluster::ClusterNode::default()
        })
        .collect();
    let partition = Partition {
        name: "openb".to_owned(),
        nodes: (0..nodes.len()).collect(),
        ..Partition::default()
    };
    Ok(Cluster {
        nodes,
        partitions: vec![partition],
    })
}
