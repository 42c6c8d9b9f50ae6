//! Setup, carving, release and repair on a simulated node.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::reuse::instance;
use common::{Ended, Job, World, at_once, job, ready};
use gpufrac_core::ids::{GpuIndex, JobId, UserId};
use gpufrac_core::lease::LeaseState;
use gpufrac_node::state::locks::Locks;
use gpufrac_nvml::{NvmlError, Session};
use nix::fcntl::{Flock, FlockArg};
use nvidia_ml::disturb::What;
use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes::{Process, now_us, start_ticks};

#[test]
fn child() {
    common::child();
}

/// All files below a folder that a user can open, who must be able to enter each folder on the way.
fn open_to_users(folder: &Path, found: &mut Vec<PathBuf>) {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode();
    if mode(folder) & 0o004 != 0 {
        found.push(folder.to_owned());
    }
    if mode(folder) & 0o001 == 0 {
        return;
    }
    for entry in fs::read_dir(folder).unwrap().flatten() {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => open_to_users(&entry.path(), found),
            kind if kind.is_file() && mode(&entry.path()) & 0o006 != 0 => found.push(entry.path()),
            _ => {}
        }
    }
}

/// Promise (reaper): no user holds a lock, answers for dcgm-exporter, or has mail written to a file.
/// With `a_service_is_asked_and_a_user_is_not`, `only_one_sane_address_is_a_recipient`.
#[test]
fn a_user_who_locks_all_open_files_delays_no_job() {
    let world = ready();
    let (one, two) = (job(1, 0, 25), job(2, 1, 25));
    world.prolog(one).ok();
    let mut open = Vec::new();
    for folder in ["run", "state", "dev"] {
        let folder = world.root().join(folder);
        if folder.exists() {
            open_to_users(&folder, &mut open);
        }
    }
    assert!(open.len() > 3, "{open:?}");
    let hold = |path: &PathBuf| {
        let file = fs::File::open(path).unwrap();
        Flock::lock(file, FlockArg::LockExclusiveNonblock).unwrap_or_else(|_| panic!("{path:?}"))
    };
    let held: Vec<_> = open.iter().map(hold).collect();
    world.setup().ok();
    world.prolog(two).ok();
    for job in [one, two] {
        world.epilog(job).ok();
    }
    world.check(&[]);
    assert!(world.leases().is_empty());
    let locks = Locks::create(&world.root().join("run")).unwrap();
    assert!(locks.daemon().unwrap().is_some(), "gpufrac-reaperd");
    drop(held);
}

#[test]
fn a_slice_is_carved_and_released() {
    let world = ready();
    let quarter = job(12, 1, 25);
    world
        .prolog(quarter)
        .ok()
        .says("gpufrac: job 12: carved GPU 0 2g.20gb at 4:2");
    world.check(&[]);
    let lease = world.lease(quarter).unwrap();
    assert_eq!(lease.slice.mig().unwrap().profile_name, "2g.20gb");
    assert_eq!(lease.account.as_deref(), Some("physics"));
    let caps = lease.slice.instance().unwrap();
    world.epilog(quarter).ok().says("released");
    world.check(&[]);
    assert!(world.leases().is_empty());
    assert_eq!(world.cap(caps.gi_cap_minor), (0, 0o400));
    assert_eq!(world.cap(caps.ci_cap_minor), (0, 0o400));
    let usage = world.usage();
    assert_eq!(usage.len(), 1);
    assert_eq!(usage[0]["job"], 12);
    assert_eq!(usage[0]["profile"], "2g.20gb");
    // Slurm may run the epilog twice.
    world.epilog(quarter).ok();
    assert_eq!(world.usage().len(), 1);
}

#[test]
fn a_gpu_is_filled_completely() {
    let world = ready();
    let jobs = [
        job(1, 0, 13),
        job(2, 0, 25),
        job(3, 1, 13),
        job(4, 1, 13),
        job(5, 1, 13),
    ];
    for one in jobs {
        world.prolog(one).ok();
        world.check(&[]);
    }
    assert_eq!(world.instances(0).len(), 5);
    for one in jobs {
        world.epilog(one).ok();
        world.check(&[]);
    }
}

