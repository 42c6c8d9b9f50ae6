//! Accounts, limits, billing and fair-share by Slurm's own accounting, on gpufrac's counts.

use std::collections::BTreeMap;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError, User};
use nix::sys::signal::Signal;

use crate::{HOLD, go};

const QUARTER: &str = "--gres=gpufrac:0.25";
const HALF: &str = "--gres=gpufrac:0.5";

/// Halves of the first GPU, the second one whole.
const POOLS: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "both", "hundredth"]
nodes = "@NODES@"
gpus = [0]

[pool.whole]
mechanism = "mig"
layout = "whole"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [1]
"#;

/// The records of accounting about a job, its components, tasks and steps, by id.
struct Records(BTreeMap<String, Record>);

#[derive(Debug)]
struct Record {
    /// The running time.
    seconds: u64,
    counts: BTreeMap<String, u64>,
}

impl Records {
    /// Waits until accounting has `count` ended records of a job.
    fn of(lab: &Lab, job: JobId, count: usize) -> Result<Self, LabError> {
        let format = "--format=JobID,ElapsedRaw,End,AllocTRES";
        let job = job.to_string();
        let what = format!("{count} records of job {job}");
        lab.wait(&what, Duration::from_secs(60), || {
            let args = [
                "--allusers",
                "--noheader",
                "--parsable2",
                format,
                "-j",
                &job,
            ];
            let text = lab.command("sacct").args(args).stdout()?;
            let ended = text.lines().filter(|line| !line.contains("|Unknown|"));
            let records = Self(ended.filter_map(record).collect());
            Ok((records.0.len() == count).then_some(records))
        })
    }

    fn count(&self, id: &str, tres: &str) -> u64 {
        let record = self.0.get(id);
        let record = record.unwrap_or_else(|| panic!("{id} is not in {:?}", self.0));
        record.counts.get(tres).copied().unwrap_or(0)
    }

    /// Checks the units under these names, in all records.
    fn expect_units(&self, names: &[&str], units: &[(&str, u64)]) {
        assert_eq!(self.0.len(), units.len(), "{:?}", self.0);
        for (id, units) in units {
            for name in names {
                assert_eq!(self.count(id, name), *units, "{id}: {:?}", self.0);
            }
        }
    }

    /// Seconds times units, without steps, which are part of their jobs.
    fn seconds(&self, tres: &str) -> u64 {
        let jobs = self.0.iter().filter(|(id, _)| !id.contains('.'));
        jobs.map(|(id, record)| record.seconds * self.count(id, tres))
            .sum()
    }
}

fn record(line: &str) -> Option<(String, Record)> {
    let fields: Vec<&str> = line.split('|').collect();
    let [id, seconds, _end, tres] = fields[..] else {
        return None;
    };
    let count = |word: &str| {
        let (name, count) = word.split_once('=')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    let record = Record {
        seconds: seconds.parse().ok()?,
        counts: tres.split(',').filter_map(count).collect(),
    };
    Some((id.to_owned(), record))
}

/// The hour of a time in seconds since 1970, in the notation of Slurm's commands.
fn hour(seconds: u64) -> Result<String, LabError> {
    let text = std::process::Command::new("date")
        .args(["-d", &format!("@{seconds}"), "+%Y-%m-%dT%H:00:00"])
        .output()
        .map_err(|reason| LabError::Start {
            program: "date".into(),
            reason,
        })?;
    Ok(String::from_utf8_lossy(&text.stdout).trim().to_owned())
}

fn now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("a time after 1970").as_secs()
}

/// A batch job that runs until the test calls [`go`].
fn hold(lab: &Lab, user: &User, args: &[&str]) -> Result<JobId, LabError> {
    lab.sbatch(user, &[args, &["--wrap", HOLD]].concat())
}

