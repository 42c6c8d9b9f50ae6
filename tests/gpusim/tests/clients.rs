//! Other projects' programs on the simulated NVML: nvidia-ml-py, nvidia-smi, and Slurm's gpu/nvml plugin. Each is
//! downloaded once.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{SimNode, told};
use debian::Release;

fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients")
}

#[test]
fn nvidia_ml_py() {
    let programs = test_seed::needed(debian::python(&cache().join("python"), &["nvidia-ml-py"]));
    let node = SimNode::new(&["H100-80", "A30-24", "T4-16"], &["--mig"]);
    let output = Command::new(programs.join("python"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvidia_ml_py.py"))
        .env("LD_LIBRARY_PATH", node.root().join("lib"))
        .output()
        .unwrap();
    println!("{}", told(&output));
    assert!(output.status.success(), "{}", told(&output));
}

fn nvidia_smi_manages(release: &str) {
    let (program, version) = test_seed::needed(debian::nvidia_smi(&cache(), release));
    println!("nvidia-smi {version}");
    // `mig -lci` uses the index of a compute instance's `device` as that of its GPU.
    let more = ["--mig", "--driver", &version, "--mig-device-by", "name"];
    let node = SimNode::new(&["H100-80", "A100-40"], &more);
    let smi = |arguments: &[&str]| -> Output {
        let mut command = Command::new(&program);
        command.env("LD_LIBRARY_PATH", node.root().join("lib"));
        let output = command.args(arguments).output().unwrap();
        println!("$ nvidia-smi {}\n{}", arguments.join(" "), told(&output));
        output
    };
    let ok = |arguments: &[&str]| -> String {
        let output = smi(arguments);
        assert!(output.status.success(), "{}", told(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let has = |text: &str, wanted: &str| {
        // The width of columns varies, so runs of blanks are reduced to one.
        let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            squeeze(text).contains(&squeeze(wanted)),
            "`{wanted}` is not in {text}"
        );
    };

    has(&ok(&["-L"]), "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-");
    has(&ok(&[]), "No MIG devices found");
    let profiles = ok(&["mig", "-lgip"]);
    has(&profiles, "0 MIG 1g.10gb 19 7/7 9.75 No 16 1 0");
    has(&profiles, "0 MIG 7g.80gb 0 1/1 79.25 No 132 7 0");
    has(&profiles, "1 MIG 1g.5gb+me 20 1/1 4.75 No 14 1 0");
    let placements = ok(&["mig", "-lgipp"]);
    has(
        &placements,
        "GPU 0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1",
    );
    has(&placements, "GPU 0 Profile ID 15 Placements: {0,2,4,6}:2");
    has(&placements, "GPU 1 Profile ID 9 Placements: {0,4}:4");
    has(&placements, "GPU 1 Profile ID 0 Placement : {0}:8");

    let made = ok(&["mig", "-i", "0", "-cgi", "9,2g.20gb,19:3", "-C"]);
    has(
        &made,
        "Successfully created GPU instance ID 2 on GPU 0 using profile MIG 3g.40gb (ID 9)",
    );
    has(
        &made,
        "Successfully created compute instance ID 0 on GPU 0 GPU instance ID 3 using profile MIG 2g.20gb",
    );
    let listed = ok(&["mig", "-lgi"]);
    has(&listed, "0 MIG 3g.40gb 9 2 4:4");
    has(&ok(&["mig", "-lci"]), "0 2 MIG 3g.40gb 2 0 0:3");
    has(
        &ok(&["mig", "-i", "0", "-lcip"]),
        "0 2 MIG 1c.3g.40gb 0 0/3 16",
    );

    // nvidia-smi shows the same instances as gpusim.
    let devices = ok(&["-L"]);
    let shown: serde_json::Value = serde_json::from_str(&node.ok(&["show", "--json"])).unwrap();
    let instances = shown["gpus"][0]["instances"].as_array().unwrap();
    assert_eq!(instances.len(), 3);
    for (position, instance) in instances.iter().enumerate() {
        let profile = instance["profile"].as_str().unwrap();
        let uuid = instance["compute"][0]["uuid"].as_str().unwrap();
        has(
            &devices,
            &format!("MIG {profile} Device {position}: (UUID: {uuid})"),
        );
    }

    let mut program = node.gpusim(&["run", "--memory", "3G"]).spawn().unwrap();
    while !node.ok(&["show"]).contains("process") {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let table = ok(&[]);
    has(&table, "3072MiB");
    let full = ok(&["-q", "-i", "0"]);
    has(&full, "MIG Mode Current : Enabled Pending : Enabled");
    has(&full, "Product Name : NVIDIA H100 80GB HBM3");
    has(&full, "GPU Instance ID : 3");
    let busy = smi(&["mig", "-i", "0", "-dci", "-gi", "2", "-ci", "0"]);
    assert_eq!(busy.status.code(), Some(19), "{}", told(&busy));
    program.kill().unwrap();
    program.wait().unwrap();

    let occupied = smi(&["mig", "-i", "0", "-cgi", "0"]);
    assert_eq!(occupied.status.code(), Some(23), "{}", told(&occupied));
    let in_use = smi(&["mig", "-i", "0", "-dgi"]);
    assert_eq!(in_use.status.code(), Some(19), "{}", told(&in_use));
    ok(&["mig", "-i", "0", "-dci"]);
    ok(&["mig", "-i", "0", "-dgi"]);
    let none = smi(&["mig", "-i", "0", "-lgi"]);
    has(&told(&none), "No GPU instances found");

    ok(&["-i", "0", "-mig", "0"]);
    has(
        &ok(&["-q", "-i", "0"]),
        "MIG Mode Current : Disabled Pending : Disabled",
    );
    has(
        &told(&smi(&["-i", "1", "-mig", "0"])),
        "pending disable state",
    );
    has(
        &ok(&["-q", "-i", "1"]),
        "MIG Mode Current : Enabled Pending : Disabled",
    );
}

#[test]
fn nvidia_smi_of_bookworm() {
    nvidia_smi_manages("bookworm");
}

#[test]
fn nvidia_smi_of_trixie() {
    nvidia_smi_manages("trixie");
}

/// `slurmd -G` with AutoDetect=nvml, in a tree of Debian trixie with the simulator's /proc and /dev, because the
/// plugin reads both at fixed paths.
#[test]
fn slurms_gpu_nvml_plugin() {
    let release = test_seed::needed(Release::open(&cache(), "trixie"));
    let packages =
        test_seed::needed(release.packages_with_dependencies(&["slurmd", "slurm-wlm-nvml-plugin"]));
    drop(release);
    let folder = tempfile::Builder::new()
        .prefix("gpusim-slurm-")
        .tempdir()
        .unwrap();
    let tree = folder.path();
    debian::tree(&packages, tree).unwrap();
    let gpusim = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpusim"));
        let output = command
            .arg("--root")
            .arg(tree)
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", told(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    gpusim(&[
        "init", "--gpu", "A100-40", "--gpu", "H100-80", "--gpu", "L40S-48", "--mig",
    ]);
    for (gpu, profile) in [
        ("0", "3g.20gb"),
        ("0", "1g.5gb"),
        ("1", "4g.40gb"),
        ("1", "1g.20gb"),
    ] {
        gpusim(&["create", gpu, profile]);
    }
    for name in ["cpuinfo", "meminfo", "stat", "mounts"] {
        fs::write(
            tree.join("proc").join(name),
            fs::read(format!("/proc/{name}")).unwrap(),
        )
        .unwrap();
    }
    for (name, minor) in [("null", "3"), ("urandom", "9")] {
        let mut mknod = Command::new("mknod");
        mknod
            .args(["-m", "666"])
            .arg(tree.join("dev").join(name))
            .args(["c", "1", minor]);
        assert!(mknod.status().unwrap().success());
    }
    let conf = tree.join("etc/slurm");
    for path in [&conf, &tree.join("var/spool/slurmd"), &tree.join("tmp")] {
        fs::create_dir_all(path).unwrap();
    }
    let slurm_conf = "ClusterName=sim\nSlurmctldHost=localhost\nAuthType=auth/none\nSlurmUser=root\n\
        SlurmdSpoolDir=/var/spool/slurmd\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
        GresTypes=gpu\nNodeName=sim Gres=gpu:5\nPartitionName=p Nodes=sim\n";
    fs::write(conf.join("slurm.conf"), slurm_conf).unwrap();
    fs::write(conf.join("gres.conf"), "AutoDetect=nvml\n").unwrap();
    fs::write(conf.join("cgroup.conf"), "CgroupPlugin=disabled\n").unwrap();
    // Debian's name is slurmd-wlm, which Slurm's check of its program name does not know.
    std::os::unix::fs::symlink("slurmd-wlm", tree.join("usr/sbin/slurmd")).unwrap();
    let slurmd = |arguments: &[&str]| {
        let mut command = Command::new("chroot");
        command.arg(tree).arg("/usr/sbin/slurmd").args(arguments);
        let output = command.env("NVML_SIM_ROOT", "/").output().unwrap();
        println!("$ slurmd {}\n{}", arguments.join(" "), told(&output));
        told(&output)
    };
    let version = slurmd(&["-V"]);
    assert!(version.contains("slurm"), "{version}");
    let found = slurmd(&["-C"]);
    for gres in [
        "gpu:nvidia_a100_3g.20gb:1",
        "gpu:nvidia_a100_1g.5gb:1",
        "gpu:nvidia_h100_80gb_hbm3_4g.40gb:1",
        "gpu:nvidia_h100_80gb_hbm3_1g.20gb:1",
        "gpu:nvidia_l40s:1",
    ] {
        assert!(found.contains(gres), "{gres} is not in {found}");
    }
    let listed = slurmd(&["-G", "-v", "-N", "sim"]);
    let shown: serde_json::Value = serde_json::from_str(&gpusim(&["show", "--json"])).unwrap();
    let mut instances = 0;
    for gpu in shown["gpus"].as_array().unwrap() {
        for gi in gpu["instances"].as_array().unwrap() {
            let ci = &gi["compute"][0];
            let wanted = format!(
                "File:/dev/nvidia{},/dev/nvidia-caps/nvidia-cap{},/dev/nvidia-caps/nvidia-cap{} UniqueId:{}",
                gpu["minor"],
                gi["cap_minor"],
                ci["cap_minor"],
                ci["uuid"].as_str().unwrap()
            );
            assert!(listed.contains(&wanted), "{wanted} is not in {listed}");
            instances += 1;
        }
    }
    assert_eq!(instances, 4);
}