#[test]
fn every_layout_can_be_carved() {
    for (model, layout, devices, units, profile) in [
        ("H100-80", "whole", 1, 100, "7g.80gb"),
        ("H100-80", "slices", 7, 14, "1g.10gb"),
        ("A30-24", "halves", 2, 50, "2g.12gb"),
        ("A30-24", "slices", 4, 25, "1g.6gb"),
        ("A100-40", "halves", 2, 50, "4g.20gb"),
        ("RTX-PRO-6000-96", "halves", 2, 50, "2g.48gb"),
    ] {
        let world = World::with(&[model], layout, true);
        world.setup().ok();
        for number in 0..devices {
            let device = if layout == "halves" { number } else { 0 };
            world.prolog(job(1 + number, device, units)).ok();
        }
        world.check(&[]);
        assert_eq!(world.leases().len(), devices as usize, "{model} {layout}");
        assert_eq!(world.leases()[0].slice.mig().unwrap().profile_name, profile);
        for number in 0..devices {
            world.epilog(job(1 + number, 0, units)).ok();
        }
        world.check(&[]);
    }
}

#[test]
fn a_job_of_another_gres_is_left_alone() {
    let world = ready();
    world.count_calls();
    let before = world.calls();
    // A GPU that Slurm lists after those of the pool, and no entry.
    let mut command = world.job_command("prolog", job(1, 7, 25));
    command.env_remove("SPANK_GPUFRAC");
    assert!(command.status().unwrap().success());
    assert_eq!(world.calls(), before, "NVML was not started");
    assert!(world.leases().is_empty());
}

#[test]
fn the_prolog_may_run_twice() {
    let world = ready();
    let one = job(7, 0, 25);
    world.prolog(one).ok();
    let before = instance(&world, one);
    world.prolog(one).ok().says("kept");
    assert_eq!(instance(&world, one), before);
    world.check(&[]);
}

#[test]
fn a_requeued_job_does_not_inherit_a_slice_whose_epilog_never_came() {
    let world = ready();
    let first = job(7, 0, 25);
    world.prolog(first).ok();
    let before = instance(&world, first);
    let again = Job {
        restarts: 1,
        device: 1,
        ..first
    };
    world.prolog(again).ok().says("carved");
    assert_ne!(instance(&world, again), before);
    assert_eq!(world.instances(0).len(), 1);
    assert_eq!(world.usage().len(), 1);
    world.check(&[]);
}

#[test]
fn a_lease_of_an_earlier_run_on_another_gpu_goes_too() {
    let world = World::with(&["H100-80", "H100-80"], "halves", true);
    world.setup().ok();
    let first = job(7, 0, 50);
    world.prolog(first).ok();
    world
        .prolog(Job {
            restarts: 1,
            device: 3,
            ..first
        })
        .ok();
    assert_eq!(world.instances(0).len(), 0);
    assert_eq!(world.instances(1).len(), 1);
    world.check(&[]);
}

#[test]
fn slurms_allocation_overrides_a_stale_entry() {
    let world = ready();
    let one = job(7, 0, 50);
    world.slurm_says(7, "running gres:gpufrac:13,gres:shard:13 0");
    world.prolog(one).ok().says("changed while it was pending");
    assert_eq!(
        world.lease(one).unwrap().slice.mig().unwrap().profile_name,
        "1g.10gb"
    );
    // Not on the menu: the job gets neither a larger size nor less than was counted.
    world.slurm_says(8, "running gres:gpufrac:49,gres:shard:49 0");
    let ended = world.prolog(job(8, 1, 50)).ok();
    ended.says("Slurm counted 49 units for job 8, and pool `p` of n1 gives 13, 25, 50");
    assert_eq!(world.slurm_was_told(), ["requeuehold 8"]);
}

#[test]
fn a_job_without_entry_gets_what_slurm_says() {
    let world = ready();
    let raw = |id: u32| {
        let mut command = world.job_command("prolog", job(id, 0, 0));
        command.env_remove("SPANK_GPUFRAC");
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    world.slurm_says(7, "running gres:gpufrac:25,gres:shard:25 0");
    assert_eq!(raw(7).0, Some(0));
    assert_eq!(world.leases()[0].units.0, 25);
    world.check(&[]);
    // Slurm does not answer: no slice is made, and the job continues without a GPU.
    let (code, text) = raw(8);
    assert_eq!(code, Some(0), "{text}");
    // It asked for no GPU: all of its devices come from --exclusive.
    world.slurm_says(9, "running gres:tmpdisk:5 0");
    assert_eq!(raw(9), (Some(0), String::new()));
    // All devices of the node, as with --exclusive; also if Slurm forgot the job.
    for says in ["running - 0", "unknown"] {
        world.slurm_says(11, says);
        let mut command = world.job_command("prolog", job(11, 0, 0));
        let command = command
            .env_remove("SPANK_GPUFRAC")
            .env("SLURM_JOB_GPUS", "0,1,2,3");
        assert_eq!(command.output().unwrap().status.code(), Some(0), "{says}");
    }
    assert_eq!(world.slurm_was_told(), Vec::<String>::new());
    // Raw shares, which the partition does not allow: requeued and held.
    world.slurm_says(10, "running gres:shard:25 0");
    let (code, text) = raw(10);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("requeued and held"), "{text}");
    assert_eq!(world.slurm_was_told(), ["requeuehold 10"]);
    assert_eq!(world.leases().len(), 1);
}

