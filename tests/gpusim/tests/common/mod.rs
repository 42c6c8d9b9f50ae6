//! A simulated node in a temporary folder, and NVML loaded from it.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nvidia_ml::store::Store;
use nvml_wrapper::Nvml;
use tempfile::TempDir;

/// The user `nobody`, who exists everywhere and owns nothing.
pub const NOBODY: u32 = 65534;

/// A simulated node.
pub struct SimNode {
    folder: TempDir,
}

impl SimNode {
    /// Makes a node with `gpusim init`.
    pub fn new(gpus: &[&str], more: &[&str]) -> SimNode {
        let folder = tempfile::Builder::new()
            .prefix("gpusim-")
            .tempdir()
            .unwrap();
        // Others must be able to look into it.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let node = SimNode { folder };
        let mut arguments = vec!["init"];
        for gpu in gpus {
            arguments.extend(["--gpu", gpu]);
        }
        arguments.extend(more);
        node.ok(&arguments);
        node
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn library(&self) -> PathBuf {
        self.root().join("lib/libnvidia-ml.so.1")
    }

    pub fn store(&self) -> Store {
        Store::open(self.root()).unwrap()
    }

    /// `gpusim` on this node, not started yet.
    pub fn gpusim(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpusim"));
        command.arg("--root").arg(self.root()).args(arguments);
        command.env_remove("CUDA_VISIBLE_DEVICES");
        command
    }

    /// Runs `gpusim`, which must succeed; answers what it printed.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.gpusim(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "gpusim {arguments:?}: {}",
            told(&output)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// NVML from this node's library.
    pub fn nvml(&self) -> Nvml {
        Nvml::builder()
            .lib_path(self.library().as_os_str())
            .init()
            .unwrap()
    }
}

/// Both streams of a program that has ended.
pub fn told(output: &Output) -> String {
    format!(
        "{}{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
