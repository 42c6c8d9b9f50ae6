//! A simulated node: its GPUs, and the rules of MIG.
//!
//! Only state: nothing here reads or writes a file. [`crate::store`] keeps a [`Node`] on disk.

pub mod falsify;

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::code::{Answer, Code};
use crate::geometry::{ComputeProfile, Engines, Geometry, GpuProfile};
use crate::manners::Manners;
use crate::model::Model;
use crate::recorded::Recorded;

/// All GPUs of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Version of this format.
    pub version: u32,
    /// Version of the driver that NVML reports.
    pub driver: String,
    /// The serial number of the next instance. Serial numbers are never reused, so a handle never stands for another
    /// instance.
    pub next_serial: u64,
    /// The number of reboots.
    pub boots: u32,
    /// How the MIG device of a compute instance is found.
    #[serde(default)]
    pub mig_device_by: MigDeviceBy,
    /// What this driver does where drivers differ.
    #[serde(default)]
    pub manners: Manners,
    /// The GPUs in NVML's order.
    pub gpus: Vec<Gpu>,
}

/// How the driver tells the MIG device of a compute instance; sources differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MigDeviceBy {
    /// `nvmlComputeInstanceGetInfo_v2` returns it as `device`, as NVIDIA's driver for Kubernetes assumes.
    #[default]
    Info,
    /// `device` is the GPU, as in nvml.h; the MIG device has the name `MIG-GPU-UUID/GI/CI`.
    Name,
    /// `device` is the GPU, and such names do not exist: only an enumeration of all MIG devices finds it.
    Walk,
}

/// `NVML_COMPUTEMODE_*`: which processes may use a whole GPU.
pub mod compute_mode {
    /// Any number of processes.
    pub const DEFAULT: u32 = 0;
    /// No process.
    pub const PROHIBITED: u32 = 2;
    /// One process, such as an MPS server.
    pub const EXCLUSIVE_PROCESS: u32 = 3;
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Name of the [`Model`].
    pub model: String,
    /// `GPU-…`.
    pub uuid: String,
    /// Board serial number.
    pub serial_number: u64,
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    pub pci_bus: u32,
    /// MIG mode in force.
    pub mig: bool,
    /// MIG mode after the next reset.
    pub mig_pending: bool,
    /// Persistence mode.
    pub persistence: bool,
    /// One of [`compute_mode`]; reset when the driver is loaded again.
    pub compute_mode: u32,
    /// Accounting mode.
    #[serde(default)]
    pub accounting: bool,
    /// Memory in use without a process, in MiB, until the driver is loaded again.
    #[serde(default)]
    pub leaked_mib: u64,
    /// What the driver uses itself of an instance, in MiB for each of its memory slices.
    #[serde(default)]
    pub idle_mib: u64,
    /// The wrong answer of its driver, one of [`falsify::FALSEHOODS`].
    #[serde(default)]
    pub falsified: Option<String>,
    /// The driver whose answers it gives.
    #[serde(default)]
    pub recorded: Option<Recorded>,
    /// When MIG mode was last switched off, in microseconds since 1970.
    #[serde(default)]
    pub mig_off_us: u64,
    /// Whether ids of instances count the halves of the GPU in the other order.
    #[serde(default)]
    pub swapped: bool,
    /// GPU instances, by id.
    pub instances: Vec<GpuInstance>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuInstance {
    /// The serial number, never reused.
    pub serial: u64,
    /// GPU instance id, reused after a destruction.
    pub id: u32,
    /// Profile id.
    pub profile: u32,
    /// First memory slice.
    pub start: u32,
    /// Memory slices.
    pub size: u32,
    /// Memory in use without a process, in MiB.
    #[serde(default)]
    pub leaked_mib: u64,
    /// When it goes, in microseconds since 1970: it was destroyed ([`Manners::destroyed_after_ms`]).
    #[serde(default)]
    pub goes_us: Option<u64>,
    /// Compute instances, by id.
    pub compute: Vec<ComputeInstance>,
}

/// A compute instance; with its GPU instance it is a MIG device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComputeInstance {
    /// The serial number, never reused.
    pub serial: u64,
    /// Compute instance id, reused after a destruction.
    pub id: u32,
    /// Compute instance profile id.
    pub profile: u32,
    /// First compute slice in the GPU instance.
    pub start: u32,
    /// Compute slices.
    pub size: u32,
    /// `MIG-…`: the same for each instance at its place, unless [`Manners::random_uuids`].
    pub uuid: String,
}

