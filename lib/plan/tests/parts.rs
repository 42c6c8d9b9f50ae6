//! Plans on a site whose jobs had instances, shards and MPS.

#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;

use clap::Parser;
use gpufrac_plan::command::{PlanArgs, run};

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    plan: PlanArgs,
}

const NODES: &str =
    "NodeName=gn01 Gres=gpu:a100_3g.20gb:4,gpu:a100_1g.5gb:14 CPUTot=64 RealMemory=512000
NodeName=gn02 Gres=gpu:a100:4 CPUTot=64 RealMemory=512000
NodeName=gn03 Gres=gpu:a100:4,shard:32,mps:400 CPUTot=64 RealMemory=512000
";

const HEAD: &str =
    "JobID|Start|ElapsedRaw|AllocTRES|NNodes|NodeList|TRESUsageInMax|TRESUsageInAve\n";

const JOBS: [&str; 4] = [
    "1|2026-08-01T08:00:10|7200|cpu=8,mem=30G,gres/gpu:a100_3g.20gb=1|1|gn01||\n",
    "3|2026-08-01T08:22:10|3600|cpu=4,gres/shard=4,mem=16G|1|gn03||\n",
    "4|2026-08-01T08:22:10|3600|cpu=4,gres/mps=25,mem=16G|1|gn03||\n",
    "5|2026-08-01T08:22:10|3600|cpu=8,gres/gpu:a100=1,gres/gpu=1,mem=64G|1|gn02|gres/gpumem=0,gres/gpuutil=0|gres/gpumem=0,gres/gpuutil=0\n",
];

/// What a plan prints, or why it failed.
fn planned(jobs: &[&str], has_nodes: bool, more: &[&str]) -> Result<String, String> {
    let folder = tempfile::tempdir().unwrap();
    let [history, nodes] = ["history", "nodes"].map(|name| folder.path().join(name));
    fs::write(&history, format!("{HEAD}{}", jobs.concat())).unwrap();
    fs::write(&nodes, NODES).unwrap();
    let mut words = vec![
        "plan",
        history.to_str().unwrap(),
        "--quiet",
        "--gpu=A100-40",
    ];
    words.extend_from_slice(more);
    if has_nodes {
        words.extend(["--cluster", nodes.to_str().unwrap()]);
    }
    let arguments = Arguments::try_parse_from(words).unwrap();
    run(&arguments.plan, &mut |_| {}).map_err(|error| error.to_string())
}

#[test]
fn parts_count_as_parts_and_nodes_as_the_gpus_that_they_have() {
    let text = planned(&JOBS, true, &[]).unwrap();
    for line in [
        "4 jobs with GPUs in",
        "12 GPUs: 3 nodes of",
        "3 jobs had a part of a GPU: without telemetry each needs this part",
        "25 % of the jobs of one GPU have no telemetry",
        "left out: 0 jobs without GPU, 0 that had not started, 0 broken lines",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    // The part that a job was given says nothing of a job that asked for a whole GPU.
    assert!(!text.contains("if the jobs without telemetry"), "{text}");
    let why = planned(&JOBS, true, &["--explain=3"]).unwrap();
    assert!(
        why.contains("mps: 0.50 of a GPU, it had 50 % of a GPU"),
        "{why}"
    );
}

#[test]
fn jobs_with_shards_are_left_out_by_number_where_no_node_is_known() {
    let text = planned(&JOBS, false, &[]).unwrap();
    assert!(text.contains("3 jobs with GPUs in"), "{text}");
    assert!(
        text.contains("left out: 1 jobs with shards, because"),
        "{text}"
    );
    let error = planned(&JOBS[1..2], false, &[]).unwrap_err();
    assert!(
        error.starts_with("the history has only jobs with shards (1)"),
        "{error}"
    );
}

#[test]
fn what_slurm_could_not_measure_is_no_idleness() {
    let text = planned(&JOBS, true, &["--what-if=reaper.never_used=10m"]).unwrap();
    assert!(!text.contains("The reaper would give back"), "{text}");
}
