//! Usage records of random jobs, while prologs, epilogs, slurmd and the reaper are killed, jobs are requeued and
//! suspended, and the clocks of nodes are set: no record is lost or there twice, the books of each GPU balance, and
//! `gpufrac report` has the sums of slurmdbd and those of a script in another language.
//!
//! `GPUFRAC_BOOKS_JOBS` and `GPUFRAC_TEST_SEED` set the number of jobs and the seed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gpufrac_lab::{Job, JobId, Lab, LabError};
use nix::sys::signal::Signal;
use serde_json::Value;
use test_seed::Dice;

use crate::clock;
use crate::soak::number;

/// Mixed sizes, and pieces with whole GPUs, on each node.
const POOLS: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["halves"]
nodes = "@NODES@"
gpus = [0]

[pool.quarters]
mechanism = "mig"
layout = "uniform"
menu = ["1/4"]
gpu = "H100-80"
partitions = ["quarters"]
nodes = "@NODES@"
gpus = [1]

[report]
currency = "CHF"
gpu_hour = 1234.567891
idle_hour = 400.1

[report.pool.quarters]
gpu_hour = 2.5

[report.qos.low]
factor = 0.333333
"#;

/// Jobs that wait while further ones are submitted.
const MOST_PENDING: usize = 40;

const UNITS_OF_A_GPU_HOUR: f64 = 360_000.0;

#[derive(Debug, Clone, Copy)]
enum Disturbance {
    /// A prolog, an epilog, or a sample of the reaper ends in the middle of a call of the driver.
    Call,
    Slurmd,
    Reaper(Signal),
    Clock,
    Requeue,
    Cancel,
    Suspend,
}

const DISTURBANCES: [Disturbance; 12] = [
    Disturbance::Call,
    Disturbance::Clock,
    Disturbance::Requeue,
    Disturbance::Slurmd,
    Disturbance::Call,
    Disturbance::Suspend,
    Disturbance::Reaper(Signal::SIGKILL),
    Disturbance::Clock,
    Disturbance::Requeue,
    Disturbance::Call,
    Disturbance::Cancel,
    Disturbance::Reaper(Signal::SIGTERM),
];

/// Steps of a node's clock in seconds: smaller and larger than what is taken for the time of a prolog.
const STEPS: [i64; 7] = [-3600, -400, -60, 0, 45, 500, 7200];

struct Storm {
    lab: Lab,
    dice: Dice,
    library: PathBuf,
    jobs: Vec<JobId>,
    suspended: Vec<(JobId, Instant)>,
    /// What was done, for the reader of a failure.
    done: Vec<String>,
}

impl Storm {
    fn note(&mut self, what: String) {
        eprintln!("{what}");
        self.done.push(what);
    }

    fn clock(&self, node: &str) -> PathBuf {
        self.lab.folder().work().join(format!("clock.{node}"))
    }

    fn any_node(&mut self) -> String {
        let place = self.dice.below(2);
        self.lab.nodes()[place].clone()
    }

    fn start_reaper(&mut self, node: &str) -> Result<(), LabError> {
        let file = self.clock(node).display().to_string();
        let environment = clock::environment(&self.library, &file);
        let environment = environment
            .each_ref()
            .map(|(name, value)| (*name, &**value));
        self.lab.set_daemon_environment(&environment);
        let started = self.lab.start_reaper(node);
        self.lab.set_daemon_environment(&[]);
        started
    }

