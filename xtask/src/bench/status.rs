//! How long `gpufrac status` takes on a full node; it and `gpufrac web` for the files of a thousand nodes.

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
const CLUSTER: [&str; 2] = ["status", "--cluster"];
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
    let command = |args: &[&str]| {
        let mut command = Command::new(build.join("gpufrac"));
        command
            .args(args)
            .env("GPUFRAC_CONFIG", &config)
            // Without Slurm: its time is not that of gpufrac.
            .env("PATH", folder.path())
            .stdin(Stdio::null());
        command
    };
    let says = |args: &[&str], words: &str| {
        let said = command(args).output().context("gpufrac")?;
        let text = String::from_utf8_lossy(&said.stdout);
        ensure!(said.status.success() && text.contains(words), "{text}");
        Ok(())
    };
    let start = || {
        let mut status = command(&CLUSTER);
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
    let json = [&CLUSTER[..], &["--json"]].concat();
    for (what, args) in [
        ("status --cluster, 1,000 files", &CLUSTER[..]),
        ("the same with --json", &json),
    ] {
        let pair = Pair::measure(
            rounds,
            || says(args, "gn1000"),
            || {
                Command::new("/bin/true").status().context("true")?;
                Ok(())
            },
        )?;
        let goal = Goal::Within(Duration::from_secs(1));
        table.add(what, "/bin/true", &pair, goal);
    }
    let in_memory = tempfile::tempdir_in(gpusim::memory::folder())?;
    let pages = |of: &tempfile::TempDir| of.path().join("pages").display().to_string();
    let (in_memory, on_disk) = (pages(&in_memory), pages(&folder));
    let export = |to| says(&["web", "--no-slurm", "--export", to], "1000 nodes");
    let pair = Pair::measure(rounds.min(3), || export(&in_memory), || export(&on_disk))?;
    table.add(
        "web --export to a tmpfs, 1,000 files",
        "to a disk",
        &pair,
        Goal::None,
    );
    let written = command(&["web", "--no-slurm", "--export", &in_memory]).output()?;
    let written = String::from_utf8_lossy(&written.stdout);
    table.note(format!(
        "the files of {NODES} nodes have {bytes} bytes; web --export writes {}",
        written.split(" are in ").next().unwrap_or_default()
    ));
    Ok(())
}
