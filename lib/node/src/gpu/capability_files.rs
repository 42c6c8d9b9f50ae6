//! The driver's data about its device files: the possible capability files, and their numbers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gpufrac_core::ids::DeviceMinor;
use gpufrac_core::lease::Instance;
use gpufrac_host::files::{DeviceNumber, FileError, RootDir};

use crate::fault::{Cause, Caused, Facts};

/// The folder with a folder for each GPU, named by PCI address.
const GPUS: &str = "proc/driver/nvidia/gpus";

/// The reasons why capability files could not be used.
#[derive(Debug, thiserror::Error)]
pub enum CapsError {
    #[error(transparent)]
    File(#[from] FileError),
    /// The driver is not loaded, or MIG is not there.
    /// Cure: Load the driver; run `gpufrac node-setup`.
    #[error("`{}` has no {what}; load an NVIDIA driver with MIG", path.display())]
    Unreadable {
        path: PathBuf,
        /// The expected content.
        what: String,
    },
}

impl Caused for CapsError {
    fn facts(&self) -> Facts {
        match self {
            CapsError::File(error) => error.facts(),
            CapsError::Unreadable { .. } => Facts::lasts(Cause::Root),
        }
    }
}

/// A line of `mig-minors`: a capability that can exist on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CapMinor {
    /// The minor number of the GPU's device node.
    pub gpu_minor: DeviceMinor,
    /// The minor number of the capability.
    pub minor: u32,
    /// The instance that it opens, if its name says so.
    pub opens: Option<Opens>,
}

/// The instance that a capability opens. A compute instance is only accessible through its GPU instance, so its owner
/// needs both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opens {
    GpuInstance(u32),
    /// A compute instance of a GPU instance.
    ComputeInstance(u32, u32),
}

impl Opens {
    /// `giI/access`, `giI/ciC/access`
    fn parse(name: &str) -> Option<Opens> {
        let mut parts = name.strip_suffix("/access")?.split('/');
        let gi = parts.next()?.strip_prefix("gi")?.parse().ok()?;
        let opens = match parts.next() {
            Some(ci) => Opens::ComputeInstance(gi, ci.strip_prefix("ci")?.parse().ok()?),
            None => Opens::GpuInstance(gi),
        };
        parts.next().is_none().then_some(opens)
    }
}

/// The lines of a capability's file in /proc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declared {
    /// `DeviceFileMinor`.
    pub minor: u32,
    /// `DeviceFileMode`.
    pub mode: u32,
    /// `DeviceFileModify`: with 1 nvidia-modprobe creates and changes the device node; other numbers are gpufrac's
    /// marks.
    pub modify: u32,
}

/// The instance that has the ids of a lease's instance now, by the driver's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claimed {
    /// None stands.
    Nothing,
    /// The one that gpufrac claimed, with this mark ([`crate::gpu::instance_files`]).
    Ours(u32),
    /// The same, without its compute instance.
    Hollow(u32),
    /// One that gpufrac did not claim.
    Foreign,
}

/// The driver's files below `driver_root`.
#[derive(Debug, Clone)]
pub struct Caps {
    pub(super) root: PathBuf,
}

impl Caps {
    /// With the configuration's `driver_root`.
    pub fn new(driver_root: &Path) -> Caps {
        Caps {
            root: driver_root.to_owned(),
        }
    }

    pub(super) fn dir(&self, below: &str) -> Result<RootDir, FileError> {
        RootDir::open(&self.root.join(below))
    }

    fn text(&self, dir: &str, name: &str) -> Result<(PathBuf, String), CapsError> {
        let dir = self.dir(dir)?;
        let path = dir.path().join(name);
        match dir.read(name)? {
            Some(text) => Ok((path, text)),
            None => Err(CapsError::Unreadable {
                path,
                what: "content".into(),
            }),
        }
    }

    /// The major number of a driver in /proc/devices, e.g. `nvidia-caps`.
    pub fn major(&self, driver: &str) -> Result<u32, CapsError> {
        let (path, text) = self.text("proc", "devices")?;
        major_of(&text, driver).ok_or_else(|| CapsError::Unreadable {
            path,
            what: format!("character device `{driver}`"),
        })
    }

