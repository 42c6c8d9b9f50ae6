//! Whether what keeps a whole node from serving jobs is gone.

use gpufrac_host::files::RootDir;

use crate::node::Node;

/// The file that is written for the answer.
const PROBE: &str = "probe";

/// Whether the files of the node can be read and written, and the driver starts. A prolog failed at one of these.
pub fn can_serve(node: &Node) -> bool {
    let writes = |folder| {
        let dir = RootDir::open(folder)?;
        dir.write(PROBE, "", 0o600)?;
        dir.remove(PROBE).map(drop)
    };
    node.has_pools()
        && node.record().is_ok()
        && node.leases().is_ok_and(|store| store.list().is_ok())
        && node.locks().is_ok()
        && writes(&node.run).is_ok()
        && node.nvml().is_ok()
}
