//! Groups in folders with the structure of Slurm's.

use std::time::Duration;

use gpufrac_core::fraction::{Fraction, MemoryMib, Units};
use gpufrac_core::ids::{DeviceIndex, DeviceMinor, GpuIndex, GroupId, JobId, UserId};
use gpufrac_core::layout::Side;
use gpufrac_core::lease::{Held, LeaseState, Slice, VERSION};
use gpufrac_core::policy::IdleWish;

use super::*;
use gpufrac_node::clock::{Clock, SystemClock};

pub(crate) fn lease(job_id: u32) -> Lease {
    Lease {
        version: VERSION,
        state: LeaseState::Active,
        job_id: JobId(job_id),
        number: 0,
        restart_count: 0,
        sluid: None,
        user_id: UserId(1000),
        group_id: GroupId(1000),
        user: "ada".into(),
        account: None,
        partition: "gpu".into(),
        node: "n1".into(),
        pool: "l40".into(),
        units: Units(25),
        fraction: Fraction::new(1, 4).unwrap(),
        confirmed: true,
        whole_device: false,
        idle_wish: IdleWish::Default,
        created_unix: 1_000,
        created_boot_ms: None,
        kept_unix: None,
        slice: Slice {
            device_index: DeviceIndex(0),
            side: Side::Whole,
            gpu_uuid: "GPU-0".into(),
            gpu_index: GpuIndex(0),
            gpu_minor: DeviceMinor(0),
            memory_mib: MemoryMib(20096),
            hints: false,
            group_limit: false,
            held: Held::Timeslice,
        },
    }
}

#[test]
fn mounts_are_told_apart() {
    let one = "33 25 0:29 / /sys/fs/cgroup/devices rw shared:9 - cgroup cgroup rw,devices";
    let two = "30 25 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw";
    let none = "29 1 8:1 / / rw - ext4 /dev/sda1 rw";
    let mount = |line| cgroup_mount(line);
    assert_eq!(mount(one), Some(("/sys/fs/cgroup/devices".into(), false)));
    assert_eq!(mount(two), Some(("/sys/fs/cgroup".into(), true)));
    assert_eq!(mount(none), None);
}

/// A mount of version 2, with the lease of job 7.
fn version2() -> (tempfile::TempDir, JobGroups, Lease) {
    let mount = tempfile::tempdir().unwrap();
    let line = format!(
        "30 25 0:26 / {} rw - cgroup2 cgroup2 rw",
        mount.path().display()
    );
    let mut lease = lease(7);
    lease.sluid = Some("sEKNKTV3WPV500".into());
    (mount, JobGroups::below("n1", &line), lease)
}

fn busy(group: &Path, seconds: u64) {
    fs::create_dir_all(group).unwrap();
    let text = format!("usage_usec {}\nuser_usec 1\n", seconds * 1_000_000);
    fs::write(group.join("cpu.stat"), text).unwrap();
    let task = group.join("step_0/task_0");
    fs::create_dir_all(&task).unwrap();
    fs::write(group.join("cgroup.procs"), "").unwrap();
    fs::write(task.join("cgroup.procs"), "4711\n").unwrap();
}

fn has_processes(groups: &mut JobGroups, lease: &Lease) -> bool {
    groups.look(|_| true);
    groups.has_processes(lease)
}

/// Promise (reaper): control groups of version 2 are found by job or by SLUID, of this run alone, in any slice.
/// With `scopes_are_found_in_any_slice_and_at_any_time`, `a_job_is_known_by_the_group_that_slurm_made`.
#[test]
fn groups_are_named_by_sluid_or_by_job() {
    for name in ["sEKNKTV3WPV500", "job_7"] {
        let (mount, mut groups, lease) = version2();
        assert!(
            has_processes(&mut groups, &lease),
            "there are no groups at all"
        );
        let scope = mount.path().join("system.slice/n1_slurmstepd.scope");
        busy(&scope.join("job_8"), 1);
        busy(&scope.join("sEKNKTV3WPV501"), 1);
        assert!(!has_processes(&mut groups, &lease));
        let group = scope.join(name);
        busy(&group, 10);
        assert!(has_processes(&mut groups, &lease));
        let now = SystemClock.now();
        assert_eq!(groups.cores(&lease, now), None);
        busy(&group, 12);
        let later = now + Duration::from_secs(4);
        assert_eq!(groups.cores(&lease, later), Some(0.5));
        // Slurm left empty groups.
        fs::write(group.join("step_0/task_0/cgroup.procs"), "").unwrap();
        assert!(!has_processes(&mut groups, &lease));
        fs::remove_dir_all(&group).unwrap();
        assert!(!has_processes(&mut groups, &lease));
    }
}

