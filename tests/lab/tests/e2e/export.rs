//! `gpufrac report --export jobstats`: the summaries, as reportseff and job_defense_shield from PyPI read them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError, SlurmCommand};
use serde_json::Value;

const READERS: [&str; 2] = ["reportseff==2.10.3", "job_defense_shield==1.3.4"];

fn run(command: &mut Command) -> Result<Output, String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.success() {
        Ok(output)
    } else {
        Err(format!(
            "{command:?}: {}{}",
            text(&output.stdout),
            text(&output.stderr)
        ))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A folder with the programs of the readers.
fn readers() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients/jobstats-readers");
    test_seed::needed(debian::python(&folder, &READERS))
}

/// A folder with the lab's `sacct` and `scontrol`: the readers run on the machine, outside of a lab with another
/// series.
fn programs(lab: &Lab) -> PathBuf {
    let folder = lab.folder().work().join("programs");
    fs::create_dir_all(&folder).expect("a folder");
    let enter = if lab.folder().namespace().exists() {
        format!("nsenter --mount={} --", lab.folder().namespace().display())
    } else {
        String::new()
    };
    let conf = lab.folder().slurm_conf();
    let conf = conf.display();
    let path = std::env::join_paths(lab.folder().programs()).expect("paths without colons");
    let path = path.display();
    for name in ["sacct", "scontrol"] {
        let script = format!(
            "#!/bin/sh\nPATH={path}:/usr/sbin:/usr/bin:/sbin:/bin SLURM_CONF={conf} exec {enter} {name} \"$@\"\n"
        );
        let path = folder.join(name);
        fs::write(&path, script).expect("the program");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    folder
}

fn comments(lab: &Lab) -> Result<BTreeMap<String, String>, LabError> {
    let args = ["-X", "-a", "-n", "-P", "--format=JobID,AdminComment"];
    let rows = lab.command("sacct").args(args).stdout()?;
    let pairs = rows.lines().filter_map(|row| row.split_once('|'));
    Ok(pairs
        .map(|(job, comment)| (job.to_owned(), comment.to_owned()))
        .collect())
}

fn command(lab: &Lab, more: &[&str]) -> SlurmCommand {
    let records = lab.folder().root().join("var").join(&lab.nodes()[0]);
    let records = records.display().to_string();
    let args = [
        "report",
        "--since",
        "1h",
        "--export",
        "jobstats",
        "--records",
        &records,
    ];
    lab.command("gpufrac").args([&args, more].concat())
}

fn export(lab: &Lab, more: &[&str]) -> Result<(String, String), LabError> {
    let outcome = command(lab, more).run()?.success()?;
    Ok((outcome.stdout, outcome.stderr))
}

/// Mean activity of the job's slice in percent, as its record has it.
fn activity(lab: &Lab, job: JobId) -> Result<f64, LabError> {
    let path = lab
        .folder()
        .root()
        .join("var")
        .join(&lab.nodes()[0])
        .join("usage.jsonl");
    let job: u64 = job.to_string().parse().unwrap_or(0);
    lab.wait("the usage record", Duration::from_secs(30), || {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let mut lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let record = lines.find(|line| line["job"] == job && line["kind"].is_null());
        Ok(record
            .and_then(|record| record["used"]["activity"].as_f64())
            .map(|share| 100.0 * share))
    })
}

/// Promise (admins): before Slurm 23.02, whose sacctmgr changes capitals, no summary is written, and the command says
/// so.
/// With `summaries_are_written_only_by_an_sacctmgr_that_keeps_capitals`.
#[test]
fn summaries_of_slices_are_read_by_reportseff_and_job_defense_shield() -> Result<(), LabError> {
    let readers = readers();
    let lab = Lab::builder()
        .gpus("H100-80", 1)
        .accounting()
        .reaper(crate::MEASURES_ONLY)
        .start()?;
    let user = &lab.users()[0];
    let gpus = lab.folder().root().join("gpus");
    let program = |pattern: &str| {
        format!(
            "--wrap=gpusim --root {}/$SLURMD_NODENAME run --pattern {pattern} --seconds 6 --memory 3G",
            gpus.display()
        )
    };
    let submit = |args: &[&str], pattern: &str| {
        let script = program(pattern);
        lab.sbatch(user, &[args, &["--gres=gpufrac:0.25", &script]].concat())
    };
    let half_busy = submit(&[], "steps:0.5@1000")?;
    let busy = submit(&[], "busy")?;
    let tasks = submit(&["--array=1-2"], "steps:0.2@1000")?;
    for job in [half_busy, busy] {
        lab.wait_for_end(job)?;
    }
    let [waited, ticket, of_jobstats] = [
        submit(&[], "busy")?,
        submit(&[], "busy")?,
        submit(&[], "busy")?,
    ];
    // Texts of gpufrac, of a person and of jobstats, as they are set while a job is there.
    for (job, comment) in [
        (waited, "gpufrac: job is idle: requeued"),
        (ticket, "ticket 7"),
        (of_jobstats, "JS1:Short"),
    ] {
        lab.update(&[&format!("JobId={job}"), &format!("AdminComment={comment}")])?;
    }
    lab.wait_until_empty(Duration::from_secs(60))?;
    let known = lab.wait("slurmdbd has all ends", Duration::from_secs(60), || {
        let rows = lab
            .command("sacct")
            .args(["-X", "-a", "-n", "-P", "--format=JobID,State"])
            .stdout()?;
        Ok((rows.matches("COMPLETED").count() == 7).then_some(rows))
    })?;
    let tasks: Vec<String> = known
        .lines()
        .filter_map(|row| row.split_once('|').map(|(id, _)| id.to_owned()))
        .filter(|id| id.starts_with(&format!("{tasks}_")))
        .collect();
    assert_eq!(tasks.len(), 2, "{known}");
    let before = comments(&lab)?;
    let own = before
        .iter()
        .filter(|(_, comment)| comment.starts_with("gpufrac: "));
    assert_eq!(own.count(), 1, "{before:?}");

    let (printed, said) = export(&lab, &["--dry-run"])?;
    assert_eq!(printed.lines().count(), 5, "{printed}{said}");
    assert!(
        said.contains("1 of jobstats, 1 comments of others"),
        "{said}"
    );
    assert_eq!(comments(&lab)?, before, "nothing is written");
    if !crate::since(23, 2)? {
        let refused = command(&lab, &[]).run()?;
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains("small letters"), "{refused:?}");
        assert_eq!(comments(&lab)?, before);
        return lab.expect_nothing_left();
    }
    let (_, said) = export(&lab, &[])?;
    assert!(said.starts_with("5 summaries written"), "{said}");
    let after = comments(&lab)?;
    let (ticket, of_jobstats) = (ticket.to_string(), of_jobstats.to_string());
    assert_eq!(after[&ticket], "ticket 7", "{after:?}");
    assert_eq!(after[&of_jobstats], "JS1:Short", "{after:?}");
    let written = after
        .values()
        .filter(|comment| comment.starts_with("JS1:H4s"));
    assert_eq!(written.count(), 5, "{after:?}");
    let (_, said) = export(&lab, &[])?;
    assert!(
        said.starts_with("0 summaries written, 5 are there already"),
        "{said}"
    );
    assert_eq!(comments(&lab)?, after);

    // reportseff asks sacct and scontrol itself.
    let path = format!("{}:/usr/bin:/bin", programs(&lab).display());
    let expected = [
        (half_busy, activity(&lab, half_busy)?),
        (busy, activity(&lab, busy)?),
    ];
    let ids = [
        half_busy.to_string(),
        busy.to_string(),
        ticket.clone(),
        of_jobstats,
    ];
    let shown = run(Command::new(readers.join("reportseff"))
        .args(["--no-color", "--format", "JobID,GPUEff,GPUMem"])
        .args(&ids)
        .env("PATH", &path))
    .expect("reportseff reads the summaries");
    let shown = text(&shown.stdout);
    let cell = |job: &str, column: usize| {
        let rows = shown
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        let mut own = rows.filter(|row| row.first() == Some(&job));
        let row = own.next().unwrap_or_else(|| panic!("{job}: {shown}"));
        row[column].trim_end_matches('%').to_owned()
    };
    for (job, percent) in expected {
        let read: f64 = cell(&job.to_string(), 1)
            .parse()
            .unwrap_or_else(|_| panic!("{shown}"));
        assert!((read - percent).abs() < 0.1, "{job}: {percent}\n{shown}");
        // 3 GiB of a quarter of 80 GB.
        let memory: f64 = cell(&job.to_string(), 2)
            .parse()
            .unwrap_or_else(|_| panic!("{shown}"));
        assert!((14.0..17.0).contains(&memory), "{shown}");
    }
    assert_eq!(cell(&ticket, 1), "---", "{shown}");

    // So do the functions of job_defense_shield.
    let rows = lab
        .command("sacct")
        .args([
            "-X",
            "-a",
            "-n",
            "-P",
            "--format=JobID,ElapsedRaw,AdminComment",
        ])
        .stdout()?;
    let file = lab.write_work("rows", &rows)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/books/readers.py");
    let read = run(Command::new(readers.join("python")).arg(script).arg(file))
        .expect("job_defense_shield reads them");
    let read: Value = serde_json::from_slice(&read.stdout).expect("JSON");
    for (job, percent) in expected {
        let own = &read[job.to_string()];
        assert_eq!(own["gpu"][1], 0, "{own}");
        assert!(
            (own["gpu"][0].as_f64().expect("a number") - percent).abs() < 0.1,
            "{own} {percent}"
        );
        assert_eq!(own["memory"][1], 0, "{own}");
    }
    for task in &tasks {
        assert_eq!(
            read[task]["gpu"][1], 0,
            "each task of an array has its own summary: {read}"
        );
    }
    lab.expect_nothing_left()
}
