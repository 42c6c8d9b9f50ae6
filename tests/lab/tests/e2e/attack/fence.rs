//! Attacks by processes and descriptors that outlive a job, and by control groups that a user makes.

use std::path::Path;

use gpufrac_lab::{CgroupVersion, JobId, Lab, LabError, User};

use super::Attack;
use crate::HOLD;
use crate::fence::{own_devices, wait_for_file};

/// A pool of one GPU.
const ONE_GPU: &str = r#"
[pool.p]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [@GPU@]
"#;

/// Keeps files open, as paths: without a driver behind a device nothing else of it can be opened.
const HOLD_FILES: &str = r#"
use strict;
my @held;
for my $name (@ARGV) { sysopen(my $file, $name, 010000000) or die "$name: $!"; push @held, $file; }
open(my $told, ">", "held.$ENV{SLURM_JOB_ID}") or die $!;
close($told);
sleep 600;
"#;

/// Promise (isolation): an open device does not outlive its job: holders of the job's user are ended, an instance whose
/// files others hold is not granted.
/// With `an_open_capability_file_does_not_outlive_its_job`, `files_held_by_the_jobs_own_user_do_not_block_it`,
/// `a_set_uid_or_unreadable_program_cannot_hide_an_open_device`.
#[test]
#[ignore = "full: alone, as simulated devices have the same numbers in all labs"]
fn devices_that_stay_open() -> Result<(), LabError> {
    // Devices have the same numbers in all labs of the machine; no other lab has this GPU.
    let gpu = 12 + u32::from(crate::since(23, 11)?) + u32::from(crate::since(25, 5)?);
    let lab = Lab::builder()
        .gpus("H100-80", gpu + 1)
        .pools(&ONE_GPU.replace("@GPU@", &gpu.to_string()))
        .start()?;
    let mut attack = Attack::begin(&lab, "devices that stay open after the job")?;
    let node = &lab.nodes()[0];
    let (one, two) = (&lab.users()[0], &lab.users()[1]);
    lab.write_work("hold.pl", HOLD_FILES)?;
    let script = "--wrap=while [ ! -e first ]; do sleep 0.05; done";
    let job = lab.sbatch(one, &["--gres=gpufrac:0.125", script])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let devices = lab.folder().gpus(node).join("dev");
    let own = own_devices(&lab, job)?;
    let paths = own.iter().map(|name| {
        if name.contains("cap") {
            devices.join("nvidia-caps").join(name)
        } else {
            devices.join(name)
        }
    });
    let paths: Vec<String> = paths.map(|path| path.display().to_string()).collect();
    let hold = |user: &User| -> Result<JobId, LabError> {
        let wrap = format!("--wrap=exec perl hold.pl {}", paths.join(" "));
        let job = lab.sbatch(user, &[&wrap])?;
        wait_for_file(&lab, &format!("held.{job}"))?;
        Ok(job)
    };
    let same_user = hold(one)?;
    let other_user = hold(two)?;
    lab.write_work("first", "")?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    // The process of the job's own user was killed.
    if lab.wait_for_end(same_user)?.state() != "FAILED" {
        attack.reached("devices of an earlier job of the same user");
    }
    // The other user may have been tricked into holding the descriptors.
    assert_eq!(lab.job(other_user)?.state(), "RUNNING");
    let next = lab.sbatch(one, &["--gres=gpufrac:0.125", &format!("--wrap={HOLD}")])?;
    lab.wait_for_state(next, &["RUNNING"])?;
    let nexts = own_devices(&lab, next)?;
    for file in own.intersection(&nexts).filter(|name| name.contains("cap")) {
        attack.reached(format!("{file} of the next job"));
    }
    for job in [other_user, next] {
        lab.command("scancel").args([job.to_string()]).stdout()?;
        lab.wait_for_end(job)?;
    }
    attack.end()
}

