//! The CPUs and the memory that come with a fraction, beside what Slurm itself gives with a GPU.

use std::fs;
use std::path::Path;
use std::time::Duration;

use gpufrac_lab::{CgroupVersion, Job, JobId, Lab, LabBuilder, LabError, SlurmCommand};

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
pub const SITE: &str = "DefCpuPerGPU=8\nDefMemPerGPU=16000\n";

fn site(builder: LabBuilder) -> LabBuilder {
    builder
        .cores_per_node(32)
        .slurm_conf_extra(SITE)
        .partition("large", "DefCpuPerGPU=16")
}

/// CPUs and MB of a running job, as Slurm counts them.
pub fn counted(job: &Job) -> (u32, u32) {
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

/// CPUs, MB and nodes that a job gets.
fn given(lab: &Lab, job: JobId) -> Result<(u32, u32, u32), LabError> {
    let running = lab.wait_for_state(job, &["RUNNING"])?;
    let (cpus, memory) = counted(&running);
    let nodes = running.field("NumNodes").parse().expect("a number");
    lab.command("scancel")
        .args([job.to_string()])
        .run()?
        .success()?;
    Ok((cpus, memory, nodes))
}

/// Options beside the GPU.
const OPTIONS: &[&[&str]] = &[
    &[],
    &["-n1"],
    &["-n3"],
    &["-c2"],
    &["-N1", "--ntasks-per-node=4"],
    &["--mem=1000"],
    &["--mem-per-cpu=500", "-c4"],
    &["--cpus-per-gpu=4"],
    &["--mem-per-gpu=8000"],
    &["--cpus-per-gpu=12", "--mem-per-gpu=8G"],
    &["-N1", "--ntasks-per-node=4", "--cpus-per-gpu=16"],
    &["-N2"],
    &["-plarge"],
    &["-plarge", "--mem=2000"],
];

/// Promise (users): a fraction brings its part of the CPUs and of the memory that the site gives for a GPU; a whole
/// GPU gets what Slurm gives for `gpu:1`.
#[test]
fn a_fraction_brings_cpus_and_memory_as_a_gpu_of_slurm_does() -> Result<(), LabError> {
    let plain = site(Lab::builder().nodes(2).plugins(false)).start()?;
    let lab = start(site(
        Lab::builder()
            .nodes(2)
            .gpus("H100-80", 2)
            .mig(false)
            .pools(POOL),
    ))?;
    let mut table = String::new();
    for options in OPTIONS {
        let with = |gres: &'static str| [&[gres, "--wrap=sleep 1000"], *options].concat();
        let submit = |lab: &Lab, gres| lab.sbatch(&lab.users()[0], &with(gres));
        let gpu = submit(&plain, "--gres=gpu:half:1")?;
        let whole = submit(&lab, "--gres=gpufrac:1")?;
        let quarter = submit(&lab, "--gres=gpufrac:0.25")?;
        let expected = given(&plain, gpu)?;
        let whole = given(&lab, whole)?;
        let quarter = given(&lab, quarter)?;
        let line = format!(
            "{options:?}: gpu:1 {expected:?}, gpufrac:1 {whole:?}, a quarter {quarter:?}\n"
        );
        // 25.11.7 gives a GPU beside another count the CPUs of its tasks alone, where the nodes are not named.
        if lab.slurm().series() == "25.11" && *options == ["-n3"] {
            assert_eq!((whole.0, whole.1), (4, expected.1), "{line}");
        } else {
            assert_eq!(whole, expected, "{line}");
        }
        // What the job names itself stays; the rest is a quarter, in whole cores of two CPUs.
        let names = |what: &[&str]| {
            options
                .iter()
                .any(|it| what.iter().any(|name| it.starts_with(name)))
        };
        let least = if names(&["-n3", "--ntasks"]) { 4 } else { 2 };
        let cpus = if names(&["-c"]) {
            expected.0
        } else {
            (expected.0.div_ceil(4)).next_multiple_of(2).max(least)
        };
        let memory = if names(&["--mem=", "--mem-per-cpu"]) { expected.1 } else { expected.1 / 4 };
        assert_eq!(quarter, (cpus, memory, expected.2), "{line}");
        table += &line;
    }
    // For docs/user/requests.md.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("share.txt");
    fs::write(file, table).expect("a file");
    lab.wait_until_empty(Duration::from_secs(60))?;
    lab.expect_nothing_left()
}

/// Pieces whose number is limited by nothing but the GPUs: with the cluster's memory for a GPU each gets its part.
const SEVENTHS: &str = r#"
[pool.p]
mechanism = "mig"
layout = "slices"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

/// Promise (users): where the site gives memory with a GPU, all pieces of a node's GPUs run side by side.
#[test]
fn all_pieces_of_eight_gpus_run_side_by_side() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 8).pools(SEVENTHS);
    let lab = start(lab.cores_per_node(64).slurm_conf_extra(SITE))?;
    let user = lab.users()[0].clone();
    let args = ["--array=1-56", "--gres=gpufrac:0.14", "--wrap=sleep 1000"];
    lab.sbatch(&user, &args)?;
    lab.wait("56 jobs run", Duration::from_secs(120), || {
        let running = lab
            .jobs()?
            .into_iter()
            .filter(|job| job.state() == "RUNNING");
        let given: Vec<_> = running.map(|job| counted(&job)).collect();
        assert!(
            given.iter().all(|given| *given == (2, 16000 / 7)),
            "{given:?}"
        );
        Ok((given.len() == 56).then_some(()))
    })?;
    assert_eq!(lab.leases(&lab.nodes()[0])?.len(), 56);
    lab.command("scancel")
        .args(["-u", &user.name])
        .run()?
        .success()?;
    lab.wait_until_empty(Duration::from_secs(120))?;
    lab.expect_nothing_left()
}

