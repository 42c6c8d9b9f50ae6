//! The CPUs and the memory that come with a fraction, beside what Slurm itself gives with a GPU.

use gpufrac_lab::{Job, JobId, Lab, LabBuilder, LabError};

use crate::shared_devices::start;

/// Quarters of one GPU, and the GPU as a whole.
const POOL: &str = r#"
[pool.p]
mechanism = "timeslice"
gpu = "H100-80"
menu = ["1/8", "1/4", "1"]
partitions = ["gpu", "large"]
nodes = "@NODES@"
"#;

/// A node of two sockets whose cores and memory are counted, and the cluster's values for a GPU.
const SITE: &str = "DefCpuPerGPU=8\nDefMemPerGPU=16000\n";

fn site(builder: LabBuilder) -> LabBuilder {
    builder
        .cores_per_node(32)
        .slurm_conf_extra(SITE)
        .partition("large", "DefCpuPerGPU=16")
}

/// CPUs and MB of a running job, as Slurm counts them.
fn counted(job: &Job) -> (u32, u32) {
    let tres = [job.field("AllocTRES"), job.field("TRES")].join(",");
    let value = |name: &str| {
        let mut items = tres.split(',').filter_map(|item| item.split_once('='));
        let value = items
            .find(|(key, _)| *key == name)
            .map_or("0", |(_, value)| value);
        match value.strip_suffix('G') {
            Some(gib) => (gib.parse::<f64>().expect("a number") * 1024.0) as u32,
            None => value
                .trim_end_matches('M')
                .parse::<f64>()
                .expect("a number") as u32,
        }
    };
    (value("cpu"), value("mem"))
}

fn given(lab: &Lab, job: JobId) -> Result<(u32, u32), LabError> {
    let found = counted(&lab.wait_for_state(job, &["RUNNING"])?);
    lab.command("scancel")
        .args([job.to_string()])
        .run()?
        .success()?;
    lab.wait_for_end(job)?;
    Ok(found)
}

/// Options beside the GPU.
const OPTIONS: &[&[&str]] = &[
    &[],
    &["-n3"],
    &["-c2"],
    &["-N1", "--ntasks-per-node=4"],
    &["--mem=1000"],
    &["--mem-per-cpu=500", "-c4"],
    &["--cpus-per-gpu=4"],
    &["--mem-per-gpu=8000"],
    &["--cpus-per-gpu=12", "--mem-per-gpu=8G"],
    &["-plarge"],
    &["-plarge", "--mem=2000"],
];

/// Promise (users): a fraction brings its part of the CPUs and of the memory that the site gives for a GPU; a whole
/// GPU gets what Slurm gives for `gpu:1`.
#[test]
fn a_fraction_brings_cpus_and_memory_as_a_gpu_of_slurm_does() -> Result<(), LabError> {
    let plain = site(Lab::builder().plugins(false)).start()?;
    let lab = start(site(
        Lab::builder().gpus("H100-80", 1).mig(false).pools(POOL),
    ))?;
    let mut table = String::new();
    for options in OPTIONS {
        let with = |gres: &'static str| [&[gres, "--wrap=sleep 1000"], *options].concat();
        let job = plain.sbatch(&plain.users()[0], &with("--gres=gpu:half:1"))?;
        let expected = given(&plain, job)?;
        let user = &lab.users()[0];
        let whole = given(&lab, lab.sbatch(user, &with("--gres=gpufrac:1"))?)?;
        let quarter = given(&lab, lab.sbatch(user, &with("--gres=gpufrac:0.25"))?)?;
        table += &format!(
            "{options:?}: gpu:1 {expected:?}, gpufrac:1 {whole:?}, gpufrac:0.25 {quarter:?}\n"
        );
    }
    println!("{table}");
    panic!("{table}");
}
