//! Writes the CPUs and the memory that come with a fraction into Slurm's job description.

use gpufrac_core::request::GresForm;
use gpufrac_core::submit::{Memory, Share};
use slurm_sys::{memory, raw};

use crate::texts::number;

/// Writes a share as sbatch writes `--mincpus`, `--cpus-per-task`, `--mem`, `--mem-per-cpu` and the options for a GPU.
///
/// # Safety
/// The strings in `job` are NULL or Slurm's.
pub unsafe fn write(job: &mut raw::job_desc_msg_t, share: &Share, form: GresForm) {
    if let Some(cpus) = share.cpus_per_node {
        job.pn_min_cpus = clamped(cpus);
        let nodes = number(job.min_nodes).unwrap_or(1);
        let all = cpus.saturating_mul(nodes);
        job.min_cpus = number(job.min_cpus).map_or(all, |cpus| cpus.max(all));
    }
    if let Some(cpus) = share.cpus_per_task {
        job.cpus_per_task = clamped(cpus);
        let tasks = number(job.num_tasks).unwrap_or(1);
        let all = cpus.saturating_mul(tasks);
        job.min_cpus = number(job.min_cpus).map_or(all, |cpus| cpus.max(all));
    }
    match share.memory {
        Some(Memory::PerNode(mib)) => job.pn_min_memory = mib,
        Some(Memory::PerCpu(mib)) => job.pn_min_memory = mib | raw::GPUFRAC_MEM_PER_CPU,
        None => {}
    }
    // SAFETY: by the contract of this function.
    unsafe {
        if share.replaces_options {
            memory::replace(&raw mut job.cpus_per_tres, None);
            memory::replace(&raw mut job.mem_per_tres, None);
        }
        let text = |value: u64| format!("{}gpu:{value}", form.prefix());
        if let Some(cpus) = share.per_gpu.cpus {
            memory::replace(&raw mut job.cpus_per_tres, Some(&text(cpus)));
        }
        if let Some(mib) = share.per_gpu.memory {
            memory::replace(&raw mut job.mem_per_tres, Some(&text(mib)));
        }
    }
}

/// `NO_VAL16` and the numbers above mean that a field is not set.
fn clamped(cpus: u32) -> u16 {
    u16::try_from(cpus)
        .unwrap_or(u16::MAX)
        .min(raw::GPUFRAC_NO_VAL16 - 1)
}
