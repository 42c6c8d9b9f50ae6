//! The driver's `/proc` entries and device nodes, under ROOT.
//!
//! As on a real machine, the creation of an instance makes its `/proc` entries but no device node, and its
//! destruction removes the entries and leaves the nodes. [`modprobe`] makes nodes as `nvidia-modprobe` does.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::error::StoreError;
use crate::node::{Gpu, Node, falsify};

/// The major number of the GPUs, of nvidiactl and of nvidia-modeset.
pub const MAJOR: u32 = 195;
/// Minor of nvidiactl.
pub const CONTROL_MINOR: u32 = 255;
/// The major number of the capability nodes; the kernel assigns a free one to the real driver.
pub const CAPS_MAJOR: u32 = 237;
/// The major number of nvidia-uvm, assigned in the same way.
pub const UVM_MAJOR: u32 = 236;
/// The major number of IMEX channels, assigned in the same way.
pub const IMEX_MAJOR: u32 = 238;

const CAPABILITIES: &str = "proc/driver/nvidia/capabilities";

/// A capability of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// Creates and destroys instances.
    Config,
    /// Shows the processes of all instances.
    Monitor,
    /// Uses a GPU instance: GPU minor, GPU instance id.
    GpuInstance(u32, u32),
    /// Uses a compute instance: GPU minor, GPU instance id, compute instance id.
    ComputeInstance(u32, u32, u32),
}

impl Capability {
    /// Minor of its device node.
    pub fn minor(self) -> u32 {
        match self {
            Capability::Config => 1,
            Capability::Monitor => 2,
            Capability::GpuInstance(gpu, gi) => 3 + 135 * gpu + 9 * gi,
            Capability::ComputeInstance(gpu, gi, ci) => 3 + 135 * gpu + 9 * gi + 1 + ci,
        }
    }

    /// Its file under `/proc/driver/nvidia/capabilities`.
    pub fn file(self, root: &Path) -> PathBuf {
        let name = match self {
            Capability::Config => "mig/config".to_owned(),
            Capability::Monitor => "mig/monitor".to_owned(),
            Capability::GpuInstance(gpu, gi) => format!("gpu{gpu}/mig/gi{gi}/access"),
            Capability::ComputeInstance(gpu, gi, ci) => {
                format!("gpu{gpu}/mig/gi{gi}/ci{ci}/access")
            }
        };
        root.join(CAPABILITIES).join(name)
    }

    /// Its device node.
    pub fn node(self, root: &Path) -> PathBuf {
        root.join(format!("dev/nvidia-caps/nvidia-cap{}", self.minor()))
    }

    fn mode(self) -> u32 {
        match self {
            Capability::Config => 0o400,
            _ => 0o444,
        }
    }
}

/// The result of opening a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The driver was reached; for a number without a driver the kernel returns ENXIO.
    Reached,
    /// File permissions or the device cgroup forbid it.
    Denied,
    /// There is no such node.
    Missing,
}

/// Opens a device node, as the driver's user-space part would.
pub fn probe(path: &Path, write: bool) -> Access {
    match fs::OpenOptions::new().read(true).write(write).open(path) {
        Ok(_) => Access::Reached,
        Err(error) => match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Access::Denied,
            Some(libc::ENOENT | libc::ENOTDIR) => Access::Missing,
            _ => Access::Reached,
        },
    }
}

fn folder(path: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(path).map_err(StoreError::io(path))
}

fn file(path: &Path, text: &str, mode: u32) -> Result<(), StoreError> {
    if let Some(parent) = path.parent() {
        folder(parent)?;
    }
    fs::write(path, text).map_err(StoreError::io(path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(StoreError::io(path))
}

fn make_node(path: &Path, major: u32, minor: u32, mode: u32) -> Result<(), StoreError> {
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|error| StoreError::io(path)(error.into()))?;
    // SAFETY: a valid C string, and numbers.
    let made = unsafe {
        libc::mknod(
            name.as_ptr(),
            libc::S_IFCHR | mode,
            libc::makedev(major, minor),
        )
    };
    if made != 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::AlreadyExists {
            return Err(StoreError::io(path)(error));
        }
    }
    // The mode must not depend on the caller's umask.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(StoreError::io(path))
}

/// Creates the trees of a new node, replacing older ones.
pub(crate) fn create(root: &Path, node: &Node) -> Result<(), StoreError> {
    for old in ["proc", "dev"] {
        let path = root.join(old);
        match fs::remove_dir_all(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::io(&path)(error));
            }
            _ => {}
        }
    }
    let dev = root.join("dev");
    folder(&dev.join("nvidia-caps"))?;
    // As with `NVreg_CreateImexChannel0=1`.
    let channels = dev.join("nvidia-caps-imex-channels");
    folder(&channels)?;
    make_node(&channels.join("channel0"), IMEX_MAJOR, 0, 0o666)?;
    for gpu in &node.gpus {
        let path = dev.join(format!("nvidia{}", gpu.minor));
        make_node(&path, MAJOR, gpu.minor, 0o666)?;
    }
    make_node(&dev.join("nvidiactl"), MAJOR, CONTROL_MINOR, 0o666)?;
    make_node(&dev.join("nvidia-uvm"), UVM_MAJOR, 0, 0o666)?;
    make_node(&dev.join("nvidia-uvm-tools"), UVM_MAJOR, 1, 0o666)?;

    let devices = format!(
        "Character devices:\n  1 mem\n  5 /dev/tty\n{MAJOR} nvidia\n{MAJOR} nvidia-modeset\n\
         {MAJOR} nvidiactl\n{UVM_MAJOR} nvidia-uvm\n{CAPS_MAJOR} nvidia-caps\n\
         {IMEX_MAJOR} nvidia-caps-imex-channels\n\nBlock devices:\n259 blkext\n"
    );
    file(&root.join("proc/devices"), &devices, 0o444)?;
    let mut minors = String::from("config 1\nmonitor 2\n");
    for gpu in 0..32 {
        for gi in 0..15 {
            let minor = Capability::GpuInstance(gpu, gi).minor();
            let _ = writeln!(minors, "gpu{gpu}/gi{gi}/access {minor}");
            for ci in 0..8 {
                let minor = Capability::ComputeInstance(gpu, gi, ci).minor();
                let _ = writeln!(minors, "gpu{gpu}/gi{gi}/ci{ci}/access {minor}");
            }
        }
    }
    file(
        &root.join("proc/driver/nvidia-caps/mig-minors"),
        &minors,
        0o444,
    )?;
    for gpu in &node.gpus {
        let pci = format!("proc/driver/nvidia/gpus/0000:{:02x}:00.0", gpu.pci_bus);
        let text = format!(
            "Model: \t\t {}\nGPU UUID: \t {}\nDevice Minor: \t {}\n",
            gpu.model().product,
            gpu.uuid,
            gpu.minor
        );
        file(&root.join(pci).join("information"), &text, 0o444)?;
    }
    for capability in [Capability::Config, Capability::Monitor] {
        declare(root, None, capability)?;
        modprobe(root, capability)?;
    }
    follow(root, node)
}

