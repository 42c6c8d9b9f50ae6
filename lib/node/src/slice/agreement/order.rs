//! Determines the slices of a job, from Slurm's record and the entry of job_submit.

use std::time::Duration;

use gpufrac_core::config::Device;
use gpufrac_core::count_name::CountName;
use gpufrac_core::entry::Entry;
use gpufrac_core::fraction::Units;
use gpufrac_core::ids::DeviceIndex;
use gpufrac_core::layout::MenuEntry;
use gpufrac_core::lease::Lease;
use gpufrac_host::log::JobLog;

use super::asked::{self, Against};
use super::job_record::JobRecord;
use crate::job::environment::JobEnv;
use crate::job::slurmctld::Slurm;
use crate::node::Node;
use crate::slice::carve::error::CarveError;
use crate::slice::carve::other_pools::OtherPools;
use crate::slice::carve::times::{PATIENCE, QUESTIONS};
use crate::state::record::NodeRecord;

/// The name of the counted resource in messages.
const SHARES: &str = "shares of a GPU";

/// A job's request, by Slurm and by the entry.
pub(crate) struct Request<'a> {
    pub(crate) job: &'a JobEnv,
    pub(crate) node: &'a Node,
    pub(crate) log: &'a JobLog,
    /// None if Slurm does not answer or does not know the job.
    pub(crate) record: Option<JobRecord>,
    /// The entry, if it can be trusted.
    entry: Option<Entry>,
    /// The reason why Slurm did not answer.
    no_answer: Option<String>,
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

impl<'a> Request<'a> {
    /// `held`: whether the job holds a device of a pool.
    pub(crate) fn of(
        job: &'a JobEnv,
        node: &'a Node,
        entry: Option<Entry>,
        held: bool,
        slurm: &dyn Slurm,
        log: &'a JobLog,
    ) -> Result<Self, CarveError> {
        let is_all_there_is = is_per_task(entry) || held && entry.is_none();
        let answer = JobRecord::ask(job, &node.config.count_name, slurm, |answer| match answer {
            Err(error) if is_all_there_is && !error.is_of_other_series() => QUESTIONS,
            // The job can be requeued, so the wait is shorter.
            Ok(Some(record)) if record.lacks_count() => PATIENCE,
            _ => Duration::ZERO,
        });
        let (record, entry, no_answer) = match answer {
            Ok(record) => (record, entry, None),
            // No entry is trusted here: job_submit's plugin is probably not of this series of Slurm either, and then
            // leaves entries as users write them.
            Err(error) if error.is_of_other_series() && held => {
                return Err(CarveError::Foreign(error));
            }
            Err(error) => {
                // slurmctld did not say what the job asked for. Cure: The program asks again. Check `scontrol ping`.
                log.warning(format!(
                    "reading the job's request from Slurm failed: {error}"
                ));
                let trusted = entry.filter(|_| !error.is_of_other_series());
                (None, trusted, Some(error.to_string()))
            }
        };
        Ok(Request {
            job,
            node,
            log,
            record,
            entry,
            no_answer,
        })
    }

    pub(crate) fn wants_gpu(&self) -> bool {
        let for_gpu = |record: &JobRecord| record.asked.is_for_gpu(&self.node.config);
        self.record.as_ref().map_or(self.entry.is_some(), for_gpu)
    }

    /// Refuses a job that asks for no part of a GPU by gpufrac's reading, but has shares by Slurm's allocation.
    /// Devices without shares come from `--exclusive`.
    pub(crate) fn check_no_shares(&self) -> Result<(), CarveError> {
        let allocated = self.record.as_ref().map_or(0, JobRecord::shards);
        self.compare(SHARES, 0, allocated)
    }

