//! The placement experiment of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): tasks of a workload arrive in
//! random order until they have requested more than the cluster has; a task that finds no place is skipped; nothing
//! departs. The outcome is the part of all GPUs that is allocated, by the part that was requested.
//!
//! Policies are those of the paper (module `score`) and our own layouts.

use fastrand::Rng;
use gpufrac_core::layout::LayoutError;
use gpufrac_plan::candidate::{Candidate, Model};
use gpufrac_plan::place::Request;

use crate::score::Scores;

/// Thousandths of a GPU.
pub const MILLI: u32 = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Thousandths of a CPU.
    pub cpu: u32,
    /// MiB.
    pub memory: u32,
    /// Number of GPUs.
    pub gpus: u32,
    /// Their model.
    pub model: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Task {
    /// Thousandths of a CPU.
    pub cpu: u32,
    /// MiB.
    pub memory: u32,
    /// Number of GPUs; 0 for a task without.
    pub gpus: u32,
    /// Thousandths of each GPU.
    pub milli: u32,
    /// Models that it accepts; all, if empty.
    pub models: Vec<String>,
}

impl Task {
    fn requested(&self) -> u64 {
        u64::from(self.gpus) * u64::from(self.milli)
    }

    pub fn accepts(&self, model: &str) -> bool {
        self.models.is_empty() || self.models.iter().any(|own| own == model)
    }
}

/// Chooses the node and the GPU of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Any node with room.
    Random,
    /// The node with the least CPU and GPU left.
    BestFit,
    /// Fragmentation gradient descent: the node and GPU on which the fewest GPUs become useless for tasks like those of
    /// the workload.
    Fgd,
}

impl Policy {
    /// The policies in the order of the table.
    pub const ALL: [Policy; 3] = [Policy::Random, Policy::BestFit, Policy::Fgd];

    /// The name in the published figures.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Random => "01-Random",
            Policy::BestFit => "05-BestFit",
            Policy::Fgd => "06-FGD",
        }
    }
}

/// Part of all GPUs that is allocated, in percent, when so many percent were requested.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Allocated {
    /// At 100 percent.
    pub at_100: f64,
    /// At 130 percent.
    pub at_130: f64,
}

/// Requests up to which tasks arrive, as a part of the cluster's GPUs.
const ARRIVALS: f64 = 1.3;

/// A cluster with a workload.
#[derive(Clone, Debug)]
pub struct Experiment {
    pub hosts: Vec<Host>,
    pub tasks: Vec<Task>,
}

/// The free resources of a node.
#[derive(Clone, Debug)]
pub struct Left {
    pub cpu: u32,
    pub memory: u32,
    pub gpus: Vec<u32>,
}

impl Experiment {
    /// Thousandths of all GPUs.
    pub fn capacity(&self) -> u64 {
        let gpus: u64 = self.hosts.iter().map(|host| u64::from(host.gpus)).sum();
        gpus * u64::from(MILLI)
    }

    /// The arrivals of a seed, as indexes of tasks: all tasks in random order, and then others, drawn from them, until
    /// they request 130 percent; without some of them if they request more.
    fn arrivals(&self, random: &mut Rng) -> Vec<usize> {
        let target = ARRIVALS * self.capacity() as f64;
        let mut arrivals: Vec<usize> = (0..self.tasks.len()).collect();
        random.shuffle(&mut arrivals);
        let mut requested: u64 = self.tasks.iter().map(Task::requested).sum();
        if requested as f64 > target {
            while requested as f64 > target
                && let Some(gone) = arrivals.pop()
            {
                requested -= self.tasks[gone].requested();
            }
            return arrivals;
        }
        while requested > 0 && (requested as f64) < target {
            let next = random.usize(..self.tasks.len());
            let one = &self.tasks[next];
            if (requested + u64::from(one.milli)) as f64 > target {
                break;
            }
            requested += one.requested();
            arrivals.push(next);
        }
        arrivals
    }

