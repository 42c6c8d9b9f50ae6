//! Readers: the forms of all versions, and lines that nobody should have written.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;

use fastrand::Rng;
use gpufrac_plan::job::History;
use gpufrac_plan::read::{self, ReadError};
use gpufrac_plan::shares_per_gpu::SharesPerGpu;

fn read(text: &[u8]) -> Result<History, ReadError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("history");
    fs::write(&path, text).unwrap();
    let mut history = History::default();
    read::history(&path, None, &mut history, &mut |_| {})?;
    Ok(history)
}

const HEAD: &str = "JobID|User|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|NNodes|NodeList|Priority\n";

fn line(id: &str, start: &str, tres: &str) -> String {
    format!(
        "{id}|ann|gpu|COMPLETED|2026-11-01T08:00:00|2026-11-01T08:00:00|{start}|Unknown|600|60|{tres}|1|gn01|100\n"
    )
}

const TRES: &str = "billing=8,cpu=8,gres/gpu:a100=1,gres/gpu=1,node=1";
const START: &str = "2026-11-01T08:10:00";

#[test]
fn arrays_het_jobs_and_runs_of_requeued_jobs_are_jobs() {
    let mut text = HEAD.to_owned();
    for id in ["7", "8_1", "8_2", "9+0", "9+1"] {
        text.push_str(&line(id, START, TRES));
    }
    // The second run of a requeued job waits from the end of the first one.
    text.push_str(&line("10", START, TRES));
    text.push_str(&line("10", "2026-11-01T09:00:00", TRES));
    let history = read(text.as_bytes()).unwrap();
    assert_eq!(history.jobs.len(), 7);
    assert_eq!(history.jobs[0].waited, 600);
    assert_eq!(history.jobs[6].waited, 40 * 60);
    assert_eq!(history.jobs[0].limit, Some(3600));
    assert_eq!(history.cluster().unwrap().gpus(), 6);
}

#[test]
fn steps_pending_jobs_and_jobs_without_gpus_are_no_jobs() {
    let mut text = HEAD.to_owned();
    text.push_str(&line("7", START, TRES));
    text.push_str(&line("7.batch", START, TRES));
    text.push_str(&line("8", "Unknown", TRES));
    text.push_str(&line("9_[1-5]", "None", TRES));
    text.push_str(&line("10", START, "cpu=1,node=1"));
    let history = read(text.as_bytes()).unwrap();
    assert_eq!(history.jobs.len(), 1);
    assert_eq!(
        (
            history.skipped.not_started,
            history.skipped.without_gpu,
            history.skipped.broken
        ),
        (2, 1, 0)
    );
}

#[test]
fn fields_may_be_missing_and_have_the_names_and_forms_of_old_versions() {
    let history = read(b"JobID|Start|End|AllocGRES|Timelimit\n7|2020-01-01T00:00:00|2020-01-01T01:00:00|gpu:2|UNLIMITED\n").unwrap();
    let job = &history.jobs[0];
    assert_eq!(
        (job.gpus, job.ran, job.limit, job.waited),
        (2, 3600, None, 0)
    );
    let seconds =
        read(b"JobIDRaw|Start|Elapsed|AllocTRES|NNodes\n7|1767225600|1-00:00:00|gres/gpu=8|2\n")
            .unwrap();
    assert_eq!(
        (
            seconds.jobs[0].gpus,
            seconds.jobs[0].nodes,
            seconds.jobs[0].ran
        ),
        (4, 2, 86_400)
    );
    assert!(matches!(
        read(b"JobID|User\n7|ann\n"),
        Err(ReadError::Column {
            column: "Start",
            ..
        })
    ));
    assert!(matches!(read(b"hello\n"), Err(ReadError::Form { .. })));
    assert!(matches!(read(b""), Err(ReadError::Form { .. })));
}

