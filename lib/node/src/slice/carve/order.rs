//! What a job must have, by Slurm's answer and by the entry of job_submit.

use std::thread::sleep;
use std::time::Duration;

use gpufrac_core::config::Device;
use gpufrac_core::entry::Entry;
use gpufrac_core::fraction::Units;
use gpufrac_core::layout::MenuEntry;
use gpufrac_host::log::JobLog;
use slurm_sys::client::{JobInfo, JobState};

use super::Carved;
use super::error::{CarveError, OtherPools};
use super::times::{LONGEST_PAUSE, PATIENCE, QUESTIONS};
use crate::job::allocated::Allocated;
use crate::job::environment::JobEnv;
use crate::job::grant::{self, Asked};
use crate::job::slurmctld::{Slurm, SlurmError};
use crate::node::Node;
use crate::state::record::NodeRecord;

/// What is counted of a device.
const SHARES: &str = "shares of a GPU";

/// What Slurm and the entry say of a job together.
pub(super) struct Word {
    /// Slurm's record of the job; None where Slurm does not answer or know it.
    pub(super) said: Option<JobInfo>,
    /// What the record says that the job asks for.
    pub(super) asked: Option<Asked>,
    /// The entry, where it can be believed.
    entry: Option<Entry>,
    /// Why Slurm did not answer.
    silence: Option<String>,
}

/// What is to be made.
pub(super) struct Order<'a> {
    pub(super) device: Device<'a>,
    /// What each slice is.
    pub(super) menu: &'a MenuEntry,
    /// How many slices.
    pub(super) count: u32,
    /// Whether Slurm said that the job holds the device itself, and not shares of it.
    pub(super) whole_device: bool,
}

/// What slurmctld counted for the job here.
struct Counted {
    slices: u32,
    whole_device: bool,
}

impl Word {
    /// `held`: whether the job holds a device of a pool.
    pub(super) fn hear(
        job: &JobEnv,
        entry: Option<Entry>,
        held: bool,
        slurm: &dyn Slurm,
        log: &JobLog,
    ) -> Result<Word, CarveError> {
        let error = match ask(job, entry, held, slurm) {
            Ok(said) => {
                return Ok(Word {
                    asked: said.as_ref().map(Asked::from),
                    said,
                    entry,
                    silence: None,
                });
            }
            Err(error) => error,
        };
        // Not even an entry says what the job may have: job_submit's plugin is hardly of this Slurm either, and so
        // leaves all entries as users write them.
        if error.is_of_other_series() && held {
            return Err(CarveError::Foreign(error));
        }
        log.warning(format!(
            "Slurm does not say what the job asked for: {error}"
        ));
        Ok(Word {
            said: None,
            asked: None,
            entry: entry.filter(|_| !error.is_of_other_series()),
            silence: Some(error.to_string()),
        })
    }

    pub(super) fn wants_gpu(&self, node: &Node) -> bool {
        let for_gpu = |asked: &Asked| asked.is_for_gpu(&node.config);
        self.asked.as_ref().map_or(self.entry.is_some(), for_gpu)
    }

    /// Refuses a job that asks for no part of a GPU by gpufrac's reading, and to which Slurm allocated shares all the same.
    /// Devices alone come from `--exclusive`.
    pub(super) fn check_no_shares(&self, job: &JobEnv) -> Result<(), CarveError> {
        let held = self
            .said
            .as_ref()
            .and_then(|info| Allocated::on(info, &job.node));
        match held.map_or(0, |held| held.shards()) {
            0 => Ok(()),
            allocated => Err(CarveError::Allocated {
                job_id: job.job_id,
                name: SHARES,
                wanted: 0,
                allocated,
            }),
        }
    }

    /// What the job is to have of the device that Slurm gave it.
    pub(super) fn order<'a>(
        &self,
        job: &JobEnv,
        node: &Node,
        record: &NodeRecord,
        devices: &[Device<'a>],
        log: &JobLog,
    ) -> Result<Order<'a>, CarveError> {
        let asked = self.asked.as_ref();
        // A job can be changed, or come, without job_submit having seen its text.
        if let Some(asked) = asked {
            let unread = asked.refuse_ambiguous();
            unread.map_err(|source| CarveError::Ambiguous {
                job_id: job.job_id,
                source,
            })?;
        }
        let device = device_of(job, devices)?;
        check_record(record, &device)?;
        let units = granted_units(asked, self.entry, &device, log)?;
        let menu = grant::menu_entry(&device, units);
        self.compare_pools(job, node, &device, units, menu, log)?;
        let menu = menu.ok_or_else(|| CarveError::TooSmall {
            pool: device.pool.name.clone(),
            units,
        })?;
        if let (Some(info), Some(asked)) = (&self.said, asked)
            && let Some(rule) =
                asked.against_rules(&node.config, &info.partition, &device, units, menu)
        {
            return Err(CarveError::Rule {
                job_id: job.job_id,
                partition: info.partition.clone(),
                rule,
            });
        }
        let counted = self.counted(job, &device, units)?;
        Ok(Order {
            device,
            menu,
            count: counted.slices,
            whole_device: counted.whole_device,
        })
    }

    /// What job_submit counted is exactly a size of the node's pool, or the two go by different pools: the job would get less
    /// than was counted for it. Shares that somebody asked for without a fraction are rounded down, as they always were. Pools
    /// that differ elsewhere are no reason to give a job back: it gets what was counted.
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
        let is_fraction = self.asked.as_ref().is_none_or(Asked::names_fraction);
        if (entry.units == units || is_fraction) && menu.is_none_or(|menu| menu.units != units) {
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
                "gpufrac.toml of {} is not the one by which slurmctld counted the job, which gets its {units} units all the same (sum of the pools: {there} there, {here} here); if the pools were not just changed, copy the file from slurmctld's host",
                node.name
            ));
        }
        Ok(())
    }

    /// How many slices of these units the job holds here. What slurmctld allocated is the truth: the job must hold as much
    /// of the device as its text asks for.
    fn counted(
        &self,
        job: &JobEnv,
        device: &Device<'_>,
        units: Units,
    ) -> Result<Counted, CarveError> {
        let (Some(info), Some(asked)) = (&self.said, &self.asked) else {
            let unknown = || "it does not know the job".to_owned();
            return match is_per_task(self.entry) {
                true => Err(CarveError::Uncounted {
                    why: self.silence.clone().unwrap_or_else(unknown),
                }),
                // The SPANK plugin ensures that Slurm allocated as much.
                false => Ok(Counted {
                    slices: 1,
                    whole_device: false,
                }),
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
            check_total(job, &held, asked, u64::from(units.0) * u64::from(slices))?;
            return Ok(Counted {
                slices,
                whole_device: false,
            });
        }
        let (wanted, allocated) = (u64::from(units.0), held.units_of(device));
        if allocated != wanted {
            return Err(CarveError::Allocated {
                job_id: job.job_id,
                name: SHARES,
                wanted,
                allocated,
            });
        }
        check_total(job, &held, asked, wanted)?;
        Ok(Counted {
            slices: 1,
            whole_device: held.is_device(device),
        })
    }
}

