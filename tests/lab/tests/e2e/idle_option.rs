//! `--gpufrac-idle` from the command to the lease, and calls to Slurm about single jobs.

use std::time::Duration;

use gpufrac_core::lease::{Lease, LeaseState};
use gpufrac_core::policy::IdleWish;
use gpufrac_lab::{Job, JobId, Lab, LabError, User};
use nix::sys::signal::Signal;

use crate::panics::{logged, planted};
use crate::submission::{build_submitter, job_of, submit_by_api};
use crate::{HOLD, go};

mod client;

/// One GPU in halves for partition `gpu`; `small` gives smaller sizes, `cpu` none. Account phys may keep idle slices.
const POOLS: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "small"]
nodes = "@NODES@"

[partition.small]
max = 0.25

[reaper.mail]
contact = "gpu-help@example.org"

[reaper.rule.physics]
accounts = ["phys"]
idle_option = ["default", "long", "off"]

[reaper.rule.classes]
partitions = ["small"]
interactive = true
idle_option = ["default"]
"#;

const QUARTER: &str = "--gres=gpufrac:0.25";

fn lab() -> Result<Lab, LabError> {
    lab_of(1)
}

fn lab_of(nodes: usize) -> Result<Lab, LabError> {
    Lab::builder()
        .nodes(nodes)
        .gpus("H100-80", 1)
        .partition("small", "")
        .partition("cpu", "")
        .pools(POOLS)
        .start()
}

/// The only lease of the node.
pub fn only_lease(lab: &Lab) -> Result<Lease, LabError> {
    lab.wait("one active lease", Duration::from_secs(40), || {
        let mut leases = lab.leases(&lab.nodes()[0])?;
        leases.retain(|lease| lease.state == LeaseState::Active);
        Ok(if leases.len() == 1 { leases.pop() } else { None })
    })
}

fn wish_of(lab: &Lab, job: JobId) -> Result<IdleWish, LabError> {
    lab.wait_for_state(job, &["RUNNING"])?;
    Ok(lab.slice(&lab.nodes()[0], job)?.lease.idle_wish)
}

/// Runs `program` with these arguments to its end.
pub fn run(
    lab: &Lab,
    user: &User,
    program: &str,
    args: &[&str],
) -> Result<gpufrac_lab::Outcome, LabError> {
    lab.command(program).user(user).args(args).run()
}

/// Promise (reaper): a wrong value of --gpufrac-idle is refused; without a fraction the user is told that the option
/// does nothing; a job from inside another job has its own; an update keeps the value.
/// With `a_job_without_a_fraction_is_told_that_the_option_does_nothing`,
/// `jobs_submitted_from_inside_have_their_own_wish`, `an_update_keeps_the_wish`.
#[test]
fn the_commands_know_the_option_and_refuse_values_that_are_none() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    for (program, last) in [
        ("sbatch", "--wrap=true"),
        ("srun", "true"),
        ("salloc", "true"),
    ] {
        let help = run(&lab, user, program, &["--help"])?.success()?.stdout;
        assert!(
            help.contains("--gpufrac-idle=default|long|off"),
            "{program}: {help}"
        );
        let words: Vec<&str> = help.split_whitespace().collect();
        let usage = "reclaiming of an idle gpufrac slice: default, long (longer windows) or off";
        assert!(words.join(" ").contains(usage), "{program}: {help}");
        for value in ["never", "", "LONG", "off,long"] {
            let option = format!("--gpufrac-idle={value}");
            let refused = run(&lab, user, program, &[QUARTER, &option, last])?;
            assert!(!refused.status.success(), "{program}: {refused:?}");
            let told = format!("{option} is unknown; write default, long or off");
            assert!(refused.stderr.contains(&told), "{program}: {refused:?}");
        }
    }
    lab.expect_nothing_left()
}

