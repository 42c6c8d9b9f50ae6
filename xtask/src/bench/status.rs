//! How long `gpufrac status` takes: on a full node, and for the files of a thousand nodes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpufrac_lab::Lab;

use super::table::{Goal, Table};
use super::{BenchArguments, Pair};

/// Slices on a node: seven on each of eight GPUs.
const SLICES: usize = 56;
/// Nodes with a file each.
const NODES: usize = 1000;
/// Users who look at the cluster at the same time.
const USERS: usize = 200;
const POOL: &str = "\
[pool.slices]
mechanism = \"mig\"
layout = \"slices\"
gpu = \"H100-80\"
partitions = [\"gpu\"]
nodes = \"NODES\"
";

pub(super) fn measure(arguments: &BenchArguments, build: &Path, table: &mut Table) -> Result<()> {
    let rounds = arguments.rounds.min(50);
    println!("measuring gpufrac status for the files of {NODES} nodes ...");
    of_cluster(rounds, build, table)?;
    println!("measuring gpufrac status on a node with {SLICES} slices ...");
    of_node(rounds, build, table)
}

fn of_node(rounds: usize, build: &Path, table: &mut Table) -> Result<()> {
    let lab = Lab::builder()
        .quiet()
        .nodes(1)
        .gpus("H100-80", 8)
        .pools(&POOL.replace("NODES", "@NODES@"))
        .run_on_tmpfs(true)
        .build_folder(build)
        .start()?;
    let (node, user) = (&lab.nodes()[0], &lab.users()[0]);
    let mut jobs = Vec::new();
    for _ in 0..SLICES {
        jobs.push(lab.sbatch(user, &["--gres=gpufrac:0.143", "--wrap=sleep 1000"])?);
    }
    lab.wait("all slices", Duration::from_secs(300), || {
        Ok((lab.leases(node)?.len() == SLICES).then_some(()))
    })?;
    let status = || -> Result<()> {
        let shown = lab.command("gpufrac").args(["status", "--node", node]);
        let shown = shown.stdout()?;
        let boxes = shown.matches("[job ").count();
        ensure!(boxes == SLICES, "{boxes} slices\n{shown}");
        Ok(())
    };
    let pair = Pair::measure(rounds, status, || {
        lab.command("true").stdout()?;
        Ok(())
    })?;
    let goal = Goal::Within(Duration::from_millis(50));
    table.add("status, 8 GPUs with 56 slices", "true", &pair, goal);
    lab.stop()?;
    Ok(())
}

fn of_cluster(rounds: usize, build: &Path, table: &mut Table) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let status = folder.path().join("shared/status");
    fs::create_dir_all(&status)?;
    let mut bytes = 0;
    for node in test_examples::nodes(NODES, 1) {
        let text = serde_json::to_string(&node)?;
        bytes += text.len();
        fs::write(status.join(format!("{}.json", node.node)), text)?;
    }
    let config = folder.path().join("gpufrac.toml");
    let pool = POOL.replace("NODES", "gn[0001-1000]");
    let root = folder.path().display();
    let paths = format!("[paths]\nrun = \"{root}/run\"\nshared = \"{root}/shared\"\n");
    fs::write(&config, format!("version = 1\n{paths}{pool}"))?;
    let command = |option: Option<&str>| {
        let mut command = Command::new(build.join("gpufrac"));
        command
            .args(["status", "--cluster"])
            .args(option)
            .env("GPUFRAC_CONFIG", &config)
            // Without Slurm: its time is not that of gpufrac.
            .env("PATH", folder.path())
            .stdin(Stdio::null());
        command
    };
    let show = |option| {
        let shown = command(option).output().context("gpufrac")?;
        let text = String::from_utf8_lossy(&shown.stdout);
        ensure!(shown.status.success() && text.contains("gn1000"), "{text}");
        Ok(())
    };
    let start = || {
        let mut status = command(None);
        status.stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    };
    let end = |mut status: Child| -> Result<()> {
        ensure!(status.wait()?.success(), "a status of {USERS} failed");
        Ok(())
    };
    let at_once = || {
        let users: Vec<Child> = (0..USERS).map(|_| start()).collect::<Result<_, _>>()?;
        users.into_iter().try_for_each(end)
    };
    let one_by_one = || (0..USERS).try_for_each(|_| end(start()?));
    let pair = Pair::measure(rounds.min(3), at_once, one_by_one)?;
    let what = format!("status --cluster of {USERS} users at once, 1,000 files");
    table.add(&what, "one after the other", &pair, Goal::AtMostTimes(1.1));
    for (what, option) in [
        ("status --cluster, 1,000 files", None),
        ("the same with --json", Some("--json")),
    ] {
        let pair = Pair::measure(
            rounds,
            || show(option),
            || {
                Command::new("/bin/true").status().context("true")?;
                Ok(())
            },
        )?;
        let goal = Goal::Within(Duration::from_secs(1));
        table.add(what, "/bin/true", &pair, goal);
    }
    table.note(format!("the files of {NODES} nodes have {bytes} bytes"));
    Ok(())
}
