//! Interactive use: `srun --pty`, in a job of its own and in one that runs.

use gpufrac_lab::{Lab, LabError};

use crate::per_task::words;
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
    assert!(direct.contains("/dev/pts/"), "{direct}");
    assert_eq!(words(&direct, "F"), ["0.25"], "{direct}");
    assert!(words(&direct, "CUDA")[0].starts_with("MIG-"), "{direct}");

    let job = lab.sbatch(user, &["--gres=gpufrac:0.5", "--wrap", HOLD])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let inside = shell(&format!("--jobid={job} --overlap"))?;
    assert_eq!(words(&inside, "F"), ["0.5"], "{inside}");
    go(&lab)?;
    lab.wait_for_end(job)?;
    lab.expect_nothing_left()
}