    /// Plays one seed; `place` takes a task by its index, and returns the thousandths of a GPU that it got.
    fn play(&self, arrivals: &[usize], mut place: impl FnMut(usize) -> bool) -> Allocated {
        let capacity = self.capacity().max(1) as f64;
        let (mut requested, mut allocated) = (0, 0);
        let mut outcome = Allocated::default();
        for &task in arrivals {
            let size = self.tasks[task].requested();
            requested += size;
            if place(task) {
                allocated += size;
            }
            let percent = 100.0 * allocated as f64 / capacity;
            if requested as f64 <= capacity {
                outcome.at_100 = percent;
            }
            outcome.at_130 = percent;
        }
        outcome
    }

    pub fn run(&self, policy: Policy, seed: u64) -> Allocated {
        let mut random = Rng::with_seed(seed);
        let arrivals = self.arrivals(&mut random);
        let mut scores = Scores::new(self, policy, &mut random);
        self.play(&arrivals, |task| scores.place(task, &mut random))
    }

    /// The mean of several seeds.
    pub fn mean(&self, policy: Policy, seeds: u64) -> Allocated {
        mean((0..seeds).map(|seed| self.run(policy, seed)))
    }

    /// One seed of a layout: tasks get the smallest size that holds them. Nodes and devices are taken in Slurm's order.
    /// The outcome counts what tasks requested, not the size that they got. Errors: when the model cannot be cut so.
    pub fn run_layout(
        &self,
        candidate: Candidate,
        model: &Model,
        seed: u64,
    ) -> Result<Allocated, LayoutError> {
        let gpus: Vec<u32> = self.hosts.iter().map(|host| host.gpus).collect();
        let mut fleet = candidate.fleet(model, &gpus)?;
        let sizes: Vec<u32> = fleet.pieces().iter().map(|size| size.units).collect();
        let mut left: Vec<Left> = self.left();
        let mut random = Rng::with_seed(seed);
        let arrivals = self.arrivals(&mut random);
        Ok(self.play(&arrivals, |number| {
            let task = &self.tasks[number];
            let units = match task.gpus {
                1 => size_of(task.milli, &sizes),
                _ => 100,
            };
            for (node, host) in self.hosts.iter().enumerate() {
                let has = &mut left[node];
                if has.cpu < task.cpu || has.memory < task.memory || !task.accepts(&host.model) {
                    continue;
                }
                let request = Request {
                    units,
                    count: task.gpus,
                    cpus: 0,
                    memory: 0,
                };
                if task.gpus > 0 && fleet.take(node, request).is_none() {
                    continue;
                }
                has.cpu -= task.cpu;
                has.memory -= task.memory;
                return true;
            }
            false
        }))
    }

    /// The mean of several seeds of a layout. Errors: when the model cannot be cut so.
    pub fn mean_of_layout(
        &self,
        candidate: Candidate,
        model: &Model,
        seeds: u64,
    ) -> Result<Allocated, LayoutError> {
        let runs = (0..seeds).map(|seed| self.run_layout(candidate, model, seed));
        Ok(mean(runs.collect::<Result<Vec<_>, _>>()?.into_iter()))
    }

    pub fn left(&self) -> Vec<Left> {
        let whole = |host: &Host| Left {
            cpu: host.cpu,
            memory: host.memory,
            gpus: vec![MILLI; host.gpus as usize],
        };
        self.hosts.iter().map(whole).collect()
    }
}

/// The smallest size with so many thousandths of a GPU; the whole GPU where no piece is large enough.
fn size_of(milli: u32, sizes: &[u32]) -> u32 {
    let enough = |units: &&u32| **units * 10 >= milli;
    sizes.iter().find(enough).copied().unwrap_or(100)
}