    /// The device number of `/dev/nvidia<minor>`.
    pub fn gpu_device(&self, minor: DeviceMinor) -> Result<DeviceNumber, CapsError> {
        let dir = self.dir("dev")?;
        let name = format!("nvidia{minor}");
        dir.device(&name)?.ok_or_else(|| CapsError::Unreadable {
            path: dir.path().join(&name),
            what: "device node".into(),
        })
    }

    /// Every capability that can exist: first `config` and `monitor` (without a GPU), then those of instances.
    pub fn minors(&self) -> Result<(Vec<u32>, Vec<CapMinor>), CapsError> {
        let (path, text) = self.text("proc/driver/nvidia-caps", "mig-minors")?;
        parse_minors(&text).ok_or_else(|| CapsError::Unreadable {
            path,
            what: "list of `gpuG/giI/access MINOR` lines".into(),
        })
    }

    /// The UUID of the GPU at a PCI address; None if the driver does not tell it.
    pub fn uuid_at(&self, pci: &str) -> Option<String> {
        let dir = format!("{GPUS}/{pci}");
        let (_, text) = self.text(&dir, "information").ok()?;
        uuid_in(&text).map(str::to_owned)
    }

    /// The PCI address of a GPU, `0000:07:00.0`, which is the name of the driver's folder; None if the driver does
    /// not tell it.
    pub fn pci_of(&self, uuid: &str) -> Option<String> {
        let mut names = self.dir(GPUS).and_then(|dir| dir.names()).ok()?.into_iter();
        names.find(|pci| self.uuid_at(pci).is_some_and(|found| found == uuid))
    }

    /// The loaded driver, in its own words; None if it does not tell.
    pub fn driver(&self) -> Option<String> {
        let (_, text) = self.text("proc/driver/nvidia", "version").ok()?;
        let line = text.lines().next()?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// The ids of all GPU instances on a GPU, including those that gpufrac did not make: the driver has a folder for
    /// each. None if the driver does not tell.
    pub fn gpu_instances(&self, minor: DeviceMinor) -> Option<BTreeSet<u32>> {
        let dir = self.dir(&format!("proc/driver/nvidia/capabilities/gpu{minor}/mig"));
        let names = dir.and_then(|dir| dir.names()).ok()?;
        let ids = names
            .iter()
            .map(|name| name.strip_prefix("gi")?.parse().ok());
        ids.collect()
    }

    /// The folder of an instance's capability; without `ci` that of the GPU instance.
    pub fn folder_of(&self, gpu: DeviceMinor, gi: u32, ci: Option<u32>) -> PathBuf {
        let gi = format!("proc/driver/nvidia/capabilities/gpu{gpu}/mig/gi{gi}");
        let of_gi = self.root.join(gi);
        ci.map_or(of_gi.clone(), |ci| of_gi.join(format!("ci{ci}")))
    }

    /// The lines of an instance's capability; None if there is no such file, or a line is missing.
    pub fn declared(&self, gpu: DeviceMinor, gi: u32, ci: Option<u32>) -> Option<Declared> {
        let folder = RootDir::open(&self.folder_of(gpu, gi, ci)).ok()?;
        let text = folder.read("access").ok()??;
        Some(Declared {
            minor: field(&text, "DeviceFileMinor")?,
            mode: field(&text, "DeviceFileMode")?,
            modify: field(&text, "DeviceFileModify")?,
        })
    }

    /// The instance that has these ids now: the lease's, or another one that was made at the same place after the
    /// lease's was gone, for example by a reset of the GPU. Ids and MIG UUID may be the same then, the mark is not.
    /// Errors: the driver's files cannot be read.
    pub fn claimed(&self, gpu: DeviceMinor, instance: &Instance) -> Result<Claimed, CapsError> {
        self.of_gpu(gpu)?.claimed(instance)
    }

    /// The capabilities of a GPU: the driver has this folder for each, with MIG on or off.
    /// Errors: the driver's files cannot be read.
    pub fn of_gpu(&self, gpu: DeviceMinor) -> Result<GpuCaps, CapsError> {
        let mig = self.dir(&format!("proc/driver/nvidia/capabilities/gpu{gpu}/mig"))?;
        Ok(GpuCaps(mig))
    }

    /// Whether the driver creates capability files that all users can read until gpufrac closes them;
    /// `NVreg_ModifyDeviceFiles=0` prevents this. None if the driver does not tell.
    pub fn driver_modifies_files(&self) -> Option<bool> {
        let (_, text) = self.text("proc/driver/nvidia", "params").ok()?;
        text.lines().find_map(|line| {
            let value = line.strip_prefix("ModifyDeviceFiles:")?;
            Some(value.trim() != "0")
        })
    }
}

/// The capabilities of one GPU.
pub struct GpuCaps(RootDir);

impl GpuCaps {
    /// As [`Caps::claimed`], of this GPU. Errors: the driver's files cannot be read.
    pub fn claimed(&self, instance: &Instance) -> Result<Claimed, CapsError> {
        let Instance { gi_id, ci_id, .. } = instance;
        let opened = self.0.below(&format!("gi{gi_id}"));
        let names = opened.and_then(|gi| Ok((gi.names()?, gi)));
        let (names, gi) = match names {
            Err(error) if error.is_not_found() => return Ok(Claimed::Nothing),
            other => other?,
        };
        let ci = format!("ci{ci_id}");
        let mut inside = names.iter().filter(|name| name.starts_with("ci"));
        Ok(match (mark(&gi)?, inside.next(), inside.next()) {
            (Some(mark), None, None) => Claimed::Hollow(mark),
            (Some(own), Some(found), None) if *found == ci => match gi.below(&ci) {
                Err(error) if error.is_not_found() => Claimed::Foreign,
                ci => match mark(&ci?)? {
                    Some(_) => Claimed::Ours(own),
                    None => Claimed::Foreign,
                },
            },
            _ => Claimed::Foreign,
        })
    }