/// Promise (reaper): --gpufrac-idle of sbatch, salloc and srun reaches the node, and a user cannot forge it.
/// With `other_clients_have_the_option_and_cannot_forge_what_was_granted`.
#[test]
fn the_wish_reaches_the_lease_by_every_way_of_submission() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    let hold = format!("--wrap={HOLD}");
    let script = format!("#!/bin/sh\n#SBATCH {QUARTER} --gpufrac-idle=long\n{HOLD}\n");
    lab.write_work("long.sh", &script)?;
    let jobs = [
        (lab.sbatch(user, &[QUARTER, &hold])?, IdleWish::Default),
        (
            lab.sbatch(user, &[QUARTER, "--gpufrac-idle=default", &hold])?,
            IdleWish::Default,
        ),
        (lab.sbatch(user, &["long.sh"])?, IdleWish::Long),
        (
            lab.sbatch(
                user,
                &[QUARTER, "--account=phys", "--gpufrac-idle=off", &hold],
            )?,
            IdleWish::Off,
        ),
    ];
    for (job, wish) in jobs {
        assert_eq!(wish_of(&lab, job)?, wish, "job {job}");
    }
    go(&lab)?;
    for (job, _) in jobs {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    lab.wait_until_empty(Duration::from_secs(20))?;

    for program in ["srun", "salloc"] {
        let wait = format!("while [ ! -e {program}.go ]; do sleep 0.05; done");
        let args = [QUARTER, "--gpufrac-idle=long", "sh", "-c", &wait];
        let running = lab.command(program).user(user).args(args).spawn()?;
        assert_eq!(only_lease(&lab)?.idle_wish, IdleWish::Long, "{program}");
        lab.write_work(&format!("{program}.go"), "")?;
        running.wait()?.success()?;
        lab.wait_until_empty(Duration::from_secs(20))?;
    }
    lab.expect_nothing_left()
}

#[test]
fn an_update_keeps_the_wish() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    let args = ["--hold", QUARTER, "--gpufrac-idle=long", "--wrap", HOLD];
    let job = lab.sbatch(user, &args)?;
    let update = [
        "update".to_owned(),
        format!("JobId={job}"),
        "Gres=gpufrac:0.125".to_owned(),
    ];
    lab.command("scontrol").user(user).args(update).stdout()?;
    lab.command("scontrol")
        .args(["release", &job.to_string()])
        .stdout()?;
    assert_eq!(wish_of(&lab, job)?, IdleWish::Long);
    assert_eq!(lab.slice(&lab.nodes()[0], job)?.lease.units.0, 13);
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}

#[test]
fn requests_that_the_rules_forbid_are_refused() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    let off = "--gpufrac-idle=off";
    let told = "gpufrac: this job cannot use --gpufrac-idle=off, only default or long. \
             gpu-help@example.org";
    let bio = "--account=bio";
    for (program, last) in [
        ("sbatch", "--wrap=true"),
        ("srun", "true"),
        ("salloc", "true"),
    ] {
        let refused = run(&lab, user, program, &[bio, QUARTER, off, last])?;
        assert!(!refused.status.success(), "{program}: {refused:?}");
        assert!(refused.stderr.contains(told), "{program}: {refused:?}");
        run(
            &lab,
            user,
            program,
            &[bio, QUARTER, "--gpufrac-idle=long", last],
        )?
        .success()?;
        run(&lab, user, program, &["--account=phys", QUARTER, off, last])?.success()?;
    }
    // Without a script: the rule of classes matches in that partition, and the one of batch jobs does not.
    let long = ["-p", "small", bio, QUARTER, "--gpufrac-idle=long"];
    let refused = run(&lab, user, "srun", &[&long[..], &["true"]].concat())?;
    assert!(!refused.status.success(), "{refused:?}");
    assert!(refused.stderr.contains("only default."), "{refused:?}");
    run(
        &lab,
        user,
        "sbatch",
        &[&long[..], &["--wrap=true"]].concat(),
    )?
    .success()?;
    lab.expect_nothing_left()
}

#[test]
fn a_job_without_a_fraction_is_told_that_the_option_does_nothing() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    let told = "--gpufrac-idle has no effect here";
    for (program, last) in [
        ("sbatch", "--wrap=true"),
        ("srun", "true"),
        ("salloc", "true"),
    ] {
        let args = ["-p", "cpu", "--gpufrac-idle=off", last];
        let outcome = run(&lab, user, program, &args)?.success()?;
        assert!(outcome.stderr.contains(told), "{program}: {outcome:?}");
        let outcome = run(&lab, user, program, &["-p", "cpu", last])?.success()?;
        assert!(!outcome.stderr.contains(told), "{program}: {outcome:?}");
    }
    lab.expect_nothing_left()
}