const TIMESLICE: &str = r#"
[pool.p]
mechanism = "timeslice"
gpu = "L40S-48"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

/// A script for the lab's node, because other labs have jobs with the same users and ids.
fn of_node(lab: &Lab, script: &str) -> String {
    script.replace("NODE", &lab.nodes()[0])
}

/// Moves itself to a new group below the task of the job `$1`.
const MOVE: &str = r#"#!/bin/bash
task=$(find /sys/fs/cgroup/devices/slurm_NODE/uid_*/job_"$1" -type d -name 'task_*' -user "$(id -u)" | head -n 1)
mkdir "$task/mine" || exit 1
echo $$ > "$task/mine/cgroup.procs" || exit 1
echo "$task/mine" > moved
sleep 600
"#;

/// Promise (isolation): remaining processes in a job's device group (version 1) are ended, and the group's devices are
/// closed.
/// With `groups_without_end`, `remains_of_a_jobs_group_of_version_1_are_fenced_and_ended`,
/// `groups_without_end_are_removed_bit_by_bit`.
#[test]
fn a_process_that_moves_into_a_job() -> Result<(), LabError> {
    let lab = Lab::builder()
        .cgroup(CgroupVersion::V1)
        .gpu_list(&["L40S-48"])
        .pools(TIMESLICE)
        .start()?;
    let mut attack = Attack::begin(&lab, "a process that moves into a job")?;
    let user = &lab.users()[0];
    lab.write_work("move.sh", &of_node(&lab, MOVE))?;
    let script = "--wrap=while [ ! -e first ]; do sleep 0.05; done";
    let job = lab.sbatch(user, &["--gres=gpufrac:0.5", script])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let other = lab.sbatch(user, &["move.sh", &job.to_string()])?;
    wait_for_file(&lab, "moved")?;
    let group = std::fs::read_to_string(lab.folder().work().join("moved")).expect("it is there");
    lab.write_work("first", "")?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    if lab.wait_for_end(other)?.state() != "FAILED" || Path::new(group.trim()).exists() {
        attack.reached("the GPU after the job");
    }
    attack.end()
}

/// Makes groups below the task of the job `$1`, and moves through them as fast as possible.
const HOP: &str = r#"#!/bin/bash
task=$(find /sys/fs/cgroup/devices/slurm_NODE/uid_*/job_"$1" -type d -name 'task_*' -user "$(id -u)" | head -n 1)
cd "$task" || exit 1
for ((i = 0; ; i++)); do
    mkdir "g$i" && echo $$ > "g$i/cgroup.procs" || exit 1
    [ "$i" = 1000 ] && : > "$2"
done
"#;

/// The epilog of the job ends in time although groups are made below it, and the job's place is free again.
#[test]
fn groups_without_end() -> Result<(), LabError> {
    let lab = Lab::builder()
        .cgroup(CgroupVersion::V1)
        .gpu_list(&["L40S-48"])
        .pools(TIMESLICE)
        .start()?;
    let mut attack = Attack::begin(&lab, "groups without end below a job")?;
    let user = &lab.users()[0];
    lab.write_work("hop.sh", &of_node(&lab, HOP))?;
    let script = "--wrap=while [ ! -e first ]; do sleep 0.05; done";
    let job = lab.sbatch(user, &["--gres=gpufrac:0.5", script])?;
    lab.wait_for_state(job, &["RUNNING"])?;
    let begun = lab.folder().work().join("begun");
    let hop = ["hop.sh", &job.to_string(), &begun.display().to_string()];
    let other = lab.sbatch(user, &hop)?;
    wait_for_file(&lab, "begun")?;
    lab.write_work("first", "")?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    if !lab.leases_of(&lab.nodes()[0], job)?.is_empty() {
        attack.reached("a lease after the job");
    }
    lab.command("scancel").args([other.to_string()]).stdout()?;
    lab.wait_for_end(other)?;
    attack.end()
}
