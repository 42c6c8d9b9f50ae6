//! `gpufrac status` for ordinary users: by the files of the nodes, and by Slurm alone.

use std::fs;
use std::time::Duration;

use gpufrac_lab::{Lab, LabError, User};
use serde_json::Value;

/// For one wait: the daemon writes each second.
const PATIENCE: Duration = Duration::from_secs(60);

fn status(lab: &Lab, user: &User, args: &[&str]) -> Result<Value, LabError> {
    let all = ["status", "--json"].iter().chain(args);
    let text = lab.command("gpufrac").user(user).args(all).stdout()?;
    Ok(serde_json::from_str(&text).expect("one JSON object"))
}

fn submit(lab: &Lab, user: &User, fraction: &str) -> Result<gpufrac_lab::JobId, LabError> {
    let gres = format!("--gres=gpufrac:{fraction}");
    lab.sbatch(user, &[&gres, "--time=10", "--wrap=sleep 1000"])
}

/// Three halves and a quarter of two GPUs are taken; a quarter could start. Then a further half waits.
fn fill(lab: &Lab) -> Result<Vec<gpufrac_lab::JobId>, LabError> {
    let (user, other) = (&lab.users()[0], &lab.users()[1]);
    let mut jobs = Vec::new();
    for (user, fraction) in [
        (user, "0.5"),
        (other, "0.5"),
        (other, "0.5"),
        (user, "0.25"),
    ] {
        let job = submit(lab, user, fraction)?;
        lab.wait_for_state(job, &["RUNNING"])?;
        jobs.push(job);
    }
    let report = status(lab, user, &["--cluster"])?;
    let start = &report["start"][0];
    assert_eq!(start["now"], "0.25", "{report:#}");
    assert_eq!(start["more"]["fraction"], "0.5", "{report:#}");
    jobs.push(submit(lab, user, "0.5")?);
    Ok(jobs)
}

fn end(lab: &Lab, jobs: &[gpufrac_lab::JobId]) -> Result<(), LabError> {
    for job in jobs {
        lab.command("scancel").args([job.to_string()]).stdout()?;
    }
    for job in jobs {
        lab.wait_for_end(*job)?;
    }
    lab.expect_nothing_left()
}

/// The jobs that have room, by size.
fn free(report: &Value) -> Vec<(String, u64)> {
    let rooms = report["free"].as_array().expect("a list").iter();
    let rooms = rooms.map(|room| {
        let fraction = room["fraction"].as_str().expect("a text");
        (
            fraction.to_owned(),
            room["jobs"].as_u64().expect("a number"),
        )
    });
    rooms.collect()
}

fn expect_room(report: &Value) {
    let expected = [("0.5", 0), ("0.25", 1), ("0.125", 1)];
    let expected = expected.map(|(fraction, jobs)| (fraction.to_owned(), jobs));
    assert_eq!(free(report), expected, "{report:#}");
}

/// The user's jobs, the job that waits, and what could start: the same from each source.
fn expect_own(report: &Value, jobs: &[gpufrac_lab::JobId]) {
    let own = report["own"].as_array().expect("a list");
    let names: Vec<u64> = own.iter().filter_map(|job| job["job"].as_u64()).collect();
    let expected = [jobs[0], jobs[3], jobs[4]].map(|job| u64::from(job.0));
    let mut sorted = names.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, expected, "{report:#}");
    let start = &report["start"][0];
    // Slurm plans new jobs behind the one that waits.
    assert_eq!(start["now"], Value::Null, "{report:#}");
    assert_eq!(start["backfill"], "0.25", "{report:#}");
    let at = report["at"].as_u64().expect("a time");
    let starts = start["more"]["starts"].as_u64().expect("an expected start");
    assert!((at + 60..at + 1_300).contains(&starts), "{report:#}");
}

#[test]
fn users_see_the_cluster_by_the_files_of_its_nodes() -> Result<(), LabError> {
    let lab = Lab::builder()
        .gpus("H100-80", 2)
        .shared()
        .reaper(crate::MEASURES_ONLY)
        .start()?;
    let (user, node) = (lab.users()[0].clone(), lab.nodes()[0].clone());
    let jobs = fill(&lab)?;
    let report = lab.wait("the use of four slices", PATIENCE, || {
        let report = status(&lab, &user, &["--cluster"])?;
        let gpus = report["nodes"][0]["gpus"].as_array().into_iter().flatten();
        let slices = gpus.flat_map(|gpu| gpu["slices"].as_array().into_iter().flatten());
        let used = slices.filter(|slice| slice["usage"]["idle"].is_u64());
        Ok((used.count() == 4).then_some(report))
    })?;
    let first = &report["nodes"][0];
    assert_eq!(
        (&first["source"], first.get("stale")),
        (&"file".into(), None),
        "{report:#}"
    );
    expect_room(&report);
    expect_own(&report, &jobs);
    let own = report["own"].as_array().into_iter().flatten();
    let mut first = own.filter(|job| job["job"] == u64::from(jobs[0].0));
    let first = first.next().expect("the user's first job");
    assert_eq!(first["slices"][0]["node"], node.as_str(), "{report:#}");
    let waiting = report["waiting"].as_array().expect("a list");
    assert_eq!(waiting.len(), 1, "{report:#}");
    assert_eq!(waiting[0]["job"], u64::from(jobs[4].0));
    assert_eq!(waiting[0]["fraction"], "0.5");
    let text = lab
        .command("gpufrac")
        .user(&user)
        .args(["status"])
        .stdout()?;
    assert!(
        text.contains("YOUR JOB") && text.contains("gpufrac status --cluster"),
        "{text}"
    );
    let here = ["status", "--node", &node];
    let text = lab.command("gpufrac").user(&user).args(here).stdout()?;
    assert!(
        text.contains("BUSY") && text.contains(&format!("job {}", jobs[3])),
        "{text}"
    );
    let file = lab
        .folder()
        .shared()
        .join("status")
        .join(format!("{node}.json"));
    assert!(fs::metadata(file).is_ok());
    end(&lab, &jobs)
}

#[test]
fn without_files_users_see_the_cluster_by_slurms_count() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 2).start()?;
    let user = lab.users()[0].clone();
    let jobs = fill(&lab)?;
    let report = status(&lab, &user, &["--cluster"])?;
    let first = &report["nodes"][0];
    assert_eq!(first["source"], "slurm", "{report:#}");
    let gpus = first["gpus"].as_array().expect("a list").iter();
    let counted = gpus.flat_map(|gpu| gpu["counted"].as_array().into_iter().flatten());
    let mut taken: Vec<u64> = counted
        .filter_map(|device| device["taken"].as_u64())
        .collect();
    taken.sort_unstable();
    assert_eq!(taken, [25, 50, 50, 50], "{report:#}");
    expect_room(&report);
    expect_own(&report, &jobs);
    // The host of the test is a login node, where Slurm is asked about jobs that wait.
    let report = status(&lab, &user, &[])?;
    assert_eq!(report.get("waiting"), None, "{report:#}");
    expect_own(&report, &jobs);
    end(&lab, &jobs)
}