#[test]
fn jobs_submitted_from_inside_have_their_own_wish() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    let script = format!(
        "#!/bin/sh\nenv | grep -i gpufrac_idle | sed 's/^/left: /'\n\
         sbatch --parsable {QUARTER} --wrap '{HOLD}'\nsbatch --parsable -p cpu --wrap true\n"
    );
    lab.write_work("outer.sh", &script)?;
    let args = [QUARTER, "--gpufrac-idle=long", "outer.sh"];
    let outer = lab.sbatch(user, &args)?;
    assert_eq!(lab.wait_for_end(outer)?.state(), "COMPLETED");
    let output = lab.output(outer)?;
    let numbers = output
        .lines()
        .filter_map(|line| line.parse().ok().map(JobId));
    let [inner, plain] = numbers.collect::<Vec<_>>()[..] else {
        panic!("{output}")
    };
    assert!(!output.contains("no effect"), "{output}");
    assert!(!output.contains("left: "), "{output}");
    assert_eq!(wish_of(&lab, inner)?, IdleWish::Default);
    go(&lab)?;
    for job in [inner, plain] {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    lab.expect_nothing_left()
}

#[test]
fn other_clients_have_the_option_and_cannot_forge_what_was_granted() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    let program = build_submitter(&lab)?;
    let submit = |variable: &str| {
        let args = ["gres:gpufrac:0.25", variable];
        submit_by_api(&lab, &program, user, &args)
    };
    let option = "_SLURM_SPANK_OPTION_gpufrac_gpufrac_idle";
    let long = job_of(submit(&format!("{option}=long"))?)?;
    let forged = [
        job_of(submit("SPANK_GPUFRAC=v1:units=25:mech=mig:idle=off")?)?,
        job_of(submit("GPUFRAC=v1:units=25:mech=mig:idle=off")?)?,
    ];
    assert_eq!(wish_of(&lab, long)?, IdleWish::Long);
    for job in forged {
        assert_eq!(wish_of(&lab, job)?, IdleWish::Default);
    }
    go(&lab)?;
    for value in ["never", "off"] {
        // Slurm's C API has no message for a refused client, unlike scontrol and sbatch.
        for prefix in ["", "SPANK_"] {
            let refused = submit(&format!("{prefix}{option}={value}"))?;
            // Without an account the job may turn out to be of physics.
            assert_eq!(refused.status.success(), value == "off", "{refused:?}");
        }
    }
    lab.expect_nothing_left()
}

/// The record of a task; None while it is pending together with others.
fn find_task(lab: &Lab, array: JobId, number: u32) -> Result<Option<Job>, LabError> {
    let number = number.to_string();
    let mut tasks = lab.show_job(array)?.into_iter();
    Ok(tasks.find(|job| job.field("ArrayTaskId") == number))
}

fn task(lab: &Lab, array: JobId, number: u32) -> Result<Job, LabError> {
    find_task(lab, array, number)?.ok_or_else(|| LabError::Unexpected {
        what: format!("task {number} of {array}"),
        found: "no record".to_owned(),
    })
}

fn wait_for_task(
    lab: &Lab,
    array: JobId,
    number: u32,
    right: impl Fn(&Job) -> bool,
) -> Result<Job, LabError> {
    let what = format!("task {number} of array {array}");
    lab.wait(&what, Duration::from_secs(60), || {
        Ok(find_task(lab, array, number)?.filter(&right))
    })
}

/// Three tasks, two of which have room. The last one is moved to a partition that does not accept it, so that the
/// prolog requeues or cancels it. It has the array's own id.
fn array_of_three(lab: &Lab, more: &[&str]) -> Result<JobId, LabError> {
    let wrap = "--wrap=while [ ! -e go.$SLURM_ARRAY_TASK_ID ]; do sleep 0.05; done";
    let args = [more, &["--array=0-2", "--gres=gpufrac:0.5", wrap]].concat();
    let array = lab.sbatch(&lab.users()[0], &args)?;
    for number in [0, 1] {
        wait_for_task(lab, array, number, |job| job.state() == "RUNNING")?;
    }
    let update = [format!("JobId={array}_2"), "Partition=small".to_owned()];
    lab.update(&update.each_ref().map(String::as_str))?;
    lab.write_work("go.0", "")?;
    Ok(array)
}

/// The other tasks are not affected.
fn expect_untouched(lab: &Lab, array: JobId) -> Result<(), LabError> {
    let second = task(lab, array, 1)?;
    assert_eq!(second.state(), "RUNNING", "{second:?}");
    assert_eq!(second.field("Restarts"), "0", "{second:?}");
    let lease = lab.lease(&lab.nodes()[0], second.id())?;
    assert_eq!(lease.map(|lease| lease.state), Some(LeaseState::Active));
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.write_work("go.1", "")?;
    wait_for_task(lab, array, 1, |job| job.state() == "COMPLETED")?;
    assert_eq!(task(lab, array, 0)?.state(), "COMPLETED");
    assert_eq!(task(lab, array, 0)?.field("Restarts"), "0");
    Ok(())
}

