//! The nodes of this machine that have pools, for the case that the configuration cannot be read: then no task may
//! start there without a fence, and every task may start on nodes without a pool. A folder ([`NODES`]) has a file for
//! each node with pools, by its name in Slurm. The folder is fixed, because the configuration names all others.
//!
//! [`NODES`]: gpufrac_core::config::NODES

use std::path::Path;

use gpufrac_host::files::{FileError, RootDir};

/// Notes that a node has pools. Errors: a file cannot be written.
pub fn remember(folder: &Path, node: &str) -> Result<(), FileError> {
    let (dir, _) = RootDir::create(folder, 0o755)?;
    // Empty, so that no temporary file is needed: several runs of node-setup may do this at the same time.
    dir.append(node).map(drop)
}

/// Notes that a node no longer has pools. Errors: a file cannot be removed.
pub fn forget(folder: &Path, node: &str) -> Result<(), FileError> {
    let Some(dir) = RootDir::find(folder)? else {
        return Ok(());
    };
    dir.remove(node).map(drop)
}

/// Whether a node has pools; without a name, whether any node of this machine has. If the files cannot be read, the
/// answer is yes.
pub fn has_pools(folder: &Path, node: Option<&str>) -> bool {
    let dir = match RootDir::open(folder) {
        Ok(dir) => dir,
        Err(error) => return !error.is_not_found(),
    };
    let found = match node {
        Some(node) => dir.exists(node),
        None => dir.names().map(|names| !names.is_empty()),
    };
    found.unwrap_or(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_noted_by_several_at_once() {
        let keep = tempfile::tempdir().unwrap();
        let folder = keep.path().canonicalize().unwrap().join("nodes");
        for _ in 0..50 {
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| remember(&folder, "n1").unwrap());
                }
            });
            assert!(has_pools(&folder, Some("n1")));
            forget(&folder, "n1").unwrap();
        }
    }

    #[test]
    fn a_node_with_pools_is_known_until_it_has_none() {
        let keep = tempfile::tempdir().unwrap();
        let folder = keep.path().canonicalize().unwrap().join("nodes");
        assert!(!has_pools(&folder, Some("n1")) && !has_pools(&folder, None));
        forget(&folder, "n1").unwrap();
        for _ in 0..2 {
            remember(&folder, "n1").unwrap();
            assert!(has_pools(&folder, Some("n1")) && has_pools(&folder, None));
            assert!(!has_pools(&folder, Some("n2")));
        }
        forget(&folder, "n1").unwrap();
        assert!(!has_pools(&folder, Some("n1")) && !has_pools(&folder, None));
        // If it is not a folder, the node may have pools.
        std::fs::remove_dir(&folder).unwrap();
        std::fs::write(&folder, "").unwrap();
        assert!(has_pools(&folder, Some("n1")));
    }
}
