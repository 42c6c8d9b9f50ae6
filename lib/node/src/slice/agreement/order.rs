//! Determines the slices of a job, from Slurm's record and the entry of job_submit.

use std::thread::sleep;
use std::time::Duration;

use gpufrac_core::config::Device;
use gpufrac_core::count_name::CountName;
use gpufrac_core::entry::Entry;
use gpufrac_core::fraction::Units;
use gpufrac_core::ids::DeviceIndex;
use gpufrac_core::layout::MenuEntry;
use gpufrac_core::lease::Lease;
use gpufrac_host::log::JobLog;
use slurm_sys::client::{JobInfo, JobState};

use crate::job::environment::JobEnv;
use crate::job::own_name::by_own_name;
use crate::job::slurmctld::{Slurm, SlurmError};
use crate::node::Node;
use crate::slice::agreement::allocated::Allocated;
use crate::slice::agreement::asked::{self, Against, Asked};
use crate::slice::carve::error::{CarveError, OtherPools};
use crate::slice::carve::times::{LONGEST_PAUSE, PATIENCE, QUESTIONS};
use crate::state::record::NodeRecord;

/// The name of the counted resource in messages.
const SHARES: &str = "shares of a GPU";

/// A job's request, by Slurm and by the entry.
pub(crate) struct Request {
    /// Slurm's record of the job; None if Slurm does not answer or does not know the job.
    pub(crate) record: Option<JobInfo>,
    /// The request in the record.
    pub(crate) gres: Option<Asked>,
    /// The entry, if it can be trusted.
    entry: Option<Entry>,
    /// The reason why Slurm did not answer.
    no_answer: Option<String>,
    /// The name under which Slurm counts fractions.
    count_name: CountName,
}

/// The slices to make.
pub(crate) struct Order<'a> {
    /// The work on each GPU, in the order of their indexes.
    pub(crate) parts: Vec<Part<'a>>,
    /// Whether Slurm allocated the devices themselves, and not shares of one.
    pub(crate) whole_device: bool,
}

/// The work on one GPU.
pub(crate) struct Part<'a> {
    pub(crate) device: Device<'a>,
    /// The menu entry of each slice.
    pub(crate) menu: &'a MenuEntry,
    /// The number of the first slice among those of the job.
    pub(crate) first: u32,
    /// The number of slices.
    pub(crate) count: u32,
}

impl Order<'_> {
    /// Whether an older lease of the job has the place and the number of one of these slices.
    pub(crate) fn has_place_of(&self, lease: &Lease) -> bool {
        let on_its_gpu = |part: &&Part<'_>| part.device.gpu_index == lease.slice.gpu_index;
        match self.parts.as_slice() {
            [only] => on_its_gpu(&only),
            // Each GPU has one slice, and the number of the slice names its file.
            parts => parts
                .iter()
                .find(on_its_gpu)
                .is_some_and(|part| part.first == lease.number),
        }
    }
}

/// slurmctld's counts for the job on this node.
struct Counted {
    /// The slices that the job gets of each device.
    slices: u32,
    whole_device: bool,
}

impl Request {
    /// `held`: whether the job holds a device of a pool; `name`: what Slurm counts fractions as.
    pub(crate) fn of(
        job: &JobEnv,
        entry: Option<Entry>,
        held: bool,
        name: &CountName,
        slurm: &dyn Slurm,
        log: &JobLog,
    ) -> Result<Request, CarveError> {
        let error = match ask(job, entry, held, name, slurm) {
            Ok(record) => {
                return Ok(Request {
                    gres: record.as_ref().map(Asked::from),
                    record,
                    entry,
                    no_answer: None,
                    count_name: name.clone(),
                });
            }
            Err(error) => error,
        };
        // No entry is trusted here: job_submit's plugin is probably not of this series of Slurm either, and then
        // leaves entries as users write them.
        if error.is_of_other_series() && held {
            return Err(CarveError::Foreign(error));
        }
        log.warning(format!(
            "reading the job's request from Slurm failed: {error}"
        ));
        Ok(Request {
            record: None,
            gres: None,
            entry: entry.filter(|_| !error.is_of_other_series()),
            no_answer: Some(error.to_string()),
            count_name: name.clone(),
        })
    }

    pub(crate) fn wants_gpu(&self, node: &Node) -> bool {
        let for_gpu = |asked: &Asked| asked.is_for_gpu(&node.config);
        self.gres.as_ref().map_or(self.entry.is_some(), for_gpu)
    }

