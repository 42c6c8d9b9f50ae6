//! What Slurm shows of fractions, and tools of others read: as it is recorded in `tests/lab/tests/neighbours`.
//!
//! `GPUFRAC_RECORD=1` writes the records instead of comparing with them. What tools make of them is tested in
//! `tests/lab/tests/neighbours.rs`, without Slurm.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};
use serde_json::Value;

use crate::{HOLD, go};

/// A pool a node, of eight GPUs each.
const POOLS: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["halves"]
nodes = "@NODE1@"
gpus = [0, 1, 2, 3, 4, 5, 6, 7]

[pool.uniform]
mechanism = "mig"
layout = "uniform"
menu = ["1/4"]
gpu = "H100-80"
partitions = ["uniform"]
nodes = "@NODE2@"
gpus = [0, 1, 2, 3, 4, 5, 6, 7]

[pool.mps]
mechanism = "mps"
tenancy = "private"
gpu = "H100-80"
partitions = ["mps"]
nodes = "@NODE3@"
gpus = [8, 9, 10, 11, 12, 13, 14, 15]

[pool.whole]
mechanism = "mig"
layout = "whole"
gpu = "H100-80"
partitions = ["whole"]
nodes = "@NODE4@"
gpus = [0, 1, 2, 3, 4, 5, 6, 7]
"#;

/// Each pool with the sizes of its jobs, in the order of the nodes.
const JOBS: [(&str, &[&str]); 4] = [
    ("halves", &["0.25", "0.5"]),
    ("uniform", &["0.25", "1"]),
    ("mps", &["0.25", "0.5", "1"]),
    ("whole", &["1"]),
];

/// Lines of pool, subject, source and text, with tabs between.
struct Record(Vec<String>);

impl Record {
    fn add(&mut self, subject: (&str, &str), source: &str, text: &str) {
        let ((pool, subject), text) = (subject, text.trim());
        assert!(!text.contains(['\n', '\t']), "{source}: {text:?}");
        self.0.push(format!("{pool}\t{subject}\t{source}\t{text}"));
    }

    /// Compares with what is recorded, or records it.
    fn keep(&self, name: &str) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/neighbours");
        let path = folder.join(name);
        let text = self.0.join("\n") + "\n";
        if std::env::var_os("GPUFRAC_RECORD").is_some() {
            fs::write(&path, text).expect("the record is written");
            return;
        }
        let known = fs::read_to_string(&path).expect("there is a record");
        let changed: Vec<_> = known.lines().zip(text.lines()).collect();
        let changed: Vec<_> = changed.into_iter().filter(|(a, b)| a != b).collect();
        assert!(
            changed.is_empty(),
            "{name}: recorded and shown: {changed:#?}"
        );
        assert_eq!(known, text, "{name}");
    }
}

/// What follows `NAME=` in a record of scontrol.
fn field<'a>(shown: &'a str, name: &str) -> Option<&'a str> {
    let mut words = shown.split_whitespace();
    words.find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// The texts of one node.
fn node(lab: &Lab, record: &mut Record, pool: &str, node: &str) -> Result<(), LabError> {
    let subject = (pool, "node");
    let said = |program: &str, args: &[&str]| lab.command(program).args(args).stdout();
    let gres = said("sinfo", &["-hN", "-n", node, "-p", pool, "-o", "%G"])?;
    record.add(subject, "sinfo %G", &gres);
    let format = "gres:512,gresused:512";
    let both = said("sinfo", &["-hN", "-n", node, "-p", pool, "-O", format])?;
    let mut both = both.split_whitespace();
    record.add(subject, "sinfo gres", both.next().unwrap_or(""));
    record.add(subject, "sinfo gresused", both.next().unwrap_or(""));
    let shown = said("scontrol", &["-d", "show", "node", node])?;
    for name in ["Gres", "GresUsed", "CfgTRES", "AllocTRES"] {
        record.add(
            subject,
            &format!("scontrol {name}"),
            field(&shown, name).unwrap_or(""),
        );
    }
    if lab.slurm().since(23, 2) {
        let json = said("scontrol", &["--json", "show", "nodes"])?;
        let json: Value = serde_json::from_str(&json).expect("JSON of scontrol");
        let nodes = json["nodes"].as_array().expect("nodes");
        let own = nodes.iter().find(|known| known["name"] == node);
        let own = own.expect("the node");
        for name in ["gres", "gres_used", "tres", "tres_used"] {
            record.add(
                subject,
                &format!("json {name}"),
                own[name].as_str().unwrap_or(""),
            );
        }
    }
    Ok(())
}

