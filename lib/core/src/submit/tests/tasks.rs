//! A fraction for each task.

use super::*;

fn tasks<'a>(partition: &'a str, tres: &'a str) -> JobRequest<'a> {
    JobRequest {
        partitions: Some(partition),
        tres_per_task: Some(tres),
        ..JobRequest::default()
    }
}

/// (text, entry, note)
fn on(request: &JobRequest<'_>, occasion: Occasion) -> (String, String, String) {
    match decide(shared_config(), request, occasion) {
        Ok(Verdict::Rewritten { text, entry, note }) => {
            assert!(entry.per_task);
            (text, entry.to_string(), note.unwrap_or_default())
        }
        other => panic!("{request:?}: {other:?}"),
    }
}

fn no(request: &JobRequest<'_>) -> String {
    refused(request, Occasion::Submit)
}

#[test]
fn each_task_counts() {
    let quarter = (
        "gres/gpufrac:25,gres/shard:25",
        "v1:units=25:mech=mig:per=task",
    );
    for (tres, (text, entry)) in [
        ("gres/gpufrac:0.25", quarter),
        ("gres/gpufrac:mig:0.25", quarter),
        // A text that was rewritten earlier stays the same.
        ("gres/gpufrac:25,gres/shard:25", quarter),
        (
            "cpu=4,gres/gpufrac:0.125",
            (
                "cpu=4,gres/gpufrac:13,gres/shard:13",
                "v1:units=13:mech=mig:per=task",
            ),
        ),
    ] {
        for occasion in [Occasion::Submit, Occasion::Step] {
            let (given, told, note) = on(&tasks("gpu", tres), occasion);
            assert_eq!(
                (given.as_str(), told.as_str(), note.as_str()),
                (text, entry, "")
            );
        }
    }
    let (text, _, note) = on(&tasks("gpu", "gres/gpufrac:0.2"), Occasion::Submit);
    assert_eq!(text, "gres/gpufrac:25,gres/shard:25");
    assert!(note.contains("rounded up from 0.2 to 0.25"), "{note}");
}

#[test]
fn a_fraction_for_each_task_is_refused_before_slurm_23_11() {
    let early = JobRequest {
        form: GresForm::Colon,
        ..tasks("gpu", "gres:gpufrac:0.25")
    };
    let reason = no(&early);
    assert!(
        reason.contains("needs Slurm 23.11") && reason.contains("--gres=gpufrac:0.25"),
        "{reason}"
    );
}

#[test]
fn options_that_exclude_a_fraction_for_each_task() {
    for tres in ["gres/gpu:gpufrac:0.25", "gres/gpu:0.25"] {
        let reason = no(&tasks("gpu", tres));
        assert!(
            reason.contains("write --tres-per-task=gres/gpufrac:0.25"),
            "{reason}"
        );
    }
    for node in [
        "gres/gpufrac:0.25",
        "gres/shard:5",
        "gres/gpu:1",
        "gres/gpufrac:25,gres/shard:25",
    ] {
        let both = JobRequest {
            tres_per_node: Some(node),
            ..tasks("gpu", "gres/gpufrac:0.25")
        };
        assert!(no(&both).contains("both per node and per task"), "{node}");
    }
    // Other GRES per node do not matter.
    let beside = JobRequest {
        tres_per_node: Some("gres/tmpdisk:5"),
        ..tasks("gpu", "gres/gpufrac:0.25")
    };
    on(&beside, Occasion::Submit);
    let quarter = tasks("gpu", "gres/gpufrac:0.25");
    for (request, word) in [
        (
            JobRequest {
                exclusive: true,
                ..quarter
            },
            "--exclusive",
        ),
        (
            JobRequest {
                tres_per_job: Some("gres/gpu:1"),
                ..quarter
            },
            "--gpus",
        ),
        (
            JobRequest {
                mem_per_tres: Some("gres/gpu:1G"),
                ..quarter
            },
            "--mem-per-gpu",
        ),
        (
            JobRequest {
                partitions: Some("cpu"),
                ..quarter
            },
            "has no fractions",
        ),
    ] {
        assert!(no(&request).contains(word), "{word}: {}", no(&request));
    }
    let reason = no(&tasks("ruled", "gres/gpufrac:0.5"));
    assert!(
        reason.contains("--tres-per-task=gres/gpufrac:0.25"),
        "{reason}"
    );
    assert!(!reason.contains("--gres="), "{reason}");
    assert!(no(&tasks("gpu", "gres/gpufrac:25,gres/shard:50")).contains("do not belong together"));
    let changed = refused(&quarter, Occasion::Modify);
    assert!(
        changed.contains("cancel the job and submit it again"),
        "{changed}"
    );
}

