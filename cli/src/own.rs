//! The files that a user may read where Slurm's `PrivateData` hides the jobs of others: the user's own.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::UserId;
use gpufrac_core::lease::Lease;
use gpufrac_node::node::Node;
use gpufrac_node::state::leases::{LeaseStore, StoreError};
use gpufrac_node::state::{private, usage};
use gpufrac_records::usage::FOLDER;

/// The user who runs the command.
fn user() -> UserId {
    UserId(nix::unistd::geteuid().as_raw())
}

/// The folder of what is the user's own, in `<run>`, `<state>` or the shared folder.
pub fn folder(above: &Path) -> PathBuf {
    private::own(above, user())
}

/// Whether jobs of others are hidden from the user on a node.
pub fn alone(node: &Node) -> bool {
    user() != UserId::ROOT && private::hides_jobs(&node.run)
}

/// The leases that the user may read, and those that are damaged.
pub fn leases(node: &Node) -> Result<(Vec<Lease>, Vec<StoreError>), StoreError> {
    if !alone(node) {
        return node.leases()?.readable();
    }
    // `PrivateData` in slurm.conf has `jobs`, or node-setup could not read it at boot, as on a node without a
    // slurm.conf, and gpufrac-reaperd, which reads it later, has not run. Cure: Nothing, or start gpufrac-reaperd. Root
    // sees all jobs; see [private-data.md](../private-data.md).
    eprintln!(
        "gpufrac: only root may see the jobs of others here (Slurm's PrivateData hides them, or gpufrac-reaperd has not run since the boot); only your own jobs are shown"
    );
    match LeaseStore::of_user(&node.run, user())? {
        Some(store) => store.readable(),
        None => Ok((Vec::new(), Vec::new())),
    }
}

/// The folder, or that of the user's own copies (`own/UID/NAME` in `above`) if the user may not list it.
pub fn readable(folder: PathBuf, above: &Path, name: &str) -> PathBuf {
    match std::fs::read_dir(&folder) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => self::folder(above).join(name),
        _ => folder,
    }
}

/// The usage records of the node, or of them the user's own.
pub fn usage_file(node: &Node) -> PathBuf {
    let file = node.state.join(usage::FILE);
    match std::fs::File::open(&file) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let own = private::own(&node.state, user());
            own.join(FOLDER).join(usage::FILE)
        }
        _ => file,
    }
}
