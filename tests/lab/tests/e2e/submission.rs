//! Requests, grants and refusals, by every way of submission.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError, Outcome, User};
use nix::sys::signal::Signal;

use crate::{HOLD, go, needs_slurm};

/// Builds the C program that submits through libslurm.
pub(crate) fn build_submitter(lab: &Lab) -> Result<PathBuf, LabError> {
    build_program(lab, "submit_by_api.c", "submit_by_api")
}

/// Builds a C program of the end-to-end tests against the lab's Slurm.
pub(crate) fn build_program(lab: &Lab, source: &str, name: &str) -> Result<PathBuf, LabError> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e");
    let source = tests.join(source);
    let program = lab.folder().bin().join(name);
    let option = |name: &str, folder: PathBuf| format!("{name}{}", folder.display());
    let slurm = lab.slurm();
    let output = Command::new("gcc")
        .args(["-Wall", &option("-I", slurm.include())])
        .args([&source, Path::new("-o"), &program])
        .arg(option("-L", slurm.libraries()?))
        .arg(option("-Wl,-rpath,", slurm.libraries()?))
        // The library of another Debian needs its own libc, which it finds at run time.
        .args(["-lslurm", "-Wl,--allow-shlib-undefined"])
        .output()
        .map_err(|reason| LabError::Start {
            program: "gcc".into(),
            reason,
        })?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(program)
}

pub(crate) fn submit_by_api(
    lab: &Lab,
    program: &Path,
    user: &User,
    args: &[&str],
) -> Result<Outcome, LabError> {
    lab.command(&program.display().to_string())
        .user(user)
        .args(args)
        .run()
}

pub(crate) fn job_of(outcome: Outcome) -> Result<JobId, LabError> {
    let outcome = outcome.success()?;
    Ok(JobId(
        outcome.stdout.trim().parse().expect("a job's number"),
    ))
}

/// Promise (isolation): a forged entry is dropped, and a client that bypasses cli_filter gets the same treatment.
#[test]
fn a_submission_through_the_c_api_is_rewritten_and_forged_entries_are_dropped()
-> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let program = build_submitter(&lab)?;

    let submit = |args: &[&str]| job_of(submit_by_api(&lab, &program, user, args)?);
    let honest = submit(&["gres:gpufrac:0.25"])?;
    // A request for a quarter with a forged variable of a half for the prolog.
    let greedy = submit(&["gres:gpufrac:0.25", "SPANK_GPUFRAC=v1:units=50:mech=mig"])?;
    // No request, with a forged variable of a half.
    let forged = submit(&["", "SPANK_GPUFRAC=v1:units=50:mech=mig"])?;
    for job in [honest, greedy] {
        lab.wait_for_state(job, &["RUNNING"])?;
        let slice = lab.slice(node, job)?;
        assert_eq!((slice.lease.units.0, slice.instance.size), (25, 2));
    }
    lab.wait_for_state(forged, &["RUNNING"])?;
    assert!(lab.lease(node, forged)?.is_none());
    go(&lab)?;
    for job in [honest, greedy, forged] {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    assert!(lab.output(honest)?.contains("CUDA_VISIBLE_DEVICES=MIG-"));
    assert!(!lab.output(forged)?.contains("MIG-"));

    let refused = submit_by_api(&lab, &program, user, &["gres:gpufrac:7"])?;
    assert!(!refused.status.success(), "{refused:?}");
    lab.expect_nothing_left()
}

/// Promise (users): each rounding and each refusal is reported to the user.
/// With `rounding_is_said`.
#[test]
fn the_user_is_told_what_was_rounded_and_what_to_write_instead() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let user = &lab.users()[0];

    let rounded = lab
        .try_sbatch(user, &["--gres=gpufrac:0.2", "--wrap=true"])?
        .success()?;
    for word in ["0.2 ", "0.25", "2g.20gb", "GiB"] {
        assert!(
            rounded.stderr.contains(word),
            "{word} is not in {rounded:?}"
        );
    }
    let exact = lab
        .try_sbatch(user, &["--gres=gpufrac:0.25", "--wrap=true"])?
        .success()?;
    assert!(!exact.stderr.contains("rounded"), "{exact:?}");

    let refused = [
        "gpufrac:1.5",
        "gpufrac:0",
        "gpufrac:-0.5",
        "gpufrac:nan",
        "gpufrac:quarter",
        "gpufrac:0.123456789012345678901234567890",
        "gpufrac:0.25,gpufrac:0.5",
        "gpufrac:0.25,gpu:1",
        "gpufrac:1",
        "shard:25",
        "gpu:1",
    ];
    for gres in refused {
        let args = [&format!("--gres={gres}"), "--wrap=true"].map(<_>::to_owned);
        let outcome = lab.try_sbatch(user, &[args[0].as_str(), args[1].as_str()])?;
        assert!(!outcome.status.success(), "{gres} was taken: {outcome:?}");
        assert!(outcome.stderr.contains("gpufrac"), "{gres}: {outcome:?}");
    }
    lab.expect_nothing_left()
}

