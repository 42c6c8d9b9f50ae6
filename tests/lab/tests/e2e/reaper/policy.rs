//! The rule that holds for a job.

use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};

use super::{
    configure, decisions, job_named, lab, quick, scontrol, submit, wait_for_decision,
    wait_until_kept,
};

const EIGHTH: &str = "--gres=gpufrac:0.125";

const POOL: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "fast"]
nodes = "@NODES@"
"#;

/// Windows of jobs that no rule matches; a slice without samples for a while counts as active.
const LONG: [(&str, &str); 2] = [("never_used", "\"1h\""), ("idle", "\"1h\"")];

/// A rule of each kind.
const RULES: &str = r#"
[reaper.rule.exempt]
names = ["keep-*"]
mode = "off"

[reaper.rule.mine]
users = ["@USER@"]
never_used = "6s"
idle = "6s"

[reaper.rule.fast]
partitions = ["fa*"]
never_used = "6s"
idle = "6s"

[reaper.rule.physics]
accounts = ["phys"]
never_used = "6s"
idle = "6s"

[reaper.rule.training]
names = ["train-?"]
never_used = "6s"
idle = "6s"

[reaper.rule.terminals]
interactive = true
never_used = "6s"
idle = "6s"

[reaper.rule.course]
reservations = ["course*"]
never_used = "6s"
idle = "6s"
"#;

