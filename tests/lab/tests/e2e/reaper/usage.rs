//! How slices are used, from the samples of the daemon to `gpufrac report`.

use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};

use super::{lab, submit, wait_until_cancelled};

const QUARTER: &str = "--gres=gpufrac:0.25";

/// The record of a job in the file of its node.
fn record(lab: &Lab, node: &str, job: JobId) -> Result<serde_json::Value, LabError> {
    let path = lab.folder().root().join("var").join(node);
    let path = path.join("usage.jsonl");
    lab.wait("the usage record", Duration::from_secs(30), || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        Ok(lines.find(|line: &serde_json::Value| {
            line["job"] == job.to_string().parse::<u64>().unwrap_or(0)
        }))
    })
}

/// `gpufrac report` as a user.
fn report(lab: &Lab, args: &[&str]) -> Result<serde_json::Value, LabError> {
    let all = [&["report", "--since", "1h", "--format", "json"], args].concat();
    let text = lab.command("gpufrac").args(&all).stdout()?;
    Ok(serde_json::from_str(&text).expect("a report is JSON"))
}

/// Promise (admins): a report has the sums of the records and of sacct, and prices of time and idle time.
#[test]
fn records_say_how_slices_were_used_and_a_report_adds_them_up() -> Result<(), LabError> {
    let lab = lab(
        &[],
        "[report]\ncurrency = \"CHF\"\ngpu_hour = 3600\nidle_hour = 1800\n",
    )
    .accounting()
    .shared()
    .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let busy = submit(&lab, user, &[QUARTER], "gpu steps:1@1000 15 3G")?;
    let stopped = submit(&lab, user, &[QUARTER], "gpu steps:1@5,0@1000 30")?;
    let unused = submit(
        &lab,
        &lab.users()[1],
        &["--gres=gpufrac:0.5", "--time=10"],
        "sleep 1000",
    )?;
    lab.wait_for_state(stopped, &["RUNNING"])?;
    std::thread::sleep(Duration::from_secs(7));
    let control = |word: &str| {
        let args = [word, &stopped.to_string()];
        lab.command("scontrol").args(args).stdout().map(drop)
    };
    control("suspend")?;
    std::thread::sleep(Duration::from_secs(6));
    control("resume")?;
    wait_until_cancelled(&lab, node, unused)?;
    lab.command("scancel")
        .args([stopped.to_string()])
        .stdout()?;
    for job in [busy, stopped] {
        lab.wait_for_end(job)?;
    }
    let seconds =
        |record: &serde_json::Value, part: &str| record["used"][part].as_u64().expect("a number");
    for job in [busy, stopped, unused] {
        let record = record(&lab, node, job)?;
        let parts = ["busy", "idle", "unknown", "suspended"].map(|part| seconds(&record, part));
        assert_eq!(
            parts.iter().sum::<u64>(),
            record["seconds"].as_u64().expect("a number"),
            "{record}"
        );
        assert_eq!(record["used"]["source"], "gpm", "{record}");
        assert!(
            record["used"]["gpu_energy_j"].as_u64() > Some(0),
            "{record}"
        );
    }
    let busy_record = record(&lab, node, busy)?;
    assert!(seconds(&busy_record, "busy") >= 10, "{busy_record}");
    assert_eq!(
        busy_record["used"]["peak_memory_mib"], 3072,
        "{busy_record}"
    );
    let stopped_record = record(&lab, node, stopped)?;
    assert!(
        (3..=9).contains(&seconds(&stopped_record, "suspended")),
        "{stopped_record}"
    );
    let unused_record = record(&lab, node, unused)?;
    assert_eq!(unused_record["ended"], "reclaimed", "{unused_record}");
    assert!(
        unused_record["returned"].as_u64() > Some(500),
        "{unused_record}"
    );
    assert_eq!(seconds(&unused_record, "busy"), 0, "{unused_record}");
    assert!(seconds(&unused_record, "idle") >= 6, "{unused_record}");

    // The daemon copies them within a minute.
    let shared = lab.folder().shared().join("usage");
    lab.wait(
        "the copies of three records",
        Duration::from_secs(90),
        || {
            let days = std::fs::read_dir(&shared).into_iter().flatten().flatten();
            let copies = days.map(|day| {
                std::fs::read_to_string(day.path().join(format!("{node}.jsonl")))
                    .unwrap_or_default()
            });
            let lines: usize = copies
                .map(|text| {
                    text.lines()
                        .filter(|line| line.contains("\"job\":"))
                        .count()
                })
                .sum();
            Ok((lines == 3).then_some(()))
        },
    )?;
    let all = report(&lab, &["--by", "user,account"])?;
    assert_eq!(all["total"]["slices"], 3, "{all}");
    assert_eq!(all["runs_without_records"], 0, "{all}");
    assert_eq!(all["total"]["reclaims"], 1, "{all}");
    let keys: Vec<&serde_json::Value> = all["rows"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| &row["key"][1])
        .collect();
    assert_eq!(keys, ["lab", "lab"], "{all}");
    // What accounting says of the same jobs.
    let args = ["-X", "-a", "-n", "-P", "--format=ElapsedRaw,AllocTRES"];
    let rows = lab.command("sacct").args(args).stdout()?;
    let unit_seconds = rows.lines().map(|row| {
        let (elapsed, tres) = row.split_once('|').unwrap_or_default();
        let units = tres
            .split(',')
            .find_map(|item| item.strip_prefix("gres/gpufrac="));
        elapsed.parse::<u64>().unwrap_or(0)
            * units.and_then(|units| units.parse().ok()).unwrap_or(0)
    });
    let hours = unit_seconds.sum::<u64>() as f64 / 360_000.0;
    let allocated = all["total"]["allocated"].as_f64().expect("a number");
    assert!(
        (allocated / hours - 1.0).abs() < 0.0001,
        "{allocated} {hours}: {rows}"
    );
    // A franc for a second of a GPU, and half of it for an idle one.
    let cost: f64 = all["total_cost"]
        .as_str()
        .expect("a price")
        .parse()
        .expect("a number");
    let idle = all["total"]["idle"].as_f64().expect("a number");
    assert!(
        (cost - 3600.0 * allocated - 1800.0 * idle).abs() < 0.011,
        "{all}"
    );
    let own = lab
        .command("gpufrac")
        .user(user)
        .args(["report", "--me", "--since", "1h", "--format", "json"])
        .stdout()?;
    let own: serde_json::Value = serde_json::from_str(&own).expect("a report is JSON");
    assert_eq!(own["own"].as_array().expect("jobs").len(), 2, "{own}");
    lab.expect_nothing_left()
}

