//! Makes instances and removes them, and knows at each moment which of them stand.

use std::cell::RefCell;
use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;

use gpufrac_core::geometry::{Geometry, Placement, Profile};
use gpufrac_host::files::FileError;
use gpufrac_nvml::single::{ComputeInstanceHandle, DeviceHandle, GpuInstanceHandle};
use gpufrac_nvml::{Instance, ci_profile_enum};

use crate::driver::{Driver, Stop, named, said};
use crate::remains::{Intent, IntentFile, Nodes};
use crate::{Pace, Program};

/// The state of a run.
pub struct Work<'r, 's> {
    pub driver: Driver<'r, 's>,
    /// The profiles that the driver reports.
    pub geometry: Geometry,
    /// The prefix of the driver's files.
    pub driver_root: PathBuf,
    /// How much of each is measured.
    pub pace: &'r Pace,
    /// How a further session is started.
    pub program: &'r Program,
    file: &'r IntentFile,
    intent: RefCell<Intent>,
    /// The places of the instances that stand.
    standing: RefCell<Vec<(u32, Placement)>>,
}

/// An instance that the run made.
#[derive(Clone)]
pub struct Made<'s> {
    pub profile_id: u32,
    pub placement: Placement,
    /// NVML's handle.
    pub gi: GpuInstanceHandle<'s>,
    /// The GPU instance id.
    pub gi_id: u32,
    /// Its compute instance.
    pub compute: Option<Compute<'s>>,
}

/// A compute instance that fills its GPU instance.
#[derive(Clone)]
pub struct Compute<'s> {
    /// NVML's handle.
    pub ci: ComputeInstanceHandle<'s>,
    /// The compute instance id.
    pub ci_id: u32,
    pub mig: DeviceHandle<'s>,
    /// `MIG-...`
    pub uuid: String,
}

/// A MIG device and its UUID.
type MigDevice<'s> = (DeviceHandle<'s>, String);

/// All that is asked of the driver is asked of the run.
impl<'r, 's> Deref for Work<'r, 's> {
    type Target = Driver<'r, 's>;

    fn deref(&self) -> &Driver<'r, 's> {
        &self.driver
    }
}

impl fmt::Display for Made<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Placement { start, size } = self.placement;
        write!(f, "GPU instance {} at {start}:{size}", self.gi_id)
    }
}

fn failed(error: FileError) -> Stop {
    Stop::Failed(error.to_string())
}

impl<'r, 's> Work<'r, 's> {
    /// On a GPU without instances. The intent is written.
    pub fn begin(
        driver: Driver<'r, 's>,
        geometry: Geometry,
        driver_root: PathBuf,
        (pace, program): (&'r Pace, &'r Program),
        (file, intent): (&'r IntentFile, Intent),
    ) -> Result<Self, Stop> {
        file.write(&intent).map_err(failed)?;
        Ok(Work {
            driver,
            geometry,
            driver_root,
            pace,
            program,
            file,
            intent: RefCell::new(intent),
            standing: RefCell::default(),
        })
    }

    /// `1g.10gb at 3`.
    pub fn place_name(&self, profile_id: u32, placement: Placement) -> String {
        format!("{} at {}", self.profile_name(profile_id), placement.start)
    }

    /// `1g.10gb`.
    pub fn profile_name(&self, id: u32) -> &str {
        let profile = self.geometry.profile(id);
        profile.map_or("?", |profile| profile.name.as_str())
    }

    /// The places of the instances that stand.
    pub fn standing(&self) -> Vec<(u32, Placement)> {
        self.standing.borrow().clone()
    }

    /// What the run has changed.
    pub fn intent(&self) -> Intent {
        self.intent.borrow().clone()
    }

    /// The device nodes of capabilities before the run.
    pub fn nodes_before(&self) -> Nodes {
        self.intent.borrow().nodes.clone()
    }

    fn intend(&self, place: (u32, Placement)) -> Result<(), Stop> {
        let mut intent = self.intent.borrow_mut();
        intent.places.push(place);
        self.file.write(&intent).map_err(failed)
    }

    /// An instance of the run has gone.
    pub fn has_gone(&self, place: (u32, Placement)) -> Result<(), Stop> {
        self.standing.borrow_mut().retain(|known| *known != place);
        self.forget(place)
    }

    fn forget(&self, place: (u32, Placement)) -> Result<(), Stop> {
        let mut intent = self.intent.borrow_mut();
        if let Some(at) = intent.places.iter().position(|known| *known == place) {
            intent.places.remove(at);
        }
        self.file.write(&intent).map_err(failed)
    }

    /// Makes a GPU instance without a compute instance; NVML's code if the driver refuses.
    pub fn make_bare(
        &self,
        profile_id: u32,
        placement: Placement,
    ) -> Result<Result<Made<'s>, u32>, Stop> {
        let place = (profile_id, placement);
        self.intend(place)?;
        let first = self.standing.borrow().is_empty();
        let seven = self.when.get() == "seven";
        let when = match (seven, first) {
            (true, _) => "seven",
            (false, true) => "first",
            (false, false) => "further",
        };
        let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
        let name = self.place_name(profile_id, placement);
        let made = self.change(create, when, &name, |calls| {
            calls.create_gpu_instance(profile_id, placement)
        })?;
        let gi = match made {
            Ok(gi) => gi,
            Err(code) => {
                let is_there = |it: &Instance| it.placement == placement;
                let stands = !self.standing.borrow().contains(&place)
                    && self.listed(profile_id)?.iter().any(is_there);
                self.check_instance(
                    "a create that is refused makes nothing",
                    format!("{name}, {}", named(code)),
                    "nothing",
                    if stands { "an instance" } else { "nothing" },
                );
                if stands {
                    self.clear_place(profile_id, placement)?;
                }
                self.forget(place)?;
                return Ok(Err(code));
            }
        };
        self.standing.borrow_mut().push(place);
        let info = self.ask("nvmlGpuInstanceGetInfo", &name, |calls| {
            calls.gpu_instance_info(gi)
        })?;
        let info = info.map_err(|code| {
            let what = named(code);
            Stop::Failed(format!("the driver made {name} and answers {what} for it"))
        })?;
        let real = (info.profile_id, info.placement);
        let text = |(profile, at): (u32, Placement)| {
            format!("{} of {} slices", self.place_name(profile, at), at.size)
        };
        let question = "an instance has the profile and the place that were asked for";
        self.check_instance(question, &name, text(place), text(real));
        if real != place {
            self.intend(real)?;
            self.has_gone(place)?;
            self.standing.borrow_mut().push(real);
        }
        let (profile_id, placement) = real;
        Ok(Ok(Made {
            profile_id,
            placement,
            gi,
            gi_id: info.gi_id,
            compute: None,
        }))
    }