/// Writes a capability's file, if it does not exist.
fn declare(root: &Path, gpu: Option<&Gpu>, capability: Capability) -> Result<(), StoreError> {
    let path = capability.file(root);
    if path.exists() {
        return Ok(());
    }
    let (mut minor, mut mode) = (capability.minor(), capability.mode());
    if let Some(gpu) = gpu {
        falsify::capability(gpu, &mut minor, &mut mode);
    }
    let text = format!("DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n");
    file(&path, &text, mode)
}

/// Writes the version of the loaded driver.
fn follow_driver(root: &Path, node: &Node) -> Result<(), StoreError> {
    let version = format!(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build\n\
         GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n",
        node.driver
    );
    let path = root.join("proc/driver/nvidia/version");
    if fs::read(&path).is_ok_and(|text| text == version.as_bytes()) {
        return Ok(());
    }
    file(&path, &version, 0o444)
}

/// Updates the driver's version and the capability entries to the state of the node.
pub(crate) fn follow(root: &Path, node: &Node) -> Result<(), StoreError> {
    follow_driver(root, node)?;
    for gpu in &node.gpus {
        follow_gpu(root, gpu)?;
    }
    Ok(())
}

fn follow_gpu(root: &Path, gpu: &Gpu) -> Result<(), StoreError> {
    let mig = root
        .join(CAPABILITIES)
        .join(format!("gpu{}/mig", gpu.minor));
    folder(&mig)?;
    let wanted: BTreeSet<String> = gpu
        .instances
        .iter()
        .map(|instance| format!("gi{}", instance.id))
        .collect();
    remove_others(&mig, "gi", &wanted)?;
    for instance in &gpu.instances {
        let capability = Capability::GpuInstance(gpu.minor, instance.id);
        declare(root, Some(gpu), capability)?;
        let wanted: BTreeSet<String> = instance
            .compute
            .iter()
            .map(|compute| format!("ci{}", compute.id))
            .collect();
        remove_others(&mig.join(format!("gi{}", instance.id)), "ci", &wanted)?;
        for compute in &instance.compute {
            let capability = Capability::ComputeInstance(gpu.minor, instance.id, compute.id);
            declare(root, Some(gpu), capability)?;
        }
    }
    Ok(())
}

fn remove_others(folder: &Path, prefix: &str, wanted: &BTreeSet<String>) -> Result<(), StoreError> {
    for entry in fs::read_dir(folder).map_err(StoreError::io(folder))? {
        let entry = entry.map_err(StoreError::io(folder))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(prefix) && !wanted.contains(name.as_ref()) {
            fs::remove_dir_all(entry.path()).map_err(StoreError::io(&entry.path()))?;
        }
    }
    Ok(())
}

/// Does what `nvidia-modprobe -f` does: creates the capability's device node as its file says, with owner root. With
/// a `DeviceFileModify` other than 1 it changes and creates nothing. Errors: the file system fails.
pub fn modprobe(root: &Path, capability: Capability) -> Result<(), StoreError> {
    let path = capability.file(root);
    let text = fs::read_to_string(&path).map_err(StoreError::io(&path))?;
    let number = |key: &str| -> Option<u32> {
        let line = text.lines().rev().find_map(|line| line.strip_prefix(key))?;
        line.trim().parse().ok()
    };
    // A program that writes `DeviceFileModify: N` appends a line here, or replaces the whole text, because this is an
    // ordinary file. The driver's file would still have the other lines.
    let minor = number("DeviceFileMinor:").unwrap_or_else(|| capability.minor());
    let mode = number("DeviceFileMode:").unwrap_or_else(|| capability.mode());
    let node = root.join(format!("dev/nvidia-caps/nvidia-cap{minor}"));
    let right = fs::symlink_metadata(&node).is_ok_and(|found| {
        found.file_type().is_char_device()
            && found.rdev() == libc::makedev(CAPS_MAJOR, minor)
            && found.mode() & 0o7777 == mode
            && found.uid() == 0
            && found.gid() == 0
    });
    if right || number("DeviceFileModify:").is_some_and(|allowed| allowed != 1) {
        return Ok(());
    }
    match fs::remove_file(&node) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(StoreError::io(&node)(error));
        }
        _ => {}
    }
    make_node(&node, CAPS_MAJOR, minor, mode)
}
