//! The record of `gpufrac node-setup` at boot, in `<run>/fence`: the GPUs, and every device number that a job must not
//! open unless it is its own. Prolog takes the order of the GPUs from the record, so that a GPU that fell off the bus
//! does not shift Slurm's indexes onto other GPUs. The SPANK plugin needs only this file to fence a job. The record
//! also has the driver's data that never change while the driver is loaded, so that a prolog need not ask for them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::geometry::Geometry;
use gpufrac_core::ids::{DeviceMinor, GpuIndex};
use gpufrac_core::lease::Lease;
use serde::{Deserialize, Serialize};

use gpufrac_host::files::{DeviceNumber, DeviceRule, FileError, RootDir};

use crate::fault::{Cause, Caused, Facts, of_system_call};
use crate::gpu::capability_files::{CapMinor, Caps, Opens};

/// The name of the file in the run folder.
pub const FILE: &str = "fence";
const VERSION: u32 = 1;

/// The reasons why the record could not be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    File(#[from] FileError),
    /// node-setup did not run since boot.
    /// Cure: `gpufrac node-setup`, then `systemctl restart slurmd`; enable `gpufrac-node-setup`.
    #[error("`{}` does not exist: run `gpufrac node-setup` before slurmd starts", path.display())]
    Absent {
        /// The expected path.
        path: PathBuf,
    },
    /// The record was written by another build.
    /// Cure: `gpufrac node-setup`.
    #[error("`{}` is not a record of this version ({source}): run `gpufrac node-setup`", path.display())]
    Text {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// node-setup did not run since boot.
    /// Cure: `gpufrac node-setup`, then `systemctl restart slurmd`.
    #[error("`{}` is from before the last boot: run `gpufrac node-setup` before slurmd starts", path.display())]
    Stale { path: PathBuf },
    /// The driver was loaded again, and has other device numbers than those that the fence denies.
    /// Cure: `gpufrac node-setup`, then `scontrol update NodeName=NODE State=RESUME`.
    #[error("`{}` is from before the driver was loaded again: run `gpufrac node-setup`", path.display())]
    OtherNumbers { path: PathBuf },
    /// /proc is not mounted, or not readable.
    /// Cure: Mount /proc.
    #[error("reading `/proc/sys/kernel/random/boot_id` failed: {0}")]
    BootId(std::io::Error),
}

impl Caused for RecordError {
    fn facts(&self) -> Facts {
        match self {
            RecordError::File(error) => error.facts(),
            RecordError::BootId(error) => of_system_call(error),
            RecordError::Absent { .. }
            | RecordError::Text { .. }
            | RecordError::Stale { .. }
            | RecordError::OtherNumbers { .. } => Facts::lasts(Cause::Root),
        }
    }
}

/// A GPU at boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedGpu {
    pub index: GpuIndex,
    /// `GPU-...`
    pub uuid: String,
    /// N of `/dev/nvidiaN`.
    pub minor: DeviceMinor,
    /// The major number of `/dev/nvidiaN`.
    pub major: u32,
    /// The pool of the GPU; None if gpufrac does not manage it.
    pub pool: Option<String>,
    /// Minor numbers of the capabilities that can exist on it, as ranges `first..=last`.
    pub caps: Vec<(u32, u32)>,
    /// Of these, the capabilities of compute instances except the first of each GPU instance, with the minor number
    /// of that GPU instance. Empty in records of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<(u32, Vec<(u32, u32)>)>,
    /// Its PCI address, if the driver names its GPUs by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
}