/// A job with a granted fraction and a device, on a node of no pool: one that was moved there keeps what it was granted before,
/// and has what Slurm counts on that node. If that is gpufrac, no slice can be made of it.
pub(super) fn without_pools(job: &JobEnv, slurm: &dyn Slurm) -> Result<Carved, CarveError> {
    if job.devices.is_empty() || !matches!(job.entry, Ok(Some(_))) {
        return Ok(Carved::NotConcerned);
    }
    let start = slurm.now();
    loop {
        match slurm.job(job.job_id) {
            Ok(None) => return Ok(Carved::NotConcerned),
            Ok(Some(info)) if job.is_over_by(&info) => return Ok(Carved::NotConcerned),
            Ok(Some(info)) => match Allocated::on(&info, &job.node) {
                Some(held) if held.gpufrac() == 0 => return Ok(Carved::NotConcerned),
                _ => break,
            },
            // Then no entry is believed: it may be as its user wrote it.
            Err(error) if error.is_of_other_series() => return Ok(Carved::NotConcerned),
            Err(_) if slurm.now().duration_since(start) < QUESTIONS => sleep(LONGEST_PAUSE),
            Err(_) => break,
        }
    }
    Err(CarveError::NoPool {
        node: job.node.clone(),
    })
}

/// Limits and bills are by `gres/gpufrac`: it must count what the job gets, at least.
fn check_total(
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
        name: "units of gres/gpufrac",
        wanted,
        allocated,
    })
}

/// Where nothing can be made without Slurm's answer, Slurm is asked again.
fn ask(
    job: &JobEnv,
    entry: Option<Entry>,
    held: bool,
    slurm: &dyn Slurm,
) -> Result<Option<JobInfo>, SlurmError> {
    let start = slurm.now();
    let is_all_there_is = is_per_task(entry) || held && entry.is_none();
    loop {
        let answer = slurm.job(job.job_id);
        let limit = match &answer {
            Err(error) if is_all_there_is && !error.is_of_other_series() => QUESTIONS,
            // The job can be put back, so this is not waited for as long.
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

/// Whether Slurm answered without what the job holds on this node, or not in words that can be read.
fn lacks_count(info: &JobInfo, node: &str) -> bool {
    let empty = info.gres_of_nodes.iter().all(String::is_empty);
    let unread = empty || Allocated::on(info, node).is_none();
    unread && info.state == JobState::Running && Asked::from(info).names_shares()
}

/// The device of a pool that Slurm gave to the job.
fn device_of<'a>(job: &JobEnv, devices: &[Device<'a>]) -> Result<Device<'a>, CarveError> {
    let mut ours = devices
        .iter()
        .filter(|device| job.devices.contains(&device.index));
    match (ours.next(), ours.next()) {
        (Some(device), None) => Ok(*device),
        (Some(_), Some(_)) => Err(CarveError::SeveralDevices {
            devices: job.devices.clone(),
        }),
        (None, _) if job.devices.is_empty() => Err(CarveError::NoDevice),
        (None, _) => Err(CarveError::UnknownDevice {
            devices: job.devices.clone(),
            count: devices.len(),
        }),
    }
}

/// The configuration and the record of node-setup must mean the same GPUs.
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
    device: &Device<'_>,
    log: &JobLog,
) -> Result<Units, CarveError> {
    let offered = device.pool.mechanism;
    if let Some(named) = entry.and_then(|entry| entry.mechanism)
        && named != offered
    {
        // A mechanism that the user named is kept by the Type in Slurm's own text; the entry has it too where no
        // other came into question, and stays what it was when the job is moved.
        if asked.is_none() {
            return Err(CarveError::Mechanism {
                asked: named,
                pool: device.pool.name.clone(),
                offered,
            });
        }
        log.info(format!(
            "the job was changed while it was pending: a slice by {offered}, not {named}"
        ));
    }
    let units = grant::granted(asked, entry, device);
    let units = units.ok_or_else(|| CarveError::NoSize {
        device: device.index,
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
