//! The files that the nodes' daemons write.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpufrac_core::config::Config;
use gpufrac_core::ids::JobId;
use gpufrac_node::node;
use gpufrac_view::cluster::NodeState;
use gpufrac_view::{NodeStatus, Usage};

use crate::node_files::{FOLDER, FileOrFolder, NodeFiles, own_places, places};
use crate::own;

/// The files that this host can read, and what could not be read.
pub fn all(config: &Config, here: &str) -> (Vec<NodeStatus>, Vec<String>) {
    read(NodeFiles::new(places(config, here)).with_own(own_places(config, here)))
}

/// The file of this node; None where there is none that can be read.
pub fn own(node: &node::Node) -> Option<NodeStatus> {
    one(node, &node.run, node.run.join("reaper/status.json"))
}

/// The file of a node in the folder that the nodes share.
pub fn shared(node: &node::Node) -> Option<NodeStatus> {
    let shared = node.shared.as_ref()?;
    one(node, shared, shared.join(FOLDER).join(file_name(node)))
}

/// The file for all, or that for this user, which has the owners that Slurm does not hide from the user.
fn one(node: &node::Node, above: &Path, for_all: PathBuf) -> Option<NodeStatus> {
    let own = own::folder(above).join(FOLDER).join(file_name(node));
    let files =
        NodeFiles::new(vec![FileOrFolder::File(for_all)]).with_own(vec![FileOrFolder::File(own)]);
    let (mut nodes, _) = read(files);
    nodes.pop()
}

fn file_name(node: &node::Node) -> String {
    format!("{}.json", node.name)
}

fn read(mut files: NodeFiles) -> (Vec<NodeStatus>, Vec<String>) {
    let found = files.read();
    let nodes = found.nodes.into_iter().map(Arc::unwrap_or_clone);
    (nodes.collect(), found.problems)
}

/// Adds the use of slices that a node's file has.
pub fn add_use(state: &mut NodeState, file: &NodeStatus) {
    let slices = file.gpus.iter().flat_map(|gpu| &gpu.slices);
    let uses: HashMap<(JobId, u32), &Usage> = slices
        .filter_map(|slice| {
            let owner = slice.owner.as_ref()?;
            Some(((owner.job, owner.slice), slice.usage.as_ref()?))
        })
        .collect();
    let slices = state.gpus.iter_mut().flat_map(|it| &mut it.gpu.slices);
    for slice in slices {
        let owner = slice.owner.as_ref();
        let usage = owner.and_then(|owner| uses.get(&(owner.job, owner.slice)));
        slice.usage = usage.map(|usage| Usage::clone(usage));
    }
}