/// Promise (reaper): the first rule that matches holds; what a user may ask for.
/// With `rules_of_qos_and_account`, `the_option_of_the_user_holds_while_a_rule_allows_it`,
/// `requests_that_the_rules_forbid_are_refused`.
#[test]
fn the_first_rule_that_matches_holds() -> Result<(), LabError> {
    let general = [("mode", "\"dry-run\""), LONG[0], LONG[1]];
    let lab = lab(&general, "")
        .partition("fast", "")
        .pools(POOL)
        .start()?;
    let (user, other, node) = (&lab.users()[0], &lab.users()[1], &lab.nodes()[0]);
    let rules = RULES.replace("@USER@", &other.name);
    configure(&lab, &quick(&general, &rules))?;
    let idle = |args: &[&str]| submit(&lab, user, &[&[EIGHTH], args].concat(), "sleep 1000");
    let theirs = |args: &[&str]| submit(&lab, other, &[&[EIGHTH], args].concat(), "sleep 1000");
    let judged = [
        (theirs(&[])?, "mine"),
        (theirs(&["--account=phys"])?, "mine"),
        (idle(&["--partition=fast"])?, "fast"),
        (idle(&["--account=phys"])?, "physics"),
        (idle(&["--job-name=train-1"])?, "training"),
        (idle(&["--account=phys", "--job-name=train-2"])?, "physics"),
    ];
    let free = [
        theirs(&["--job-name=keep-1"])?,
        idle(&["--job-name=train-11"])?,
        idle(&["--account=physics"])?,
        idle(&[])?,
    ];
    let salloc = [
        EIGHTH,
        "--job-name=terminal",
        "--kill-command",
        "sleep",
        "60",
    ];
    let terminal = lab.command("salloc").user(user).args(salloc).spawn()?;
    let interactive = job_named(&lab, "terminal")?;
    for job in free {
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    scontrol(
        &lab,
        &[
            "create",
            "reservation",
            "ReservationName=course1",
            "StartTime=now",
            "Duration=60",
            &format!("Users={}", user.name),
            "Nodes=ALL",
            "Flags=IGNORE_JOBS",
        ],
    )?;
    let reserved = idle(&["--reservation=course1"])?;
    let judged = judged.iter().copied();
    for (job, rule) in judged.chain([(interactive, "terminals"), (reserved, "course")]) {
        expect_rule(&lab, node, job, rule)?;
    }
    for job in free {
        let log = lab.reaper_log(node)?;
        assert_eq!(decisions(&lab, node, job)?, Vec::<String>::new(), "{log}");
    }
    end_all(&lab)?;
    drop(terminal.wait()?);
    scontrol(&lab, &["delete", "ReservationName=course1"])?;
    lab.expect_nothing_left()
}

fn expect_rule(lab: &Lab, node: &str, job: JobId, rule: &str) -> Result<(), LabError> {
    let told = wait_until_kept(lab, node, job, "warn")?;
    let log = lab.reaper_log(node)?;
    let rules: Vec<&str> = told.iter().map(|told| &*told.rule).collect();
    let right = rules.iter().all(|found| *found == rule);
    assert!(right, "job {job}: {rules:?}, not {rule}\n{log}");
    Ok(())
}

fn end_all(lab: &Lab) -> Result<(), LabError> {
    let jobs = lab.jobs()?.into_iter().filter(|job| job.is_active());
    let ids: Vec<String> = jobs.map(|job| job.id().to_string()).collect();
    lab.command("scancel").args(ids).stdout().map(drop)
}

#[test]
fn rules_of_qos_and_account() -> Result<(), LabError> {
    let rules = "[reaper.rule.exempt]\nqos = [\"beam*\"]\nmode = \"off\"\n\n\
        [reaper.rule.course]\nqos = [\"normal\"]\naccounts = [\"lab\"]\nnever_used = \"6s\"\nidle = \"6s\"\n";
    let lab = lab(&[("mode", "\"dry-run\""), LONG[0], LONG[1]], rules)
        .accounting()
        .slurm_conf_extra("AccountingStorageEnforce=qos")
        .start()?;
    let (user, other, node) = (&lab.users()[0], &lab.users()[1], &lab.nodes()[0]);
    lab.sacctmgr(&["add", "qos", "beamtime"])?;
    lab.sacctmgr(&["add", "account", "other"])?;
    lab.sacctmgr(&[
        "add",
        "user",
        &other.name,
        "account=other",
        "DefaultAccount=other",
    ])?;
    lab.sacctmgr(&["modify", "user", &user.name, "set", "qos+=beamtime"])?;
    let idle = |user, args: &[&str]| submit(&lab, user, &[&[EIGHTH], args].concat(), "sleep 1000");
    // The exempt job first, so that the other one is not watched for longer.
    let exempt = idle(user, &["--qos=beamtime"])?;
    let elsewhere = idle(other, &["--account=other"])?;
    for job in [exempt, elsewhere] {
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    // It names neither QOS nor account: Slurm's defaults count.
    let judged = idle(user, &[])?;
    expect_rule(&lab, node, judged, "course")?;
    wait_for_decision(&lab, node, judged, "cancel")?;
    for job in [exempt, elsewhere] {
        let log = lab.reaper_log(node)?;
        assert_eq!(decisions(&lab, node, job)?, Vec::<String>::new(), "{log}");
    }
    end_all(&lab)?;
    lab.expect_nothing_left()
}

#[test]
fn the_option_of_the_user_holds_while_a_rule_allows_it() -> Result<(), LabError> {
    let physics = |allowed: &str| {
        let rule =
            format!("[reaper.rule.physics]\naccounts = [\"phys\"]\nidle_option = {allowed}\n");
        let general = [
            ("mode", "\"dry-run\""),
            ("long_factor", "2"),
            ("idle_option", "[\"default\"]"),
        ];
        (general, rule)
    };
    let (general, rule) = physics("[\"default\", \"long\", \"off\"]");
    let lab = lab(&general, &rule).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let idle = |wish: &str| {
        let wish = format!("--gpufrac-idle={wish}");
        submit(&lab, user, &[EIGHTH, "--account=phys", &wish], "sleep 1000")
    };
    let (plain, long, off) = (idle("default")?, idle("long")?, idle("off")?);
    let told = [
        wait_until_kept(&lab, node, plain, "warn")?,
        wait_until_kept(&lab, node, long, "warn")?,
    ];
    let log = lab.reaper_log(node)?;
    // Windows of 6 s and 12 s; each job is warned 3 s before.
    let windows = [&told[0][0], &told[1][0]].map(|told| told.window.as_secs());
    assert_eq!(windows, [6, 12], "{log}");
    assert!(told[0][0].stalled >= Duration::from_secs(3), "{log}");
    assert!(told[1][0].stalled >= Duration::from_secs(9), "{log}");
    assert_eq!(decisions(&lab, node, off)?, Vec::<String>::new(), "{log}");

    // The value is not allowed any more, so it counts as the default.
    let later = idle("long")?;
    lab.wait_for_state(later, &["RUNNING"])?;
    let (general, rule) = physics("[\"default\"]");
    configure(&lab, &quick(&general, &rule))?;
    wait_for_decision(&lab, node, off, "warn")?;
    let told = wait_until_kept(&lab, node, later, "cancel")?;
    let log = lab.reaper_log(node)?;
    assert_eq!(told[0].window, Duration::from_secs(6), "{told:?}\n{log}");
    end_all(&lab)?;
    lab.expect_nothing_left()
}