    /// Prologs, epilogs and the reaper of a node have its clock; Slurm has the machine's.
    fn give_clocks(&mut self) -> Result<(), LabError> {
        for node in self.lab.nodes().to_vec() {
            clock::set(&self.clock(&node), 0);
            self.lab.stop_reaper(&node, Signal::SIGTERM)?;
            self.start_reaper(&node)?;
        }
        let file = self.clock("$SLURMD_NODENAME").display().to_string();
        let exports = clock::environment(&self.library, &file);
        let exports = exports
            .each_ref()
            .map(|(name, value)| format!("{name}={value}"));
        for name in ["prolog", "epilog"] {
            let path = self.lab.folder().bin().join(name);
            let script = fs::read_to_string(&path).expect("the lab's wrapper");
            let clocked =
                script.replace("\nexec ", &format!("\nexport {}\nexec ", exports.join(" ")));
            assert_ne!(clocked, script);
            fs::write(&path, clocked).expect("the lab's wrapper");
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<(), LabError> {
        let partition = ["halves", "quarters"][self.dice.below(2)];
        let size = match partition {
            "halves" => ["0.5", "0.25", "0.25", "0.125", "0.125", "0.2"][self.dice.below(6)],
            _ => ["0.25", "0.25", "0.25", "0.1", "1"][self.dice.below(5)],
        };
        let nodes = ["-N1", "-N1", "-N1", "-N1", "-N2"][self.dice.below(5)];
        let qos = ["normal", "low"][self.dice.below(2)];
        let account = ["lab", "physics"][self.dice.below(2)];
        let length = self.dice.throw(1500);
        let gpus = self.lab.folder().root().join("gpus");
        let work = match self.dice.below(3) {
            0 => format!(
                "timeout 1 gpusim --root {}/$SLURMD_NODENAME run --pattern busy --memory 500M; ",
                gpus.display()
            ),
            _ => String::new(),
        };
        let script = format!("--wrap={work}sleep {}.{:03}", length / 1000, length % 1000);
        let user = &self.lab.users()[self.dice.below(2)];
        let args = [
            "--requeue",
            "-p",
            partition,
            nodes,
            "-A",
            account,
            "--qos",
            qos,
            &format!("--gres=gpufrac:{size}"),
            &script,
        ];
        self.jobs.push(self.lab.sbatch(user, &args)?);
        Ok(())
    }

    /// A job that runs, if there is one.
    fn any_running(&mut self) -> Result<Option<JobId>, LabError> {
        let running = self
            .lab
            .command("squeue")
            .args(["-h", "-t", "R", "-o", "%i"])
            .stdout()?;
        let running: Vec<JobId> = running
            .lines()
            .filter_map(|line| line.trim().parse().ok())
            .collect();
        Ok(if running.is_empty() {
            None
        } else {
            Some(running[self.dice.below(running.len())])
        })
    }

    fn control(&self, args: &[&str]) -> Result<(), LabError> {
        // The job may have ended.
        self.lab.command("scontrol").args(args).run().map(drop)
    }

    fn disturb(&mut self, disturbance: Disturbance) -> Result<(), LabError> {
        let node = self.any_node();
        match disturbance {
            Disturbance::Call => {
                let nth = (1 + self.dice.below(60)).to_string();
                let mut words = vec!["fault", "--call", "any", "--nth", &nth, "--kill"];
                words.extend((self.dice.below(2) == 0).then_some("--after"));
                self.lab.gpusim(&node, &words)?;
                self.note(format!("{node}: {}", words.join(" ")));
            }
            Disturbance::Slurmd => {
                self.note(format!("{node}: slurmd is killed"));
                self.lab
                    .stop_daemon(&format!("slurmd.{node}"), Signal::SIGKILL)?;
                std::thread::sleep(Duration::from_millis(self.dice.throw(700)));
                self.lab.start_slurmd(&node)?;
            }
            Disturbance::Reaper(signal) => {
                self.note(format!("{node}: the reaper gets {signal}"));
                self.lab.stop_reaper(&node, signal)?;
                std::thread::sleep(Duration::from_millis(self.dice.throw(1500)));
                self.start_reaper(&node)?;
            }
            Disturbance::Clock => {
                let shift = STEPS[self.dice.below(STEPS.len())];
                self.note(format!("{node}: the clock is {shift:+} s"));
                clock::set(&self.clock(&node), shift);
            }
            Disturbance::Requeue => {
                if let Some(job) = self.any_running()? {
                    self.note(format!("job {job} is requeued"));
                    self.control(&["requeue", &job.to_string()])?;
                }
            }
            Disturbance::Cancel => {
                if let Some(job) = self.any_running()? {
                    self.lab.command("scancel").args([job.to_string()]).run()?;
                }
            }
            Disturbance::Suspend => {
                if let Some(job) = self.any_running()? {
                    self.note(format!("job {job} is suspended"));
                    self.control(&["suspend", &job.to_string()])?;
                    self.suspended.push((job, Instant::now()));
                }
            }
        }
        Ok(())
    }

    /// What an admin and systemd do: killed daemons start, drained nodes serve again, held jobs are released.
    fn repair(&mut self) -> Result<(), LabError> {
        for name in self.lab.ended_daemons() {
            let node = name.strip_prefix("reaperd.");
            let node = node
                .unwrap_or_else(|| panic!("{name} ended: {:?}", self.done))
                .to_owned();
            self.lab.stop_reaper(&node, Signal::SIGKILL)?;
            self.start_reaper(&node)?;
        }
        if !self.lab.drained_nodes()?.is_empty() {
            for node in self.lab.nodes().to_vec() {
                self.control(&["update", &format!("nodename={node}"), "state=resume"])?;
            }
        }
        let over = |since: &Instant| since.elapsed() > Duration::from_secs(2);
        let (over, on): (Vec<_>, Vec<_>) =
            self.suspended.drain(..).partition(|(_, since)| over(since));
        self.suspended = on;
        for (job, _) in over {
            self.control(&["resume", &job.to_string()])?;
        }
        Ok(())
    }

    /// Disturbances are to meet jobs that run, so the queue stays short.
    fn wait_for_room(&mut self) -> Result<(), LabError> {
        let begun = Instant::now();
        loop {
            let held = ["-h", "-t", "PD", "-o", "%i %r %p"];
            let text = self.lab.command("squeue").args(held).stdout()?;
            for line in text
                .lines()
                .filter(|line| line.to_lowercase().contains("held"))
            {
                self.control(&["release", line.split(' ').next().unwrap_or_default()])?;
            }
            if text.lines().count() <= MOST_PENDING || begun.elapsed() > Duration::from_secs(60) {
                return Ok(());
            }
            self.repair()?;
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    fn release_held(&self, jobs: &[Job]) -> Result<(), LabError> {
        for job in jobs
            .iter()
            .filter(|job| job.state() == "PENDING" && job.field("Priority") == "0")
        {
            self.control(&["release", &job.id().to_string()])?;
        }
        Ok(())
    }

    /// slurmctld waits without a limit for a start that a killed slurmd lost: for its prolog, or for its script if the
    /// job's extern step is there. No script of these jobs lasts for 4 s; an admin cancels the job.
    fn cancel_lost_starts(&self) -> Result<(), LabError> {
        let args = ["-h", "-t", "R", "-o", "%i %M %r"];
        let text = self.lab.command("squeue").args(args).stdout()?;
        for line in text.lines() {
            let [job, time, reason] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                continue;
            };
            if reason == "Prolog" || !time.starts_with("0:") {
                self.lab.command("scancel").args([job]).run()?;
            }
        }
        Ok(())
    }

    /// Where slurmd was killed in an epilog, the reaper ends the lease.
    fn wait_for_reapers(&self) -> Result<(), LabError> {
        let limit = Duration::from_secs(60);
        self.lab.wait("the leases end", limit, || {
            let all = self.lab.nodes().iter().map(|node| self.lab.leases(node));
            let left = all.collect::<Result<Vec<_>, _>>()?.concat();
            Ok(left.is_empty().then_some(()))
        })
    }

    fn settle(&mut self) -> Result<(), LabError> {
        for node in self.lab.nodes().to_vec() {
            self.lab.gpusim(&node, &["clear"])?;
        }
        let begun = Instant::now();
        loop {
            self.repair()?;
            let jobs = self.lab.jobs()?;
            self.release_held(&jobs)?;
            if begun.elapsed() > Duration::from_secs(60) {
                self.cancel_lost_starts()?;
            }
            let active = jobs.iter().filter(|job| job.is_active()).count();
            if active == 0 {
                self.lab.wait_until_empty(Duration::from_secs(60))?;
                return self.wait_for_reapers();
            }
            assert!(
                begun.elapsed() < Duration::from_secs(300),
                "{active} jobs are left: {jobs:?}\n{}",
                self.done.join("\n")
            );
            std::thread::sleep(Duration::from_millis(300));
        }
    }
}

/// Lines of a node's own file, and those of its copies in the shared folder.
fn lines(lab: &Lab, node: &str) -> [Vec<String>; 2] {
    let split = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let own = lab
        .folder()
        .root()
        .join("var")
        .join(node)
        .join("usage.jsonl");
    let own = split(fs::read_to_string(&own).expect("the node's records"));
    let days = fs::read_dir(lab.folder().shared().join("usage"))
        .expect("the copies")
        .flatten();
    let copies = days.map(|day| {
        fs::read_to_string(day.path().join(format!("{node}.jsonl"))).unwrap_or_default()
    });
    [own, split(copies.collect())]
}

/// `gpufrac report` of all days around this one, as root.
fn report(lab: &Lab, args: &[&str]) -> Result<Value, LabError> {
    let day = |ago: &str| {
        Ok::<_, LabError>(
            lab.command("date")
                .args(["-d", ago, "+%F"])
                .stdout()?
                .trim()
                .to_owned(),
        )
    };
    let (since, until) = (day("2 days ago")?, day("2 days")?);
    let fixed = [
        "report", "--since", &since, "--until", &until, "--format", "json",
    ];
    let outcome = lab
        .command("gpufrac")
        .args([&fixed, args].concat())
        .limit(Duration::from_secs(120))
        .run()?;
    let report: Value =
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
    assert!(outcome.status.success(), "{report:#}");
    assert_eq!(report["damaged_lines"], 0, "{report:#}");
    Ok(report)
}

/// The numbers of a row of a report, by its key.
fn rows(report: &Value) -> BTreeMap<String, &Value> {
    let rows = report["rows"].as_array().expect("rows").iter();
    rows.map(|row| (row["key"][0].as_str().expect("a key").to_owned(), row))
        .collect()
}

fn decimal(value: &Value) -> f64 {
    value
        .as_str()
        .and_then(|text| text.parse().ok())
        .expect("a decimal")
}

/// An exact fraction (`12/7`), as a decimal.
fn fraction(value: &Value) -> f64 {
    let text = value.as_str().expect("a fraction");
    let (over, under) = text.split_once('/').unwrap_or((text, "1"));
    over.parse::<f64>().expect("a number") / under.parse::<f64>().expect("a number")
}

/// Rows of accounting, when no job is left in it that runs.
fn sacct(lab: &Lab) -> Result<PathBuf, LabError> {
    let path = lab.folder().work().join("sacct");
    let text = lab.wait("slurmdbd has all ends", Duration::from_secs(60), || {
        let format = "--format=User,Account,QOS,Partition,ElapsedRaw,AllocTRES,State";
        let args = [
            "-X",
            "-D",
            "-a",
            "-P",
            "-n",
            "--starttime=now-1day",
            "--endtime=now",
            format,
        ];
        let text = lab.command("sacct").args(args).stdout()?;
        let open = ["RUNNING", "SUSPENDED", "COMPLETING"]
            .iter()
            .any(|state| text.contains(state));
        Ok((!open).then_some(text))
    })?;
    let rows = text
        .lines()
        .filter_map(|line| line.rsplit_once('|').map(|(row, _)| format!("{row}\n")));
    fs::write(&path, rows.collect::<String>()).expect("the rows are written");
    Ok(path)
}

/// The sums of `tests/books/sum.py`.
fn independent(lab: &Lab, sacct: &Path) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/books/sum.py");
    let files = lab.nodes().iter().map(|node| {
        lab.folder()
            .root()
            .join("var")
            .join(node)
            .join("usage.jsonl")
    });
    let output = Command::new("python3")
        .arg(script)
        .arg(lab.folder().gpufrac_conf())
        .arg(sacct)
        .args(files)
        .output()
        .expect("python3 runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Each record once, in the node's own file and in its copies; the number of slices.
fn expect_each_line_once(lab: &Lab) -> usize {
    let mut slices = 0;
    for node in lab.nodes() {
        let [own, copies] = lines(lab, node);
        let sets = [&own, &copies].map(|lines| lines.iter().collect::<BTreeSet<_>>());
        assert_eq!(sets[0].len(), own.len(), "{node}: a line is there twice");
        assert_eq!(sets[1].len(), copies.len(), "{node}: a copy is there twice");
        let lost: Vec<_> = sets[0].symmetric_difference(&sets[1]).collect();
        assert!(
            lost.is_empty(),
            "{node}: lines without a copy, or copies without a line: {lost:#?}"
        );
        let keys = own
            .iter()
            .filter(|line| !line.starts_with("{\"kind\""))
            .map(|line| {
                let record: Value = serde_json::from_str(line).expect("a record");
                ["job", "slice", "restart_count", "start"].map(|key| record[key].to_string())
            });
        let keys: Vec<_> = keys.collect();
        let unique: BTreeSet<_> = keys.iter().collect();
        assert_eq!(unique.len(), keys.len(), "{node}: a slice is there twice");
        slices += keys.len();
    }
    slices
}

/// The books of each GPU balance, to the second.
fn expect_balance(lab: &Lab, slices: usize) -> Result<(), LabError> {
    let report = report(lab, &["--no-sacct", "--audit"])?;
    let audit = &report["audit"];
    // The daemons have ended and wrote all that they had: no slice is left out.
    let parts = ["busy_s", "idle_s", "suspended_s", "unknown_s"];
    let held: f64 = parts.iter().filter_map(|part| audit[*part].as_f64()).sum();
    let total = report["total"]["allocated"].as_f64().unwrap_or(0.0) * 3600.0;
    assert!(
        (held - total).abs() < 2.0,
        "{held} s of {total} s: {audit:#}"
    );
    let gpus = audit["gpus"].as_array().expect("GPUs");
    assert_eq!(gpus.len(), 4, "{audit:#}");
    for gpu in gpus {
        assert_eq!(gpu["residual_s"], 0.0, "{gpu:#}");
        assert_eq!(gpu["beyond_s"], 0.0, "{gpu:#}");
        assert_eq!(gpu["uncovered_s"], 0.0, "{gpu:#}");
        assert!(gpu["rounded_s"].as_f64() < Some(10.0), "{gpu:#}");
        let records = gpu["records"].as_u64().unwrap_or(0);
        assert!(records > slices as u64 / 40, "{gpu:#}");
    }
    eprintln!("audit: {audit}");
    Ok(())
}

/// By each grouping the report has the sums of the script: to a second of a unit, and to the cent.
fn expect_independent_sums(lab: &Lab, sums: &Value) -> Result<(), LabError> {
    let mut totals = BTreeSet::new();
    for by in [
        "user",
        "account",
        "partition",
        "pool",
        "node",
        "size",
        "user,account,partition,pool,node,size",
    ] {
        let report = report(lab, &["--no-sacct", "--by", by])?;
        totals.insert((
            report["total_cost"].to_string(),
            report["total"]["allocated"].to_string(),
        ));
        let cents: f64 = report["rows"]
            .as_array()
            .expect("rows")
            .iter()
            .map(|row| decimal(&row["cost"]))
            .sum();
        assert!(
            (cents - decimal(&report["total_cost"])).abs() < 0.001,
            "{report:#}"
        );
        let Some(expected) = sums["records"][by].as_object() else {
            continue;
        };
        let rows = rows(&report);
        assert_eq!(
            rows.keys().collect::<Vec<_>>(),
            expected
                .keys()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect::<Vec<_>>()
        );
        let mut exact = 0.0;
        for (key, row) in rows {
            for part in ["allocated", "busy", "idle", "unknown", "suspended"] {
                let shown = row[part].as_f64().expect("hours") * UNITS_OF_A_GPU_HOUR;
                let own = fraction(&expected[&key][part]);
                assert!(
                    (shown - own).abs() < 0.5,
                    "{by} {key} {part}: {shown} {own}"
                );
            }
            let own = fraction(&expected[&key]["cost"]);
            assert!(
                (decimal(&row["cost"]) - own).abs() <= 0.01,
                "{by} {key}: {row} {own}"
            );
            assert_eq!(
                row["slices"].to_string(),
                expected[&key]["slices"].as_str().expect("a number")
            );
            exact += own;
        }
        assert!(
            (decimal(&report["total_cost"]) - exact).abs() <= 0.005_001,
            "{report:#} {exact}"
        );
    }
    assert_eq!(
        totals.len(),
        1,
        "each grouping has the same total: {totals:?}"
    );
    Ok(())
}

/// With accounting the allocated hours are those of slurmdbd, by each grouping that it has.
fn expect_sums_of_accounting(lab: &Lab, sums: &Value) -> Result<(), LabError> {
    let mut costs = BTreeSet::new();
    for by in [
        "user",
        "account",
        "qos",
        "partition",
        "pool",
        "node",
        "size",
    ] {
        let report = report(lab, &["--by", by])?;
        assert!(
            report["runs_without_records"].is_number(),
            "sacct answers: {report:#}"
        );
        costs.insert(report["total_cost"].to_string());
        let Some(expected) = sums["sacct"][by].as_object() else {
            continue;
        };
        let all: f64 = expected.values().filter_map(Value::as_f64).sum();
        let total = report["total"]["allocated"].as_f64().expect("hours") * UNITS_OF_A_GPU_HOUR;
        eprintln!("{by}: {total} unit-seconds, slurmdbd has {all}");
        assert!(
            (total / all - 1.0).abs() <= 0.0001,
            "{by}: {total} {all} {report:#}"
        );
        for (key, row) in rows(&report) {
            let shown = row["allocated"].as_f64().expect("hours") * UNITS_OF_A_GPU_HOUR;
            let own = expected.get(&key).and_then(Value::as_f64).unwrap_or(0.0);
            assert!(
                (shown - own).abs() <= own * 0.0001,
                "{by} {key}: {shown} {own}"
            );
        }
    }
    assert_eq!(
        costs.len(),
        1,
        "each grouping has the same total: {costs:?}"
    );
    Ok(())
}

/// Promise (admins): through kills of prologs, epilogs, slurmd and the reaper, requeues and steps of clocks no record
/// is lost or there twice, the books of each GPU balance to the second, and a report has slurmdbd's hours and the sums
/// of a script in another language, by every grouping to the cent.
#[test]
fn the_books_balance_through_crashes_requeues_and_steps_of_clocks() -> Result<(), LabError> {
    let library = clock::library();
    let count = usize::try_from(number("GPUFRAC_BOOKS_JOBS", 150)).unwrap_or(150);
    let seed = test_seed::seed();
    let lab = Lab::builder()
        .nodes(2)
        .gpus("H100-80", 2)
        .only_partitions(&[("halves", ""), ("quarters", "")])
        .pools(POOLS)
        .reaper(crate::MEASURES_ONLY)
        .accounting()
        .shared()
        .slurm_conf_extra("MaxJobCount=20000")
        .start()?;
    lab.sacctmgr(&["add", "qos", "low"])?;
    lab.sacctmgr(&["add", "account", "physics"])?;
    let names: Vec<&str> = lab.users().iter().map(|user| &*user.name).collect();
    lab.sacctmgr(&["add", "user", &names.join(","), "Account=physics"])?;
    lab.sacctmgr(&["modify", "account", "lab,physics", "set", "qos=normal,low"])?;
    let mut storm = Storm {
        lab,
        dice: Dice::new(seed),
        library,
        jobs: Vec::new(),
        suspended: Vec::new(),
        done: vec![format!("seed {seed}")],
    };
    storm.give_clocks()?;
    let begun = Instant::now();
    let each = (count / 24).clamp(4, 15);
    while storm.jobs.len() < count {
        storm.submit()?;
        if storm.jobs.len().is_multiple_of(each) {
            let disturbance = DISTURBANCES[(storm.jobs.len() / each) % DISTURBANCES.len()];
            storm.disturb(disturbance)?;
            storm.repair()?;
        }
        if storm.jobs.len().is_multiple_of(25) {
            storm.wait_for_room()?;
        }
    }
    storm.settle()?;
    eprintln!("{count} jobs in {:.0?}", begun.elapsed());
    let Storm { mut lab, done, .. } = storm;
    // The daemon records the time of the GPUs when it ends.
    for node in lab.nodes().to_vec() {
        lab.stop_reaper(&node, Signal::SIGTERM)?;
    }
    let done = done.join("\n");
    eprintln!("{done}");
    let slices = expect_each_line_once(&lab);
    assert!(slices >= count / 2, "{slices} slices of {count} jobs");
    expect_balance(&lab, slices)?;
    let rows = sacct(&lab)?;
    let sums = independent(&lab, &rows);
    assert_eq!(sums["count"], slices);
    expect_independent_sums(&lab, &sums)?;
    expect_sums_of_accounting(&lab, &sums)?;
    lab.expect_nothing_left()
}
