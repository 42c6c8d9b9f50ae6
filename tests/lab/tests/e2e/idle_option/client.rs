//! libslurm as prolog, epilog and reaper use it, with a real slurmctld.

use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};

use super::{QUARTER, lab, lab_of, task, wait_for_task};
use crate::{HOLD, go};

/// The answer of the program `slurm-client` about a job.
fn ask(lab: &Lab, word: &str, job: JobId) -> Result<String, LabError> {
    let asked = lab.command("slurm-client").args([word, &job.to_string()]);
    Ok(asked.stdout()?.trim_end().to_owned())
}

/// Waits until a job has written this file.
fn wait_for_file(lab: &Lab, name: &str) -> Result<(), LabError> {
    let path = lab.folder().work().join(name);
    lab.wait(name, Duration::from_secs(20), || {
        Ok(path.exists().then_some(()))
    })
}

fn is_there(lab: &Lab, name: &str) -> bool {
    lab.folder().work().join(name).exists()
}

#[test]
fn a_job_is_described_in_full() -> Result<(), LabError> {
    let lab = lab()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let args = [
        QUARTER,
        "--job-name=deep thought",
        "--account=phys",
        "--no-requeue",
        "--mail-user=ada@example.org",
        "--wrap",
        &format!("touch begun; {HOLD}"),
    ];
    let job = lab.sbatch(user, &args)?;
    lab.wait_for_state(job, &["RUNNING"])?;
    // Before that slurmstepd writes lines to its own log.
    wait_for_file(&lab, "begun")?;
    let told = ask(&lab, "show", job)?;
    let qos = if lab.slurm().needs_accounting() { "normal" } else { "" };
    for part in [
        "name=\"deep thought\"",
        &format!("qos={qos:?}"),
        "account=\"phys\"",
        "reservation=\"\"",
        &format!("nodes={node:?} node_count=1"),
        "array=None het=0",
        "started=true suspended=false running=true",
        "can_requeue=false",
        "mail_user=\"ada@example.org\"",
        "admin_comment=\"\"",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(ask(&lab, "comment", job)?, "done");
    assert_eq!(lab.job(job)?.field("AdminComment"), "from-the-test");
    let id = job.to_string();
    lab.command("scontrol").args(["suspend", &id]).stdout()?;
    let told = ask(&lab, "show", job)?;
    assert!(told.contains("suspended=true running=false"), "{told}");
    lab.command("scontrol").args(["resume", &id]).stdout()?;
    let told = ask(&lab, "show", job)?;
    assert!(told.contains("suspended=true running=true"), "{told}");
    assert!(told.contains("admin_comment=\"from-the-test\""), "{told}");
    assert_eq!(ask(&lab, "notify", job)?, "done");
    go(&lab)?;
    lab.wait_for_end(job)?;
    assert!(lab.output(job)?.contains("a line from the test"));
    let late = ask(&lab, "comment", job)?;
    assert!(late.contains("already finished"), "{late}");
    let gone = ask(&lab, "show", JobId(4_000_000))?;
    assert!(gone.contains("slurm_load_job"), "{gone}");
    lab.expect_nothing_left()
}

#[test]
fn an_action_on_an_array_task_affects_this_task_alone() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    lab.write_work(
        "tasks.sh",
        "#!/bin/bash\ntrap 'touch told.$SLURM_ARRAY_TASK_ID' USR1\n\
         touch ready.$SLURM_ARRAY_TASK_ID\n\
         while [ ! -e go ]; do sleep 0.05; done\n",
    )?;
    // The third task is pending: it has the array's id, and slurmctld has a record of pending tasks.
    let array = lab.sbatch(user, &[QUARTER, "--array=3-5%2", "tasks.sh"])?;
    for number in [3, 4] {
        wait_for_task(&lab, array, number, |job| job.state() == "RUNNING")?;
        wait_for_file(&lab, &format!("ready.{number}"))?;
    }
    let (third, fourth) = (task(&lab, array, 3)?.id(), task(&lab, array, 4)?.id());
    let told = ask(&lab, "show", third)?;
    assert!(
        told.contains(&format!("array=Some(({array}, 3))")),
        "{told}"
    );
    // The user named no recipient.
    assert!(
        told.contains(&format!("mail_user={:?}", user.name)),
        "{told}"
    );
    assert_eq!(ask(&lab, "tell-script", third)?, "done");
    wait_for_file(&lab, "told.3")?;
    assert_eq!(ask(&lab, "comment", third)?, "done");
    assert_eq!(ask(&lab, "cancel", fourth)?, "done");
    wait_for_task(&lab, array, 4, |job| job.state() == "CANCELLED")?;

    // Now the last task, with the array's id.
    wait_for_task(&lab, array, 5, |job| job.state() == "RUNNING")?;
    wait_for_file(&lab, "ready.5")?;
    assert_eq!(task(&lab, array, 5)?.id(), array);
    assert!(!is_there(&lab, "told.4") && !is_there(&lab, "told.5"));
    assert_eq!(task(&lab, array, 5)?.field("AdminComment"), "");
    assert_eq!(task(&lab, array, 3)?.field("AdminComment"), "from-the-test");
    std::fs::remove_file(lab.folder().work().join("told.3")).expect("it is there");
    assert_eq!(ask(&lab, "tell-script", array)?, "done");
    wait_for_file(&lab, "told.5")?;
    assert!(!is_there(&lab, "told.3"));
    assert_eq!(ask(&lab, "requeue", array)?, "done");
    wait_for_task(&lab, array, 5, |job| job.state() == "PENDING")?;
    let kept = task(&lab, array, 3)?;
    assert_eq!((kept.state(), kept.field("Restarts")), ("RUNNING", "0"));
    go(&lab)?;
    wait_for_task(&lab, array, 3, |job| job.state() == "COMPLETED")?;
    lab.command("scancel").args([array.to_string()]).stdout()?;
    lab.expect_nothing_left()
}

