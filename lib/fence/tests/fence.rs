//! The device control group of a job, with the real kernel.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_fence::{Closed, DevCgroupError, fence};
use gpufrac_host::files::{DeviceNumber, DeviceRule, RootDir};

/// A control group that is removed at the end of the test.
struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Group {
        let top = PathBuf::from(format!(
            "/sys/fs/cgroup/devices/gpufrac_{name}_{}",
            std::process::id()
        ));
        if !nix::unistd::geteuid().is_root() || fs::create_dir(&top).is_err() {
            test_seed::not_run("no device cgroup of version 1 to write to");
        }
        Group(top)
    }

    fn below(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        fn remove(path: &Path) {
            for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    remove(&entry.path());
                }
            }
            let _ = fs::remove_dir(path);
        }
        remove(&self.0);
    }
}

/// Waits for a signal, then opens devices from inside a control group; returns the messages of `cat`.
fn opens(
    group: &Path,
    job_id: JobId,
    closed: &Closed,
    devices: &[&str],
) -> (Result<PathBuf, DevCgroupError>, Vec<bool>) {
    let script = format!("read go; for d in {}; do cat $d; done", devices.join(" "));
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .env("LC_ALL", "C")
        .spawn()
        .unwrap();
    fs::write(group.join("cgroup.procs"), child.id().to_string()).unwrap();
    let fenced = fence(&child.id().to_string(), job_id, closed);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let reached = devices
        .iter()
        .map(|device| {
            let line = text.lines().find(|line| line.contains(device)).unwrap();
            assert!(
                line.contains("No such device") || line.contains("not permitted"),
                "{line}"
            );
            line.contains("No such device")
        })
        .collect();
    (fenced, reached)
}

fn number(minor: u32) -> DeviceNumber {
    DeviceNumber { major: 60, minor }
}

/// Promise (isolation): a job cannot leave its fence by a group of its own.
/// With `steps_are_fenced_together_with_slurms_own_programs`.
#[test]
fn a_job_reaches_what_is_not_denied_from_any_group_below() {
    let group = Group::new("rules");
    let keep = tempfile::tempdir().unwrap();
    let dir = RootDir::open(keep.path()).unwrap();
    let paths: Vec<String> = (0..3)
        .map(|minor| {
            let name = format!("d{minor}");
            dir.ensure_device(&name, number(minor), UserId::ROOT, 0o666)
                .unwrap();
            format!("{}/{name}", keep.path().display())
        })
        .collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let task = group.below("uid_0/job_7/step_0/task_0");
    let closed = |minors: &[u32]| {
        let rules = minors
            .iter()
            .map(|minor| DeviceRule::Device(number(*minor)));
        Closed::alike(rules.collect())
    };
    let (fenced, reached) = opens(&task, JobId(7), &closed(&[0, 2]), &paths);
    assert_eq!(reached, [false, true, false]);
    let job = group.below("uid_0/job_7");
    assert_eq!(fenced.unwrap(), job);
    // A group beside the task's, as the job's user could make with Slurm 22.05.
    let beside = group.below("uid_0/job_7/step_0/mine");
    assert_eq!(
        opens(&beside, JobId(7), &closed(&[]), &paths).1,
        [false, true, false]
    );
    // Another job is not affected.
    let other = group.below("uid_0/job_8/step_0/task_0");
    assert_eq!(
        opens(&other, JobId(8), &closed(&[]), &paths).1,
        [true, true, true]
    );
    // Devices closed to one step are closed in all groups of this step, and open in other steps.
    let one_step = Closed {
        to_job: closed(&[0]).to_job,
        to_step: vec![DeviceRule::Major(60)],
    };
    let ssh = group.below("uid_0/job_8/step_extern/task_0");
    let (fenced, reached) = opens(&ssh, JobId(8), &one_step, &paths);
    assert_eq!(reached, [false, false, false]);
    assert_eq!(fenced.unwrap(), group.below("uid_0/job_8"));
    let mine = group.below("uid_0/job_8/step_extern/mine");
    for (place, expected) in [(&mine, [false; 3]), (&other, [false, true, true])] {
        assert_eq!(opens(place, JobId(8), &closed(&[]), &paths).1, expected);
    }
    let all = Closed::alike(vec![DeviceRule::Major(60)]);
    assert_eq!(opens(&other, JobId(8), &all, &paths).1, [false; 3]);
}

/// Promise (isolation): processes outside of the job are never fenced.
/// With `steps_are_fenced_together_with_slurms_own_programs`.
#[test]
fn a_process_outside_of_the_job_is_never_fenced() {
    let group = Group::new("outside");
    let slurmd = group.below("slurmd");
    let all = Closed::alike(vec![DeviceRule::Major(60)]);
    let (fenced, _) = opens(&slurmd, JobId(7), &all, &[]);
    assert!(matches!(
        fenced,
        Err(DevCgroupError::NotConstrained(JobId(7)))
    ));
    let rules = fs::read_to_string(slurmd.join("devices.list")).unwrap();
    assert_eq!(rules.trim(), "a *:* rwm");
}
