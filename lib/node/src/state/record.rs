//! What `gpufrac node-setup` found on the node at boot, in `<run>/fence`: which GPU is which,
//! and every device number that a job must not open unless it is its own. Prolog takes the
//! order of the GPUs from here, so that a GPU that fell off the bus does not shift Slurm's
//! indexes onto other GPUs; the SPANK plugin needs this one file to fence a job. What the driver says that never changes
//! while it is loaded is here as well, so that a prolog need not ask for it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gpufrac_core::fraction::MemoryMib;
use gpufrac_core::geometry::Geometry;
use gpufrac_core::ids::{DeviceMinor, GpuIndex};
use gpufrac_core::lease::Lease;
use serde::{Deserialize, Serialize};

use gpufrac_host::files::{DeviceNumber, DeviceRule, FileError, RootDir};
use gpufrac_host::shortage::is_shortage;
use gpufrac_nvml::ErrorClass;

use crate::gpu::capability_files::{CapMinor, Opens};
use crate::node::class_of_file;

/// The file in the run folder.
pub const FILE: &str = "fence";
const VERSION: u32 = 1;

/// Why the record could not be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file or its folder could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no record.
    #[error("`{}` does not exist: run `gpufrac node-setup` before slurmd starts", path.display())]
    Absent {
        /// Where it should be.
        path: PathBuf,
    },
    /// Its text is not a record of this version.
    #[error("`{}` is not a record of this version ({source}): run `gpufrac node-setup`", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// It is from before the last boot.
    #[error("`{}` is from before the last boot: run `gpufrac node-setup` before slurmd starts", path.display())]
    Stale {
        /// The file.
        path: PathBuf,
    },
    /// The kernel's boot id could not be read.
    #[error("cannot read `/proc/sys/kernel/random/boot_id`: {0}")]
    BootId(std::io::Error),
}

impl RecordError {
    /// Whether waiting may help.
    pub fn class(&self) -> ErrorClass {
        match self {
            RecordError::File(error) => class_of_file(error),
            RecordError::BootId(error) if is_shortage(error) => ErrorClass::Transient,
            RecordError::BootId(_)
            | RecordError::Absent { .. }
            | RecordError::Text { .. }
            | RecordError::Stale { .. } => ErrorClass::Broken,
        }
    }
}

/// A GPU as it was at boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedGpu {
    /// NVML index.
    pub index: GpuIndex,
    /// `GPU-...`
    pub uuid: String,
    /// N of `/dev/nvidiaN`.
    pub minor: DeviceMinor,
    /// Device major of `/dev/nvidiaN`.
    pub major: u32,
    /// The pool that shares it; None if gpufrac has nothing to do with it.
    pub pool: Option<String>,
    /// Minors of the capabilities that can exist on it, as ranges `first..=last`.
    pub caps: Vec<(u32, u32)>,
    /// Of these, those of compute instances but the first of each GPU instance, behind the minor of that one. Records of earlier
    /// versions have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further: Vec<(u32, Vec<(u32, u32)>)>,
    /// Its address on the PCI bus, where the driver names the GPUs by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
}

/// The record of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    version: u32,
    /// The boot that it is valid for.
    pub boot_id: String,
    /// The node's name in Slurm.
    pub node: String,
    /// Every GPU, in NVML's order.
    pub gpus: Vec<RecordedGpu>,
    /// Major of `/dev/nvidia-caps/*`; 0 where the driver has none and no pool needs them.
    pub caps_major: u32,
    /// Capabilities that belong to no GPU (`config`, `monitor`).
    pub general_caps: Vec<u32>,
    /// Major of `/dev/nvidia-caps-imex-channels/*`; 0 where the driver has none.
    #[serde(default)]
    pub imex_major: u32,
    /// What the driver said that stays true as long as it is loaded. Records of earlier versions have none: then it is asked
    /// again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    driver: Option<DriverFacts>,
}

/// What a driver says of the GPUs, in their order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DriverFacts {
    /// Which driver.
    version: String,
    /// Each geometry once: the SPANK plugin reads this file for every step.
    geometries: Vec<Geometry>,
    gpus: Vec<RecordedFacts>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedFacts {
    /// Position in the list of geometries.
    geometry: Option<usize>,
    memory: Option<MemoryMib>,
}