    /// Whether the GPU instance with this id has this mark: then it is the one that was claimed with it. Reads one
    /// file; [`GpuCaps::claimed`] also looks for compute instances. Errors: the driver's files cannot be read.
    pub fn has_mark(&self, instance: &Instance, expected: u32) -> Result<bool, CapsError> {
        match self.0.below(&format!("gi{}", instance.gi_id)) {
            Err(error) if error.is_not_found() => Ok(false),
            instance => Ok(mark(&instance?)? == Some(expected)),
        }
    }
}

/// gpufrac's mark in the folder of an instance; None if the folder goes meanwhile.
fn mark(instance: &RootDir) -> Result<Option<u32>, CapsError> {
    let text = match instance.read("access") {
        Err(error) if error.is_not_found() => None,
        other => other?,
    };
    Ok(text.as_deref().and_then(mark_in))
}

pub(super) fn field(text: &str, name: &str) -> Option<u32> {
    // The last line counts: a simulated driver's files are ordinary ones, to which commands are appended.
    text.lines().rev().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().parse().ok())?
    })
}

/// gpufrac's mark in a file of an instance; the driver itself writes 0 or 1.
pub(super) fn mark_in(access: &str) -> Option<u32> {
    field(access, "DeviceFileModify").filter(|value| *value > 1)
}

/// The UUID in a GPU's `information` (`GPU UUID: GPU-...`). For a GPU that was not opened since boot it is question
/// marks.
fn uuid_in(information: &str) -> Option<&str> {
    let mut lines = information.lines();
    let uuid = lines
        .find_map(|line| line.strip_prefix("GPU UUID:"))?
        .trim();
    (!uuid.is_empty() && !uuid.contains('?')).then_some(uuid)
}

fn major_of(devices: &str, driver: &str) -> Option<u32> {
    devices
        .lines()
        .skip_while(|line| line.trim() != "Character devices:")
        .take_while(|line| line.trim() != "Block devices:")
        .find_map(|line| {
            let (major, name) = line.trim().split_once(' ')?;
            (name.trim() == driver).then(|| major.parse().ok())?
        })
}

