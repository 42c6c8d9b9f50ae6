//! The samples in `etc/` are valid and agree with each other.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
use std::path::Path;
use std::process::Command;

fn etc(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../etc")
        .join(name);
    path.to_str().unwrap().to_owned()
}

fn gpufrac(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_gpufrac"))
        .args(args)
        .args(["--config", &etc("gpufrac.toml")])
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// Promise (admins): the samples in etc/ are right.
/// With `the_samples_of_slurms_files_belong_to_it`.
#[test]
fn the_sample_configuration_is_accepted() {
    assert!(gpufrac(&["check", "--file-only"]).ends_with("gpufrac.toml: ok\n"));
}

/// The samples of Slurm's files contain the output of `gpufrac conf` for the sample's nodes, and no other device.
#[test]
fn the_samples_of_slurms_files_belong_to_it() {
    let samples = ["gres.conf.sample", "slurm.conf.sample"]
        .map(|name| fs::read_to_string(etc(name)).unwrap())
        .join("\n");
    let printed = [
        gpufrac(&["conf", "--node", "gn[01-04]"]),
        gpufrac(&["conf", "--node", "an[01-02]", "--gpus", "4"]),
    ]
    .join("\n");
    let wanted: Vec<&str> = printed
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    assert!(wanted.len() > 8, "{printed}");
    for line in &wanted {
        assert!(samples.lines().any(|known| known == *line), "no `{line}`");
    }
    for line in samples.lines().filter(|line| line.starts_with("NodeName=")) {
        assert!(wanted.contains(&line), "`{line}` is of no pool");
    }
}

/// `gpufrac check` has no finding about the samples, and finds a mistake that is put into them.
#[test]
fn the_samples_of_slurms_files_pass_the_check() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["slurm.conf", "gres.conf", "cgroup.conf", "plugstack.conf"] {
        let text = fs::read_to_string(etc(&format!("{name}.sample"))).unwrap();
        fs::write(folder.path().join(name), text).unwrap();
    }
    let path = folder.path().join("slurm.conf");
    let check = || {
        let output = Command::new(env!("CARGO_BIN_EXE_gpufrac"))
            .args(["check", "--config", &etc("gpufrac.toml"), "--slurm-conf"])
            .arg(&path)
            .output()
            .unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let (code, out, err) = check();
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.ends_with("gpufrac.toml: ok; Slurm: ok\n"), "{out}");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replace("TaskPlugin=task/cgroup", "TaskPlugin=task/affinity"),
    )
    .unwrap();
    let (code, _, err) = check();
    assert_eq!(code, Some(2));
    let hint = "hint: write instead: TaskPlugin=task/cgroup,task/affinity\n";
    assert!(err.contains(hint), "{err}");
}

/// What the hook of enroot adds to the variables and mounts of a container.
fn enroot(variables: &[(&str, &str)]) -> [String; 2] {
    let keep = tempfile::tempdir().unwrap();
    let files = ["environ", "mounts"].map(|name| keep.path().join(name));
    for file in &files {
        fs::write(file, "").unwrap();
    }
    let output = Command::new("sh")
        .arg(etc("enroot/hooks.d/50-gpufrac.sh"))
        .env_clear()
        .envs(variables.iter().copied())
        .env("PATH", "/usr/bin:/bin")
        .env("ENROOT_ENVIRON", &files[0])
        .env("ENROOT_MOUNTS", &files[1])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr, b"");
    files.map(|file| fs::read_to_string(file).unwrap())
}

/// Promise (users): with the hook in etc/ a container of enroot gets the variables of the slice, and the folders that
/// they name.
#[test]
fn the_hook_of_enroot_gives_variables_and_folders() {
    let none = enroot(&[("CUDA_VISIBLE_DEVICES", "0"), ("LD_PRELOAD", "")]);
    assert_eq!(none, ["", ""]);
    let (pipe, log) = ("/run/gpufrac/mps/7/pipe", "/run/gpufrac/mps/7/log");
    let variables = [
        ("CUDA_MPS_LOG_DIRECTORY", log),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=12M"),
        ("CUDA_MPS_PIPE_DIRECTORY", pipe),
        ("CUDA_VISIBLE_DEVICES", "GPU-1"),
        ("GPUFRAC_MECHANISM", "mps"),
        ("NVIDIA_VISIBLE_DEVICES", "GPU-1"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.25"),
    ];
    let other = [
        ("HOME", "/home/u"),
        ("LD_PRELOAD", ""),
        ("SLURM_JOB_ID", "7"),
    ];
    let [environ, mounts] = enroot(&[&variables[..], &other[..]].concat());
    let mut lines: Vec<&str> = environ.lines().collect();
    lines.sort_unstable();
    let expected = variables.map(|(name, value)| format!("{name}={value}"));
    assert_eq!(lines, expected);
    let options = "none x-create=dir,rbind,rw,nosuid,nodev,noexec";
    let expected = [pipe, log].map(|folder| format!("{folder} {folder} {options}\n"));
    assert_eq!(mounts, expected.concat());
    let [environ, mounts] = enroot(&[
        (
            "CUDA_DEVICE_MEMORY_SHARED_CACHE",
            "/run/gpufrac/hami/7/cache",
        ),
        ("GPUFRAC_MECHANISM", "hami"),
        ("LD_PRELOAD", ""),
    ]);
    assert!(environ.contains("LD_PRELOAD=\n"), "{environ}");
    assert!(
        mounts.starts_with("/run/gpufrac/hami/7 /run/gpufrac/hami/7 none "),
        "{mounts}"
    );
}
