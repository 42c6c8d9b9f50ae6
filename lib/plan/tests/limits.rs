//! Limits of accounts and QOS: histories with a known answer, properties, and tables that nobody should have written.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::collections::HashMap;
use std::path::Path;

use fastrand::Rng;
use gpufrac_plan::candidate::{Candidate, Model};
use gpufrac_plan::cluster::{Cluster, Partition};
use gpufrac_plan::job::{Charge, History, Job, Need, Skipped};
use gpufrac_plan::limits::{Assigned, Limits};
use gpufrac_plan::queue::{Outcome, Play, Settings, Work};
use gpufrac_plan::read::{self, ReadError};
use gpufrac_plan::speed::Curve;

const QOS: &str = "Name|Flags|LimitFactor|GrpTRES|GrpJobs|MaxTRES|MaxTRESPerNode|MaxTRESPU|MaxJobsPU|MaxTRESPA|MaxJobsPA\n";
const ACCOUNTS: &str =
    "Cluster|Account|User|Partition|ParentName|GrpTRES|GrpJobs|MaxTRES|MaxTRESPerNode|MaxJobs\n";

fn read(text: &[u8]) -> Result<(Limits, Skipped), ReadError> {
    let (mut limits, mut skipped) = (Limits::default(), Skipped::default());
    read::limits::read(
        Path::new("limits"),
        text,
        &mut limits,
        &mut None,
        &mut skipped,
    )?;
    Ok((limits, skipped))
}

/// User, account, QOS, and the work of a job.
type Asked<'a> = (&'a str, &'a str, &'a str, Work);

/// A job of `gpus` GPUs of a node, or of a piece.
fn work(submit: u64, ran: u64, units: u32, gpus: u32) -> Work {
    Work {
        submit,
        ran,
        limit: Some(ran),
        partition: 0,
        priority: 0,
        units,
        count: gpus,
        cpus: 0,
        memory: 0,
        nodes: 1,
        activity: 0.0,
        share: 1.0,
        quantile: 0.5,
        class: 0,
    }
}

