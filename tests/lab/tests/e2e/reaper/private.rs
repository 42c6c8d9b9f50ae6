//! Slurm's `PrivateData`: what it hides, no file, command or metric of gpufrac shows to others; each user still sees
//! the own jobs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError, User};
use nix::sys::signal::Signal;

use super::daemon::metrics;
use super::{failed, lab, submit, wait_for_decision};

const PATIENCE: Duration = Duration::from_secs(60);

/// Warnings without an end, so that records are kept.
const DRY_RUN: [(&str, &str); 2] = [("mode", "\"dry-run\""), ("metrics", "\"127.0.0.1:0\"")];

/// The files below gpufrac's folders in which `user` can read `word`, and those whose name has it.
fn found(lab: &Lab, user: &User, word: &str) -> Result<String, LabError> {
    let root = lab.folder().root().display().to_string();
    let script = "cd \"$1\" && { grep -rlsw -e \"$2\" run var shared pages; find run var shared pages -name \"$2*\" 2>/dev/null; }; true";
    lab.command("sh")
        .user(user)
        .args(["-c", script, "sh", &root, word])
        .stdout()
}

/// stdout and stderr of a command of a user.
fn said(lab: &Lab, user: &User, args: &[&str]) -> Result<String, LabError> {
    let command = lab.command("gpufrac").user(user).args(args);
    let outcome = command.env("SLURMD_NODENAME", &lab.nodes()[0]).run()?;
    Ok(format!("{}{}", outcome.stdout, outcome.stderr))
}

/// The words by which a job could be told from others.
fn traces(user: &User, job: JobId) -> [String; 2] {
    [user.name.clone(), job.to_string()]
}

/// Root exports the pages, and other users read them.
fn export(lab: &Lab) -> Result<(), LabError> {
    let folder = lab.folder().root().join("pages");
    let told = said(
        lab,
        &User::root(),
        &["web", "--export", &folder.display().to_string()],
    )?;
    assert!(told.contains(" files of 1 nodes "), "{told}");
    Ok(())
}

fn expect_hidden(lab: &Lab, owner: &User, other: &User, job: JobId) -> Result<(), LabError> {
    let number = job.to_string();
    export(lab)?;
    for word in [owner.name.clone(), format!("\"job\":{number}")] {
        let found = found(lab, other, &word)?;
        assert_eq!(found, "", "{word} is seen by {}", other.name);
    }
    for name in [&number, &format!("{number}.json"), &format!("{number}-")] {
        let found = found(lab, other, name)?;
        // A number alone also stands in other numbers' files.
        let named = found.lines().filter(|path| {
            let file = path.rsplit('/').next().unwrap_or_default();
            file.starts_with(&number)
        });
        assert_eq!(named.count(), 0, "{found}");
    }
    for args in [
        &["status"][..],
        &["status", "--json"],
        &["status", "--cluster"],
        &["status", "--cluster", "--json"],
        &["top", "--once"],
        &["leases"],
        &["why", &number],
        &["report", "--since", "1h", "--no-sacct"],
        &["doctor", &number],
    ] {
        let said = said(lab, other, args)?;
        assert!(!said.contains(&owner.name), "{args:?}: {said}");
    }
    Ok(())
}

/// Writes `PrivateData` into slurm.conf, and makes Slurm read it.
fn set(lab: &Lab, values: &str) -> Result<(), LabError> {
    let path = lab.folder().slurm_conf();
    let text = fs::read_to_string(&path).map_err(failed(&path))?;
    let lines = text
        .lines()
        .filter(|line| !line.starts_with("PrivateData="));
    let mut text = lines.collect::<Vec<_>>().join("\n") + "\n";
    if !values.is_empty() {
        text.push_str(&format!("PrivateData={values}\n"));
    }
    fs::write(&path, text).map_err(failed(&path))?;
    lab.reconfigure()
}