/// Promise (users): scontrol update changes a fraction of a pending job, and is refused for a running one.
/// With `an_update_of_a_pending_job_is_a_request_like_any_other`,
/// `a_fraction_can_be_taken_from_a_pending_job_and_given_to_one`.
#[test]
fn scontrol_update_changes_a_pending_job_and_not_a_running_one() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let update = |job: JobId, gres: &str| {
        let job = format!("JobId={job}");
        lab.command("scontrol")
            .user(user)
            .args(["update", &job, &format!("Gres={gres}")])
            .run()
    };

    let pending = lab.sbatch(user, &["--hold", "--gres=gpufrac:0.25", "--wrap", HOLD])?;
    update(pending, "gpufrac:0.5")?.success()?;
    let shown = lab.job(pending)?;
    assert!(
        shown.field("TresPerNode").contains("gpufrac:50"),
        "{shown:?}"
    );
    lab.command("scontrol")
        .args(["release", &pending.to_string()])
        .stdout()?;
    lab.wait_for_state(pending, &["RUNNING"])?;
    let slice = lab.slice(node, pending)?;
    assert_eq!((slice.lease.units.0, slice.instance.size), (50, 4));

    let refused = update(pending, "gpufrac:0.25")?;
    assert!(!refused.status.success(), "{refused:?}");
    assert_eq!(lab.slice(node, pending)?.lease.units.0, 50);
    // Other properties of a running job may be changed.
    lab.command("scontrol")
        .user(user)
        .args(["update", &format!("JobId={pending}"), "JobName=other"])
        .stdout()?;
    go(&lab)?;
    lab.wait_for_end(pending)?;
    lab.expect_nothing_left()
}

/// Promise (users): whole GPUs where a pool lends them.
#[test]
fn whole_gpus_and_fractions_on_one_node() -> Result<(), LabError> {
    let lab = Lab::builder()
        .gpus("H100-80", 3)
        .pools(
            "[pool.halves]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
             partitions = [\"gpu\"]\nnodes = \"@NODES@\"\ngpus = [0, 1]\n\n\
             [pool.whole]\nmechanism = \"mig\"\nlayout = \"whole\"\ngpu = \"H100-80\"\n\
             partitions = [\"gpu\"]\nnodes = \"@NODES@\"\ngpus = [2]\n",
        )
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let script = format!("--wrap=echo CUDA=$CUDA_VISIBLE_DEVICES; {HOLD}");
    let whole = lab.sbatch(user, &["--gres=gpufrac:1", &script])?;
    let half = lab.sbatch(user, &["--gres=gpufrac:0.5", &script])?;
    lab.wait_for_state(half, &["RUNNING"])?;
    lab.wait_for_state(whole, &["RUNNING"])?;
    let (whole_slice, half_slice) = (lab.slice(node, whole)?, lab.slice(node, half)?);
    assert_eq!(
        (whole_slice.instance.gpu, whole_slice.instance.size),
        (2, 8)
    );
    assert_eq!((half_slice.instance.gpu, half_slice.instance.size), (0, 4));
    go(&lab)?;
    lab.wait_for_end(whole)?;
    lab.wait_for_end(half)?;
    assert!(lab.output(whole)?.contains(&whole_slice.instance.uuids[0]));
    lab.expect_nothing_left()
}

/// Promise (admins): a changed gpufrac.toml applies from `scontrol reconfigure` on; one with a mistake changes nothing.
#[test]
fn the_controller_takes_a_changed_configuration_at_reconfigure_and_not_before()
-> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let user = lab.users()[0].clone();
    let file = lab.folder().etc().join("gpufrac.toml");
    let text = std::fs::read_to_string(&file).expect("the lab's gpufrac.toml");
    // The client's plugin reads the old file, so that the controller decides.
    let old = lab.folder().etc().join("old.toml");
    std::fs::write(&old, &text).expect("a copy");
    let submit = || {
        lab.command("sbatch")
            .user(&user)
            .env("GPUFRAC_CONFIG", &old)
            .args(["--hold", "--gres=gpufrac:0.5", "--wrap=true"])
            .run()
    };
    let reconfigure = || {
        // Slurm's time of reading has whole seconds.
        std::thread::sleep(Duration::from_millis(1100));
        lab.reconfigure()?;
        std::thread::sleep(Duration::from_millis(1000));
        Ok::<(), LabError>(())
    };
    assert!(submit()?.status.success());

    let limited = format!("{text}\n[partition.gpu]\nmax = 0.25\n");
    std::fs::write(&file, &limited).expect("the changed file");
    assert!(
        submit()?.status.success(),
        "no file is read while a job is submitted"
    );
    reconfigure()?;
    let refused = submit()?;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("0.25"), "{refused:?}");

    // A mistake in the file keeps the old configuration, unless slurmctld was restarted; this slurmctld has no older
    // one that waits for it.
    std::fs::write(&file, "version = 1\nnonsense = 2\n").expect("the broken file");
    reconfigure()?;
    let refused = submit()?;
    assert!(!refused.status.success(), "{refused:?}");
    let reason = if lab.slurm().since(23, 11) { "nonsense" } else { "0.25" };
    assert!(refused.stderr.contains(reason), "{refused:?}");
    assert_eq!(lab.ended_daemons(), Vec::<String>::new());

    std::fs::write(&file, &text).expect("the first file");
    reconfigure()?;
    assert!(submit()?.status.success());
    lab.command("scancel").args(["-p", "gpu"]).stdout()?;
    lab.expect_nothing_left()
}