impl RecordedGpu {
    /// A GPU of no pool that does not answer: nothing but its index is known.
    pub fn broken(index: GpuIndex) -> RecordedGpu {
        RecordedGpu {
            index,
            uuid: String::new(),
            minor: DeviceMinor(u32::MAX),
            major: 0,
            pool: None,
            caps: Vec::new(),
            further: Vec::new(),
            pci: None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    version: u32,
    /// The kernel's id of the boot for which it is valid.
    pub boot_id: String,
    pub node: String,
    /// Every GPU, in NVML's order.
    pub gpus: Vec<RecordedGpu>,
    /// The major number of `/dev/nvidia-caps/*`; 0 if the driver has none and no pool needs them.
    pub caps_major: u32,
    /// Minor numbers of capabilities without a GPU (`config`, `monitor`).
    pub general_caps: Vec<u32>,
    /// The major number of `/dev/nvidia-caps-imex-channels/*`; 0 if the driver has none.
    #[serde(default)]
    pub imex_major: u32,
    /// Data of the driver that stay the same as long as it is loaded. None in records of earlier versions; the driver
    /// is then asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    driver: Option<DriverFacts>,
}

/// A driver's data about the GPUs, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DriverFacts {
    /// The driver, in its own words.
    version: String,
    /// Each geometry once, because the SPANK plugin reads this file for every step.
    geometries: Vec<Geometry>,
    gpus: Vec<RecordedFacts>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedFacts {
    /// The index in `geometries`.
    geometry: Option<usize>,
    memory: Option<MemoryMib>,
}

/// A driver's data about a GPU that stay the same as long as the driver is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts<G> {
    /// The MIG tables; None if they were not read, because MIG is off or no pool uses it.
    pub geometry: Option<G>,
    /// The memory of the GPU; None if it was not read.
    pub memory: Option<MemoryMib>,
}

impl<G> Default for GpuFacts<G> {
    fn default() -> GpuFacts<G> {
        GpuFacts {
            geometry: None,
            memory: None,
        }
    }
}

impl NodeRecord {
    /// Adds a driver's data about the GPUs, in their order.
    pub fn with_facts(mut self, version: &str, facts: Vec<GpuFacts<Geometry>>) -> NodeRecord {
        let mut geometries: Vec<Geometry> = Vec::new();
        let mut position = |geometry: Geometry| {
            let known = geometries.iter().position(|known| *known == geometry);
            known.unwrap_or_else(|| {
                geometries.push(geometry);
                geometries.len() - 1
            })
        };
        let gpus = facts.into_iter().map(|facts| RecordedFacts {
            geometry: facts.geometry.map(&mut position),
            memory: facts.memory,
        });
        let gpus = gpus.collect();
        self.driver = Some(DriverFacts {
            version: version.to_owned(),
            geometries,
            gpus,
        });
        self
    }

    /// The known data about a GPU, if they are from this driver. The caller has compared the GPU's UUID.
    pub fn facts(&self, index: GpuIndex, driver: &str) -> GpuFacts<&Geometry> {
        let known = self.driver.as_ref().filter(|known| known.version == driver);
        let gpu = known.and_then(|known| Some((known, known.gpus.get(index.position())?)));
        match gpu {
            None => GpuFacts::default(),
            Some((known, gpu)) => GpuFacts {
                geometry: gpu.geometry.and_then(|at| known.geometries.get(at)),
                memory: gpu.memory,
            },
        }
    }

    /// Whether the record has data of any driver about the GPUs.
    pub fn has_facts(&self) -> bool {
        self.driver.is_some()
    }

    /// A record of this boot.
    pub fn new(
        node: &str,
        gpus: Vec<RecordedGpu>,
        caps_major: u32,
        general_caps: Vec<u32>,
        imex_major: u32,
    ) -> Result<NodeRecord, RecordError> {
        Ok(NodeRecord {
            version: VERSION,
            boot_id: boot_id()?,
            node: node.to_owned(),
            gpus,
            caps_major,
            general_caps,
            imex_major,
            driver: None,
        })
    }

    /// Reads the record in a run folder, from any boot.
    pub fn read_any(run: &Path) -> Result<NodeRecord, RecordError> {
        let path = run.join(FILE);
        let dir = RootDir::find(run)?;
        let Some(text) = dir.map_or(Ok(None), |dir| dir.read(FILE))? else {
            return Err(RecordError::Absent { path });
        };
        let wrong = |source| RecordError::Text {
            path: path.clone(),
            source,
        };
        let record: NodeRecord = serde_json::from_str(&text).map_err(wrong)?;
        if record.version != VERSION {
            let text = format!("version {}, this is {VERSION}", record.version);
            return Err(wrong(serde::de::Error::custom(text)));
        }
        Ok(record)
    }

    /// Reads the record in a run folder; refuses one from before the last boot.
    pub fn read(run: &Path) -> Result<NodeRecord, RecordError> {
        let record = Self::read_any(run)?;
        if record.boot_id != boot_id()? {
            return Err(RecordError::Stale {
                path: run.join(FILE),
            });
        }
        Ok(record)
    }

    /// Whether the loaded driver still has the numbers of the record: it can get others when it is loaded again.
    /// Errors: it has others. A driver without capabilities, or that cannot be asked, has no others.
    pub fn is_of_driver(&self, run: &Path, caps: &Caps) -> Result<(), RecordError> {
        let major = caps.major("nvidia-caps").unwrap_or(self.caps_major);
        if self.caps_major == 0 || major == self.caps_major {
            return Ok(());
        }
        let path = run.join(FILE);
        Err(RecordError::OtherNumbers { path })
    }

