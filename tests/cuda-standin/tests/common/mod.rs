//! A simulated node whose clients load the stand-in for CUDA.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use gpufrac_compute::client::{Client, Program, Setting};
use gpusim::admin;
use nvidia_ml::store::Store;
use tempfile::TempDir;

/// A simulated node.
pub struct World {
    folder: TempDir,
    pub store: Store,
}

impl World {
    /// With GPUs as `gpusim init --gpu` takes them.
    pub fn new(gpus: &str) -> World {
        let folder = tempfile::Builder::new()
            .prefix("cuda-")
            .tempdir_in(gpusim::memory::folder())
            .unwrap();
        // The second user must reach it.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let root = folder.path();
        let library = admin::built_library().unwrap();
        let gpus = admin::parse_gpus(gpus).unwrap();
        let store = admin::init(root, &gpus, false, "570.172.08", 0, &library).unwrap();
        cuda_standin::install(root).unwrap();
        // A copy that other users can run.
        copy(
            Path::new(env!("CARGO_BIN_EXE_cuda-client")),
            &root.join("cuda-client"),
        );
        World { folder, store }
    }

    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn lie(&self, lies: &[&str]) {
        let text = serde_json::to_string(lies).unwrap();
        fs::write(self.root().join("cuda.json"), text).unwrap();
    }

    /// The program of clients: it finds this node's libraries.
    pub fn program(&self) -> Program {
        Program {
            path: "/usr/bin/env".into(),
            arguments: vec![
                format!("LD_LIBRARY_PATH={}/lib", self.root().display()),
                format!("{}/cuda-client", self.root().display()),
            ],
        }
    }

    pub fn client(&self, setting: &Setting) -> Client {
        Client::start(&self.program(), setting).unwrap()
    }

    /// The UUID of GPU 0.
    pub fn gpu(&self) -> String {
        self.store.node().unwrap().gpus[0].uuid.clone()
    }
}

/// Another process copies, so that a child process of another test does not keep the file open for writing.
pub fn copy(from: &Path, to: &Path) {
    assert!(
        Command::new("cp")
            .arg(from)
            .arg(to)
            .status()
            .unwrap()
            .success()
    );
}