/// The texts of one job.
fn job(lab: &Lab, record: &mut Record, subject: (&str, &str), id: JobId) -> Result<(), LabError> {
    let id = id.to_string();
    let said = |program: &str, args: &[&str]| lab.command(program).args(args).stdout();
    record.add(
        subject,
        "squeue %b",
        &said("squeue", &["-h", "-j", &id, "-o", "%b"])?,
    );
    for name in ["tres-per-node", "tres-alloc"] {
        let format = format!("{name}:512");
        let text = said("squeue", &["-h", "-j", &id, "-O", &format])?;
        record.add(subject, &format!("squeue {name}"), &text);
    }
    let shown = said("scontrol", &["-d", "show", "job", &id])?;
    for name in ["TresPerNode", "TRES", "ReqTRES", "AllocTRES", "GRES"] {
        if let Some(text) = field(&shown, name) {
            record.add(subject, &format!("scontrol {name}"), text);
        }
    }
    if lab.slurm().since(23, 2) {
        let json = said("squeue", &["--json", "-j", &id])?;
        let json: Value = serde_json::from_str(&json).expect("JSON of squeue");
        let own = &json["jobs"][0];
        for name in ["tres_per_node", "tres_alloc_str"] {
            record.add(
                subject,
                &format!("json {name}"),
                own[name].as_str().unwrap_or(""),
            );
        }
        let details = own["gres_detail"].as_array().into_iter().flatten();
        let details: Vec<_> = details.filter_map(Value::as_str).collect();
        record.add(subject, "json gres_detail", &details.join(" "));
    }
    for name in ["AllocTRES", "ReqTRES"] {
        let args = ["-X", "-n", "-P", "-j", &id, "-o", name];
        let what = format!("sacct knows job {id}");
        let text = lab.wait(&what, Duration::from_secs(60), || {
            let text = said("sacct", &args)?;
            Ok((!text.trim().is_empty()).then_some(text))
        })?;
        record.add(subject, &format!("sacct {name}"), &text);
    }
    Ok(())
}

/// slurmctld's own metrics of nodes, and of all jobs together.
fn metrics(lab: &Lab, record: &mut Record) -> Result<(), LabError> {
    let config = lab.command("scontrol").args(["show", "config"]).stdout()?;
    let port = config.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == "SlurmctldPort").then(|| value.trim().to_owned())
    });
    let port: u16 = port.and_then(|port| port.parse().ok()).expect("a port");
    let get = |path: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("slurmctld listens");
        let question =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).expect("asked");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        answer
    };
    let nodes = get("/metrics/nodes");
    for (name, (pool, _)) in lab.nodes().iter().zip(JOBS) {
        for metric in ["slurm_node_gpus", "slurm_node_gpus_alloc"] {
            let key = format!("{metric}{{node=\"{name}\"}}");
            let line = nodes.lines().find_map(|line| line.strip_prefix(&key));
            let value = line.unwrap_or_else(|| panic!("{key} in {nodes}"));
            record.add((pool, "node"), &format!("metrics {metric}"), value);
        }
    }
    let partitions = get("/metrics/partitions");
    for (pool, _) in JOBS {
        let key = format!("slurm_partition_jobs_gpus_alloc{{partition=\"{pool}\"}}");
        let line = partitions.lines().find_map(|line| line.strip_prefix(&key));
        let value = line.unwrap_or_else(|| panic!("{key} in {partitions}"));
        record.add(
            (pool, "node"),
            "metrics slurm_partition_jobs_gpus_alloc",
            value,
        );
    }
    Ok(())
}