#[test]
fn scopes_are_found_in_any_slice_and_at_any_time() {
    let (mount, mut groups, lease) = version2();
    let other = mount.path().join("user.slice/other_slurmstepd.scope/job_8");
    busy(&other, 1);
    busy(&mount.path().join("init.scope/slurmstepd.scope/job_8"), 1);
    assert!(has_processes(&mut groups, &lease), "no scope of this node");
    let scope = mount.path().join("batch.slice/n1_slurmstepd.scope");
    fs::create_dir_all(&scope).unwrap();
    assert!(!has_processes(&mut groups, &lease));
    busy(&scope.join("job_7"), 1);
    assert!(has_processes(&mut groups, &lease));
}

#[test]
fn time_of_children_counts() {
    let own = std::process::id();
    let before = ticks(own).unwrap();
    let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    std::process::Command::new("sh")
        .args(["-c", busy])
        .status()
        .unwrap();
    assert!(ticks(own).unwrap() > before);
}

/// A group with a process in it, and what the kernel says of its freezer.
fn holding(group: &Path, file: &str, text: &str) {
    fs::create_dir_all(group).unwrap();
    fs::write(group.join("cgroup.procs"), "4711\n").unwrap();
    fs::write(group.join(file), text).unwrap();
}

fn is_frozen(groups: &mut JobGroups, lease: &Lease) -> bool {
    groups.look(|_| true);
    groups.is_frozen(lease)
}

#[test]
fn a_job_is_suspended_when_all_groups_of_its_steps_are_frozen() {
    let (mount, mut groups, lease) = version2();
    let job = mount
        .path()
        .join("system.slice/n1_slurmstepd.scope/sEKNKTV3WPV500");
    assert!(!is_frozen(&mut groups, &lease), "no group");
    // The container of the job and Slurm's own program go on.
    holding(
        &job.join("step_extern/user/task_0"),
        "cgroup.events",
        "populated 1\nfrozen 0\n",
    );
    holding(
        &job.join("step_0/slurm"),
        "cgroup.events",
        "populated 1\nfrozen 0\n",
    );
    assert!(!is_frozen(&mut groups, &lease), "no process of a user");
    holding(
        &job.join("step_0/user/task_0"),
        "cgroup.events",
        "populated 1\nfrozen 1\n",
    );
    assert!(is_frozen(&mut groups, &lease));
    holding(
        &job.join("step_1/user/task_0"),
        "cgroup.events",
        "populated 1\nfrozen 0\n",
    );
    assert!(!is_frozen(&mut groups, &lease), "one step runs");
}

#[test]
fn version_1_says_it_in_the_hierarchy_of_the_freezer() {
    let mount = tempfile::tempdir().unwrap();
    let line = |name: &str| {
        let path = mount.path().join(name);
        format!(
            "33 25 0:29 / {} rw - cgroup cgroup rw,{name}\n",
            path.display()
        )
    };
    let job = "slurm_n1/uid_1000/job_7";
    for name in ["freezer", "devices"] {
        let group = mount.path().join(name).join(job).join("step_0");
        holding(&group, "notify_on_release", "0\n");
    }
    // slurmstepd is in the group of the job.
    holding(
        &mount.path().join("freezer").join(job),
        "freezer.state",
        "THAWED\n",
    );
    let mut groups = JobGroups::below("n1", &(line("devices") + &line("freezer")));
    assert!(!is_frozen(&mut groups, &lease(7)));
    let step = mount.path().join("freezer").join(job).join("step_0");
    for (state, frozen) in [
        ("THAWED\n", false),
        ("FREEZING\n", false),
        ("FROZEN\n", true),
    ] {
        fs::write(step.join("freezer.state"), state).unwrap();
        assert_eq!(is_frozen(&mut groups, &lease(7)), frozen, "{state}");
    }
}
