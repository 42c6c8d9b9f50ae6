//! A simulated node in a temporary folder, with NVML loaded from it.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod mps;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nvidia_ml::store::Store;
use nvml_wrapper::Nvml;
use tempfile::TempDir;

/// The user `nobody`, who exists on every machine and owns no files.
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
            .tempdir_in(gpusim::memory::folder())
            .unwrap();
        // Other users must be able to read it.
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

    /// Runs `gpusim`, which must succeed; returns its output.
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.gpusim(arguments).output().unwrap();
        assert!(
            output.status.success(),
            "gpusim {arguments:?}: {}",
            told(&output)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    /// `gpusim` on this node as [`NOBODY`], not started yet.
    pub fn gpusim_of_nobody(&self, arguments: &[&str]) -> Command {
        // A copy that other users can run, because they may not be able to reach the target folder.
        let copy = self.root().join("gpusim");
        if !copy.exists() {
            let copied = Command::new("cp")
                .arg(env!("CARGO_BIN_EXE_gpusim"))
                .arg(&copy)
                .status();
            assert!(copied.unwrap().success());
        }
        std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = Command::new(&copy);
        command.arg("--root").arg(self.root()).args(arguments);
        command.env_remove("CUDA_VISIBLE_DEVICES");
        command.uid(NOBODY).gid(NOBODY);
        command
    }

    /// Creates an instance on GPU 0; returns its MIG UUID.
    pub fn create(&self, profile: &str) -> String {
        self.create_numbered(profile).1
    }

    /// As [`SimNode::create`], with the GPU instance id.
    pub fn create_numbered(&self, profile: &str) -> (u32, String) {
        let made = self.ok(&["create", "0", profile]);
        let (place, uuid) = made.trim().split_once(' ').unwrap();
        let (_, gi) = place.split_once('/').unwrap();
        (gi.parse().unwrap(), uuid.to_owned())
    }

    /// The exit status of `gpusim run` with a program that does nothing.
    pub fn status(&self, device: Option<&str>, more: &[&str]) -> Option<i32> {
        let mut command = self.gpusim(&["run", "--seconds", "0"]);
        command.args(more);
        if let Some(device) = device {
            command.env("CUDA_VISIBLE_DEVICES", device);
        }
        let output = command.output().unwrap();
        println!("{device:?} {more:?}: {}", told(&output));
        output.status.code()
    }

    /// NVML of this node's library.
    pub fn nvml(&self) -> Nvml {
        Nvml::builder()
            .lib_path(self.library().as_os_str())
            .init()
            .unwrap()
    }
}

/// Both output streams of an ended program.
pub fn told(output: &Output) -> String {
    format!(
        "{}{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A running fake program; killed when dropped.
pub struct Running {
    pub child: Child,
    /// The line with its device; empty if it got none.
    pub line: String,
}

impl Running {
    pub fn start(mut command: Command) -> Running {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        Running { child, line }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end.
    pub fn status(&mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
