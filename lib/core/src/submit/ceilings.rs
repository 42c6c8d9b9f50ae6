//! The most CPUs and memory that may come with a fraction (`max_cpus_per_gpu`, `max_memory_per_gpu`).
//!
//! Slurm has `MaxCPUsPerNode` and `MaxMemPerNode` of a partition, which are the same for every job: an eighth of a GPU
//! could take what the other seven need.

use super::decision::Decision;
use super::job::{JobRequest, Memory, Share};
use super::refusal::{FractionOption, Refusal};
use crate::config::AboveMax;
use crate::per_gpu::{Part, PerGpu};

/// The ceilings of a grant: the least of those of its partitions.
pub(super) struct Ceilings<'a> {
    per_gpu: PerGpu,
    part: Part,
    /// A partition with ceilings, for messages.
    partition: &'a str,
    above: AboveMax,
}

/// What a job asks for on a node, or for a task if its fraction is per task.
struct Asked {
    cpus: u64,
    /// The tasks among which the CPUs are divided.
    tasks: u64,
}

impl<'a> Ceilings<'a> {
    pub(super) fn of(decision: &Decision<'a>, part: Part) -> Self {
        let mut ceilings = Ceilings {
            per_gpu: PerGpu::default(),
            part,
            partition: "",
            above: AboveMax::Lower,
        };
        for &name in &decision.partitions {
            let Some(rules) = decision.config.rules(name) else {
                continue;
            };
            if rules.max_per_gpu != PerGpu::default() {
                ceilings.per_gpu = ceilings.per_gpu.joined(rules.max_per_gpu, u64::min);
                ceilings.partition = name;
                if rules.above_max == AboveMax::Refuse {
                    ceilings.above = AboveMax::Refuse;
                }
            }
        }
        ceilings
    }

    /// The site's values for a GPU, within the ceilings. The ceiling itself is the value for a job that would get all
    /// memory of its node.
    pub(super) fn capped(&self, site: PerGpu, request: &JobRequest<'_>) -> PerGpu {
        let max = self.per_gpu;
        let gets_all =
            request.memory.is_none() && request.default_memory == Some(Memory::PerNode(0));
        let within = |value: u64, max: Option<u64>| max.map_or(value, |max| value.min(max));
        PerGpu {
            cpus: site.cpus.map(|cpus| within(cpus, max.cpus)),
            memory: site
                .memory
                .map(|memory| within(memory, max.memory))
                .or(max.memory.filter(|_| gets_all)),
        }
    }

    /// Refuses options for a GPU that Slurm itself applies.
    pub(super) fn refuse_options(&self, options: PerGpu) -> Result<(), Refusal> {
        let (asked, most) = (options.of(self.part), self.per_gpu.of(self.part));
        if let (Some(cpus), Some(most)) = (asked.cpus, most.cpus)
            && cpus > most
        {
            return Err(self.too_many_cpus(cpus, most, 1));
        }
        if let (Some(memory), Some(most)) = (asked.memory, most.memory)
            && memory > most
        {
            return Err(self.too_much_memory(Some(memory), most));
        }
        Ok(())
    }

    /// Compares what the job has with its share against the ceilings; lowers it where the site says so, and where the
    /// site's own default is above. `per_gpu`: what comes with a GPU. The second value has the amounts that were
    /// lowered.
    pub(super) fn hold(
        &self,
        request: &JobRequest<'_>,
        option: FractionOption,
        mut share: Share,
        per_gpu: PerGpu,
    ) -> Result<(Share, PerGpu), Refusal> {
        let most = self.per_gpu.of(self.part);
        let mut lowered = PerGpu::default();
        let mut asked = asked(request, option, &share);
        if let Some(most) = most.cpus.filter(|most| asked.cpus > *most) {
            let per_task = most / asked.tasks;
            if self.above == AboveMax::Refuse || per_task == 0 {
                return Err(self.too_many_cpus(asked.cpus, most, asked.tasks));
            }
            let [per_task, per_node] =
                [per_task, most].map(|cpus| u32::try_from(cpus).unwrap_or(u32::MAX));
            share.cpus_per_task = share
                .cpus_per_task
                .or(request.cpus_per_task)
                .map(|cpus| cpus.min(per_task));
            share.cpus_per_node = share
                .cpus_per_node
                .or(request.cpus_per_node)
                .map(|cpus| cpus.min(per_node));
            asked.cpus = most;
            lowered.cpus = Some(most);
        }
        let named = share.memory.or(request.memory);
        // Of a node nobody knows how many tasks share it.
        let is_of_task = |memory: &Memory| {
            option != FractionOption::TresPerTask || matches!(memory, Memory::PerCpu(_))
        };
        let default = request.default_memory.filter(is_of_task);
        let default = default.filter(|_| per_gpu.memory.is_none());
        if let (Some(most), Some(memory)) = (most.memory, named.or(default)) {
            let on_node = match memory {
                Memory::PerNode(0) => None,
                Memory::PerNode(mib) => Some(mib),
                Memory::PerCpu(mib) => Some(mib.saturating_mul(asked.cpus)),
            };
            if on_node.is_none_or(|mib| mib > most) {
                if self.above == AboveMax::Refuse && named.is_some() {
                    return Err(self.too_much_memory(on_node, most));
                }
                let is_for_cpus = matches!(memory, Memory::PerCpu(_));
                // Slurm gives whole cores: memory of a node is exact, whatever CPUs the job gets.
                let keeps_cpus = named.is_some() || option == FractionOption::TresPerTask;
                share.memory = Some(if is_for_cpus && keeps_cpus {
                    Memory::PerCpu((most / asked.cpus).max(1))
                } else {
                    Memory::PerNode(most)
                });
                lowered.memory = Some(most);
            }
        }
        Ok((share, lowered))
    }

    /// The note about amounts that were lowered.
    pub(super) fn note(&self, lowered: PerGpu) -> Option<String> {
        let words = lowered.words()?;
        let (part, partition) = (self.part, self.partition);
        Some(format!(
            "gpufrac: lowered to {words}, the most with {part} in partition {partition}"
        ))
    }

    fn too_many_cpus(&self, cpus: u64, most: u64, tasks: u64) -> Refusal {
        Refusal::TooManyCpus {
            part: self.part.to_string(),
            partition: self.partition.to_owned(),
            cpus,
            most,
            tasks,
        }
    }

    fn too_much_memory(&self, memory: Option<u64>, most: u64) -> Refusal {
        Refusal::TooMuchNodeMemory {
            part: self.part.to_string(),
            partition: self.partition.to_owned(),
            memory,
            most,
        }
    }
}

/// The CPUs that a job asks for where its slice is. Tasks without a number of nodes or of tasks a node may all start
/// on as few nodes as the job takes.
fn asked(request: &JobRequest<'_>, option: FractionOption, share: &Share) -> Asked {
    let per_task = share
        .cpus_per_task
        .or(request.cpus_per_task)
        .map_or(1, u64::from);
    if option == FractionOption::TresPerTask {
        return Asked {
            cpus: per_task,
            tasks: 1,
        };
    }
    let nodes = request.min_nodes.unwrap_or(1).max(1);
    let tasks = request.tasks.map(|tasks| tasks.div_ceil(nodes));
    let tasks = u64::from(request.tasks_per_node.or(tasks).unwrap_or(1)).max(1);
    let per_node = share
        .cpus_per_node
        .or(request.cpus_per_node)
        .map_or(0, u64::from);
    Asked {
        cpus: per_node.max(tasks.saturating_mul(per_task)),
        tasks,
    }
}