#[test]
fn accounts_qos_and_types_of_gpus_are_read_where_they_are_there() {
    let text = "JobID|Account|QOS|Start|ElapsedRaw|AllocTRES\n7|physics|high|1767225600|60|gres/gpu:a100=1,gres/gpu=1\n8|||1767225600|60|gres/gpu=1\n";
    let names = |history: &History, job: usize| {
        let charge = history.jobs[job].charge;
        [
            history.accounts.name(charge.account).to_owned(),
            history.qos.name(charge.qos).to_owned(),
            history.gpu_types.name(charge.gpu_type).to_owned(),
        ]
    };
    let history = read(text.as_bytes()).unwrap();
    assert_eq!(names(&history, 0), ["physics", "high", "a100"]);
    assert_eq!(names(&history, 1), ["", "", ""]);
    let without = read(format!("{HEAD}{}", line("7", START, TRES)).as_bytes()).unwrap();
    assert_eq!(names(&without, 0), ["", "", "a100"]);
}

/// The history of a site with instances, shards, MPS, and telemetry that Slurm could not take.
const SHARED: &str = "\
JobID|User|Account|QOS|Partition|State|Submit|Eligible|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|NNodes|NodeList|TRESUsageInMax|TRESUsageInAve
1|u1|a|normal|gpu|COMPLETED|2026-08-01T08:00:00|2026-08-01T08:00:00|2026-08-01T08:00:10|2026-08-01T10:00:10|7200|1440|cpu=8,mem=30G,gres/gpu:a100_3g.20gb=1|1|gn01||
2|u2|a|normal|gpu|COMPLETED|2026-08-01T08:00:00|2026-08-01T08:00:00|2026-08-01T08:00:10|2026-08-01T09:00:10|3600|1440|cpu=4,gres/gpu=2,gres/gpu:a100_1g.5gb=2,mem=20G|1|gn01||
3|u3|b|normal|gpu|COMPLETED|2026-08-01T08:20:00|2026-08-01T08:20:00|2026-08-01T08:22:10|2026-08-01T09:22:10|3600|1440|cpu=4,gres/shard=8,mem=16G|1|gn03||
4|u3|b|normal|gpu|COMPLETED|2026-08-01T08:20:00|2026-08-01T08:20:00|2026-08-01T08:22:10|2026-08-01T09:22:10|3600|1440|cpu=4,gres/mps=50,mem=16G|1|gn03||
5|u4|c|normal|gpu|COMPLETED|2026-08-01T08:20:00|2026-08-01T08:20:00|2026-08-01T08:22:10|2026-08-01T09:22:10|3600|1440|cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=64G|1|gn02|gres/gpumem=0,gres/gpuutil=0|gres/gpumem=0,gres/gpuutil=0
6|u4|c|normal|gpu|COMPLETED|2026-08-01T08:20:00|2026-08-01T08:20:00|2026-08-01T08:22:10|2026-08-01T09:22:10|3600|1440|cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=64G|1|gn02|gres/gpumem=18446744073709551614,gres/gpuutil=18446744073709551614|gres/gpumem=18446744073709551614,gres/gpuutil=18446744073709551614
";

#[test]
fn jobs_with_parts_of_gpus_count_as_their_part() {
    let parts = |history: &History| -> Vec<(String, u32, Option<f32>)> {
        let jobs = history.jobs.iter();
        jobs.map(|job| (job.id.to_string(), job.all_gpus(), job.need.share))
            .collect()
    };
    let without = read(SHARED.as_bytes()).unwrap();
    let one = |id: &str, share| (id.to_owned(), 1, share);
    let whole = [one("5", None), one("6", None)];
    let pieces = [
        one("1", Some(0.5)),
        one("2", Some(0.28)),
        one("4", Some(0.5)),
    ];
    assert_eq!(parts(&without), [&pieces[..], &whole[..]].concat());
    assert_eq!(without.skipped.with_shards, 1, "{:?}", without.skipped);
    assert_eq!(without.cluster().unwrap().gpus_by_node(), [1, 2, 1]);

    let nodes = read::nodes::read("NodeName=gn03 Gres=gpu:a100:4,shard:32,mps:400\n").unwrap();
    let mut with = History {
        shares_per_gpu: SharesPerGpu::of(&nodes),
        ..History::default()
    };
    let path = tempfile::NamedTempFile::new().unwrap();
    fs::write(&path, SHARED).unwrap();
    read::history(path.path(), None, &mut with, &mut |_| {}).unwrap();
    assert_eq!((with.jobs.len(), with.skipped.with_shards), (6, 0));
    assert_eq!(parts(&with)[2], one("3", Some(1.0)));
}