    /// Refuses a job that asks for no part of a GPU by gpufrac's reading, but has shares by Slurm's allocation.
    /// Devices without shares come from `--exclusive`.
    pub(crate) fn check_no_shares(&self, job: &JobEnv) -> Result<(), CarveError> {
        let held = self
            .record
            .as_ref()
            .and_then(|info| Allocated::on(info, &job.node));
        match held.map_or(0, |held| held.shards()) {
            0 => Ok(()),
            allocated => Err(CarveError::Allocated {
                job_id: job.job_id,
                name: SHARES.to_owned(),
                wanted: 0,
                allocated,
            }),
        }
    }

    /// The slices that the job gets of its devices.
    pub(crate) fn order<'a>(
        &self,
        job: &JobEnv,
        node: &Node,
        record: &NodeRecord,
        devices: &[Device<'a>],
        log: &JobLog,
    ) -> Result<Order<'a>, CarveError> {
        let asked = self.gres.as_ref();
        // A job can be changed or submitted without job_submit seeing its text.
        if let Some(asked) = asked {
            let unread = asked.refuse_ambiguous();
            unread.map_err(|source| CarveError::Ambiguous {
                job_id: job.job_id,
                source,
            })?;
        }
        let held = self.devices(job, devices)?;
        let units = granted_units(asked, self.entry, &held, log)?;
        let menus = held
            .iter()
            .map(|device| self.menu_entry(job, node, record, device, units, log));
        let menus: Vec<&MenuEntry> = menus.collect::<Result<_, _>>()?;
        let counted = self.counted(job, &held, units)?;
        let parts = (0..).zip(held).zip(menus);
        let parts = parts.map(|((number, device), menu)| Part {
            device,
            menu,
            first: number,
            count: counted.slices,
        });
        Ok(Order {
            parts: parts.collect(),
            whole_device: counted.whole_device,
        })
    }

    /// The devices of pools that Slurm gave to the job, in the order of their GPUs: one, or several whole ones.
    fn devices<'a>(
        &self,
        job: &JobEnv,
        devices: &[Device<'a>],
    ) -> Result<Vec<Device<'a>>, CarveError> {
        let mut held = match self.lent_whole(job, devices) {
            lent if lent.is_empty() => devices_of(job, devices)?,
            lent => lent,
        };
        held.sort_by_key(|device| device.gpu_index);
        let are_whole = held.iter().all(|device| device.pool.lends_whole());
        if held.len() > 1 && !are_whole {
            Err(CarveError::SeveralDevices {
                devices: job.devices.clone(),
            })
        } else {
            Ok(held)
        }
    }

    /// The whole GPUs for the job's partition among those that slurmctld allocated. With `--exclusive` it allocates all
    /// devices of the node, those of other pools and of no pool too; the variables of Prolog may name fewer.
    fn lent_whole<'a>(&self, job: &JobEnv, devices: &[Device<'a>]) -> Vec<Device<'a>> {
        let Some(info) = &self.record else {
            return Vec::new();
        };
        let Some(allocated) = Allocated::on(info, &job.node) else {
            return Vec::new();
        };
        let is_lent = |device: &&Device<'_>| {
            let pool = device.pool;
            allocated.is_device(device) && pool.lends_whole() && pool.serves(&info.partition)
        };
        devices.iter().filter(is_lent).copied().collect()
    }

    /// The size that the job gets of one device. `units`: of all its devices.
    fn menu_entry<'a>(
        &self,
        job: &JobEnv,
        node: &Node,
        record: &NodeRecord,
        device: &Device<'a>,
        units: Units,
        log: &JobLog,
    ) -> Result<&'a MenuEntry, CarveError> {
        check_record(record, device)?;
        let units = units.of_each_gpu();
        let menu = asked::menu_entry(device, units);
        self.compare_pools(job, node, device, units, menu, log)?;
        let menu = menu.ok_or_else(|| CarveError::TooSmall {
            pool: device.pool.name.clone(),
            units,
        })?;
        if let (Some(info), Some(asked)) = (&self.record, &self.gres)
            && let Some(Against { rule, update }) =
                asked.against_rules(&node.config, &info.partition, device, units, menu)
        {
            return Err(CarveError::Rule {
                job_id: job.job_id,
                partition: info.partition.clone(),
                rule,
                update,
            });
        }
        Ok(menu)
    }

    /// Checks that the counted units are exactly a size of the node's pool; otherwise slurmctld and the node have
    /// different pools, and the job would get less than was counted. Shares that were requested without a fraction
    /// are rounded down, as before. Pools that differ elsewhere do not matter: the job gets what was counted.
    fn compare_pools(
        &self,
        job: &JobEnv,
        node: &Node,
        device: &Device<'_>,
        units: Units,
        menu: Option<&MenuEntry>,
        log: &JobLog,
    ) -> Result<(), CarveError> {
        let Some(entry) = self.entry else {
            return Ok(());
        };
        let here = node.config.pools_sum();
        let is_fraction = self.gres.as_ref().is_none_or(Asked::names_fraction);
        let same = entry.units.of_each_gpu() == units;
        if (same || is_fraction) && menu.is_none_or(|menu| menu.units != units) {
            let sizes = device.pool.layout.menu.iter();
            return Err(CarveError::OtherPools(OtherPools {
                job_id: job.job_id,
                node: node.name.clone(),
                pool: device.pool.name.clone(),
                units,
                sizes: sizes.map(|size| size.units).collect(),
                pools: job.pools.map(|there| (there, here)),
            }));
        }
        if let Some(there) = job.pools.filter(|there| *there != here) {
            log.warning(format!(
                "gpufrac.toml of {} differs from the one by which slurmctld counted the job, which gets its {units} units nevertheless (checksum of the pools: {there} there, {here} here); if the pools were not just changed, copy the file from slurmctld's host",
                node.name
            ));
        }
        Ok(())
    }

    /// The number of slices of these units that the job holds on each device. slurmctld's allocation decides; it must
    /// be as much of the devices as the request asks for. The job also gets the whole devices that `--exclusive` adds.
    fn counted(
        &self,
        job: &JobEnv,
        devices: &[Device<'_>],
        units: Units,
    ) -> Result<Counted, CarveError> {
        let (Some(info), Some(asked)) = (&self.record, &self.gres) else {
            let unknown = || "it does not know the job".to_owned();
            return if is_per_task(self.entry) {
                Err(CarveError::Uncounted {
                    why: self.no_answer.clone().unwrap_or_else(unknown),
                })
            } else {
                // The SPANK plugin checks that Slurm allocated as much.
                check_gpus(job, devices, units).map(|()| Counted {
                    slices: 1,
                    whole_device: false,
                })
            };
        };
        if asked.is_twice() {
            return Err(CarveError::NodeAndTask {
                per_node: asked.per_node.clone(),
                per_task: asked.per_task.clone(),
            });
        }
        let uncounted = || CarveError::Uncounted {
            why: format!("`{}` on `{}`", info.gres_of_nodes.join(" "), info.nodes),
        };
        let held = Allocated::on(info, &job.node).ok_or_else(uncounted)?;
        if asked.is_per_task() {
            let slices = held.slices(units).ok_or_else(uncounted)?;
            let wanted = u64::from(units.0) * u64::from(slices);
            self.check_total(job, &held, asked, wanted)?;
            return Ok(Counted {
                slices,
                whole_device: false,
            });
        }
        let whole_device = devices.iter().all(|device| held.is_device(device));
        let wanted = u64::from(units.0);
        // A job has shares of one device only.
        let allocated = if devices.len() > 1 && !whole_device { 0 } else { held.units_of(devices) };
        let more = whole_device && wanted < allocated && units.gpus().is_some();
        if allocated != wanted && !more {
            return Err(CarveError::Allocated {
                job_id: job.job_id,
                name: SHARES.to_owned(),
                wanted,
                allocated,
            });
        }
        self.check_total(job, &held, asked, allocated)?;
        Ok(Counted {
            slices: 1,
            whole_device,
        })
    }

    /// Checks that `gres/gpufrac`, to which limits and bills apply, counts at least what the job gets.
    fn check_total(
        &self,
        job: &JobEnv,
        held: &Allocated,
        asked: &Asked,
        wanted: u64,
    ) -> Result<(), CarveError> {
        let allocated = held.gpufrac();
        if allocated >= wanted || !asked.names_fraction() {
            return Ok(());
        }
        Err(CarveError::Allocated {
            job_id: job.job_id,
            name: format!("units of gres/{}", self.count_name),
            wanted,
            allocated,
        })
    }
}

