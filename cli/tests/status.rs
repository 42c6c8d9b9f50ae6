//! `gpufrac status` of a cluster and of an ordinary user, and the schema of its JSON.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

use gpufrac_view::NodeStatus;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::{TimeVal, TimeValLike};
use serde_json::{Value, json};

/// The id of an ordinary user: nobody.
const NOBODY: u32 = 65_534;

struct World {
    folder: tempfile::TempDir,
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

impl World {
    /// A login node with these made-up nodes in the shared folder.
    fn new(nodes: &[NodeStatus]) -> World {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let world = World { folder };
        let root = world.folder.path().display();
        let paths =
            format!("[paths]\nrun = \"{root}/run\"\nshared = \"{root}/shared\"\n[pool.h100]");
        let text = test_examples::CONFIG.replacen("[pool.h100]", &paths, 1);
        fs::write(world.folder.path().join("gpufrac.toml"), text).unwrap();
        let status = world.folder.path().join("shared/status");
        fs::create_dir_all(&status).unwrap();
        for node in nodes {
            let text = serde_json::to_string(node).unwrap();
            fs::write(status.join(format!("{}.json", node.node)), text).unwrap();
        }
        world
    }

    /// Installs a stand-in for a program of Slurm.
    fn slurm_says(&self, program: &str, out: &str, err: &str, status: u8) {
        // Programs of Slurm are asked only where their file exists; stand-ins do not read it.
        fs::write(self.folder.path().join("slurm.conf"), "").unwrap();
        let path = self.folder.path().join("bin").join(program);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let calls = self.calls_file();
        let code = format!(
            "#!/bin/sh\necho \"$(basename $0) $*\" >>'{}'\ncat <<'END'\n{out}\nEND\ncat >&2 <<'END'\n{err}\nEND\nexit {status}\n",
            calls.display()
        );
        fs::write(&path, code).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The file in which stand-ins note their calls. All users may write it.
    fn calls_file(&self) -> PathBuf {
        let file = self.folder.path().join("calls");
        if !file.exists() {
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        }
        file
    }

    /// The calls of a program since the last question, each with its arguments, sorted.
    fn calls(&self, program: &str) -> Vec<String> {
        let all = fs::read_to_string(self.calls_file()).unwrap();
        let of_program = |line: &&str| line.split(' ').next() == Some(program);
        let mut calls: Vec<String> = all.lines().filter(of_program).map(str::to_owned).collect();
        calls.sort_unstable();
        calls
    }

    fn forget_calls(&self) {
        fs::write(self.calls_file(), "").unwrap();
    }

    /// A Slurm with one job of the user that runs and one that waits.
    fn slurm(&self) {
        let at = now();
        self.slurm_says(
            "sinfo",
            "gn0001|mixed||gpu:half:0(IDX:N/A),gpu:whole:0(IDX:N/A),shard:half:25(25/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50,0/50),shard:whole:0(0/1)|\ngn0002|drained|||a fan",
            "",
            0,
        );
        let jobs = format!(
            "100|100|gpu|RUNNING|1|{at}|{at}|gn0001|gres/gpufrac:25,gres/shard:25|N/A|None|nobody\n101|101|gpu|PENDING|1|{at}|{}||gres/gpufrac:50,gres/shard:50|N/A|Resources|nobody",
            at + 3_600
        );
        self.slurm_says("squeue", &jobs, "", 0);
        let told = format!(
            "sbatch: Job 5 to start at {at} using 1 processors on nodes gn0001 in partition gpu"
        );
        self.slurm_says("sbatch", "", &told, 0);
    }

    fn run(&self, uid: u32, args: &[&str]) -> Output {
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpufrac"));
        command
            .args(args)
            .env("GPUFRAC_CONFIG", self.folder.path().join("gpufrac.toml"))
            .env("SLURMD_NODENAME", "login")
            // The test must not use this machine's Slurm.
            .env("SLURM_CONF", self.folder.path().join("slurm.conf"))
            .env(
                "PATH",
                format!("{}:{path}", self.folder.path().join("bin").display()),
            );
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        command.output().unwrap()
    }

    fn json(&self, uid: u32, args: &[&str]) -> Value {
        let said = self.run(uid, args);
        let err = String::from_utf8_lossy(&said.stderr);
        assert!(said.status.success(), "{err}");
        let value = serde_json::from_slice(&said.stdout).unwrap();
        holds_the_schema(&value);
        value
    }
}

/// Nodes whose files have just been written.
fn fresh(count: usize) -> Vec<NodeStatus> {
    let mut nodes = test_examples::nodes(count, 7);
    let late = now() - test_examples::NOW;
    for node in &mut nodes {
        node.written += late;
    }
    nodes[0].stuck = vec![test_examples::stuck()];
    nodes
}

fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/user/status.schema.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Allows no key that the schema does not name.
fn closed(schema: &mut Value) {
    match schema {
        Value::Object(keys) => {
            if keys.contains_key("properties") {
                keys.insert("additionalProperties".to_owned(), json!(false));
            }
            keys.values_mut().for_each(closed);
        }
        Value::Array(items) => items.iter_mut().for_each(closed),
        _ => {}
    }
}

fn fits(value: &Value, schema: Value) -> Result<(), String> {
    let name = "file:///status.schema.json";
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler.add_resource(name, schema).unwrap();
    let index = compiler.compile(name, &mut schemas).unwrap();
    let checked = schemas.validate(value, index);
    checked.map_err(|error| error.to_string())
}

/// The object has all required keys of the schema, in their types, and no other key.
fn holds_the_schema(value: &Value) {
    let mut strict = schema();
    closed(&mut strict);
    if let Err(why) = fits(value, strict) {
        panic!("{why}\n{value:#}");
    }
}

/// Promise (admins): `gpufrac status --json` holds docs/user/status.schema.json.
/// With `the_cluster_is_shown_by_the_files_of_its_nodes`,
/// `on_a_login_node_a_user_sees_own_jobs_what_could_start_and_what_to_type`.
#[test]
fn the_schema_refuses_what_it_does_not_describe() {
    let good = json!({"version": 1, "at": 1, "nodes": [], "free": []});
    holds_the_schema(&good);
    let mut wrong = good.clone();
    wrong["nodes"] = json!([{"node": "n1", "source": "guess", "gpus": []}]);
    assert!(fits(&wrong, schema()).is_err());
    let mut later = good.clone();
    later["later"] = json!({});
    assert!(fits(&later, schema()).is_ok(), "a later build may add keys");
    let mut strict = schema();
    closed(&mut strict);
    assert!(fits(&later, strict).is_err(), "this build may not");
}

/// Promise (admins): `gpufrac status --cluster` shows all nodes by their files, and by Slurm's count where there is
/// none.
/// With `without_files_the_cluster_is_shown_by_slurms_count`,
/// `a_cluster_is_shown_as_bars_with_room_waits_and_idle_slices`, `users_see_the_cluster_by_the_files_of_its_nodes`,
/// `without_files_users_see_the_cluster_by_slurms_count`.
#[test]
fn the_cluster_is_shown_by_the_files_of_its_nodes() {
    let world = World::new(&fresh(10));
    world.slurm();
    let report = world.json(0, &["status", "--cluster", "--json"]);
    let nodes = report["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 10);
    assert!(nodes.iter().all(|node| node["source"] == "file"));
    assert_eq!(nodes[0]["stuck"][0]["place"], "GPU 0 1g.10gb at 3:1");
    assert_eq!(
        (&nodes[1]["state"], &nodes[1]["reason"]),
        (&json!("drained"), &json!("a fan"))
    );
    let waiting = report["waiting"].as_array().unwrap();
    assert_eq!(
        waiting.len(),
        2,
        "the stand-in says the same to each question"
    );
    assert_eq!(
        (&waiting[1]["fraction"], &waiting[1]["reason"]),
        (&json!("0.5"), &json!("Resources"))
    );
    assert!(report.get("own").is_none(), "root has no jobs");
    // The drained node has no room, whatever its file says.
    let free = |report: &Value| -> u64 {
        let rooms = report["free"].as_array().unwrap().iter();
        rooms.map(|room| room["jobs"].as_u64().unwrap()).sum()
    };
    let with_drained = free(&report);
    world.slurm_says("sinfo", "gn0001|mixed|||\ngn0002|mixed|||", "", 0);
    let report = world.json(0, &["status", "--cluster", "--json"]);
    assert!(free(&report) > with_drained);
}

#[test]
fn without_files_the_cluster_is_shown_by_slurms_count() {
    let world = World::new(&[]);
    world.slurm();
    let report = world.json(0, &["status", "--cluster", "--json"]);
    let first = &report["nodes"][0];
    assert_eq!(first["source"], "slurm");
    assert_eq!(first["gpus"].as_array().unwrap().len(), 8);
    assert_eq!(
        first["gpus"][0]["counted"][0],
        json!({"taken": 25, "units": 50})
    );
    assert_eq!(report["nodes"][2]["source"], "none");
    let text = world.run(0, &["status", "--cluster"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("  gn0001  ++...... ........"), "{text}");
    assert!(text.contains("drained: a fan"), "{text}");
}

#[test]
fn without_files_and_without_slurm_the_command_fails_and_says_why() {
    let world = World::new(&[]);
    for program in ["sinfo", "squeue"] {
        world.slurm_says(program, "", "Unable to contact slurm controller", 1);
    }
    let said = world.run(0, &["status", "--cluster"]);
    let err = String::from_utf8_lossy(&said.stderr);
    assert_eq!(said.status.code(), Some(1));
    assert!(
        err.contains("gpufrac: sinfo does not answer (Unable to contact slurm controller)"),
        "{err}"
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named_and_the_others_are_shown() {
    let world = World::new(&fresh(3));
    world.slurm();
    let file = world.folder.path().join("shared/status/gn0003.json");
    fs::write(&file, "{\"version\": 2}").unwrap();
    let report = world.json(0, &["status", "--cluster", "--json"]);
    let problem = report["problems"][0].as_str().unwrap();
    assert!(
        problem
            .ends_with("gn0003.json` failed: it is of version 2, and this gpufrac reads version 1"),
        "{problem}"
    );
    assert_eq!(report["nodes"][0]["source"], "file");
}

#[test]
fn on_a_login_node_a_user_sees_own_jobs_what_could_start_and_what_to_type() {
    test_seed::needs_root();
    let mut nodes = fresh(10);
    let owner = nodes[0].gpus.iter_mut().flat_map(|gpu| &mut gpu.slices);
    let owner = owner
        .filter_map(|slice| slice.owner.as_mut())
        .next()
        .unwrap();
    owner.job = gpufrac_core::ids::JobId(100);
    let world = World::new(&nodes);
    world.slurm();
    let said = world.run(NOBODY, &["status"]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let err = String::from_utf8_lossy(&said.stderr);
    assert_eq!((said.status.code(), err.as_ref()), (Some(0), ""), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(
        lines[0].starts_with("YOUR JOB  PARTITION  SIZE  STATE"),
        "{text}"
    );
    assert!(
        lines[1].starts_with("100       gpu        0.25  running  gn0001  "),
        "{text}"
    );
    assert!(
        lines[2].contains("pending") && lines[2].ends_with(", Resources"),
        "{text}"
    );
    assert!(text.contains("PARTITION    COULD START NOW"), "{text}");
    assert!(
        text.ends_with(
            "\nThis host has no GPU of a pool; nodes gn[0001-0010] have.\nAll nodes: gpufrac status --cluster\nOne node:  ssh gn0001 gpufrac status\n"
        ),
        "{text}"
    );
    let report = world.json(NOBODY, &["status", "--json"]);
    assert_eq!(report["own"][0]["slices"][0]["node"], "gn0001");
    assert!(report["start"].as_array().unwrap().len() >= 4);
    let report = world.json(NOBODY, &["status", "--cluster", "--json"]);
    assert_eq!(report["own"].as_array().unwrap().len(), 2);
}

/// Promise (admins): where jobs wait, each form of `gpufrac status` names the size that a short job may have now.
/// With `behind_jobs_that_wait_one_question_suffices`, `without_files_users_see_the_cluster_by_slurms_count`.
#[test]
fn on_a_login_node_a_size_with_room_behind_waiting_jobs_is_shown_for_short_ones() {
    test_seed::needs_root();
    let world = World::new(&fresh(10));
    world.slurm();
    world.run(NOBODY, &["status"]);
    let about_all = || {
        let calls = world.calls("squeue");
        calls.iter().filter(|call| !call.contains(" -u ")).count()
    };
    assert_eq!(about_all(), 0, "Slurm starts each size now");
    let late = format!(
        "sbatch: Job 5 to start at {} using 1 processors",
        now() + 7_200
    );
    world.slurm_says("sbatch", "", &late, 0);
    world.forget_calls();
    let said = world.run(NOBODY, &["status"]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let row = |partition: &str| -> String {
        let mut rows = text.lines().filter(|line| line.starts_with(partition));
        rows.next_back()
            .unwrap()
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert!(row("gpu ").starts_with("gpu 0.5 if short "), "{text}");
    assert!(row("teaching ").starts_with("teaching nothing "), "{text}");
    assert_eq!(about_all(), 1, "{:?}", world.calls("squeue"));
    let report = world.json(NOBODY, &["status", "--json"]);
    assert!(report.get("waiting").is_none(), "that is for --cluster");
}

/// Each program of Slurm waits up to a minute for a file that `SLURM_CONF` names.
#[test]
fn no_program_of_slurm_is_started_where_its_file_is_not_there() {
    let world = World::new(&fresh(2));
    world.slurm();
    world.slurm_says("scontrol", "", "", 0);
    fs::remove_file(world.folder.path().join("slurm.conf")).unwrap();
    let said = world.run(0, &["status", "--cluster"]);
    let err = String::from_utf8_lossy(&said.stderr);
    assert!(
        err.contains("sinfo cannot be asked: $SLURM_CONF names `"),
        "{err}"
    );
    for args in [&["check", "--slurm"][..], &["check"], &["conf"]] {
        world.run(0, args);
    }
    assert_eq!(fs::read_to_string(world.calls_file()).unwrap(), "");
}

/// Promise (admins): a call of `gpufrac status` asks Slurm no more often than docs/user/status.md says.
/// With `many_partitions_share_the_questions`, `of_many_partitions_those_with_the_largest_free_sizes_are_asked_about`.
// Many users repeat the command: each question is work for slurmctld.
#[test]
fn status_asks_slurm_few_questions() {
    test_seed::needs_root();
    let world = World::new(&fresh(10));
    world.slurm();
    let questions = |args: &[&str]| -> Vec<String> {
        world.forget_calls();
        world.run(NOBODY, args);
        ["sinfo", "squeue", "sbatch"]
            .iter()
            .map(|program| format!("{program} {}", world.calls(program).len()))
            .collect()
    };
    // Five partitions, one question for each; two of these sizes have a larger one.
    assert_eq!(questions(&["status"]), ["sinfo 1", "squeue 1", "sbatch 7"]);
    let asked = world.calls("sbatch");
    let expected = [
        ("gpu", "0.5"),
        ("gpu", "1"),
        ("inference", "1"),
        ("interactive", "0.03"),
        ("interactive", "0.06"),
        ("short", "0.5"),
        ("teaching", "0.143"),
    ];
    for (call, (partition, size)) in asked.iter().zip(expected) {
        let tail = format!("-p {partition} --gres=gpufrac:{size} --wrap=true");
        assert!(call.ends_with(&tail), "{asked:?}");
    }
    let of_node = ["status", "--node", "gn0002"];
    // Here sinfo has room for each largest size.
    assert_eq!(questions(&of_node), ["sinfo 1", "squeue 1", "sbatch 5"]);
    let cluster = ["status", "--cluster"];
    assert_eq!(questions(&cluster), ["sinfo 1", "squeue 2", "sbatch 7"]);
    // A Slurm that refuses each job is asked again, but not more than eight times.
    world.slurm_says("sbatch", "", "sbatch: error: Invalid account", 1);
    assert_eq!(questions(&["status"]), ["sinfo 1", "squeue 1", "sbatch 8"]);
    let pools = fs::read_to_string(world.folder.path().join("gpufrac.toml")).unwrap();
    let many: Vec<String> = (0..30).map(|number| format!("\"p{number}\"")).collect();
    let pools = pools.replace("\"short\"", &many.join(", "));
    fs::write(world.folder.path().join("gpufrac.toml"), pools).unwrap();
    assert_eq!(questions(&["status"])[2], "sbatch 8");
}

#[test]
fn root_is_asked_about_no_start() {
    test_seed::needs_root();
    let world = World::new(&fresh(10));
    world.slurm();
    world.forget_calls();
    world.run(0, &["status"]);
    assert_eq!(world.calls("sbatch"), Vec::<String>::new());
}

#[test]
fn another_node_is_shown_by_its_file() {
    let world = World::new(&fresh(3));
    world.slurm();
    let said = world.run(0, &["status", "--node", "gn0002"]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(
        said.status.success() && text.starts_with("GPU 0 H100-80   ["),
        "{text}"
    );
    let report = world.json(0, &["status", "--node", "gn0002", "--json"]);
    assert_eq!(report["nodes"][0]["node"], "gn0002");
}

/// Seconds of a core that ended programs of this test used.
fn time_of_children() -> f64 {
    let used = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let seconds = |time: TimeVal| time.num_microseconds() as f64 / 1e6;
    seconds(used.user_time()) + seconds(used.system_time())
}

/// Promise (admins): `gpufrac status --cluster` shows the files of 1,000 nodes within a second.
// A second of a core, with a margin for a debug build; other load does not count. `cargo xtask bench status` has the
// figure.
#[test]
fn a_thousand_nodes_are_shown_within_a_second() {
    let world = World::new(&fresh(1000));
    let pools = fs::read_to_string(world.folder.path().join("gpufrac.toml")).unwrap();
    let (head, _) = pools.split_once("[pool.h100]").unwrap();
    let pool = "[pool.p]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"gn[0001-1000]\"\n";
    let config = world.folder.path().join("gpufrac.toml");
    fs::write(config, format!("{head}{pool}")).unwrap();
    world.slurm();
    for args in [
        &["status", "--cluster"][..],
        &["status", "--cluster", "--json"],
    ] {
        let before = time_of_children();
        let said = world.run(0, args);
        let time = time_of_children() - before;
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.status.success() && text.contains("gn1000"));
        assert!(time <= 3.0, "{args:?}: {time} s");
    }
}

/// Promise (admins): a command ends quietly when its reader goes.
/// With `a_closed_pipe_is_no_error_and_a_full_disk_is_reported`.
#[test]
fn a_reader_that_goes_ends_no_command_with_a_panic() {
    let world = World::new(&fresh(10));
    world.slurm();
    let path = world.folder.path().join("bin");
    for args in [
        &["status"][..],
        &["status", "--cluster"],
        &["status", "--json"],
        &["leases"],
        &["report", "--no-sacct"],
        &["why", "12"],
        &["doctor", "12"],
        &["clean", "--yes"],
        &["init"],
        &["conf", "--node", "gn0001", "--gpus", "8"],
        &["--help"],
        &["--version"],
        &["status", "--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpufrac"));
        command
            .args(args)
            .env("GPUFRAC_CONFIG", world.folder.path().join("gpufrac.toml"))
            .env("SLURMD_NODENAME", "login")
            .env("SLURM_CONF", world.folder.path().join("slurm.conf"))
            .env("PATH", &path)
            .stdout(writer)
            .stderr(std::process::Stdio::piped());
        let ended = command.spawn().unwrap().wait_with_output().unwrap();
        let err = String::from_utf8_lossy(&ended.stderr);
        assert!(
            ended.status.code().is_some_and(|code| code <= 2),
            "{args:?}: {ended:?}"
        );
        assert!(
            !err.contains("panicked") && !err.contains("Broken pipe"),
            "{args:?}: {err}"
        );
    }
}
