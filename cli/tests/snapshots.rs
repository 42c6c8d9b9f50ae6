//! The output of each command as a file in `snapshots`. After a change that is meant: `UPDATE_EXPECT=1 cargo test -p
//! gpufrac --test snapshots`, and look at the difference.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
use std::path::Path;
use std::process::Command;

use expect_test::expect_file;

/// Runs `gpufrac` on a host without GPUs, NVML and Slurm.
fn said(folder: &Path, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_gpufrac"))
        .args(args)
        .env("GPUFRAC_CONFIG", folder.join("gpufrac.toml"))
        .env("SLURMD_NODENAME", "login")
        .env("SLURM_CONF", folder.join("slurm.conf"))
        .env("PATH", folder)
        .env("COLUMNS", "100")
        .env("TZ", "UTC")
        .output()
        .unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim().split('.').next().unwrap_or_default();
    let text = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let text = text.replace(&*folder.to_string_lossy(), "DIR");
        text.replace(&format!("this host is `{host}`"), "this host is `HOST`")
    };
    format!(
        "$ gpufrac {}\nexit status {}\n--- stdout\n{}--- stderr\n{}",
        args.join(" "),
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr)
    )
}

fn world() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().display();
    let paths = format!("[paths]\nrun = \"{root}/run\"\nstate = \"{root}/state\"\n[pool.h100]");
    let text = test_examples::CONFIG.replacen("[pool.h100]", &paths, 1);
    fs::write(folder.path().join("gpufrac.toml"), text).unwrap();
    folder
}

/// The name of a snapshot, and the arguments.
const COMMANDS: [(&str, &[&str]); 17] = [
    (
        "advise",
        &["advise", "--workload", "notebooks", "--gpu", "H100-80"],
    ),
    ("check", &["check", "--file-only"]),
    ("check-json", &["check", "--file-only", "--json"]),
    ("clean", &["clean", "--yes", "--node", "login"]),
    ("conf", &["conf", "--node", "gn0001", "--gpus", "8"]),
    ("conf-json", &["conf", "--json"]),
    ("help", &["--help"]),
    ("init", &["init"]),
    (
        "lease-drop",
        &["lease", "drop", "12", "--yes", "--node", "login"],
    ),
    ("leases", &["leases"]),
    ("plan", &["plan", "no-such-file"]),
    ("report", &["report", "--no-sacct"]),
    ("status-cluster", &["status", "--cluster"]),
    ("status-help", &["status", "--help"]),
    ("status-node", &["status", "--node", "gn0002"]),
    ("top", &["top", "--once"]),
    ("why", &["why", "12", "--node", "gn0001"]),
];

/// Promise (admins): the output of each command changes only on purpose.
#[test]
fn each_command_prints_what_its_snapshot_has() {
    let world = world();
    for (name, args) in COMMANDS {
        let path = format!("./snapshots/{name}.txt");
        expect_file![path].assert_eq(&said(world.path(), args));
    }
}
