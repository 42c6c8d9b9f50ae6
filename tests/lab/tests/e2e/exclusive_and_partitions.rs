//! Jobs with a whole node, a whole GPU requested inside a fraction, and changes of partition.

use gpufrac_lab::{JobId, Lab, LabError};

use crate::{HOLD, go, wait_until_put_back};

/// Two GPUs in halves and a whole one, all in partition `gpu`; partition `small` has the halves too, and rules.
const POOLS: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "small"]
nodes = "@NODES@"
gpus = [0, 1]

[pool.whole]
mechanism = "mig"
layout = "whole"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [2]

[partition.small]
max = 0.25
"#;

fn lab() -> Result<Lab, LabError> {
    Lab::builder()
        .gpus("H100-80", 3)
        .partition("small", "")
        .partition("cpu", "")
        .pools(POOLS)
        .start()
}

/// Prints the devices that the job can open, and its variables, as `reached: ...` and `env: ...`.
fn look(lab: &Lab) -> String {
    let devices = lab.folder().gpus(&lab.nodes()[0]).join("dev");
    format!(
        "for f in {0}/nvidia[0-9]* {0}/nvidia-caps/*; do \
         (exec 3<$f) 2>&1 | grep -q 'No such device' && echo reached: $f; done; \
         env | grep -E '^(GPUFRAC_[FMP]|NVIDIA_VISIBLE)' | sed 's/^/env: /'; true",
        devices.display()
    )
}

/// Promise (users): a fraction with `--core-spec` or `--thread-spec` is refused where Slurm takes these.
#[test]
fn a_fraction_on_nodes_of_its_own_by_reserved_cores_is_refused() -> Result<(), LabError> {
    let builder = Lab::builder().slurm_conf_extra("AllowSpecResourcesUsage=yes");
    let lab = builder.start()?;
    let user = &lab.users()[0];
    for option in ["--core-spec=1", "--thread-spec=1"] {
        let refused = lab.try_sbatch(user, &[option, "--gres=gpufrac:0.25", "--wrap=true"])?;
        assert!(!refused.status.success(), "{refused:?}");
        let said = "cannot be combined with --core-spec or --thread-spec";
        assert!(refused.stderr.contains(said), "{refused:?}");
    }
    // Slurm ignores these options if the site does not allow them.
    let lab = Lab::builder().start()?;
    let args = ["--core-spec=1", "--gres=gpufrac:0.25", "--wrap=true"];
    let job = lab.sbatch(&lab.users()[0], &args)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}

/// Promise (users): a job with `--exclusive` runs, and gets no GPU that it did not request.
/// With `exclusive_jobs_get_no_shares_and_no_default`.
#[test]
fn an_exclusive_job_without_a_gpu_runs_and_reaches_none() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    for partition in ["cpu", "gpu"] {
        let wrap = format!("--wrap={}", look(&lab));
        let job = lab.sbatch(user, &["-p", partition, "--exclusive", &wrap])?;
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED", "{partition}");
        assert_eq!(lab.output(job)?, "", "{partition}");
    }
    let refused = lab.try_sbatch(user, &["--exclusive", "--gres=gpufrac:0.25", "--wrap=true"])?;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(
        refused.stderr.contains("leave --exclusive out"),
        "{refused:?}"
    );
    lab.expect_nothing_left()
}

/// Promise (isolation): GPUs that Slurm derives from the number of tasks count as requested.
/// With `gpus_that_slurm_derives_from_tasks_are_asked_for_as_well`.
#[test]
fn gpus_that_slurm_would_derive_from_tasks_are_refused() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    let tasks = ["-n1", "--ntasks-per-gpu=1", "--wrap=true"];
    let refused = lab.try_sbatch(user, &tasks)?;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("gpufrac: "), "{refused:?}");
    // Slurm's own client refuses them together with a fraction.
    let both = [&tasks[..], &["--gres=gpufrac:0.25"]].concat();
    let refused = lab.try_sbatch(user, &both)?;
    assert!(!refused.status.success(), "{refused:?}");
    lab.expect_nothing_left()
}

