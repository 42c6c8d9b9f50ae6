//! The variables of Prolog and Epilog. Slurm sets them itself. Of the job's own environment only `SPANK_*` can reach
//! Prolog and Epilog, and there job_submit replaces the user's value of `SPANK_GPUFRAC`.

use std::ffi::OsString;
use std::path::PathBuf;

use gpufrac_core::config;
use gpufrac_core::entry::{self, Entry, EntryError};
use gpufrac_core::fraction::Units;
use gpufrac_core::ids::{DeviceIndex, GroupId, JobId, UserId};
use gpufrac_core::lease::{self, Lease};
use gpufrac_core::policy::IdleWish;
use gpufrac_core::pools_sum::PoolsSum;
use slurm_sys::client::{JobInfo, JobState};

/// A variable is missing or invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobEnvError {
    /// The program was not started by slurmd.
    /// Cure: Name it in `Prolog=` or `Epilog=` of slurm.conf.
    #[error("`{0}` is not set; run this program only from slurmd, as Prolog or Epilog")]
    Missing(&'static str),
    /// The text of a variable is invalid.
    #[error("`{name}={value}` is not {expected}")]
    Invalid {
        name: &'static str,
        value: String,
        /// The expected form.
        expected: &'static str,
    },
}

/// A job on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnv {
    pub job_id: JobId,
    pub user_id: UserId,
    pub group_id: GroupId,
    /// The user name, for records.
    pub user: String,
    /// The account; None without accounting.
    pub account: Option<String>,
    /// The partition, or a list of partitions.
    pub partition: String,
    pub node: String,
    /// Slurm's indexes of the job's devices on this node.
    pub devices: Vec<DeviceIndex>,
    /// The grant of job_submit. An entry that cannot be read only matters if the job has a device of a pool.
    pub entry: Result<Option<Entry>, EntryError>,
    /// The checksum of the pools by which the entry was written; None in entries of older builds.
    pub pools: Option<PoolsSum>,
    /// How often the job was requeued.
    pub restart_count: u32,
    /// Slurm's SLUID of this run, from 26.05 on.
    pub sluid: Option<String>,
    /// Whether slurmd loads the user's login environment for the job, outside of its control groups.
    pub loads_login: bool,
    pub config: PathBuf,
}

/// Whether this job has a GPU or a fraction; if not, prolog and epilog end at once.
pub fn concerns_gpus(lookup: impl Fn(&str) -> Option<OsString>) -> bool {
    lookup(entry::ENV_NAME).is_some() || lookup("SLURM_JOB_GPUS").is_some()
}

/// The path of the configuration in the environment.
pub fn config_path(lookup: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    lookup(config::PATH_ENV).map_or_else(|| config::PATH.into(), PathBuf::from)
}

/// The name of this node: from slurmd, otherwise the host's short name.
pub fn node_name(lookup: impl Fn(&str) -> Option<OsString>) -> String {
    if let Some(name) = lookup("SLURMD_NODENAME").and_then(|name| name.into_string().ok()) {
        return name;
    }
    host_name()
}

/// The host's short name.
pub fn host_name() -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let host = host.to_string_lossy();
    host.split('.').next().unwrap_or_default().to_owned()
}

impl JobEnv {
    /// Whether a lease is of this run of this job. Slurm's ids start again if it lost its state, and a requeued job
    /// keeps its id. Only a SLUID tells two jobs of one user apart that have the same id.
    pub fn is_run_of(&self, lease: &Lease) -> bool {
        let is_other = match (&self.sluid, &lease.sluid) {
            (Some(own), Some(of_lease)) => own != of_lease,
            _ => false,
        };
        let is_same = lease.user_id == self.user_id && lease.restart_count == self.restart_count;
        is_same && !is_other
    }

    /// Whether Slurm's record says that this run of the job has ended: its user cancelled it, or the prolog of
    /// another node requeued it.
    pub fn is_over_by(&self, info: &JobInfo) -> bool {
        let runs = matches!(info.state, JobState::Running | JobState::Suspended);
        !runs || info.restart_count > self.restart_count
    }

    /// The value of `--gpufrac-idle`; only the entry is trusted.
    pub fn idle_wish(&self) -> IdleWish {
        let entry = self.entry.as_ref().ok().copied().flatten();
        entry.map_or(IdleWish::Default, |entry| entry.wish)
    }

    /// The ceiling of compute that the user asked for with `--gpufrac-burst`: only the entry is believed.
    pub fn burst(&self) -> Option<Units> {
        self.entry.as_ref().ok().copied().flatten()?.burst
    }