/// What a driver says of a GPU that stays true as long as the driver is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuFacts<G> {
    /// What it can be cut into; None where nobody asked, as MIG is off or no pool uses it.
    pub geometry: Option<G>,
    /// All of its memory; None where nobody asked.
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
    /// With what a driver says of the GPUs, in their order.
    #[must_use]
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

    /// What is known of a GPU, if this driver said it. The caller has compared the GPU's UUID.
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

    /// Whether a driver's word on the GPUs is here, whichever driver's.
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

    /// Reads the record in a run folder, of whatever boot.
    pub fn read_any(run: &Path) -> Result<NodeRecord, RecordError> {
        let path = run.join(FILE);
        let dir = match RootDir::open(run) {
            Err(error) if error.is_not_found() => return Err(RecordError::Absent { path }),
            other => other?,
        };
        let Some(text) = dir.read(FILE)? else {
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

    /// Writes the record.
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
        let caps = slice.instance().into_iter();
        let caps = caps.flat_map(|instance| [instance.gi_cap_minor, instance.ci_cap_minor]);
        let caps = caps.map(|minor| (self.caps_major, minor));
        gpus.chain(caps)
            .map(|(major, minor)| DeviceNumber { major, minor })
            .collect()
    }

    /// What a job must not open: every GPU and capability of the pools, but those of its `leases`, and every IMEX channel,
    /// by which GPUs reach the memory of those of other nodes.
    pub fn rules(&self, leases: &[Lease]) -> Vec<DeviceRule> {
        let own_gpu = |minor| leases.iter().any(|lease| lease.slice.gpu_minor == minor);
        let own_caps: Vec<u32> = leases
            .iter()
            .filter_map(|lease| lease.slice.instance())
            .flat_map(|instance| [instance.gi_cap_minor, instance.ci_cap_minor])
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
        // A job without a lease may have a GPU that is not ours to fence, and its channel.
        if self.imex_major != 0 && (all_are_shared || !leases.is_empty()) {
            rules.push(DeviceRule::Major(self.imex_major));
        }
        // One rule for all, unless some capability has to stay open: the job's own, or those of
        // GPUs that are not ours to fence. A denied major cannot be opened again for single
        // minors.
        if self.caps_major == 0 {
            return rules;
        }
        if leases.is_empty() && all_are_shared {
            rules.push(DeviceRule::Major(self.caps_major));
            return rules;
        }
        let of_gpus = pool().flat_map(|gpu| &gpu.caps);
        let minors = of_gpus
            .flat_map(|&(first, last)| first..=last)
            .chain(self.general_caps.iter().copied())
            .filter(|minor| !own_caps.contains(minor));
        // A compute instance is reached through its GPU instance, so the capability of that one closes those behind it. That
        // of the first has a rule all the same: it is what an instance of a job has.
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
            match behind.contains(&minor) {
                true => DeviceRule::Behind(number),
                false => DeviceRule::Device(number),
            }
        }));
        rules
    }
}

/// The capabilities of compute instances but the first of each GPU instance, behind the minor of that one.
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

/// The kernel's name of this boot.
pub fn boot_id() -> Result<String, RecordError> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .map_err(RecordError::BootId)
}

/// Single numbers as ranges.
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
mod tests {
    use super::*;
    use test_examples::lease;

    fn record(pools: [Option<&str>; 2]) -> NodeRecord {
        let gpus = pools
            .iter()
            .zip(0..)
            .map(|(pool, index)| RecordedGpu {
                index: GpuIndex(index),
                uuid: format!("GPU-{index}"),
                minor: DeviceMinor(index),
                major: 195,
                pool: pool.map(str::to_owned),
                caps: vec![(3 + 135 * index, 137 + 135 * index)],
                further: Vec::new(),
                pci: None,
            })
            .collect();
        NodeRecord::new("n1", gpus, 234, vec![1, 2], 0).unwrap()
    }

    fn device(major: u32, minor: u32) -> DeviceRule {
        DeviceRule::Device(DeviceNumber { major, minor })
    }

    #[test]
    fn a_job_without_a_slice_gets_few_rules() {
        let rules = record([Some("p"), Some("p")]).rules(&[]);
        assert_eq!(
            rules,
            [device(195, 0), device(195, 1), DeviceRule::Major(234)]
        );
    }

