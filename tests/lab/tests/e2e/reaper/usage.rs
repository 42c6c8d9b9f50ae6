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
