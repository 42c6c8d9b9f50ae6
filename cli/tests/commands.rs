//! The commands as an admin runs them: exit code, stdout, stderr.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpufrac_core::config::{LAST_GOOD, NODES, last_good_name};
use nvidia_ml::model::Model;
use nvidia_ml::node::Node;
use nvidia_ml::store::Store;

struct World {
    folder: tempfile::TempDir,
    sim: Store,
}

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

const POOL: &str = r#"[pool.h100]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "gpufrac-test[01-04]"
"#;

impl World {
    fn new(mig: bool) -> World {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("gpus");
        let models = [Model::find("H100-80").unwrap(); 2];
        let sim = Store::create(&root, &Node::new("550.54.15", &models, mig)).unwrap();
        let built = std::env::current_exe()
            .unwrap()
            .with_file_name("libnvidia_ml.so");
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::copy(built, root.join("lib/libnvidia-ml.so.1")).unwrap();
        let world = World { folder, sim };
        world.configure(POOL);
        world
    }

    fn config(&self) -> PathBuf {
        self.folder.path().join("gpufrac.toml")
    }

    fn slurm_conf(&self) -> PathBuf {
        self.folder.path().join("slurm.conf")
    }

    fn configure(&self, pools: &str) {
        let root = self.folder.path().display();
        let text = format!(
            "version = 1\n[paths]\nrun = \"{root}/run\"\nstate = \"{root}/state\"\ndevices = \"{root}/dev\"\ndriver_root = \"{root}/gpus\"\nnvml = \"{root}/gpus/lib/libnvidia-ml.so.1\"\n{pools}"
        );
        fs::write(self.config(), text).unwrap();
    }

    /// The test's programs come before those of the machine.
    fn path(&self) -> String {
        let path = std::env::var("PATH").unwrap();
        format!("{}:{path}", self.folder.path().join("bin").display())
    }

    /// Installs a stand-in for a program of Slurm with this output and exit code.
    fn slurm_says(&self, program: &str, text: &str, status: u8) {
        let code = format!("cat <<'END'\n{text}\nEND\necho bad >&2\nexit {status}");
        self.slurm_does(program, &code);
    }

