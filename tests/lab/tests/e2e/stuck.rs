//! Places that cannot be freed: jobs leave the node, Slurm starts nothing there, and all of it is undone when the place
//! is free.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use gpufrac_lab::{JobId, Lab, LabError, User};
use nix::sys::signal::Signal;
use test_seed::Dice;

use crate::{HOLD, go};

const SECOND: Duration = Duration::from_secs(1);
/// The daemon looks often, so that the tests are short.
const REAPER: &str = "[reaper]\ninterval = \"1s\"\n";
/// What a monitor that holds handles in the driver makes of every destruction.
const IN_USE: [&str; 9] = [
    "fault",
    "--call",
    "nvmlGpuInstanceDestroy",
    "--nth",
    "1",
    "--count",
    "100000",
    "--code",
    "IN_USE",
];

/// Jobs of a second on a node, whose places stay.
fn stick(lab: &Lab, user: &User, node: &str, gres: &[&str]) -> Result<(), LabError> {
    lab.gpusim(node, &IN_USE)?;
    let at = format!("--nodelist={node}");
    for gres in gres {
        let gres = format!("--gres=gpufrac:{gres}");
        lab.sbatch(user, &[&gres, &at, "--wrap=sleep 1"])?;
    }
    lab.wait_until_empty(60 * SECOND)?;
    assert_eq!(lab.leases(node)?.len(), gres.len());
    Ok(())
}

fn free(lab: &Lab, node: &str) -> Result<(), LabError> {
    lab.gpusim(node, &["clear"]).map(drop)
}

/// The exit status and the text of `gpufrac check` on a node.
fn check(lab: &Lab, node: &str) -> Result<(Option<i32>, String), LabError> {
    let ran = lab
        .command("gpufrac")
        .args(["check", "--quiet", "--node", node])
        .run()?;
    Ok((ran.status.code(), format!("{}{}", ran.stdout, ran.stderr)))
}

fn reserved(lab: &Lab) -> Result<Vec<JobId>, LabError> {
    let jobs = lab.jobs()?.into_iter();
    let ours = jobs.filter(|job| job.field("JobName") == "gpufrac-stuck" && job.is_active());
    Ok(ours.map(|job| job.id()).collect())
}

/// Promise (admins): a job that its node cannot serve starts on another one within seconds, and may come back when the
/// place is free or after ten minutes.
/// With `a_job_leaves_as_soon_as_its_run_has_ended_and_returns_when_the_place_is_free`,
/// `a_job_returns_after_ten_minutes_though_the_place_fails`, `a_job_that_no_other_node_could_start_stays`.
// The case of NVIDIA/DCGM issue 276, on two nodes.
#[test]
fn jobs_leave_a_node_whose_places_are_stuck() -> Result<(), LabError> {
    let lab = Lab::builder()
        .nodes(2)
        .gpus("H100-80", 2)
        .reaper(REAPER)
        .start()?;
    let (user, bad) = (&lab.users()[0], &lab.nodes()[0]);
    stick(&lab, user, bad, &["0.5"; 4])?;
    let begun = Instant::now();
    let submit = |_| lab.sbatch(user, &["--gres=gpufrac:0.5", "--wrap=sleep 1"]);
    let jobs: Vec<JobId> = (0..12).map(submit).collect::<Result<_, _>>()?;
    for job in &jobs {
        let ended = lab.wait_for_end(*job)?;
        assert_eq!(ended.state(), "COMPLETED", "{ended:?}");
        assert!(["0", "1"].contains(&ended.field("Restarts")), "{ended:?}");
        assert_eq!(ended.field("NodeList"), lab.nodes()[1], "{ended:?}");
    }
    assert!(begun.elapsed() < 60 * SECOND, "{:?}", begun.elapsed());
    lab.wait("check names each place", 90 * SECOND, || {
        let (code, text) = check(&lab, bad)?;
        let named = text.matches(" is stuck: it failed ").count() == 4;
        Ok((code == Some(2) && named && text.contains("in use (19)")).then_some(()))
    })?;
    lab.wait("status names the places", 60 * SECOND, || {
        let status = lab.command("gpufrac").args(["status", "--node", bad]);
        Ok(status.user(user).stdout()?.contains("stuck").then_some(()))
    })?;
    free(&lab, bad)?;
    lab.wait("the places are free", 60 * SECOND, || {
        Ok(lab.leases(bad)?.is_empty().then_some(()))
    })?;
    lab.expect_nothing_left()?;
    let next = lab.sbatch(
        user,
        &[
            "--gres=gpufrac:0.5",
            &format!("--nodelist={bad}"),
            "--wrap=true",
        ],
    )?;
    assert_eq!(lab.wait_for_end(next)?.state(), "COMPLETED");
    let (_, text) = check(&lab, bad)?;
    assert!(!text.contains("stuck"), "{text}");
    lab.expect_nothing_left()
}