/// Promise (never): programs that cannot ask their Slurm make no slice, whatever a job's entry says.
// After an upgrade of Slurm to another series without gpufrac's, job_submit_gpufrac.so changes nothing, so that the
// entry may be the user's own, and spank_gpufrac.so is not loaded to compare it with Slurm's allocation.
#[test]
fn without_slurms_library_the_entry_alone_creates_no_slice() {
    let world = ready();
    world.prolog(job(7, 0, 25)).ok();
    let before = (world.leases(), world.instances(0));
    fs::write(world.root().join("slurm/no-library"), "").unwrap();
    let run = |id: u32, device: Option<&str>, entry: bool| {
        let mut command = world.job_command("prolog", job(id, 1, 50));
        if !entry {
            command.env_remove("SPANK_GPUFRAC");
        }
        match device {
            Some(device) => command.env("SLURM_JOB_GPUS", device),
            None => command.env_remove("SLURM_JOB_GPUS"),
        };
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    };
    // It holds a device: also without an entry, because a share of a GPU without MIG would be the whole GPU.
    for entry in [true, false] {
        let (code, text) = run(8, Some("1"), entry);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("no libslurm.so.38"), "{text}");
        assert!(text.contains("hint: rebuild"), "{text}");
    }
    // It holds no device: whatever its entry is, the node is not drained.
    let (code, text) = run(9, None, true);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(run(10, None, false), (Some(0), String::new()));
    assert_eq!((world.leases(), world.instances(0)), before);
    // Earlier slices still end with their jobs.
    world.epilog(job(7, 0, 25)).ok();
    assert!(world.leases().is_empty() && world.instances(0).is_empty());
}

