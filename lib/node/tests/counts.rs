//! A job gets exactly slurmctld's allocation, and no request of a user drains the node.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use common::{Ended, at_once, job, job_of_tasks, ready, ready_with};
use gpufrac_core::ids::{JobId, UserId};
use gpufrac_node::state::without;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

#[test]
fn child() {
    common::child();
}

/// Promise (users): a job gets what slurmctld allocated on the node, or is held.
/// With `tasks_get_no_more_slices_than_slurm_allocated`, `a_slice_that_is_not_what_slurm_counted_is_not_used`.
// Requests that Slurm may count differently from gpufrac.
#[test]
fn a_job_gets_no_more_than_slurm_allocated() {
    let world = ready();
    let pair = "gres/gpufrac:50,gres/shard:50";
    for (tres, held) in [
        (pair, "shard:1(IDX:0),gpufrac(CNT:1)"),
        (pair, "shard:half:1(1/50,0/50),gpufrac(CNT:50)"),
        (pair, "shard:half:50(50/50,0/50),gpufrac(CNT:1)"),
        (pair, "shard:half:50(50/50,0/50)"),
        (pair, "shard:half:51(51/100),gpufrac(CNT:51)"),
        (pair, "gpufrac(CNT:50)"),
        // Another device than that in the prolog's variable.
        (pair, "gpu:half:1(IDX:1),gpufrac(CNT:50)"),
        (
            "gres/gpu:half:1,gres/gpufrac:50",
            "shard:1(IDX:0),gpufrac(CNT:50)",
        ),
        (
            "gres/gpu:half:1,gres/gpufrac:50",
            "gpu:half:1(IDX:0),gpufrac(CNT:1)",
        ),
    ] {
        world.slurm_says(9, &format!("running {tres} 0 - {held}"));
        let ended = world.prolog(job(9, 0, 50)).ok();
        ended.says("Slurm allocated").says("requeued and held");
        assert!(
            world.leases().is_empty() && world.instances(0).is_empty(),
            "{held}"
        );
    }
    assert_eq!(world.slurm_was_told(), ["requeuehold 9"; 9]);
    // An answer that cannot be parsed grants nothing, but the next one may be complete.
    world.slurm_says(9, &format!("running {pair} 0 - shard:50"));
    world
        .prolog(job(9, 0, 50))
        .ok()
        .says("reading the job's allocation on this node");
    assert_eq!(world.slurm_was_told().last().unwrap(), "requeue 9");
    assert!(world.leases().is_empty());
    for held in [
        "shard:50(IDX:0),gpufrac(CNT:50)",
        "gpu:half:0(IDX:),shard:mps:0(IDX:),shard:half:50(50/50,0/50),gpufrac(CNT:50)",
    ] {
        world.slurm_says(9, &format!("running {pair} 0 - {held}"));
        world.prolog(job(9, 0, 50)).ok();
        world.check(&[]);
        let lease = world.lease(job(9, 0, 50)).unwrap();
        assert!(lease.confirmed && !lease.whole_device);
        world.epilog(job(9, 0, 50)).ok();
    }
}

/// The message has the name that an admin sees in Slurm.
#[test]
fn a_wrong_count_is_told_by_the_name_that_slurm_counts() {
    let more = "[gres]\nname = \"frac\"\n";
    let world = ready_with(&["H100-80"], more);
    let tres = "gres/frac:50,gres/shard:50";
    let held = "shard:half:50(50/50,0/50),frac(CNT:1)";
    world.slurm_says(9, &format!("running {tres} 0 - {held}"));
    let ended = world.prolog(job(9, 0, 50)).ok();
    ended.says("the job asks for 50 units of gres/frac, and Slurm allocated 1 of them");
}

/// The slices of tasks are counted by node as well.
#[test]
fn tasks_get_no_more_slices_than_slurm_allocated() {
    let world = ready();
    let tres = "gres/gpufrac:25,gres/shard:25";
    for held in [
        "shard:half:50(50/50,0/50),gpufrac(CNT:25)",
        "shard:half:50(50/50,0/50)",
    ] {
        world.slurm_says(7, &format!("running - 0 {tres} {held}"));
        let ended = world.prolog(job_of_tasks(7, 0, 25, 2)).ok();
        ended.says("Slurm allocated").says("requeued and held");
        assert!(world.leases().is_empty());
    }
}

