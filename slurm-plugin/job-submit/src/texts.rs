//! Converts Slurm's job description to the request of the decision.

use gpufrac_core::nodes_gres::NodesGres;
use gpufrac_core::pools_sum;
use gpufrac_core::request::GresForm;
use gpufrac_core::submit::{JobRequest, Memory};
use slurm_sys::{host, raw, text};

/// The texts of a job description from which a request is made.
pub struct Texts {
    partitions: Option<String>,
    reservation: Option<String>,
    tres_per_node: Option<String>,
    tres_per_job: Option<String>,
    tres_per_socket: Option<String>,
    tres_per_task: Option<String>,
    cpus_per_tres: Option<String>,
    mem_per_tres: Option<String>,
    tres_freq: Option<String>,
}

impl Texts {
    /// # Safety
    /// The strings in `job` are NULL or NUL-terminated.
    pub unsafe fn read(job: &raw::job_desc_msg_t) -> Self {
        // SAFETY: by the contract of this function.
        let field = |text| unsafe { text::read(text) };
        Self {
            partitions: field(job.partition),
            reservation: field(job.reservation),
            tres_per_node: field(job.tres_per_node),
            tres_per_job: field(job.tres_per_job),
            tres_per_socket: field(job.tres_per_socket),
            tres_per_task: field(job.tres_per_task),
            cpus_per_tres: field(job.cpus_per_tres),
            mem_per_tres: field(job.mem_per_tres),
            tres_freq: field(job.tres_freq),
        }
    }

    /// Whether the request is a question of `gpufrac check` and not a job.
    pub fn asks_for_pools(&self) -> bool {
        let per_node = self.tres_per_node.as_deref();
        per_node.is_some_and(pools_sum::is_question)
    }

    /// The request of the job with these texts.
    pub fn request<'a>(
        &'a self,
        job: &raw::job_desc_msg_t,
        default_partition: Option<&'a str>,
        nodes: Option<&'a NodesGres>,
    ) -> JobRequest<'a> {
        let reservation = self.reservation.as_ref();
        JobRequest {
            partitions: self.partitions.as_deref(),
            default_partition,
            reserved: reservation.is_some_and(|name| !name.is_empty()),
            form: form(),
            marked: true,
            existing: None,
            nodes,
            forgets_shares: slurm_sys::forgets_shares(),
            updates_take_counts: slurm_sys::updates_take_counts(),
            tres_per_node: self.tres_per_node.as_deref(),
            tres_per_job: self.tres_per_job.as_deref(),
            tres_per_socket: self.tres_per_socket.as_deref(),
            tres_per_task: self.tres_per_task.as_deref(),
            cpus_per_tres: self.cpus_per_tres.as_deref(),
            mem_per_tres: self.mem_per_tres.as_deref(),
            tres_freq: self.tres_freq.as_deref(),
            tasks_per_gpu: ![0, raw::GPUFRAC_NO_VAL16].contains(&job.ntasks_per_tres),
            exclusive: job.shared == raw::GPUFRAC_SHARED_NONE,
            // An update removes it with INFINITE16.
            core_spec: ![raw::GPUFRAC_NO_VAL16, raw::GPUFRAC_INFINITE16].contains(&job.core_spec)
                && host::takes_core_spec(),
            tasks: number(job.num_tasks),
            tasks_per_node: number16(job.ntasks_per_node),
            cpus_per_task: number16(job.cpus_per_task),
            cpus_per_node: number16(job.pn_min_cpus),
            memory: memory(job.pn_min_memory),
            default_memory: host::default_memory().and_then(memory),
            per_gpu: None,
            min_nodes: number(job.min_nodes),
            max_nodes: number(job.max_nodes),
            burst: None,
        }
    }
}

/// None if the number is not set.
pub fn number(value: u32) -> Option<u32> {
    (![raw::GPUFRAC_NO_VAL, 0].contains(&value)).then_some(value)
}

fn number16(value: u16) -> Option<u32> {
    (![raw::GPUFRAC_NO_VAL16, 0].contains(&value)).then(|| u32::from(value))
}

fn memory(value: u64) -> Option<Memory> {
    let mib = value & !raw::GPUFRAC_MEM_PER_CPU;
    (value != raw::GPUFRAC_NO_VAL64).then_some(if mib == value {
        Memory::PerNode(mib)
    } else {
        Memory::PerCpu(mib)
    })
}

fn form() -> GresForm {
    if slurm_sys::gres_with_slash() { GresForm::Slash } else { GresForm::Colon }
}
