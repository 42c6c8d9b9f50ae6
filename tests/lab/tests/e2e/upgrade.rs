//! An upgrade from one build to another under running jobs.

use std::fs;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};
use nix::sys::signal::Signal;

use crate::plugin_builds::PLUGINS;
use crate::{HOLD, go};

/// Replaces each plugin and program as `cargo xtask dist` does, and each library of the tests.
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
    // The lab's files are hard links to the build folder, which a fault would damage.
    install_all(&lab);
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.start_slurmctld()?;
    let script = format!("srun sh -c '{HOLD}'; srun --gres=gpufrac:0.25 true");
    let quarter = ["--gres=gpufrac:0.25", "--wrap", &script];
    let before = lab.sbatch(&user, &quarter)?;
    wait_for_first_step(&lab, before)?;
    install_all(&lab);
    // slurmctld and slurmstepd continue with pages of the plugin that they had not read before.
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
