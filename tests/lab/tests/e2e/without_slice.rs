//! Mistakes after which a job could run without its slice, or with less than was counted. The job is requeued
//! instead, with the reason, and no node is drained for a mistake in a file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpufrac_core::config;
use gpufrac_lab::{JobId, Lab, LabError};

use crate::{HOLD, go};

const QUARTER: &str = "--gres=gpufrac:0.25";

/// The trace of a job that ran.
const TRACE: &str = "--wrap=echo ran >> ran";

/// A changed file of the lab; [`Changed::back`] restores it.
struct Changed {
    path: PathBuf,
    text: String,
    mode: fs::Permissions,
}

impl Changed {
    fn of(path: PathBuf) -> Changed {
        let text = fs::read_to_string(&path).expect("a file of the lab");
        let mode = fs::metadata(&path)
            .expect("a file of the lab")
            .permissions();
        Changed { path, text, mode }
    }

    fn write(&self, text: &str) {
        let _ = fs::remove_file(&self.path);
        fs::write(&self.path, text).expect("root may");
        fs::set_permissions(&self.path, self.mode.clone()).expect("root may");
    }

    fn replace(&self, from: &str, to: &str) {
        assert!(self.text.contains(from), "no {from:?} in {}", self.text);
        self.write(&self.text.replace(from, to));
    }

    fn back(&self) {
        self.write(&self.text);
    }
}

fn show(lab: &Lab, job: JobId) -> Result<String, LabError> {
    let shown = lab
        .command("scontrol")
        .args(["show", "job", &job.to_string()]);
    shown.stdout()
}

/// Waits until a job is held, with these words in its comment.
fn wait_until_held(lab: &Lab, job: JobId, words: &str) -> Result<(), LabError> {
    let what = format!("job {job} is held: {words}");
    lab.wait(&what, Duration::from_secs(60), || {
        let shown = show(lab, job)?;
        let held = shown.contains("JobState=PENDING") && shown.contains("Priority=0");
        Ok((held && shown.contains(words)).then_some(()))
    })
}

/// Makes prologs write their log to a file, too.
fn log_of_prologs(lab: &Lab) -> PathBuf {
    let log = lab.folder().log().join("prolog");
    let prolog = Changed::of(lab.folder().bin().join("prolog"));
    prolog.replace("\"$@\"", &format!("\"$@\" 2>>{}", log.display()));
    log
}

fn prolog_said(log: &Path) -> String {
    fs::read_to_string(log).unwrap_or_default()
}

fn never_ran(lab: &Lab) {
    assert!(!lab.folder().work().join("ran").exists(), "the job ran");
}

/// The cure: the mistake is corrected, and the job runs. slurmd of 22.05 runs no prolog for a job that starts again
/// within seconds of its requeue; the job is then held again.
fn release_and_run(lab: &Lab, job: JobId) -> Result<(), LabError> {
    let ended = lab.wait("the released job ends", Duration::from_secs(120), || {
        let shown = show(lab, job)?;
        if shown.contains("JobState=PENDING") && shown.contains("Priority=0") {
            let release = lab.command("scontrol").args(["release", &job.to_string()]);
            release.stdout()?;
        }
        let now = lab.job(job)?;
        Ok((!now.is_active()).then_some(now))
    })?;
    assert_eq!(ended.state(), "COMPLETED", "{}", show(lab, job)?);
    let trace = lab.folder().work().join("ran");
    fs::remove_file(trace).expect("it ran");
    Ok(())
}

/// The actions of an admin for a node that was drained because MIG was off.
fn mend(lab: &Lab, node: &str) -> Result<(), LabError> {
    lab.gpusim(node, &["mig", "0", "on"])?;
    let resume = ["update", &format!("NodeName={node}"), "State=RESUME"];
    lab.command("scontrol").args(resume).stdout().map(drop)
}

