//! Attacks by very long submissions and updates.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpufrac_lab::{Lab, LabError, Outcome};

use super::Attack;
use crate::HOLD;
use crate::submission::build_program;

/// Larger than anything that a client sends.
const LARGE: usize = 64 << 20;

/// Longer than Linux allows for an environment variable of a program.
const VARIABLE: usize = 200 << 10;

fn build(lab: &Lab) -> Result<PathBuf, LabError> {
    build_program(lab, "attack/attack_by_api.c", "attack_by_api")
}

fn send(lab: &Lab, program: &Path, args: &[&str]) -> Result<Outcome, LabError> {
    lab.command(&program.display().to_string())
        .user(&lab.users()[0])
        .args(args)
        .limit(Duration::from_secs(120))
        .run()
}

/// The peak memory of slurmctld in KiB.
fn peak_kib(lab: &Lab) -> u64 {
    let pid = lab.daemon_pid("slurmctld").expect("slurmctld runs");
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is there");
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next());
    peak.and_then(|peak| peak.parse().ok()).expect("Linux says")
}

/// Promise (users): no submission or update makes slurmctld slow or large, or makes an environment that is too long for
/// Prolog and Epilog.
/// With `variables_that_no_program_can_have`.
// slurmctld's memory contains Slurm's own copies of a message: the received one, and the unpacked one.
#[test]
fn long_texts_do_not_stall_slurmctld() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let mut attack = Attack::begin(&lab, "texts of 64 MiB to slurmctld")?;
    let program = build(&lab)?;
    let before = peak_kib(&lab);
    let bytes = LARGE.to_string();
    let over = AtomicBool::new(false);
    let slowest = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut slowest = Duration::ZERO;
            while !over.load(Ordering::Relaxed) {
                let begun = Instant::now();
                lab.command("squeue").user(&lab.users()[1]).stdout()?;
                slowest = slowest.max(begun.elapsed());
            }
            Ok::<_, LabError>(slowest)
        });
        let refused = [
            "prefix",
            "variable",
            "variables",
            "commas",
            "fractions",
            "partitions",
        ]
        .into_iter()
        .map(|kind| Ok((kind, send(&lab, &program, &["submit", kind, &bytes])?)))
        .collect::<Result<Vec<_>, LabError>>();
        over.store(true, Ordering::Relaxed);
        let slowest = other.join().expect("squeue is measured");
        for (kind, outcome) in refused? {
            if outcome.status.success() {
                attack.reached(format!("a job with {kind} of {LARGE} bytes"));
            }
        }
        slowest
    })?;
    // The reference for this machine: a message of that size to a slurmctld that refuses it at once.
    let begun = Instant::now();
    send(&lab, &program, &["submit", "comment", &bytes])?;
    let plain = begun.elapsed();
    let limit = Duration::from_secs(2) + 3 * plain;
    if slowest > limit {
        attack.reached(format!(
            "squeue of another user took {slowest:?}, limit {limit:?}"
        ));
    }
    let grown = peak_kib(&lab).saturating_sub(before) / 1024;
    // Slurm's own memory: the received message, the unpacked one (48 bytes for each short variable), and what its
    // threads keep.
    let most = 20 * (LARGE as u64 >> 20);
    if grown > most {
        attack.reached(format!("slurmctld grew by {grown} MiB, limit {most} MiB"));
    }
    attack.end()
}

/// slurmd cannot start a Prolog with such a variable, and drains the node.
#[test]
fn variables_that_no_program_can_have() -> Result<(), LabError> {
    let lab = Lab::builder().partition("cpu", "").start()?;
    let mut attack = Attack::begin(&lab, "variables too long for Prolog and Epilog")?;
    let program = build(&lab)?;
    let bytes = VARIABLE.to_string();
    let user = &lab.users()[0];
    let script = format!("--wrap={HOLD}");
    let mut jobs = Vec::new();
    for kind in ["variable", "variables"] {
        let sent = send(&lab, &program, &["submit", kind, &bytes])?;
        if sent.status.success() {
            attack.reached(format!("a job with {kind} of {VARIABLE} bytes"));
        }
    }
    // 22.05 ignores `extra`.
    let extra = lab.slurm().since(23, 2).then_some("extra");
    for kind in ["comment", "features", "std_out"].into_iter().chain(extra) {
        for gres in [&["--gres=gpufrac:0.125"][..], &["--partition=cpu"]] {
            let job = lab.sbatch(user, &[gres, &["--hold", &script]].concat())?;
            let sent = send(&lab, &program, &["update", kind, &bytes, &job.to_string()])?;
            if sent.status.success() {
                attack.reached(format!("an update with {kind} of {VARIABLE} bytes"));
            }
            lab.command("scontrol")
                .user(user)
                .args(["release", &job.to_string()])
                .stdout()?;
            jobs.push(job);
        }
    }
    for job in &jobs {
        lab.wait_for_state(*job, &["RUNNING"])?;
    }
    attack.end()
}
