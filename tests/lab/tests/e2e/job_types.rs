//! A job gets its slice and gives it back, in whatever way it is started.

use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};

use crate::{HOLD, go};

/// Prints the variables of a job's slice.
const SEE: &str = "echo CUDA=$CUDA_VISIBLE_DEVICES NVIDIA=$NVIDIA_VISIBLE_DEVICES \
    F=$GPUFRAC_FRACTION M=$GPUFRAC_MECHANISM P=$GPUFRAC_PROFILE MIB=$GPUFRAC_MEMORY_MIB";

/// The values of `CUDA=` in an output, in order.
fn cuda(output: &str) -> Vec<String> {
    let words = output.split_whitespace();
    words
        .filter_map(|word| word.strip_prefix("CUDA="))
        .map(str::to_owned)
        .collect()
}

/// Promise (users): sbatch: instance, environment, and nothing left.
#[test]
fn sbatch() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    assert_eq!(lab.instances(node)?, []);

    let script = format!("{SEE}; {HOLD}");
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap", &script])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let slice = lab.slice(node, job)?;
    assert_eq!(slice.instance.size, 2);
    assert_eq!(slice.lease.user_id.0, user.uid);
    assert_eq!(lab.instances(node)?.len(), 1);

    let shown = lab.job(job)?;
    go(&lab)?;
    assert!(
        shown.field("TresPerNode").contains("gpufrac:25"),
        "{shown:?}"
    );
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let output = lab.output(job)?;
    assert_eq!(cuda(&output), slice.instance.uuids, "{output}");
    let uuid = &slice.instance.uuids[0];
    for word in [
        format!("NVIDIA={uuid}"),
        "F=0.25".into(),
        "M=mig".into(),
        "P=2g.20gb".into(),
    ] {
        assert!(output.contains(&word), "{word} is not in {output}");
    }
    assert!(!output.contains("MIB=\n"), "{output}");
    lab.expect_nothing_left()
}

/// Promise (users): salloc, its steps, its shell on the node.
/// With `salloc_shell_of_its_own_on_the_node_has_the_slice`.
#[test]
fn salloc_with_steps() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!(
        "echo JOB=$SLURM_JOB_ID; srun sh -c '{SEE}'; srun sh -c '{SEE}; sleep 1'; \
         srun --overlap --gres=none sh -c '{SEE}'"
    );
    let outcome = lab
        .command("salloc")
        .user(user)
        .args(["-n1", "--gres=gpufrac:0.5", "sh", "-c", &script])
        .run()?
        .success()?;
    let seen = cuda(&outcome.stdout);
    assert_eq!(seen.len(), 3, "{outcome:?}");
    assert!(seen[0].starts_with("MIG-"), "{outcome:?}");
    assert_eq!(seen[0], seen[1], "{outcome:?}");
    assert!(outcome.stdout.contains("F=0.5"), "{outcome:?}");
    lab.wait_until_empty(Duration::from_secs(20))?;
    assert_eq!(lab.instances(node)?, []);
    lab.expect_nothing_left()
}

#[test]
fn salloc_shell_of_its_own_on_the_node_has_the_slice() -> Result<(), LabError> {
    // With `use_interactive_step` salloc without a command starts its shell as a step on the node.
    let lab = Lab::builder()
        .slurm_conf_extra("LaunchParameters=use_interactive_step")
        .start()?;
    let outcome = lab
        .command("salloc")
        .user(&lab.users()[0])
        .args([
            "-n1",
            "--gres=gpufrac:0.25",
            "srun",
            "--interactive",
            "sh",
            "-c",
            SEE,
        ])
        .run()?
        .success()?;
    let seen = cuda(&outcome.stdout);
    assert!(
        seen.len() == 1 && seen[0].starts_with("MIG-"),
        "{outcome:?}"
    );
    lab.expect_nothing_left()
}

/// Promise (users): srun.
#[test]
fn srun() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let outcome = lab
        .command("srun")
        .user(&lab.users()[0])
        .args(["--gres=gpufrac:0.125", "sh", "-c", SEE])
        .run()?
        .success()?;
    let seen = cuda(&outcome.stdout);
    assert!(
        seen.len() == 1 && seen[0].starts_with("MIG-"),
        "{outcome:?}"
    );
    assert!(outcome.stdout.contains("P=1g.10gb"), "{outcome:?}");
    lab.expect_nothing_left()
}

