//! The lab itself without gpufrac, on which the other tests rely.

use std::path::Path;
use std::time::{Duration, Instant};

use gpufrac_lab::{Lab, LabError, is_running};

#[test]
fn a_plain_cluster_comes_up_runs_a_shard_job_and_leaves_nothing() -> Result<(), LabError> {
    let lab = Lab::builder().nodes(2).plugins(false).start()?;

    let user = &lab.users()[0];
    let script = "id -un; echo gpus=$SLURM_JOB_GPUS; \
        for f in $DEVICES/*; do (exec 3<$f) 2>&1; done; sleep 0.2";
    let devices = lab.folder().devices(&lab.nodes()[1]);
    let job = lab.sbatch(
        user,
        &[
            "-w",
            &lab.nodes()[1],
            "--gres=shard:25",
            &format!("--export=DEVICES={}", devices.display()),
            "--wrap",
            script,
        ],
    )?;
    let ended = lab.wait_for_end(job)?;
    let output = lab.output(job)?;
    assert_eq!(ended.state(), "COMPLETED", "{output}");
    assert!(output.contains(&user.name), "{output}");
    assert!(output.contains("gpus=0"), "{output}");
    // Placeholders have no driver, so "no such device" means that the device may be opened.
    let open: Vec<_> = output
        .lines()
        .filter(|line| line.contains("No such device"))
        .collect();
    let shut = output
        .lines()
        .filter(|line| line.contains("not permitted"))
        .count();
    assert_eq!((open.len(), shut), (1, 3), "{output}");
    assert!(open[0].contains("half0"), "{output}");
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());

    let folder = lab.folder().root().to_path_buf();
    let nodes = lab.nodes().to_vec();
    let sleeper = lab.sbatch(user, &["--gres=shard:25", "--wrap=sleep 1000"])?;
    lab.wait_for_state(sleeper, &["RUNNING"])?;
    lab.stop()?;
    assert!(!folder.exists());
    for node in nodes {
        let scope = format!("system.slice/{node}_slurmstepd.scope");
        for group in [
            format!("devices/slurm_{node}"),
            format!("freezer/slurm_{node}"),
            format!("unified/{scope}"),
            scope,
        ] {
            let group = Path::new("/sys/fs/cgroup").join(group);
            assert!(!group.exists(), "{}", group.display());
        }
    }
    Ok(())
}

#[test]
fn a_lab_is_stopped_from_another_program_by_its_folder() -> Result<(), LabError> {
    let lab = Lab::builder().plugins(false).start()?;
    let job = lab.sbatch(&lab.users()[0], &["--wrap=sleep 1000 & echo $!; wait"])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let sleeper = lab.wait("the job's output", Duration::from_secs(10), || {
        Ok(lab
            .output(job)
            .ok()
            .and_then(|text| text.trim().parse::<i32>().ok()))
    })?;
    assert!(is_running(sleeper));
    let root = lab.detach().root().to_path_buf();
    // A person who works with the lab has its slurm.conf in the environment, but is not part of it.
    let mut bystander = std::process::Command::new("sleep")
        .arg("100")
        .env("SLURM_CONF", root.join("etc/slurm.conf"))
        .spawn()
        .expect("sleep starts");
    let stopped = gpufrac_lab::stop_folder(&root);
    let untouched = bystander.try_wait().expect("a child").is_none();
    bystander.kill().expect("a child");
    bystander.wait().expect("a child");
    stopped?;
    assert!(untouched);
    assert!(!is_running(sleeper));
    assert!(!root.exists());
    Ok(())
}

#[test]
fn a_start_that_fails_leaves_nothing_and_says_why() {
    let place = tempfile::tempdir().expect("a folder");
    let root = place.path().join("lab");
    let before = Instant::now();
    let failed = Lab::builder()
        .accounting()
        .slurm_conf_extra("NoSuchOption=1")
        .folder(&root)
        .start();
    let error = failed.expect_err("Slurm refuses this file").to_string();
    assert!(error.contains("NoSuchOption"), "{error}");
    // slurmctld has ended, so no answer is waited for.
    assert!(
        before.elapsed() < Duration::from_secs(60),
        "{:?}",
        before.elapsed()
    );
    assert!(!root.exists());
    let left = crate::killed_program::left_below(place.path());
    assert_eq!(left, Vec::<String>::new());

    // A missing build result is reported before the folder is created.
    let failed = Lab::builder()
        .build_folder(place.path())
        .folder(&root)
        .start();
    let error = failed.expect_err("nothing is built there").to_string();
    assert!(error.contains("cargo build"), "{error}");
    assert!(!root.exists());
}