#[test]
fn a_job_without_its_slice_does_not_run() -> Result<(), LabError> {
    // A model whose MIG mode no prolog switches.
    let lab = Lab::builder().nodes(2).gpus("A100-80", 1).start()?;
    let user = &lab.users()[0];
    let (first, second) = (lab.nodes()[0].clone(), lab.nodes()[1].clone());
    let on = |node: &str, more: &[&str]| {
        let node = format!("--nodelist={node}");
        lab.sbatch(user, &[&[QUARTER, TRACE, node.as_str()], more].concat())
    };

    // The node has Gres lines, but no pool has the node.
    let config = Changed::of(lab.folder().gpufrac_conf());
    config.replace(&format!("{first},{second}"), &first);
    let job = on(&second, &[])?;
    wait_until_held(&lab, job, "gpufrac.toml of that node has no pool there")?;
    config.back();
    never_ran(&lab);
    release_and_run(&lab, job)?;

    // slurmstepd has no SPANK plugin: no line, a plugin that does not exist, no file.
    let plugstack = Changed::of(lab.folder().etc().join("plugstack.conf"));
    plugstack.write("# nothing\n");
    let unnamed = on(&first, &[])?;
    wait_until_held(&lab, unnamed, "does not name spank_gpufrac.so")?;
    plugstack.write("optional /nowhere/spank_gpufrac.so\n");
    let missing = on(&first, &[])?;
    wait_until_held(
        &lab,
        missing,
        "names `/nowhere/spank_gpufrac.so`, which does not exist",
    )?;
    fs::remove_file(&plugstack.path).expect("root may");
    let absent = on(&first, &[])?;
    wait_until_held(&lab, absent, "plugstack.conf` failed: No such file")?;
    let srun = lab
        .command("srun")
        .user(user)
        .args([QUARTER, "true"])
        .run()?;
    assert!(!srun.status.success(), "{srun:?}");
    plugstack.back();
    never_ran(&lab);
    for job in [unnamed, missing, absent] {
        release_and_run(&lab, job)?;
    }
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());

    // No prolog of gpufrac: a site's own prolog does not call it.
    let prolog = Changed::of(lab.folder().bin().join("prolog"));
    prolog.write("#!/bin/sh\nexit 0\n");
    let uncalled = on(&first, &[])?;
    wait_until_held(&lab, uncalled, "no prolog created a slice")?;
    let srun = lab
        .command("srun")
        .user(user)
        .args([QUARTER, "true"])
        .run()?;
    assert!(!srun.status.success(), "{srun:?}");
    prolog.back();
    never_ran(&lab);
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    release_and_run(&lab, uncalled)?;

    // A prolog that ignores the exit status: the node is drained in spite of it, with the reason.
    lab.gpusim(&first, &["mig", "0", "off"])?;
    prolog.replace("exec ", "");
    prolog.write(&format!(
        "{}exit 0\n",
        fs::read_to_string(&prolog.path).expect("a file of the lab")
    ));
    let swallowed = on(&first, &[])?;
    lab.wait("the node is drained", Duration::from_secs(60), || {
        Ok(lab.node(&first)?.is_drained().then_some(()))
    })?;
    prolog.back();
    let said = lab
        .command("scontrol")
        .args(["show", "node", &first])
        .stdout()?;
    assert!(said.contains("Reason=gpufrac: "), "{said}");
    assert!(said.contains("is not in MIG mode"), "{said}");
    lab.wait(
        "the job waits for another node",
        Duration::from_secs(60),
        || {
            let shown = show(&lab, swallowed)?;
            let waits = shown.contains("JobState=PENDING") && !shown.contains("Priority=0 ");
            Ok((waits && shown.contains("is not in MIG mode")).then_some(()))
        },
    )?;
    never_ran(&lab);
    lab.command("scancel")
        .args([swallowed.to_string()])
        .stdout()?;
    mend(&lab, &first)?;
    lab.expect_nothing_left()
}