#[test]
fn a_reconfigure_with_a_broken_file_is_refused_by_a_slurmctld_that_can_go_on()
-> Result<(), LabError> {
    // In this series the same slurmctld reads its configuration again, which the test above covers.
    needs_slurm(23, 11)?;
    let mut lab = Lab::builder().start()?;
    let user = lab.users()[0].clone();
    let file = lab.folder().etc().join("gpufrac.toml");
    let text = std::fs::read_to_string(&file).expect("the lab's gpufrac.toml");
    // As under systemd: in the background.
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.command("slurmctld").run()?.success()?;
    let ping = || {
        Ok(lab
            .command("scontrol")
            .args(["ping"])
            .run()?
            .stdout
            .contains("is UP")
            .then_some(()))
    };
    lab.wait("slurmctld answers", Duration::from_secs(30), ping)?;
    let submit = || lab.try_sbatch(&user, &["--hold", "--gres=gpufrac:0.5", "--wrap=true"]);
    let reconfigure = || lab.command("scontrol").args(["reconfigure"]).run();

    std::fs::write(&file, "version = 1\nnonsense = 2\n").expect("the broken file");
    let refused = reconfigure()?;
    assert!(!refused.status.success(), "{refused:?}");
    lab.wait("slurmctld answers", Duration::from_secs(30), ping)?;
    let taken = submit()?;
    assert!(taken.status.success(), "{taken:?}");

    std::fs::write(&file, format!("{text}\n[partition.gpu]\nmax = 0.25\n")).expect("a good file");
    assert!(reconfigure()?.status.success());
    lab.wait("the new file is in force", Duration::from_secs(30), || {
        Ok(submit()?.stderr.contains("0.25").then_some(()))
    })?;

    let pid = std::fs::read_to_string(lab.folder().root().join("pid/slurmctld")).expect("a pid");
    // Slurm overwrites the old text and leaves the rest of a longer number.
    let pid = pid.lines().next().unwrap_or_default();
    let pid: i32 = pid.parse().expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM).expect("slurmctld");
    lab.wait("slurmctld ended", Duration::from_secs(30), || {
        Ok((!gpufrac_lab::is_running(pid)).then_some(()))
    })?;
    std::fs::write(&file, &text).expect("the first file");
    lab.start_slurmctld()?;
    lab.command("scancel").args(["-p", "gpu"]).stdout()?;
    lab.expect_nothing_left()
}
