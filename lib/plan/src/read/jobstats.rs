//! The summaries that jobstats writes into AdminComment.

use std::collections::HashMap;

use gpufrac_slurm_conf::jobstats::unpack;
use serde::Deserialize;

use crate::job::Need;

#[derive(Deserialize)]
struct Summary {
    #[serde(default)]
    nodes: HashMap<String, NodeStats>,
}

#[derive(Deserialize)]
struct NodeStats {
    /// Bytes, by the number of the GPU.
    #[serde(default)]
    gpu_used_memory: HashMap<String, f64>,
    /// Percent.
    #[serde(default)]
    gpu_utilization: HashMap<String, f64>,
}

/// The summary in a comment; None where the comment is not of jobstats.
pub fn need(comment: &str) -> Need {
    parse(comment).unwrap_or_default()
}

fn parse(comment: &str) -> Option<Need> {
    let summary: Summary = unpack(comment)?;
    let nodes = summary.nodes.values();
    let memory = nodes.clone().flat_map(|node| node.gpu_used_memory.values());
    let memory = memory.copied().reduce(f64::max);
    let activity = nodes.flat_map(|node| node.gpu_utilization.values());
    let activity: Vec<f64> = activity.copied().collect();
    let mean = (!activity.is_empty()).then(|| activity.iter().sum::<f64>() / activity.len() as f64);
    Some(Need {
        memory_mib: memory.map(|bytes| (bytes / (1024.0 * 1024.0)) as f32),
        activity: mean.map(|percent| (percent / 100.0).clamp(0.0, 1.0) as f32),
        share: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpufrac_slurm_conf::jobstats::pack;

    fn packed(json: &str) -> String {
        pack(&serde_json::from_str::<serde_json::Value>(json).unwrap()).unwrap()
    }

    #[test]
    fn memory_is_the_most_of_a_gpu_and_activity_the_mean() {
        let comment = packed(
            r#"{"nodes":{"n1":{"total_memory":1,"gpu_used_memory":{"0":4294967296,"1":2147483648},"gpu_utilization":{"0":40,"1":20}}},"total_time":9,"gpus":2}"#,
        );
        let need = need(&comment);
        assert_eq!(need.memory_mib, Some(4096.0));
        assert_eq!(need.activity, Some(0.3));
    }

    #[test]
    fn other_comments_say_nothing() {
        let no_gpu = packed(r#"{"nodes":{"n1":{"cpus":1}}}"#);
        for comment in [
            "",
            "JS1:Short",
            "JS1:None",
            "JS1:AAAA",
            "gpufrac: held",
            no_gpu.as_str(),
        ] {
            assert_eq!(need(comment), Need::default(), "{comment}");
        }
    }
}
