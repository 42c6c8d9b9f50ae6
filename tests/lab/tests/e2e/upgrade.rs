//! From one build to another, beside running jobs.

use std::fs;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};
use nix::sys::signal::Signal;

use crate::plugin_builds::PLUGINS;
use crate::{HOLD, go};

/// Puts a new file in the place of each plugin and program, as `cargo xtask dist` does, and of each library of a test.
pub(crate) fn install_all(lab: &Lab) {
    let build = lab.folder().root().join("build");
    fs::create_dir_all(&build).expect("a folder of the lab");
    let mut files: Vec<_> = PLUGINS
        .iter()
        .map(|plugin| lab.folder().lib().join(format!("{plugin}.so")))
        .collect();
    for program in ["prolog", "epilog", "reaperd"] {
        files.push(lab.folder().bin().join(format!("gpufrac-{program}")));
    }
    files.push(lab.folder().bin().join("gpufrac"));
    for file in files {
        let built = build.join(file.file_name().expect("a file"));
        fs::copy(&file, &built).expect("a file of the lab");
        gpufrac_lab::install(&built, &file, 0o755).expect("a file of the lab");
    }
}

fn wait_for_first_step(lab: &Lab, job: JobId) -> Result<(), LabError> {
    lab.wait("its step runs", Duration::from_secs(60), || {
        let steps = lab.command("squeue").args(["-h", "-s", "-o", "%i"]);
        let first = format!("{job}.0");
        Ok(steps
            .stdout()?
            .lines()
            .any(|step| step == first)
            .then_some(()))
    })
}

#[test]
fn a_new_build_over_a_running_one_harms_nothing() -> Result<(), LabError> {
    let mut lab = Lab::builder().start()?;
    let user = lab.users()[0].clone();
    // The lab's own files are those of the build folder: a fault would spoil that.
    install_all(&lab);
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.start_slurmctld()?;
    let script = format!("srun sh -c '{HOLD}'; srun --gres=gpufrac:0.25 true");
    let quarter = ["--gres=gpufrac:0.25", "--wrap", &script];
    let before = lab.sbatch(&user, &quarter)?;
    wait_for_first_step(&lab, before)?;
    install_all(&lab);
    // slurmctld goes on in pages of the plugin that it never touched, slurmstepd too.
    let refused = lab.try_sbatch(&user, &["--gres=gpufrac:0,25", "--wrap=true"])?;
    assert!(!refused.status.success(), "{refused:?}");
    let after = lab.sbatch(&user, &quarter)?;
    wait_for_first_step(&lab, after)?;
    lab.reconfigure()?;
    assert_eq!(lab.ended_daemons(), Vec::<String>::new());
    go(&lab)?;
    for job in [before, after] {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    assert_eq!(lab.ended_daemons(), Vec::<String>::new());
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}
