//! Nodes that are reserved, drained, lost, rebooted, and powered down and up.

use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};
use nix::sys::signal::Signal;

use crate::{HOLD, go};

fn scontrol(lab: &Lab, words: &str) -> Result<String, LabError> {
    lab.command("scontrol").args(words.split(' ')).stdout()
}

fn submit(lab: &Lab, user: usize, options: &[&str], script: &str) -> Result<JobId, LabError> {
    let wrap = format!("--wrap={script}");
    lab.sbatch(&lab.users()[user], &[options, &[wrap.as_str()]].concat())
}

/// Waits until the scheduler has considered a pending job and given one of these reasons.
fn wait_for_reason(lab: &Lab, job: JobId, reasons: &[&str]) -> Result<(), LabError> {
    let what = format!("job {job} waits for {}", reasons.join(" or "));
    lab.wait(&what, Duration::from_secs(60), || {
        let seen = lab.job(job)?;
        let found = reasons
            .iter()
            .any(|reason| seen.field("Reason").starts_with(reason));
        Ok((seen.state() == "PENDING" && found).then_some(()))
    })
}

/// Promise (admins): reservations and maintenance of nodes hold for fractions.
/// With `a_reservations_partition_comes_before_the_default_one`.
#[test]
fn a_reserved_node_starts_fractions_of_its_users_alone() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).start()?;
    let node = &lab.nodes()[0];
    let owner = &lab.users()[0].name;
    let before = submit(&lab, 1, &["--gres=gpufrac:0.25"], HOLD)?;
    lab.wait_for_state(before, &["RUNNING"])?;
    let make = |rest: &str| {
        let words = format!(
            "create reservation reservationname=own starttime=now duration=60 nodes={node} {rest}"
        );
        scontrol(&lab, &words)
    };
    make(&format!("users={owner} flags=ignore_jobs"))?;
    let other = submit(&lab, 1, &["--gres=gpufrac:0.25"], "true")?;
    let own = submit(&lab, 0, &["--reservation=own", "--gres=gpufrac:0.5"], HOLD)?;
    lab.wait_for_state(own, &["RUNNING"])?;
    lab.slice(node, own)?;
    wait_for_reason(&lab, other, &["ReqNodeNotAvail", "Reserved", "Resources"])?;
    // Earlier jobs continue, and keep their slices.
    assert_eq!(lab.job(before)?.state(), "RUNNING");
    lab.slice(node, before)?;
    go(&lab)?;
    for job in [before, own] {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    assert_eq!(lab.job(other)?.state(), "PENDING");
    scontrol(&lab, "delete reservation=own")?;
    assert_eq!(lab.wait_for_end(other)?.state(), "COMPLETED");

    // Maintenance of a working node: its jobs continue, others wait.
    std::fs::remove_file(lab.folder().work().join("go")).expect("the jobs' sign");
    let at_work = submit(&lab, 1, &["--gres=gpufrac:0.5"], HOLD)?;
    lab.wait_for_state(at_work, &["RUNNING"])?;
    make("users=root flags=maint,ignore_jobs")?;
    let next = submit(&lab, 0, &["--gres=gpufrac:0.25"], "true")?;
    wait_for_reason(&lab, next, &["ReqNodeNotAvail", "Reserved", "Resources"])?;
    lab.slice(node, at_work)?;
    go(&lab)?;
    assert_eq!(lab.wait_for_end(at_work)?.state(), "COMPLETED");
    assert!(lab.instances(node)?.is_empty());
    scontrol(&lab, "delete reservation=own")?;
    assert_eq!(lab.wait_for_end(next)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}

/// Partition `gpu` gives a quarter to jobs without a request; `cpu` has no pool.
const RESERVED: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"

[partition.gpu]
default = 0.25
"#;

#[test]
fn a_reservations_partition_comes_before_the_default_one() -> Result<(), LabError> {
    for (partitions, reserved) in [(["cpu", "gpu"], "gpu"), (["gpu", "cpu"], "cpu")] {
        let partitions = partitions.map(|name| (name, ""));
        let builder = Lab::builder().gpus("H100-80", 1).pools(RESERVED);
        let lab = builder.only_partitions(&partitions).start()?;
        let (user, node) = (&lab.users()[0].name, &lab.nodes()[0]);
        let words = format!(
            "create reservation reservationname=own starttime=now duration=60 nodes={node} users={user} \
             partitionname={reserved}"
        );
        scontrol(&lab, &words)?;
        let own = "--reservation=own";
        // Only Slurm knows the partition, so no job gets a default.
        let none = submit(&lab, 0, &[own], "true")?;
        let ended = lab.wait_for_end(none)?;
        assert_eq!(ended.state(), "COMPLETED", "{ended:?}");
        assert_eq!(ended.field("Partition"), reserved);
        if reserved == "gpu" {
            let quarter = submit(&lab, 0, &[own, "--gres=gpufrac:0.25"], HOLD)?;
            lab.wait_for_state(quarter, &["RUNNING"])?;
            assert_eq!(lab.slice(node, quarter)?.lease.units.0, 25);
            go(&lab)?;
            assert_eq!(lab.wait_for_end(quarter)?.state(), "COMPLETED");
        }
        lab.expect_nothing_left()?;
    }
    Ok(())
}

/// Promise (admins): a node that is drained, lost or rebooted.
/// With `slices_of_a_lost_node_go_when_it_is_back`, `after_a_reboot_a_node_gives_fractions`.
#[test]
fn a_drained_node_lets_its_fractions_end_and_starts_none() -> Result<(), LabError> {
    let lab = Lab::builder().gpus("H100-80", 1).start()?;
    let node = &lab.nodes()[0];
    let job = submit(&lab, 0, &["--gres=gpufrac:0.25"], HOLD)?;
    lab.wait_for_state(job, &["RUNNING"])?;
    scontrol(
        &lab,
        &format!("update nodename={node} state=drain reason=test"),
    )?;
    let next = submit(&lab, 1, &["--gres=gpufrac:0.25"], "true")?;
    wait_for_reason(
        &lab,
        next,
        &["ReqNodeNotAvail", "Nodes_required", "Resources"],
    )?;
    lab.slice(node, job)?;
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    assert!(lab.instances(node)?.is_empty());
    assert_eq!(lab.node(node)?.state(), "IDLE+DRAIN");
    assert_eq!(lab.job(next)?.state(), "PENDING");
    scontrol(&lab, &format!("update nodename={node} state=resume"))?;
    assert_eq!(lab.wait_for_end(next)?.state(), "COMPLETED");
    lab.expect_nothing_left()
}

#[test]
fn slices_of_a_lost_node_go_when_it_is_back() -> Result<(), LabError> {
    let mut lab = Lab::builder().gpus("H100-80", 1).start()?;
    let node = lab.nodes()[0].clone();
    let script = "touch started; sleep 1000";
    let job = submit(&lab, 0, &["--requeue", "--gres=gpufrac:0.25"], script)?;
    // Slurm shows a job as running before its script runs, and counts a failed launch as a restart.
    let started = lab.folder().work().join("started");
    lab.wait("the script runs", Duration::from_secs(30), || {
        Ok(started.exists().then_some(()))
    })?;
    let first = lab.slice(&node, job)?;
    lab.stop_daemon(&format!("slurmd.{node}"), Signal::SIGKILL)?;
    scontrol(
        &lab,
        &format!("update nodename={node} state=down reason=test"),
    )?;
    lab.wait_for_state(job, &["PENDING"])?;
    // No epilog ran that could remove it.
    assert_eq!(lab.slice(&node, job)?.instance, first.instance);
    lab.start_slurmd(&node)?;
    // The node returns to service by itself.
    lab.wait_for_state(job, &["RUNNING"])?;
    let second = lab.slice(&node, job)?;
    assert_ne!(second.instance.serial, first.instance.serial);
    assert_eq!(lab.instances(&node)?, [second.instance]);
    assert_eq!(lab.job(job)?.field("Restarts"), "1");
    lab.command("scancel").args([job.to_string()]).run()?;
    lab.expect_nothing_left()
}

/// The steps of a boot: everything in memory is new, and `gpufrac node-setup` runs before slurmd. The node is the
/// script's first argument.
/// The script takes two seconds: slurmd knows its boot time in whole seconds, and Slurm ignores a node that booted
/// before it was asked to. Slurm kills the process group of its programs, so the script waits until slurmd has its own.
const BOOT: &str = "\
#!/bin/sh
sleep 2
export PATH=@ROOT@/bin:@ROOT@/prefix/bin:@ROOT@/prefix/sbin:/usr/sbin:/usr/bin:/sbin:/bin SLURM_CONF=@ROOT@/etc/slurm.conf GPUFRAC_CONFIG=@ROOT@/etc/gpufrac.toml
rm -rf @ROOT@/run/$1/* @ROOT@/dev/$1/*
gpusim init --lib @ROOT@/lib/libnvidia_ml.so --gpu H100-80:1 --mig --root @ROOT@/gpus/$1 || exit 1
SLURMD_NODENAME=$1 gpufrac node-setup || exit 1
rm -f @ROOT@/pid/slurmd.$1
setsid slurmd -D -b -N $1 >>@ROOT@/log/slurmd.$1.out 2>&1 </dev/null &
until [ -s @ROOT@/pid/slurmd.$1 ]; do sleep 0.1; done
";

/// Ends the slurmd of the node in the first argument.
const HALT: &str = "\
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
pid=$(cat @ROOT@/pid/slurmd.$1) && kill $pid
while [ -e /proc/$pid/exe ]; do sleep 0.1; done
";

#[test]
fn after_a_reboot_a_node_gives_fractions() -> Result<(), LabError> {
    let reboot = "#!/bin/sh\n\
        setsid sh -c 'touch @ROOT@/rebooting; @ROOT@/bin/halt $0 && @ROOT@/bin/boot $0' $(ls @ROOT@/gpus) \
        >@ROOT@/log/reboot.out 2>&1 </dev/null &\n\
        until [ -e @ROOT@/rebooting ]; do sleep 0.1; done\n";
    let mut lab = Lab::builder()
        .gpus("H100-80", 1)
        .slurm_conf_extra("RebootProgram=@ROOT@/bin/reboot\nResumeTimeout=120")
        .script("boot", BOOT)
        .script("halt", HALT)
        .script("reboot", reboot)
        .start()?;
    let node = lab.nodes()[0].clone();
    let before = submit(&lab, 0, &["--gres=gpufrac:0.25"], HOLD)?;
    lab.wait_for_state(before, &["RUNNING"])?;
    scontrol(
        &lab,
        &format!("reboot ASAP nextstate=resume reason=test {node}"),
    )?;
    let after = submit(
        &lab,
        0,
        &["--gres=gpufrac:0.25"],
        "echo $CUDA_VISIBLE_DEVICES",
    )?;
    wait_for_reason(
        &lab,
        after,
        &["ReqNodeNotAvail", "Nodes_required", "Resources"],
    )?;
    lab.slice(&node, before)?;
    go(&lab)?;
    assert_eq!(lab.wait_for_end(before)?.state(), "COMPLETED");
    assert_eq!(lab.wait_for_end(after)?.state(), "COMPLETED");
    assert!(lab.output(after)?.starts_with("MIG-"));
    lab.stop_daemon(&format!("slurmd.{node}"), Signal::SIGTERM)?;
    lab.expect_nothing_left()
}

/// Promise (admins): power saving: a fraction that waits switches one node on, and it goes off again.
#[test]
fn a_fraction_that_waits_switches_a_node_on() -> Result<(), LabError> {
    let lab = Lab::builder()
        .nodes(2)
        .gpus("H100-80", 1)
        .powered_down()
        .script("boot", BOOT)
        .script("halt", HALT)
        .script("resume", "#!/bin/sh\nexport PATH=@ROOT@/prefix/bin:/usr/bin:/bin SLURM_CONF=@ROOT@/etc/slurm.conf\nfor node in $(scontrol show hostnames $1); do @ROOT@/bin/boot $node >>@ROOT@/log/resume.out 2>&1; done\n")
        .script("suspend", "#!/bin/sh\nexport PATH=@ROOT@/prefix/bin:/usr/bin:/bin SLURM_CONF=@ROOT@/etc/slurm.conf\nfor node in $(scontrol show hostnames $1); do @ROOT@/bin/halt $node >>@ROOT@/log/suspend.out 2>&1; done\n")
        .slurm_conf_extra(
            "ResumeProgram=@ROOT@/bin/resume\nSuspendProgram=@ROOT@/bin/suspend\nSuspendTime=5\n\
             SuspendTimeout=10\nResumeTimeout=60\nResumeRate=0\nSuspendRate=0\nSlurmctldParameters=cloud_dns,power_save_interval=1,power_save_min_interval=1\n\
             PrivateData=cloud",
        )
        .start()?;
    let state = |node: &str| lab.node(node).map(|seen| seen.state().to_owned());
    let off = |node: &str| state(node).map(|state| state.contains("POWERED_DOWN"));
    for node in lab.nodes() {
        assert!(off(node)?);
    }
    let job = submit(&lab, 0, &["--gres=gpufrac:0.25"], HOLD)?;
    let seen = lab.wait("the job runs", Duration::from_secs(90), || {
        let seen = lab.job(job)?;
        Ok((seen.state() == "RUNNING").then_some(seen))
    })?;
    let first = seen.field("NodeList").to_owned();
    lab.slice(&first, job)?;
    let other = lab
        .nodes()
        .iter()
        .find(|node| **node != first)
        .expect("two nodes")
        .clone();
    assert!(off(&other)?, "one node is enough");
    go(&lab)?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    lab.wait("the node is off again", Duration::from_secs(90), || {
        Ok(off(&first)?.then_some(()))
    })?;
    assert!(lab.instances(&first)?.is_empty());
    lab.expect_nothing_left()
}
