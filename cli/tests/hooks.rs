//! The scripts of contrib/hooks, with programs in their PATH that write down how they are called.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

/// The commands that a hook runs, in order, and its exit status. `others`: the other leases; empty for a place that is
/// no slice, and has no GPU. `answers`: the body of each program after its note.
fn run(hook: &str, others: &str, answers: &[(&str, &str)]) -> (Vec<String>, Option<i32>) {
    let keep = tempfile::tempdir().unwrap();
    let calls = keep.path().join("calls");
    for (program, answer) in answers {
        let path = keep.path().join(program);
        let note = format!("echo \"{program} $*\" >>'{}'", calls.display());
        fs::write(&path, format!("#!/bin/sh\n{note}\n{answer}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let hooks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib/hooks");
    let status = Command::new(hooks.join(hook))
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", keep.path().display()))
        .envs((!others.is_empty()).then_some(("GPUFRAC_GPU_UUID", "GPU-aa")))
        .env("GPUFRAC_OTHER_LEASES", others)
        .status()
        .unwrap();
    let calls = fs::read_to_string(calls).unwrap_or_default();
    (calls.lines().map(str::to_owned).collect(), status.code())
}

/// Promise (reaper): the hooks of contrib leave no pause of DCGM behind, and reset no GPU that has another lease.
/// With `each_unit_of_monitoring_is_restarted_whatever_the_others_do`,
/// `a_gpu_is_reset_only_without_another_lease_and_keeps_its_modes`.
#[test]
fn a_pause_of_profiling_has_its_end_before_it_begins() {
    let no_pause = ("systemctl", "case \"$*\" in *.timer) exit 3;; esac");
    let active = [no_pause, ("systemd-run", ""), ("dcgmi", "")];
    let expected = [
        "systemctl is-active --quiet nvidia-dcgm.service",
        "systemctl is-active --quiet gpufrac-dcgm-resume.timer",
        "systemd-run --quiet --collect --unit=gpufrac-dcgm-resume --on-active=20s --timer-property=AccuracySec=1s dcgmi profile --resume",
        "dcgmi profile --pause",
    ];
    assert_eq!(
        run("dcgm-pause", "0", &active),
        (expected.map(str::to_owned).into(), Some(0))
    );
    // A further pause ends with the first one.
    let paused = [("systemctl", ""), ("systemd-run", ""), ("dcgmi", "")];
    let (calls, _) = run("dcgm-pause", "0", &paused);
    assert_eq!(calls[2..], expected[3..]);
    // Without an end there is no pause.
    let no_timer = [no_pause, ("systemd-run", "exit 1"), ("dcgmi", "")];
    let (calls, status) = run("dcgm-pause", "0", &no_timer);
    assert!(
        !calls.iter().any(|call| call.starts_with("dcgmi")),
        "{calls:?}"
    );
    assert_eq!(status, Some(1));
    let stopped = [("systemctl", "exit 3"), ("dcgmi", "")];
    assert_eq!(run("dcgm-pause", "0", &stopped).0, expected[..1]);
}

#[test]
fn each_unit_of_monitoring_is_restarted_whatever_the_others_do() {
    let (calls, status) = run("restart-exporter", "3", &[("systemctl", "exit 5")]);
    let units = ["nvidia-dcgm", "dcgm-exporter", "nvidia-dcgm-exporter"];
    let expected = units.map(|unit| format!("systemctl --no-block try-restart {unit}.service"));
    assert_eq!((calls, status), (expected.into(), Some(0)));
}

#[test]
fn a_gpu_is_reset_only_without_another_lease_and_keeps_its_modes() {
    let smi = |reset: &str| {
        format!(
            "case \"$*\" in *mig.mode*|*persistence_mode*) echo Enabled;; *--gpu-reset) {reset};; esac"
        )
    };
    for others in ["1", "", "unknown"] {
        let (calls, status) = run("gpu-reset", others, &[("nvidia-smi", &smi(":"))]);
        assert_eq!((calls, status), (vec![], Some(0)), "{others}");
    }
    let changes = ["-pm 0", "--gpu-reset", "-mig 1", "-pm 1"];
    let changes = changes.map(|change| format!("nvidia-smi -i GPU-aa {change}"));
    // A refused reset too ends in the modes of before.
    for (reset, expected) in [(":", 0), ("exit 255", 255)] {
        let (calls, status) = run("gpu-reset", "0", &[("nvidia-smi", &smi(reset))]);
        assert_eq!(calls[2..], changes, "{calls:?}");
        assert_eq!(status, Some(expected));
    }
}
