//! The reason of a drained node. Slurm's own reason is "Prolog error"; the cause would then be only in the node's log.

use gpufrac_host::log::JobLog;
use slurm_sys::client::Drained;

use crate::job::slurmctld::Slurm;
use crate::node::Node;

/// Drains the node with the reason, before prolog or epilog fail: Slurm then drains it, too, and keeps an existing
/// reason. Waits for slurmctld for one answer at most. Returns whether the node is drained.
pub(super) fn drain(node: &Node, slurm: &dyn Slurm, reason: &str, log: &JobLog) -> bool {
    match slurm.drain(&node.name, reason) {
        Ok(Drained::Done) => return true,
        Ok(Drained::Reasoned(reason)) => {
            // The node was drained before; Slurm keeps the first reason. Cure: Nothing.
            log.info(format!(
                "the node was drained before, and Slurm keeps the first reason: {reason}"
            ));
        }
        // slurmctld did not answer; the node is drained by the failed program, with Slurm's own reason. Cure: Read the
        // node's syslog for the reason.
        Err(error) => log.warning(format!("setting the node's drain reason failed: {error}")),
    }
    false
}