/// Promise (never): a job without its slice does not run and says why: a node of no pool, no SPANK plugin, a prolog
/// that is not called or whose status is swallowed.
/// With `a_job_without_its_slice_does_not_run`, `a_fraction_on_a_node_of_no_pool_is_given_back`,
/// `without_the_spank_plugin_no_job_starts`.
#[test]
fn a_whole_gpu_of_no_pool_does_not_run_without_its_prolog() -> Result<(), LabError> {
    let lab = Lab::builder()
        .gpus("H100-80", 1)
        .pools(crate::uniform::QUARTERS)
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    // The node's file does not name the node, slurmctld's does, and nothing calls the prolog.
    let (shared, own) = (
        lab.folder().gpufrac_conf(),
        lab.folder().etc().join("own.toml"),
    );
    let text = fs::read_to_string(shared).expect("a file of the lab");
    let other = text.replace(&format!("\"{node}\""), "\"elsewhere\"");
    assert_ne!(other, text);
    fs::write(own, other).expect("root may");
    let plugstack = Changed::of(lab.folder().etc().join("plugstack.conf"));
    plugstack.replace("gpufrac.toml", "own.toml");
    let prolog = Changed::of(lab.folder().bin().join("prolog"));
    prolog.write("#!/bin/sh\nexit 0\n");
    let whole = lab.sbatch(user, &["--gres=gpufrac:1", TRACE])?;
    wait_until_held(&lab, whole, "gpufrac.toml has no pool on this node")?;
    let srun = lab
        .command("srun")
        .user(user)
        .args(["--gres=gpufrac:1", "true"])
        .run()?;
    assert!(!srun.status.success(), "{srun:?}");
    never_ran(&lab);
    // A job that asks for no GPU runs, and with `--exclusive` it holds every device.
    for more in ["--exclusive", "--ntasks=1"] {
        let other = lab.sbatch(user, &[more, "--wrap=srun true"])?;
        assert_eq!(lab.wait_for_end(other)?.state(), "COMPLETED", "{more}");
    }
    plugstack.back();
    prolog.back();
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    release_and_run(&lab, whole)?;
    lab.expect_nothing_left()
}

/// Promise (never): a node that is drained for a prolog or epilog says why, and so does its job; an admin's reason
/// stays.
/// With `a_node_that_prolog_or_epilog_drains_says_why`, `an_admins_reason_stays`.
#[test]
fn a_prolog_that_fails_says_why_on_node_and_job() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("A100-80", 1).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    lab.gpusim(node, &["mig", "0", "off"])?;
    let job = lab.sbatch(user, &[QUARTER, TRACE])?;
    lab.wait("the node is drained", Duration::from_secs(60), || {
        Ok(lab.node(node)?.is_drained().then_some(()))
    })?;
    lab.wait("the job is back", Duration::from_secs(60), || {
        let shown = show(&lab, job)?;
        Ok(
            (shown.contains("JobState=PENDING") && shown.contains("is not in MIG mode"))
                .then_some(()),
        )
    })?;
    let said = lab
        .command("scontrol")
        .args(["show", "node", node])
        .stdout()?;
    assert!(said.contains("Reason=gpufrac: "), "{said}");
    assert!(
        said.contains("`gpufrac node-setup` switches MIG on"),
        "{said}"
    );
    never_ran(&lab);
    mend(&lab, node)?;
    // Slurm holds a job that a failed prolog requeued.
    release_and_run(&lab, job)?;
    lab.expect_nothing_left()
}

