//! CPUs of nodes: a piece of a GPU is of use only with CPUs beside it.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use clap::Parser;
use fastrand::Rng;
use gpufrac_plan::candidate::{Candidate, Model};
use gpufrac_plan::cluster::{Cluster, Partition};
use gpufrac_plan::command::{self, PlanArgs};
use gpufrac_plan::queue::{Outcome, Play, Settings, Work};
use gpufrac_plan::speed::Curve;

fn job(submit: u64, ran: u64, units: u32, cpus: u32) -> Work {
    Work {
        submit,
        ran,
        limit: Some(ran),
        partition: 0,
        priority: 0,
        units,
        count: 1,
        cpus,
        memory: 0,
        nodes: 1,
        activity: 0.0,
        share: 1.0,
        quantile: 0.5,
        class: 0,
    }
}

/// Plays on nodes of eight GPUs with these CPUs.
fn played(work: &[Work], cpus: &[Option<u32>]) -> Outcome {
    let model = Model::named("H100-80").unwrap();
    let candidate = Candidate::parse("uniform:1/2").unwrap();
    let fleet = candidate.fleet(&model, &vec![8; cpus.len()]).unwrap();
    let all = Partition {
        nodes: (0..cpus.len()).collect(),
        ..Partition::default()
    };
    Play::run(
        work,
        &[all],
        &[],
        fleet.with_cpus(cpus),
        &Curve::default(),
        Settings::default(),
    )
}

fn starts(outcome: &Outcome) -> Vec<u64> {
    outcome.runs.iter().map(|run| run.unwrap().start).collect()
}

#[test]
fn jobs_wait_for_cpus_where_gpus_are_free() {
    let work = vec![job(0, 100, 50, 8); 4];
    assert_eq!(starts(&played(&work, &[Some(16)])), [0, 0, 100, 100]);
    assert_eq!(starts(&played(&work, &[None])), [0; 4], "not known");
    let unknown = vec![job(0, 100, 50, 0); 4];
    assert_eq!(starts(&played(&unknown, &[Some(16)])), [0; 4], "not known");
    let mixed = [job(0, 100, 50, 12), job(0, 100, 50, 12)];
    assert_eq!(starts(&played(&mixed, &[Some(16), Some(8)])), [0, 100]);
    assert_eq!(
        played(&[job(0, 100, 50, 17)], &[Some(16)]).refused,
        1,
        "no node has as many"
    );
}

#[test]
fn jobs_wait_for_memory_where_it_is_counted() {
    let model = Model::named("H100-80").unwrap();
    let candidate = Candidate::parse("uniform:1/2").unwrap();
    let with_memory = |memory: Option<u32>| {
        let fleet = candidate.fleet(&model, &[8]).unwrap();
        let all = Partition {
            nodes: vec![0],
            ..Partition::default()
        };
        let one = Work {
            memory: 8000,
            ..job(0, 100, 50, 1)
        };
        let outcome = Play::run(
            &vec![one; 4],
            &[all],
            &[],
            fleet.with_memory([memory].into_iter()),
            &Curve::default(),
            Settings::default(),
        );
        starts(&outcome)
    };
    assert_eq!(with_memory(Some(16000)), [0, 0, 100, 100]);
    assert_eq!(with_memory(None), [0; 4], "not counted");
}

#[test]
fn never_more_cpus_are_in_use_than_nodes_have() {
    let mut random = Rng::with_seed(test_seed::seed());
    let nodes = [Some(16), Some(24), Some(16)];
    let mut submit = 0;
    let work: Vec<Work> = (0..500)
        .map(|_| {
            submit += random.u64(..60);
            let (units, cpus) = ([50, 100][random.usize(..2)], random.u32(1..10));
            job(submit, random.u64(1..2000), units, cpus)
        })
        .collect();
    let outcome = played(&work, &nodes);
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for (job, run) in work.iter().zip(&outcome.runs) {
        let run = run.unwrap();
        changes.push((run.start, i64::from(job.cpus)));
        changes.push((run.end, -i64::from(job.cpus)));
    }
    changes.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in changes {
        now += change;
        most = most.max(now);
    }
    assert_eq!(now, 0);
    assert!(most <= 56, "{most}");
    assert!(most > 40, "CPUs were no limit: {most}");
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    plan: PlanArgs,
}

/// Tiny jobs that come at once, each with a GPU and these CPUs, on two nodes of 64 CPUs.
fn printed(cpus: u32, more: &[&str]) -> String {
    printed_with("", cpus, more)
}