    #[test]
    fn channels_of_imex_are_closed_to_all_that_have_no_other_gpu() {
        let with = |pools| {
            let mut record = record(pools);
            record.imex_major = 507;
            record
        };
        let (shared, mixed) = (with([Some("p"), Some("p")]), with([Some("p"), None]));
        let closed = |record: &NodeRecord, leases: &[Lease]| {
            record.rules(leases).contains(&DeviceRule::Major(507))
        };
        let leases = [lease(7)];
        assert!(closed(&shared, &[]) && closed(&shared, &leases) && closed(&mixed, &leases));
        assert!(!closed(&mixed, &[]));
        // A record from before channels were known.
        let mut old = serde_json::to_value(&shared).unwrap();
        old.as_object_mut().unwrap().remove("imex_major");
        let old: NodeRecord = serde_json::from_value(old).unwrap();
        assert_eq!(old.imex_major, 0);
    }

    #[test]
    fn the_devices_of_a_lease_are_its_gpu_and_its_capabilities() {
        let lease = lease(7);
        let devices = record([Some("p"), Some("p")]).devices(&lease);
        let numbers: Vec<String> = devices.iter().map(DeviceNumber::to_string).collect();
        assert_eq!(numbers, ["195:0", "234:30", "234:31"]);
    }

    #[test]
    fn the_capabilities_of_a_gpu_that_is_not_shared_stay_open() {
        let rules = record([Some("p"), None]).rules(&[]);
        assert_eq!(rules[0], device(195, 0));
        assert!(!rules.contains(&DeviceRule::Major(234)));
        assert!(rules.contains(&device(234, 1)) && rules.contains(&device(234, 137)));
        assert!(!rules.contains(&device(234, 138)));
        assert_eq!(rules.len(), 1 + 135 + 2);
    }

    #[test]
    fn a_job_keeps_its_own_gpu_and_its_two_capabilities() {
        let lease = lease(7);
        let instance = lease.slice.instance().cloned().unwrap();
        let rules = record([Some("p"), Some("p")]).rules(std::slice::from_ref(&lease));
        assert_eq!(lease.slice.gpu_minor, DeviceMinor(0));
        assert_eq!(rules[0], device(195, 1));
        for own in [instance.gi_cap_minor, instance.ci_cap_minor] {
            assert!(!rules.contains(&device(234, own)));
        }
        assert_eq!(rules.len(), 1 + 2 * 135 + 2 - 2);
    }

    #[test]
    fn a_job_keeps_the_capabilities_of_all_its_slices() {
        let (first, mut second) = (lease(7), lease(7));
        second.number = 1;
        if let Some(mig) = second.slice.mig_mut()
            && let Some(instance) = &mut mig.instance
        {
            (instance.gi_cap_minor, instance.ci_cap_minor) = (39, 40);
        }
        let rules = record([Some("p"), Some("p")]).rules(&[first, second]);
        for own in [30, 31, 39, 40] {
            assert!(!rules.contains(&device(234, own)), "{own}");
        }
        assert_eq!(rules.len(), 1 + 2 * 135 + 2 - 4);
    }

    /// As the driver numbers them: GPU instance I has 3 + 135 * GPU + 9 * I, and its compute instances come next.
    fn cap(gpu: u32, gi: u32, ci: Option<u32>) -> CapMinor {
        let minor = 3 + 135 * gpu + 9 * gi;
        CapMinor {
            gpu_minor: DeviceMinor(gpu),
            minor: ci.map_or(minor, |ci| minor + 1 + ci),
            opens: Some(match ci {
                Some(ci) => Opens::ComputeInstance(gi, ci),
                None => Opens::GpuInstance(gi),
            }),
        }
    }

