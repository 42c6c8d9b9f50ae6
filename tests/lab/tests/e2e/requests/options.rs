//! The options and notations of a fraction.

use std::time::Duration;

use gpufrac_lab::{Lab, LabError, SlurmCommand, User};

use super::{SEE, counts, expect_refusal};

/// A held batch job; returns its counts.
fn held(lab: &Lab, command: SlurmCommand, user: &User, args: &[&str]) -> Result<String, LabError> {
    let outcome = command
        .user(user)
        .args(["--parsable", "--hold"])
        .args(args)
        .run()?
        .success()?;
    let job = outcome.stdout.trim().parse().expect("a job's number");
    counts(lab, gpufrac_lab::JobId(job))
}

/// Promise (users): a fraction from the command line, the script and the environment, with Slurm's precedence.
#[test]
fn each_command_takes_a_fraction_from_its_options_its_script_and_its_environment()
-> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let user = &lab.users()[0];
    lab.write_work("job.sh", "#!/bin/sh\n#SBATCH --gres=gpufrac:0.125\ntrue\n")?;
    let sbatch = |variable: &str, args: &[&str]| {
        let mut command = lab.command("sbatch");
        if !variable.is_empty() {
            command = command.env("SBATCH_GRES", variable);
        }
        held(&lab, command, user, args)
    };
    let (eighth, quarter, half) = (
        "gpufrac:13,shard:13",
        "gpufrac:25,shard:25",
        "gpufrac:50,shard:50",
    );
    assert_eq!(sbatch("", &["job.sh"])?, eighth);
    assert_eq!(sbatch("gpufrac:0.25", &["--wrap=true"])?, quarter);
    // As with all options of Slurm: the script overrides the environment, and the command line overrides both.
    assert_eq!(sbatch("gpufrac:0.25", &["job.sh"])?, quarter);
    assert_eq!(
        sbatch("gpufrac:0.25", &["--gres=gpufrac:0.5", "job.sh"])?,
        half
    );

    // salloc and srun, and steps that inherit their environment.
    let salloc = lab
        .command("salloc")
        .user(user)
        .env("SALLOC_GRES", "gpufrac:0.25")
        .args(["-n1", "srun", "sh", "-c", SEE]);
    assert_eq!(salloc.run()?.success()?.stdout, "F=0.25 S=25\n");
    let srun = lab
        .command("srun")
        .user(user)
        .env("SLURM_GRES", "gpufrac:0.25")
        .args([
            "-n1",
            "sh",
            "-c",
            &format!("{SEE}; srun --overlap sh -c '{SEE}'"),
        ]);
    assert_eq!(srun.run()?.success()?.stdout, "F=0.25 S=25\n".repeat(2));
    let outcome = lab
        .command("sbatch")
        .user(user)
        .env("SLURM_GRES", "gpufrac:0.125")
        .args([
            "--parsable",
            "--wait",
            "-n1",
            "-o",
            "inherited.out",
            "--gres=gpufrac:0.5",
        ])
        .args([format!("--wrap={SEE}; srun sh -c '{SEE}'")])
        .run()?;
    outcome.success()?;
    let path = lab.folder().work().join("inherited.out");
    let output = std::fs::read_to_string(path).expect("the job's output");
    assert_eq!(output, "F=0.5 S=50\nF=0.5 S=13\n");
    lab.command("scancel")
        .args(["--state=PENDING", "-p", "gpu"])
        .stdout()?;
    lab.expect_nothing_left()
}