/// Promise (users): a job is held to the memory of its fraction, where Slurm holds jobs to theirs.
#[test]
fn a_job_is_held_to_the_cpus_and_memory_of_its_fraction() -> Result<(), LabError> {
    crate::needs_groups(CgroupVersion::V1);
    let lab = Lab::builder().slurm_conf_extra(SITE).start()?;
    let see = "for name in cpuset memory; do sed -n s,.*:$name:,/sys/fs/cgroup/$name,p /proc/self/cgroup; done |
        { read cpus; read memory; cat $cpus/cpuset.cpus $memory/../memory.limit_in_bytes; nproc; }";
    let args = ["--gres=gpufrac:0.25", "sh", "-c", see];
    let user = &lab.users()[0];
    let command = lab.command("srun").user(user).args(args);
    let seen = command.run()?.success()?.stdout;
    let seen: Vec<&str> = seen.lines().collect();
    let [cpus, memory, counted] = seen[..] else {
        panic!("{seen:?}");
    };
    // A core of two threads, or what the machine has of it.
    assert!(
        !cpus.is_empty() && ["1", "2"].contains(&counted),
        "{seen:?}"
    );
    assert_eq!(memory, (4000_u64 << 20).to_string());
    lab.expect_nothing_left()
}

/// Promise (users): each way of submitting brings CPUs and memory, and says how many.
/// With `a_fraction_by_rest_is_counted_rounded_and_refused_like_any_other`,
/// `a_cron_job_gets_a_slice_each_time_it_runs`.
#[test]
fn each_way_of_submitting_brings_cpus_and_memory_and_says_so() -> Result<(), LabError> {
    // Components of one job get separate nodes.
    let lab = Lab::builder().nodes(2).slurm_conf_extra(SITE).start()?;
    let user = lab.users()[0].clone();
    let quarter = "2 CPUs and 4000 MB with it (a quarter of this partition's share of a GPU)";
    let sleep = "--wrap=sleep 1000";

    let het = ["--gres=gpufrac:0.25", sleep, ":", "--gres=gpufrac:0.5"];
    let first = lab.sbatch(&user, &het)?;
    let found = [first, JobId(first.0 + 1)].map(|job| {
        let running = lab.wait_for_state(job, &["RUNNING"])?;
        Ok::<_, LabError>(counted(&running))
    });
    let [one, two] = found;
    assert_eq!((one?, two?), ((2, 4000), (4, 8000)));

    lab.sbatch(&user, &["--array=1-3", "--gres=gpufrac:0.25", sleep])?;
    lab.wait("the tasks run", Duration::from_secs(60), || {
        let jobs = lab.jobs()?.into_iter();
        let tasks = jobs.filter(|job| {
            job.state() == "RUNNING" && !["", "N/A"].contains(&job.field("ArrayTaskId"))
        });
        let given: Vec<_> = tasks.map(|job| counted(&job)).collect();
        assert!(given.iter().all(|given| *given == (2, 4000)), "{given:?}");
        Ok((given.len() == 3).then_some(()))
    })?;
    lab.command("scancel")
        .args(["-u", &user.name])
        .run()?
        .success()?;
    lab.wait_until_empty(Duration::from_secs(60))?;

    let see = "echo $SLURM_CPUS_ON_NODE";
    for program in ["srun", "salloc"] {
        let step: &[&str] = if program == "srun" { &[] } else { &["srun"] };
        let args = [&["--gres=gpufrac:0.25"], step, &["sh", "-c", see]].concat();
        let said = lab
            .command(program)
            .user(&user)
            .args(args)
            .run()?
            .success()?;
        assert!(said.stderr.contains(quarter), "{program}: {said:?}");
        assert_eq!(said.stdout.trim(), "2", "{program}: {said:?}");
    }
    lab.expect_nothing_left()
}