/// Partitions whose jobs are requeued or cancelled for those of another one, on one GPU.
const PREEMPTION: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["low", "cheap", "high"]
nodes = "@NODES@"
"#;

/// What the records say of the end of a job's slice, when they say anything.
fn ends(lab: &Lab, job: JobId) -> Vec<(u64, String)> {
    let path = lab.folder().root().join("var").join(&lab.nodes()[0]);
    let text = std::fs::read_to_string(path.join("usage.jsonl")).unwrap_or_default();
    let lines = text
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let job: u64 = job.to_string().parse().unwrap_or(0);
    let own = lines.filter(|line: &serde_json::Value| line["job"] == job);
    let said = own.filter_map(|line| {
        let why = line["ended"].as_str()?.to_owned();
        Some((line["restart_count"].as_u64()?, why))
    });
    said.collect()
}

/// Waits until the daemon has saved that it watches the slices of these jobs; it learns no end of a slice that it never
/// saw.
fn wait_until_watched(lab: &Lab, node: &str, jobs: &[JobId]) -> Result<(), LabError> {
    let path = lab.folder().run(node).join("reaper/state.json");
    lab.wait("the daemon to watch", Duration::from_secs(60), || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let state: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let watches = state["watches"].as_array().map_or(&[][..], Vec::as_slice);
        let watched = watches.iter().map(|watch| &watch["key"]["job_id"]);
        let watched: Vec<String> = watched.map(ToString::to_string).collect();
        let is_watched = |job: &JobId| watched.contains(&job.to_string());
        Ok(jobs.iter().all(is_watched).then_some(()))
    })
}