#[test]
fn options_that_count_per_node_mean_a_fraction_too() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let user = &lab.users()[0];
    for option in [
        "--gpus-per-node=gpufrac:0.25",
        "--gpus-per-node=0.25",
        "--gpus-per-node=mig:0.25",
        "--gpus-per-node=gpufrac:10G",
        "--gres=gpu:0.25",
        "--gres=gpu:gpufrac:0.25",
    ] {
        // Also if the client's plugin cannot read gpufrac.toml; but Slurm's own client accepts no mechanism.
        let blind = (!option.contains("mig")).then_some("/nonexistent");
        for config in [None, blind] {
            let mut command = lab.command("sbatch");
            if let Some(path) = config {
                command = command.env("GPUFRAC_CONFIG", path);
            }
            let counted = held(&lab, command, user, &[option, "--wrap=true"])?;
            assert_eq!(counted, "gpufrac:25,shard:25", "{option} {config:?}");
        }
    }
    let rounded = lab.try_sbatch(user, &["--hold", "--gpus-per-node=0.2", "--wrap=true"])?;
    assert!(
        rounded.stderr.contains("rounded up from 0.2 to 0.25"),
        "{rounded:?}"
    );

    // The jobs run, and their steps accept the same notation.
    let script = format!("srun sh -c '{SEE}'; srun --gres=gpu:0.125 sh -c '{SEE}'");
    let salloc =
        lab.command("salloc")
            .user(user)
            .args(["-n1", "--gpus-per-node=0.25", "sh", "-c", &script]);
    assert_eq!(
        salloc.run()?.success()?.stdout,
        "F=0.25 S=25\nF=0.25 S=13\n"
    );
    let srun = lab.command("srun").user(user).args([
        "-n1",
        "--gpus-per-node=gpufrac:0.5",
        "sh",
        "-c",
        SEE,
    ]);
    assert_eq!(srun.run()?.success()?.stdout, "F=0.5 S=50\n");

    // The client of Slurm 26.05 cannot reset the value of this variable.
    let variable = lab
        .command("sbatch")
        .user(user)
        .env("SBATCH_GPUS_PER_NODE", "0.25")
        .args(["--hold", "--wrap=true"])
        .run()?;
    if lab.slurm().since(26, 5) {
        expect_refusal(&variable, "set SBATCH_GRES=gpufrac:0.25");
    } else {
        variable.success()?;
    }
    for (options, words) in [
        (["--gpus-per-node=1.5", "-n1"], "at most 1 GPU"),
        (
            ["--gpus-per-node=gpufrac:0.25", "--gres=gpufrac:0.25"],
            "write a single --gres=gpufrac:0.25",
        ),
        (
            ["--gpus-per-node=1", "--gres=gpufrac:0.25"],
            "cannot be in one request",
        ),
        (
            ["--gpus-per-node=gpufrac:0.25", "--gres=gpu:1"],
            "cannot be in one request",
        ),
    ] {
        let refused = lab.try_sbatch(user, &[options[0], options[1], "--wrap=true"])?;
        expect_refusal(&refused, words);
    }
    lab.command("scancel").args(["-p", "gpu"]).stdout()?;
    lab.expect_nothing_left()
}

#[test]
fn options_that_do_not_count_per_node_say_what_to_write() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let user = &lab.users()[0];
    let per_task = if lab.slurm().since(23, 11) {
        "write --tres-per-task=gres/gpufrac:0.25"
    } else {
        "write --gres=gpufrac:0.25"
    };
    for (option, words) in [
        ("--gpus", "write --gres=gpufrac:0.25"),
        ("--gpus-per-socket", "write --gres=gpufrac:0.25"),
        ("--gpus-per-task", per_task),
    ] {
        for amount in ["0.25", "gpufrac:0.25", "mig:0.25"] {
            let option = format!("{option}={amount}");
            expect_refusal(
                &lab.try_sbatch(user, &[&option, "-n1", "--wrap=true"])?,
                words,
            );
            for command in ["salloc", "srun"] {
                let refused = lab
                    .command(command)
                    .user(user)
                    .args([&option, "-n1", "true"]);
                expect_refusal(&refused.run()?, words);
            }
        }
    }
    let short = lab.try_sbatch(user, &["-G", "gpufrac:0.25", "--wrap=true"])?;
    expect_refusal(&short, "--gpus does not count per node");
    lab.wait_until_empty(Duration::from_secs(20))?;
    lab.expect_nothing_left()
}