/// For a job with a device of a pool the prolog leaves a lease, or a note that the job gets none.
#[test]
fn a_job_that_holds_devices_without_asking_is_noted() {
    let world = ready();
    let run = world.root().join("run");
    let noted = |id: u32| without::is_noted(&run, JobId(id), UserId(1000 + id)).unwrap();
    let exclusive = |id: u32| {
        let mut command = world.job_command("prolog", job(id, 0, 0));
        let command = command.env_remove("SPANK_GPUFRAC");
        Ended::of(command.env("SLURM_JOB_GPUS", "0,1").output().unwrap())
    };
    world.slurm_says(9, "running gres:tmpdisk:5 0");
    exclusive(9).ok();
    assert!(noted(9));
    world.epilog(job(9, 0, 25)).ok();
    assert!(!noted(9));
    // Shares that the job did not ask for by gpufrac's reading.
    world.slurm_says(
        9,
        "running gres:tmpdisk:5 0 - tmpdisk(CNT:5),shard:25(IDX:0)",
    );
    exclusive(9).ok().says("requeued and held");
    assert!(!noted(9));
    // Slurm does not tell the request, which may have been for shares.
    world.slurm_says(9, "unknown");
    exclusive(9).ok();
    assert!(!noted(9));
    // Requeued without an epilog, and changed to a fraction meanwhile.
    world.slurm_says(9, "running gres:tmpdisk:5 0");
    exclusive(9).ok();
    world.slurm_knows(job(9, 0, 25));
    world.prolog(job(9, 0, 25)).ok();
    assert!(!noted(9) && world.leases().len() == 1);
    // A job with a slice is never noted.
    world.epilog(job(9, 0, 25)).ok();
    assert!(world.leases().is_empty());
}

/// Possible input of a prolog, also such that no client of Slurm would send.
#[derive(Debug, Clone)]
struct Told {
    tres: String,
    per_task: String,
    held: &'static str,
    devices: &'static str,
    entry: Option<&'static str>,
    state: &'static str,
}

fn told() -> impl Strategy<Value = Told> {
    let parts = vec![
        "gres/",
        "gres:",
        "xgres/",
        "gpufrac",
        "shard",
        "gpu",
        "half",
        "t4",
        "mps",
        "none",
        ":",
        "=",
        ",",
        "0",
        "1",
        "25",
        "50",
        "0.25",
        "999999999999999999999",
    ];
    let text = || {
        let parts = prop::collection::vec(select(parts.clone()), 1..9);
        parts.prop_map(|parts| parts.concat())
    };
    let held = select(vec![
        "",
        "shard:1(IDX:0)",
        "shard:half:50(50/50)",
        "gpu:half:1(IDX:0),gpufrac(CNT:50)",
        "gpu:t4:1(IDX:5)",
        "shard:25(IDX:0),gpufrac(CNT:25)",
        "nonsense((",
    ]);
    let devices = select(vec!["0", "1", "5", "0,1", "5,0", "0,1,5"]);
    let entry = select(vec![
        None,
        Some("v1:units=25:mech=mig"),
        Some("v1:units=100:mech=any"),
        Some("v1:units=25:mech=mps:per=task"),
        Some("units=100"),
        Some(""),
    ]);
    let state = select(vec!["running", "completing", "pending", "finished"]);
    (text(), text(), held, devices, entry, state).prop_map(
        |(tres, per_task, held, devices, entry, state)| Told {
            tres,
            per_task,
            held,
            devices,
            entry,
            state,
        },
    )
}

#[test]
fn no_request_of_a_user_drains_the_node() {
    let (mut runner, cases) = (TestRunner::default(), told());
    let cases: Vec<Told> = (0..64)
        .map(|_| cases.new_tree(&mut runner).unwrap().current())
        .collect();
    at_once(cases.chunks(8), |cases| {
        let world = ready();
        for told in cases {
            let Told {
                tres,
                per_task,
                held,
                ..
            } = told;
            world.slurm_says(9, &format!("{} {tres} 0 {per_task} {held}", told.state));
            let mut command = world.job_command("prolog", job(9, 0, 25));
            command.env("SLURM_JOB_GPUS", told.devices);
            match told.entry {
                Some(entry) => command.env("SPANK_GPUFRAC", entry),
                None => command.env_remove("SPANK_GPUFRAC"),
            };
            let ended = Ended::of(command.output().unwrap());
            assert_eq!(ended.code, Some(0), "{told:?}: {}", ended.stderr);
            assert_eq!(world.epilog(job(9, 0, 25)).code, Some(0), "{told:?}");
            assert!(world.leases().is_empty() && world.instances(0).is_empty());
        }
    });
}
