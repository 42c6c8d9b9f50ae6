//! The commands as an admin types them: exit code, stdout, stderr.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
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

    fn configure(&self, pools: &str) {
        let root = self.folder.path().display();
        let text = format!(
            "version = 1\n[paths]\nrun = \"{root}/run\"\nstate = \"{root}/state\"\ndevices = \"{root}/dev\"\ndriver_root = \"{root}/gpus\"\nnvml = \"{root}/gpus/lib/libnvidia-ml.so.1\"\n{pools}"
        );
        fs::write(self.config(), text).unwrap();
    }

    fn run(&self, args: &[&str]) -> Said {
        let output = Command::new(env!("CARGO_BIN_EXE_gpufrac"))
            .args(args)
            .env("GPUFRAC_CONFIG", self.config())
            .env("SLURMD_NODENAME", "gpufrac-test02")
            // Not the Slurm of this machine.
            .env("SLURM_CONF", self.folder.path().join("slurm.conf"))
            .env_remove("NVML_SIM_ROOT")
            .output()
            .unwrap();
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
        // Of `gpufrac node-setup`, in the one folder that no configuration names.
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
    assert_eq!((said.code, said.out.as_str()), (Some(1), ""));
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
    if !is_root() {
        return;
    }
    let world = World::new(false);
    let before = world.run(&["check"]);
    assert_eq!(before.code, Some(1));
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
    // What node-setup made and somebody broke.
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
    assert_eq!(other.code, Some(1));
    assert!(other.err.contains("pool `h100`"), "{}", other.err);
}

#[test]
fn status_draws_what_stands() {
    if !is_root() {
        return;
    }
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
    assert!(elsewhere.err.contains("hint: "));
}

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
    let eight = world.run(&["conf", "--node", "gpufrac-test03", "--gpus", "8"]);
    assert!(
        eight
            .out
            .contains("Gres=gpu:half:16,shard:half:800,gpufrac:800")
    );
    assert_eq!(world.run(&["conf", "--node", "login"]).code, Some(1));
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
    assert_eq!(absent.code, Some(1));
    assert!(absent.err.contains("hint: name the file"));
}

fn is_root() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|meta| {
        use std::os::unix::fs::MetadataExt;
        meta.uid() == 0
    });
    if !root {
        eprintln!("skipped: device nodes can only be made by root");
    }
    root
}
