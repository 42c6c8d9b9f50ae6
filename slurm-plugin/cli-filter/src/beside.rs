//! The options next to a fraction, as slurmctld will see them.

use std::ffi::CStr;

use gpufrac_core::submit::JobRequest;
use slurm_sys::host;

use crate::options::Options;

/// Options that contradict a fraction. slurmctld's plugin refuses them, too; but Slurm's commands refuse some of them
/// earlier, without saying what to write.
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
    max_nodes: Option<u32>,
}

impl Beside {
    /// Reads the options of a command that submits a job.
    pub fn read(options: &Options) -> Self {
        let gpus = |name: &CStr| options.get(name).map(|value| format!("gpu:{value}"));
        let is_set = |name: &CStr| options.get(name).is_some();
        // Of a range, as `--nodes=1-2`, the second.
        let number = |name: &CStr| options.get(name)?.rsplit('-').next()?.parse().ok();
        // srun of 26.05 has the value `allocation` for the job's own option.
        let exclusive = options.get(c"exclusive");
        let alone = |value: &str| ["exclusive", "allocation"].contains(&value);
        Self {
            per_job: gpus(c"gpus"),
            per_socket: gpus(c"gpus-per-socket"),
            per_task: gpus(c"gpus-per-task").or_else(|| options.get(c"tres-per-task")),
            cpus_per_gpu: gpus(c"cpus-per-gpu"),
            mem_per_gpu: options
                .get(c"mem-per-gpu")
                .map(|value| format!("gpu:{}", in_mib(&value))),
            gpu_freq: gpus(c"gpu-freq"),
            tasks_per_gpu: is_set(c"ntasks-per-gpu"),
            exclusive: exclusive.as_deref().is_some_and(alone),
            core_spec: host::takes_core_spec() && (is_set(c"core-spec") || is_set(c"thread-spec")),
            tasks: number(c"ntasks"),
            tasks_per_node: number(c"ntasks-per-node"),
            max_nodes: number(c"nodes"),
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