    /// Installs a stand-in for a program of Slurm that runs these commands.
    fn slurm_does(&self, program: &str, code: &str) {
        // Programs of Slurm are asked only where their file exists. libslurm reads it, stand-ins do not.
        let settings = "ClusterName=test\nSlurmctldHost=localhost\n";
        fs::write(self.slurm_conf(), settings).unwrap();
        let path = self.folder.path().join("bin").join(program);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{code}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Creates an instance without gpufrac.
    fn foreign(&self) -> u32 {
        let make = |node: &mut Node| {
            let id = node.create_gpu_instance(1, 9, Some((4, 4)))?.id;
            node.create_compute_instance(1, id, 2, None)?;
            Ok(id)
        };
        self.sim.update(make).unwrap()
    }

    fn instances(&self) -> usize {
        let node = self.sim.node().unwrap();
        node.gpus.iter().map(|gpu| gpu.instances.len()).sum()
    }

    fn run(&self, args: &[&str]) -> Said {
        self.said(self.command(args))
    }

    fn command(&self, args: &[&str]) -> Command {
        self.started_by(Command::new(env!("CARGO_BIN_EXE_gpufrac")), args)
    }

    /// As [`World::command`], by root without CAP_DAC_OVERRIDE, to which a file system can deny access.
    fn without_override(&self, args: &[&str]) -> Command {
        let mut program = Command::new("/usr/bin/setpriv");
        program.args([
            "--bounding-set=-dac_override",
            env!("CARGO_BIN_EXE_gpufrac"),
        ]);
        self.started_by(program, args)
    }

    fn started_by(&self, mut command: Command, args: &[&str]) -> Command {
        command
            .args(args)
            .env("GPUFRAC_CONFIG", self.config())
            .env("SLURMD_NODENAME", "gpufrac-test02")
            // The test must not use this machine's Slurm.
            .env("SLURM_CONF", self.slurm_conf())
            .env_remove("NVML_SIM_ROOT")
            .env("PATH", self.path());
        command
    }

    fn said(&self, mut command: Command) -> Said {
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| {
            let folder = self.folder.path().to_string_lossy().into_owned();
            String::from_utf8_lossy(bytes).replace(&folder, "DIR")
        };
        Said {
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // A file of `gpufrac node-setup` in the one folder that no configuration names.
        let _ = fs::remove_file(Path::new(NODES).join("gpufrac-test02"));
        let copy = last_good_name("gpufrac-test02", &self.config().to_string_lossy());
        let _ = fs::remove_file(Path::new(LAST_GOOD).join(copy));
    }
}

#[test]
fn check_prints_every_mistake_with_file_line_and_key() {
    let world = World::new(true);
    world.configure(
        &POOL
            .replace("H100-80", "H100-90")
            .replace("\"gpufrac-test[01-04]\"", "\"gpufrac-test[01\"")
            .replace("mig\"", "mig\"\nlayuot = \"x\""),
    );
    let said = world.run(&["check", "--file-only"]);
    assert_eq!((said.code, said.out.as_str()), (Some(2), ""));
    for start in [
        "DIR/gpufrac.toml:10: pool.h100.layuot: ",
        "DIR/gpufrac.toml:12: pool.h100.gpu: ",
        "DIR/gpufrac.toml:14: pool.h100.nodes: ",
    ] {
        assert!(
            said.err.lines().any(|line| line.starts_with(start)),
            "no `{start}` in:\n{}",
            said.err
        );
    }
}

/// Promise (admins): `gpufrac check` shows the menus, and compares the machine.
/// With `check_compares_the_machine_before_and_after_node_setup`.
#[test]
fn check_shows_the_menus() {
    let said = World::new(true).run(&["check", "--file-only"]);
    assert_eq!(
        said.out,
        "pool h100: mig on H100-80, halves for partition gpu on gpufrac-test[01-04]\n  \
         FRACTION  UNITS  PROFILE  MEMORY\n  \
         0.125     13     1g.10gb  9.7 GiB\n  \
         0.25      25     2g.20gb  19.6 GiB\n  \
         0.5       50     4g.40gb  39.5 GiB\n\
         DIR/gpufrac.toml: ok\n"
    );
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
}

#[test]
fn check_compares_the_machine_before_and_after_node_setup() {
    test_seed::needs_root();
    let world = World::new(false);
    let before = world.run(&["check"]);
    assert_eq!(before.code, Some(2));
    for wrong in ["not in MIG mode", "run `gpufrac node-setup`", "DIR/dev"] {
        assert!(before.err.contains(wrong), "no `{wrong}`:\n{}", before.err);
    }
    let setup = world.run(&["node-setup"]);
    assert_eq!(setup.code, Some(0), "{}", setup.err);
    assert!(
        setup
            .out
            .contains("made `DIR/dev/half3` for the right half of GPU 1")
    );
    assert!(setup.out.ends_with("node gpufrac-test02 is ready\n"));
    let after = world.run(&["check"]);
    assert_eq!((after.code, after.err.as_str()), (Some(0), ""));
    assert!(after.out.ends_with("ok; node gpufrac-test02: ok\n"));
    // A file of node-setup was removed.
    fs::remove_file(world.folder.path().join("dev/half1")).unwrap();
    let broken = world.run(&["check"]);
    assert!(
        broken
            .err
            .contains("`DIR/dev/half1` is missing, not device 60:1")
    );
    world.run(&["node-setup"]);
    world.configure(&POOL.replace("H100-80", "H200-141"));
    let other = world.run(&["check"]);
    assert_eq!(other.code, Some(2));
    assert!(other.err.contains("pool `h100`"), "{}", other.err);
}

/// Promise (admins): `gpufrac status` draws the instances and their jobs.
#[test]
fn status_draws_the_instances_of_each_gpu() {
    test_seed::needs_root();
    let world = World::new(true);
    let early = world.run(&["status"]);
    assert_eq!(early.code, Some(1));
    assert!(early.err.contains("run `gpufrac node-setup`"));
    world.run(&["node-setup"]);
    world
        .sim
        .update(|node| node.create_gpu_instance(1, 9, Some((4, 4))).map(|_| ()))
        .unwrap();
    let said = world.run(&["status"]);
    let free = "[free     ]";
    let lines: Vec<&str> = said.out.lines().collect();
    assert_eq!(lines[0], format!("GPU 0 H100-80   {}", free.repeat(8)));
    let foreign = format!("GPU 1 H100-80   {}[not ours ", free.repeat(4));
    assert!(lines[1].starts_with(&foreign), "{}", said.out);
    assert_eq!((lines.len(), lines[1].len()), (2, lines[0].len()));
    assert_eq!(world.run(&["leases"]).code, Some(0));
    let elsewhere = world.run(&["status", "--node", "login"]);
    assert_eq!(elsewhere.code, Some(1));
    assert!(elsewhere.err.contains("hint: run it there"));
}

/// Promise (admins): `gpufrac conf` prints the lines.
/// With `eight_gpus_are_sixteen_halves`.
#[test]
fn conf_prints_the_lines_of_several_nodes_at_once() {
    let world = World::new(true);
    let said = world.run(&["conf", "--node", "gpufrac-test[01-04]"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    for line in [
        "NodeName=gpufrac-test[01-04] Name=gpu Type=half File=DIR/dev/half[0-3]",
        "NodeName=gpufrac-test[01-04] Name=shard Type=half Count=200 File=DIR/dev/half[0-3]",
        "NodeName=gpufrac-test[01-04] Name=gpufrac Count=200",
        "NodeName=gpufrac-test[01-04] Gres=gpu:half:4,shard:half:200,gpufrac:200",
    ] {
        assert!(said.out.lines().any(|l| l == line), "{}", said.out);
    }
    // What the layouts of the model serve, in comments, with the pool at those that it has.
    let rows: Vec<Vec<&str>> = said
        .out
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect();
    for row in [
        &[
            "halves",
            "1/4",
            "4",
            "19.6",
            "3 x 32, 1 x 26",
            "0.7",
            "no",
            "h100",
        ][..],
        &["uniform", "1/7", "7", "9.7", "7 x 16", "11.0", "yes"],
        &["uniform, equal", "1/2", "2", "39.5", "2 x 60", "0.2", "yes"],
        &["slices", "1/7", "7", "9.7", "7 x 16", "11.0", "no"],
        &["whole", "1", "1", "79.2", "1 x 132", "0.0", "yes"],
    ] {
        assert!(
            rows.iter().any(|found| found == row),
            "{row:?} in {}",
            said.out
        );
    }
    let eight = world.run(&["conf", "--node", "gpufrac-test03", "--gpus", "8"]);
    assert!(
        eight
            .out
            .contains("Gres=gpu:half:16,shard:half:800,gpufrac:800")
    );
    assert_eq!(world.run(&["conf", "--node", "login"]).code, Some(1));
}

/// As on a host that gets Slurm's files later: its programs would wait a minute for them.
#[test]
fn conf_does_not_wait_for_files_of_slurm() {
    let world = World::new(true);
    let folder = world.folder.path();
    let asked = folder.join("asked");
    let program = folder.join("scontrol");
    let text = format!("#!/bin/sh\n: >{}\necho slurm 24.11.5\n", asked.display());
    // Another process writes it: the kernel starts no program that a child of another test holds open for writing.
    let mut writer = Command::new("sh");
    writer.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]);
    assert!(writer.arg(&program).arg(text).status().unwrap().success());
    let settings = folder.join("slurm.conf");
    let conf = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpufrac"));
        command
            .args(["conf", "--node", "gpufrac-test01"])
            .env("GPUFRAC_CONFIG", folder.join("gpufrac.toml"))
            .env("SLURM_CONF", &settings)
            .env("PATH", folder);
        let ended = command.output().unwrap();
        assert!(ended.status.success(), "{ended:?}");
        asked.exists()
    };
    assert!(!conf(), "scontrol was asked");
    fs::write(&settings, "").unwrap();
    assert!(conf());
}

#[test]
fn conf_prints_the_name_by_which_slurm_counts() {
    let world = World::new(true);
    world.configure(&format!("[gres]\nname = \"frac\"\n{POOL}"));
    let said = world.run(&["conf", "--node", "gpufrac-test01"]);
    for line in [
        "NodeName=gpufrac-test01 Name=frac Count=200",
        "GresTypes=gpu,shard,frac",
        "NodeName=gpufrac-test01 Gres=gpu:half:4,shard:half:200,frac:200",
    ] {
        assert!(said.out.lines().any(|l| l == line), "{}", said.out);
    }
}

/// Promise (admins): `gpufrac conf --json` keeps its form, and the form for Open OnDemand offers its sizes.
/// With `the_form_offers_what_each_partition_gives`.
#[test]
fn conf_gives_the_sizes_of_each_partition_to_programs() {
    let world = World::new(true);
    let rules = "[partition.gpu]\nmax = 0.25\ndefault = 0.125\n";
    world.configure(&format!("{POOL}{rules}"));
    let said = world.run(&["conf", "--json"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""));
    let found: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let expected = serde_json::json!({
        "version": 1,
        "gres": "gpufrac",
        "counted_as": "gpufrac",
        "partitions": [{
            "name": "gpu",
            "mechanisms": ["mig"],
            "pools": ["h100"],
            "default": "0.125",
            "sizes": [
                {"gres": "gpufrac:0.125", "fraction": "0.125", "units": 13, "memory_mib": 9984},
                {"gres": "gpufrac:0.25", "fraction": "0.25", "units": 25, "memory_mib": 20096},
            ],
        }],
        "pools": [{
            "name": "h100",
            "mechanism": "mig",
            "layout": "halves",
            "model": "H100-80",
            "memory_mib": 81152,
            "partitions": ["gpu"],
            "nodes": [
                "gpufrac-test01",
                "gpufrac-test02",
                "gpufrac-test03",
                "gpufrac-test04",
            ],
        }],
    });
    assert_eq!(found, expected, "{}", said.out);
    // The node need not be of a pool, and no driver is asked.
    assert_eq!(
        world.run(&["conf", "--json", "--node", "login"]).code,
        Some(0)
    );
    assert_eq!(world.run(&["conf", "--json", "--diff"]).code, Some(2));
}

/// Promise (users): `gpufrac plan` proposes a gpufrac.toml that `gpufrac check --file-only` takes, and names lines that
/// it cannot read.
/// With `every_candidate_has_a_configuration_with_lines_for_slurm`.
#[test]
fn plan_proposes_a_file_that_check_takes_and_says_what_it_left_out() {
    let world = World::new(true);
    let mut history = "JobID|User|Partition|Submit|Start|End|ElapsedRaw|TimelimitRaw|AllocTRES|NNodes|NodeList|TRESUsageInMax|TRESUsageInAve\n".to_owned();
    for job in 0..200 {
        let minute = job % 60;
        let hour = job / 60;
        history.push_str(&format!(
            "{job}|ann|gpu|2026-11-01T{hour:02}:{minute:02}:00|2026-11-01T{hour:02}:{minute:02}:00|Unknown|7200|1440|cpu=1,gres/gpu=1|1|gn[01-02]|gres/gpumem=2G|gres/gpuutil=10\n"
        ));
    }
    history.push_str("300|ann|gpu|torn\n301|ann|gpu|soon|soon|soon|1|1|gres/gpu=1|1|gn01||\n");
    let file = world.config().with_file_name("history.txt");
    fs::write(&file, history).unwrap();
    let (file, toml) = (file.to_str().unwrap().to_owned(), world.config());
    let page = toml.with_file_name("plan.html");
    let arguments = [
        "plan",
        &file,
        "--nodes",
        "20",
        "--gpus-per-node",
        "8",
        "--samples",
        "4",
        "--quiet",
    ];
    let outputs = [
        "--toml",
        toml.to_str().unwrap(),
        "--html",
        page.to_str().unwrap(),
    ];
    let plan = world.run(&[&arguments[..], &outputs[..]].concat());
    assert_eq!(plan.code, Some(0), "{}", plan.err);
    assert!(plan.out.contains("2 broken lines"), "{}", plan.out);
    assert!(
        plan.out
            .contains(":202: the row has 4 fields instead of 13"),
        "{}",
        plan.out
    );
    assert!(
        plan.out.contains("NodeName=gpu[01-20] Gres="),
        "{}",
        plan.out
    );
    assert!(fs::read_to_string(&page).unwrap().contains("<svg "));
    let check = world.run(&["check", "--file-only"]);
    assert_eq!(check.code, Some(0), "{}", check.err);
    let limits = world.config().with_file_name("limits.txt");
    fs::write(&limits, "Name|MaxTRESPU\nnormal|gres/gpu=8\ntorn\nAccount|User|ParentName|GrpTRES|GrpJobs\nroot|||gres/gpu=100,cpu=8|\n").unwrap();
    let limited = [&arguments[..], &["--limits", limits.to_str().unwrap()]].concat();
    let limited = world.run(&limited);
    for text in [
        "limits: 1 QOS and 1 associations of ",
        "200 of 200 jobs have no account: limits of accounts do not hold for them",
        "200 of 200 jobs have no QOS: limits of the job's QOS do not hold for them",
        "limits that are not counted: GrpTRES of cpu",
        "write gres/gpufrac=100 for each GPU",
        "limits.txt:3: the row has 1 fields instead of 2",
    ] {
        assert!(limited.out.contains(text), "{text}\n{}", limited.out);
    }
    let why = world.run(&["plan", &file, "--explain", "7"]);
    assert!(
        why.out
            .contains("halves: 0.13 of a GPU, the smallest size with 2.1 GiB"),
        "{} {}",
        why.out,
        why.err
    );
    let none = world.run(&["plan", &file, "--explain", "999"]);
    assert_eq!(none.code, Some(1));
    assert!(
        none.err.contains("the history has no job 999"),
        "{}",
        none.err
    );
}

#[test]
fn advise_prints_a_file_that_check_takes() {
    let world = World::new(true);
    let advice = world.run(&["advise", "--workload", "notebooks", "--gpu", "H100-80"]);
    let text = advice.out;
    assert!(text.starts_with("mechanism: mig\n"), "{text}");
    let file = &text[text.find("version = 1").unwrap()..];
    fs::write(world.config(), file).unwrap();
    let check = world.run(&["check", "--file-only"]);
    assert_eq!(check.code, Some(0), "{}", check.err);
    let refused = world.run(&["advise", "--workload", "batch", "--gpu", "GTX-1080"]);
    assert_eq!(refused.code, Some(1));
    let said = refused.err;
    assert!(said.contains("give its memory with --memory MIB"), "{said}");
}

#[test]
fn a_wrong_command_line_is_usage() {
    let world = World::new(true);
    assert_eq!(world.run(&["chekc"]).code, Some(2));
    assert_eq!(world.run(&["check", "--config"]).code, Some(2));
    let absent = world.run(&["check", "--config", "/nowhere/gpufrac.toml"]);
    assert_eq!(absent.code, Some(2));
    assert!(absent.err.contains("hint: name the file"));
}

/// Promise (admins): MIG instances that no lease names are named, and destroyed by `gpufrac clean` alone: asked,
/// nothing on them, and no job that may have them; a job that has no place for them drains its node.
/// With `an_instance_that_a_program_uses_is_not_destroyed`, `a_job_whose_place_a_foreign_instance_has_drains_the_node`,
/// `unleased_instances_are_shown_and_destroyed_and_those_of_jobs_stay`.
#[test]
fn instances_that_no_lease_names_are_shown_and_destroyed_when_asked() {
    test_seed::needs_root();
    let world = World::new(true);
    world.run(&["node-setup"]);
    let id = world.foreign();
    let named = format!("GPU 1: MIG instance {id} (3g.40gb at 4:4) has no lease");
    let said = world.run(&["check"]);
    assert_eq!(said.code, Some(2));
    assert!(
        said.err
            .contains(&format!("{named}\nhint: `gpufrac clean`")),
        "{}",
        said.err
    );
    let said = world.run(&["node-setup"]);
    assert!(
        said.err
            .contains(&format!("hint: {named}: `gpufrac clean`")),
        "{}",
        said.err
    );
    let refused = |why: &str| {
        let said = world.run(&["clean", "--yes"]);
        assert_eq!((said.code, world.instances()), (Some(1), 1));
        assert!(said.err.contains(why), "{}", said.err);
        said.err
    };
    // squeue fails, so it is not known whether a job has the instance.
    world.slurm_says("squeue", "", 1);
    refused("squeue does not answer (bad)");
    // A job whose lease is lost may have the instance.
    world.slurm_says("squeue", "12|RUNNING|gpufrac-test02", 0);
    world.slurm_says("scontrol", "TresPerNode=gres:gpufrac:25,gres:shard:25", 0);
    let err = refused("no lease is known of job 12 on node gpufrac-test02");
    assert!(err.contains("hint: cancel them with `scancel 12`"), "{err}");
    // A whole GPU of a pool has no shares, only the count, by the site's name.
    world.configure(&format!("[gres]\nname = \"frac\"\n{POOL}"));
    world.slurm_says("scontrol", "TresPerNode=gres/gpu:whole:1,gres/frac:100", 0);
    refused("no lease is known of job 12");
    world.configure(POOL);
    // A job without a fraction cannot have the instance. There is no terminal for the confirmation.
    world.slurm_says("scontrol", "JobId=12 TRES=cpu=1", 0);
    let said = world.run(&["clean"]);
    assert_eq!((said.code, world.instances()), (Some(1), 1));
    assert!(
        said.out.contains(&named) && said.err.contains("with `--yes`"),
        "{}",
        said.err
    );
    let said = world.run(&["clean", "--yes"]);
    assert_eq!((said.code, world.instances()), (Some(0), 0), "{}", said.err);
    assert!(
        said.out
            .contains(&format!("destroyed MIG instance {id} of GPU 1")),
        "{}",
        said.out
    );
    assert_eq!(
        world.run(&["clean", "--yes"]).out,
        "each MIG instance of the pools on node gpufrac-test02 has a lease\n"
    );
    // Of a host without Slurm.
    fs::remove_file(world.slurm_conf()).unwrap();
    assert_eq!(world.run(&["check"]).code, Some(0));
}

#[test]
fn an_instance_that_a_program_uses_is_not_destroyed() {
    test_seed::needs_root();
    let world = World::new(true);
    world.run(&["node-setup"]);
    world.slurm_says("squeue", "", 0);
    let id = world.foreign();
    let node = world.sim.node().unwrap();
    let instance = node.gpus[1].instance(id).unwrap();
    let pid = std::process::id();
    nvidia_ml::processes::Process {
        pid,
        start_ticks: nvidia_ml::processes::start_ticks(pid).unwrap(),
        name: "train".into(),
        gpu_uuid: node.gpus[1].uuid.clone(),
        instance: Some((instance.serial, instance.compute[0].serial)),
        memory_mib: 100,
        pattern: nvidia_ml::pattern::Pattern::Busy,
        began_us: 0,
    }
    .register(world.sim.root())
    .unwrap();
    let said = world.run(&["clean", "--yes"]);
    assert_eq!((said.code, world.instances()), (Some(1), 1));
    assert!(
        said.out.contains(&format!("and process {pid} runs on it")),
        "{}",
        said.out
    );
}

/// Promise (admins): a lease that cannot be read is named with its cure, and dropped when its job is over.
/// With `only_a_lease_that_cannot_be_read_is_dropped_without_a_lock`.
#[test]
fn a_lease_that_cannot_be_read_is_dropped_when_its_job_is_over() {
    test_seed::needs_root();
    let world = World::new(true);
    world.run(&["node-setup"]);
    let path = world.folder.path().join("run/leases/12");
    fs::write(&path, "half of a lease").unwrap();
    let cure = "hint: `gpufrac lease drop 12`";
    for (command, code) in [
        ("check", 2),
        ("node-setup", 1),
        ("status", 1),
        ("leases", 1),
    ] {
        let said = world.run(&[command]);
        assert_eq!(said.code, Some(code), "{command}: {}", said.out);
        assert!(said.err.contains(cure), "{command}: {}", said.err);
    }
    let refused = |why: &str| {
        let said = world.run(&["lease", "drop", "12", "--yes"]);
        assert_eq!(said.code, Some(1), "{}", said.out);
        assert!(said.err.contains(why) && path.exists(), "{}", said.err);
    };
    world.slurm_says("squeue", "", 1);
    refused("squeue does not answer");
    for state in ["RUNNING", "COMPLETING", "SUSPENDED"] {
        world.slurm_says("squeue", &format!("12|{state}|gpufrac-test02"), 0);
        refused(&format!(
            "job 12 is {state} on this node: its lease stays\nhint: `scancel 12`"
        ));
    }
    // What the user's variables select is not what slurmctld knows.
    world.slurm_does(
        "squeue",
        "[ -n \"$SLURM_CLUSTERS$SQUEUE_STATES$SQUEUE_USERS\" ] || [ \"$SQUEUE_LOCAL\" != 1 ] || echo '12|RUNNING|gpufrac-test02'",
    );
    for name in ["SLURM_CLUSTERS", "SQUEUE_STATES", "SQUEUE_USERS"] {
        let mut command = world.command(&["lease", "drop", "12", "--yes"]);
        command.env(name, "b");
        let said = world.said(command);
        assert!(path.exists(), "{name}: {}", said.out);
        assert!(said.err.contains("job 12 is RUNNING"), "{}", said.err);
    }
    // Another name does not make another node's files of these.
    let said = world.run(&["lease", "drop", "12", "--yes", "--node", "gpufrac-test03"]);
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert!(
        said.err.contains("this host is `gpufrac-test02`") && path.exists(),
        "{}",
        said.err
    );
    // The job runs again on another node.
    world.slurm_says("squeue", "12|RUNNING|gpufrac-test03", 0);
    let said = world.run(&["lease", "drop", "12", "--yes"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(
        said.out.ends_with("dropped the lease 12\n") && !path.exists(),
        "{}",
        said.out
    );
    let mut kept = fs::read_dir(world.folder.path().join("state/dropped")).unwrap();
    assert_eq!(
        fs::read_to_string(kept.next().unwrap().unwrap().path()).unwrap(),
        "half of a lease"
    );
    // Of a host without Slurm.
    fs::remove_file(world.slurm_conf()).unwrap();
    assert_eq!(world.run(&["check"]).code, Some(0));
    for name in ["12", "../12", "x"] {
        let said = world.run(&["lease", "drop", name, "--yes"]);
        assert!(
            said.err.contains(&format!("no lease `{name}`")),
            "{}",
            said.err
        );
    }
}

/// Promise (admins): a GPU that is gone keeps its halves, and node-setup says so; MIG that waited for a busy GPU is
/// switched on when it is idle, by the next job or by node-setup, never while a job has a slice of the GPU.
/// With `mig_that_waited_for_a_busy_gpu_is_switched_on_when_it_is_idle`,
/// `mig_that_was_pending_at_node_setup_comes_with_the_next_job`,
/// `mig_that_was_switched_off_comes_back_while_nobody_has_the_gpu`, `a_gpu_that_needs_a_reset_is_an_admins`.
#[test]
fn a_gpu_that_is_gone_keeps_its_halves_until_a_reboot() {
    test_seed::needs_root();
    let world = World::new(true);
    assert_eq!(world.run(&["node-setup"]).code, Some(0));
    world.sim.update(|node| Ok(node.gpus.remove(0))).unwrap();
    let before = fs::read_to_string(world.folder.path().join("run/fence")).unwrap();
    for (command, code) in [("node-setup", 1), ("check", 2)] {
        let said = world.run(&[command]);
        assert_eq!(said.code, Some(code), "{}", said.out);
        assert!(
            said.err
                .contains("of pool `h100` was present at the last node-setup")
                && said.err.contains("`Xid`"),
            "{}",
            said.err
        );
        assert!(!said.out.contains("is ready"), "{}", said.out);
    }
    for half in 0..4 {
        assert!(world.folder.path().join(format!("dev/half{half}")).exists());
    }
    assert_eq!(
        fs::read_to_string(world.folder.path().join("run/fence")).unwrap(),
        before
    );
}

/// Promise (admins): a mistake in gpufrac.toml does not keep a node from coming back after a reboot.
#[test]
fn a_mistake_in_the_file_does_not_keep_a_node_from_coming_back() {
    test_seed::needs_root();
    let world = World::new(true);
    let reboot = || {
        for name in ["run", "dev"] {
            let _ = fs::remove_dir_all(world.folder.path().join(name));
        }
    };
    let half = world.folder.path().join("dev/half0");
    let wrong = POOL.replace("layout", "layuot");
    assert_ne!(wrong, POOL);
    // There is no valid copy yet.
    world.configure(&wrong);
    let said = world.run(&["node-setup"]);
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert!(said.err.contains("layuot: unknown key"), "{}", said.err);
    assert!(!half.exists());
    world.configure(POOL);
    assert_eq!(world.run(&["node-setup"]).code, Some(0));
    let reaper = format!("{POOL}\n[reaper]\nmoed = \"on\"\n");
    for (spoilt, words) in [
        (&wrong, "layuot: unknown key"),
        (&reaper, "moed: unknown key"),
    ] {
        world.configure(spoilt);
        reboot();
        let said = world.run(&["node-setup"]);
        assert_eq!(said.code, Some(1), "{}", said.out);
        assert!(
            said.out.contains("is ready") && half.exists(),
            "{}",
            said.out
        );
        assert!(said.err.contains(words), "{}", said.err);
        assert_eq!(world.run(&["check"]).code, Some(2));
    }
}

#[test]
fn mig_that_waited_for_a_busy_gpu_is_switched_on_when_it_is_idle() {
    test_seed::needs_root();
    let world = World::new(false);
    let pending = |node: &mut Node| {
        node.gpus[0].mig_pending = true;
        Ok(())
    };
    world.sim.update(pending).unwrap();
    let said = world.run(&["node-setup"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(world.sim.node().unwrap().gpus[0].mig);
}

/// Promise (admins): `gpufrac check` ends with 0, 1 or 2; `--json`, `--quiet`.
/// With `running_and_written_settings_are_told_apart`.
#[test]
fn check_tells_monitoring_by_its_status_and_as_json() {
    test_seed::needs_root();
    let world = World::new(true);
    world.run(&["node-setup"]);
    let said = world.run(&["check", "--quiet"]);
    assert_eq!(
        (said.code, said.out.as_str(), said.err.as_str()),
        (Some(0), "", "")
    );
    let json = |args: &[&str]| -> serde_json::Value {
        let said = world.run(args);
        serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {}", said.out))
    };
    let good = json(&["check", "--json"]);
    assert_eq!(
        (&good["status"], &good["node"]),
        (&"ok".into(), &"gpufrac-test02".into())
    );
    fs::remove_file(world.folder.path().join("dev/half1")).unwrap();
    let bad = json(&["check", "--json"]);
    assert_eq!(bad["status"], "error");
    let first = &bad["findings"][0];
    assert_eq!(first["severity"], "error");
    assert!(
        first["fix"]
            .as_str()
            .unwrap()
            .contains("gpufrac node-setup"),
        "{bad}"
    );
    let said = world.run(&["check", "--quiet"]);
    assert_eq!((said.code, said.out.as_str()), (Some(2), ""));
    assert_eq!(
        said.err,
        "gpufrac: `DIR/dev/half1` is missing, not device 60:1\n"
    );
    world.configure(&POOL.replace("halves", "havles"));
    let wrong = json(&["check", "--json"]);
    assert_eq!(wrong["status"], "error");
    assert!(
        wrong["findings"][0]["place"]
            .as_str()
            .unwrap()
            .ends_with("gpufrac.toml:10"),
        "{wrong}"
    );
}

/// Promise (admins): a command on the wrong host says on which host it works.
#[test]
fn a_command_on_the_wrong_host_names_the_right_one() {
    let world = World::new(true);
    for command in ["status", "leases"] {
        let said = world.run(&[command, "--node", "login"]);
        assert_eq!(said.code, Some(1));
        assert!(
            said.err
                .contains("the nodes of the pools are gpufrac-test[01-04]")
                && said
                    .err
                    .contains("hint: run it there: `ssh gpufrac-test01 gpufrac ...`"),
            "{}",
            said.err
        );
        // The node of a pool, but not this host.
        let said = world.run(&[command, "--node", "gpufrac-test03"]);
        assert_eq!(said.code, Some(1));
        assert!(
            said.err.contains("`ssh gpufrac-test03 gpufrac ...`"),
            "{}",
            said.err
        );
    }
    world.slurm_says("squeue", "12|RUNNING|gpufrac-test03", 0);
    let said = world.run(&["why", "12"]);
    assert!(
        said.err.contains("`ssh gpufrac-test03 gpufrac why 12`"),
        "{}",
        said.err
    );
}

/// Promise (admins): `gpufrac doctor` collects what is known of a job.
/// With `unleased_instances_are_shown_and_destroyed_and_those_of_jobs_stay`.
#[test]
fn doctor_collects_what_is_known_of_a_job() {
    test_seed::needs_root();
    let world = World::new(true);
    world.run(&["node-setup"]);
    fs::write(world.folder.path().join("run/leases/12"), "half of a lease").unwrap();
    let usage =
        "{\"version\":1,\"job\":12,\"seconds\":7}\n{\"version\":1,\"job\":112,\"seconds\":8}\n";
    fs::write(world.folder.path().join("state/usage.jsonl"), usage).unwrap();
    world.slurm_says("squeue", "12|PENDING|gpufrac-test02", 0);
    world.slurm_says(
        "scontrol",
        "   JobState=PENDING Reason=launch_failed_requeued_held\n   AdminComment=gpufrac: prolog: no GPU\n   Reason=gpufrac: GPU 0 is gone\n   WorkDir=/x",
        0,
    );
    let said = world.run(&["doctor", "12"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for text in [
        "job 12 by Slurm:\n  JobState=PENDING Reason=launch_failed_requeued_held\n  AdminComment=gpufrac: prolog: no GPU\n",
        "node gpufrac-test02 by Slurm:\n  Reason=gpufrac: GPU 0 is gone\n",
        "lease on gpufrac-test02:\n  `DIR/run/leases/12`",
        "`gpufrac lease drop 12`",
        "usage records of gpufrac-test02:\n  {\"version\":1,\"job\":12,\"seconds\":7}\n\n",
        "records of gpufrac-reaperd:\n  none here",
        "log of this host:\n",
    ] {
        assert!(said.out.contains(text), "no {text:?} in {}", said.out);
    }
    assert!(!said.out.contains("WorkDir"), "{}", said.out);
    assert_eq!(world.run(&["doctor", "x"]).code, Some(1));
}

/// Promise (admins): `gpufrac doctor --bundle` has what the report of a problem needs, and no other setting of Slurm.
#[test]
fn the_bundle_has_what_a_report_needs() {
    test_seed::needs_root();
    let world = World::new(true);
    world.run(&["node-setup"]);
    world.slurm_says(
        "scontrol",
        "GresTypes               = gpu,shard,gpufrac\nSlurmUser = ann(7)",
        0,
    );
    let said = world.run(&["doctor", "--bundle"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for text in [
        "versions:\n  gpufrac ",
        "Linux version ",
        "GPUs of this host:\n  driver ",
        ", MIG On\n",
        "gpufrac check:\n",
        "Slurm's settings:\n  GresTypes               = gpu,shard,gpufrac\n\n",
        "mechanism = \"mig\"",
    ] {
        assert!(said.out.contains(text), "no {text:?} in {}", said.out);
    }
    assert!(!said.out.contains("ann(7)"), "{}", said.out);
    assert!(!said.out.contains("by Slurm"), "{}", said.out);
    assert_eq!(world.run(&["doctor"]).code, Some(2));
    // Also of a file with a mistake.
    fs::write(world.folder.path().join("gpufrac.toml"), "version = x\n").unwrap();
    let said = world.run(&["doctor", "--bundle"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for text in ["GPUs of this host:\n  ", "gpufrac.toml:\n  version = x\n"] {
        assert!(said.out.contains(text), "no {text:?} in {}", said.out);
    }
}

/// Promise (admins): each form of a report says how many lines are no records, and names the first.
#[test]
fn lines_that_are_no_records_are_named_in_each_form() {
    let world = World::new(true);
    let records = world.folder.path().join("usage.jsonl");
    fs::write(&records, "{\"version\":2,\"job\":1\n").unwrap();
    let records = records.display().to_string();
    for form in ["table", "csv", "json", "html"] {
        let said = world.run(&[
            "report",
            "--no-sacct",
            "--records",
            &records,
            "--format",
            form,
        ]);
        let text = said.out + &said.err;
        assert_eq!(text.matches("usage.jsonl:1:").count(), 1, "{form}: {text}");
    }
}

/// Promise (admins): a reader of stdout that goes away ends no command in the middle, and a full disk behind stdout is
/// reported.
// `Command::output` would replace the pipes of the test.
#[test]
fn a_closed_pipe_is_no_error_and_a_full_disk_is_reported() {
    let world = World::new(true);
    let commands: [&[&str]; 6] = [
        &["node-setup"],
        &["status"],
        &["conf"],
        &["check"],
        &["advise", "--workload", "batch", "--gpu", "H100-80"],
        &["completions", "bash"],
    ];
    for args in commands {
        let told = world.run(args);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = world.command(args);
        command.stdout(writer);
        let gone = world.said(command);
        assert_eq!((gone.code, &gone.err), (told.code, &told.err), "{args:?}");
        assert!(!gone.err.contains("panicked"), "{args:?}: {}", gone.err);

        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let mut command = world.command(args);
        command.stdout(full);
        let full = world.said(command);
        assert_eq!(full.code, Some(1), "{args:?}: {}", full.err);
        let said = "gpufrac: writing to stdout failed: No space left on device";
        assert!(full.err.contains(said), "{args:?}: {}", full.err);
    }
}

/// Starts a dcgm-exporter that knows one metric; its URL.
fn exporter(metric: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let labels = "gpu=\"0\",UUID=\"GPU-aa\",GPU_I_ID=\"7\"";
    let answer = format!("HTTP/1.0 200 OK\r\n\r\n{metric}{{{labels}}} 0.5\n");
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            if stream.read(&mut request).unwrap() > 0 {
                stream.write_all(answer.as_bytes()).unwrap();
            }
        }
    });
    url
}

/// Promise (admins): `gpufrac check` names what the reaper needs and the node lacks, and two files of gpufrac that
/// differ.
/// With `two_files_of_gpufrac_that_differ_are_named`.
#[test]
fn check_names_what_the_daemon_of_a_node_needs() {
    test_seed::needs_root();
    let world = World::new(true);
    let root = world.folder.path().display().to_string();
    let shared = world.folder.path().join("shared");
    let exporter = exporter("DCGM_FI_PROF_ENGINE_BUSY");
    let configure = || {
        world.configure(&format!(
            "shared = \"{root}/shared\"\n{POOL}[reaper]\nmode = \"on\"\ndcgm_exporter = \"{exporter}\"\n[reaper.mail]\nsendmail = \"{root}/sendmail\"\n"
        ));
    };
    configure();
    assert_eq!(world.run(&["node-setup"]).code, Some(0));
    let said = world.run(&["check"]);
    for words in [
        "gpufrac-reaperd does not run",
        "using `shared` of [paths] failed: opening `DIR/shared` failed: No such file",
        "mount or create `DIR/shared`",
        "`DIR/sendmail` of [reaper.mail] does not exist",
        "has neither DCGM_FI_PROF_GR_ENGINE_ACTIVE nor DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
        "but DCGM_FI_PROF_ENGINE_BUSY; add field 1001",
    ] {
        assert!(said.err.contains(words), "no {words:?}: {}", said.err);
    }
    fs::create_dir(&shared).unwrap();
    fs::write(world.folder.path().join("sendmail"), "").unwrap();
    let said = world.run(&["check"]);
    for words in ["`shared`", "[reaper.mail]"] {
        assert!(!said.err.contains(words), "{}", said.err);
    }
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    let said = world.run(&["check"]);
    assert!(said.err.contains("chmod go-w DIR/shared"), "{}", said.err);
    // As on NFS with root_squash, the file system denies root to write.
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o555)).unwrap();
    let said = world.said(world.without_override(&["check"]));
    for words in [
        "writing to `DIR/shared` failed: Permission denied",
        "no_root_squash",
    ] {
        assert!(said.err.contains(words), "no {words:?}: {}", said.err);
    }
}