/// A job with a granted fraction and a device, on a node without a pool. A job that was moved there keeps its entry,
/// and gets what Slurm counts on that node. If that is gpufrac, no slice can be made.
pub(crate) fn without_pools(
    job: &JobEnv,
    name: &CountName,
    slurm: &dyn Slurm,
) -> Result<(), CarveError> {
    if job.devices.is_empty() || !matches!(job.entry, Ok(Some(_))) {
        return Ok(());
    }
    let start = slurm.now();
    loop {
        match slurm.job(job.job_id) {
            Ok(None) => return Ok(()),
            Ok(Some(info)) if job.is_over_by(&info) => return Ok(()),
            Ok(Some(info)) => match Allocated::on(&by_own_name(info, name), &job.node) {
                Some(held) if held.gpufrac() == 0 => return Ok(()),
                _ => break,
            },
            // No entry is trusted then, because its user may have written it.
            Err(error) if error.is_of_other_series() => return Ok(()),
            Err(_) if slurm.now().duration_since(start) < QUESTIONS => sleep(LONGEST_PAUSE),
            Err(_) => break,
        }
    }
    Err(CarveError::NoPool {
        node: job.node.clone(),
    })
}

/// Asks Slurm again, if no slice can be made without its answer.
fn ask(
    job: &JobEnv,
    entry: Option<Entry>,
    held: bool,
    name: &CountName,
    slurm: &dyn Slurm,
) -> Result<Option<JobInfo>, SlurmError> {
    let start = slurm.now();
    let is_all_there_is = is_per_task(entry) || held && entry.is_none();
    loop {
        let answer = slurm.job(job.job_id);
        let answer = answer.map(|info| info.map(|info| by_own_name(info, name)));
        let limit = match &answer {
            Err(error) if is_all_there_is && !error.is_of_other_series() => QUESTIONS,
            // The job can be requeued, so the wait is shorter.
            Ok(Some(info)) if lacks_count(info, &job.node) => PATIENCE,
            _ => Duration::ZERO,
        };
        if slurm.now().duration_since(start) >= limit {
            return answer;
        }
        sleep(LONGEST_PAUSE);
    }
}