/// Promise (admins): records say which slices ended by preemption or by the failure of a node, also without accounting.
/// With `slurm_says_why_a_run_ended`, `what_slurm_said_in_the_epilog_holds_after_it_forgot`,
/// `slurm_is_asked_when_a_slice_is_released`.
#[test]
fn records_say_why_slices_ended_without_accounting() -> Result<(), LabError> {
    let windows = [("never_used", "\"1h\""), ("idle", "\"1h\"")];
    let lab = lab(&windows, "")
        .gpus("H100-80", 1)
        // Slurm knows only while the epilog runs that it preempted a job which it requeued. With a slow driver the
        // epilog ends within one round of the daemon.
        .latency(300)
        .pools(PREEMPTION)
        .slurm_conf_extra("PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE")
        .only_partitions(&[
            ("low", "PriorityTier=2"),
            ("cheap", "PriorityTier=1 PreemptMode=CANCEL"),
            ("high", "PriorityTier=10 PreemptMode=OFF"),
        ])
        .start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let half = |partition: &str, script: &str| {
        submit(
            &lab,
            user,
            &["-p", partition, "--no-requeue", "--gres=gpufrac:0.5"],
            script,
        )
    };
    let done = half("high", crate::HOLD)?;
    wait_until_watched(&lab, node, &[done])?;
    crate::go(&lab)?;
    assert_eq!(lab.wait_for_end(done)?.state(), "COMPLETED");
    let cheap = half("cheap", "sleep 1000")?;
    let low = submit(
        &lab,
        user,
        &["-p", "low", "--requeue", "--gres=gpufrac:0.5"],
        "sleep 1000",
    )?;
    for job in [cheap, low] {
        lab.wait_for_state(job, &["RUNNING"])?;
        lab.slice(node, job)?;
    }
    wait_until_watched(&lab, node, &[cheap, low])?;
    let high = [half("high", "sleep 1000")?, half("high", "sleep 1000")?];
    for job in high {
        lab.wait_for_state(job, &["RUNNING"])?;
        lab.slice(node, job)?;
    }
    assert_eq!(lab.job(cheap)?.state(), "PREEMPTED");
    assert_eq!(lab.job(low)?.field("Restarts"), "1");
    let limit = Duration::from_secs(60);
    for job in [cheap, low] {
        lab.wait("the end in the records", limit, || {
            let said = ends(&lab, job);
            Ok((said == [(0, "preempted".to_owned())]).then_some(()))
        })?;
    }
    lab.command("scancel").args([low.to_string()]).stdout()?;
    // An admin sets the node down; the job is lost with it.
    let control = |state: &str| {
        let name = format!("nodename={node}");
        let args = ["update", &name, state, "reason=test"];
        lab.command("scontrol").args(args).run()
    };
    wait_until_watched(&lab, node, &high)?;
    control("state=down")?.success()?;
    assert_eq!(lab.wait_for_end(high[0])?.state(), "NODE_FAIL");
    for job in high {
        lab.wait("the end in the records", limit, || {
            let said = ends(&lab, job);
            Ok((said == [(0, "node-failure".to_owned())]).then_some(()))
        })?;
    }
    // A node that registers again may be up already.
    control("state=resume")?;
    // A job that ended by itself needs no further line.
    assert_eq!(ends(&lab, done), []);
    record(&lab, node, done)?;
    let folder = lab.folder().root().join("var").join(node);
    let place = folder.display().to_string();
    // The line about an end may come before the epilog's record.
    let report = lab.wait("the records of the slices that were lost", limit, || {
        let report = report(&lab, &["--no-sacct", "--records", &place])?;
        Ok((report["ends"]["node-failure"] == 2).then_some(report))
    })?;
    assert_eq!(report["ends"]["preempted"], 2, "{report:#}");
    assert!(report["ends"]["done"].as_u64() >= Some(1), "{report:#}");
    lab.expect_nothing_left()
}

/// Promise (users): after a failed job whose slice was full, `gpufrac why`, the usage records, the job's `AdminComment`
/// and `gpufrac report --me` say so, with the next larger size and whether it was free.
/// With `a_slice_is_full_from_97_percent_on_until_a_minute_later`, `a_run_failed_only_by_its_own_record`.
#[test]
fn a_job_that_failed_with_a_full_slice_is_told_the_next_size() -> Result<(), LabError> {
    let windows = [("never_used", "\"1h\""), ("idle", "\"1h\"")];
    let lab = lab(&windows, "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let ended = |script: &str, state: &str| {
        let job = submit(&lab, user, &["--no-requeue", QUARTER], script)?;
        assert_eq!(lab.wait_for_end(job)?.state(), state);
        Ok::<_, LabError>(job)
    };
    let failed = ended("gpu busy 5 19800M; exit 1", "FAILED")?;
    let fine = ended("gpu busy 5 19800M", "COMPLETED")?;
    let spare = ended("gpu busy 5 1G; exit 1", "FAILED")?;
    let why = |job: JobId| {
        let args = ["why", &job.to_string(), "--node", node];
        lab.command("gpufrac").user(user).args(args).run()
    };
    let told = lab.wait("the words of why", Duration::from_secs(60), || {
        let told = why(failed)?;
        Ok(told.status.success().then_some(told.stdout))
    })?;
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    let expected =
        "used 19.3 of 19.6 GiB of its slice; the next larger size is gpufrac:0.5 (one was free on";
    assert!(told.contains(expected), "{told}");
    let shown = |job: JobId| {
        let command = lab.command("scontrol");
        command.args(["show", "job", &job.to_string()]).stdout()
    };
    let comment = "AdminComment=gpufrac: a task failed with a full slice: used 19.3 of 19.6 GiB";
    assert!(shown(failed)?.contains(comment), "{}", shown(failed)?);
    for job in [fine, spare] {
        assert!(!shown(job)?.contains("AdminComment"), "{}", shown(job)?);
        // Until the reaper has seen the end, there is the record of a running job.
        lab.wait("why has nothing to tell", Duration::from_secs(60), || {
            Ok((!why(job)?.status.success()).then_some(()))
        })?;
        assert_eq!(ends(&lab, job), []);
    }
    assert_eq!(ends(&lab, failed), [(0, "done".to_owned())]);
    for job in [failed, fine, spare] {
        record(&lab, node, job)?;
    }
    let place = lab
        .folder()
        .root()
        .join("var")
        .join(node)
        .join("usage.jsonl");
    let place = place.display().to_string();
    let args = ["report", "--me", "--no-sacct", "--records", &place];
    let own = lab.command("gpufrac").user(user).args(args).stdout()?;
    let row = format!("{failed} ");
    let rows = own.lines().skip_while(|line| !line.contains("full slice"));
    let rows: Vec<&str> = rows.filter(|line| line.contains("gpufrac:0.5")).collect();
    assert_eq!(rows.len(), 1, "{own}");
    assert!(rows[0].trim_start().starts_with(&row), "{own}");
    lab.expect_nothing_left()
}
