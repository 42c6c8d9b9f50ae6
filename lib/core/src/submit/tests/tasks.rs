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
        Ok(Verdict::Rewritten {
            text, entry, note, ..
        }) => {
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
    cases(shared_config(), "each_task_counts");
}

#[test]
fn a_fraction_for_each_task_is_refused_before_slurm_23_11() {
    cases(
        shared_config(),
        "a_fraction_for_each_task_is_refused_before_slurm_23_11",
    );
}

#[test]
fn options_that_exclude_a_fraction_for_each_task() {
    cases(
        shared_config(),
        "options_that_exclude_a_fraction_for_each_task",
    );
}

#[test]
fn a_whole_gpu_is_no_slice_of_a_task() {
    cases(shared_config(), "a_whole_gpu_is_no_slice_of_a_task");
}

#[test]
fn tasks_that_never_fit_are_refused() {
    cases(shared_config(), "tasks_that_never_fit_are_refused");
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
    cases(
        shared_config(),
        "a_ratio_that_is_too_large_is_answered_in_the_option_of_the_user",
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