/// Slurm counts the lost units as those of a job of root, on the right device, until the place is free.
#[test]
fn the_units_of_a_stuck_place_are_taken_from_slurm() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).reaper(REAPER).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    stick(&lab, user, node, &["0.25"])?;
    let held = lab.wait("a job of root holds the units", 90 * SECOND, || {
        let lease = lab.leases(node)?.pop();
        let device = lease.map(|lease| lease.slice.device_index.to_string());
        let jobs = reserved(&lab)?;
        let note = |job: &JobId| {
            lab.folder()
                .var(node)
                .join(format!("reserved/{job}.device"))
        };
        let own: Vec<_> = jobs
            .iter()
            .map(|job| fs::read_to_string(note(job)).ok())
            .collect();
        Ok((own.len() == 1 && own[0] == device).then(|| jobs[0]))
    })?;
    let shown = lab
        .command("scontrol")
        .args(["show", "job", &held.to_string()]);
    let shown = shown.stdout()?;
    assert!(shown.contains("Comment=stuck: GPU 0 2g.20gb"), "{shown}");
    // An admin empties the node: the job of root does not keep it busy.
    let named = format!("NodeName={node}");
    lab.update(&[&named, "State=DRAIN", "Reason=firmware"])?;
    lab.wait("the job of root ends", 60 * SECOND, || {
        Ok(reserved(&lab)?.is_empty().then_some(()))
    })?;
    lab.update(&[&named, "State=RESUME"])?;
    lab.wait("a job of root holds the units again", 90 * SECOND, || {
        let of_device = |job: &JobId| {
            let note = format!("reserved/{job}.device");
            lab.folder().var(node).join(note).exists()
        };
        let jobs = reserved(&lab)?;
        Ok((jobs.len() == 1 && jobs.iter().all(of_device)).then_some(()))
    })?;
    // The whole of the rest, and no more.
    let fill = |_| lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap=sleep 1000"]);
    let rest: Vec<JobId> = (0..3).map(fill).collect::<Result<_, _>>()?;
    for job in &rest {
        lab.wait_for_state(*job, &["RUNNING"])?;
        lab.slice(node, *job)?;
    }
    let next = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap=true"])?;
    std::thread::sleep(3 * SECOND);
    assert_eq!(lab.job(next)?.state(), "PENDING");
    free(&lab, node)?;
    assert_eq!(lab.wait_for_end(next)?.state(), "COMPLETED");
    assert_eq!(lab.job(next)?.field("Restarts"), "0");
    for job in rest {
        lab.command("scancel").args([job.to_string()]).stdout()?;
    }
    lab.expect_nothing_left()
}