/// Options whose meaning for a share depends on each other, in a partition with ceilings and in one without.
const TOGETHER: &[&[&str]] = &[
    &["-pgpu", "--gres=gpufrac:0.25", "-N4", "-n8"],
    &["-pgpu", "--gres=gpufrac:0.25", "-N2-4", "-n16"],
    &["-pgpu", "--gres=gpufrac:0.25", "-n8"],
    &["-pgpu", "--gres=gpufrac:0.25", "--mincpus=3"],
    &["-pgpu", "--gres=gpufrac:0.25", "-c4", "--mem-per-cpu=900"],
    &["-pgpu", "--gres=gpufrac:0.25", "-c4", "--mem-per-cpu=2000"],
    &["-plarge", "--gres=gpufrac:0.25", "--mem=12G"],
];

/// Options for a GPU, which Slurm's commands refuse beside a fraction without the client's plugin, with a field of the
/// job and its value. What the user names besides stays, and counts before a variable.
const FOR_A_GPU: &[(&[&str], &str, &str)] = &[
    (
        &["--gres=gpufrac:0.25", "--cpus-per-gpu=8", "--mincpus=6"],
        "MinCPUsNode",
        "6",
    ),
    (
        &["--gres=gpufrac:0.25", "--mem=12G"],
        "MinMemoryNode",
        "12G",
    ),
    (
        &["--gres=gpufrac:0.25", "--mem-per-cpu=700"],
        "MinMemoryCPU",
        "700M",
    ),
    (
        &["--gres=gpufrac:0.25", "--mem-per-gpu=16G"],
        "MinMemoryNode",
        "4G",
    ),
    (
        &["--tres-per-task=gres/gpufrac:0.25", "-n2", "-c4"],
        "MinMemoryCPU",
        "2G",
    ),
];

/// Promise (admins): the cluster's default memory gives a fraction no more than the ceiling.
#[test]
fn the_default_memory_of_the_cluster_is_held_to_the_ceiling() -> Result<(), LabError> {
    let ceiling = "[partition.gpu]\nmax_memory_per_gpu = \"16000M\"\n";
    let lab = Lab::builder()
        .mig(false)
        .pools(&format!("{POOL}{ceiling}"))
        .partition("large", "")
        .slurm_conf_extra("DefMemPerCPU=5000")
        .start()?;
    for (options, name, value) in [
        (&["--gres=gpufrac:0.25"][..], "MinMemoryNode", "4000M"),
        (&["--gres=gpufrac:1"], "MinMemoryCPU", "5000M"),
        (
            &["--gres=gpufrac:0.25", "--mem=100"],
            "MinMemoryNode",
            "100M",
        ),
    ] {
        let args = [&["--hold", "--wrap=true"], options].concat();
        let job = lab.sbatch(&lab.users()[0], &args)?;
        assert_eq!(lab.job(job)?.field(name), value, "{options:?}");
    }
    lab.command("scancel")
        .args(["-u", &lab.users()[0].name])
        .run()?
        .success()?;
    lab.expect_nothing_left()
}