/// Promise (admins): fractions are in sacct, sreport, limits, billing and fair-share by their size after rounding.
/// With `limits_of_accounts_and_qos_hold_for_fractions`, `fractions_are_billed_and_lower_the_fair_share`.
#[test]
fn fractions_are_in_sacct_and_sreport() -> Result<(), LabError> {
    let lab = Lab::builder()
        .accounting()
        .nodes(2)
        .pools(POOLS)
        .partition("both", "TRESBillingWeights=GRES/gpufrac=1.0,GRES/shard=1.0")
        .partition("hundredth", "TRESBillingWeights=GRES/gpufrac=0.01")
        .start()?;
    // slurmdbd sums nothing from an hour on in which the cluster was not there yet.
    let begin = now();
    let (user, other) = (&lab.users()[0], &lab.users()[1]);
    let steps = "--wrap=srun true; srun --gres=gpufrac:0.25 true; sleep 3";
    let quarter = lab.sbatch(user, &["-n1", QUARTER, steps])?;
    let array = lab.sbatch(
        user,
        &["-n1", "--array=0-1", "--gres=gpufrac:0.125", "--wrap=true"],
    )?;
    let het = lab.sbatch(
        user,
        &[
            "-n1",
            QUARTER,
            ":",
            "-n1",
            HALF,
            "--wrap=srun --het-group=0,1 true; sleep 2",
        ],
    )?;
    let nodes = lab.sbatch(other, &["-N2", "-n2", HALF, "--wrap=sleep 2"])?;
    let whole = lab.sbatch(other, &["-n1", "--gres=gpufrac:1", "--wrap=sleep 2"])?;
    let rounded = lab.sbatch(
        other,
        &["-n1", "--gres=gpufrac:0.2", "-pboth", "--wrap=sleep 2"],
    )?;
    let hundredth = lab.sbatch(other, &["-n1", QUARTER, "-phundredth", "--wrap=true"])?;

    let id = |job: JobId, rest: &str| format!("{job}{rest}");
    let has_shards = lab.slurm().counts_typed_shards();
    let names = if has_shards { &["gres/gpufrac", "gres/shard"][..] } else { &["gres/gpufrac"] };
    let expect = |job: JobId, units: &[(&str, u64)]| {
        let units: Vec<_> = units
            .iter()
            .map(|(rest, units)| (id(job, rest), *units))
            .collect();
        let units: Vec<_> = units
            .iter()
            .map(|(id, units)| (id.as_str(), *units))
            .collect();
        let records = Records::of(&lab, job, units.len())?;
        records.expect_units(names, &units);
        Ok::<_, LabError>(records)
    };
    // A step without its own size has that of its job.
    let of_steps = [
        ("", 25),
        (".batch", 25),
        (".extern", 25),
        (".0", 25),
        (".1", 25),
    ];
    let users = [
        expect(quarter, &of_steps)?,
        expect(
            array,
            &[
                ("_0", 13),
                ("_0.batch", 13),
                ("_0.extern", 13),
                ("_1", 13),
                ("_1.batch", 13),
                ("_1.extern", 13),
            ],
        )?,
        expect(
            het,
            &[
                ("+0", 25),
                ("+0.batch", 25),
                ("+0.extern", 25),
                ("+0.0", 25),
                ("+1", 50),
                ("+1.extern", 50),
                ("+1.0", 50),
            ],
        )?,
    ];
    let on_nodes = expect(nodes, &[("", 100), (".batch", 50), (".extern", 100)])?;
    // A whole GPU has no shards.
    let whole_records = Records::of(&lab, whole, 3)?;
    let of_whole = |tres| whole_records.count(&id(whole, ""), tres);
    assert_eq!((of_whole("gres/gpufrac"), of_whole("gres/shard")), (100, 0));
    let rounded_records = expect(rounded, &[("", 25), (".batch", 25), (".extern", 25)])?;
    // Billing adds both weights, or uses only the largest, depending on the setting.
    let billing = rounded_records.count(&id(rounded, ""), "billing");
    assert_eq!(billing, if has_shards { 50 } else { 25 });
    // Billing has no decimals.
    let hundredth_records = Records::of(&lab, hundredth, 3)?;
    assert_eq!(hundredth_records.count(&id(hundredth, ""), "billing"), 0);

    // slurmdbd computes its sums only once an hour by itself.
    let (start, end) = (hour(begin)?, hour(now() + 3600)?);
    lab.sacctmgr(&["rollup", &start, &end])?;
    let others = [on_nodes, whole_records, rounded_records, hundredth_records];
    for &tres in names {
        let report = lab
            .command("sreport")
            .args(["--parsable2", "--noheader", "-tseconds", "-T", tres])
            .args(["cluster", "AccountUtilizationByUser"])
            .args([format!("Start={start}"), format!("End={end}")])
            .stdout()?;
        let used = |user: &User| -> u64 {
            let row = format!("lab|lab|{}|", user.name);
            let found = report.lines().find(|line| line.starts_with(&row));
            let count = found.and_then(|line| line.rsplit('|').next()?.parse().ok());
            count.unwrap_or_else(|| panic!("no row of {} in {report}", user.name))
        };
        let expected = |records: &[Records]| {
            records
                .iter()
                .map(|records| records.seconds(tres))
                .sum::<u64>()
        };
        assert!(expected(&users) > 75, "{tres}");
        assert_eq!(
            used(user),
            expected(&users),
            "{tres} of the first user\n{report}"
        );
        assert_eq!(
            used(other),
            expected(&others),
            "{tres} of the second user\n{report}"
        );
    }
    lab.expect_nothing_left()
}