    #[test]
    fn each_capability_that_can_be_of_use_has_a_rule_and_all_are_closed_in_rows() {
        let whole = record([Some("p"), Some("p")]);
        let mut record = whole.clone();
        for (gpu, index) in record.gpus.iter_mut().zip(0..) {
            let of_instance = |gi| {
                let inside = (0..8).map(move |ci| cap(index, gi, Some(ci)));
                [cap(index, gi, None)].into_iter().chain(inside)
            };
            let caps: Vec<CapMinor> = (0..15).flat_map(of_instance).collect();
            let caps: Vec<&CapMinor> = caps.iter().collect();
            gpu.further = further(&caps);
        }
        let lease = lease(7);
        let leases = std::slice::from_ref(&lease);
        let own = lease.slice.instance().cloned().unwrap();
        assert_eq!((own.gi_cap_minor, own.ci_cap_minor), (30, 31));
        let (rules, behind): (Vec<DeviceRule>, Vec<DeviceRule>) = record
            .rules(leases)
            .into_iter()
            .partition(|rule| rule.is_alone());
        // With the other GPU, the general ones, and the further compute instances of the job's own GPU instance.
        assert_eq!(rules.len(), 1 + 2 * 2 * 15 + 2 + 7 - 2);
        for gi in 0..15 {
            for gpu in 0..2 {
                let is_own = (gpu, gi) == (0, 3);
                let closed = |ci| rules.contains(&device(234, cap(gpu, gi, ci).minor));
                assert_eq!(closed(None), !is_own, "{gpu} {gi}");
                assert_eq!(closed(Some(0)), !is_own, "{gpu} {gi}");
                assert!((1..8).all(|ci| closed(Some(ci)) == is_own), "{gpu} {gi}");
            }
        }
        let sorted = |mut rules: Vec<DeviceRule>| {
            rules.sort_by_key(DeviceRule::to_string);
            rules.iter().map(DeviceRule::to_string).collect::<Vec<_>>()
        };
        let all = whole.rules(leases);
        assert!(all.iter().all(|rule| rule.is_alone()));
        assert_eq!(sorted([rules, behind].concat()), sorted(all));
        // Numbers of which the names do not say what they open are closed one by one.
        let unknown = CapMinor {
            opens: None,
            ..cap(0, 0, Some(1))
        };
        assert_eq!(further(&[&cap(0, 0, None), &unknown]), []);
    }

    #[test]
    fn it_is_read_back_and_refused_after_a_reboot() {
        let keep = tempfile::tempdir().unwrap();
        let run = RootDir::open(&keep.path().canonicalize().unwrap()).unwrap();
        assert!(matches!(
            NodeRecord::read(run.path()),
            Err(RecordError::Absent { .. })
        ));
        let mut record = record([Some("p"), None]);
        record.write(&run).unwrap();
        assert_eq!(NodeRecord::read(run.path()).unwrap(), record);
        record.boot_id = "another".into();
        record.write(&run).unwrap();
        assert!(matches!(
            NodeRecord::read(run.path()),
            Err(RecordError::Stale { .. })
        ));
        assert_eq!(NodeRecord::read_any(run.path()).unwrap(), record);
        run.write(FILE, "{}", 0o644).unwrap();
        assert!(matches!(
            NodeRecord::read(run.path()),
            Err(RecordError::Text { .. })
        ));
    }

    #[test]
    fn what_a_driver_said_holds_for_that_driver() {
        let keep = tempfile::tempdir().unwrap();
        let run = RootDir::open(&keep.path().canonicalize().unwrap()).unwrap();
        let geometry = Geometry::unsliced("H100");
        let memory = Some(MemoryMib(81559));
        let facts = |geometry: Option<&Geometry>| GpuFacts {
            geometry: geometry.cloned(),
            memory,
        };
        let old = record([Some("p"), None]);
        assert!(!old.has_facts());
        let known = old
            .clone()
            .with_facts("550", vec![facts(Some(&geometry)), facts(None)]);
        known.write(&run).unwrap();
        let known = NodeRecord::read(run.path()).unwrap();
        assert!(known.has_facts());
        let first = known.facts(GpuIndex(0), "550");
        assert_eq!((first.geometry, first.memory), (Some(&geometry), memory));
        assert_eq!(known.facts(GpuIndex(1), "550").geometry, None);
        // Another driver, a GPU that was not there, and a record of an earlier version.
        let nothing = GpuFacts::default();
        assert_eq!(known.facts(GpuIndex(0), "555"), nothing);
        assert_eq!(known.facts(GpuIndex(2), "550"), nothing);
        old.write(&run).unwrap();
        let old = NodeRecord::read(run.path()).unwrap();
        assert_eq!(old.facts(GpuIndex(0), "550"), nothing);
    }

    #[test]
    fn equal_gpus_have_one_geometry() {
        let geometry = Some(Geometry::unsliced("H100"));
        let facts = GpuFacts {
            geometry,
            memory: None,
        };
        let known = record([Some("p"), None]).with_facts("550", vec![facts.clone(), facts]);
        let text = serde_json::to_string(&known).unwrap();
        assert_eq!(text.matches("H100").count(), 1);
    }

    #[test]
    fn numbers_become_ranges() {
        assert_eq!(ranges(vec![5, 3, 4, 9, 4]), [(3, 5), (9, 9)]);
        assert_eq!(ranges(vec![]), []);
    }
}
