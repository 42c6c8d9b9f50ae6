//! `gpufrac why` as a user runs it.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;

struct World {
    folder: tempfile::TempDir,
}

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

/// A record in the format of gpufrac-reaperd.
const RECORD: &str = r#"{"version":1,"job":4242,"restart_count":0,"user":"alice","uid":1000,"account":"physics",
"partition":"gpu","node":"NODE","pool":"h100","fraction":"0.25","profile":"2g.20gb","device":"MIG-1",
"memory_mib":20096,"wish":"default","created_unix":CREATED,"began_unix":CREATED,
"series":{"step_ms":60000,"points":[
{"samples":6,"unknown":0,"busy":6,"peak":0.5,"memory_mib":900,"source":"gpm"},
{"samples":6,"unknown":0,"busy":0,"peak":0.0,"memory_mib":900,"source":"gpm"}]},
"events":[{"at_ms":120000,"decision":"cancel","dry_run":false,"stall":"idle","stalled_ms":60000,"window_ms":60000,
"rule":"short","source":"gpm","detail":""}],"ended_ms":121000}"#;

impl World {
    fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().display();
        let text = format!(
            "version = 1\n[paths]\nrun = \"{root}/%n/run\"\nstate = \"{root}/%n/state\"\nshared = \"{root}/shared\"\n\
             [pool.h100]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\n\
             nodes = \"gn[01-04]\"\n"
        );
        fs::write(folder.path().join("gpufrac.toml"), text).unwrap();
        World { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, file: &str, node: &str, created: u32) {
        let text = RECORD.replace("NODE", node);
        self.write(file, &text.replace("CREATED", &created.to_string()));
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn why(&self, args: &[&str]) -> Said {
        let output = Command::new(env!("CARGO_BIN_EXE_gpufrac"))
            .arg("why")
            .args(args)
            .env("GPUFRAC_CONFIG", self.path("gpufrac.toml"))
            .env("SLURMD_NODENAME", "gn02")
            .output()
            .unwrap();
        let text = |bytes: &[u8]| {
            let folder = self.folder.path().to_string_lossy().into_owned();
            String::from_utf8_lossy(bytes).replace(&folder, "DIR")
        };
        Said {
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

/// Promise (reaper): `gpufrac why` finds all records of a job, prints them, and draws the chart.
/// With `the_chart_goes_to_a_file_or_to_stdout`, `an_unreadable_record_is_named_and_the_others_printed`,
/// `everything_is_told`, `the_picture_names_everything`.
#[test]
fn a_job_is_told_from_wherever_its_records_are() {
    let world = World::new();
    world.put("gn02/run/reaper/jobs/4242.json", "gn02", 1_795_000_300);
    world.put(
        "gn02/state/reaper/4242-1795000000.json",
        "gn02",
        1_795_000_000,
    );
    world.put(
        "shared/records/4242-gn02-1795000000.json",
        "gn02",
        1_795_000_000,
    );
    world.put(
        "shared/records/4242-gn03-1795000001.json",
        "gn03",
        1_795_000_001,
    );
    let said = world.why(&["4242"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    let heads: Vec<&str> = said
        .out
        .lines()
        .filter(|line| line.starts_with("job "))
        .collect();
    assert_eq!(
        heads,
        [
            "job 4242 on node gn02",
            "job 4242 on node gn03",
            "job 4242 on node gn02"
        ]
    );
    let wanted = "2026-11-18 11:08:40 UTC: cancelled by [reaper.rule.short]:";
    assert!(said.out.contains(wanted), "{}", said.out);
    assert!(
        said.out
            .contains("12 samples by gpm: the slice was busy in 50.0 % of them"),
        "{}",
        said.out
    );
    // Another node has other records.
    let other = world.why(&["4242", "--node", "gn01"]);
    assert_eq!(
        other
            .out
            .lines()
            .filter(|line| line.starts_with("job "))
            .count(),
        2
    );
}

#[test]
fn the_chart_goes_to_a_file_or_to_stdout() {
    let world = World::new();
    world.put(
        "gn02/state/reaper/4242-1795000000.json",
        "gn02",
        1_795_000_000,
    );
    let file = world.path("chart.svg");
    let said = world.why(&["4242", "--svg", file.to_str().unwrap()]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    assert!(said.out.starts_with("job 4242 on node gn02\n"));
    let chart = fs::read_to_string(file).unwrap();
    assert!(chart.starts_with("<svg ") && chart.trim_end().ends_with("</svg>"));
    world.put(
        "shared/records/4242-gn03-1795000001.json",
        "gn03",
        1_795_000_001,
    );
    let said = world.why(&["4242", "--svg", "-"]);
    assert_eq!(said.code, Some(0));
    assert!(
        said.out.starts_with("<svg ") && said.out.contains("on gn03"),
        "{}",
        said.out
    );
    assert_eq!(
        said.err,
        "gpufrac: the chart shows the last record, which is of node \"gn03\"\n"
    );
    let said = world.why(&["4242", "--svg", "/nonexistent/chart.svg"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err
            .contains("writing `/nonexistent/chart.svg` failed: "),
        "{}",
        said.err
    );
}

#[test]
fn without_a_record_it_says_what_that_can_mean() {
    let said = World::new().why(&["7"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
    assert_eq!(
        said.err,
        "gpufrac: no record of job 7 for node `gn02` in `DIR/gn02/run/reaper/jobs`, `DIR/gn02/state/reaper`, \
         `DIR/shared/records`\n\
         hint: nothing was decided about it, or its record is older than `keep` of `[reaper]`, or it ran elsewhere: \
         without `shared` in `[paths]` records are only on the node where the job ran\n"
    );
}

#[test]
fn an_unreadable_record_is_named_and_the_others_printed() {
    let world = World::new();
    world.put(
        "gn02/state/reaper/4242-1795000000.json",
        "gn02",
        1_795_000_000,
    );
    world.write("gn02/state/reaper/4242-1795000001.json", "{\"version\":9}");
    let said = world.why(&["4242"]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.starts_with("job 4242 on node gn02\n"));
    assert_eq!(
        said.err,
        "gpufrac: `DIR/gn02/state/reaper/4242-1795000001.json` is of version 9, this gpufrac reads version 1\n"
    );
}

#[test]
fn a_task_of_an_array_is_named_by_its_own_id() {
    let said = World::new().why(&["123_7"]);
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
    assert!(
        said.err.contains("`123_7` is not the id of one job"),
        "{}",
        said.err
    );
    assert!(said.err.contains("sacct -o JobIDRaw"), "{}", said.err);
}