/// Promise (users): a job gets the same CPUs and memory, or the same refusal, from a host with the client's plugin and
/// from one without.
#[test]
fn a_host_without_the_client_s_plugin_gives_a_job_the_same() -> Result<(), LabError> {
    let ceilings = "[partition.gpu]\nmax_cpus_per_gpu = 16\nmax_memory_per_gpu = \"16000M\"\n";
    let lab = Lab::builder()
        .nodes(4)
        .gpus("H100-80", 1)
        .mig(false)
        .pools(&format!("{POOL}{ceilings}"));
    let lab = site(lab).start()?;
    let conf = fs::read_to_string(lab.folder().slurm_conf()).expect("slurm.conf");
    let other = lab.folder().etc().join("without-client-plugin.conf");
    let without = conf.replace("CliFilterPlugins=gpufrac\n", "");
    assert_ne!(without, conf);
    fs::write(&other, without).expect("slurm.conf");
    let user = &lab.users()[0];
    let held = |command: SlurmCommand, options: &[&str]| {
        let args = [&["--parsable", "--hold", "--wrap=true"], options].concat();
        let said = command.user(user).args(args).run()?;
        Ok::<_, LabError>(match said.stdout.trim().parse::<JobId>() {
            Ok(job) => Ok(lab.job(job)?),
            Err(_) => Err(said.stderr),
        })
    };
    let is_refused = |said: &String| said.contains("a quarter of a GPU may have");
    for options in TOGETHER {
        let with = held(lab.command("sbatch"), options)?;
        let without = held(lab.command("sbatch").env("SLURM_CONF", &other), options)?;
        match (with, without) {
            (Ok(with), Ok(without)) => {
                for name in [
                    "ReqTRES",
                    "MinCPUsNode",
                    "MinMemoryCPU",
                    "MinMemoryNode",
                    "CPUs/Task",
                ] {
                    assert_eq!(with.field(name), without.field(name), "{options:?} {name}");
                }
            }
            (with, without) => {
                let refused = [&with, &without].map(|said| said.as_ref().is_err_and(is_refused));
                assert_eq!(refused, [true; 2], "{options:?}: {with:?} {without:?}");
            }
        }
    }
    for (options, name, value) in FOR_A_GPU {
        if options[0].starts_with("--tres-per-task") && !lab.slurm().since(23, 11) {
            continue;
        }
        let command = lab.command("sbatch").env("SBATCH_MEM_PER_GPU", "32G");
        let job = held(command, &[&["-plarge"], *options].concat())?.expect("a job");
        assert_eq!(job.field(name), *value, "{options:?}");
    }
    lab.command("scancel")
        .args(["-u", &user.name])
        .run()?
        .success()?;
    lab.expect_nothing_left()
}

/// Slurm before 23.11.5 counts a device as free once a job ended there, whatever others hold of it.
///
/// Promise (users): Slurm gives no job a whole GPU with shares of other jobs on it, whichever of them ended before.
#[test]
fn no_whole_gpu_is_given_beside_shares_that_stay() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 2).mig(false).pools(POOL);
    let lab = start(lab.partition("large", ""))?;
    let user = &lab.users()[0];
    let submit = |gres: &str| lab.sbatch(user, &[gres, "--wrap=sleep 1000"]);
    let cancel = |job: JobId| {
        let program = lab.command("scancel").args([job.to_string()]);
        program.run()?.success()?;
        lab.wait_for_end(job)
    };
    let mut quarters = Vec::new();
    for _ in 0..5 {
        let job = submit("--gres=gpufrac:0.25")?;
        lab.wait_for_state(job, &["RUNNING"])?;
        quarters.push(job);
    }
    let wholes = [submit("--gres=gpufrac:1")?, submit("--gres=gpufrac:1")?];
    cancel(quarters[4])?;
    lab.wait_for_state(wholes[0], &["RUNNING"])?;
    cancel(quarters[0])?;
    // By its start slurmctld has also looked at the job that waits.
    let kept = submit("--gres=gpufrac:0.25")?;
    lab.wait_for_state(kept, &["RUNNING"])?;
    let second = lab.job(wholes[1])?;
    assert_eq!(
        (second.state(), second.field("Restarts")),
        ("PENDING", "0"),
        "{second:?}"
    );
    for job in [wholes[0], kept, quarters[1], quarters[2], quarters[3]] {
        cancel(job)?;
    }
    lab.wait_for_state(wholes[1], &["RUNNING"])?;
    cancel(wholes[1])?;
    lab.expect_nothing_left()
}
