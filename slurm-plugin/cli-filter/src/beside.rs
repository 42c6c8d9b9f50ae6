//! The options next to a fraction, as slurmctld will see them.

use std::env;
use std::ffi::CStr;

use gpufrac_core::submit::{JobRequest, Memory};
use slurm_sys::host;

use crate::options::Options;

/// Environment variables that the commands read as `--mem-per-gpu`.
const MEM_PER_GPU_VARIABLES: [&str; 3] = [
    "SBATCH_MEM_PER_GPU",
    "SALLOC_MEM_PER_GPU",
    "SLURM_MEM_PER_GPU",
];

/// Options that contradict a fraction, and those that its share depends on. slurmctld's plugin refuses and counts them,
/// too; but Slurm's commands refuse some of them earlier, without saying what to write.
#[derive(Default)]
pub struct Beside {
    per_job: Option<String>,
    per_socket: Option<String>,
    per_task: Option<String>,
    cpus_per_gpu: Option<String>,
    mem_per_gpu: Option<String>,
    gpu_freq: Option<String>,
    tasks_per_gpu: bool,
    exclusive: bool,
    core_spec: bool,
    tasks: Option<u32>,
    tasks_per_node: Option<u32>,
    cpus_per_task: Option<u32>,
    cpus_per_node: Option<u32>,
    memory: Option<Memory>,
    min_nodes: Option<u32>,
    max_nodes: Option<u32>,
}

impl Beside {
    /// Reads the options of a command that submits a job.
    pub fn read(options: &Options) -> Self {
        let gpus = |name: &CStr| options.get(name).map(|value| format!("gpu:{value}"));
        let is_set = |name: &CStr| options.get(name).is_some();
        let number = |name: &CStr| options.get(name)?.parse().ok();
        let nodes = options.get(c"nodes");
        let (min_nodes, max_nodes) = match nodes.as_deref() {
            Some(range) => range.split_once('-').unwrap_or((range, range)),
            None => ("", ""),
        };
        let mib = |name: &CStr| options.get(name).map(|value| in_mib(&value));
        let memory = || {
            let per_node = mib(c"mem").and_then(|mib| mib.parse().ok());
            let per_cpu = mib(c"mem-per-cpu").and_then(|mib| mib.parse().ok());
            per_node
                .map(Memory::PerNode)
                .or(per_cpu.map(Memory::PerCpu))
        };
        // Slurm takes the memory of the command line before that of a variable, after this plugin.
        let mem_per_gpu = mib(c"mem-per-gpu");
        let is_variable = || {
            MEM_PER_GPU_VARIABLES
                .iter()
                .any(|name| env::var_os(name).is_some())
        };
        let (memory, mem_per_gpu) = match (memory(), mem_per_gpu) {
            (Some(_), Some(per_gpu)) if !is_variable() => (None, Some(per_gpu)),
            (Some(memory), _) => (Some(memory), None),
            (None, per_gpu) => (None, per_gpu),
        };
        // srun of 26.05 has the value `allocation` for the job's own option.
        let exclusive = options.get(c"exclusive");
        let alone = |value: &str| ["exclusive", "allocation"].contains(&value);
        Self {
            per_job: gpus(c"gpus"),
            per_socket: gpus(c"gpus-per-socket"),
            per_task: gpus(c"gpus-per-task").or_else(|| options.get(c"tres-per-task")),
            cpus_per_gpu: gpus(c"cpus-per-gpu"),
            mem_per_gpu: mem_per_gpu.map(|mib| format!("gpu:{mib}")),
            gpu_freq: gpus(c"gpu-freq"),
            tasks_per_gpu: is_set(c"ntasks-per-gpu"),
            exclusive: exclusive.as_deref().is_some_and(alone),
            core_spec: host::takes_core_spec() && (is_set(c"core-spec") || is_set(c"thread-spec")),
            tasks: number(c"ntasks"),
            tasks_per_node: number(c"ntasks-per-node"),
            cpus_per_task: number(c"cpus-per-task"),
            cpus_per_node: number(c"mincpus"),
            memory,
            min_nodes: min_nodes.parse().ok(),
            max_nodes: max_nodes.parse().ok(),
        }
    }

    /// GPUs requested per task.
    pub fn per_task(&self) -> Option<&str> {
        self.per_task.as_deref()
    }

    /// A request with these options only.
    pub fn request(&self) -> JobRequest<'_> {
        JobRequest {
            tres_per_job: self.per_job.as_deref(),
            tres_per_socket: self.per_socket.as_deref(),
            cpus_per_tres: self.cpus_per_gpu.as_deref(),
            mem_per_tres: self.mem_per_gpu.as_deref(),
            tres_freq: self.gpu_freq.as_deref(),
            tasks_per_gpu: self.tasks_per_gpu,
            exclusive: self.exclusive,
            core_spec: self.core_spec,
            tasks: self.tasks,
            tasks_per_node: self.tasks_per_node,
            cpus_per_task: self.cpus_per_task,
            cpus_per_node: self.cpus_per_node,
            memory: self.memory,
            min_nodes: self.min_nodes,
            max_nodes: self.max_nodes,
            ..JobRequest::default()
        }
    }
}

/// `16G` as Slurm writes the value of the option, in MiB, as slurmctld gets it.
fn in_mib(value: &str) -> String {
    const UNITS: [(char, u64); 4] = [('M', 1), ('G', 1 << 10), ('T', 1 << 20), ('P', 1 << 30)];
    let mib = UNITS.iter().find_map(|(unit, factor)| {
        let number: u64 = value.strip_suffix(*unit)?.parse().ok()?;
        number.checked_mul(*factor)
    });
    mib.map_or_else(|| value.to_owned(), |mib| mib.to_string())
}
