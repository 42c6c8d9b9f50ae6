//! Reads data of the process that loaded the plugin.

mod per_gpu;

use std::ffi::{CStr, CString, c_char, c_void};
use std::io;
use std::path::PathBuf;
use std::ptr;

pub use per_gpu::{PerGpu, per_gpu};

use crate::{raw, text};

/// Looks up a variable of the host process. It is no undefined symbol of the plugin, because a release that renamed
/// the variable could then not load the plugin, and slurmctld would not start.
fn variable(name: &CStr) -> *const c_void {
    // SAFETY: dlsym with RTLD_DEFAULT only searches what is loaded.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// The slurm.conf of this process, which exists as long as the process; None if this release does not export it.
fn slurm_conf() -> Option<*const raw::slurm_conf_t> {
    let found = variable(c"slurm_conf").cast::<raw::slurm_conf_t>();
    (!found.is_null()).then_some(found)
}

/// The time when this process last read slurm.conf, in seconds since 1970; it changes with `scontrol reconfigure`.
/// None if this release does not export its configuration.
pub fn slurm_conf_read_at() -> Option<i64> {
    let slurm_conf = slurm_conf()?;
    // SAFETY: `slurm_conf` is a `slurm_conf_t` that lives as long as the process. Another
    // thread may write the aligned word meanwhile; a volatile read gets the old or the new value.
    Some(unsafe { ptr::read_volatile(&raw const (*slurm_conf).last_update) })
}

/// The path from which this process read its slurm.conf.
///
/// # Safety
/// No other thread reads slurm.conf at this time: call it while Slurm loads the plugin.
pub unsafe fn slurm_conf_path() -> Option<PathBuf> {
    let slurm_conf = slurm_conf()?;
    // SAFETY: by the contract of this function the text stays as it is.
    unsafe { text::read((*slurm_conf).slurm_conf) }.map(PathBuf::from)
}

/// Whether a job may reserve cores for the system (`AllowSpecResourcesUsage`); such a job has its nodes exclusively.
pub fn takes_core_spec() -> bool {
    slurm_conf().is_some_and(|slurm_conf| {
        // SAFETY: as in `slurm_conf_read_at`.
        let flags = unsafe { ptr::read_volatile(&raw const (*slurm_conf).conf_flags) };
        u64::from(flags) & u64::from(raw::GPUFRAC_TAKES_CORE_SPEC) != 0
    })
}

/// The cluster's `DefMemPerCPU` or `DefMemPerNode`, in the form of a job's `pn_min_memory`; 0 for all memory of a node.
/// None outside Slurm's programs.
pub fn default_memory() -> Option<u64> {
    // SAFETY: as in `slurm_conf_read_at`.
    slurm_conf()
        .map(|slurm_conf| unsafe { ptr::read_volatile(&raw const (*slurm_conf).def_mem_per_cpu) })
}

/// Whether this process is a slurmctld that `scontrol reconfigure` has just started to replace a running one.
///
/// From 23.11 on the old one waits for the new one, and continues if the new one does not start (`_try_to_reconfig`
/// of `src/slurmctld/controller.c`). If the old one was started with `-D`, it becomes the new one itself.
pub fn is_reconfigured() -> bool {
    std::env::var_os("SLURMCTLD_RECONF_PARENT_FD").is_some()
}

/// The name of the default partition, from slurmctld's memory. None if there is none, or outside slurmctld.
///
/// # Safety
/// The caller holds slurmctld's partition lock, as in job_submit.
pub unsafe fn controller_default_partition() -> Option<String> {
    let name = variable(c"default_part_name").cast::<*const c_char>();
    if name.is_null() {
        return None;
    }
    // SAFETY: it is a `char *` of slurmctld's, stable under the partition lock.
    unsafe { text::read(*name) }
}

/// Whether slurmctld has a partition of this name, from its memory. True if that is unknown: outside slurmctld, or in
/// a release without this function.
///
/// # Safety
/// The caller holds slurmctld's partition lock, as in job_submit.
pub unsafe fn controller_has_partition(name: &str) -> bool {
    let Ok(name) = CString::new(name) else {
        return false;
    };
    // SAFETY: by the contract of this function.
    variable(c"find_part_record").is_null() || unsafe { find_partition(&name) }.is_some()
}

/// slurmctld's record of a partition; None if there is none, or outside slurmctld.
///
/// # Safety
/// The caller holds slurmctld's partition lock, as in job_submit.
unsafe fn find_partition(name: &CStr) -> Option<*const c_void> {
    let find = variable(c"find_part_record");
    if find.is_null() {
        return None;
    }
    // SAFETY: `part_record_t *find_part_record(char *name)` of slurmctld.h, the same from 22.05 to 26.05; it only
    // compares names.
    let record = unsafe {
        let find: unsafe extern "C" fn(*const c_char) -> *const c_void = std::mem::transmute(find);
        find(name.as_ptr())
    };
    (!record.is_null()).then_some(record)
}

/// The partitions of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Partitions {
    /// The names of all partitions.
    pub names: Vec<String>,
    /// The name of the default partition.
    pub default: Option<String>,
}

/// Asks slurmctld for its partitions from inside a client command (one RPC).
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

/// The reasons why a plugin has no configuration. `E` is the error of its parser.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError<E> {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The parser refused the text.
    #[error("{0}")]
    Wrong(E),
}

/// Reads the file named by the environment variable of this process, otherwise `default`. `parse` gets the text and
/// the path. Errors: the file cannot be read, or `parse` refuses its text.
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