/// Promise (admins): where Slurm preempts jobs, no job of root takes the units of a stuck place: it could end users'
/// jobs.
#[test]
fn no_job_of_root_takes_units_where_slurm_preempts() -> Result<(), LabError> {
    let lab = Lab::builder()
        .gpus("H100-80", 1)
        .reaper(REAPER)
        .slurm_conf_extra("PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE")
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    stick(&lab, user, node, &["0.25"])?;
    lab.wait("the daemon says why", 90 * SECOND, || {
        let log = lab.reaper_log(node)?;
        Ok(log.contains("Slurm preempts jobs here").then_some(()))
    })?;
    let submitted = lab.jobs()?.into_iter();
    let mut of_root = submitted.filter(|job| job.field("JobName") == "gpufrac-stuck");
    assert!(of_root.next().is_none());
    free(&lab, node)?;
    lab.wait("the place is free", 60 * SECOND, || {
        Ok(lab.leases(node)?.is_empty().then_some(()))
    })?;
    lab.expect_nothing_left()
}

/// The nodes that a user excludes stay excluded, and gpufrac's own is taken off the list.
#[test]
fn arrays_and_jobs_of_several_nodes_leave_a_node() -> Result<(), LabError> {
    let lab = Lab::builder()
        .nodes(4)
        .gpus("H100-80", 1)
        .reaper(REAPER)
        .start()?;
    let (user, bad, users) = (&lab.users()[0], &lab.nodes()[0], &lab.nodes()[3]);
    stick(&lab, user, bad, &["0.5"; 2])?;
    let exclude = format!("--exclude={users}");
    // More than the good nodes have room for, until the end of the test.
    let script = format!("--wrap={HOLD}");
    let array = lab.sbatch(
        user,
        &["--array=0-5", "--gres=gpufrac:0.5", &exclude, &script],
    )?;
    let waiting = || -> Result<Vec<String>, LabError> {
        let tasks = lab.show_job(array)?;
        let pending = tasks.iter().filter(|task| task.state() == "PENDING");
        Ok(pending
            .map(|task| task.field("ExcNodeList").to_owned())
            .collect())
    };
    let both = format!("{users},{bad}");
    lab.wait("two tasks leave the node", 60 * SECOND, || {
        Ok((waiting()? == [both.clone(), both.clone()]).then_some(()))
    })?;
    free(&lab, bad)?;
    lab.wait("they come back", 90 * SECOND, || {
        let left = waiting()?;
        assert!(
            left.iter().all(|list| *list == both || list == users),
            "{left:?}"
        );
        Ok(left.is_empty().then_some(()))
    })?;
    go(&lab)?;
    lab.wait_until_empty(90 * SECOND)?;
    if !crate::since(23, 11)? {
        // Slurm's own two minutes stay for jobs of several nodes.
        return lab.expect_nothing_left();
    }
    stick(&lab, user, bad, &["0.5"; 2])?;
    let on_two = ["-N2", "--gres=gpufrac:0.5", "--wrap=sleep 1"];
    let jobs: Vec<JobId> = (0..3)
        .map(|_| lab.sbatch(user, &on_two))
        .collect::<Result<_, _>>()?;
    for job in jobs {
        let ended = lab.wait_for_end(job)?;
        assert_eq!(ended.state(), "COMPLETED", "{ended:?}");
        let nodes = ended.field("NodeList");
        assert!(
            !nodes.contains(&format!("[{}", &bad[bad.len() - 1..])),
            "{ended:?}"
        );
    }
    free(&lab, bad)?;
    lab.wait("the places are free", 60 * SECOND, || {
        Ok(lab.leases(bad)?.is_empty().then_some(()))
    })?;
    lab.expect_nothing_left()
}