#[test]
fn a_job_that_gave_its_fraction_up_leaves_no_slice_behind() {
    let world = ready();
    world.prolog(job(7, 0, 25)).ok();
    // Requeued without an epilog, and changed while it was pending.
    world.slurm_says(7, "running gres:tmpdisk:5 1");
    let mut command = world.job_command("prolog", job(7, 0, 25));
    let output = command
        .env("SLURM_JOB_RESTART_COUNT", "1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(world.leases().is_empty() && world.instances(0).is_empty());
}

/// Promise (isolation): a job id that is used again does not get the slice of its old owner.
#[test]
fn a_job_id_that_is_used_again_does_not_get_the_old_owners_slice() {
    let world = ready();
    world.prolog(job(7, 0, 25)).ok();
    let old = world.leases()[0].clone();
    let before = world.serial(&old);
    let mut command = world.job_command("prolog", job(7, 0, 25));
    let output = command.env("SLURM_JOB_UID", "4242").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let new = world.leases()[0].clone();
    assert_eq!(
        (old.user_id == new.user_id, new.user_id),
        (false, UserId(4242))
    );
    assert_ne!(before, world.serial(&new));
    // The same user has the id again: the SLUID tells the jobs apart.
    let serials = ["sEKNKTV3WPV500", "sEKNKTV3WPV500", "sEKNKTV3WPV600"].map(|sluid| {
        let mut command = world.job_command("prolog", job(8, 0, 25));
        let output = command.env("SLURM_JOB_SLUID", sluid).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        let leases = world.leases();
        let lease = leases
            .iter()
            .find(|lease| lease.job_id == JobId(8))
            .unwrap();
        assert_eq!(lease.sluid.as_deref(), Some(sluid));
        world.serial(lease)
    });
    assert_eq!(serials[0], serials[1]);
    assert_ne!(serials[1], serials[2]);
}

/// A job whose text job_submit did not see, or saw in another form.
#[test]
fn a_text_that_slurm_reads_otherwise_holds_the_job() {
    let world = ready();
    for text in [
        "gres/gpufrac:50,gres/shard:50,xgres/shard:1,xgres/gpufrac:1",
        "gres:shard:50,gres:gpufrac:50,gres:shard:1",
        "gres/shard:1,zgpufrac:50",
    ] {
        world.slurm_says(9, &format!("running {text} 0"));
        let ended = world.prolog(job(9, 0, 50));
        ended.ok().says("can be read in two ways");
        let told = world.slurm_was_told();
        assert_eq!(
            told.last().map(String::as_str),
            Some("requeuehold 9"),
            "{text}"
        );
        assert!(world.leases().is_empty() && world.instances(0).is_empty());
    }
}

/// Promise (admins): a request that can never be met ends the job and does not drain the node.
#[test]
fn an_impossible_request_ends_the_job_and_drains_no_node() {
    let world = ready();
    let two = |name: &str, value: &str| -> Ended {
        let mut command = world.job_command("prolog", job(9, 0, 25));
        Ended::of(command.env(name, value).output().unwrap())
    };
    world.slurm_knows(job(9, 0, 25));
    two("SLURM_JOB_GPUS", "0,1")
        .ok()
        .says("not all of them are whole GPUs");
    // Shares without a fraction.
    world.slurm_says(9, "running gres:shard:5 0");
    two("SPANK_GPUFRAC", "v1:units=25:mech=mig")
        .ok()
        .says("smallest slice");
    world.slurm_knows(job(9, 0, 25));
    two("SPANK_GPUFRAC", "units=100")
        .ok()
        .says("not of the form");
    let told = world.slurm_was_told();
    assert_eq!(told.len(), 5, "{told:?}");
    assert!(told[0].starts_with("notify 9 gpufrac: no slice on n1"));
    assert_eq!(told[1], "cancel 9");
    // Another build wrote the entry: no job is lost for that.
    assert_eq!(told[4], "requeuehold 9");
    assert!(world.leases().is_empty() && world.instances(0).is_empty());
}

#[test]
fn a_job_that_was_moved_to_a_pool_of_another_mechanism_has_what_slurm_gave_it() {
    let world = ready();
    world.slurm_knows(job(9, 0, 25));
    let prolog = || {
        let mut command = world.job_command("prolog", job(9, 0, 25));
        let command = command.env("SPANK_GPUFRAC", "v1:units=50:mech=mps");
        Ended::of(command.output().unwrap())
    };
    prolog().ok().says("a slice by mig, not mps");
    assert_eq!(world.slurm_was_told(), Vec::<String>::new());
    assert_eq!(world.leases().len(), 1);
    world.epilog(job(9, 0, 25)).ok();
    // If Slurm does not tell the request, only the entry counts.
    world.slurm_is_silent_for(1000);
    prolog().ok().says("offers mig");
    assert!(world.leases().is_empty() && world.instances(0).is_empty());
}

/// Promise (never): an instance that gpufrac did not make is never touched.
/// With `an_instance_with_the_ids_of_ours_is_not_ours`,
/// `an_instance_that_was_made_again_is_not_that_of_a_job_that_ends`,
/// `an_instance_that_was_made_again_is_not_given_to_a_job`.
#[test]
fn a_foreign_instance_is_avoided_and_never_touched() {
    let world = ready();
    // At the first choice for an eighth, and an instance without a compute instance.
    let foreign = [
        world.foreign(19, 0, 1, Some(0)),
        world.foreign(14, 4, 2, None),
    ];
    let jobs = [job(1, 0, 13), job(2, 0, 25), job(3, 1, 13)];
    for one in jobs {
        world.prolog(one).ok();
        world.check(&foreign);
    }
    for one in jobs {
        world.epilog(one).ok();
    }
    world.check(&foreign);
}

/// Promise (admins): a job without a place goes back to the queue, and the node stays in use.
#[test]
fn a_job_for_which_there_is_no_place_goes_back_to_the_queue() {
    enum Slurm {
        Requeues,
        CannotRequeue,
        IsSilent,
    }
    at_once(
        [Slurm::Requeues, Slurm::CannotRequeue, Slurm::IsSilent],
        |slurm| {
            let world = ready();
            // More instances than Slurm counted.
            let other = job(2, 1, 50);
            world.slurm_knows(other);
            world.prolog(other).ok();
            let one = job(1, 1, 25);
            world.slurm_knows(one);
            match slurm {
                Slurm::Requeues => {
                    world.prolog(one).ok().says("no position is free");
                    assert_eq!(world.slurm_was_told(), ["requeue 1"]);
                }
                // The user is informed, and the job ends.
                Slurm::CannotRequeue => {
                    fs::write(world.root().join("slurm/interactive"), "").unwrap();
                    world.prolog(one).ok();
                    let told = world.slurm_was_told();
                    assert!(
                        told[0].starts_with("notify 1 gpufrac: no slice"),
                        "{told:?}"
                    );
                    assert_eq!(told[1..], ["cancel 1"]);
                }
                // The node must not run it.
                Slurm::IsSilent => {
                    world.slurm_is_silent_for(1000);
                    world
                        .prolog(one)
                        .ok()
                        .says("the job's tasks do not start without a slice");
                }
            }
            world.check(&[]);
            assert!(world.lease(one).is_none());
        },
    );
}

#[test]
fn a_job_whose_place_a_foreign_instance_has_drains_the_node() {
    let world = ready();
    let foreign = world.foreign(9, 4, 4, Some(2));
    let one = job(1, 1, 25);
    world.slurm_knows(one);
    let ended = world.prolog(one).says("that gpufrac did not make");
    ended.ok().says("requeued, because the node is drained");
    // There is a place on the other half.
    world.prolog(job(2, 0, 25)).ok();
    world.check(&[foreign]);
    assert!(world.lease(one).is_none());
}

/// Promise (admins): temporary errors are retried.
/// With `a_passing_error_of_the_driver_is_retried`.
#[test]
fn a_dying_predecessor_is_waited_for() {
    // Slurm counts a requeue before the epilog begins.
    at_once(["completing - 0", "completing - 1"], |said| {
        let world = ready();
        let (old, new) = (job(1, 0, 50), job(2, 0, 50));
        world.prolog(old).ok();
        world.slurm_says(1, said);
        let mut prolog = world.job_command("prolog", new);
        let mut waiting = prolog.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("waiting: ")));
        world.epilog(old).ok();
        assert!(waiting.wait().unwrap().success());
        assert!(world.lease(new).is_some());
        assert_eq!(world.slurm_was_told(), [""; 0]);
        world.check(&[]);
    });
}