fn history(asked: &[Asked<'_>]) -> History {
    let mut history = History::default();
    history.partitions.number("gpu");
    for (number, (user, account, qos, work)) in asked.iter().enumerate() {
        let charge = Charge {
            account: history.accounts.number(account),
            qos: history.qos.number(qos),
            gpu_type: history.gpu_types.number("h100"),
        };
        history.jobs.push(Job {
            id: number.to_string().into(),
            user: history.users.number(user),
            charge,
            partition: 0,
            submit: work.submit,
            waited: 0,
            ran: work.ran,
            limit: work.limit,
            nodes: work.nodes,
            gpus: work.count,
            cpus: work.cpus,
            memory: 0,
            priority: 0,
            need: Need::default(),
            idle: Vec::new(),
        });
    }
    history
}

/// Plays jobs on nodes of 8 GPUs with limits, in a partition with a QOS.
fn played(
    asked: &[Asked<'_>],
    limits: &str,
    layout: &str,
    (nodes, qos): (u32, Option<&str>),
) -> Outcome {
    let (limits, skipped) = read(limits.as_bytes()).unwrap();
    assert_eq!(skipped, Skipped::default());
    let mut cluster = Cluster::uniform(nodes, 8);
    cluster.partitions[0].qos = qos.map(str::to_owned);
    let assigned = Assigned::new(&limits, "limits", &history(asked), &cluster);
    let with_class = |(number, (.., work)): (usize, &Asked<'_>)| Work {
        class: assigned.class(number),
        ..work.clone()
    };
    let work: Vec<Work> = asked.iter().enumerate().map(with_class).collect();
    play(&work, &cluster.partitions, &assigned, (nodes, layout))
}

fn play(
    work: &[Work],
    partitions: &[Partition],
    assigned: &Assigned,
    (nodes, layout): (u32, &str),
) -> Outcome {
    let model = Model::named("H100-80").unwrap();
    let fleet = Candidate::parse(layout)
        .unwrap()
        .fleet(&model, &vec![8; nodes as usize])
        .unwrap();
    Play::run(
        work,
        partitions,
        &assigned.classes,
        fleet,
        &Curve::proportional(),
        Settings::default(),
    )
}

fn starts(outcome: &Outcome) -> Vec<u64> {
    let run = outcome.runs.iter();
    run.map(|run| run.map_or(u64::MAX, |run| run.start))
        .collect()
}

/// The most jobs that ran at a time.
fn most(outcome: &Outcome) -> usize {
    let runs: Vec<_> = outcome.runs.iter().flatten().collect();
    let running = |at: u64| {
        let now = runs.iter().filter(|run| run.start <= at && at < run.end);
        now.count()
    };
    runs.iter().map(|run| running(run.start)).max().unwrap()
}

#[test]
fn a_user_with_a_limit_of_two_gpus_runs_two_jobs_at_a_time() {
    let jobs: Vec<Asked<'_>> = (0..10)
        .map(|_| ("ann", "a", "normal", work(0, 100, 100, 1)))
        .collect();
    let limits = format!("{QOS}normal|||||||gres/gpu=2|||\n");
    let outcome = played(&jobs, &limits, "whole", (1, None));
    assert_eq!(
        starts(&outcome),
        [0, 0, 100, 100, 200, 200, 300, 300, 400, 400]
    );
}

#[test]
fn a_limit_of_one_gpu_lets_four_quarters_run() {
    let jobs: Vec<Asked<'_>> = (0..8)
        .map(|_| ("ann", "a", "normal", work(0, 100, 25, 1)))
        .collect();
    for most_of_user in [
        "gres/gpu=1",
        "gres/gpufrac=100",
        "gres/gpu:h100=1,gres/gpu=7",
    ] {
        let limits = format!("Name|MaxTRESPU\nnormal|{most_of_user}\n");
        let outcome = played(&jobs, &limits, "uniform:1/4", (1, None));
        assert_eq!(starts(&outcome), [0, 0, 0, 0, 100, 100, 100, 100]);
    }
}

#[test]
fn a_limit_of_an_account_holds_for_all_accounts_below_it() {
    let one = |user, account| (user, account, "normal", work(0, 100, 100, 1));
    let jobs = [
        one("ann", "a"),
        one("bob", "b"),
        one("ann", "a"),
        one("bob", "b"),
        one("cem", "c"),
    ];
    let limits = format!(
        "{ACCOUNTS}x|root||||||||\nx|dept|||root|gres/gpu=3||||\nx|a|||dept|||||\nx|b|||dept|||||\nx|c|||root|||||\n\
         x|a|ann|||||||\nx|b|bob|||||||\nx|c|cem|||||||\n"
    );
    let outcome = played(&jobs, &limits, "whole", (1, None));
    assert_eq!(starts(&outcome), [0, 0, 0, 100, 0], "c is outside of dept");
    // A limit of b itself holds, too, and users without an association count for their account.
    let limits = limits
        .replace("|b|||dept||", "|b|||dept|gres/gpu=1|")
        .replace("x|b|bob|||||||\n", "");
    let jobs = [
        one("bob", "b"),
        one("bob", "b"),
        one("ann", "a"),
        one("ann", "a"),
        one("ann", "a"),
    ];
    let outcome = played(&jobs, &limits, "whole", (1, None));
    assert_eq!(starts(&outcome), [0, 100, 0, 0, 100]);
}

#[test]
fn a_job_that_a_limit_holds_back_delays_no_other_job() {
    // The first job of ann holds back the second one, which would need all other GPUs.
    let jobs = [
        ("ann", "a", "normal", work(0, 10_000, 100, 1)),
        ("ann", "a", "normal", work(1, 100, 100, 7)),
        ("bob", "a", "normal", work(2, 50_000, 100, 7)),
    ];
    let held = played(
        &jobs,
        "Name|MaxTRESPU\nnormal|gres/gpu=7\n",
        "whole",
        (1, None),
    );
    assert_eq!(starts(&held), [0, 50_002, 2]);
    let free = played(&jobs, "Name|MaxTRESPU\nnormal|\n", "whole", (1, None));
    assert_eq!(starts(&free), [0, 1, 101]);
    // Held-back jobs do not hide the jobs behind them, however many they are.
    let mut jobs: Vec<Asked<'_>> = (0..1000)
        .map(|_| ("ann", "a", "normal", work(0, 10_000, 100, 1)))
        .collect();
    jobs.push(("bob", "a", "normal", work(1, 10, 100, 1)));
    let many = played(&jobs, "Name|MaxJobsPU\nnormal|1\n", "whole", (1, None));
    assert_eq!(starts(&many)[1000], 1);
}

#[test]
fn each_limit_of_running_jobs_holds() {
    let one = |user, account| (user, account, "normal", work(0, 100, 100, 1));
    let jobs = [
        one("ann", "a"),
        one("ann", "a"),
        one("bob", "a"),
        one("bob", "b"),
    ];
    for (limits, expected) in [
        ("Name|GrpTRES\nnormal|gres/gpu=2\n", [0, 0, 100, 100]),
        ("Name|GrpJobs\nnormal|3\n", [0, 0, 0, 100]),
        ("Name|MaxJobsPU\nnormal|1\n", [0, 100, 0, 100]),
        ("Name|MaxJobs\nnormal|1\n", [0, 100, 0, 100]),
        ("Name|MaxTRESPA\nnormal|gres/gpu=1\n", [0, 100, 200, 0]),
        ("Name|MaxJobsPA\nnormal|2\n", [0, 0, 100, 0]),
        ("Name|MaxJobsPA\nother|1\n", [0, 0, 0, 0]),
        // MaxJobs of an association holds for each of its users, of which each account has an own one.
        (
            "Account|User|ParentName|MaxJobs\nroot|||\na||root|1\nb||root|1\na|ann||1\na|bob||1\nb|bob||1\n",
            [0, 100, 0, 0],
        ),
        (
            "Account|User|ParentName|MaxJobs\nroot|||\na||root|1\nb||root|1\n",
            [0, 100, 0, 0],
        ),
        (
            "Account|User|ParentName|GrpJobs\nroot|||3\na||root|2\nb||root|\n",
            [0, 0, 100, 0],
        ),
        // An association with the partition comes before the one without.
        (
            "Account|User|Partition|ParentName|GrpJobs\nroot||||\na|ann|gpu||1\na|ann|||2\n",
            [0, 100, 0, 0],
        ),
    ] {
        let outcome = played(&jobs, limits, "whole", (1, None));
        assert_eq!(starts(&outcome), expected, "{limits}");
    }
}

#[test]
fn the_first_limit_of_partition_job_and_association_counts() {
    let jobs: Vec<Asked<'_>> = (0..8)
        .map(|_| ("ann", "a", "own", work(0, 100, 100, 1)))
        .collect();
    let of_account =
        "Account|User|ParentName|GrpTRES|MaxJobs\nroot||||\na||root|gres/gpu=5|7\na|ann|||7\n";
    for (limits, partition, expected) in [
        ("Name|GrpTRES\npart|gres/gpu=2\nown|gres/gpu=4\n", None, 4),
        (
            "Name|GrpTRES\npart|gres/gpu=2\nown|gres/gpu=4\n",
            Some("part"),
            2,
        ),
        (
            "Name|GrpTRES\npart|gres/gpu=4\nown|gres/gpu=2\n",
            Some("part"),
            4,
        ),
        (
            "Name|GrpTRES|Flags\npart|gres/gpu=2|\nown|gres/gpu=4|DenyOnLimit,OverPartQOS\n",
            Some("part"),
            4,
        ),
        // Limits on different things hold together.
        (
            "Name|GrpTRES|GrpJobs\npart|gres/gpu=4|\nown||3\n",
            Some("part"),
            3,
        ),
        ("Name|GrpTRES\nown|\n", None, 5),
        ("Name|GrpTRES\nown|gres/gpu=6\n", None, 6),
        ("Name|LimitFactor|GrpJobs\nown|1.2|\n", None, 6),
        // Jobs by user or by account hide MaxJobs of the association, not its GPUs.
        ("Name|GrpTRES|MaxJobsPA\nown|gres/gpu=8|8\n", None, 8),
        ("Name|GrpTRES|MaxJobsPU\nown|gres/gpu=8|\n", None, 7),
    ] {
        let limits = format!("{limits}{of_account}");
        let outcome = played(&jobs, &limits, "whole", (1, partition));
        assert_eq!(most(&outcome), expected, "{limits}");
    }
}

#[test]
fn a_job_above_a_limit_of_its_own_never_starts() {
    let jobs = [
        ("ann", "a", "normal", work(0, 100, 100, 4)),
        ("ann", "a", "normal", work(0, 100, 100, 2)),
    ];
    for limits in [
        "Name|MaxTRES\nnormal|gres/gpu=3\n",
        "Name|MaxTRESPerNode\nnormal|gres/gpu=3\n",
        "Name|MaxTRESPU\nnormal|gres/gpu=3\n",
        "Account|User|ParentName|MaxTRES\na|||gres/gpu=3\n",
        "Account|User|ParentName|GrpTRES\nroot|||gres/gpu=3\na||root|\n",
    ] {
        let outcome = played(&jobs, limits, "whole", (1, None));
        assert_eq!((outcome.refused, outcome.barred), (1, 1), "{limits}");
        assert_eq!(starts(&outcome), [u64::MAX, 0], "{limits}");
    }
    let nodes = "Name|MaxTRES\nnormal|node=1\n";
    let mut wide = jobs.clone();
    wide[0].3.nodes = 2;
    assert_eq!(played(&wide, nodes, "whole", (2, None)).barred, 1);
    let none = "Name|MaxJobsPU\nnormal|0\n";
    assert_eq!(played(&jobs, none, "whole", (1, None)).barred, 2);
}

/// Random jobs of three users in three accounts with two QOS.
fn random_jobs(random: &mut Rng) -> Vec<Asked<'static>> {
    let mut submit = 0;
    (0..400)
        .map(|_| {
            submit += random.u64(..100);
            let (units, gpus) = match random.u32(..4) {
                0 => (25, 1),
                1 => (50, 1),
                _ => (100, random.u32(1..4)),
            };
            let mut own = work(submit, random.u64(1..2000), units, gpus);
            own.priority = random.u64(..3);
            own.limit = random.bool().then(|| own.ran + random.u64(..3000));
            (
                random.choice(["ann", "bob", "cem"]).unwrap(),
                random.choice(["a", "b", "c"]).unwrap(),
                random.choice(["one", "two"]).unwrap(),
                own,
            )
        })
        .collect()
}

/// Promise (users): a plan holds jobs back by the limits of accounts and QOS as Slurm does: never more than a limit, no
/// other job waits for a job that is held back, pieces count as parts of a GPU, and limits that nobody meets change
/// nothing.
/// With `a_job_that_a_limit_holds_back_delays_no_other_job`, `a_limit_of_an_account_holds_for_all_accounts_below_it`,
/// `the_first_limit_of_partition_job_and_association_counts`, `a_limit_of_one_gpu_lets_four_quarters_run`,
/// `limits_that_no_job_meets_change_nothing`.
#[test]
fn no_count_is_ever_above_its_limit() {
    let mut random = Rng::with_seed(test_seed::seed());
    for _ in 0..20 {
        let jobs = random_jobs(&mut random);
        let mut number = || random.u64(3..9);
        let [pool, each, account, by_user, below, all] = [(); 6].map(|()| number());
        let limits = format!(
            "Name|GrpTRES|MaxTRESPA|MaxJobsPU\none|gres/gpu={pool}|gres/gpufrac={}|{by_user}\ntwo||gres/gpu={account}|\n\
             Account|User|ParentName|GrpTRES|GrpJobs|MaxJobs\nroot||||{}|\ndept||root|gres/gpu:h100={below}||\n\
             a||dept||{all}|\nb||dept|||\nc||root|||{each}\n",
            each * 100,
            2 * all
        );
        let outcome = played(&jobs, &limits, "halves+4", (4, None));
        assert_eq!(outcome.refused, 0);
        let mut times: Vec<(u64, bool, usize)> = Vec::new();
        for (number, run) in outcome.runs.iter().enumerate() {
            let run = run.unwrap();
            times.push((run.start, true, number));
            times.push((run.end, false, number));
        }
        // Ends come before starts of the same second.
        times.sort_unstable();
        let mut used: HashMap<String, u64> = HashMap::new();
        for (_, is_start, number) in times {
            let (user, own, qos, work) = &jobs[number];
            let units = u64::from(work.units * work.count);
            let mut counts = vec![
                (format!("units of {qos}"), units, pool * 100),
                (format!("units of {qos} by {own}"), units, each * 100),
                (format!("jobs of {qos} by {user}"), 1, by_user),
                ("jobs of root".to_owned(), 1, 2 * all),
            ];
            if *qos == "two" {
                counts = vec![
                    (format!("units of {qos} by {own}"), units, account * 100),
                    ("jobs of root".to_owned(), 1, 2 * all),
                ];
            }
            if ["a", "b"].contains(own) {
                counts.push(("units of dept".to_owned(), units, below * 100));
            }
            if *own == "a" {
                counts.push(("jobs of a".to_owned(), 1, all));
            }
            if *own == "c" && *qos == "two" {
                counts.push((format!("jobs of {user} in c"), 1, each));
            }
            for (name, amount, most) in counts {
                let count = used.entry(name.clone()).or_default();
                if is_start {
                    *count += amount
                } else {
                    *count -= amount
                }
                assert!(*count <= most, "{name}: {count} of {most}\n{limits}");
            }
        }
    }
}

#[test]
fn limits_that_no_job_meets_change_nothing() {
    let mut random = Rng::with_seed(test_seed::seed());
    for layout in ["halves+4", "uniform:1/4", "mps"] {
        let jobs = random_jobs(&mut random);
        let limits = "Name|GrpTRES|MaxTRESPU|GrpJobs\none|gres/gpu=900|gres/gpufrac=90000|9000\ntwo|||\n\
            Account|User|ParentName|GrpTRES|MaxJobs\nroot|||gres/gpu=900|\na||root||9000\n";
        let limited = played(&jobs, limits, layout, (3, None));
        let work: Vec<Work> = jobs.iter().map(|(.., work)| work.clone()).collect();
        let partitions = Cluster::uniform(3, 8).partitions;
        let free = play(&work, &partitions, &Assigned::default(), (3, layout));
        assert_eq!(limited, free, "{layout}");
    }
}

#[test]
fn both_tables_are_read_from_one_file_and_broken_lines_are_named() {
    let text = format!(
        "{QOS}normal||||||||4||\nbad|||gres/gpu=many|||||||\nshort|\nhalf|Relative||gres/gpu=50|||||||\n\
         cpus|||cpu=64,mem=100G,gres/gpu=2,node=3|||||||\n{ACCOUNTS}x|root||||||||\nx|a|||root|gres/gpu:a100=4||node=2||\n\
         x|a|ann||||x|||\nx||||||||||\n"
    );
    let (limits, skipped) = read(text.as_bytes()).unwrap();
    assert_eq!((limits.qos.len(), limits.associations.len()), (2, 2));
    assert_eq!(limits.qos["normal"].by_user.jobs, Some(4));
    assert_eq!(skipped.broken, 5, "{skipped:?}");
    assert_eq!(skipped.first[0], "limits:3: GrpTRES is `gres/gpu=many`");
    let uncounted: Vec<&str> = limits.uncounted.iter().map(String::as_str).collect();
    assert_eq!(
        uncounted,
        ["GrpTRES of cpu", "GrpTRES of mem", "GrpTRES of node"]
    );
    // `sacctmgr -p` ends each line with a mark.
    let (limits, skipped) = read(b"Name|GrpTRESMins|GrpJobs|\nq|cpu=7|3|\n").unwrap();
    assert_eq!(
        (limits.qos["q"].all.jobs, skipped.broken),
        (Some(3), 0),
        "{limits:?}"
    );
    assert!(limits.uncounted.contains("GrpTRESMins"));
    // The name of `[gres]` that `gpufrac init` writes.
    let (frac, _) = read(b"Name|GrpTRES\nq|gres/frac=50\n").unwrap();
    let (default, _) = read(b"Name|GrpTRES\nq|gres/gpufrac=50\n").unwrap();
    assert_eq!(frac.qos["q"].all.tres, default.qos["q"].all.tres);
    assert!(!frac.qos["q"].all.tres.is_empty() && frac.uncounted.is_empty());
}

#[test]
fn the_manual_has_the_commands_that_print_what_a_plan_reads() {
    let page = include_str!("../../../docs/planning.md");
    let manual = include_str!("../../../docs/man/gpufrac.1").replace("\\-", "-");
    for command in read::limits::COMMANDS {
        assert!(page.contains(&format!("$ {command} >")), "{command}");
        assert!(manual.contains(command), "{command}");
    }
    assert!(page.contains(&format!("$ {} >", read::sacct::COMMAND)));
}

#[test]
fn files_without_a_table_or_with_several_clusters_are_refused() {
    for text in ["", "normal|||\n", "Name|Priority\nnormal|3\n"] {
        let error = read(text.as_bytes()).unwrap_err();
        assert!(matches!(error, ReadError::Limits { .. }), "{text}");
    }
    let two = "Cluster|Account|User|ParentName|GrpJobs\nx|root|||\ny|root|||\n";
    let error = read(two.as_bytes()).unwrap_err();
    assert!(matches!(error, ReadError::Clusters { .. }));
    let flat = "Cluster|Account|User|GrpJobs\nx|root||\n";
    let error = read(flat.as_bytes()).unwrap_err();
    assert!(matches!(
        error,
        ReadError::Column {
            column: "ParentName",
            ..
        }
    ));
}

#[test]
fn jobs_without_account_or_qos_are_counted() {
    let text = "Name|GrpJobs\nnormal|1\nAccount|User|ParentName|GrpJobs\nroot|||\na||root|\n";
    let (limits, _) = read(text.as_bytes()).unwrap();
    let own = work(0, 100, 100, 1);
    let asked = [
        ("ann", "", "", own.clone()),
        ("ann", "a", "high", own.clone()),
        ("", "z", "normal", own),
    ];
    let cluster = Cluster::uniform(1, 8);
    let assigned = Assigned::new(&limits, "f", &history(&asked), &cluster);
    assert_eq!(
        (
            assigned.without_account,
            assigned.unknown_account,
            assigned.without_qos,
            assigned.unknown_qos
        ),
        (1, 1, 1, 1)
    );
    assert_eq!(assigned.source, "1 QOS and 2 associations of f");
}

#[test]
fn no_bytes_of_a_table_cause_a_panic() {
    let mut random = Rng::with_seed(test_seed::seed());
    let whole = format!(
        "{QOS}one|OverPartQOS|2.0|gres/gpu=4|9|gres/gpu=2|gres/gpu=2|gres/gpufrac=300|3|gres/gpu:h100=2|4\n\
         {ACCOUNTS}x|root||||gres/gpu=9||||\nx|a|||root|||gres/gpu=4|node=1|2\nx|a|ann|gpu||gres/gpu=2|||||\n"
    );
    let asked = random_jobs(&mut random);
    let cluster = Cluster::uniform(1, 8);
    for _ in 0..3000 {
        let mut bytes = whole.clone().into_bytes();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len());
            match random.u8(..3) {
                0 => bytes[at] = random.u8(..),
                1 => bytes.insert(at, random.choice(*b"|,=-:.0123456789\n\xff").unwrap()),
                _ => drop(bytes.remove(at)),
            }
        }
        if let Ok((limits, _)) = read(&bytes) {
            let assigned = Assigned::new(&limits, "limits", &history(&asked[..9]), &cluster);
            assert!(assigned.class(0) < assigned.classes.len() as u32);
        }
    }
    // Accounts that are each other's parent.
    let ring = "Account|User|ParentName|GrpJobs\na||b|1\nb||a|1\n";
    let (limits, _) = read(ring.as_bytes()).unwrap();
    let assigned = Assigned::new(&limits, "limits", &history(&asked), &cluster);
    assert!(assigned.classes.len() > 1);
}