/// As a daemon leaves it that is killed, or gets no answer, while it sends a job away.
#[test]
fn an_exclusion_of_which_no_answer_came_is_taken_back() -> Result<(), LabError> {
    let mut lab = Lab::builder().gpus("H100-80", 1).reaper(REAPER).start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    stick(&lab, &user, &node, &["0.5"; 2])?;
    lab.stop_reaper(&node, Signal::SIGKILL)?;
    let job = lab.sbatch(&user, &["--gres=gpufrac:0.5", "--wrap=true"])?;
    let put_back = lab.folder().var(&node).join(format!("put-back/{job}"));
    lab.wait("the node gives the job back", 60 * SECOND, || {
        let waits = put_back.exists() && lab.job(job)?.state() == "PENDING";
        Ok(waits.then_some(()))
    })?;
    let (job_id, excluded) = (format!("JobId={job}"), format!("ExcNodeList={node}"));
    let update = ["update", &job_id, &excluded];
    lab.command("scontrol").args(update).stdout()?;
    lab.start_reaper(&node)?;
    lab.wait("no note is left", 60 * SECOND, || {
        Ok((!put_back.exists()).then_some(()))
    })?;
    let list = lab.job(job)?.field("ExcNodeList").to_owned();
    assert!(!list.contains(&node), "{list}");
    let id = job.to_string();
    lab.command("scancel").args([&id]).stdout()?;
    free(&lab, &node)?;
    lab.wait("the places are free", 60 * SECOND, || {
        Ok(lab.leases(&node)?.is_empty().then_some(()))
    })?;
    lab.expect_nothing_left()
}

#[test]
fn a_site_can_drain_the_node_and_run_its_own_programs() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).reaper(REAPER).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let calls = lab.folder().root().join("hooks");
    let hook = lab.folder().bin().join("hook");
    let script = format!(
        "#!/bin/sh\nenv | grep ^GPUFRAC_ | sort | tr '\\n' ' ' >>{0}\necho >>{0}\n",
        calls.display()
    );
    fs::write(&hook, script).expect("root may");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&hook, mode).expect("root may");
    let path = lab.folder().gpufrac_conf();
    let text = fs::read_to_string(&path).expect("root may");
    let hook = hook.display();
    let more = format!(
        "version = 1\nstuck = \"drain\"\n[hooks]\nbefore_destroy = \"{hook}\"\nstuck = \"{hook}\"\n"
    );
    let text = text.replacen("version = 1\n", &more, 1);
    fs::write(&path, text).expect("root may");
    stick(&lab, user, node, &["0.25"])?;
    lab.wait("the node is drained", 90 * SECOND, || {
        Ok(lab.node(node)?.is_drained().then_some(()))
    })?;
    let reason = lab
        .command("sinfo")
        .args(["-h", "-R", "-o", "%300E"])
        .stdout()?;
    for part in [
        "gpufrac: stuck: GPU 0 2g.20gb",
        "in use (19)",
        "nobody is seen",
    ] {
        assert!(reason.contains(part), "{reason}");
    }
    assert!(reserved(&lab)?.is_empty());
    let calls = fs::read_to_string(&calls).expect("root may");
    let of = |name: &str| {
        calls
            .lines()
            .find(|line| line.contains(&format!("GPUFRAC_HOOK={name} ")))
    };
    let before = of("before_destroy").unwrap_or_else(|| panic!("{calls}"));
    for part in [
        "GPUFRAC_GPU_UUID=GPU-",
        "GPUFRAC_MIG_UUID=MIG-",
        "GPUFRAC_OTHER_LEASES=0",
    ] {
        assert!(before.contains(part), "{before}");
    }
    assert!(of("stuck").is_some(), "{calls}");
    let job = lab.sbatch(user, &["--gres=gpufrac:0.25", "--wrap=true"])?;
    free(&lab, node)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}

/// Calls that fail for long, with errors that may pass. After the last two only a job can show that a device works
/// again, two minutes later.
const TROUBLES: [(&str, &str); 5] = [
    ("nvmlGpuInstanceDestroy", "IN_USE"),
    ("nvmlComputeInstanceDestroy", "UNKNOWN"),
    ("nvmlInit_v2", "UNKNOWN"),
    ("nvmlDeviceCreateGpuInstanceWithPlacement", "IN_USE"),
    ("nvmlGpuInstanceCreateComputeInstance", "TIMEOUT"),
];

