//! Fractions with the settings of Slurm that sites have: docs/admin/slurm-settings.md lists which work.

use std::time::Duration;

use gpufrac_lab::{CgroupVersion, Lab, LabBuilder, LabError};

use crate::{needs_slurm, since};

/// Prints the variables of a job's slice, and the same in a step.
const SEE: &str = "echo CUDA=$CUDA_VISIBLE_DEVICES; srun sh -c 'echo CUDA=$CUDA_VISIBLE_DEVICES'";

/// Two partitions with the same pool.
const POOL: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "other"]
nodes = "@NODES@"
"#;

fn with(extra: &str) -> LabBuilder {
    Lab::builder().slurm_conf_extra(extra)
}

/// Checks a batch job with a step, and an srun, from submission to the end of their slices.
fn works(lab: &Lab, options: &[&str]) -> Result<(), LabError> {
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let with = |more: &[&'static str]| [options, more].concat();
    let script = format!("{SEE}; while [ ! -e go ]; do sleep 0.05; done");
    let wrap = format!("--wrap={script}");
    let mut args = with(&["-n1", "--gres=gpufrac:0.25"]);
    args.push(&wrap);
    let job = lab.sbatch(user, &args)?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let slice = lab.slice(node, job)?;
    lab.write_work("go", "")?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let line = format!("CUDA={}\n", slice.instance.uuids[0]);
    assert_eq!(lab.output(job)?, line.repeat(2));
    let args = with(&[
        "-n1",
        "--gres=gpufrac:0.5",
        "sh",
        "-c",
        "echo $CUDA_VISIBLE_DEVICES",
    ]);
    let outcome = lab.command("srun").user(user).args(args).run()?.success()?;
    assert!(outcome.stdout.starts_with("MIG-"), "{outcome:?}");
    lab.wait_until_empty(Duration::from_secs(20))?;
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}

/// The output of `gpufrac check` on the first node, and whether it finds no error.
fn check(lab: &Lab) -> Result<(bool, String), LabError> {
    let command = lab.command("gpufrac").args(["check"]);
    let said = command.env("SLURMD_NODENAME", &lab.nodes()[0]).run()?;
    // The exit code 1 is for warnings.
    let right = matches!(said.status.code(), Some(0 | 1));
    Ok((right, said.stdout + &said.stderr))
}

/// Checks that jobs run with the settings, and that check finds no error.
fn serves(extra: &str, options: &[&str]) -> Result<(), LabError> {
    let lab = with(extra).start()?;
    let (right, said) = check(&lab)?;
    assert!(right && !said.contains("warning:"), "{extra}: {said}");
    works(&lab, options)
}

/// Promise (admins): docs/admin/slurm-settings.md: with each setting that the page calls working, a job is served from
/// its submission to its end.
/// With `more_flags_of_the_prolog`, `devices_that_are_filled_evenly`, `nodes_with_features`,
/// `a_partition_whose_jobs_share_cores`, `a_tracker_of_processes_without_control_groups_is_warned_of`.
#[test]
fn ways_to_count_cores_and_memory() -> Result<(), LabError> {
    for kind in [
        "CR_CPU",
        "CR_Core",
        "CR_Socket_Memory",
        "CR_Core_Memory,CR_LLN",
    ] {
        serves(&format!("SelectTypeParameters={kind}"), &["--mem=10"])?;
    }
    Ok(())
}

#[test]
fn more_flags_of_the_prolog() -> Result<(), LabError> {
    // X11 in PrologFlags includes Alloc and Contain.
    serves("PrologFlags=X11,DeferBatch,Serial", &[])?;
    if since(23, 11)? {
        serves(
            "PrologFlags=Alloc,Contain,DeferBatch,ForceRequeueOnFail",
            &[],
        )?;
    }
    Ok(())
}

#[test]
fn devices_that_are_filled_evenly() -> Result<(), LabError> {
    needs_slurm(23, 11)?;
    serves("SelectTypeParameters=CR_Core_Memory,LL_SHARED_GRES", &[])
}

#[test]
fn nodes_with_features() -> Result<(), LabError> {
    serves("NodeName=DEFAULT Feature=fast", &["--constraint=fast"])
}

#[test]
fn a_partition_whose_jobs_share_cores() -> Result<(), LabError> {
    let lab = Lab::builder()
        .partition("other", "OverSubscribe=FORCE:2")
        .pools(POOL)
        .start()?;
    assert!(check(&lab)?.0);
    works(&lab, &["--partition=other"])
}

#[test]
fn a_tracker_of_processes_without_control_groups_is_warned_of() -> Result<(), LabError> {
    let lab = with("ProctrackType=proctrack/linuxproc").start()?;
    let (right, said) = check(&lab)?;
    assert!(
        right && said.contains("warning:") && said.contains("outlive it"),
        "{said}"
    );
    works(&lab, &[])
}

/// Promise (admins): docs/admin/slurm-settings.md: with a setting that the page calls refused, jobs are refused or do
/// not start, as the page says.
/// With `without_task_cgroup_a_task_is_fenced_or_does_not_start`, `a_share_for_each_task_is_refused_by_slurm`,
/// `shares_of_several_devices_are_no_slice`, `a_prolog_inside_of_the_job_drains_the_node`.
#[test]
fn a_partition_of_whole_nodes_starts_no_fraction() -> Result<(), LabError> {
    let lab = Lab::builder()
        .partition("other", "OverSubscribe=EXCLUSIVE")
        .pools(POOL)
        .start()?;
    let (right, said) = check(&lab)?;
    assert!(!right && said.contains("partition other, "), "{said}");
    let args = ["--partition=other", "--gres=gpufrac:0.25", "--wrap=true"];
    let waits = lab.sbatch(&lab.users()[0], &args)?;
    lab.wait(
        "Slurm says why the job waits",
        Duration::from_secs(30),
        || Ok((lab.job(waits)?.field("Reason") != "None").then_some(())),
    )?;
    // Slurm retries it without success.
    std::thread::sleep(Duration::from_secs(3));
    let seen = lab.job(waits)?;
    assert_eq!(seen.state(), "PENDING", "{seen:?}");
    Ok(())
}

/// Opens all GPUs and prints those that can be opened.
const REACH: &str = "for file in @/nvidia[0-9]; do (exec 3<$file) 2>&1; done";

#[test]
fn without_task_cgroup_a_task_is_fenced_or_does_not_start() -> Result<(), LabError> {
    let cases = [
        ("task/cgroup,task/affinity", true, Some(1)),
        ("task/affinity", false, None),
    ];
    fenced(CgroupVersion::V1, &cases)
}

/// Slurm's steps have their own folders there in any case, and gpufrac's fence is attached to them.
#[test]
fn without_task_cgroup_a_task_on_control_groups_of_version_2_is_fenced() -> Result<(), LabError> {
    fenced(CgroupVersion::V2, &[("task/affinity", false, Some(1))])
}

/// `cases`: the task plugins, whether `check` accepts them, how many GPUs a task cannot open; None if it does not
/// start.
fn fenced(version: CgroupVersion, cases: &[(&str, bool, Option<usize>)]) -> Result<(), LabError> {
    crate::needs_groups(version);
    for &(plugin, right, shut) in cases {
        let lab = with(&format!("TaskPlugin={plugin}")).cgroup(version);
        let lab = lab.start()?;
        assert_eq!(check(&lab)?.0, right);
        let folder = lab.folder().gpus(&lab.nodes()[0]).join("dev");
        let script = REACH.replace('@', &folder.display().to_string());
        let wrap = format!("--wrap={script}");
        let job = lab.sbatch(&lab.users()[0], &["--gres=gpufrac:0.25", &wrap])?;
        let state = lab.wait_for_end(job)?.state().to_owned();
        let Some(shut) = shut else {
            assert_ne!(state, "COMPLETED");
            continue;
        };
        let output = lab.output(job)?;
        let denied = output
            .lines()
            .filter(|line| line.ends_with("Operation not permitted"));
        assert_eq!(denied.count(), shut, "{version:?}, {plugin}: {output}");
    }
    Ok(())
}

#[test]
fn a_share_for_each_task_is_refused_by_slurm() -> Result<(), LabError> {
    needs_slurm(23, 11)?;
    let lab = with("SelectTypeParameters=CR_Core_Memory,ONE_TASK_PER_SHARING_GRES").start()?;
    let (right, said) = check(&lab)?;
    assert!(
        !right && said.contains("write instead: SelectTypeParameters=CR_Core_Memory\n"),
        "{said}"
    );
    let refused = lab.try_sbatch(&lab.users()[0], &["--gres=gpufrac:0.25", "--wrap=true"])?;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(!refused.stderr.contains("gpufrac: "), "{refused:?}");
    assert!(
        refused
            .stderr
            .contains("Invalid generic resource (gres) specification"),
        "{refused:?}"
    );
    Ok(())
}

/// With 25 free units on each half, a job of 50 must wait, unless Slurm may take them from both.
#[test]
fn shares_of_several_devices_are_no_slice() -> Result<(), LabError> {
    needs_slurm(23, 11)?;
    let extra = "SelectTypeParameters=CR_Core_Memory,MULTIPLE_SHARING_GRES_PJ";
    let lab = with(extra).gpus("H100-80", 1).start()?;
    let (right, said) = check(&lab)?;
    assert!(
        !right && said.contains("write instead: SelectTypeParameters=CR_Core_Memory\n"),
        "{said}"
    );
    let user = &lab.users()[0];
    let first = lab.sbatch(user, &["--gres=gpufrac:0.5", "--wrap=sleep 1000"])?;
    lab.wait_for_state(first, &["RUNNING"])?;
    let second = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap=sleep 1000"])?;
    lab.wait_for_state(second, &["RUNNING"])?;
    lab.command("scancel").args([first.to_string()]).stdout()?;
    lab.wait_for_end(first)?;
    let third = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap=sleep 1000"])?;
    lab.wait_for_state(third, &["RUNNING"])?;
    let divided = lab.sbatch(user, &["--gres=gpufrac:0.5", "--wrap=sleep 1000"])?;
    // The prolog cancels it.
    assert_eq!(lab.wait_for_end(divided)?.state(), "CANCELLED");
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_prolog_inside_of_the_job_drains_the_node() -> Result<(), LabError> {
    needs_slurm(24, 5)?;
    let lab = with("PrologFlags=Alloc,Contain,DeferBatch,RunInJob").start()?;
    let (_, said) = check(&lab)?;
    let fix = "write instead: PrologFlags=Alloc,Contain,DeferBatch\n";
    assert!(said.contains(fix), "{said}");
    lab.sbatch(&lab.users()[0], &["--gres=gpufrac:0.25", "--wrap=true"])?;
    lab.wait("the node is drained", Duration::from_secs(60), || {
        Ok((!lab.drained_nodes()?.is_empty()).then_some(()))
    })
}