#[test]
fn devices_are_those_of_the_first_field_that_has_some() {
    let head = "JobID|Start|ElapsedRaw|NNodes|AllocTRES|AllocGRES|ReqTRES\n";
    for (fields, gpus, nodes, share) in [
        ("1||gpu:a100:2(IDX:0-1)|", 2, 1, None),
        ("1||gpu:a100_1g.5gb:1|", 1, 1, Some(0.14)),
        ("1||mps:50|", 1, 1, Some(0.5)),
        ("1|cpu=4|gpu:1|", 1, 1, None),
        ("1|||gres/gpu:h100_2g.20gb=1", 1, 1, Some(0.28)),
        ("2|gres/gpu=2,gres/gpu:1g.10gb=2||", 1, 2, Some(0.14)),
    ] {
        let history = read(format!("{head}7|1767225600|60|{fields}\n").as_bytes()).unwrap();
        let job = &history.jobs[0];
        assert_eq!(
            (job.gpus, job.nodes, job.need.share),
            (gpus, nodes, share),
            "{fields}"
        );
        assert_eq!(job.can_share(), share.is_some() || gpus == 1, "{fields}");
    }
    let shards = read(format!("{head}7|1767225600|60|1||shard:8|\n").as_bytes()).unwrap();
    assert_eq!((shards.jobs.len(), shards.skipped.with_shards), (0, 1));
}

#[test]
fn telemetry_that_slurm_could_not_take_is_none() {
    let head = "JobID|Start|ElapsedRaw|AllocTRES|TRESUsageInMax|TRESUsageInAve\n7|1767225600|60|gres/gpu=1||\n";
    for (most, mean, memory, activity) in [
        ("gres/gpumem=0,gres/gpuutil=0", "gres/gpuutil=0", None, None),
        ("gres/gpumem=0", "", None, None),
        ("", "gres/gpuutil=0", None, None),
        (
            "gres/gpumem=18446744073709551614",
            "gres/gpuutil=18446744073709551614",
            None,
            None,
        ),
        (
            "gres/gpumem=17592186044416M",
            "gres/gpuutil=9223372036854775808",
            None,
            None,
        ),
        (
            "gres/gpumem=2G",
            "gres/gpuutil=18446744073709551615",
            Some(2048.0),
            None,
        ),
        ("gres/gpumem=2G", "gres/gpuutil=0", Some(2048.0), Some(0.0)),
        ("gres/gpumem=0", "gres/gpuutil=40", None, Some(0.4)),
    ] {
        let history = read(format!("{head}7.0|1767225600|60||{most}|{mean}\n").as_bytes()).unwrap();
        let need = history.jobs[0].need;
        assert_eq!(
            (need.memory_mib, need.activity),
            (memory, activity),
            "{most} {mean}"
        );
    }
}

#[test]
fn a_broken_line_is_named_and_skipped() {
    let mut text = HEAD.to_owned();
    for broken in [
        line("x7", START, TRES),
        line("7", "yesterday", TRES),
        line("7", START, "gres/gpu=many"),
        line("7", START, TRES).replace("|600|", "|99999999999999999999|"),
        line("7", START, "gres/gpu=4000000000"),
        line("7", START, TRES).replace("|60|", "|soon|"),
        line("7", START, TRES).replace("ann", "a|nn"),
    ] {
        text.push_str(&broken);
    }
    text.push_str(&line("8", START, TRES));
    let history = read(text.as_bytes()).unwrap();
    assert_eq!((history.jobs.len(), history.skipped.broken), (1, 7));
    assert_eq!(history.skipped.first.len(), 5, "the first ones are named");
    assert!(
        history.skipped.first[1].ends_with(":3: Start is `yesterday`"),
        "{:?}",
        history.skipped.first
    );
}