/// Promise (never): an incomplete view destroys nothing.
/// With `carving_when_any_call_loses_the_gpu`.
#[test]
fn an_active_lease_goes_only_when_slurm_says_that_the_job_is_over() {
    // No answer, and the answer that the job runs: neither allows its end.
    at_once([None, Some("running gres:shard:50 0")], |said| {
        let world = ready();
        let (old, new) = (job(1, 0, 50), job(2, 0, 50));
        world.prolog(old).ok();
        let before = instance(&world, old);
        world.slurm_knows(new);
        match said {
            None => drop(world.prolog(new).ok().says("no answer")),
            Some(text) => {
                world.slurm_says(1, text);
                world.prolog(new).ok();
            }
        }
        assert_eq!(instance(&world, old), before);
        assert_eq!(world.slurm_was_told(), ["requeue 2"]);
    });
    let world = ready();
    world.prolog(job(1, 0, 50)).ok();
    for (id, over) in [
        (4, "finished - 0"),
        (5, "unknown"),
        (6, "pending - 1"),
        (7, "elsewhere - 0"),
    ] {
        let last = world.leases()[0].job_id.0;
        world.slurm_says(last, over);
        world
            .prolog(job(id, 0, 50))
            .ok()
            .says("its epilog did not run");
        assert_eq!(world.leases()[0].job_id, JobId(id), "{over}");
        world.check(&[]);
    }
    assert_eq!(world.usage().len(), 4);
}

/// slurmctld no longer tells the allocation, and would requeue the job.
#[test]
fn a_job_that_was_cancelled_before_its_prolog_asked_is_left_alone() {
    let world = ready();
    for over in ["finished", "completing", "pending"] {
        for held in ["", "shard:25(IDX:0),gpufrac(CNT:25)"] {
            world.slurm_says(
                1,
                &format!("{over} gres:gpufrac:25,gres:shard:25 0 - {held}"),
            );
            world.prolog(job(1, 0, 25)).ok().says("already ended");
            assert!(world.instances(0).is_empty() && world.leases().is_empty());
        }
    }
    assert_eq!(world.slurm_was_told(), [""; 0]);
    world.epilog(job(1, 0, 25)).ok();
}