fn is_per_task(entry: Option<Entry>) -> bool {
    entry.is_some_and(|entry| entry.per_task)
}

/// Whether Slurm's answer lacks the job's allocation on this node, or has one that cannot be parsed.
fn lacks_count(info: &JobInfo, node: &str) -> bool {
    let empty = info.gres_of_nodes.iter().all(String::is_empty);
    let unread = empty || Allocated::on(info, node).is_none();
    unread && info.state == JobState::Running && Asked::from(info).names_shares()
}

/// The devices of pools in the variables of Prolog; at least one.
fn devices_of<'a>(job: &JobEnv, devices: &[Device<'a>]) -> Result<Vec<Device<'a>>, CarveError> {
    let ours = devices
        .iter()
        .filter(|device| job.devices.contains(&device.index));
    let ours: Vec<Device<'_>> = ours.copied().collect();
    match (ours.is_empty(), job.devices.is_empty()) {
        (false, _) => Ok(ours),
        (true, true) => Err(CarveError::NoDevice),
        (true, false) => Err(CarveError::UnknownDevice {
            devices: job.devices.clone(),
            count: devices.len(),
        }),
    }
}

/// Checks that the job has as many devices as the entry grants whole GPUs, if Slurm does not answer.
fn check_gpus(job: &JobEnv, devices: &[Device<'_>], units: Units) -> Result<(), CarveError> {
    let wanted = units.gpus().unwrap_or(1);
    if usize::try_from(wanted).is_ok_and(|wanted| wanted == devices.len()) {
        Ok(())
    } else {
        Err(CarveError::Allocated {
            job_id: job.job_id,
            name: "whole GPUs".to_owned(),
            wanted: wanted.into(),
            allocated: u64::try_from(devices.len()).unwrap_or(u64::MAX),
        })
    }
}

/// Checks that the configuration and the record of node-setup have the same GPUs.
fn check_record(record: &NodeRecord, device: &Device<'_>) -> Result<(), CarveError> {
    let gpu = record.gpus.get(device.gpu_index.position());
    match gpu.map(|gpu| gpu.pool.as_deref()) {
        Some(Some(pool)) if pool == device.pool.name => Ok(()),
        _ => Err(CarveError::ConfigChanged {
            pool: device.pool.name.clone(),
            gpu_index: device.gpu_index,
        }),
    }
}

fn granted_units(
    asked: Option<&Asked>,
    entry: Option<Entry>,
    devices: &[Device<'_>],
    log: &JobLog,
) -> Result<Units, CarveError> {
    let named = entry.and_then(|entry| entry.mechanism);
    let other = devices
        .iter()
        .map(|device| device.pool)
        .find(|pool| named.is_some_and(|named| named != pool.mechanism));
    if let (Some(named), Some(pool)) = (named, other) {
        let offered = pool.mechanism;
        // Slurm's own text keeps a mechanism that the user named, by the Type. The entry also has it if no other was
        // possible, and stays the same when the job is moved.
        if asked.is_none() {
            return Err(CarveError::Mechanism {
                asked: named,
                pool: pool.name.clone(),
                offered,
            });
        }
        log.info(format!(
            "the job was changed while it was pending: a slice by {offered}, not {named}"
        ));
    }
    let units = asked::granted(asked, entry, devices);
    let units = units.ok_or_else(|| CarveError::NoSize {
        device: devices
            .first()
            .map_or(DeviceIndex(0), |device| device.index),
        tres: asked.map_or(String::new(), |asked| asked.per_node.clone()),
    })?;
    if let Some(entry) = entry
        && entry.units != units
    {
        log.info(format!(
            "the job was changed while it was pending: {units} units, not {}",
            entry.units
        ));
    }
    Ok(units)
}