fn mean(runs: impl Iterator<Item = Allocated>) -> Allocated {
    let (mut sum, mut count) = (Allocated::default(), 0.0);
    for run in runs {
        sum.at_100 += run.at_100;
        sum.at_130 += run.at_130;
        count += 1.0;
    }
    Allocated {
        at_100: sum.at_100 / f64::max(count, 1.0),
        at_130: sum.at_130 / f64::max(count, 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(gpus: u32) -> Host {
        Host {
            cpu: 96_000,
            memory: 700_000,
            gpus,
            model: "T4".to_owned(),
        }
    }

    fn task(gpus: u32, milli: u32) -> Task {
        Task {
            cpu: 1000,
            memory: 1000,
            gpus,
            milli,
            models: Vec::new(),
        }
    }

    #[test]
    fn tasks_that_fill_gpus_without_rest_allocate_all_of_them() {
        let experiment = Experiment {
            hosts: vec![host(4); 8],
            tasks: vec![task(1, 500); 64],
        };
        for policy in Policy::ALL {
            assert_eq!(experiment.run(policy, 1).at_130, 100.0, "{policy:?}");
        }
    }

    #[test]
    fn tasks_of_more_than_half_a_gpu_leave_the_rest_of_it() {
        let experiment = Experiment {
            hosts: vec![host(2); 4],
            tasks: vec![task(1, 600); 20],
        };
        for policy in Policy::ALL {
            assert_eq!(experiment.run(policy, 1).at_130, 60.0, "{policy:?}");
        }
    }

    #[test]
    fn a_task_takes_only_models_that_it_accepts_and_nodes_with_its_cpus() {
        let mut other = host(2);
        "P100".clone_into(&mut other.model);
        let mut picky = task(1, 1000);
        picky.models = vec!["P100".to_owned()];
        let mut hungry = task(1, 1000);
        hungry.cpu = 96_001;
        for (tasks, expected) in [(vec![picky; 4], 50.0), (vec![hungry; 4], 0.0)] {
            let experiment = Experiment {
                hosts: vec![host(2), other.clone()],
                tasks,
            };
            for policy in Policy::ALL {
                assert_eq!(experiment.run(policy, 3).at_130, expected, "{policy:?}");
            }
        }
    }

    #[test]
    fn fgd_keeps_gpus_whole_that_random_breaks() {
        let experiment = Experiment {
            hosts: vec![host(8); 16],
            tasks: [vec![task(1, 300); 100], vec![task(8, 1000); 12]].concat(),
        };
        let (random, fgd) = (
            experiment.mean(Policy::Random, 5).at_130,
            experiment.mean(Policy::Fgd, 5).at_130,
        );
        assert!(fgd > random + 5.0, "{fgd} {random}");
    }

    #[test]
    fn each_task_of_a_workload_arrives_before_one_arrives_twice() {
        let experiment = Experiment {
            hosts: vec![host(5)],
            tasks: vec![task(1, 500); 8],
        };
        for seed in 0..10 {
            let mut arrivals = experiment.arrivals(&mut Rng::with_seed(seed));
            // 130 percent of five GPUs are thirteen halves.
            assert_eq!(arrivals.len(), 13);
            arrivals.truncate(8);
            arrivals.sort_unstable();
            assert_eq!(arrivals, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }

    #[test]
    fn a_layout_counts_what_tasks_asked_for() {
        let model = Model::named("H100-80").unwrap();
        let experiment = Experiment {
            hosts: vec![host(4)],
            tasks: vec![task(1, 400); 20],
        };
        for (candidate, expected) in [
            ("whole", 40.0),
            ("uniform:1/2", 80.0),
            ("uniform:1/4", 40.0),
            ("halves", 80.0),
            ("halves+4", 40.0),
            ("mps", 80.0),
        ] {
            let candidate = Candidate::parse(candidate).unwrap();
            let outcome = experiment.run_layout(candidate, &model, 1).unwrap();
            assert_eq!(outcome.at_130, expected, "{candidate}");
        }
    }
}