    /// Makes the compute instance that fills a GPU instance; false if the driver does not.
    pub fn fill(&self, made: &mut Made<'s>) -> Result<bool, Stop> {
        let name = self.place_name(made.profile_id, made.placement);
        let Some(profile) = self.geometry.profile(made.profile_id) else {
            return Ok(false);
        };
        let kind = ci_profile_enum(profile.compute_slices);
        let gi = made.gi;
        let own = "nvmlGpuInstanceGetComputeInstanceProfileInfo";
        let found = self.ask(own, &name, |calls| calls.compute_profile(gi, kind))?;
        let id = found.as_ref().map_or(kind, |found| found.id);
        self.check_instance(
            "the id of a compute instance's profile is its number",
            &name,
            kind,
            found
                .as_ref()
                .map_or_else(|code| named(*code), |found| found.id.to_string()),
        );
        let create = "nvmlGpuInstanceCreateComputeInstance";
        let answer = self.change(create, self.when.get(), &name, |calls| {
            calls.create_compute_instance(gi, id)
        })?;
        let question = "a compute instance fills a new GPU instance";
        self.check_instance(question, &name, "success (0)", said(&answer));
        let Ok(ci) = answer else { return Ok(false) };
        let info = self.ask("nvmlComputeInstanceGetInfo_v2", &name, |calls| {
            calls.compute_instance_info(ci)
        })?;
        let question = "a new compute instance is there";
        self.check_instance(question, &name, "success (0)", said(&info));
        let Ok(info) = info else { return Ok(false) };
        let (mig, way) = self.mig_device(made.gi_id, info.ci_id, info.device)?;
        self.check_instance(
            "the compute instance's own info leads to its MIG device",
            &name,
            "its own info",
            way,
        );
        let Some((mig, uuid)) = mig else {
            return Ok(false);
        };
        self.aliases.of("MIG", &uuid);
        made.compute = Some(Compute {
            ci,
            ci_id: info.ci_id,
            mig,
            uuid,
        });
        Ok(true)
    }