    /// The slices that the job gets of its devices. `findings`: those of node-setup.
    pub(crate) fn order<'d>(
        &self,
        findings: &NodeRecord,
        devices: &[Device<'d>],
    ) -> Result<Order<'d>, CarveError> {
        // A job can be changed or submitted without job_submit seeing its text.
        if let Some(record) = &self.record {
            let unread = record.asked.refuse_ambiguous();
            unread.map_err(|source| CarveError::Ambiguous {
                job_id: self.job.job_id,
                source,
            })?;
        }
        let held = self.devices(devices)?;
        let units = self.units(&held)?;
        let menus = held
            .iter()
            .map(|device| self.menu_entry(findings, device, units.of_each_gpu()));
        let menus: Vec<&MenuEntry> = menus.collect::<Result<_, _>>()?;
        let (count, whole_device) = self.counted(&held, units)?;
        let parts = (0..).zip(held).zip(menus);
        let parts = parts.map(|((first, device), menu)| Part {
            device,
            menu,
            first,
            count,
        });
        Ok(Order {
            parts: parts.collect(),
            whole_device,
        })
    }

    /// The devices of pools that Slurm gave to the job, in the order of their GPUs: one, or several whole ones.
    /// slurmctld's allocation names all whole GPUs, and the variables of Prolog may name fewer.
    fn devices<'d>(&self, devices: &[Device<'d>]) -> Result<Vec<Device<'d>>, CarveError> {
        let given = &self.job.devices;
        let those = |is_held: &dyn Fn(&Device<'_>) -> bool| -> Vec<Device<'d>> {
            let held = devices.iter().filter(|device| is_held(device));
            held.copied().collect()
        };
        let mut held = those(&|device| self.is_lent_whole(device));
        if held.is_empty() {
            held = those(&|device| given.contains(&device.index));
        }
        held.sort_by_key(|device| device.gpu_index);
        let (devices, count) = (given.clone(), devices.len());
        match held.as_slice() {
            [] if given.is_empty() => Err(CarveError::NoDevice),
            [] => Err(CarveError::UnknownDevice { devices, count }),
            [_, _, ..] if !held.iter().all(|device| device.pool.lends_whole()) => {
                Err(CarveError::SeveralDevices { devices })
            }
            _ => Ok(held),
        }
    }

    /// Whether it is a whole GPU for the job's partition, and slurmctld allocated it. With `--exclusive` slurmctld
    /// allocates all devices of the node, those of other pools and of no pool too.
    fn is_lent_whole(&self, device: &Device<'_>) -> bool {
        let pool = device.pool;
        self.record.as_ref().is_some_and(|record| {
            let mut held = record.held.iter();
            held.any(|held| held.is_device(device))
                && pool.lends_whole()
                && pool.serves(&record.info.partition)
        })
    }

    /// The units that the job gets of all its devices.
    fn units(&self, devices: &[Device<'_>]) -> Result<Units, CarveError> {
        let asked = self.record.as_ref().map(|record| &record.asked);
        let named = self.entry.and_then(|entry| entry.mechanism);
        let mut pools = devices.iter().map(|device| device.pool);
        if let Some(named) = named
            && let Some(pool) = pools.find(|pool| named != pool.mechanism)
        {
            let offered = pool.mechanism;
            // Slurm's own text keeps a mechanism that the user named, by the Type. The entry also has it if no other
            // was possible, and stays the same when the job is moved.
            if asked.is_none() {
                return Err(CarveError::Mechanism {
                    asked: named,
                    pool: pool.name.clone(),
                    offered,
                });
            }
            // The user or an admin changed the pending job. The allocation counts. Cure: Nothing.
            self.log.info(format!(
                "the job was changed while it was pending: a slice by {offered}, not {named}"
            ));
        }
        let units = asked::granted(asked, self.entry, devices);
        let units = units.ok_or_else(|| CarveError::NoSize {
            device: devices
                .first()
                .map_or(DeviceIndex(0), |device| device.index),
            tres: asked.map_or(String::new(), |asked| asked.per_node.clone()),
        })?;
        if let Some(entry) = self.entry.filter(|entry| entry.units != units) {
            // The user or an admin changed the pending job. The allocation counts. Cure: Nothing.
            self.log.info(format!(
                "the job was changed while it was pending: {units} units, not {}",
                entry.units
            ));
        }
        Ok(units)
    }

    /// The size that the job gets of one device.
    fn menu_entry<'d>(
        &self,
        findings: &NodeRecord,
        device: &Device<'d>,
        units: Units,
    ) -> Result<&'d MenuEntry, CarveError> {
        let pool = &device.pool.name;
        let gpu = findings.gpus.get(device.gpu_index.position());
        if gpu.and_then(|gpu| gpu.pool.as_ref()) != Some(pool) {
            return Err(CarveError::ConfigChanged {
                pool: pool.clone(),
                gpu_index: device.gpu_index,
            });
        }
        let menu = asked::menu_entry(device, units);
        self.compare_pools(device, units, menu)?;
        let menu = menu.ok_or_else(|| CarveError::TooSmall {
            pool: pool.clone(),
            units,
        })?;
        let Some(record) = &self.record else {
            return Ok(menu);
        };
        let (config, partition) = (&self.node.config, &record.info.partition);
        let against = record
            .asked
            .against_rules(config, partition, device, units, menu);
        match against {
            Some(Against { rule, update }) => Err(CarveError::Rule {
                job_id: self.job.job_id,
                partition: partition.clone(),
                rule,
                update,
            }),
            None => Ok(menu),
        }
    }

    /// Checks that the counted units are exactly a size of the node's pool; otherwise slurmctld and the node have
    /// different pools, and the job would get less than was counted. Shares that were requested without a fraction
    /// are rounded down, as before. Pools that differ elsewhere do not matter: the job gets what was counted.
    fn compare_pools(
        &self,
        device: &Device<'_>,
        units: Units,
        menu: Option<&MenuEntry>,
    ) -> Result<(), CarveError> {
        let Some(entry) = self.entry else {
            return Ok(());
        };
        let (node, here) = (&self.node.name, self.node.config.pools_sum());
        let record = self.record.as_ref();
        let is_fraction = record.is_none_or(|record| record.asked.names_fraction());
        let same = entry.units.of_each_gpu() == units;
        if (same || is_fraction) && menu.is_none_or(|menu| menu.units != units) {
            let sizes = device.pool.layout.menu.iter();
            return Err(CarveError::OtherPools(OtherPools {
                job_id: self.job.job_id,
                node: node.clone(),
                pool: device.pool.name.clone(),
                units,
                sizes: sizes.map(|size| size.units).collect(),
                pools: self.job.pools.map(|there| (there, here)),
            }));
        }
        if let Some(there) = self.job.pools.filter(|there| *there != here) {
            // The pools of the two hosts differ, but the job's size is the same in both. Cure: Copy gpufrac.toml from
            // slurmctld's host, unless the pools were just changed.
            self.log.warning(format!(
                "gpufrac.toml of {node} differs from the one by which slurmctld counted the job, which gets its {units} units nevertheless (checksum of the pools: {there} there, {here} here); if the pools were not just changed, copy the file from slurmctld's host"
            ));
        }
        Ok(())
    }

    /// The number of slices of these units that the job holds on each device, and whether it holds the devices
    /// themselves. slurmctld's allocation decides; it must be as much of the devices as the request asks for. The job
    /// also gets the whole devices that `--exclusive` adds.
    fn counted(&self, devices: &[Device<'_>], units: Units) -> Result<(u32, bool), CarveError> {
        let Some(JobRecord { info, asked, held }) = &self.record else {
            if is_per_task(self.entry) {
                let why = self.no_answer.as_deref();
                let why = why.unwrap_or("it does not know the job").to_owned();
                return Err(CarveError::Uncounted { why });
            }
            // The SPANK plugin checks that Slurm allocated as much.
            let gpus = u64::from(units.gpus().unwrap_or(1));
            let given = u64::try_from(devices.len()).unwrap_or(u64::MAX);
            return self.compare("whole GPUs", gpus, given).map(|()| (1, false));
        };
        let shares = asked.shares();
        if let (Some(_), Some(_)) = shares {
            return Err(CarveError::NodeAndTask {
                per_node: asked.per_node.clone(),
                per_task: asked.per_task.clone(),
            });
        }
        let uncounted = || CarveError::Uncounted {
            why: format!("`{}` on `{}`", info.gres_of_nodes.join(" "), info.nodes),
        };
        let held = held.as_ref().ok_or_else(uncounted)?;
        let (slices, whole_device, allocated) = if shares.1.is_some() {
            (
                held.slices(units).ok_or_else(uncounted)?,
                false,
                held.shards,
            )
        } else {
            let whole_device = devices.iter().all(|device| held.is_device(device));
            let wanted = u64::from(units.0);
            // A job has shares of one device only.
            let allocated =
                if devices.len() > 1 && !whole_device { 0 } else { held.units_of(devices) };
            let more = whole_device && wanted < allocated && units.gpus().is_some();
            if !more {
                self.compare(SHARES, wanted, allocated)?;
            }
            (1, whole_device, allocated)
        };
        // Limits and bills apply to `gres/gpufrac`, so it must count at least what the job gets.
        if held.gpufrac < allocated && asked.names_fraction() {
            let name = format!("units of gres/{}", self.node.config.count_name);
            self.compare(&name, allocated, held.gpufrac)?;
        }
        Ok((slices, whole_device))
    }

    /// Checks that Slurm allocated on this node as much as the job asks for. `name`: what is counted.
    fn compare(&self, name: &str, wanted: u64, allocated: u64) -> Result<(), CarveError> {
        if wanted == allocated {
            return Ok(());
        }
        Err(CarveError::Allocated {
            job_id: self.job.job_id,
            name: name.to_owned(),
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
    let answer = JobRecord::ask(job, name, slurm, |answer| match answer {
        Err(error) if !error.is_of_other_series() => QUESTIONS,
        _ => Duration::ZERO,
    });
    let is_counted = match answer {
        Ok(None) => false,
        Ok(Some(record)) if job.is_over_by(&record.info) => false,
        Ok(Some(record)) => record.held.is_none_or(|held| held.gpufrac > 0),
        // No entry is trusted then, because its user may have written it.
        Err(error) => !error.is_of_other_series(),
    };
    if !is_counted {
        return Ok(());
    }
    Err(CarveError::NoPool {
        node: job.node.clone(),
    })
}

fn is_per_task(entry: Option<Entry>) -> bool {
    entry.is_some_and(|entry| entry.per_task)
}