/// Promise (never): a prolog that requeues, holds or cancels a task of an array affects no other task.
/// With `an_arrays_task_is_cancelled_alone`, `an_arrays_first_task_is_cancelled_alone`.
#[test]
fn an_arrays_task_is_requeued_alone() -> Result<(), LabError> {
    let lab = lab()?;
    let array = array_of_three(&lab, &[])?;
    let held = wait_for_task(&lab, array, 2, |job| {
        job.state() == "PENDING" && job.field("Restarts") == "1"
    })?;
    assert_eq!(held.id(), array, "the last task has the array's number");
    expect_untouched(&lab, array)?;
    lab.command("scancel").args([array.to_string()]).stdout()?;
    lab.expect_nothing_left()
}

#[test]
fn an_arrays_task_is_cancelled_alone() -> Result<(), LabError> {
    let lab = lab()?;
    let array = array_of_three(&lab, &["--no-requeue"])?;
    let ended = wait_for_task(&lab, array, 2, |job| job.state() == "CANCELLED")?;
    assert_eq!(ended.id(), array, "the last task has the array's number");
    expect_untouched(&lab, array)?;
    lab.expect_nothing_left()
}

#[test]
fn an_arrays_first_task_is_cancelled_alone() -> Result<(), LabError> {
    let lab = lab()?;
    let args = [
        "--hold",
        "--no-requeue",
        "--array=0-1",
        "--gres=gpufrac:0.5",
        "--wrap",
        HOLD,
    ];
    let array = lab.sbatch(&lab.users()[0], &args)?;
    let first = format!("{array}_0");
    let update = [format!("JobId={first}"), "Partition=small".to_owned()];
    lab.update(&update.each_ref().map(String::as_str))?;
    lab.command("scontrol").args(["release", &first]).stdout()?;
    let ended = wait_for_task(&lab, array, 0, |job| job.state() == "CANCELLED")?;
    assert_ne!(ended.id(), array);
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    assert_eq!(task(&lab, array, 1)?.state(), "PENDING");
    lab.command("scancel").args([array.to_string()]).stdout()?;
    lab.expect_nothing_left()
}

#[test]
fn a_het_job_of_which_one_component_may_not_start_goes_back_as_a_whole() -> Result<(), LabError> {
    let lab = lab_of(2)?;
    lab.write_work("het.sh", &format!("#!/bin/sh\n{HOLD}\n"))?;
    let half = ["-t5", "--gres=gpufrac:0.5"];
    let args = [&["--hold"], &half[..], &[":"], &half[..], &["het.sh"]].concat();
    let first = lab.sbatch(&lab.users()[0], &args)?;
    let scontrol = |args: &[&str]| lab.command("scontrol").args(args).stdout();
    let second = format!("JobId={}", first.0 + 1);
    lab.update(&[&second, "Partition=small"])?;
    scontrol(&["release", &first.to_string()])?;
    lab.wait("both are held again", Duration::from_secs(60), || {
        let seen = lab.show_job(first)?;
        let back = |job: &Job| job.state() == "PENDING" && job.field("Restarts") == "1";
        Ok((seen.len() == 2 && seen.iter().all(back)).then_some(()))
    })?;
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.command("scancel").args([first.to_string()]).stdout()?;
    lab.expect_nothing_left()
}

#[test]
fn a_panic_while_the_option_is_registered_costs_the_option_alone() -> Result<(), LabError> {
    let mut lab = Lab::builder().plugin_folder(planted()).start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    let plant = ("GPUFRAC_PLANT", "slurm_spank_init");
    let sbatch = |args: &[&str]| {
        let command = lab.command("sbatch").user(&user).env(plant.0, plant.1);
        command.args(["--parsable", QUARTER]).args(args).run()
    };
    let job = job_of(sbatch(&["--wrap=true"])?)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let refused = sbatch(&["--gpufrac-idle=long", "--wrap=true"])?;
    assert!(!refused.status.success(), "{refused:?}");

    lab.set_daemon_environment(&[plant]);
    lab.stop_daemon(&format!("slurmd.{node}"), Signal::SIGTERM)?;
    lab.start_slurmd(&node)?;
    let job = lab.sbatch(&user, &[QUARTER, "--gpufrac-idle=long", "--wrap", HOLD])?;
    assert_eq!(wish_of(&lab, job)?, IdleWish::Long);
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    let log = format!("slurmd.{node}.log");
    assert!(logged(&lab, &log, "planted in slurm_spank_init"));
    lab.expect_nothing_left()
}