/// Promise (never): a job never gets less than was counted for it, whatever the node's gpufrac.toml says.
/// With `a_size_that_only_slurmctlds_file_has_is_given_back`,
/// `a_size_that_both_files_have_is_given_and_the_difference_is_logged`.
#[test]
fn a_job_never_gets_less_than_was_counted_for_it() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).start()?;
    let user = &lab.users()[0];
    let log = log_of_prologs(&lab);
    // The node has a file of its own: slurmctld may read its file again just after its start.
    let own = lab.folder().etc().join("own.toml");
    fs::copy(lab.folder().gpufrac_conf(), &own).expect("root may");
    let prolog = Changed::of(lab.folder().bin().join("prolog"));
    prolog.replace("etc/gpufrac.toml", "etc/own.toml");
    let config = Changed::of(own);
    config.replace("gpu = ", "menu = [\"1/2\", \"1/8\"]\ngpu = ");
    // The client does not see the node's file, either.
    let sbatch = |gres: &str| -> Result<JobId, LabError> {
        let sbatch = lab.command("sbatch").user(user);
        let sbatch = sbatch.env("GPUFRAC_CONFIG", "/nowhere/gpufrac.toml");
        let id = sbatch.args(["--parsable", gres, TRACE]).stdout()?;
        Ok(JobId(id.trim().parse().expect("a number")))
    };
    let job = sbatch(QUARTER)?;
    wait_until_held(&lab, job, "Slurm counted 25 units for job")?;
    let said = show(&lab, job)?;
    for words in [
        "gives 13, 50",
        "where it was counted",
        "copy gpufrac.toml from slurmctld",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    never_ran(&lab);
    // Both files have half a GPU.
    let half = sbatch("--gres=gpufrac:0.5")?;
    assert_eq!(lab.wait_for_end(half)?.state(), "COMPLETED");
    fs::remove_file(lab.folder().work().join("ran")).expect("it ran");
    let said = prolog_said(&log);
    let words = "differs from the one by which slurmctld counted the job";
    assert!(said.contains(words), "{said}");
    config.back();
    release_and_run(&lab, job)?;
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}

/// Promise (never): a mistake in gpufrac.toml stops no job and drains no node; what users can write is not used.
/// With `a_file_that_cannot_be_used_leaves_the_last_good_one_in_force`,
/// `the_copy_is_of_this_file_and_node_and_roots_alone`.
#[test]
fn a_mistake_in_gpufrac_toml_stops_no_job_and_drains_no_node() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let file = Changed::of(lab.folder().gpufrac_conf());
    let log = log_of_prologs(&lab);
    let complains = |words: &str| {
        let said = prolog_said(&log);
        assert!(said.contains(words), "{words}: {said}");
    };
    // A job that began before ends with the file as it is at its end.
    let script = format!("--wrap=srun --gres=gpufrac:0.25 sh -c '{HOLD}'; srun true");
    let before = lab.sbatch(user, &[QUARTER, &script])?;
    lab.wait_for_state(before, &["RUNNING"])?;
    lab.slice(node, before)?;
    let spoilt: [(&str, &dyn Fn()); 6] = [
        ("reaper.moed: unknown key", &|| {
            file.write(&format!("{}\n[reaper]\nmoed = \"on\"\n", file.text));
        }),
        ("pool.halves.layuot: unknown key", &|| {
            file.replace("layout", "layuot")
        }),
        ("gpufrac.toml:1: version: missing", &|| file.write("")),
        ("gpufrac.toml` does not exist", &|| {
            fs::remove_file(&file.path).expect("root may");
        }),
        ("only root may be able to change it", &|| {
            file.back();
            let open = fs::Permissions::from_mode(0o666);
            fs::set_permissions(&file.path, open).expect("root may");
        }),
        ("pool.halves.nodes: missing", &|| {
            let at = file.text.find("nodes = ").expect("the pool's nodes");
            file.write(&file.text[..at]);
        }),
    ];
    for (words, spoil) in spoilt {
        spoil();
        let job = lab.sbatch(
            user,
            &[QUARTER, "--wrap=srun printenv CUDA_VISIBLE_DEVICES"],
        )?;
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED", "{words}");
        assert!(lab.output(job)?.starts_with("MIG-"), "{words}");
        complains(words);
        assert_eq!(lab.drained_nodes()?, Vec::<String>::new(), "{words}");
    }
    go(&lab)?;
    assert_eq!(lab.wait_for_end(before)?.state(), "COMPLETED");
    // Without a valid copy a job is requeued.
    let name = config::last_good_name(node, &file.path.to_string_lossy());
    fs::remove_file(Path::new(config::LAST_GOOD).join(name)).expect("a copy");
    file.write("version = 1\n[pool.halves]\n");
    let held = lab.sbatch(user, &[QUARTER, TRACE])?;
    wait_until_held(&lab, held, "the node has no configuration")?;
    never_ran(&lab);
    file.back();
    release_and_run(&lab, held)?;
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}
