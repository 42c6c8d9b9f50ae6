//! The CPUs and the memory that a job gets for each GPU: `DefCpuPerGPU` and `DefMemPerGPU` in slurmctld's memory.
//!
//! A partition's record is no public structure (`part_record_t` of `src/slurmctld/slurmctld.h`, from 24.05 on of
//! `src/common/part_record.h`), so this module has the places of two of its fields, by series. Before the first use in
//! a process the record's magic number and its name are compared through the kernel, which answers with an error
//! where a pointer would end the process.

use std::ffi::{CStr, CString, c_void};
use std::sync::OnceLock;

use super::{find_partition, slurm_conf};
use crate::release::{self, Series};
use crate::{log, raw};

/// What Slurm gives for each GPU; None where the site sets nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerGpu {
    /// `DefCpuPerGPU`.
    pub cpus: Option<u64>,
    /// `DefMemPerGPU`, in MiB.
    pub memory: Option<u64>,
}

/// `PART_MAGIC`, the first word of a partition's record.
const MAGIC: u32 = 0xaefe_8495;

/// The offsets in bytes of two pointers in a partition's record.
#[derive(Clone, Copy)]
struct Offsets {
    job_defaults_list: usize,
    name: usize,
}

impl Offsets {
    const fn of(series: Series) -> Self {
        let (job_defaults_list, name) = match (series.0, series.1) {
            (..=22, _) => (152, 200),
            (23, _) | (24, ..=5) => (176, 224),
            (24 | 25, _) => (176, 232),
            _ => (176, 224),
        };
        Self {
            job_defaults_list,
            name,
        }
    }
}

/// What slurmctld gives for each GPU in a partition: the partition's `JobDefaults`, then the cluster's. Nothing
/// outside of slurmctld, or where its memory is not as expected; the log says so once.
///
/// # Safety
/// The caller holds slurmctld's partition lock, as in job_submit.
pub unsafe fn per_gpu(partition: &str) -> PerGpu {
    // SAFETY: by the contract of this function; slurm.conf is stable under slurmctld's locks, too.
    unsafe {
        let of_cluster = slurm_conf().map_or_else(PerGpu::default, |slurm_conf| {
            of_list((*slurm_conf).job_defaults_list.cast())
        });
        let own = of_partition(partition).unwrap_or_default();
        PerGpu {
            cpus: own.cpus.or(of_cluster.cpus),
            memory: own.memory.or(of_cluster.memory),
        }
    }
}

/// # Safety
/// As [`per_gpu`].
unsafe fn of_partition(name: &str) -> Option<PerGpu> {
    static KNOWN: OnceLock<Option<Offsets>> = OnceLock::new();
    let name = CString::new(name).ok()?;
    // SAFETY: by the contract of this function.
    let record = unsafe { find_partition(&name) }?.cast::<u8>();
    let offsets = KNOWN.get_or_init(|| {
        let offsets = Offsets::of(release::running().series());
        let is_known = is_record(record, offsets, &name);
        if !is_known {
            report_unknown_record();
        }
        is_known.then_some(offsets)
    });
    let offset = (*offsets)?.job_defaults_list;
    // SAFETY: `is_record` found the record to be as `Offsets` says; the pointer is an aligned field of it.
    Some(unsafe { of_list(*record.add(offset).cast::<*mut c_void>()) })
}

fn report_unknown_record() {
    // This Slurm was changed by its builder. Cure: Write `cpus_per_gpu` and `memory_per_gpu` into gpufrac.toml, and
    // report the release.
    log::error(
        "gpufrac: reading JobDefaults of partitions failed: slurmctld's record of a partition is not as expected; \
         write cpus_per_gpu and memory_per_gpu into gpufrac.toml",
    );
}

/// Whether a record begins with the magic number and has its name at the expected place.
fn is_record(record: *const u8, offsets: Offsets, name: &CStr) -> bool {
    let name = name.to_bytes_with_nul();
    let magic = copied(record as usize, size_of::<u32>());
    let pointer = copied(record as usize + offsets.name, size_of::<usize>());
    let place = pointer.and_then(|bytes| Some(usize::from_ne_bytes(bytes.try_into().ok()?)));
    magic.is_some_and(|bytes| bytes == MAGIC.to_ne_bytes())
        && place
            .and_then(|place| copied(place, name.len()))
            .is_some_and(|bytes| bytes == name)
}

/// Bytes of this process at any address; None if there is no memory.
fn copied(address: usize, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    let to = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: length,
    };
    let from = libc::iovec {
        iov_base: address as *mut c_void,
        iov_len: length,
    };
    // SAFETY: the kernel writes at most `length` bytes into `bytes`, and fails where nothing is at `address`.
    let read =
        unsafe { libc::process_vm_readv(libc::getpid(), &raw const to, 1, &raw const from, 1, 0) };
    (usize::try_from(read) == Ok(length)).then_some(bytes)
}

/// The values in a list of `job_defaults_t`. As in Slurm, the first of a kind counts.
///
/// # Safety
/// `list` is NULL or such a list of Slurm's, which nobody changes meanwhile.
unsafe fn of_list(list: *mut c_void) -> PerGpu {
    let mut found = PerGpu::default();
    if list.is_null() {
        return found;
    }
    // SAFETY: by the contract of this function; the iterator ends before the function does.
    unsafe {
        let elements = raw::slurm_list_iterator_create(list.cast());
        loop {
            let element = raw::slurm_list_next(elements).cast::<raw::job_defaults_t>();
            let Some(element) = element.as_ref() else {
                break;
            };
            match u32::from(element.type_) {
                raw::JOB_DEF_CPU_PER_GPU => found.cpus = found.cpus.or(Some(element.value)),
                raw::JOB_DEF_MEM_PER_GPU => found.memory = found.memory.or(Some(element.value)),
                _ => {}
            }
        }
        raw::slurm_list_iterator_destroy(elements);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of zeros with the magic number, and a pointer to the name at `at`.
    fn record(name: &CStr, at: usize) -> Vec<u64> {
        let mut words = vec![0_u64; 64];
        words[0] = MAGIC.into();
        words[at / 8] = name.as_ptr() as u64;
        words
    }

    #[test]
    fn a_record_is_taken_only_with_its_magic_number_and_name() {
        let offsets = Offsets::of(Series(24, 11));
        let is_taken = |words: &[u64], name| is_record(words.as_ptr().cast(), offsets, name);
        let good = record(c"gpu", offsets.name);
        assert!(is_taken(&good, c"gpu"));
        assert!(!is_taken(&good, c"cpu"));
        assert!(!is_taken(&record(c"gpu", offsets.name - 8), c"gpu"));
        let mut no_magic = good.clone();
        no_magic[0] = 0;
        assert!(!is_taken(&no_magic, c"gpu"));
        let mut wild = good.clone();
        wild[offsets.name / 8] = 8;
        assert!(!is_taken(&wild, c"gpu"), "nothing is mapped there");
    }

    #[test]
    fn each_series_has_its_places() {
        let names = [
            (22, 5),
            (23, 2),
            (23, 11),
            (24, 5),
            (24, 11),
            (25, 11),
            (26, 5),
        ]
        .map(|(major, minor)| Offsets::of(Series(major, minor)).name);
        assert_eq!(names, [200, 224, 224, 224, 232, 232, 224]);
    }
}