#[test]
fn a_comment_with_the_mark_between_fields_is_one_field() {
    let head = HEAD.trim_end();
    let with = |columns: &str, end: &str| {
        let row = line("7", START, TRES);
        let text = format!("{head}|{columns}\n{}|{end}\n", row.trim_end());
        let history = read(text.as_bytes()).unwrap();
        (history.jobs.len(), history.skipped.broken)
    };
    let comment = "ticket 7 | gpufrac: job 7 waits | x";
    assert_eq!(with("AdminComment", comment), (1, 0));
    assert_eq!(
        with("AdminComment|QOS", &format!("{comment}|normal")),
        (1, 0)
    );
    assert_eq!(
        with("QOS|JobName|Account", &format!("normal|a|b|{}", "x")),
        (1, 0)
    );
    // Nobody knows which of both has the mark.
    assert_eq!(
        with("AdminComment|JobName", &format!("{comment}|a")),
        (0, 1)
    );
}

#[test]
fn traces_and_usage_records_are_read() {
    let openb = read(
        b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n\
          p1,12000,16384,1,460,,LS,Running,10,110,20\np2,1,1,0,0,,LS,Running,1,2,1\np3,1,1,2,1000,,LS,Pending,1,2,\np4,x,1\n",
    )
    .unwrap();
    assert_eq!((openb.jobs.len(), openb.skipped.broken), (1, 1));
    assert_eq!(
        (
            openb.jobs[0].waited,
            openb.jobs[0].ran,
            openb.jobs[0].need.share
        ),
        (10, 90, Some(0.46))
    );
    let philly = read(b"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,16,66.0,11cb48\nsoon,1.0,1,1.0,x\n").unwrap();
    assert_eq!((philly.jobs.len(), philly.skipped.broken), (1, 1));
    assert_eq!((philly.jobs[0].nodes, philly.jobs[0].gpus), (2, 8));
    let record = r#"{"version":1,"job":7,"restart_count":0,"user":"ann","uid":1001,"account":null,"partition":"gpu","node":"n1","pool":"p","fraction":"0.25","units":25,"profile":"2g.20gb","gpu_uuid":"GPU-1","start":1000,"end":1060,"seconds":60}"#;
    let records = read(format!("{record}\n{{\"torn\n").as_bytes()).unwrap();
    assert_eq!((records.jobs.len(), records.skipped.broken), (1, 1));
    assert_eq!(records.jobs[0].need.share, Some(0.25));
}

#[test]
fn telemetry_gives_memory_activity_and_spans_of_idleness() {
    let mut text = HEAD.to_owned();
    text.push_str(&line("7", START, TRES));
    let mut history = read(text.as_bytes()).unwrap();
    let start = history.jobs[0].submit + history.jobs[0].waited;
    let mut samples = "job,time,utilisation,memory\n".to_owned();
    for minute in 0..100 {
        let busy = if minute < 50 { 80 } else { 0 };
        samples.push_str(&format!(
            "7,{}.5,{busy},{}\n",
            start + minute * 60,
            1000 + minute
        ));
    }
    samples.push_str("7,soon,1,1\n7,1,101,1\n,1,1,1\n8,1,1,1\n");
    let known = read::telemetry::read("t", samples.as_bytes(), &mut history).unwrap();
    let job = &history.jobs[0];
    assert_eq!((known, history.skipped.broken), (1, 3));
    assert_eq!(
        (job.need.memory_mib, job.need.activity),
        (Some(1099.0), Some(0.4))
    );
    assert_eq!(job.idle, [(3000, 49 * 60)]);
    assert!(read::telemetry::read("t", &b"a,b\n1,2\n"[..], &mut history).is_err());
}

#[test]
fn no_bytes_cause_a_panic() {
    let mut random = Rng::with_seed(test_seed::seed());
    let whole = format!(
        "{HEAD}{}{}",
        line("7", START, TRES),
        line("7.batch", START, TRES)
    );
    let record = "{\"version\":1,\"job\":7}\n";
    let openb = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,500\n";
    let philly =
        "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,x\n";
    for _ in 0..3000 {
        let mut bytes = random
            .choice([whole.as_str(), record, openb, philly, SHARED])
            .unwrap()
            .as_bytes()
            .to_vec();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..bytes.len());
            match random.u8(..3) {
                0 => bytes[at] = random.u8(..),
                1 => bytes.insert(at, random.choice(*b"|,:-=0123456789\n\xff").unwrap()),
                _ => drop(bytes.remove(at)),
            }
        }
        if let Ok(mut history) = read(&bytes) {
            history.sort();
            let _ = (history.span(), history.cluster());
        }
    }
}