/// Checks that a submission is refused with these words.
fn refused(lab: &Lab, user: &User, args: &[&str], words: &[&str]) -> Result<(), LabError> {
    let outcome = lab.try_sbatch(user, &[args, &["--wrap=true"]].concat())?;
    assert!(!outcome.status.success(), "{args:?}: {outcome:?}");
    for word in words {
        assert!(
            outcome.stderr.contains(word),
            "{word} is not in {outcome:?}"
        );
    }
    Ok(())
}

/// Waits until a job waits for this reason.
fn waits_for(lab: &Lab, job: JobId, reason: &str) -> Result<(), LabError> {
    lab.wait(
        &format!("job {job} waits for {reason}"),
        Duration::from_secs(60),
        || {
            let shown = lab.job(job)?;
            assert_eq!(shown.state(), "PENDING", "{shown:?}");
            Ok((shown.field("Reason") == reason).then_some(()))
        },
    )
}

#[test]
fn limits_of_accounts_and_qos_hold_for_fractions() -> Result<(), LabError> {
    let mut lab = Lab::builder()
        .accounting()
        .slurm_conf_extra("AccountingStorageEnforce=associations,limits,qos,safe")
        .partition("small", "")
        .pools(
            "[pool.halves]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
             partitions = [\"gpu\", \"small\"]\nnodes = \"@NODES@\"\n\n\
             [partition.small]\nmax = 0.125\ndefault = 0.125\n",
        )
        .start()?;
    let (user, other) = (lab.users()[0].clone(), lab.users()[1].clone());
    for qos in [
        &["peruser", "MaxTRESPerUser=gres/gpufrac=25"][..],
        &["perjob", "MaxTRESPerJob=gres/gpufrac=25"],
        &["group", "GrpTRES=gres/gpufrac=50"],
        &["deny", "MaxTRESPerJob=gres/gpufrac=25", "Flags=DenyOnLimit"],
        &["odd", "MaxTRESPerJob=gres/gpufrac=20", "Flags=DenyOnLimit"],
        &["tiny", "MaxTRESPerJob=gres/gpufrac=12", "Flags=DenyOnLimit"],
    ] {
        lab.sacctmgr(&[&["add", "qos"], qos].concat())?;
    }
    for account in [
        &["team", "GrpTRES=gres/gpufrac=50"][..],
        &["course", "MaxTRESPerJob=gres/gpufrac=25"],
        &["budget", "GrpTRESMins=gres/gpufrac=100"],
    ] {
        lab.sacctmgr(&[&["add", "account", "parent=lab"], account].concat())?;
    }
    let users = format!("{},{}", user.name, other.name);
    lab.sacctmgr(&["add", "user", &users, "account=team,course,budget"])?;
    let names = "qos+=peruser,perjob,group,deny,odd,tiny";
    lab.sacctmgr(&["modify", "user", &users, "set", names])?;

    // Jobs within the limit run; the next job of the account waits, also that of another user.
    let room = [
        (
            &user,
            ["-Ateam", HALF],
            &other,
            ["-Ateam", "--gres=gpufrac:0.125"],
            "AssocGrpGRES",
        ),
        (
            &user,
            ["-qperuser", QUARTER],
            &user,
            ["-qperuser", "--gres=gpufrac:0.125"],
            "QOSMaxGRESPerUser",
        ),
        (
            &user,
            ["-qgroup", HALF],
            &other,
            ["-qgroup", QUARTER],
            "QOSGrpGRES",
        ),
    ];
    let mut pairs = Vec::new();
    for (user, first, next, second, reason) in &room {
        let first = hold(&lab, user, first)?;
        lab.wait_for_state(first, &["RUNNING"])?;
        let second = hold(&lab, next, second)?;
        waits_for(&lab, second, reason)?;
        pairs.push((first, second));
    }
    // slurmctld counts the running jobs again when it starts.
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.start_slurmctld()?;
    // Slurm 22.05 accepts no job with shards before the node has registered them.
    let third = lab.wait("a job is taken", Duration::from_secs(60), || {
        Ok(hold(&lab, &user, &["-qperuser", "--gres=gpufrac:0.125"]).ok())
    })?;
    waits_for(&lab, third, "QOSMaxGRESPerUser")?;
    lab.command("scancel").args([third.to_string()]).stdout()?;
    // Another user has a separate limit.
    let others = hold(&lab, &other, &["-qperuser", QUARTER])?;
    lab.wait_for_state(others, &["RUNNING"])?;
    // Limits in minutes: a job must fit in the rest until its time limit.
    let fits = hold(&lab, &user, &["-Abudget", "-t3", QUARTER])?;
    lab.wait_for_state(fits, &["RUNNING"])?;
    let over = hold(&lab, &user, &["-Abudget", "-t3", QUARTER])?;
    waits_for(&lab, over, "AssocGrpGRESMinutes")?;
    // A job that can never run waits, unless its QOS says otherwise.
    let never = [
        (["-Acourse", HALF], "AssocMaxGRESPerJob"),
        (["-qperjob", HALF], "QOSMaxGRESPerJob"),
    ];
    for (args, reason) in never {
        let job = hold(&lab, &user, &args)?;
        waits_for(&lab, job, reason)?;
        lab.command("scancel").args([job.to_string()]).stdout()?;
    }
    refused(&lab, &user, &["-qdeny", HALF], &["QOSMaxGRESPerJob"])?;
    // The size after rounding counts, and the user is told both.
    let both = ["rounded up from 0.2 to 0.25", "QOSMaxGRESPerJob"];
    refused(&lab, &user, &["-qodd", "--gres=gpufrac:0.2"], &both)?;
    // gpufrac's own rules of partitions are checked first, in the client and in the controller.
    let text = std::fs::read_to_string(lab.folder().gpufrac_conf()).expect("gpufrac.toml");
    let lax = lab.folder().etc().join("lax.toml");
    let without_rules = text.split("[partition.small]").next().unwrap_or_default();
    std::fs::write(&lax, without_rules).expect("a file for clients");
    for conf in [lab.folder().gpufrac_conf(), lax] {
        for (qos, gres, size) in [
            ("-qdeny", HALF, "0.5"),
            ("-qodd", "--gres=gpufrac:0.2", "0.25"),
        ] {
            let sbatch = lab
                .command("sbatch")
                .user(&user)
                .env("GPUFRAC_CONFIG", &conf);
            let outcome = sbatch.args(["-psmall", qos, gres, "--wrap=true"]).run()?;
            let own = format!(
                "gpufrac: partition small does not give {size} of a GPU; write --gres=gpufrac:0.125"
            );
            assert!(outcome.stderr.contains(&own), "{outcome:?}");
            assert!(!outcome.stderr.contains("QOSMax"), "{outcome:?}");
        }
    }
    // A partition's default counts like a requested size.
    refused(&lab, &user, &["-psmall", "-qtiny"], &["QOSMaxGRESPerJob"])?;
    // A change cannot evade a limit. Slurm does not refuse it; the job waits.
    let held = lab.sbatch(&user, &["--hold", "-qdeny", QUARTER, "--wrap=true"])?;
    let change = [
        "update",
        &format!("JobId={held}"),
        "Partition=gpu",
        "Gres=gpufrac:0.5",
    ];
    let changed = lab.command("scontrol").user(&user).args(change).run()?;
    changed.success()?;
    lab.command("scontrol")
        .args(["release", &held.to_string()])
        .stdout()?;
    waits_for(&lab, held, "QOSMaxGRESPerJob")?;

    for (first, second) in pairs.into_iter().chain([(fits, over)]) {
        lab.command("scancel").args([first.to_string()]).stdout()?;
        lab.wait_for_state(second, &["RUNNING"])?;
    }
    go(&lab)?;
    lab.command("scancel").args([held.to_string()]).stdout()?;
    lab.wait_until_empty(Duration::from_secs(60))?;
    lab.expect_nothing_left()
}

/// Promise (users): a job for another cluster is judged there, and not by the files of the host that submits it.
#[test]
fn a_job_for_another_cluster_is_judged_there() -> Result<(), LabError> {
    let lab = Lab::builder().accounting().start()?;
    let user = &lab.users()[0];
    // The file of a host whose own cluster has another partition.
    let pool = "version = 1\n[pool.own]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
         partitions = [\"own\"]\nnodes = \"own1\"\n";
    let here = lab.write_work("gpufrac.toml", pool)?;
    let submit = |more: &[&str]| {
        let job = [
            "--gres=gpufrac:0.2",
            "--partition=gpu",
            "--hold",
            "--wrap=true",
        ];
        let sbatch = lab
            .command("sbatch")
            .user(user)
            .env("GPUFRAC_CONFIG", &here);
        sbatch.args(job).args(more).run()
    };
    let refused = submit(&[])?.stderr;
    assert!(refused.contains("has no fractions of GPUs"), "{refused}");
    let taken = submit(&["--clusters=lab"])?.success()?;
    // This cluster has rounded 0.2.
    let squeue = lab.command("squeue").args(["-h", "-O", "tres-per-node:80"]);
    let shown = squeue.stdout()?;
    assert!(shown.contains("gpufrac:25"), "{shown} {taken:?}");
    lab.command("scancel")
        .args(["--user", &user.name])
        .stdout()?;
    // The text of srun is that of its step, too, which slurmctld's plugin does not see.
    let srun = lab.command("srun").user(user);
    let srun = srun.args(["--clusters=lab", "--gres=gpufrac:0.2", "true"]);
    srun.run()?.success()?;
    lab.expect_nothing_left()
}

/// Promise (users): a plan reads the limits that sacctmgr prints to an ordinary user, by the commands of the manual,
/// and names lines that it cannot read.
/// With `both_tables_are_read_from_one_file_and_broken_lines_are_named`, `no_bytes_of_a_table_cause_a_panic`.
#[test]
fn a_plan_reads_the_limits_that_sacctmgr_prints_to_a_user() -> Result<(), LabError> {
    let lab = Lab::builder().accounting().start()?;
    let user = &lab.users()[0];
    let limits = [
        "GrpTRES=gres/gpufrac=400,cpu=64",
        "GrpJobs=40",
        "MaxTRESPerJob=gres/gpufrac=200,node=2",
        "MaxTRESPerNode=gres/gpufrac=100",
        "MaxTRESPerUser=gres/gpufrac=300",
        "MaxJobsPerUser=2",
        "MaxTRESPerAccount=gres/gpufrac=300",
        "MaxJobsPerAccount=30",
        "LimitFactor=1.5",
        "Flags=DenyOnLimit,OverPartQOS",
    ];
    lab.sacctmgr(&[&["add", "qos", "few"][..], &limits].concat())?;
    let account = ["GrpTRES=gres/gpufrac=100", "GrpJobs=9", "MaxJobs=8"];
    lab.sacctmgr(&[&["add", "account", "team", "parent=lab"][..], &account].concat())?;
    lab.sacctmgr(&["add", "user", &user.name, "account=team"])?;

    // The commands of the manual, word by word.
    let manual = include_str!("../../../../docs/planning.md");
    let commands = manual
        .lines()
        .filter_map(|line| line.strip_prefix("$ sacctmgr "));
    let mut tables = String::new();
    for command in commands {
        let (command, _) = command.split_once(" >").expect("a redirection");
        let command = lab.command("sacctmgr").user(user).args(command.split(' '));
        tables.push_str(&command.stdout()?);
    }
    let header = "Name|Flags|LimitFactor|GrpTRES|GrpJobs|MaxTRES|MaxTRESPerNode|MaxTRESPU|MaxJobsPU|MaxTRESPA|MaxJobsPA\n";
    assert!(tables.starts_with(header), "{tables}");
    let tables = lab.write_work("limits", &tables)?;
    // Eight jobs of the user at once, an hour each: two run at a time, and the mean wait is an hour and a half.
    let mut history = "JobID|User|Account|QOS|Partition|Start|ElapsedRaw|AllocTRES\n".to_owned();
    for job in 1..=8 {
        let name = &user.name;
        history.push_str(&format!(
            "{job}|{name}|team|few|gpu|1767225600|3600|gres/gpu=1\n"
        ));
    }
    let history = lab.write_work("history", &history)?;
    let plan = lab
        .command("gpufrac")
        .args(["plan", "--quiet", "--samples=1"]);
    let plan = plan.args(["--nodes=1", "--gpus-per-node=8", "--layouts=mps"]);
    let plan = plan.args([
        history.display().to_string(),
        format!("--limits={}", tables.display()),
    ]);
    let page = plan.stdout()?;
    for line in [
        "  limits: 2 QOS and ",
        "  limits that are not counted: GrpTRES of cpu\n",
        ", 0 broken lines\n",
        "mean wait                    1h30m ",
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
    for word in [
        "have no account",
        "have no QOS",
        "have an account",
        "never start",
    ] {
        assert!(!page.contains(word), "{word}\n{page}");
    }
    lab.expect_nothing_left()
}

#[test]
fn fractions_are_billed_and_lower_the_fair_share() -> Result<(), LabError> {
    let weights = "TRESBillingWeights=CPU=3.125,GRES/gpufrac=1.0";
    let lab = Lab::builder()
        .accounting()
        .slurm_conf_extra("AccountingStorageEnforce=limits")
        .slurm_conf_extra("PriorityType=priority/multifactor")
        .slurm_conf_extra("PriorityFlags=MAX_TRES")
        .slurm_conf_extra("PriorityWeightFairshare=10000")
        .slurm_conf_extra("PriorityCalcPeriod=1")
        .partition("weighed", weights)
        .pools(
            "[pool.halves]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
             partitions = [\"weighed\"]\nnodes = \"@NODES@\"\n",
        )
        .start()?;
    let (user, other) = (&lab.users()[0], &lab.users()[1]);
    let billed = [
        (user, &["-n1", QUARTER][..], 25),
        (user, &["-n8", QUARTER], 25),
        (user, &["-n1", "--gres=gpufrac:0.125"], 13),
        // More CPUs than belong to a half: the CPUs are billed.
        (user, &["-n16", HALF], 50),
        (user, &["-n20", HALF], 62),
        (other, &["-n4"], 12),
    ];
    let mut jobs = Vec::new();
    for (user, args, units) in billed {
        jobs.push((hold(&lab, user, &[&["-pweighed"], args].concat())?, units));
    }
    for (job, _) in &jobs {
        lab.wait_for_state(*job, &["RUNNING"])?;
    }
    std::thread::sleep(Duration::from_secs(6));
    go(&lab)?;
    for (job, units) in jobs {
        let records = Records::of(&lab, job, 3)?;
        assert_eq!(
            records.count(&job.to_string(), "billing"),
            units,
            "{:?}",
            records.0
        );
    }

    lab.wait(
        "a lower share of who used more",
        Duration::from_secs(150),
        || {
            let args = [
                "--all",
                "--parsable2",
                "--noheader",
                "--format=User,RawUsage,FairShare",
            ];
            let text = lab.command("sshare").args(args).stdout()?;
            let share = |user: &User| -> Option<(u64, f64)> {
                let row = format!("{}|", user.name);
                let line = text.lines().find_map(|line| line.strip_prefix(&row))?;
                let (usage, share) = line.split_once('|')?;
                Some((usage.parse().ok()?, share.parse().ok()?))
            };
            let (Some((used, share)), Some((less, more))) = (share(user), share(other)) else {
                return Ok(None);
            };
            // The usage of a job is known at its end, and its priority is updated once a minute.
            assert!(used > 6 * less, "{text}");
            Ok((share < more).then_some(()))
        },
    )?;
    lab.expect_nothing_left()
}

/// The findings and hints of `gpufrac check` about limits, and its exit code.
fn checked(lab: &Lab) -> Result<(Option<i32>, String), LabError> {
    let said = lab.command("gpufrac").args(["check", "--slurm"]).run()?;
    Ok((said.status.code(), said.stderr))
}

/// Runs a command as check prints it.
fn run_line(lab: &Lab, line: &str) -> Result<(), LabError> {
    for command in line.split(" && ") {
        let mut words = command.split(' ');
        match words.next() {
            Some("sacctmgr") => drop(lab.sacctmgr(&words.collect::<Vec<_>>())?),
            Some(program) => drop(lab.command(program).args(words).stdout()?),
            None => {}
        }
    }
    Ok(())
}

/// Promise (admins): `gpufrac check` names limits of QOS and associations, weights and reservations that fractions
/// change, and its lines mend them.
/// With `limits_on_gpus_hold_no_fraction`, `a_limit_on_shards_names_the_sizes_over_it`,
/// `a_reservation_of_gpus_is_replaced_by_one_of_its_nodes`, `weights_of_types_are_weights_of_gpus`.
#[test]
fn check_names_the_limits_that_fractions_change_and_its_lines_mend_them() -> Result<(), LabError> {
    const TRACKED: &str = "AccountingStorageTRES=gres/gpu,gres/gpu:h100,gres/shard";
    let mut lab = Lab::builder()
        .accounting()
        .slurm_conf_extra("AccountingStorageEnforce=associations,limits,qos")
        .slurm_conf_extra(TRACKED)
        .start()?;
    let user = lab.users()[0].clone();
    for (qos, limit) in [
        ("few", "MaxTRESPerUser=gres/shard=40,gres/gpu=1"),
        ("least", "MinTRESPerJob=gres/gpu=1"),
    ] {
        lab.sacctmgr(&["add", "qos", qos, limit])?;
    }
    lab.sacctmgr(&["modify", "cluster", "lab", "set", "GrpTRES=gres/gpu=9"])?;
    lab.sacctmgr(&["modify", "account", "lab", "set", "GrpTRES=gres/gpu=8"])?;
    let users: Vec<&str> = lab.users()[..2].iter().map(|user| &*user.name).collect();
    for name in &users {
        lab.sacctmgr(&["modify", "user", name, "set", "MaxTRES=gres/gpu:h100=2"])?;
    }
    lab.sacctmgr(&["modify", "user", &user.name, "set", "qos+=few,least"])?;
    let few = hold(&lab, &user, &["-t1", "-qfew", HALF])?;
    waits_for(&lab, few, "QOSMaxGRESPerUser")?;
    let least = hold(&lab, &user, &["-t1", "-qleast", QUARTER])?;
    waits_for(&lab, least, "QOSMinGRES")?;
    // Limits on whole GPUs hold no fraction: the account has eight, and no GPU is counted.
    let free = hold(&lab, &user, &["-t1", HALF])?;
    lab.wait_for_state(free, &["RUNNING"])?;
    // Slurm 22.05 has no reservations of GPUs.
    let reserve = format!(
        "create reservation ReservationName=r StartTime=now+1hour Duration=60 Users={} TRES=gres/gpu=1 PartitionName=gpu",
        user.name
    );
    let reserved = lab.command("scontrol").args(reserve.split(' ')).run()?;
    let reserved = reserved.status.success();

    let (code, text) = checked(&lab)?;
    assert_eq!(code, Some(1), "{text}");
    let lines = [
        "sacctmgr modify qos few set MaxTRESPU=gres/gpu=1,gres/shard=-1,gres/gpufrac=100\n",
        "sacctmgr modify qos least set MinTRES=gres/gpu=-1,gres/gpufrac=13\n",
        "sacctmgr modify cluster lab set GrpTRES=gres/gpu=9,gres/gpufrac=900\n",
        "sacctmgr modify account where name=lab cluster=lab set GrpTRES=gres/gpu=8,gres/gpufrac=800\n",
        " account=lab cluster=lab set MaxTRES=gres/gpu:h100=-1,gres/gpufrac=200\n",
    ];
    let tracked = format!("{TRACKED},gres/gpufrac");
    let what = [
        "MaxTRESPU=gres/shard=40 counts parts of GPUs, 100 a GPU: a request for gpufrac:0.5 waits for ever",
        "GrpTRES=gres/gpu=8 limits no fraction: Slurm counts it as gres/gpufrac",
        &tracked,
    ];
    for expected in lines.iter().chain(&what) {
        assert!(text.contains(expected), "no {expected} in {text}");
    }
    assert_eq!(
        text.contains("reservation r: TRES=gres/gpu=1 on "),
        reserved,
        "{text}"
    );
    let list = lab
        .command("gpufrac")
        .args(["check", "--migration"])
        .run()?;
    assert_eq!(list.status.code(), Some(1), "{list:?}");
    for expected in lines.iter().chain(&what) {
        assert!(list.stdout.contains(expected), "no {expected} in {list:?}");
    }

    assert!(!list.stdout.contains("Not known"), "{list:?}");
    let init = lab
        .command("gpufrac")
        .args(["init", "--node", &lab.nodes()[0]])
        .stdout()?;
    for line in lines {
        assert!(init.contains(line), "no {line} in {init}");
    }

    // What the hints say, in their order.
    let path = lab.folder().etc().join("slurm.conf");
    let conf = std::fs::read_to_string(&path).expect("slurm.conf");
    std::fs::write(&path, conf.replace(TRACKED, &tracked)).expect("root may");
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.start_slurmctld()?;
    // Slurm 22.05 counts no shards before the node has registered them.
    let text = lab.wait("the node has registered", Duration::from_secs(60), || {
        let (code, text) = checked(&lab)?;
        Ok((code == Some(1)).then_some(text))
    })?;
    let mut done: Vec<&str> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("hint: ")) {
        let begin = line
            .find("sacctmgr modify")
            .or_else(|| line.find("scontrol delete"));
        let Some(command) = begin.map(|begin| &line[begin..]) else {
            panic!("no command in {line}: {text}");
        };
        // A limit with two faults has the same line twice.
        if !done.contains(&command) {
            run_line(&lab, command)?;
            done.push(command);
        }
    }
    assert_eq!(done.len(), 5 + usize::from(reserved), "{text}");
    let (code, text) = checked(&lab)?;
    assert_eq!((code, text.as_str()), (Some(0), ""));
    for job in [few, least] {
        lab.wait_for_state(job, &["RUNNING"])?;
    }
    if reserved {
        lab.command("scontrol")
            .args(["delete", "ReservationName=r"])
            .stdout()?;
    }
    go(&lab)?;
    lab.wait_until_empty(Duration::from_secs(60))?;
    lab.expect_nothing_left()
}

/// Promise (admins): `gpufrac check --migration` lists what ends, what to write instead, and whose jobs wait with it.
/// With `a_migration_is_listed_before_anything_is_written`, `each_old_request_has_a_new_one_of_the_menu`.
#[test]
fn a_migration_lists_the_requests_of_waiting_and_ended_jobs() -> Result<(), LabError> {
    let mut lab = Lab::builder().accounting().start()?;
    // As before gpufrac: nothing rewrites or refuses a request.
    let path = lab.folder().etc().join("slurm.conf");
    let conf = std::fs::read_to_string(&path).expect("slurm.conf");
    let lines = conf
        .lines()
        .filter(|line| !line.contains("Plugins=gpufrac"));
    let conf: Vec<&str> = lines.collect();
    std::fs::write(&path, conf.join("\n") + "\n").expect("root may");
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.start_slurmctld()?;
    let user = lab.users()[0].clone();
    // sacct lists no job that was never eligible, as a held one.
    let drain = format!("update NodeName={} State=DRAIN Reason=test", lab.nodes()[0]);
    lab.command("scontrol").args(drain.split(' ')).stdout()?;
    let ended = lab.sbatch(&user, &["-n1", "-G1", "--wrap=true"])?;
    lab.wait("sacct lists it", Duration::from_secs(30), || {
        let all = ["-a", "-X", "-n", "-S", "now-30days"];
        let listed = lab.command("sacct").args(all).stdout()?;
        Ok((!listed.is_empty()).then_some(()))
    })?;
    lab.command("scancel").args([ended.to_string()]).stdout()?;
    Records::of(&lab, ended, 1)?;
    let script = lab.write_work("old.sh", "#!/bin/sh\n#SBATCH --gres=gpu:1\ntrue\n")?;
    let script = script.display().to_string();
    let waiting = lab.sbatch(&user, &["-n1", "--hold", &script])?;
    let list = lab
        .command("gpufrac")
        .args(["check", "--migration"])
        .run()?;
    assert_eq!(list.status.code(), Some(1), "{list:?}");
    let name = &user.name;
    for expected in [
        format!("partition gpu: -G 1 -> --gres=gpufrac:0.5 (1 job of {name})\n"),
        format!("partition gpu: --gres=gpu:1 -> --gres=gpufrac:0.5 (1 job of {name})\n"),
        format!("job {waiting} of {name}, partition gpu: --gres=gpu:1 -> --gres=gpufrac:0.5\n"),
    ] {
        assert!(list.stdout.contains(&expected), "no {expected} in {list:?}");
    }
    assert!(!list.stdout.contains("Not known"), "{list:?}");
    lab.command("scancel")
        .args([waiting.to_string()])
        .stdout()?;
    lab.wait_until_empty(Duration::from_secs(60))
}