#[test]
fn a_slice_in_use_is_waited_for_then_left_to_the_next() {
    let world = ready();
    let one = job(1, 0, 25);
    world.prolog(one).ok();
    let mut process = Command::new("sleep").arg("100").spawn().unwrap();
    world.use_slice(one, process.id());
    let start = Instant::now();
    world.epilog(one).ok().says("in use (19)");
    assert!(start.elapsed() >= Duration::from_secs(4));
    let lease = world.lease(one).unwrap();
    assert_eq!(lease.state, LeaseState::Releasing);
    // Its place stays taken as long as the process lives.
    let other = job(2, 0, 25);
    world.prolog(other).ok().says("failed for now");
    assert_eq!(world.instances(0).len(), 2);
    let place = |job| world.lease(job).unwrap().slice.mig().unwrap().placement;
    assert!(!place(one).overlaps(place(other)));
    process.kill().unwrap();
    process.wait().unwrap();
    let third = job(3, 0, 25);
    world.prolog(third).ok().says("ended the lease of job 1");
    world.check(&[]);
    assert_eq!(world.usage().len(), 1);
}

#[test]
fn a_process_that_dies_in_time_costs_nothing() {
    let world = ready();
    let one = job(1, 0, 25);
    world.prolog(one).ok();
    let mut process = Command::new("sleep").arg("0.6").spawn().unwrap();
    world.use_slice(one, process.id());
    let epilog = world.job_command("epilog", one).spawn().unwrap();
    process.wait().unwrap();
    assert!(epilog.wait_with_output().unwrap().status.success());
    assert!(world.leases().is_empty());
    world.check(&[]);
}

#[test]
fn an_instance_with_the_ids_of_ours_is_not_ours() {
    let world = ready();
    let one = job(1, 0, 25);
    world.prolog(one).ok();
    let lease = world.lease(one).unwrap();
    // The GPU was reset, and the same instance was created again: same profile, place and id.
    world
        .sim
        .update(|node| {
            node.gpus[0].instances.clear();
            Ok(())
        })
        .unwrap();
    let placement = lease.slice.mig().unwrap().placement;
    let foreign = world.foreign(14, placement.start.into(), placement.size.into(), Some(1));
    let instance = lease.slice.instance().unwrap();
    assert_eq!(foreign, instance.gi_id, "the id is used again");
    world.epilog(one).ok().says("another stands in its place");
    assert!(world.leases().is_empty());
    world.check(&[foreign]);
}

#[test]
fn an_instance_that_is_gone_is_fine() {
    let world = ready();
    let one = job(1, 0, 25);
    world.prolog(one).ok();
    world
        .sim
        .update(|node| {
            node.gpus[0].instances.clear();
            Ok(())
        })
        .unwrap();
    let lease = world.lease(one).unwrap();
    let caps = lease.slice.instance().unwrap();
    world.epilog(one).ok().says("gone already");
    // The next job with this id finds the file closed.
    assert_eq!(world.cap(caps.gi_cap_minor), (0, 0o400));
    world.check(&[]);
    // Only the compute instance was destroyed by an admin: the GPU instance is still the lease's.
    world.prolog(one).ok();
    world
        .sim
        .update(|node| {
            node.gpus[0].instances[0].compute.clear();
            Ok(())
        })
        .unwrap();
    world.epilog(one).ok().says("released");
    world.check(&[]);
}

/// Promise (admins): a node that cannot make slices is drained with the reason.
#[test]
fn a_node_that_cannot_carve_says_why_and_is_drained() {
    let world = ready();
    let broken = |text: &str| {
        let ended = world.prolog(job(1, 0, 25)).says(text);
        assert_eq!(ended.code, Some(1));
        assert!(world.leases().is_empty() && world.slurm_was_told().is_empty());
        world.check(&[]);
    };
    world.next_calls("nvmlDeviceGetHandleByPciBusId_v2", 0, What::Fail(15));
    broken("GPU is lost (15)");
    world.calm();
    world
        .sim
        .update(|node| {
            node.gpus[0].uuid = "GPU-11111111-2222-3333-4444-555555555555".into();
            Ok(())
        })
        .unwrap();
    // The driver's data in this case.
    fs::remove_dir_all(world.root().join("gpus/proc/driver/nvidia/gpus")).unwrap();
    broken("at boot it was");
    let library = world.root().join("gpus/lib/libnvidia-ml.so.1");
    fs::remove_file(library).unwrap();
    broken("starting NVML");
}

