//! Access to MIG instances: their capability files.
//!
//! The driver makes them readable for all users, and `nvidia-modprobe`, which any user can start, restores that mode
//! while their entries in /proc say `DeviceFileModify: 1`. So another number is written before the owner changes. A
//! process needs the file of the GPU instance and that of the compute instance.
//!
//! The number is also gpufrac's mark on the instance. The driver makes an entry with each instance, with 0 or 1 as its
//! module's parameter says, and keeps the number that root writes (`nv_cap_procfs_release` in nv-caps.c of
//! open-gpu-kernel-modules; `mknod_helper` of nvidia-modprobe acts on 1 alone). So an instance with a mark is one that
//! gpufrac claimed. One that was made again, even with the same ids and the same MIG UUID, has no mark, or another one.

use gpufrac_core::ids::{DeviceMinor, UserId};
use gpufrac_core::lease::{Instance, Lease};
use gpufrac_host::files::{DeviceNumber, FileError, Made, RootDir};

use crate::gpu::capability_files::{Caps, CapsError, field, mark_in};
use crate::gpu::locked::LockedGpu;
use crate::gpu::mark;
use crate::node::Node;
use crate::state::line::GpuLock;

/// Mode of a capability file: only its owner may open it.
const MODE: u32 = 0o400;

/// The capability minors of one instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InstanceCaps {
    /// The minor number for the GPU instance.
    pub gi: u32,
    /// The minor number for the compute instance.
    pub ci: u32,
}

impl InstanceCaps {
    /// The numbers in a lease.
    pub fn of(instance: &Instance) -> InstanceCaps {
        InstanceCaps {
            gi: instance.gi_cap_minor,
            ci: instance.ci_cap_minor,
        }
    }
}

/// The files of instances on a locked GPU.
pub struct InstanceFiles<'a> {
    caps: Caps,
    gpu_minor: DeviceMinor,
    _lock: &'a GpuLock,
}

impl<'a> InstanceFiles<'a> {
    pub fn of(locked: &'a LockedGpu<'_>) -> InstanceFiles<'a> {
        InstanceFiles {
            caps: locked.node.caps(),
            gpu_minor: locked.gpu.minor,
            _lock: locked.lock(),
        }
    }

    /// The files of instances on the GPU of a lease, without a session with the driver. `lock` is that of this GPU.
    pub fn beside(lease: &Lease, node: &Node, lock: &'a GpuLock) -> InstanceFiles<'a> {
        InstanceFiles {
            caps: node.caps(),
            gpu_minor: lease.slice.gpu_minor,
            _lock: lock,
        }
    }

    /// Reads a capability's minor number and forbids `nvidia-modprobe` to change its file.
    fn claim_one(&self, dir: &str, mark: u32) -> Result<u32, CapsError> {
        let dir = self.caps.dir(dir)?;
        let path = dir.path().join("access");
        let text = dir.read("access")?.ok_or_else(|| CapsError::Unreadable {
            path: path.clone(),
            what: "content".into(),
        })?;
        let minor = field(&text, "DeviceFileMinor").ok_or_else(|| CapsError::Unreadable {
            path,
            what: "DeviceFileMinor".into(),
        })?;
        if mark_in(&text).is_none() {
            dir.write_command("access", &format!("DeviceFileModify: {mark}\n"))?;
        }
        Ok(minor)
    }

    /// Takes control of an instance's files: from now on only root changes them. Their owners stay the same until
    /// [`InstanceFiles::grant`]. An instance that has a mark keeps it.
    pub fn claim(&self, gi_id: u32, ci_id: u32) -> Result<InstanceCaps, CapsError> {
        let gpu_minor = self.gpu_minor;
        let gi_dir = format!("proc/driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{gi_id}");
        let mark = mark::now();
        Ok(InstanceCaps {
            gi: self.claim_one(&gi_dir, mark)?,
            ci: self.claim_one(&format!("{gi_dir}/ci{ci_id}"), mark)?,
        })
    }

    /// Gives the files of an instance to `uid` only.
    pub fn grant(&self, caps: InstanceCaps, uid: UserId) -> Result<(), CapsError> {
        let major = self.caps.major("nvidia-caps")?;
        for minor in [caps.gi, caps.ci] {
            self.own(major, minor, uid)?;
        }
        Ok(())
    }

    /// Gives the files of a shared instance, which belong to root, to exactly these users. A user who has access
    /// before and after is not affected.
    pub fn share(&self, caps: InstanceCaps, users: &[UserId]) -> Result<(), CapsError> {
        for minor in [caps.gi, caps.ci] {
            let (dir, name) = self.node_of(minor)?;
            dir.let_read(&name, users)?;
        }
        Ok(())
    }

    /// Gives the files of an instance back to root. Only to be called while the instance is known to be the job's, or
    /// while no instance has these files.
    pub fn revoke(&self, caps: InstanceCaps) -> Result<(), CapsError> {
        let major = self.caps.major("nvidia-caps")?;
        for minor in [caps.ci, caps.gi] {
            self.own(major, minor, UserId::ROOT)?;
        }
        Ok(())
    }

    fn node_of(&self, minor: u32) -> Result<(RootDir, String), FileError> {
        let (dir, _) = RootDir::create(&self.caps.root.join("dev/nvidia-caps"), 0o755)?;
        Ok((dir, format!("nvidia-cap{minor}")))
    }

    fn own(&self, major: u32, minor: u32, uid: UserId) -> Result<Made, CapsError> {
        let (dir, name) = self.node_of(minor)?;
        Ok(dir.ensure_device(&name, DeviceNumber { major, minor }, uid, MODE)?)
    }
}