fn parse_minors(text: &str) -> Option<(Vec<u32>, Vec<CapMinor>)> {
    let mut general = Vec::new();
    let mut of_gpus = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (name, minor) = line.trim().rsplit_once(' ')?;
        let minor = minor.parse().ok()?;
        match name.strip_prefix("gpu") {
            Some(rest) => {
                let (gpu_minor, rest) = rest.split_once('/')?;
                of_gpus.push(CapMinor {
                    gpu_minor: gpu_minor.parse().ok()?,
                    minor,
                    opens: Opens::parse(rest),
                });
            }
            None => general.push(minor),
        }
    }
    Some((general, of_gpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_drivers_files() {
        let access = "DeviceFileMinor: 30\nDeviceFileMode: 292\nDeviceFileModify: 1\n";
        assert_eq!(field(access, "DeviceFileMinor"), Some(30));
        assert_eq!(field(access, "DeviceFileModify"), Some(1));
        assert_eq!(field(access, "DeviceFile"), None);
        let devices = "Character devices:\n  1 mem\n195 nvidia\n234 nvidia-caps\n\nBlock devices:\n  7 loop\n";
        assert_eq!(major_of(devices, "nvidia-caps"), Some(234));
        assert_eq!(major_of(devices, "nvidia"), Some(195));
        assert_eq!(major_of(devices, "loop"), None);
    }

    #[test]
    fn a_gpu_is_known_where_the_driver_says_its_uuid() {
        let text = |uuid| {
            format!(
                "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 18\nGPU UUID: \t {uuid}\nDevice Minor: \t 0\n"
            )
        };
        let uuid = "GPU-0b8e6f7c-5a0e-6d0f-9b1f-7c6a6f3c2d11";
        assert_eq!(uuid_in(&text(uuid)), Some(uuid));
        for unknown in ["GPU-????????-????-????-????????????", ""] {
            assert_eq!(uuid_in(&text(unknown)), None);
        }
        assert_eq!(uuid_in(""), None);
    }

    #[test]
    fn the_driver_says_who_it_is_and_what_stands() {
        let keep = tempfile::tempdir().unwrap();
        let root = keep.path().canonicalize().unwrap();
        let caps = Caps::new(&root);
        assert_eq!(caps.driver(), None);
        assert_eq!(caps.gpu_instances(DeviceMinor(1)), None);
        let nvidia = root.join("proc/driver/nvidia");
        let mig = nvidia.join("capabilities/gpu1/mig");
        std::fs::create_dir_all(&mig).unwrap();
        std::fs::write(nvidia.join("version"), "NVRM version: 550.54.15\nGCC\n").unwrap();
        assert_eq!(caps.driver().as_deref(), Some("NVRM version: 550.54.15"));
        assert_eq!(caps.gpu_instances(DeviceMinor(1)), Some(BTreeSet::new()));
        for id in [7, 12] {
            std::fs::create_dir(mig.join(format!("gi{id}"))).unwrap();
        }
        let standing = caps.gpu_instances(DeviceMinor(1)).unwrap();
        assert_eq!(standing, BTreeSet::from([7, 12]));
        // A name that cannot be parsed is ignored.
        std::fs::create_dir(mig.join("xi3")).unwrap();
        assert_eq!(caps.gpu_instances(DeviceMinor(1)), None);
    }

    #[test]
    fn minors_are_read_from_the_file_not_computed() {
        let text = "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu12/gi1/access 1632\ngpu12/gi1/ci7/access 1640\ngpu12/new/access 1641\n";
        let (general, gpus) = parse_minors(text).unwrap();
        assert_eq!(general, [1, 2]);
        let on_12 = |minor, opens| CapMinor {
            gpu_minor: DeviceMinor(12),
            minor,
            opens,
        };
        assert_eq!(gpus[1].opens, Some(Opens::ComputeInstance(0, 0)));
        assert_eq!(
            gpus[2..],
            [
                on_12(1632, Some(Opens::GpuInstance(1))),
                on_12(1640, Some(Opens::ComputeInstance(1, 7))),
                on_12(1641, None),
            ]
        );
        assert_eq!(parse_minors("gpuX/gi0/access 3\n"), None);
    }
}
