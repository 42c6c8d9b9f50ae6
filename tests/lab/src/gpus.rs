//! The simulated GPUs of a lab's nodes.

use crate::{Lab, LabError};

/// Makes the simulated GPUs of `node`.
pub(crate) fn init(
    lab: &Lab,
    node: &str,
    model: &str,
    count: u32,
    mig: bool,
) -> Result<(), LabError> {
    let root = lab.folder().gpus(node);
    let gpu = format!("{model}:{count}");
    let mut command = lab
        .command("gpusim")
        .args(["init", "--root"])
        .args([&root])
        .args(["--gpu", &gpu]);
    if mig {
        command = command.args(["--mig"]);
    }
    command.stdout().map(drop)
}

/// What a node's boot does before slurmd.
pub(crate) fn node_setup(lab: &Lab, node: &str) -> Result<(), LabError> {
    lab.command("gpufrac")
        .args(["node-setup"])
        .env("SLURMD_NODENAME", node)
        .stdout()
        .map(drop)
}