#[test]
fn a_device_of_no_pool_holds_the_job_and_drains_no_node() {
    let world = ready();
    let other = job(1, 5, 25);
    // Shares of the GPU: gres.conf and gpufrac.toml do not agree. A GPU without a pool: the user asked for it by its
    // Type, or without a Type.
    for text in [
        "gres/gpufrac:25,gres/shard:25",
        "gres/gpu:1,gres/gpufrac:25",
        "gres/gpu:1",
    ] {
        world.slurm_says(1, &format!("running {text} 0"));
        let ended = world.prolog(other).ok();
        ended.says("`gpufrac conf`").says("requeued and held");
        assert!(world.leases().is_empty() && world.instances(0).is_empty());
    }
    world.slurm_says(1, "running gres/gpu:t4:1,zgpufrac:1 0");
    world.prolog(other).ok().says("requeued and held");
    assert_eq!(world.slurm_was_told(), ["requeuehold 1"; 4]);
    // By its Type it is not gpufrac's.
    world.slurm_says(1, "running gres/gpu:t4:1 0");
    world.prolog(other).ok();
    assert_eq!(world.slurm_was_told().len(), 4);
}

#[test]
fn a_passing_error_of_the_driver_is_retried() {
    let world = ready();
    for (call, code) in [
        ("nvmlInit_v2", 999),
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 23),
        ("nvmlGpuInstanceCreateComputeInstance", 19),
        ("nvmlDeviceGetUUID", 10),
        ("nvmlGpuInstanceGetInfo", 999),
    ] {
        world.next_calls(call, 2, What::Fail(code));
        world.prolog(job(1, 0, 25)).ok().says("waiting");
        world.check(&[]);
        world.epilog(job(1, 0, 25)).ok();
        world.check(&[]);
    }
    assert!(world.slurm_was_told().is_empty());
}

#[test]
fn two_prologs_and_an_epilog_at_once() {
    let world = ready();
    let mut last = None;
    for round in 0..6 {
        let base = 10 * round;
        let jobs = [job(base, 0, 25), job(base + 1, 0, 25), job(base + 2, 1, 13)];
        let mut running: Vec<_> = jobs
            .iter()
            .map(|one| world.job_command("prolog", *one).spawn().unwrap())
            .collect();
        if let Some(old) = last {
            running.push(world.job_command("epilog", old).spawn().unwrap());
        }
        for child in &mut running {
            assert!(child.wait().unwrap().success());
        }
        world.check(&[]);
        let running: Vec<_> = jobs[..2]
            .iter()
            .map(|one| world.job_command("epilog", *one).spawn().unwrap())
            .collect();
        for mut child in running {
            assert!(child.wait().unwrap().success());
        }
        last = Some(jobs[2]);
        world.check(&[]);
        assert_eq!(world.leases().len(), 1);
    }
}

/// Promise (admins): node-setup can be repeated, and says what an admin must do.
/// With `set_up_says_what_an_admin_must_do`.
#[test]
fn set_up_makes_what_is_needed_and_can_be_repeated() {
    let world = World::with(&["H100-80", "H100-80"], "halves", false);
    let first = world.setup().ok();
    assert!(first.stderr.contains("switched MIG on for GPU 0"));
    let root = world.root();
    for (name, minor) in [("half0", 0), ("half3", 3)] {
        let meta = fs::metadata(root.join("dev").join(name)).unwrap();
        assert!(meta.file_type().is_char_device());
        assert_eq!(meta.rdev(), (60 << 8) | minor);
        assert_eq!(meta.permissions().mode() & 0o7777, 0o666);
    }
    // Without a slurm.conf nothing says that users may see jobs of others.
    for (name, mode) in [("run", 0o755), ("run/leases", 0o700), ("run/locks", 0o700)] {
        let meta = fs::metadata(root.join(name)).unwrap();
        assert_eq!(meta.mode() & 0o7777, mode, "{name}");
    }
    world.prolog(job(1, 2, 25)).ok();
    let second = world.setup().ok();
    assert!(!second.stderr.contains("made "), "{}", second.stderr);
    // A slice in use survives it.
    world.check(&[]);
    assert_eq!(world.leases().len(), 1);
    // Fewer devices: unneeded placeholders are removed.
    world.configure("halves", "H100-80", "gpus = [1]");
    world.setup().ok().says("removed");
    assert!(!root.join("dev/half2").exists() && root.join("dev/half1").exists());
}