/// Promise (users): a job that is submitted from inside another job has its own request.
/// With `a_job_from_inside_asks_for_its_own_alone`.
#[test]
fn jobs_submitted_from_inside_a_fraction_get_what_they_ask_for() -> Result<(), LabError> {
    let lab = lab()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    // The inner jobs inherit the whole environment of the outer one.
    let script = format!(
        "#!/bin/bash\nsbatch --parsable -o whole.out --gres=gpufrac:1 --wrap 'echo $GPUFRAC_FRACTION; {HOLD}'\n\
         sbatch --parsable -o none.out -p cpu --wrap \"{}\"\nsbatch --parsable -o all.out -p cpu --exclusive --wrap true\n",
        look(&lab).replace('$', "\\$")
    );
    lab.write_work("outer.sh", &script)?;
    let outer = lab.sbatch(user, &["--gres=gpufrac:0.25", "outer.sh"])?;
    assert_eq!(lab.wait_for_end(outer)?.state(), "COMPLETED");
    let output = lab.output(outer)?;
    let inner: Vec<_> = output
        .lines()
        .filter_map(|line| line.parse().ok().map(JobId))
        .collect();
    let [whole, none, all] = inner[..] else {
        panic!("{output}")
    };
    lab.wait_for_state(whole, &["RUNNING"])?;
    assert_eq!(lab.slice(node, whole)?.instance.size, 8);
    go(&lab)?;
    for job in [whole, none, all] {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED", "job {job}");
    }
    let read =
        |file| std::fs::read_to_string(lab.folder().work().join(file)).expect("the job's output");
    assert_eq!(read("whole.out"), "1\n");
    assert_eq!(
        read("none.out"),
        "",
        "nothing is reached and nothing believed"
    );
    lab.expect_nothing_left()
}

/// Promise (isolation): a change of partition does not bypass its rules.
#[test]
fn a_change_of_partition_does_not_bypass_its_rules() -> Result<(), LabError> {
    let lab = lab()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let job = lab.sbatch(
        user,
        &["--hold", "--gres=gpufrac:0.5", &format!("--wrap={HOLD}")],
    )?;
    let scontrol = |arguments: &[&str]| lab.command("scontrol").args(arguments).stdout();
    let id = job.to_string();
    lab.update(&[&format!("JobId={id}"), "Partition=small"])?;
    scontrol(&["release", &id])?;
    // The prolog requeues and holds the job, and the node stays in service.
    wait_until_put_back(&lab, job)?;
    assert!(lab.instances(node)?.is_empty());
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.command("scancel").args([&id]).stdout()?;
    lab.expect_nothing_left()
}

/// Limits of `gres/gpufrac` do not count requests for `gpu` or `shard`, and job_submit does not know that the
/// partition has the pool's nodes, too.
#[test]
fn a_partition_without_a_pool_gives_nothing_of_a_pools_gpus() -> Result<(), LabError> {
    let lab = lab()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let mut jobs = Vec::new();
    for request in ["--gres=shard:50", "--gres=gpu:half:1", "--gpus=1"] {
        jobs.push(lab.sbatch(user, &["-p", "cpu", request, &format!("--wrap={HOLD}")])?);
    }
    let moved = lab.sbatch(
        user,
        &["--hold", "--gres=gpufrac:0.5", &format!("--wrap={HOLD}")],
    )?;
    lab.update(&[&format!("JobId={moved}"), "Partition=cpu"])?;
    lab.command("scontrol")
        .args(["release", &moved.to_string()])
        .stdout()?;
    jobs.push(moved);
    for job in &jobs {
        wait_until_put_back(&lab, *job)?;
    }
    assert!(lab.instances(node)?.is_empty());
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    // An interactive user sees the reason.
    let told = lab
        .command("srun")
        .user(user)
        .args(["-p", "cpu", "--gres=shard:50", "true"])
        .run()?;
    assert!(!told.status.success(), "{told:?}");
    assert!(
        told.stderr.contains("for jobs of gpu, small alone"),
        "{told:?}"
    );
    for job in jobs {
        lab.command("scancel").args([job.to_string()]).stdout()?;
    }
    lab.expect_nothing_left()
}