/// Promise (reaper): where Slurm's `PrivateData` hides jobs, usage or nodes, no file, command or metric shows those of
/// others, old ones too; a user still sees the own.
/// With `without_a_slurm_conf_at_boot_leases_stay_closed_until_the_daemon_reads_it`,
/// `folders_are_closed_and_opened_with_all_that_is_in_them`, `a_user_enters_the_own_folder_alone`,
/// `each_user_gets_the_own_lines_once`, `ends_of_slices_reach_their_users_from_one_pass_over_the_lines_near_them`,
/// `files_of_users_are_written_when_a_slice_changes_or_after_a_pause`, `where_jobs_are_private_no_label_tells_of_one`.
#[test]
fn jobs_of_others_are_hidden_as_private_data_says_and_own_ones_shown() -> Result<(), LabError> {
    let lab = lab(&DRY_RUN, "")
        .shared()
        .slurm_conf_extra("PrivateData=jobs")
        .start()?;
    let node = lab.nodes()[0].clone();
    let (owner, other) = (&lab.users()[0], &lab.users()[1]);
    let job = submit(&lab, owner, &["--gres=gpufrac:0.25"], "sleep 1000")?;
    let mine = submit(&lab, other, &["--gres=gpufrac:0.25"], "sleep 1000")?;
    for job in [job, mine] {
        lab.wait_for_state(job, &["RUNNING"])?;
        wait_for_decision(&lab, &node, job, "warn")?;
    }
    let number = job.to_string();
    lab.wait("the owner's own files", PATIENCE, || {
        let told = said(&lab, owner, &["why", &number])?;
        let leases = said(&lab, owner, &["leases"])?;
        let all = told.contains("warned") && leases.contains(&owner.name);
        Ok(all.then_some(()))
    })?;
    expect_hidden(&lab, owner, other, job)?;
    let told = said(&lab, owner, &["status"])?;
    assert!(told.contains(&number), "{told}");
    assert!(!told.contains(&other.name), "{told}");
    // Nobody but root learns of the other from metrics.
    let text = metrics(&lab, &node)?;
    for user in [owner, other] {
        assert!(!text.contains(&user.name), "{text}");
    }
    assert!(text.contains("jobid=\"hidden\""), "{text}");
    let all = said(&lab, &User::root(), &["leases"])?;
    for (user, job) in [(owner, job), (other, mine)] {
        for word in traces(user, job) {
            assert!(all.contains(&word), "{all}");
        }
    }

    lab.command("scancel").args([&number]).stdout()?;
    lab.wait_for_end(job)?;
    lab.wait("the owner's own records", PATIENCE, || {
        let told = said(&lab, owner, &["why", &number])?;
        let own = said(
            &lab,
            owner,
            &["report", "--me", "--since", "1h", "--no-sacct"],
        )?;
        let all = told.contains("until") && own.contains(&number);
        Ok(all.then_some(()))
    })?;
    expect_hidden(&lab, owner, other, job)?;

    set(&lab, "")?;
    lab.wait("what was private is shown", PATIENCE, || {
        let told = said(&lab, other, &["why", &number])?;
        let leases = said(&lab, owner, &["leases"])?;
        let text = metrics(&lab, &node)?;
        let all = [&leases, &text]
            .iter()
            .all(|text| text.contains(&other.name));
        Ok((all && told.contains(&owner.name)).then_some(()))
    })?;
    export(&lab)?;
    assert!(!found(&lab, other, &owner.name)?.is_empty());
    set(&lab, "jobs,usage")?;
    lab.wait("what was shown is private again", PATIENCE, || {
        let told = said(&lab, other, &["why", &number])?;
        // The copy in the shared folder is written last.
        let shown = said(&lab, other, &["status", "--cluster", "--json"])?;
        let all = [told, shown];
        Ok((!all.iter().any(|text| text.contains(&owner.name))).then_some(()))
    })?;
    expect_hidden(&lab, owner, other, job)?;
    lab.command("scancel").args([mine.to_string()]).stdout()?;
    lab.wait_for_end(mine)?;
    lab.expect_nothing_left()
}

#[test]
fn without_a_slurm_conf_at_boot_leases_stay_closed_until_the_daemon_reads_it()
-> Result<(), LabError> {
    let mut lab = lab(&DRY_RUN, "").start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    lab.stop_reaper(&node, Signal::SIGTERM)?;
    let leases = lab.folder().run(&node).join("leases");
    fs::remove_dir(&leases).map_err(failed(&leases))?;
    // A configless node before slurmd has started.
    let setup = lab.command("gpufrac").args(["node-setup", "--node", &node]);
    let setup = setup.env("SLURM_CONF", "/nowhere/slurm.conf").run()?;
    let hint = "hint: learning `PrivateData` failed: this host has no slurm.conf";
    assert!(setup.stderr.contains(hint), "{setup:?}");
    let mode = || fs::metadata(&leases).map(|meta| meta.mode() & 0o777).ok();
    assert_eq!(mode(), Some(0o700));
    let told = said(&lab, &user, &["leases"])?;
    assert!(
        told.contains("only root may see the jobs of others here"),
        "{told}"
    );
    lab.start_reaper(&node)?;
    lab.wait("the folder for all users", PATIENCE, || {
        Ok((mode() == Some(0o755)).then_some(()))
    })?;
    let told = said(&lab, &user, &["leases"])?;
    assert!(!told.contains("hides"), "{told}");
    lab.expect_nothing_left()
}
