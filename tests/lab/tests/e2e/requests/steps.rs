//! Steps inside of a job with a fraction.

use gpufrac_lab::{Lab, LabError};

use super::{SEE, expect_refusal};
use crate::{HOLD, go};

/// Runs a script as a batch job with up to four tasks and half a GPU; returns its output.
fn in_half_a_gpu(lab: &Lab, script: &str) -> Result<String, LabError> {
    // The memory of a step that has just ended may not be free yet, for which 22.05 refuses the next one.
    let little = "srun() { command srun --mem=100 \"$@\"; }";
    lab.write_work("steps.sh", &format!("#!/bin/bash\n{little}\n{script}"))?;
    let job = lab.sbatch(&lab.users()[0], &["-n4", "--gres=gpufrac:0.5", "steps.sh"])?;
    assert_eq!(
        lab.wait_for_end(job)?.state(),
        "COMPLETED",
        "{:?}",
        lab.output(job)
    );
    lab.output(job)
}

/// Promise (users): Slurm counts the fractions of steps, which all run on the job's slice.
/// With `steps_run_side_by_side_as_far_as_the_jobs_fraction_goes`.
#[test]
fn slurm_counts_the_fractions_of_steps_and_all_run_on_the_jobs_slice() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let see = format!("{SEE} $CUDA_VISIBLE_DEVICES");
    let output = in_half_a_gpu(
        &lab,
        &format!(
            "srun -n1 sh -c '{see}'\nsrun -n1 --gres=gpufrac:0.125 sh -c '{see}'\n\
             srun -n1 --overlap sh -c '{see}'\nsrun -n1 --gres=none sh -c '{see}'\n\
             srun -n1 --gres=gpufrac:0.2 sh -c '{see}'\n\
             srun -n1 --gres=gpufrac:percent:25 sh -c '{see}'\n\
             SLURM_PARTITION=cpu srun -n1 --gres=gpufrac:0.125 sh -c '{see}'\n\
             export SLURM_JOB_PARTITION=cpu own=$SLURM_JOB_ID\n\
             SLURM_JOB_ID=99 srun --jobid=$own -n1 --gres=gpufrac:0.125 sh -c '{see}'\n"
        ),
    )?;
    let steps: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with("F="))
        .collect();
    let uuid = steps[0].split_whitespace().nth(2).expect("a UUID");
    assert!(uuid.starts_with("MIG-"), "{output}");
    let on_slice = |shards| format!("F=0.5 S={shards} {uuid}");
    let expected = [
        on_slice(50),
        on_slice(13),
        on_slice(50),
        "F= S=".into(),
        on_slice(25),
        on_slice(25),
        // Slurm takes no notice of the partition of a step, and a shell may be in a job of another one.
        on_slice(13),
        on_slice(13),
    ];
    assert_eq!(steps, expected, "{output}");
    assert!(output.contains("rounded up from 0.2 to 0.25"), "{output}");
    lab.expect_nothing_left()
}

#[test]
fn steps_run_side_by_side_as_far_as_the_jobs_fraction_goes() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    // Two quarters fill the slice: a third step is refused with --immediate, and otherwise runs after them. Slurm gives
    // each step a whole core, so that the job has as many as there are steps.
    let script = format!(
        "step() {{ srun --exact -n1 --gres=gpufrac:0.25 \"$@\"; }}\n\
         step sh -c 'touch first; {HOLD}' & step sh -c 'touch second; {HOLD}' &\n\
         until [ -e first ] && [ -e second ]; do sleep 0.1; done\n\
         step --immediate=1 true && echo taken\n\
         srun --exact -n1 --gres=none sh -c 'echo beside'\n\
         step sh -c '[ -e go ] && echo waited' &\n\
         touch ready; wait\n"
    );
    lab.write_work("steps.sh", &format!("#!/bin/bash\n{script}"))?;
    let job = lab.sbatch(&lab.users()[0], &["-n8", "--gres=gpufrac:0.5", "steps.sh"])?;
    let ready = lab.folder().work().join("ready");
    lab.wait(
        "both steps run",
        std::time::Duration::from_secs(120),
        || Ok(ready.exists().then_some(())),
    )?;
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let output = lab.output(job)?;
    assert!(output.contains("Requested nodes are busy"), "{output}");
    assert!(!output.contains("taken"), "{output}");
    assert!(
        output.contains("beside\n") && output.contains("waited\n"),
        "{output}"
    );
    lab.expect_nothing_left()
}

const WHOLE: &str = r#"
[pool.whole]
mechanism = "timeslice"
gpu = "L40S-48"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

#[test]
fn steps_do_not_divide_a_whole_gpu() -> Result<(), LabError> {
    let lab = Lab::builder().gpu_list(&["L40S-48"]).pools(WHOLE).start()?;
    let see = "sh -c 'echo SEES=$CUDA_VISIBLE_DEVICES'";
    // Little memory: that of a step which is ending still counts.
    let script = format!(
        "--wrap=step() {{ srun -n1 --mem=50 \"$@\"; }}; step --gres=gpufrac:0.5 true && echo taken; \
         step --gres=gpufrac:1 {see}; step --overlap {see} & step --overlap {see}; wait"
    );
    let job = lab.sbatch(&lab.users()[0], &["-n2", "--gres=gpufrac:1", &script])?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let output = lab.output(job)?;
    let said = "the job has whole GPUs, which Slurm does not divide among steps; leave --gres out";
    // Slurm before 23.11 counts the whole GPU in shares.
    let refused = lab.slurm().since(23, 11);
    assert_eq!(output.contains("taken"), !refused, "{output}");
    assert_eq!(output.contains(said), refused, "{output}");
    assert_eq!(output.matches("SEES=GPU-").count(), 3, "{output}");
    lab.expect_nothing_left()
}

#[test]
fn a_step_cannot_have_more_than_its_job() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let user = &lab.users()[0];
    let script = format!(
        "--wrap=srun --gres=gpufrac:0.5 true && echo taken; srun --gres=gpu:1 true && echo taken; \
         srun --gres=gpufrac:1 true && echo taken; srun sh -c '{SEE}'"
    );
    let job = lab.sbatch(user, &["-n1", "--gres=gpufrac:0.25", &script])?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let output = lab.output(job)?;
    for words in [
        "gpufrac: the job has 0.25 of a GPU on each of its nodes",
        "write at most --gres=gpufrac:0.25, or leave --gres out",
        "Invalid generic resource (gres) specification",
        "gpufrac: partition gpu offers no whole GPU",
        "F=0.25 S=25",
    ] {
        assert!(output.contains(words), "no {words:?} in {output}");
    }
    assert!(!output.contains("taken"), "{output}");
    // A job without a fraction has none to divide.
    let none = lab
        .command("salloc")
        .user(user)
        .args(["-n1", "srun", "--gres=gpufrac:0.25", "true"])
        .run()?;
    assert!(!none.status.success(), "{none:?}");
    let refused = lab
        .command("salloc")
        .user(user)
        .args([
            "-n1",
            "--gres=gpufrac:0.25",
            "srun",
            "--gpus-per-task=0.25",
            "true",
        ])
        .run()?;
    let words = if lab.slurm().since(23, 11) { "--gpus-per-task" } else { "needs Slurm 23.11" };
    expect_refusal(&refused, words);
    lab.expect_nothing_left()
}