/// Promise (users): job arrays: an instance for each member.
#[test]
fn job_array_of_20() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    lab.gpusim(node, &["manner", "random-uuids"])?;
    let job = lab.sbatch(
        user,
        &[
            "--array=0-19",
            "--gres=gpufrac:0.25",
            "--output=array-%a",
            "--wrap",
            SEE,
        ],
    )?;
    // Eight quarters fit on two GPUs at once: never more.
    let ended = lab.wait("the array ended", Duration::from_secs(120), || {
        let instances = lab.instances(node)?.len();
        assert!(instances <= 8, "{instances} instances");
        let members = lab.show_job(job)?;
        Ok((!members.iter().any(gpufrac_lab::Job::is_active)).then_some(members))
    })?;
    assert_eq!(ended.len(), 20);
    assert!(
        ended.iter().all(|job| job.state() == "COMPLETED"),
        "{ended:?}"
    );
    let mut uuids = Vec::new();
    for index in 0..20 {
        let path = lab.folder().work().join(format!("array-{index}"));
        let output = std::fs::read_to_string(&path).expect("each member wrote its output");
        uuids.extend(cuda(&output));
    }
    uuids.sort();
    uuids.dedup();
    // This driver uses no UUID again, so each member had its own instance.
    assert_eq!(uuids.len(), 20);
    lab.expect_nothing_left()
}

/// Promise (users): fractions count per node.
#[test]
fn two_node_job() -> Result<(), LabError> {
    let lab = Lab::builder().nodes(2).start()?;
    let script = format!("srun sh -c '{SEE}'; {HOLD}");
    let job = lab.sbatch(
        &lab.users()[0],
        &["-N2", "-n2", "--gres=gpufrac:0.5", "--wrap", &script],
    )?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let mut held = Vec::new();
    for node in lab.nodes() {
        let slice = lab.slice(node, job)?;
        assert_eq!(slice.instance.size, 4);
        held.extend(slice.instance.uuids);
    }
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let output = lab.output(job)?;
    let mut seen = cuda(&output);
    seen.sort();
    held.sort();
    assert_eq!(seen, held, "{output}");
    lab.expect_nothing_left()
}

/// Promise (users): het jobs: each component has its own slice.
#[test]
fn het_job() -> Result<(), LabError> {
    let lab = Lab::builder().nodes(2).start()?;
    let script = lab.write_work(
        "het.sh",
        &format!(
            "#!/bin/sh\n#SBATCH -N1 -n1 --gres=gpufrac:0.25\n#SBATCH hetjob\n\
             #SBATCH -N1 -n1 --gres=gpufrac:0.5\nsrun --het-group=0,1 sh -c '{SEE}'\n{HOLD}\n"
        ),
    )?;
    let leader = lab.sbatch(&lab.users()[0], &[&script.display().to_string()])?;
    let second = JobId(leader.0 + 1);
    // Each component has its own prolog.
    for component in [leader, second] {
        lab.wait_for_state(component, &["RUNNING"])?;
    }
    let mut sizes = Vec::new();
    let mut held = Vec::new();
    for component in [leader, second] {
        let node = lab.job(component)?.field("NodeList").to_owned();
        let slice = lab.slice(&node, component)?;
        sizes.push(slice.instance.size);
        held.extend(slice.instance.uuids);
    }
    assert_eq!(sizes, [2, 4]);
    go(&lab)?;
    assert_eq!(lab.wait_for_end(leader)?.state(), "COMPLETED");
    let output = lab.output(leader)?;
    let mut seen = cuda(&output);
    seen.sort();
    held.sort();
    assert_eq!(seen, held, "{output}");
    lab.expect_nothing_left()
}

#[test]
fn a_job_without_a_gpu_is_left_alone() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let job = lab.sbatch(user, &["--wrap", &format!("{SEE}; {HOLD}")])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    assert_eq!(lab.instances(node)?, []);
    assert!(lab.leases(node)?.is_empty());
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    assert_eq!(lab.output(job)?.trim(), "CUDA= NVIDIA= F= M= P= MIB=");
    lab.expect_nothing_left()
}
