//! The CPUs and the memory that come with a fraction.

use super::*;
use crate::config::AboveMax;
use crate::per_gpu::PerGpu;

/// `JobDefaults=DefCpuPerGPU=8,DefMemPerGPU=16000` of the cluster, where partition `slices` has 12 CPUs of its own.
pub(super) const OF_SLURM: SitePerGpu<'static> = SitePerGpu(&|partition| PerGpu {
    cpus: Some(if partition == "slices" { 12 } else { 8 }),
    memory: Some(16000),
});

/// What the plugins write, as options.
pub(super) fn options(share: &Share) -> String {
    let memory = match share.memory {
        None => (None, None),
        Some(Memory::PerNode(mib)) => (Some(mib), None),
        Some(Memory::PerCpu(mib)) => (None, Some(mib)),
    };
    let written = [
        ("--mincpus", share.cpus_per_node.map(u64::from)),
        ("--cpus-per-task", share.cpus_per_task.map(u64::from)),
        ("--mem", memory.0),
        ("--mem-per-cpu", memory.1),
        ("--cpus-per-gpu", share.per_gpu.cpus),
        ("--mem-per-gpu", share.per_gpu.memory),
    ];
    let written: String = written
        .into_iter()
        .filter_map(|(name, value)| Some(format!(" {name}={}", value?)))
        .collect();
    written + if share.replaces_options { " instead" } else { "" }
}

#[test]
fn a_fraction_brings_its_part_of_what_the_site_gives_for_a_gpu() {
    cases(
        shared_config(),
        "a_fraction_brings_its_part_of_what_the_site_gives_for_a_gpu",
    );
}

#[test]
fn options_for_a_gpu_count_by_fraction() {
    cases(shared_config(), "options_for_a_gpu_count_by_fraction");
}

fn with_rules(
    partition: &str,
    above_max: AboveMax,
    per_gpu: PerGpu,
    max_per_gpu: PerGpu,
) -> Config {
    let mut config = config();
    let mut rules = config.partitions[0].clone();
    rules.name = partition.to_owned();
    (rules.min, rules.max, rules.default) = (None, None, None);
    (rules.above_max, rules.per_gpu, rules.max_per_gpu) = (above_max, per_gpu, max_per_gpu);
    config.partitions.retain(|rules| rules.name != partition);
    config.partitions.push(rules);
    config
}

const MAX: PerGpu = PerGpu {
    cpus: Some(16),
    memory: Some(64000),
};

#[test]
fn the_file_gives_before_slurm_does() {
    let of_file = PerGpu {
        cpus: Some(4),
        memory: None,
    };
    let config = with_rules("gpu", AboveMax::Refuse, of_file, PerGpu::default());
    cases(&config, "the_file_gives_before_slurm_does");
}

#[test]
fn more_than_the_ceiling_of_a_fraction_is_refused() {
    let config = with_rules("gpu", AboveMax::Refuse, PerGpu::default(), MAX);
    cases(&config, "more_than_the_ceiling_of_a_fraction_is_refused");
}

#[test]
fn a_whole_gpu_keeps_within_the_ceiling() {
    let config = with_rules("full", AboveMax::Lower, PerGpu::default(), MAX);
    cases(&config, "a_whole_gpu_keeps_within_the_ceiling");
}

#[test]
fn more_than_the_ceiling_of_a_fraction_is_lowered() {
    let config = with_rules("gpu", AboveMax::Lower, PerGpu::default(), MAX);
    cases(&config, "more_than_the_ceiling_of_a_fraction_is_lowered");
}

proptest! {
    #![proptest_config(at_least(1000))]

    /// What a fraction brings is at least its part and less than one CPU more, and a second decision adds nothing.
    #[test]
    fn shares_are_in_proportion_and_stable(
        percent in 1_u32..=100,
        cpus in 1_u64..=512,
        memory in 1_u64..=4_000_000,
        partition in proptest::sample::select(vec!["gpu", "slices"]),
    ) {
        let site = |_: &str| PerGpu { cpus: Some(cpus), memory: Some(memory) };
        let tres = format!("gpufrac:{}", f64::from(percent) / 100.0);
        let request = JobRequest { per_gpu: Some(SitePerGpu(&site)), form: GresForm::Slash, ..job(partition, &tres) };
        let Ok(Verdict::Rewritten { text, share, .. }) = decide(shared_config(), &request, Occasion::Submit) else {
            return Ok(());
        };
        let Some(given) = share.cpus_per_node else {
            // A whole GPU, which Slurm counts as a device.
            prop_assert_eq!(share, Share::default());
            return Ok(());
        };
        let Some(Memory::PerNode(mib)) = share.memory else { panic!("{share:?}") };
        let asked = |per_gpu: u64| f64::from(percent) / 100.0 * per_gpu as f64;
        prop_assert!(f64::from(given) + 1e-9 >= asked(cpus) * 0.99, "{given} of {cpus}");
        prop_assert!(u64::from(given) <= cpus && mib <= memory);
        prop_assert!((mib + 1) as f64 >= asked(memory) * 0.99, "{mib} of {memory}");
        let again = JobRequest {
            tres_per_node: Some(&text),
            cpus_per_node: Some(given),
            memory: share.memory,
            ..request
        };
        match decide(shared_config(), &again, Occasion::Submit) {
            Ok(Verdict::Rewritten { share, note: None, .. }) => prop_assert_eq!(share, Share::default()),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