/// `expect_nothing_left` counts the starts.
#[test]
fn no_job_starts_often_on_a_node_that_cannot_serve_it() -> Result<(), LabError> {
    let lab = Lab::builder()
        .nodes(2)
        .gpus("H100-80", 1)
        .reaper(REAPER)
        .start()?;
    let (user, bad) = (&lab.users()[0], &lab.nodes()[0]);
    let mut dice = Dice::new(test_seed::seed());
    let mut jobs = Vec::new();
    for kinds in [5, 5, 5, 3, 3, 3] {
        let (call, code) = TROUBLES[dice.below(kinds)];
        let fault = [
            "fault", "--call", call, "--nth", "1", "--count", "100000", "--code", code,
        ];
        lab.gpusim(bad, &fault)?;
        for _ in 0..6 {
            let gres = ["0.125", "0.25", "0.5"][dice.below(3)];
            let gres = format!("--gres=gpufrac:{gres}");
            jobs.push(lab.sbatch(user, &[&gres, "--wrap=sleep 0.5"])?);
        }
        std::thread::sleep(Duration::from_millis(4000 + dice.throw(6000)));
        // Some faults follow without a pause.
        if dice.one_in(2) {
            free(&lab, bad)?;
        }
    }
    free(&lab, bad)?;
    for job in jobs {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    lab.wait("the places are free", 90 * SECOND, || {
        Ok(lab.leases(bad)?.is_empty().then_some(()))
    })?;
    lab.expect_nothing_left()
}

/// States of the driver that only an admin can end.
const BROKEN: [(&str, &str, &str); 3] = [
    (
        "nvmlInit_v2",
        "LIB_RM_VERSION_MISMATCH",
        "newer than the loaded kernel module",
    ),
    (
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "GPU_IS_LOST",
        "kernel's log has its Xid",
    ),
    (
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "RESET_REQUIRED",
        "--gpu-reset",
    ),
];

/// Promise (never): a job that a drained node gives back is not held, and starts on another node.
// Slurm holds a job whose prolog failed; a prolog that drains its node does not fail.
#[test]
fn a_job_of_a_node_that_breaks_starts_elsewhere() -> Result<(), LabError> {
    let lab = Lab::builder()
        .nodes(2)
        .gpus("H100-80", 1)
        .reaper(REAPER)
        .start()?;
    let (user, bad) = (&lab.users()[0], &lab.nodes()[0]);
    let resume = format!("NodeName={bad}");
    for (call, code, cure) in BROKEN {
        let fault = [
            "fault", "--call", call, "--nth", "1", "--count", "100000", "--code", code,
        ];
        lab.gpusim(bad, &fault)?;
        let submit = |_| lab.sbatch(user, &["--gres=gpufrac:0.5", "--wrap=sleep 1"]);
        let jobs: Vec<JobId> = (0..4).map(submit).collect::<Result<_, _>>()?;
        for job in jobs {
            let ended = lab.wait_for_end(job)?;
            assert_eq!(ended.state(), "COMPLETED", "{code}: {ended:?}");
            assert_eq!(ended.field("NodeList"), lab.nodes()[1], "{code}: {ended:?}");
        }
        let reason = lab
            .command("sinfo")
            .args(["-h", "-R", "-o", "%500E"])
            .stdout()?;
        assert!(
            reason.starts_with("gpufrac: ") && reason.contains(cure),
            "{reason}"
        );
        free(&lab, bad)?;
        lab.wait("the node is back", 60 * SECOND, || {
            let resumed = lab
                .command("scontrol")
                .args(["update", &resume, "State=RESUME"])
                .run()?;
            Ok((resumed.status.success() && lab.drained_nodes()?.is_empty()).then_some(()))
        })?;
    }
    lab.expect_nothing_left()
}
