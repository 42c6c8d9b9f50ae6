//! Settings of this host's slurm.conf, as libslurm read it, without asking slurmctld.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Client;
use crate::{raw, text};

/// The time limits of Prolog and Epilog; after them slurmd kills the program and drains the node. None: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HookLimits {
    /// The limit of Prolog.
    pub prolog: Option<Duration>,
    /// The limit of Epilog.
    pub epilog: Option<Duration>,
}

/// The paths of SPANK plugins for slurmstepd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpankFiles {
    /// `PlugStackConfig`, otherwise plugstack.conf beside slurm.conf.
    pub plugstack: PathBuf,
    /// The folders of `PluginDir`.
    pub folders: Vec<PathBuf>,
}

/// The values of `PrivateData`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrivateValues {
    pub jobs: bool,
    pub nodes: bool,
    pub usage: bool,
}

impl Client {
    /// The values of `PrivateData`. None if this release does not export its configuration.
    pub fn private_data(&self) -> Option<PrivateValues> {
        let set = self.slurm_conf()?.private_data;
        let has = |value| set & value != 0;
        Some(PrivateValues {
            jobs: has(raw::GPUFRAC_PRIVATE_JOBS),
            nodes: has(raw::GPUFRAC_PRIVATE_NODES),
            usage: has(raw::GPUFRAC_PRIVATE_USAGE),
        })
    }

    /// Whether jobs can end or stop others (`PreemptType`). None if this release does not export its configuration.
    pub fn preempts(&self) -> Option<bool> {
        // SAFETY: texts of libslurm's configuration are NULL or NUL-terminated.
        let kind = unsafe { text::read(self.slurm_conf()?.preempt_type) };
        Some(kind.is_some_and(|kind| kind != "preempt/none"))
    }

    /// The time limits of Prolog and Epilog. None if this release does not export its configuration.
    pub fn hook_limits(&self) -> Option<HookLimits> {
        self.slurm_conf().map(limits_of)
    }

    /// The paths of SPANK plugins. None if this release does not export its configuration.
    pub fn spank_files(&self) -> Option<SpankFiles> {
        let slurm_conf = self.slurm_conf()?;
        // SAFETY: texts of libslurm's configuration are NULL or NUL-terminated.
        let read = |value| unsafe { text::read(value) };
        let folders = read(slurm_conf.plugindir)?;
        let plugstack = match read(slurm_conf.plugstack).filter(|path| !path.is_empty()) {
            Some(path) => PathBuf::from(path),
            // As `get_extra_conf_path` of slurmd, which takes the folder from the path of slurm.conf.
            None => PathBuf::from(read(slurm_conf.slurm_conf)?).with_file_name("plugstack.conf"),
        };
        Some(SpankFiles {
            plugstack,
            folders: folders.split(':').map(PathBuf::from).collect(),
        })
    }

    fn slurm_conf(&self) -> Option<&raw::slurm_conf_t> {
        // SAFETY: dlsym with RTLD_DEFAULT only searches what is loaded; libslurm is, for all to see.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"slurm_conf".as_ptr()) };
        // SAFETY: it is NULL or libslurm's `slurm_conf_t`, which lives as long as the library and which nobody changes
        // after `slurm_init`; its type comes from the headers of the same release.
        unsafe { found.cast::<raw::slurm_conf_t>().as_ref() }
    }
}

#[cfg(not(limits_by_hook))]
fn limits_of(slurm_conf: &raw::slurm_conf_t) -> HookLimits {
    let limit = time_limit(slurm_conf.prolog_epilog_timeout);
    HookLimits {
        prolog: limit,
        epilog: limit,
    }
}

#[cfg(limits_by_hook)]
fn limits_of(slurm_conf: &raw::slurm_conf_t) -> HookLimits {
    HookLimits {
        prolog: time_limit(slurm_conf.prolog_timeout),
        epilog: time_limit(slurm_conf.epilog_timeout),
    }
}

/// Slurm takes 0 as no limit, too (`run_command` of `src/common/run_command.c`).
fn time_limit(seconds: u16) -> Option<Duration> {
    let none = seconds == 0 || seconds == raw::GPUFRAC_NO_VAL16;
    (!none).then(|| Duration::from_secs(seconds.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_of_a_hook_has_two_forms() {
        assert_eq!(time_limit(0), None);
        assert_eq!(time_limit(raw::GPUFRAC_NO_VAL16), None);
        assert_eq!(time_limit(70), Some(Duration::from_secs(70)));
    }
}