    /// The MIG device of a compute instance, and the way that led to it.
    fn mig_device(
        &self,
        gi_id: u32,
        ci_id: u32,
        told: DeviceHandle<'s>,
    ) -> Result<(Option<MigDevice<'s>>, &'static str), Stop> {
        let name = format!("MIG-{}/{gi_id}/{ci_id}", self.gpu.uuid);
        let uuid = |device| {
            let uuid = self.ask("nvmlDeviceGetUUID", "", |calls| calls.uuid(device))?;
            Ok::<_, Stop>(uuid.ok().filter(|uuid| uuid.starts_with("MIG-")))
        };
        if let Some(uuid) = uuid(told)? {
            return Ok((Some((told, uuid)), "its own info"));
        }
        let by_name = self.ask("nvmlDeviceGetHandleByUUID", "MIG-GPU-UUID/GI/CI", |calls| {
            calls.by_uuid(&name)
        })?;
        if let Ok(device) = by_name
            && let Some(uuid) = uuid(device)?
        {
            return Ok((Some((device, uuid)), "its name MIG-GPU-UUID/GI/CI"));
        }
        for index in 0..self.slots()? {
            let walk = "nvmlDeviceGetMigDeviceHandleByIndex";
            let device = self.ask(walk, index, |calls| calls.mig_by_index(index))?;
            let Ok(device) = device else { continue };
            let gi = self.ask("nvmlDeviceGetGpuInstanceId", index, |calls| {
                calls.gpu_instance_of(device)
            })?;
            if gi == Ok(gi_id)
                && let Some(uuid) = uuid(device)?
            {
                return Ok((Some((device, uuid)), "a walk over all MIG devices"));
            }
        }
        Ok((None, "nothing"))
    }

    /// The number of slots of MIG devices.
    pub fn slots(&self) -> Result<u32, Stop> {
        let slots = self.ask("nvmlDeviceGetMaxMigDeviceCount", "", |calls| {
            calls.mig_slots()
        })?;
        Ok(slots.unwrap_or(0))
    }

    /// Makes an instance as a job gets it. None if the driver refuses a part; nothing stands then.
    pub fn make(&self, profile_id: u32, placement: Placement) -> Result<Option<Made<'s>>, Stop> {
        let name = self.place_name(profile_id, placement);
        let made = self.make_bare(profile_id, placement)?;
        let question = "an instance can be made at each free place";
        self.check_instance(question, &name, "success (0)", said(&made));
        let Ok(mut made) = made else { return Ok(None) };
        if self.fill(&mut made)? {
            return Ok(Some(made));
        }
        self.remove(&made)?;
        Ok(None)
    }

    /// Makes an instance of the smallest size at its first place.
    pub fn make_smallest(&self) -> Result<Option<Made<'s>>, Stop> {
        match self.smallest_places() {
            Some((profile_id, first, _)) => self.make(profile_id, first),
            None => Ok(None),
        }
    }

    /// The driver's list of the instances of a profile.
    pub fn listed(&self, profile_id: u32) -> Result<Vec<Instance>, Stop> {
        let args = format!("profile {profile_id}");
        let handles = self.ask("nvmlDeviceGetGpuInstances", args, |calls| {
            calls.gpu_instances(profile_id)
        })?;
        let mut found = Vec::new();
        for gi in handles.unwrap_or_default() {
            let info = self.ask("nvmlGpuInstanceGetInfo", "", |calls| {
                calls.gpu_instance_info(gi)
            })?;
            found.extend(info.ok());
        }
        Ok(found)
    }

    /// All instances on the GPU.
    pub fn all(&self) -> Result<Vec<Instance>, Stop> {
        let mut found = Vec::new();
        for profile in &self.geometry.profiles {
            found.extend(self.listed(profile.id)?);
        }
        Ok(found)
    }

    /// Fails if an instance stands that the run did not make, or MIG mode has ended.
    pub fn only_own(&self) -> Result<(), Stop> {
        if !self.is_mig()? {
            return Err(Stop::ModeLost);
        }
        let own = &self.intent.borrow().places.clone();
        let found = self.all()?;
        match found
            .iter()
            .find(|it| !own.contains(&(it.profile_id, it.placement)))
        {
            Some(other) => Err(Stop::Foreign(format!(
                "{} ({})",
                other.gi_id,
                self.place_name(other.profile_id, other.placement)
            ))),
            None => Ok(()),
        }
    }

    /// Whether MIG mode is on.
    pub fn is_mig(&self) -> Result<bool, Stop> {
        let mode = self.ask("nvmlDeviceGetMigMode", "", |calls| calls.mig_mode())?;
        Ok(mode.is_ok_and(|(now, _)| now))
    }

    /// The profiles of which slices are made.
    pub fn plain(&self) -> impl Iterator<Item = &Profile> {
        self.geometry.profiles.iter().filter(|it| it.is_plain())
    }

    /// The id of the smallest plain profile, and its first and last place.
    pub fn smallest_places(&self) -> Option<(u32, Placement, Placement)> {
        let smallest = self.smallest()?;
        let places = &smallest.placements;
        Some((smallest.id, *places.first()?, *places.last()?))
    }

    /// The smallest plain profile.
    pub fn smallest(&self) -> Option<&Profile> {
        let fitting = self.plain().filter(|it| !it.placements.is_empty());
        fitting.min_by_key(|it| (it.memory_slices(), it.compute_slices))
    }
}