    pub fn write(&self, run: &RootDir) -> Result<(), RecordError> {
        let mut text = serde_json::to_string(self).map_err(|source| RecordError::Text {
            path: run.path().join(FILE),
            source,
        })?;
        text.push('\n');
        Ok(run.write(FILE, &text, 0o644)?)
    }

    /// The devices of a lease: its GPU, and the capabilities of its instance.
    pub fn devices(&self, lease: &Lease) -> Vec<DeviceNumber> {
        let slice = &lease.slice;
        let gpus = self.gpus.iter().filter(|gpu| gpu.minor == slice.gpu_minor);
        let gpus = gpus.map(|gpu| (gpu.major, gpu.minor.0));
        let caps = slice.capabilities().map(|minor| (self.caps_major, minor));
        gpus.chain(caps)
            .map(|(major, minor)| DeviceNumber { major, minor })
            .collect()
    }

    /// The devices that a job must not open: every GPU and capability of the pools except those of its `leases`, and
    /// every IMEX channel, through which GPUs access the memory of GPUs on other nodes.
    pub fn rules(&self, leases: &[Lease]) -> Vec<DeviceRule> {
        let own_gpu = |minor| leases.iter().any(|lease| lease.slice.gpu_minor == minor);
        let own_caps: Vec<u32> = leases
            .iter()
            .flat_map(|lease| lease.slice.capabilities())
            .collect();
        let pool = || self.gpus.iter().filter(|gpu| gpu.pool.is_some());
        let mut rules: Vec<DeviceRule> = pool()
            .filter(|gpu| !own_gpu(gpu.minor))
            .map(|gpu| {
                DeviceRule::Device(DeviceNumber {
                    major: gpu.major,
                    minor: gpu.minor.0,
                })
            })
            .collect();
        let all_are_shared = pool().count() == self.gpus.len();
        // A job without a lease may have a GPU that gpufrac does not manage, with its channel.
        if self.imex_major != 0 && (all_are_shared || !leases.is_empty()) {
            rules.push(DeviceRule::Major(self.imex_major));
        }
        // One rule for the whole major number, unless some capability must stay open: the job's own, or those of GPUs
        // that gpufrac does not manage. After a rule for a major number, single minor numbers cannot be opened again.
        if self.caps_major == 0 {
            return rules;
        }
        if own_caps.is_empty() && all_are_shared {
            rules.push(DeviceRule::Major(self.caps_major));
            return rules;
        }
        let of_gpus = pool().flat_map(|gpu| &gpu.caps);
        let minors = of_gpus
            .flat_map(|&(first, last)| first..=last)
            .chain(self.general_caps.iter().copied())
            .filter(|minor| !own_caps.contains(minor));
        // A compute instance is only accessible through its GPU instance, so that one's capability closes the others
        // behind it. The first compute instance has its own rule nevertheless, because a job's instance is the first
        // one.
        let behind = pool().flat_map(|gpu| &gpu.further);
        let behind = behind.filter(|(gpu_instance, _)| !own_caps.contains(gpu_instance));
        let behind: BTreeSet<u32> = behind
            .flat_map(|(_, further)| further)
            .flat_map(|&(first, last)| first..=last)
            .collect();
        rules.extend(minors.map(|minor| {
            let number = DeviceNumber {
                major: self.caps_major,
                minor,
            };
            if behind.contains(&minor) {
                DeviceRule::Behind(number)
            } else {
                DeviceRule::Device(number)
            }
        }));
        rules
    }
}

/// The capabilities of compute instances except the first of each GPU instance, with the minor number of that GPU
/// instance.
pub fn further(caps: &[&CapMinor]) -> Vec<(u32, Vec<(u32, u32)>)> {
    let of = |cap: &&CapMinor| match cap.opens {
        Some(Opens::GpuInstance(gi)) => Some((gi, cap.minor)),
        _ => None,
    };
    let further = |gi: u32| {
        let minors = caps.iter().filter_map(|cap| match cap.opens {
            Some(Opens::ComputeInstance(of, 1..)) if of == gi => Some(cap.minor),
            _ => None,
        });
        ranges(minors.collect())
    };
    let instances = caps.iter().filter_map(of);
    instances
        .map(|(gi, minor)| (minor, further(gi)))
        .filter(|(_, further)| !further.is_empty())
        .collect()
}

/// The kernel's id of this boot.
pub fn boot_id() -> Result<String, RecordError> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .map_err(RecordError::BootId)
}

pub fn ranges(mut numbers: Vec<u32>) -> Vec<(u32, u32)> {
    numbers.sort_unstable();
    numbers.dedup();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests;
