//! What a plugin reads from the process that loaded it.

use std::ffi::{CStr, CString, c_char, c_void};
use std::io;
use std::path::PathBuf;
use std::ptr;

use crate::{raw, text};

/// Looks a variable of the host process up. Not an undefined symbol of the plugin: a
/// release that renamed it would then refuse to load the plugin, and slurmctld would not start.
fn variable(name: &CStr) -> *const c_void {
    // SAFETY: dlsym with RTLD_DEFAULT only searches what is loaded.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// The slurm.conf of this process, which lives as long; `None` where this release does not export it.
fn slurm_conf() -> Option<*const raw::slurm_conf_t> {
    let found = variable(c"slurm_conf").cast::<raw::slurm_conf_t>();
    (!found.is_null()).then_some(found)
}

/// When this process last read slurm.conf (Unix seconds): it changes with `scontrol
/// reconfigure`. `None` where this release does not export its configuration.
#[must_use]
pub fn slurm_conf_read_at() -> Option<i64> {
    let slurm_conf = slurm_conf()?;
    // SAFETY: `slurm_conf` is a `slurm_conf_t` that lives as long as the process. Another
    // thread may write the aligned word meanwhile; a volatile read gets the old or the new value.
    Some(unsafe { ptr::read_volatile(&raw const (*slurm_conf).last_update) })
}

/// The file that this process read its slurm.conf from.
///
/// # Safety
/// Nobody reads slurm.conf at this time: to be called while Slurm loads the plugin.
#[must_use]
pub unsafe fn slurm_conf_path() -> Option<PathBuf> {
    let slurm_conf = slurm_conf()?;
    // SAFETY: by the contract of this function the text stays as it is.
    unsafe { text::read((*slurm_conf).slurm_conf) }.map(PathBuf::from)
}

/// Whether a job may keep cores for the system (`AllowSpecResourcesUsage`): one that does has its nodes alone.
#[must_use]
pub fn takes_core_spec() -> bool {
    slurm_conf().is_some_and(|slurm_conf| {
        // SAFETY: as in `slurm_conf_read_at`.
        let flags = unsafe { ptr::read_volatile(&raw const (*slurm_conf).conf_flags) };
        u64::from(flags) & u64::from(raw::GPUFRAC_TAKES_CORE_SPEC) != 0
    })
}

/// Whether this is the slurmctld that `scontrol reconfigure` has just started to replace one that runs.
///
/// From 23.11 the old one waits for the new, and goes on if that one does not start (`_try_to_reconfig` of
/// `src/slurmctld/controller.c`), unless it was started with `-D`: then it becomes the new one itself.
#[must_use]
pub fn is_reconfigured() -> bool {
    std::env::var_os("SLURMCTLD_RECONF_PARENT_FD").is_some()
}

/// The default partition, from slurmctld's own memory. `None` if there is none, or outside
/// slurmctld.
///
/// # Safety
/// The caller holds slurmctld's partition lock, as it does in job_submit.
#[must_use]
pub unsafe fn controller_default_partition() -> Option<String> {
    let name = variable(c"default_part_name").cast::<*const c_char>();
    if name.is_null() {
        return None;
    }
    // SAFETY: it is a `char *` of slurmctld's, stable under the partition lock.
    unsafe { text::read(*name) }
}

/// Whether slurmctld has a partition of this name, from its own memory. Outside of slurmctld, and of a release without this
/// function, nothing is known against it.
///
/// # Safety
/// The caller holds slurmctld's partition lock, as it does in job_submit.
#[must_use]
pub unsafe fn controller_has_partition(name: &str) -> bool {
    let find = variable(c"find_part_record");
    let Ok(name) = CString::new(name) else {
        return false;
    };
    if find.is_null() {
        return true;
    }
    // SAFETY: `part_record_t *find_part_record(char *name)` of slurmctld.h, the same from 22.05 to 26.05; it only compares names.
    unsafe {
        let find: unsafe extern "C" fn(*const c_char) -> *const c_void = std::mem::transmute(find);
        !find(name.as_ptr()).is_null()
    }
}

/// The partitions of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Partitions {
    /// All of them.
    pub names: Vec<String>,
    /// The default one.
    pub default: Option<String>,
}

/// Asks slurmctld for its partitions, from inside a client command (one RPC).
#[must_use]
pub fn ask_partitions() -> Option<Partitions> {
    let mut answer: *mut raw::partition_info_msg_t = ptr::null_mut();
    // SAFETY: `answer` receives a message, read and freed below; clients are single-threaded here.
    unsafe {
        let code = raw::slurm_load_partitions(0, &raw mut answer, raw::GPUFRAC_SHOW_ALL as u16);
        if code != raw::SLURM_SUCCESS as i32 || answer.is_null() {
            return None;
        }
        let found = partitions_of(&*answer);
        raw::slurm_free_partition_info_msg(answer);
        Some(found)
    }
}

/// The partitions in an answer of `slurm_load_partitions`.
///
/// # Safety
/// `message` holds `record_count` valid records.
unsafe fn partitions_of(message: &raw::partition_info_msg_t) -> Partitions {
    let mut found = Partitions::default();
    if message.partition_array.is_null() {
        return found;
    }
    // SAFETY: by the contract of this function.
    let partitions = unsafe {
        std::slice::from_raw_parts(message.partition_array, message.record_count as usize)
    };
    for partition in partitions {
        // SAFETY: by the contract of this function.
        let Some(name) = (unsafe { text::read(partition.name) }) else {
            continue;
        };
        if u32::from(partition.flags) & raw::GPUFRAC_PART_FLAG_DEFAULT != 0 {
            found.default = Some(name.clone());
        }
        found.names.push(name);
    }
    found
}

/// Why a plugin has no configuration. `E`: what its parser says.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError<E> {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// What the file says is wrong.
    #[error("{0}")]
    Wrong(E),
}

/// Reads the file that the variable of this process names, else `default`. `parse` is given its text and its path.
///
/// # Errors
/// The file cannot be read, or `parse` refuses it.
pub fn read_configuration<T, E>(
    variable: &str,
    default: &str,
    parse: impl FnOnce(&str, &str) -> Result<T, E>,
) -> Result<T, ConfigurationError<E>> {
    let path = std::env::var_os(variable).map_or_else(|| default.into(), PathBuf::from);
    match std::fs::read_to_string(&path) {
        Ok(text) => parse(&text, &path.display().to_string()).map_err(ConfigurationError::Wrong),
        Err(source) => Err(ConfigurationError::Unreadable { path, source }),
    }
}