#[test]
fn set_up_says_what_an_admin_must_do() {
    let world = World::with(&["A100-80"], "halves", false);
    let ended = world.setup().says("--gpu-reset");
    assert_eq!(ended.code, Some(1));
    assert!(!world.sim.node().unwrap().gpus[0].mig_pending, "untouched");
    let world = World::with(&["H100-80"], "halves", true);
    world.configure("halves", "H200-141", "");
    assert_eq!(world.setup().says("does not match pool").code, Some(1));
    world.configure("halves", "H100-80", "gpus = [0, 4]");
    assert_eq!(world.setup().says("has 1 GPUs").code, Some(1));
}

#[test]
fn set_up_refuses_what_is_not_roots() {
    let world = World::new();
    let root = world.root();
    fs::create_dir(root.join("elsewhere")).unwrap();
    symlink(root.join("elsewhere"), root.join("run")).unwrap();
    assert_eq!(world.setup().says("symbolic link").code, Some(1));
    fs::remove_file(root.join("run")).unwrap();
    fs::create_dir(root.join("run")).unwrap();
    std::os::unix::fs::chown(root.join("run"), Some(1000), None).unwrap();
    assert_eq!(world.setup().says("belongs to uid 1000").code, Some(1));
    std::os::unix::fs::chown(root.join("run"), Some(0), None).unwrap();
    fs::create_dir(root.join("dev")).unwrap();
    fs::write(root.join("dev/half0"), "mine").unwrap();
    assert_eq!(world.setup().says("not a character device").code, Some(1));
    assert_eq!(fs::read(root.join("dev/half0")).unwrap(), b"mine");
    fs::set_permissions(world.config(), fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(world.setup().says("mode 0666").code, Some(1));
}

#[test]
fn a_lease_that_is_a_link_is_not_read() {
    let world = ready();
    let one = job(1, 0, 25);
    world.prolog(one).ok();
    let path = world.root().join("run/leases/1");
    let text = fs::read(&path).unwrap();
    let elsewhere = world.root().join("lease");
    fs::write(&elsewhere, text).unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&elsewhere, &path).unwrap();
    assert_eq!(world.epilog(one).says("symbolic link").code, Some(1));
    assert_eq!(world.instances(0).len(), 1);
}

/// Promise (admins): leases from before a reboot are dropped.
#[test]
fn after_a_reboot_earlier_leases_are_dropped() {
    let world = ready();
    world.prolog(job(1, 0, 25)).ok();
    world
        .sim
        .update(|node| {
            node.reboot();
            Ok(())
        })
        .unwrap();
    let record = world.root().join("run/fence");
    let text = fs::read_to_string(&record).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(&record, text.replace(boot.trim(), "another-boot")).unwrap();
    let ended = world.prolog(job(2, 0, 25)).says("before the last boot");
    assert_eq!(ended.code, Some(1));
    let ended = world.setup().ok().says("dropped the lease of job 1");
    assert!(
        !ended.stderr.contains("after each boot"),
        "{}",
        ended.stderr
    );
    assert!(world.leases().is_empty());
    world.prolog(job(2, 0, 25)).ok();
    world.check(&[]);
    // The driver makes instances of its own at boot.
    world.foreign_on(0);
    world
        .setup()
        .ok()
        .says("a boot configuration of the driver");
}

#[test]
fn a_list_of_processes_that_grew_while_it_was_read_is_read_again() {
    let world = World::with(&["L40S-48"], "whole", false);
    let session = Session::open(&world.root().join("gpus/lib/libnvidia-ml.so.1")).unwrap();
    let gpu = session.gpu(GpuIndex(0)).unwrap();
    let pid = std::process::id();
    let process = Process {
        pid,
        start_ticks: start_ticks(pid).unwrap(),
        name: "train".into(),
        gpu_uuid: world.sim.node().unwrap().gpus[0].uuid.clone(),
        instance: None,
        memory_mib: 100,
        pattern: Pattern::Busy,
        began_us: now_us() - 1_000_000,
    };
    process.register(world.sim.root()).unwrap();
    let seen = || -> Result<(usize, usize), NvmlError> {
        let used = gpu.utilization_since(now_us() - 500_000)?;
        Ok((used.len(), gpu.processes()?.len()))
    };
    for call in [
        "nvmlDeviceGetProcessUtilization",
        "nvmlDeviceGetComputeRunningProcesses_v3",
    ] {
        // The call for the length and the call for the content, twice.
        world.next_calls(call, 4, What::FailAfter(7));
        assert_eq!(seen().unwrap(), (1, 1), "{call}");
        world.next_calls(call, 0, What::FailAfter(7));
        let error = seen().unwrap_err().to_string();
        assert!(error.contains(call) && error.contains("(7)"), "{error}");
        world.calm();
    }
}
