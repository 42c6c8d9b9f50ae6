//! `gpufrac init` and `gpufrac conf --diff` on files of a site, with simulated GPUs.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvidia_ml::model::Model;
use nvidia_ml::node::Node;
use nvidia_ml::store::Store;

const SLURM: &str = "\
ClusterName=site
SlurmctldHost=ctl
GresTypes=gpu
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
NodeName=gn[01-02] CPUs=8 Gres=gpu:h100:2
NodeName=cn01 CPUs=8
PartitionName=all Nodes=gn[01-02],cn01 Default=YES
PartitionName=gpu Nodes=gn[01-02]
";
const GRES: &str = "NodeName=gn[01-02] Name=gpu Type=h100 File=/dev/nvidia[0-1]\n";

struct World(tempfile::TempDir);

struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

impl World {
    fn new(models: &[&str]) -> World {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("gpus");
        let models: Vec<&Model> = models
            .iter()
            .map(|name| Model::find(name).unwrap())
            .collect();
        Store::create(&root, &Node::new("550.54.15", &models, false)).unwrap();
        let built = std::env::current_exe()
            .unwrap()
            .with_file_name("libnvidia_ml.so");
        fs::create_dir_all(root.join("lib")).unwrap();
        fs::copy(built, root.join("lib/libnvidia-ml.so.1")).unwrap();
        let world = World(folder);
        world.write("slurm.conf", SLURM);
        world.write("gres.conf", GRES);
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("etc").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::create_dir_all(self.path("")).unwrap();
        fs::write(self.path(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// The names of all files, without the time in the names of copies.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("")).unwrap();
        let name = |entry: fs::DirEntry| {
            let name = entry.file_name().into_string().unwrap();
            match name.split_once(".before-gpufrac-") {
                Some((start, time)) => {
                    assert_eq!(time.len(), "20261123T054022Z".len(), "{time}");
                    format!("{start}.copy")
                }
                None => name,
            }
        };
        let mut names: Vec<String> = entries.flatten().map(name).collect();
        names.sort();
        names
    }

    fn run(&self, args: &[&str]) -> Said {
        let slurm_conf = self.path("slurm.conf");
        let output = Command::new(env!("CARGO_BIN_EXE_gpufrac"))
            .args(args)
            // tests/lab/tests/e2e/proposals.rs tries proposals.
            .args((args[0] == "init").then_some("--no-trial"))
            .args(["--slurm-conf".as_ref(), slurm_conf.as_os_str()])
            .env("GPUFRAC_CONFIG", self.path("gpufrac.toml"))
            .env("SLURMD_NODENAME", "gn01")
            .env("LD_LIBRARY_PATH", self.0.path().join("gpus/lib"))
            .env_remove("NVML_SIM_ROOT")
            .output()
            .unwrap();
        let text = |bytes: &[u8]| {
            let folder = self.path("").to_string_lossy().into_owned();
            String::from_utf8_lossy(bytes).replace(folder.trim_end_matches('/'), "/etc")
        };
        Said {
            code: output.status.code(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    fn check(&self) -> Said {
        let output = Command::new(env!("CARGO_BIN_EXE_gpufrac"))
            .args(["check", "--file-only", "--config"])
            .arg(self.path("gpufrac.toml"))
            .output()
            .unwrap();
        Said {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// Promise (admins): a new gpufrac.toml of `gpufrac init` counts fractions by a name that other tools do not take for
/// GPUs.
#[test]
fn a_proposal_is_printed_as_a_diff_and_nothing_is_written() {
    let world = World::new(&["H100-80", "H100-80"]);
    let said = world.run(&["init"]);
    assert_eq!(
        (said.code, said.err.as_str()),
        (Some(0), ""),
        "{}",
        said.out
    );
    for line in [
        "GPU 1: NVIDIA H100 80GB HBM3, model H100-80",
        "--- /dev/null",
        "+++ /etc/gpufrac.toml",
        "+partitions = [\"gpu\"]",
        "+nodes = \"gn[01-02]\"",
        "--- /etc/slurm.conf",
        "-GresTypes=gpu",
        "+GresTypes=gpu,shard,frac",
        "+NodeName=gn[01-02] CPUs=8 Gres=gpu:half:4,shard:half:200,frac:200",
        "+NodeName=gn[01-02] Name=gpu Type=half File=/dev/gpufrac/half[0-3]",
        "+required spank_gpufrac.so",
        "in this order:",
    ] {
        assert!(
            said.out.lines().any(|known| known == line),
            "no `{line}`:\n{}",
            said.out
        );
    }
    assert_eq!(world.names(), ["gres.conf", "slurm.conf"]);
    assert_eq!(
        (
            world.read("slurm.conf").as_str(),
            world.read("gres.conf").as_str()
        ),
        (SLURM, GRES)
    );
}

/// Promise (admins): `gpufrac init` proposes a diff that gives files which `gpufrac check` takes, writes only when told
/// to, keeps copies, owner and mode, leaves lines of others, and finds nothing the second time.
/// With `a_proposal_is_printed_as_a_diff_and_nothing_is_written`,
/// `gpus_of_two_models_are_two_pools_and_other_gpus_are_asked_about`,
/// `a_site_of_whole_gpus_gets_all_lines_and_keeps_its_own`, `one_node_of_a_line_gets_a_line_of_its_own`,
/// `a_second_run_changes_nothing_after_any_mistake`, `a_copy_is_kept_and_owner_mode_and_links_stay`,
/// `a_file_that_changed_meanwhile_or_came_meanwhile_stays`.
#[test]
fn the_diff_is_written_with_a_copy_and_a_second_run_proposes_nothing() {
    let world = World::new(&["H100-80", "H100-80"]);
    fs::set_permissions(world.path("slurm.conf"), fs::Permissions::from_mode(0o640)).unwrap();
    let diff = world.run(&["init"]).out;
    // The same change by patch(1), in a copy of the folder.
    let copy = world.0.path().join("patched");
    fs::create_dir(&copy).unwrap();
    for name in ["slurm.conf", "gres.conf"] {
        fs::copy(world.path(name), copy.join(name)).unwrap();
    }
    let patch = world.0.path().join("patch");
    fs::write(&patch, diff).unwrap();
    let said = world.run(&["init", "--write"]);
    assert_eq!(
        (said.code, said.err.as_str()),
        (Some(0), ""),
        "{}",
        said.out
    );
    assert_eq!(
        world.names(),
        [
            "cgroup.conf",
            "gpufrac.toml",
            "gres.conf",
            "gres.conf.copy",
            "plugstack.conf",
            "slurm.conf",
            "slurm.conf.copy"
        ]
    );
    let mode = |name: &str| fs::metadata(world.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("slurm.conf"), mode("gpufrac.toml")), (0o640, 0o644));
    let kept = said
        .out
        .lines()
        .find_map(|line| line.split_once("wrote /etc/slurm.conf; as it was: /etc/"));
    assert_eq!(world.read(kept.unwrap().1), SLURM);
    let check = world.check();
    assert_eq!(check.code, Some(0), "{}", check.err);
    let patched = Command::new("patch")
        .args(["-p2", "--quiet", "-i"])
        .arg(&patch)
        .current_dir(&copy)
        .output();
    if let Ok(patched) = patched {
        assert!(patched.status.success(), "{patched:?}");
        for name in [
            "slurm.conf",
            "gres.conf",
            "cgroup.conf",
            "plugstack.conf",
            "gpufrac.toml",
        ] {
            assert_eq!(
                fs::read_to_string(copy.join(name)).unwrap(),
                world.read(name),
                "{name}"
            );
        }
    }
    let names = world.names();
    let again = world.run(&["init", "--write"]);
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.out.contains("nothing to change"), "{}", again.out);
    assert_eq!(world.names(), names);
    let diff = world.run(&["conf", "--diff"]);
    assert_eq!(
        (diff.code, diff.out.as_str()),
        (Some(0), ""),
        "{}",
        diff.err
    );
}

#[test]
fn the_pool_is_as_the_options_say() {
    let world = World::new(&["H100-80", "H100-80"]);
    let said = world.run(&[
        "init",
        "--nodes",
        "gn01",
        "--partition",
        "all",
        "--partition",
        "gpu",
        "--workload",
        "teaching",
        "--write",
    ]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let file = world.read("gpufrac.toml");
    assert!(
        file.contains("layout = \"slices\"") && file.contains("partitions = [\"all\", \"gpu\"]"),
        "{file}"
    );
    assert!(world.read("slurm.conf").contains(
        "NodeName=gn01 CPUs=8 Gres=gpu:slices:2,shard:slices:200,frac:200\nNodeName=gn02 CPUs=8 Gres=gpu:h100:2\n"
    ));
    // The second node is added later, to the existing pool of its model.
    let second = ["init", "--node", "gn02", "--write"];
    let said = world.run(&second);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let both = file.replace("nodes = \"gn01\"", "nodes = \"gn[01-02]\"");
    assert_eq!(world.read("gpufrac.toml"), both);
    assert!(
        world
            .read("slurm.conf")
            .contains("NodeName=gn02 CPUs=8 Gres=gpu:slices:2,shard:slices:200,frac:200\n")
    );
    assert!(world.run(&second).out.contains("nothing to change"));
}

// Without gpufrac-prolog no slice is ever made.
#[test]
fn a_prolog_that_cannot_be_read_here_is_left_to_the_admin_at_each_run() {
    let world = World::new(&["H100-80", "H100-80"]);
    world.write("slurm.conf", &format!("{SLURM}Prolog=/nowhere/prolog\n"));
    let first = world.run(&["init", "--write"]);
    let second = world.run(&["init", "--write"]);
    for said in [&first, &second] {
        assert_eq!(
            (said.code, said.err.as_str()),
            (Some(0), ""),
            "{}",
            said.out
        );
        for part in [
            "left to you:",
            "Prolog=/nowhere/prolog: whether it runs gpufrac-prolog cannot be seen from here; let it run /usr/sbin/gpufrac-prolog",
        ] {
            assert!(said.out.contains(part), "no `{part}`:\n{}", said.out);
        }
    }
    assert!(
        second
            .out
            .contains("nothing to change but what is left to you"),
        "{}",
        second.out
    );
    assert!(!second.out.contains("files are right"), "{}", second.out);
}

#[test]
fn a_plugstack_conf_that_cannot_be_changed_ends_it_before_anything_is_written() {
    for (path, why) in [
        ("/dev/null", "/dev/null is no regular file"),
        (
            "plugstack.conf",
            "PlugStackConfig=plugstack.conf is a relative path",
        ),
    ] {
        let world = World::new(&["H100-80", "H100-80"]);
        world.write("slurm.conf", &format!("{SLURM}PlugStackConfig={path}\n"));
        let said = world.run(&["init", "--write"]);
        assert_eq!(said.code, Some(1), "{}", said.out);
        for part in [
            why,
            "nothing was written",
            "hint: ",
            "PlugStackConfig=/etc/plugstack.conf",
        ] {
            assert!(said.err.contains(part), "no `{part}`: {}", said.err);
        }
        assert_eq!(world.names(), ["gres.conf", "slurm.conf"]);
    }
}

#[test]
fn a_file_that_is_not_utf_8_is_named() {
    for name in [
        "slurm.conf",
        "nodes.conf",
        "gres.conf",
        "cgroup.conf",
        "plugstack.conf",
    ] {
        let world = World::new(&["H100-80", "H100-80"]);
        world.write("slurm.conf", &format!("{SLURM}Include nodes.conf\n"));
        world.write("nodes.conf", "NodeName=cn02 CPUs=8\n");
        let path = world.path(name);
        let mut bytes = fs::read(&path).unwrap_or_default();
        bytes.extend(b"# f\xfcr alle\n");
        fs::write(&path, &bytes).unwrap();
        let names = world.names();
        let said = world.run(&["init", "--write"]);
        assert_eq!(said.code, Some(1), "{name}: {}", said.out);
        let hint = format!(
            "hint: save it as UTF-8, for example: `iconv -f latin1 -t utf-8 /etc/{name} > "
        );
        for part in [
            format!("reading `/etc/{name}` failed: it is not UTF-8 text"),
            hint,
        ] {
            assert!(said.err.contains(&part), "no `{part}`: {}", said.err);
        }
        assert_eq!(world.names(), names);
        assert_eq!(fs::read(&path).unwrap(), bytes);
        world.write(
            "gpufrac.toml",
            "version = 1\n[pool.h100]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"gn[01-02]\"\n",
        );
        for args in [
            &["check"][..],
            &["check", "--migration"],
            &["conf", "--diff"],
        ] {
            let said = world.run(args);
            let about = format!("{name}, {args:?}: {}{}", said.out, said.err);
            assert!(said.err.contains("it is not UTF-8 text"), "{about}");
            assert!(
                said.err
                    .contains(&format!("iconv -f latin1 -t utf-8 /etc/{name}")),
                "{about}"
            );
            assert_eq!(said.err.matches("gpufrac: ").count(), 1, "{about}");
        }
    }
}

#[test]
fn a_path_from_the_folder_of_the_shell_names_slurm_conf_too() {
    let world = World::new(&["H100-80", "H100-80"]);
    let output = Command::new(env!("CARGO_BIN_EXE_gpufrac"))
        .args([
            "init",
            "--no-trial",
            "--write",
            "--slurm-conf",
            "slurm.conf",
        ])
        .current_dir(world.path(""))
        .env("GPUFRAC_CONFIG", world.path("gpufrac.toml"))
        .env("SLURMD_NODENAME", "gn01")
        .env("LD_LIBRARY_PATH", world.0.path().join("gpus/lib"))
        .env_remove("NVML_SIM_ROOT")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*said), (Some(0), ""));
    assert!(world.read("plugstack.conf").contains("spank_gpufrac.so"));
}

#[test]
fn gpus_of_two_models_are_two_pools_and_other_gpus_are_asked_about() {
    let world = World::new(&["H100-80", "A100-40"]);
    let said = world.run(&["init", "--write"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let file = world.read("gpufrac.toml");
    for text in ["[pool.h100]", "gpus = [0]", "[pool.a100]", "gpus = [1]"] {
        assert!(file.contains(text), "{file}");
    }
    assert_eq!(world.check().code, Some(0), "{}", world.check().err);
    // A host without GPUs.
    let other = World::new(&["T4-16"]);
    fs::remove_file(other.0.path().join("gpus/lib/libnvidia-ml.so.1")).unwrap();
    let said = other.run(&["init", "--node", "gn01"]);
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains("hint: ") && said.err.contains("--gpu MODEL --gpus N"),
        "{}",
        said.err
    );
    let said = other.run(&["init", "--gpu", "L40S-48", "--gpus", "4", "--write"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(
        other
            .read("slurm.conf")
            .contains("Gres=gpu:mps:4,shard:mps:400,frac:400")
    );
    // Eight CPUs for the four GPUs that the admin names.
    let config = other.read("gpufrac.toml");
    assert!(config.contains("cpus_per_gpu = 2\n"), "{config}");
}

#[test]
fn a_mistake_or_a_missing_line_ends_it_before_anything_is_proposed() {
    let world = World::new(&["H100-80"]);
    let lonely = world.run(&["init", "--node", "gn09"]);
    assert_eq!(lonely.code, Some(1));
    assert!(
        lonely
            .err
            .contains("/etc/slurm.conf has no line NodeName= with gn09"),
        "{}",
        lonely.err
    );
    world.write("gpufrac.toml", "version = 1\n[pool.x]\nlayuot = 1\n");
    let wrong = world.run(&["init", "--write"]);
    assert_eq!((wrong.code, wrong.out.as_str()), (Some(1), ""));
    assert!(wrong.err.contains("/etc/gpufrac.toml:"), "{}", wrong.err);
    assert_eq!(world.names(), ["gpufrac.toml", "gres.conf", "slurm.conf"]);
}

/// Promise (admins): `gpufrac conf --diff` shows what Slurm's files and slurmctld have otherwise, and the steps in
/// order.
/// With `settings_of_the_running_slurmctld_are_compared_separately`.
#[test]
fn conf_shows_how_files_differ_and_in_which_order_they_change() {
    let world = World::new(&["H100-80", "H100-80"]);
    world.run(&["init", "--write"]);
    let file = world.read("gpufrac.toml").replace("halves", "slices");
    world.write("gpufrac.toml", &file);
    let said = world.run(&["conf", "--diff"]);
    assert_eq!((said.code, said.err.as_str()), (Some(1), ""));
    let minus: Vec<&str> = said
        .out
        .lines()
        .filter(|line| line.starts_with('-') && !line.starts_with("---"))
        .collect();
    assert_eq!(minus.len(), 3, "{}", said.out);
    let steps: Vec<&str> = said
        .out
        .lines()
        .skip_while(|line| *line != "in this order:")
        .collect();
    let at = |text: &str| {
        let at = steps.iter().position(|line| line.contains(text));
        at.unwrap_or_else(|| panic!("no `{text}`:\n{}", said.out))
    };
    let order = [
        "NodeName=gn[01-02] State=DRAIN",
        "gres.conf",
        "on each of gn[01-02]: gpufrac node-setup",
        "systemctl restart slurmctld",
        "gpufrac check",
        "State=RESUME",
    ];
    assert!(order.map(at).is_sorted(), "{}", said.out);
    let absent = Path::new(env!("CARGO_BIN_EXE_gpufrac"));
    let output = Command::new(absent)
        .args([
            "conf",
            "--diff",
            "--slurm-conf",
            "/nowhere/slurm.conf",
            "--config",
        ])
        .arg(world.path("gpufrac.toml"))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint: name slurm.conf"));
}