/// The same with defaults of the partition.
fn printed_with(defaults: &str, cpus: u32, more: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut rows =
        "JobID|User|Partition|Submit|Start|End|AllocTRES|NNodes|TRESUsageInMax|TRESUsageInAve\n"
            .to_owned();
    for number in 0..200 {
        rows.push_str(&format!(
            "{number}|ann|gpu|{}|{}|{}|cpu={cpus},gres/gpu=1,node=1|1|gres/gpumem=1000M|gres/gpuutil=5\n",
            number * 10,
            number * 10,
            number * 10 + 3600
        ));
    }
    let (history, nodes) = (folder.path().join("history"), folder.path().join("nodes"));
    std::fs::write(&history, rows).unwrap();
    let lines = format!(
        "SelectTypeParameters=CR_Core_Memory\nNodeName=gn1 CPUEfctv=64 CPUTot=64 Gres=gpu:8\nNodeName=gn2 CPUTot=64 RealMemory=64000 Gres=gpu:8\n\
         PartitionName=gpu Nodes=ALL {defaults}\n"
    );
    std::fs::write(&nodes, lines).unwrap();
    let mut words = vec![
        "plan".into(),
        history.into_os_string(),
        "--cluster".into(),
        nodes.into_os_string(),
    ];
    words.extend(["--quiet", "--samples", "3"].map(Into::into));
    words.extend(more.iter().map(Into::into));
    command::run(&Line::parse_from(words).plan, &mut |_| {}).unwrap()
}

/// Promise (users): a plan counts the CPUs of nodes: jobs keep theirs on a piece, and the output says where pieces have
/// none left.
/// With `never_more_cpus_are_in_use_than_nodes_have`, `jobs_wait_for_cpus_where_gpus_are_free`.
#[test]
fn pieces_win_nothing_where_cpus_are_used_up() {
    let text = printed(8, &[]);
    assert!(text.starts_with("No gain here"), "{text}");
    let why = "CPUs are counted: a job of one GPU has 8 in the middle, nodes have 8.0 for each GPU; beside such a job a piece of the same GPU has no CPU left";
    assert!(text.contains(why), "{text}");
    let text = printed(8, &["--what-if", "cpus=off"]);
    assert!(!text.starts_with("No gain here"), "{text}");
    assert!(
        text.contains("CPUs are not counted: as --what-if says"),
        "{text}"
    );
    let text = printed(1, &[]);
    assert!(!text.starts_with("No gain here"), "{text}");
    assert!(
        text.contains("has 1 in the middle, nodes have 8.0 for each GPU\n"),
        "{text}"
    );
    let text = printed(0, &[]);
    assert!(
        text.contains("CPUs are not counted: the history has none"),
        "{text}"
    );
}

/// Promise (users): a plan takes the CPUs of a part of a GPU as the site gives them, and says how many of the smallest
/// pieces a node holds.
#[test]
fn pieces_bring_their_part_of_what_a_gpu_brings() {
    let given = "JobDefaults=DefCpuPerGPU=8,DefMemPerGPU=8000";
    let text = printed_with(given, 8, &[]);
    assert!(!text.starts_with("No gain here"), "{text}");
    let (asked, more) = (
        printed_with(given, 9, &[]),
        "a job that asked for more keeps it",
    );
    assert!(asked.starts_with("No gain here"), "{more}: {asked}");
    let sevenths = &["--layouts", "uniform:1/7"];
    for (defaults, words) in [
        (
            "DefCpuPerGPU=7",
            "on gn[1-2] 8 GPUs make 56 pieces of 1/7, which fit side by side",
        ),
        (
            "DefCpuPerGPU=7\nPartitionName=old Nodes=gn1 DefCpuPerGPU=7",
            "on gn[1-2] 8 GPUs make 56 pieces of 1/7, which fit side by side",
        ),
        (
            "DefCpuPerGPU=8",
            "on gn[1-2] 8 GPUs make 56 pieces of 1/7; 64 CPUs at 2 each end at 32",
        ),
        (
            "DefCpuPerGPU=4 DefMemPerGPU=16000",
            "on gn2 8 GPUs make 56 pieces of 1/7; 64000 MB at 2285 each end at 28",
        ),
    ] {
        let text = printed_with(defaults, 1, sevenths);
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

#[test]
fn nodes_name_their_cpus_in_several_words() {
    let cpus = |text: &str| -> Vec<Option<u32>> {
        let cluster: Cluster = gpufrac_plan::read::nodes::read(text).unwrap();
        cluster.cpus_by_node()
    };
    assert_eq!(
        cpus(
            "NodeName=gn[1-2] CPUTot=64 CPUEfctv=60 Gres=gpu:8\nNodeName=gn3 CPUs=32 Gres=gpu:8\n"
        ),
        [Some(60), Some(60), Some(32)]
    );
    assert_eq!(
        cpus(
            "NodeName=gn1 Sockets=2 CoresPerSocket=16 ThreadsPerCore=2 Gres=gpu:8\nNodeName=gn2 Gres=gpu:8\n"
        ),
        [Some(64), None]
    );
    assert_eq!(
        cpus("NodeName=gn1 Boards=2 SocketsPerBoard=2 CoresPerSocket=4 Gres=gpu:8\n"),
        [Some(16)]
    );
}
