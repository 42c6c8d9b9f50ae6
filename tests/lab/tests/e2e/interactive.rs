//! Interactive use: `srun --pty`, in a job of its own and in one that runs.

use std::time::Duration;

use gpufrac_lab::{Lab, LabError};

use crate::{HOLD, go};

const SEE: &str = "tty; echo CUDA=$CUDA_VISIBLE_DEVICES F=$GPUFRAC_FRACTION";

/// Promise (users): a shell of `srun --pty` has the slice, also in a job that runs.
#[test]
fn a_shell_on_a_terminal_has_the_slice() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let user = &lab.users()[0];
    let see = lab.write_work("see.sh", SEE)?;
    // script makes the terminal of srun.
    let shell = |options: &str| {
        let srun = format!("srun {options} --pty sh {}", see.display());
        let script = ["-qec", &srun, "/dev/null"];
        lab.command("script").user(user).args(script).stdout()
    };
    let direct = shell("--gres=gpufrac:0.25")?;
    // Without input the terminal may show `^D` before any word.
    for part in ["/dev/pts/", "CUDA=MIG-", " F=0.25"] {
        assert!(direct.contains(part), "{direct}");
    }

    let job = lab.sbatch(user, &["--gres=gpufrac:0.5", "--wrap", HOLD])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let inside = shell(&format!("--jobid={job} --overlap"))?;
    assert!(inside.contains(" F=0.5"), "{inside}");
    go(&lab)?;
    lab.wait_for_end(job)?;
    lab.expect_nothing_left()
}

/// Promise (users): `sattach` shows what a step with a slice prints.
#[test]
fn sattach_shows_the_output_of_a_step() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let user = &lab.users()[0];
    let step = "srun sh -c 'while [ ! -e go ]; do echo F=$GPUFRAC_FRACTION; sleep 0.2; done'";
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap", step])?;
    lab.wait("output of the step", Duration::from_secs(60), || {
        Ok(lab
            .output(job)
            .is_ok_and(|text| text.contains("F="))
            .then_some(()))
    })?;
    // sattach ends with the step.
    let attached = ["-k", "5", "3", "sattach", &format!("{job}.0")];
    let shown = lab.command("timeout").user(user).args(attached).run()?;
    assert!(shown.stdout.contains("F=0.25"), "{shown:?}");
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}