/// A version 4 UUID in text.
pub fn random_uuid() -> String {
    let mut b = [0u8; 16];
    // SAFETY: the buffer is ours and 16 bytes long.
    let got = unsafe { libc::getrandom(b.as_mut_ptr().cast(), b.len(), 0) };
    assert_eq!(got, 16, "the kernel gives 16 random bytes at once");
    uuid_of(b, 4)
}

/// A version 5 UUID in text, of these data: as `gpu_uuid.c` of open-gpu-kernel-modules makes that of an instance from
/// the GPU, the id and the engine, with another hash.
fn uuid_by_place(gpu: &str, gpu_instance: u32, engine: u32) -> String {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, gpu, gpu_instance, engine).hash(&mut hasher);
        hasher.finish().to_be_bytes()
    };
    let mut b = [0u8; 16];
    b[..8].copy_from_slice(&half(0));
    b[8..].copy_from_slice(&half(1));
    uuid_of(b, 5)
}

fn uuid_of(mut b: [u8; 16], version: u8) -> String {
    b[6] = (b[6] & 0x0f) | (version << 4);
    b[8] = (b[8] & 0x3f) | 0x80;
    let hex: String = b.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

impl Node {
    /// A node with these GPUs, MIG on or off on those that have it.
    pub fn new(driver: &str, models: &[&'static Model], mig: bool) -> Node {
        let gpus = models.iter().enumerate().map(|(index, model)| {
            let mig = mig && model.geometry.is_some();
            let uuid = random_uuid();
            // Boards have serial numbers of 13 digits; any different ones will do.
            let digits = u64::from_str_radix(&uuid[..8], 16).unwrap_or(index as u64);
            Gpu {
                model: model.name.to_owned(),
                uuid: format!("GPU-{uuid}"),
                serial_number: 1_650_000_000_000 + digits,
                minor: index as u32,
                pci_bus: 7 * (index as u32 + 1),
                mig,
                mig_pending: mig,
                persistence: true,
                compute_mode: compute_mode::DEFAULT,
                accounting: false,
                leaked_mib: 0,
                idle_mib: 0,
                mig_off_us: 0,
                falsified: None,
                recorded: None,
                swapped: index % 2 == 1,
                instances: Vec::new(),
            }
        });
        Node {
            version: 1,
            driver: driver.to_owned(),
            next_serial: 1,
            boots: 0,
            mig_device_by: MigDeviceBy::default(),
            manners: Manners::default(),
            gpus: gpus.collect(),
        }
    }

    /// Applies a reboot to the state.
    pub fn reboot(&mut self) {
        self.boots += 1;
        for gpu in &mut self.gpus {
            if gpu.model().architecture.is_hopper_or_newer() {
                gpu.mig_pending = false;
            }
            gpu.reset();
            gpu.accounting = false;
        }
    }

    fn serial(&mut self) -> u64 {
        let serial = self.next_serial;
        self.next_serial += 1;
        serial
    }

    /// Creates a GPU instance at `start`, or at the driver's choice.
    ///
    /// # Errors
    /// NVML's codes: NOT_SUPPORTED without MIG mode, INVALID_ARGUMENT for a profile or a placement that the GPU does
    /// not have, INSUFFICIENT_RESOURCES if it does not fit.
    pub fn create_gpu_instance(
        &mut self,
        gpu: usize,
        profile: u32,
        placement: Option<(u32, u32)>,
    ) -> Answer<&GpuInstance> {
        let target = self.gpus.get(gpu).ok_or(Code::INVALID_ARGUMENT)?;
        let geometry = target.mig_geometry()?;
        let profile = geometry.profile(profile).ok_or(Code::INVALID_ARGUMENT)?;
        let start = match placement {
            Some((start, size)) => {
                if size != profile.size || !profile.starts.contains(&start) {
                    return Err(Code::INVALID_ARGUMENT);
                }
                target.fits(geometry, profile, start).then_some(start)
            }
            None => target.driver_choice(geometry, profile),
        };
        let start = start.ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let id = target.instance_id(geometry, profile, start);
        let instance = GpuInstance {
            serial: self.serial(),
            id,
            profile: profile.id,
            start,
            size: profile.size,
            leaked_mib: 0,
            goes_us: None,
            compute: Vec::new(),
        };
        let instances = &mut self.gpus[gpu].instances;
        let at = instances.partition_point(|other| other.id < id);
        instances.insert(at, instance);
        Ok(&instances[at])
    }

    /// Creates a compute instance at `start`, or at the first free place.
    ///
    /// # Errors
    /// NVML's codes: INVALID_ARGUMENT for a profile or placement that the GPU instance does not have,
    /// INSUFFICIENT_RESOURCES if it does not fit.
    pub fn create_compute_instance(
        &mut self,
        gpu: usize,
        gpu_instance: u32,
        profile: u32,
        placement: Option<(u32, u32)>,
    ) -> Answer<&ComputeInstance> {
        let target = self.gpus.get(gpu).ok_or(Code::INVALID_ARGUMENT)?;
        let instance = target
            .instance(gpu_instance)
            .ok_or(Code::INVALID_ARGUMENT)?;
        let profiles = target.compute_profiles(instance)?;
        let profile = profiles
            .iter()
            .find(|candidate| candidate.id == profile)
            .ok_or(Code::INVALID_ARGUMENT)?;
        let fits = |start: u32| {
            let mut others = instance.compute.iter();
            others.all(|other| disjoint(start, profile.slices, other.start, other.size))
        };
        let start = match placement {
            Some((start, size)) => {
                if size != profile.slices || !profile.starts.contains(&start) {
                    return Err(Code::INVALID_ARGUMENT);
                }
                fits(start).then_some(start)
            }
            None => profile.starts.iter().copied().find(|&start| fits(start)),
        };
        let start = start.ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let id = (0..8)
            .find(|id| instance.compute.iter().all(|other| other.id != *id))
            .ok_or(Code::INSUFFICIENT_RESOURCES)?;
        let uuid = if self.manners.random_uuids {
            random_uuid()
        } else {
            uuid_by_place(&target.uuid, gpu_instance, start)
        };
        let compute = ComputeInstance {
            serial: self.serial(),
            id,
            profile: profile.id,
            start,
            size: profile.slices,
            uuid: format!("MIG-{uuid}"),
        };
        let instance = self.gpus[gpu]
            .instance_mut(gpu_instance)
            .ok_or(Code::INVALID_ARGUMENT)?;
        let at = instance.compute.partition_point(|other| other.id < id);
        instance.compute.insert(at, compute);
        Ok(&instance.compute[at])
    }
}

fn is_due(instance: &GpuInstance, now_us: u64) -> bool {
    instance.goes_us.is_some_and(|goes| goes <= now_us)
}

fn disjoint(a: u32, a_size: u32, b: u32, b_size: u32) -> bool {
    a + a_size <= b || b + b_size <= a
}

impl Gpu {
    /// The GPU's model.
    ///
    /// # Panics
    /// The state names a model that this library does not have; the store refuses such a state.
    #[allow(clippy::expect_used, reason = "checked when the state is read")]
    pub fn model(&self) -> &'static Model {
        Model::find(&self.model).expect("the store refuses unknown models")
    }

    /// The MIG tables; None without MIG.
    pub fn geometry(&self) -> Option<&'static Geometry> {
        falsify::tables(self).or_else(|| self.model().geometry())
    }

    /// The MIG tables, if MIG mode is on. Errors: NOT_SUPPORTED if MIG mode is off.
    pub fn mig_geometry(&self) -> Answer<&'static Geometry> {
        let geometry = self.geometry().ok_or(Code::NOT_SUPPORTED)?;
        if self.mig { Ok(geometry) } else { Err(Code::NOT_SUPPORTED) }
    }

    pub fn instance(&self, id: u32) -> Option<&GpuInstance> {
        self.instances.iter().find(|instance| instance.id == id)
    }

    fn instance_mut(&mut self, id: u32) -> Option<&mut GpuInstance> {
        self.instances.iter_mut().find(|instance| instance.id == id)
    }

    /// The GPU instance's profile. Errors: UNKNOWN if the state names a profile that the model does not have.
    pub fn profile_of(&self, instance: &GpuInstance) -> Answer<&'static GpuProfile> {
        let geometry = self.geometry().ok_or(Code::UNKNOWN)?;
        geometry.profile(instance.profile).ok_or(Code::UNKNOWN)
    }

    /// The compute instance profiles of a GPU instance.
    /// Errors: UNKNOWN if the state names a profile that the model does not have.
    pub fn compute_profiles(&self, instance: &GpuInstance) -> Answer<Vec<ComputeProfile>> {
        let geometry = self.geometry().ok_or(Code::UNKNOWN)?;
        Ok(geometry.compute_profiles(self.profile_of(instance)?))
    }

    /// MIG devices in the order in which NVML numbers them.
    pub fn mig_devices(&self) -> impl Iterator<Item = (&GpuInstance, &ComputeInstance)> {
        self.instances.iter().flat_map(|instance| {
            instance
                .compute
                .iter()
                .map(move |compute| (instance, compute))
        })
    }

    /// Memory that clients can use, whatever the MIG mode.
    pub fn usable_memory_mib(&self) -> u64 {
        self.model().memory_mib - self.model().reserved_mib
    }

    /// Memory in use without a process, on the GPU or on its instances.
    pub fn all_leaked_mib(&self) -> u64 {
        let of_instances = self.instances.iter().map(|own| self.leaked_on(own));
        self.leaked_mib + of_instances.sum::<u64>()
    }

    /// Memory in use without a process on an instance of this GPU.
    pub fn leaked_on(&self, instance: &GpuInstance) -> u64 {
        instance.leaked_mib + self.idle_mib * u64::from(instance.size)
    }

    fn fits(&self, geometry: &Geometry, profile: &GpuProfile, start: u32) -> bool {
        let free = self
            .instances
            .iter()
            .all(|other| disjoint(start, profile.size, other.start, other.size));
        if falsify::has_room(self) {
            return true;
        }
        if !free {
            return false;
        }
        let others = || {
            let of = |instance: &GpuInstance| geometry.profile(instance.profile);
            self.instances.iter().filter_map(of)
        };
        let of_this = others().filter(|other| other.id == profile.id).count() as u32;
        let slices: u32 = others().map(|other| other.slices).sum();
        // Media engines are counted one by one. This gives NVIDIA's limits for +me (one such instance, whatever its
        // size) and for +me.all (besides it only -me).
        let whole = geometry.engines();
        let engines_left = |pick: fn(&Engines) -> u32| {
            let used: u32 = others().map(|other| pick(&other.engines)).sum();
            used + pick(&profile.engines) <= pick(&whole)
        };
        of_this < profile.max
            && slices + profile.slices <= geometry.compute_slices
            && engines_left(|engines| engines.decode)
            && engines_left(|engines| engines.encode)
            && engines_left(|engines| engines.jpeg)
            && engines_left(|engines| engines.ofa)
    }

    /// The driver's choice for an instance without a given position. One-slice and three-slice instances are put at
    /// the high end: therefore `-cgi 19,19,14,9` fails on an empty A100, while the same four, largest first, succeed.
    fn driver_choice(&self, geometry: &Geometry, profile: &GpuProfile) -> Option<u32> {
        let fits = |&start: &u32| self.fits(geometry, profile, start);
        let mut starts = profile.starts.iter().copied();
        if profile.slices % 2 == 1 {
            starts.rev().find(fits)
        } else {
            starts.find(fits)
        }
    }

    /// The driver's id for an instance: its place among those of its size. On GPUs with seven slices 7g has 0, halves
    /// have 1 and 2, quarters 3 to 6, eighths 7 to 14; on GPUs with four the whole 0, halves 1 and 2, quarters 3 to 6.
    /// On some boards the halves are swapped (NVIDIA/DCGM issue 138: two GPUs of one node).
    fn instance_id(&self, geometry: &Geometry, profile: &GpuProfile, start: u32) -> u32 {
        let all = geometry.memory_slices;
        let swap = if self.swapped { all / 2 } else { 0 };
        let by_place = all / profile.size - 1 + (start + swap) % all / profile.size;
        let recorded = self.recorded.as_ref();
        let id = recorded.and_then(|it| it.id_at(profile.id, start));
        let id = id.unwrap_or(by_place);
        if falsify::has_room(self) {
            (id..).find(|id| self.instance(*id).is_none()).unwrap_or(id)
        } else {
            id
        }
    }

    /// The number of further instances of a profile that could be created now.
    pub fn remaining_capacity(&self, geometry: &Geometry, profile: &GpuProfile) -> u32 {
        let mut gpu = self.clone();
        let mut count = 0;
        for &start in profile.starts {
            if gpu.fits(geometry, profile, start) {
                count += 1;
                gpu.instances.push(GpuInstance {
                    serial: 0,
                    id: u32::MAX,
                    profile: profile.id,
                    start,
                    size: profile.size,
                    leaked_mib: 0,
                    goes_us: None,
                    compute: Vec::new(),
                });
            }
        }
        count
    }

    /// Destroys a GPU instance.
    /// Errors: NOT_FOUND if there is none; IN_USE while it has compute instances or, with `busy`, processes.
    pub fn destroy_gpu_instance(&mut self, id: u32, busy: bool) -> Answer {
        let instance = self.instance(id).ok_or(Code::NOT_FOUND)?;
        if busy || !instance.compute.is_empty() {
            return Err(Code::IN_USE);
        }
        self.instances.retain(|instance| instance.id != id);
        Ok(())
    }

    /// As [`Gpu::destroy_gpu_instance`], for an instance that stands until a time. Errors: the same.
    pub(crate) fn destroy_later(&mut self, id: u32, busy: bool, at_us: u64) -> Answer {
        let instance = self.instance_mut(id).ok_or(Code::NOT_FOUND)?;
        if busy || !instance.compute.is_empty() {
            return Err(Code::IN_USE);
        }
        instance.goes_us.get_or_insert(at_us);
        Ok(())
    }

    /// Whether an instance's time has come ([`GpuInstance::goes_us`]).
    pub(crate) fn has_due(&self, now_us: u64) -> bool {
        self.instances
            .iter()
            .any(|instance| is_due(instance, now_us))
    }

    /// Removes the instances whose time has come.
    pub(crate) fn remove_due(&mut self, now_us: u64) {
        self.instances.retain(|instance| !is_due(instance, now_us));
    }

    /// Destroys a compute instance. Errors: NOT_FOUND if there is none; IN_USE while, with `busy`, it has processes.
    pub fn destroy_compute_instance(&mut self, gpu_instance: u32, id: u32, busy: bool) -> Answer {
        let instance = self.instance_mut(gpu_instance).ok_or(Code::NOT_FOUND)?;
        let at = instance.compute.iter().position(|compute| compute.id == id);
        let at = at.ok_or(Code::NOT_FOUND)?;
        if busy {
            return Err(Code::IN_USE);
        }
        instance.compute.remove(at);
        Ok(())
    }

    /// Requests a MIG mode; returns NVML's activation status. Errors: NOT_SUPPORTED on a model without MIG.
    pub fn set_mig_mode(&mut self, on: bool, busy: bool) -> Answer<Answer> {
        if self.model().geometry.is_none() {
            return Err(Code::NOT_SUPPORTED);
        }
        self.mig_pending = on;
        if self.mig == on {
            return Ok(Ok(()));
        }
        if busy || !self.instances.is_empty() {
            return Ok(Err(Code::IN_USE));
        }
        if !self.model().architecture.is_hopper_or_newer() {
            return Ok(Err(Code::RESET_REQUIRED));
        }
        self.mig = on;
        self.compute_mode = compute_mode::DEFAULT;
        Ok(Ok(()))
    }

    /// Resets the GPU: instances and compute mode are lost, the pending MIG mode takes effect.
    pub fn reset(&mut self) {
        self.instances.clear();
        self.leaked_mib = 0;
        self.mig = self.mig_pending;
        self.compute_mode = compute_mode::DEFAULT;
    }
}