    /// Reads the variables through `lookup`; a program passes [`std::env::var_os`].
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Result<JobEnv, JobEnvError> {
        let text = |name: &str| lookup(name).map(|value| value.to_string_lossy().into_owned());
        let number = |name: &'static str| -> Result<u32, JobEnvError> {
            let value = text(name).ok_or(JobEnvError::Missing(name))?;
            value.parse().map_err(|_| JobEnvError::Invalid {
                name,
                value,
                expected: "a number",
            })
        };
        let gpus = text("SLURM_JOB_GPUS").unwrap_or_default();
        let devices = gpus
            .split(',')
            .filter(|part| !part.is_empty())
            .map(str::parse)
            .collect::<Result<Vec<DeviceIndex>, _>>()
            .map_err(|_| JobEnvError::Invalid {
                name: "SLURM_JOB_GPUS",
                value: gpus.clone(),
                expected: "a list of device indexes",
            })?;
        Ok(JobEnv {
            job_id: JobId(number("SLURM_JOB_ID")?),
            user_id: UserId(number("SLURM_JOB_UID")?),
            group_id: GroupId(number("SLURM_JOB_GID").unwrap_or(0)),
            user: text("SLURM_JOB_USER").unwrap_or_default(),
            account: text("SLURM_JOB_ACCOUNT").filter(|account| !account.is_empty()),
            partition: text("SLURM_JOB_PARTITION").unwrap_or_default(),
            node: node_name(&lookup),
            devices,
            entry: text(entry::ENV_NAME).map(|text| text.parse()).transpose(),
            // The checksum grants nothing, so an unreadable one is ignored.
            pools: text(entry::POOLS_NAME).and_then(|text| text.parse().ok()),
            // Some versions do not set it before the first requeue.
            restart_count: number("SLURM_JOB_RESTART_COUNT").unwrap_or(0),
            sluid: text("SLURM_JOB_SLUID").filter(|text| lease::is_sluid(text)),
            loads_login: lookup(entry::LOGIN_NAME).is_some(),
            config: config_path(&lookup),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        move |name| {
            let pair = pairs.iter().find(|(key, _)| *key == name)?;
            Some(pair.1.into())
        }
    }

    const JOB: &[(&str, &str)] = &[
        ("SLURM_JOB_ID", "12"),
        ("SLURM_JOB_UID", "1000"),
        ("SLURM_JOB_GID", "1000"),
        ("SLURM_JOB_USER", "ada"),
        ("SLURM_JOB_PARTITION", "gpu"),
        ("SLURMD_NODENAME", "gn01"),
        ("SLURM_JOB_GPUS", "3"),
        ("SPANK_GPUFRAC", "v1:units=25:mech=mig"),
    ];

    #[test]
    fn reads_a_fractional_job() {
        let job = JobEnv::read(lookup(JOB)).unwrap();
        assert_eq!(
            (job.job_id, job.user_id, job.devices.as_slice()),
            (JobId(12), UserId(1000), &[DeviceIndex(3)][..])
        );
        assert_eq!(job.entry.unwrap().unwrap().units.0, 25);
        assert_eq!(job.node, "gn01");
        assert_eq!((job.restart_count, job.account), (0, None));
        assert_eq!(job.config, PathBuf::from(config::PATH));
    }

    #[test]
    fn a_sluid_is_slurms_or_none() {
        let with = |sluid: &'static str| {
            let pairs = [JOB, &[("SLURM_JOB_SLUID", sluid)]].concat();
            JobEnv::read(lookup(&pairs)).unwrap().sluid
        };
        assert_eq!(with("sEKNKTV3WPV500").as_deref(), Some("sEKNKTV3WPV500"));
        assert_eq!(with("s/../../etc/mig"), None);
        assert_eq!(JobEnv::read(lookup(JOB)).unwrap().sluid, None);
    }

    #[test]
    fn the_wish_is_the_entrys_and_not_the_users() {
        let wish = |entry: &'static str| {
            // The client's variable of the option reaches the prolog, too.
            let option = ("SPANK__SLURM_SPANK_OPTION_gpufrac_gpufrac_idle", "off");
            let pairs = [&[("SPANK_GPUFRAC", entry), option], JOB].concat();
            JobEnv::read(lookup(&pairs)).unwrap().idle_wish()
        };
        assert_eq!(wish("v1:units=25:mech=mig"), IdleWish::Default);
        assert_eq!(wish("v1:units=25:mech=mig:idle=long"), IdleWish::Long);
        assert_eq!(wish("v1:units=25:mech=mig:idle=forever"), IdleWish::Default);
    }

    #[test]
    fn the_burst_is_the_entrys_and_not_the_users() {
        let burst = |entry: &'static str| {
            let option = ("SPANK__SLURM_SPANK_OPTION_gpufrac_gpufrac_burst", "1");
            let pairs = [&[("SPANK_GPUFRAC", entry), option], JOB].concat();
            let job = JobEnv::read(lookup(&pairs)).unwrap();
            job.burst().map(|units| units.0)
        };
        assert_eq!(burst("v1:units=25:mech=mps"), None);
        assert_eq!(burst("v1:units=25:mech=mps:burst=75"), Some(75));
        assert_eq!(burst("v1:units=25:mech=mps:burst=175"), None);
    }

    #[test]
    fn a_job_without_gpus_is_left_alone() {
        assert!(!concerns_gpus(lookup(&JOB[..6])));
        assert!(concerns_gpus(lookup(&JOB[..7])));
        assert!(concerns_gpus(lookup(&JOB[7..])));
    }

    #[test]
    fn an_invalid_variable_is_refused_by_its_name() {
        let with = |name: &'static str, value: &'static str| {
            let mut pairs = vec![(name, value)];
            pairs.extend_from_slice(JOB);
            JobEnv::read(lookup(&pairs))
        };
        assert!(matches!(
            with("SLURM_JOB_GPUS", "GPU-1"),
            Err(JobEnvError::Invalid {
                name: "SLURM_JOB_GPUS",
                ..
            })
        ));
        assert!(with("SPANK_GPUFRAC", "units=100").unwrap().entry.is_err());
        assert_eq!(
            JobEnv::read(lookup(&JOB[1..])).unwrap_err(),
            JobEnvError::Missing("SLURM_JOB_ID")
        );
    }
}