#[test]
fn a_whole_gpu_is_no_slice_of_a_task() {
    for partition in ["full", "big"] {
        for whole in ["gres/gpufrac:1", "gres/gpufrac:4"] {
            let reason = no(&tasks(partition, whole));
            assert!(
                reason.contains("--gres=gpufrac:2 --ntasks-per-node=2"),
                "{reason}"
            );
        }
    }
}

#[test]
fn tasks_that_never_fit_are_refused() {
    let asked = |fraction: &'static str, count, per_node, nodes| JobRequest {
        tasks: count,
        tasks_per_node: per_node,
        max_nodes: nodes,
        ..tasks("gpu", fraction)
    };
    let (half, quarter, eighth) = (
        "gres/gpufrac:0.5",
        "gres/gpufrac:0.25",
        "gres/gpufrac:0.125",
    );
    for request in [
        asked(quarter, Some(2), None, Some(1)),
        asked(quarter, Some(4), Some(2), Some(2)),
        // Slurm distributes the tasks over nodes with room.
        asked(quarter, Some(9), None, None),
        asked(eighth, Some(3), None, Some(1)),
        asked(eighth, None, Some(3), None),
        asked(half, Some(2), Some(1), Some(2)),
        asked(half, None, None, None),
    ] {
        on(&request, Occasion::Submit);
    }
    for (request, tells) in [
        (
            asked(quarter, Some(3), None, Some(1)),
            "which has 2; write --nodes=2 --ntasks=3",
        ),
        (
            asked(quarter, Some(9), Some(3), None),
            "which has 2; write --nodes=5 --ntasks=9",
        ),
        (
            asked(eighth, Some(7), None, Some(2)),
            "which has 3; write --nodes=3 --ntasks=7",
        ),
        (
            asked(eighth, None, Some(4), None),
            "which has 3; write --nodes=2 --ntasks=4",
        ),
        (
            asked(half, Some(2), None, Some(1)),
            "which has 1; write --nodes=2 --ntasks=2",
        ),
    ] {
        let reason = no(&request);
        assert!(reason.contains(tells), "{reason}");
    }
    // A device has seven slices.
    on(
        &JobRequest {
            tasks: Some(7),
            max_nodes: Some(1),
            ..tasks("slices", "gres/gpufrac:0.1")
        },
        Occasion::Submit,
    );
}

proptest! {
    /// Any text per task is refused, left alone, or granted in full, and a second decision leaves the grant the same.
    #[test]
    fn given_is_at_least_what_was_asked(text in near(), count in 1..20_u32, nodes in 1..6_u32) {
        let request = JobRequest {
            tasks: Some(count),
            max_nodes: Some(nodes),
            ..tasks("gpu", &text)
        };
        if let Ok(Verdict::Rewritten { text: tres_per_task, entry, .. }) =
            decide(shared_config(), &request, Occasion::Submit)
        {
            prop_assert!(entry.per_task);
            // Slurm puts no more tasks on a node than its device has room for, so the nodes must be enough.
            prop_assert!((50 / entry.units.0) * nodes >= count);
            let (again, told, note) = on(&JobRequest { tres_per_task: Some(&tres_per_task), ..request }, Occasion::Submit);
            prop_assert_eq!((again, told, note), (tres_per_task, entry.to_string(), String::new()));
        }
    }
}

#[test]
fn a_ratio_that_is_too_large_is_answered_in_the_option_of_the_user() {
    let said = no(&tasks("gpu", "gres/gpufrac:3/4"));
    assert!(
        said.contains("write --tres-per-task=gres/gpufrac:"),
        "{said}"
    );
}

#[test]
fn more_tasks_than_the_nodes_have_room_for_are_refused_with_a_number_that_fits() {
    let many = JobRequest {
        tasks: Some(1000),
        ..tasks("gpu", "gres/gpufrac:0.25")
    };
    let said = no(&many);
    let (_, way) = said.split_once("write --nodes=").unwrap();
    let (nodes, rest) = way.split_once(" --ntasks=").unwrap();
    let (fitting, rest) = rest.split_once(" on all ").unwrap();
    assert!(rest.starts_with(&format!("{nodes} nodes ")), "{said}");
    let fits = JobRequest {
        tasks: Some(fitting.parse().unwrap()),
        max_nodes: Some(nodes.parse().unwrap()),
        ..many
    };
    decide(shared_config(), &fits, Occasion::Submit).unwrap();
}