fn shown(name: &str, gres: &str, tres: &str) -> Result<(), LabError> {
    let gpus: Vec<&str> = [["H100-80:mig"; 8], ["H100-80"; 8]].concat();
    // Metrics came with 25.11, without GPUs.
    let own_metrics = crate::since(26, 5)?;
    let metrics_type = if own_metrics { "MetricsType=metrics/openmetrics\n" } else { "" };
    let partitions: Vec<(String, String)> = (1..)
        .zip(JOBS)
        .map(|(number, (pool, _))| (pool.to_owned(), format!("Nodes=@NODE{number}@")))
        .collect();
    let partitions: Vec<(&str, &str)> = partitions
        .iter()
        .map(|(pool, nodes)| (pool.as_str(), nodes.as_str()))
        .collect();
    let lab = Lab::builder()
        .nodes(4)
        .gpu_list(&gpus)
        .pools(&format!("{gres}{POOLS}"))
        .only_partitions(&partitions)
        .mps_standin()
        .accounting()
        .slurm_conf_extra(&format!("AccountingStorageTRES={tres}\n{metrics_type}"))
        .start()?;
    let user = lab.users()[0].clone();
    let mut record = Record(Vec::new());
    let mut jobs = Vec::new();
    for (pool, sizes) in JOBS {
        for size in sizes {
            let gres = format!("--gres=gpufrac:{size}");
            let args = ["-p", pool, &gres, &format!("--wrap={HOLD}")];
            let id = lab.sbatch(&user, &args)?;
            lab.wait_for_state(id, &["RUNNING"])?;
            jobs.push((pool, format!("job {size}"), id));
        }
    }
    for ((pool, _), name) in JOBS.into_iter().zip(lab.nodes()) {
        node(&lab, &mut record, pool, name)?;
    }
    for (pool, size, id) in &jobs {
        job(&lab, &mut record, (pool, size), *id)?;
    }
    if own_metrics {
        metrics(&lab, &mut record)?;
    }
    // 23.11 to 25.11 show the same (recorded of 23.11.11, 24.05.8, 24.11.5 and 25.11.7).
    let series = match lab.slurm() {
        slurm if slurm.since(26, 5) => "26.05",
        slurm if slurm.since(23, 11) => "24.11",
        slurm if slurm.since(23, 2) => "23.02",
        _ => "22.05",
    };
    record.keep(&format!("{series}-{name}.tsv"));
    go(&lab)?;
    for (_, _, id) in jobs {
        assert_eq!(lab.wait_for_end(id)?.state(), "COMPLETED");
    }
    lab.expect_nothing_left()
}

#[test]
fn slurm_shows_what_is_recorded() -> Result<(), LabError> {
    shown("gpufrac", "", "gres/gpufrac")
}

#[test]
fn slurm_shows_what_is_recorded_by_another_name() -> Result<(), LabError> {
    shown("frac", "[gres]\nname = \"frac\"\n", "gres/gpu,gres/frac")
}

#[test]
fn slurm_shows_what_is_recorded_with_types() -> Result<(), LabError> {
    let types = "gres/gpu,gres/gpu:half,gres/gpu:uniform,gres/gpu:mps,gres/gpu:whole,gres/frac";
    shown("types", "[gres]\nname = \"frac\"\n", types)
}

#[test]
fn another_name_serves_steps_tasks_and_updates() -> Result<(), LabError> {
    let pools = "[gres]\nname = \"frac\"\n\n[pool.p]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\n\
                 partitions = [\"gpu\"]\nnodes = \"@NODES@\"\n";
    let lab = Lab::builder().gpus("H100-80", 1).pools(pools).start()?;
    let user = lab.users()[0].clone();
    // A step without a size, one with a size, and one with too much.
    let steps =
        "--wrap=srun true && srun --gres=gpufrac:0.25 true && ! srun --gres=gpufrac:0.5 true";
    let job = lab.sbatch(&user, &["--gres=gpufrac:0.25", steps])?;
    let ended = lab.wait_for_end(job)?;
    assert_eq!(
        ended.state(),
        "COMPLETED",
        "{ended:?}: {}",
        lab.output(job)?
    );
    if lab.slurm().since(23, 11) {
        let tasks = [
            "-n2",
            "--tres-per-task=gres/gpufrac:0.25",
            "--wrap=srun true",
        ];
        let job = lab.sbatch(&user, &tasks)?;
        let ended = lab.wait_for_end(job)?;
        assert_eq!(
            ended.state(),
            "COMPLETED",
            "{ended:?}: {}",
            lab.output(job)?
        );
    }
    // The name itself is understood where slurmctld reads it, and an update is a request like any other.
    let job = lab.sbatch(&user, &["--hold", "--gres=gpufrac:0.25", "--wrap=true"])?;
    assert!(
        lab.job(job)?.field("TresPerNode").contains("frac:25"),
        "{:?}",
        lab.job(job)?
    );
    let change = [&format!("JobId={job}"), "Gres=gpufrac:0.5", "Partition=gpu"];
    lab.try_update(&user, &change)?.success()?;
    let changed = lab.job(job)?;
    assert!(
        changed.field("TresPerNode").contains("frac:50"),
        "{changed:?}"
    );
    assert!(
        !changed.field("TresPerNode").contains("gpufrac"),
        "{changed:?}"
    );
    lab.command("scontrol")
        .args(["release", &job.to_string()])
        .stdout()?;
    let ended = lab.wait_for_end(job)?;
    assert_eq!(ended.state(), "COMPLETED", "{ended:?}");
    let check = lab.command("gpufrac").args(["check", "--slurm"]).run()?;
    assert_ne!(check.status.code(), Some(2), "{check:?}");
    lab.expect_nothing_left()
}