#[test]
fn signals_go_to_the_script_or_to_the_steps() -> Result<(), LabError> {
    let lab = lab()?;
    let user = &lab.users()[0];
    lab.write_work(
        "step.sh",
        "#!/bin/bash\ntrap 'touch step.told' USR1\ntouch step.ready\n\
         while [ ! -e go ]; do sleep 0.05; done\n",
    )?;
    lab.write_work(
        "script.sh",
        "#!/bin/bash\ntrap 'touch script.told' USR1\nsrun ./step.sh &\n\
         while [ ! -e go ]; do sleep 0.05; done\nwait\n",
    )?;
    let job = lab.sbatch(user, &[QUARTER, "script.sh"])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    wait_for_file(&lab, "step.ready")?;
    assert_eq!(ask(&lab, "tell-steps", job)?, "done");
    wait_for_file(&lab, "step.told")?;
    assert!(!is_there(&lab, "script.told"));
    std::fs::remove_file(lab.folder().work().join("step.told")).expect("it is there");
    assert_eq!(ask(&lab, "tell-script", job)?, "done");
    wait_for_file(&lab, "script.told")?;
    assert!(!is_there(&lab, "step.told"));
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");

    // A job without a script has its own error.
    let salloc = lab
        .command("salloc")
        .user(user)
        .args([QUARTER, "sh", "-c"])
        .args(["while [ ! -e salloc.go ]; do sleep 0.05; done"])
        .spawn()?;
    let interactive = super::only_lease(&lab)?.job_id;
    let refused = ask(&lab, "tell-script", interactive)?;
    assert!(refused.contains("slurm_kill_job2"), "{refused}");
    lab.write_work("salloc.go", "")?;
    salloc.wait()?;
    lab.expect_nothing_left()
}

/// A running heterogeneous job of two quarters: its first component and the other one. Backfill starts it, with a
/// node for each.
fn het_job(lab: &Lab) -> Result<[JobId; 2], LabError> {
    let args = ["-t5", QUARTER, ":", "-t5", QUARTER, "het.sh"];
    lab.write_work("het.sh", &format!("#!/bin/sh\n{HOLD}\n"))?;
    let first = lab.sbatch(&lab.users()[0], &args)?;
    let second = JobId(first.0 + 1);
    for job in [first, second] {
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    Ok([first, second])
}

#[test]
fn a_component_of_a_het_job_can_be_cancelled_alone_and_goes_back_with_all() -> Result<(), LabError>
{
    let lab = lab_of(2)?;
    let component = |first: JobId, offset: &str| {
        let mut all = lab.show_job(first)?.into_iter();
        let found = all.find(|job| job.field("HetJobOffset") == offset);
        Ok::<_, LabError>(found.expect("a component"))
    };
    let [first, second] = het_job(&lab)?;
    assert!(ask(&lab, "show", second)?.contains(&format!("het={first}")));
    assert_eq!(ask(&lab, "comment", first)?, "done");
    assert_eq!(
        component(first, "0")?.field("AdminComment"),
        "from-the-test"
    );
    assert_eq!(component(first, "1")?.field("AdminComment"), "");
    assert_eq!(ask(&lab, "cancel", second)?, "done");
    lab.wait("it is cancelled", Duration::from_secs(20), || {
        let state = component(first, "1")?.state().to_owned();
        Ok((state == "CANCELLED").then_some(()))
    })?;
    assert_eq!(component(first, "0")?.state(), "RUNNING");
    lab.command("scancel").args([first.to_string()]).stdout()?;
    lab.wait_until_empty(Duration::from_secs(30))?;

    let [first, second] = het_job(&lab)?;
    let answer = ask(&lab, "requeue", second)?;
    assert_eq!(answer, "done");
    for offset in ["0", "1"] {
        lab.wait("it is back", Duration::from_secs(30), || {
            let seen = component(first, offset)?;
            Ok((seen.state() == "PENDING").then_some(()))
        })?;
    }
    lab.command("scancel").args([first.to_string()]).stdout()?;
    lab.expect_nothing_left()
}
