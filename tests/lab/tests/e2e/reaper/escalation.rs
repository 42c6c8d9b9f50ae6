//! From the warning to the end of a job, and the recipients of the messages.

use std::fs;
use std::time::Duration;

use gpufrac_lab::{Job, JobId, Lab, LabError, User};
use nix::sys::signal::Signal;

use super::{
    admin_comment, configure, decisions, expect_spared, failed, job_named, kept_once, lab, quick,
    scontrol, submit, wait_for_decision, wait_until_cancelled, wait_until_kept, words,
};

const SECOND: Duration = Duration::from_secs(1);
const QUARTER: &str = "--gres=gpufrac:0.25";
/// The tolerance for other load of the machine.
const LOAD: Duration = Duration::from_secs(60);

/// Promise (reaper): a warning precedes the end by its time, use clears it, and an announced end keeps its time.
/// With `a_late_warning_moves_the_end`, `an_announced_warning_holds_after_a_change_of_the_policy`.
#[test]
fn each_warning_comes_in_time_and_use_restarts_the_window() -> Result<(), LabError> {
    let warned_twice = [
        ("never_used", "\"8s\""),
        ("idle", "\"8s\""),
        ("over_share", "\"8s\""),
        ("warn", "[\"2s\", \"4s\"]"),
    ];
    let lab = lab(&warned_twice, "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let unused = submit(&lab, user, &[QUARTER], "sleep 1000")?;
    let script = "while [ ! -e use ]; do sleep 0.1; done; gpu busy 1; sleep 1000";
    let again = submit(&lab, user, &[QUARTER], script)?;
    let update = [
        "update",
        &format!("JobId={unused}"),
        "AdminComment=ticket 7: ask | first",
    ];
    scontrol(&lab, &update)?;
    wait_for_decision(&lab, node, again, "warn")?;
    lab.write_work("use", "")?;

    wait_until_cancelled(&lab, node, unused)?;
    let log = lab.reaper_log(node)?;
    let told = kept_once(&lab, node, unused)?;
    assert_eq!(words(&told), ["warn", "warn", "cancel"], "{log}");
    assert!(told[0].stalled >= 4 * SECOND, "{told:?}\n{log}");
    assert!(told[1].stalled >= 6 * SECOND, "{told:?}\n{log}");
    assert!(told[2].stalled >= 8 * SECOND, "{told:?}\n{log}");
    assert!(told[2].stalled < 8 * SECOND + LOAD, "{told:?}\n{log}");
    assert!(told[2].at - told[0].at >= 4 * SECOND, "{told:?}\n{log}");
    assert!(told[2].at - told[1].at >= 2 * SECOND, "{told:?}\n{log}");
    let output = lab.output(unused)?;
    for line in [
        "will be cancelled in 4s",
        "will be cancelled in 2s",
        "is cancelled",
    ] {
        assert!(output.contains(line), "{line}: {output}\n{log}");
    }
    let comment = admin_comment(&lab, unused)?;
    let others = "ticket 7: ask | first | gpufrac: job";
    assert!(comment.starts_with(others), "{comment}\n{log}");
    assert!(comment.contains("is cancelled"), "{comment}\n{log}");
    assert_eq!(comment.matches("gpufrac: ").count(), 1, "{comment}\n{log}");

    wait_until_cancelled(&lab, node, again)?;
    let told = kept_once(&lab, node, again)?;
    let log = lab.reaper_log(node)?;
    let cleared = words(&told).iter().position(|word| *word == "clear");
    let cleared = cleared.unwrap_or_else(|| panic!("{told:?}\n{log}"));
    assert!((1..=2).contains(&cleared), "{told:?}\n{log}");
    let after = &told[cleared..];
    assert_eq!(words(after), ["clear", "warn", "warn", "cancel"], "{log}");
    assert!(after[3].at - after[0].at >= 8 * SECOND, "{told:?}\n{log}");
    lab.expect_nothing_left()
}

/// Rules by names of jobs, so that one lab covers all of them.
const WAYS: &str = r#"
[reaper.rule.checkpoint]
names = ["checkpoint"]
signal = "USR1"
checkpoint = "3s"

[reaper.rule.hold]
names = ["hold"]
action = "requeue-hold"
"#;

/// Promise (reaper): signal, requeue, requeue and hold, cancel; notices for srun and salloc.
#[test]
fn a_job_goes_back_to_the_queue_where_it_can_and_ends_where_not() -> Result<(), LabError> {
    let lab = lab(&[("action", "\"requeue\"")], WAYS).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let named = |name: &str| format!("--job-name={name}");
    let script = "trap 'touch caught' USR1; [ \"$SLURM_RESTART_COUNT\" = 1 ] && sleep 2 && exit 0
        while :; do sleep 0.2; done";
    let back = [QUARTER, "--requeue", &named("checkpoint")];
    let back = submit(&lab, user, &back, script)?;
    let held = [QUARTER, "--requeue", &named("hold")];
    let held = submit(&lab, user, &held, "sleep 1000")?;
    let bound = submit(&lab, user, &[QUARTER, "--no-requeue"], "sleep 1000")?;
    let interactive = |program: &str, more: &[&str]| {
        let name = named(program);
        let args = [&[QUARTER, &name], more, &["sleep", "300"]].concat();
        let running = lab.command(program).user(user).args(args).spawn()?;
        Ok::<_, LabError>((job_named(&lab, program)?, running))
    };
    let terminals = [
        interactive("srun", &[])?,
        interactive("salloc", &["--kill-command"])?,
    ];

    for (job, running) in terminals {
        wait_until_cancelled(&lab, node, job)?;
        let log = lab.reaper_log(node)?;
        let told = kept_once(&lab, node, job)?;
        assert_eq!(words(&told), ["warn", "cancel"], "{log}");
        let seen = running.wait()?;
        let text = format!("{}{}", seen.stdout, seen.stderr);
        let notice = format!("gpufrac: job {job} will be cancelled in 3s");
        assert!(text.contains(&notice), "{seen:?}\n{log}");
    }
    wait_until_cancelled(&lab, node, bound)?;
    assert_eq!(decisions(&lab, node, bound)?, ["warn", "cancel"]);

    wait_for_decision(&lab, node, held, "requeue")?;
    let seen = lab.wait("the job is held", Duration::from_secs(60), || {
        let seen = lab.job(held)?;
        Ok((seen.state() == "PENDING" && seen.field("Priority") == "0").then_some(seen))
    })?;
    assert_eq!(seen.field("Restarts"), "1", "{seen:?}");
    lab.command("scancel").args([held.to_string()]).stdout()?;

    wait_for_decision(&lab, node, back, "requeue")?;
    assert!(lab.folder().work().join("caught").exists());
    lab.wait("the second run", Duration::from_secs(60), || {
        let lease = lab.lease(node, back)?;
        Ok(lease.filter(|lease| lease.restart_count == 1))
    })?;
    let ended = lab.wait_for_end(back)?;
    let log = lab.reaper_log(node)?;
    let how = (ended.state(), ended.field("Restarts"));
    assert_eq!(how, ("COMPLETED", "1"), "{log}");
    // There was no decision about the second run.
    let told = kept_once(&lab, node, back)?;
    assert_eq!(words(&told), ["warn", "signal", "requeue"], "{log}");
    assert!(told.iter().all(|told| told.rule == "checkpoint"), "{log}");
    assert!(told[2].at - told[1].at >= 3 * SECOND, "{told:?}\n{log}");
    assert!(told[1].at - told[0].at >= 3 * SECOND, "{told:?}\n{log}");
    lab.expect_nothing_left()
}

/// An array of three tasks, one of which is idle.
fn array(lab: &Lab, user: &User, idle: u32) -> Result<JobId, LabError> {
    let script =
        format!("if [ $SLURM_ARRAY_TASK_ID = {idle} ]; then sleep 1000; else gpu busy; fi");
    submit(lab, user, &[QUARTER, "--array=0-2"], &script)
}

fn task(lab: &Lab, array: JobId, number: u32) -> Result<Job, LabError> {
    let number = number.to_string();
    lab.wait("the task has a record", Duration::from_secs(60), || {
        let mut tasks = lab.show_job(array)?.into_iter();
        Ok(tasks.find(|job| job.field("ArrayTaskId") == number && job.state() != "PENDING"))
    })
}

/// Promise (reaper): one task of an array alone.
#[test]
fn one_task_of_an_array_is_ended_and_the_others_live() -> Result<(), LabError> {
    // Six jobs start at once, and four of them must be active in time.
    let windows = [("never_used", "\"12s\""), ("idle", "\"12s\"")];
    let lab = lab(&windows, "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    // The last task that starts has the id of the array itself.
    let arrays = [(array(&lab, user, 0)?, 0), (array(&lab, user, 2)?, 2)];
    for (array, idle) in arrays {
        let ended = task(&lab, array, idle)?.id();
        assert_eq!(ended == array, idle == 2);
        wait_for_decision(&lab, node, ended, "cancel")?;
        let why = |what: &str| Ok::<_, LabError>(format!("{what}\n{}", lab.reaper_log(node)?));
        let state = lab.wait("the task's end", Duration::from_secs(60), || {
            let seen = task(&lab, array, idle)?;
            Ok((!seen.is_active()).then(|| seen.state().to_owned()))
        })?;
        assert_eq!(state, "CANCELLED", "{}", why("task")?);
        let path = lab.folder().work();
        let path = path.join(format!("slurm-{array}_{idle}.out"));
        let output = fs::read_to_string(&path).map_err(failed(&path))?;
        assert!(output.contains("will be cancelled"), "{}", why(&output)?);
    }
    let log = lab.reaper_log(node)?;
    for (array, idle) in arrays {
        for number in (0..3).filter(|number| *number != idle) {
            let other = task(&lab, array, number)?;
            assert_eq!(other.state(), "RUNNING", "{other:?}\n{log}");
            let told = decisions(&lab, node, other.id())?;
            assert_eq!(told, Vec::<String>::new(), "{log}");
            let comment = admin_comment_of_task(&lab, array, number)?;
            assert!(!comment, "{array}_{number}\n{log}");
        }
        lab.command("scancel").args([array.to_string()]).stdout()?;
    }
    lab.expect_nothing_left()
}

/// Whether a task has an admin comment.
fn admin_comment_of_task(lab: &Lab, array: JobId, number: u32) -> Result<bool, LabError> {
    let shown = scontrol(lab, &["show", "job", &format!("{array}_{number}")])?;
    Ok(shown.contains("AdminComment="))
}

/// A mail program that records its arguments and its input.
fn mail_program(lab: &Lab, name: &str) -> Result<String, LabError> {
    let work = lab.folder().work();
    let text = format!(
        "#!/bin/sh\ncd {}\n{{ printf 'argument: %s\\n' \"$@\"; cat; }} > .{name}.$$\nmv .{name}.$$ {name}.$$.mail\n",
        work.display()
    );
    let path = lab.write_work(&format!("{name}.sh"), &text)?;
    Ok(path.display().to_string())
}

/// The input of each call of this program.
fn mails(lab: &Lab, name: &str) -> Result<Vec<String>, LabError> {
    let place = lab.folder().work();
    let entries = fs::read_dir(&place).map_err(failed(&place))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mine = paths.filter(|path| {
        let file = path.file_name().and_then(|name| name.to_str());
        file.is_some_and(|file| file.starts_with(&format!("{name}.")) && file.ends_with(".mail"))
    });
    mine.map(|path| fs::read_to_string(&path).map_err(failed(&path)))
        .collect()
}

fn wait_for_mail(lab: &Lab, name: &str) -> Result<String, LabError> {
    lab.wait("a mail", Duration::from_secs(30), || {
        Ok(mails(lab, name)?.pop())
    })
}

/// Promise (reaper): mail with a chart; a mail program that hangs stops nothing.
#[test]
fn users_get_mail_and_a_mail_program_that_hangs_stops_nothing() -> Result<(), LabError> {
    let lab = lab(&[], "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let sendmail = mail_program(&lab, "sendmail")?;
    let mail = format!(
        "[reaper.mail]\nsendmail = \"{sendmail}\"\nfrom = \"gpufrac@site.example\"\ndomain = \"site.example\"\ncontact = \"Ask gpu-help.\"\n"
    );
    configure(&lab, &quick(&[], &mail))?;
    let args = [QUARTER, "--mail-user=someone@else.example"];
    let job = submit(&lab, user, &args, "sleep 1000")?;
    let mail = wait_for_mail(&lab, "sendmail")?;
    let log = lab.reaper_log(node)?;
    for part in [
        "argument: -i\nargument: -f\nargument: gpufrac@site.example\nargument: --\nargument: someone@else.example\n",
        "From: gpufrac@site.example\n",
        "To: someone@else.example\n",
        &format!("Subject: Job {job} on {node} will be cancelled in 3s"),
        "Content-Type: image/svg+xml",
        "filename=\"chart.svg\"",
    ] {
        assert!(mail.contains(part), "{part}: {mail}\n{log}");
    }
    let text: Vec<&str> = mail.split_whitespace().collect();
    let text = text.join(" ");
    let why = format!("gpufrac why {job}");
    for part in [
        "no process has used the slice",
        "cancelled at 20",
        &why,
        "Ask gpu-help.",
    ] {
        assert!(text.contains(part), "{part}: {mail}\n{log}");
    }
    wait_until_cancelled(&lab, node, job)?;

    let program = mail_program(&lab, "program")?;
    let mail = format!("[reaper.mail]\nprogram = \"{program}\"\ndomain = \"site.example\"\n");
    configure(&lab, &quick(&[], &mail))?;
    let job = submit(&lab, user, &[QUARTER], "sleep 1000")?;
    let mail = wait_for_mail(&lab, "program")?;
    let log = lab.reaper_log(node)?;
    let head = format!("argument: -s\nargument: Job {job} on {node} will be cancelled in 3s");
    assert!(mail.starts_with(&head), "{mail}\n{log}");
    let to = format!("\nargument: {}@site.example\n", user.name);
    assert!(mail.contains(&to), "{mail}\n{log}");
    wait_until_cancelled(&lab, node, job)?;

    let hangs = lab.write_work("hangs.sh", "#!/bin/sh\nexec sleep 1000\n")?;
    let mail = format!("[reaper.mail]\nsendmail = \"{}\"\n", hangs.display());
    configure(&lab, &quick(&[], &mail))?;
    let job = submit(&lab, user, &[QUARTER], "sleep 1000")?;
    wait_until_cancelled(&lab, node, job)?;
    let told = kept_once(&lab, node, job)?;
    let log = lab.reaper_log(node)?;
    // The program has 10 s; the rounds do not wait for it.
    let place = |words: &str| log.rfind(words);
    let (cancel, lost) = (place("decision=cancel"), place("was not sent"));
    assert!(
        lost.is_none_or(|lost| cancel < Some(lost)),
        "{told:?}\n{log}"
    );
    lab.expect_nothing_left()
}

#[test]
fn a_dry_run_touches_nothing_and_does_not_count_later() -> Result<(), LabError> {
    let mut lab = lab(&[("mode", "\"off\"")], "")
        .slurm_conf_extra("MessageTimeout=2")
        .start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    let (user, node) = (&user, &node);
    let requeue = [QUARTER, "--requeue"];
    let first = submit(&lab, user, &requeue, "sleep 1000")?;
    let second = submit(&lab, user, &requeue, "sleep 1000")?;
    lab.wait_for_state(second, &["RUNNING"])?;
    // Longer than grace and window.
    std::thread::sleep(12 * SECOND);
    for job in [first, second] {
        let told = decisions(&lab, node, job)?;
        assert_eq!(told, Vec::<String>::new(), "mode is off");
    }

    let sendmail = mail_program(&lab, "sendmail")?;
    let mail = format!("[reaper.mail]\nsendmail = \"{sendmail}\"\n");
    let changes = [
        ("action", "\"requeue\""),
        ("signal", "\"USR1\""),
        ("checkpoint", "\"1s\""),
    ];
    let dry = [&changes[..], &[("mode", "\"dry-run\"")]].concat();
    configure(&lab, &quick(&dry, &mail))?;
    for job in [first, second] {
        wait_until_kept(&lab, node, job, "requeue")?;
        // Time for any further message.
        std::thread::sleep(SECOND);
        let log = lab.reaper_log(node)?;
        let told = kept_once(&lab, node, job)?;
        assert_eq!(words(&told), ["warn", "signal", "requeue"], "{log}");
        assert!(told.iter().all(|told| told.dry_run), "{told:?}");
        let seen = lab.job(job)?;
        let how = (seen.state(), seen.field("Restarts"));
        assert_eq!(how, ("RUNNING", "0"), "{log}");
        assert_eq!(admin_comment(&lab, job)?, "", "{log}");
        assert_eq!(lab.output(job)?, "", "{log}");
        let why = ["why", &job.to_string(), "--node", node];
        let why = lab.command("gpufrac").user(user).args(why).stdout()?;
        assert!(why.contains("dry-run"), "{why}\n{log}");
    }
    assert_eq!(mails(&lab, "sendmail")?, Vec::<String>::new());

    // Mode on, and one reclaim in an hour.
    configure(&lab, &quick(&[("reaps_per_hour", "1")], &mail))?;
    wait_until_cancelled(&lab, node, first)?;
    let told = kept_once(&lab, node, first)?;
    let log = lab.reaper_log(node)?;
    let real = &told[3..];
    assert_eq!(words(real), ["warn", "cancel"], "{told:?}\n{log}");
    assert!(!real.iter().any(|told| told.dry_run), "{told:?}\n{log}");
    assert!(real[1].at - real[0].at >= 3 * SECOND, "{told:?}\n{log}");
    wait_for_decision(&lab, node, second, "refuse")?;
    let log = lab.reaper_log(node)?;
    let said = "this node ended 1 jobs in the last hour";
    assert!(log.contains(said), "{log}");
    // Slurm is not asked again and again without need.
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    std::thread::sleep(5 * SECOND);
    let log = lab.reaper_log(node)?;
    assert!(!log.contains("slurm: "), "{log}");
    lab.start_slurmctld()?;
    let told = decisions(&lab, node, second)?;
    let refused = told.iter().filter(|word| *word == "refuse");
    assert_eq!(refused.count(), 1, "{log}");
    expect_spared(&lab, node, second)?;
    lab.expect_nothing_left()
}
