//! `CUDA_VISIBLE_DEVICES` by CUDA's numbers, for programs that cannot read UUIDs.

use gpufrac_lab::{Lab, LabError};

use crate::since;

const QUARTER: &str = "--gres=gpufrac:0.25";
const OPTION: &str = "--gpufrac-visible=index";
const SEE: &str = "echo CUDA=$CUDA_VISIBLE_DEVICES NVIDIA=$NVIDIA_VISIBLE_DEVICES";

/// Checks that all of `lines` steps printed `cuda`, and a UUID for containers.
fn expect(output: &str, lines: usize, cuda: &str) {
    let printed: Vec<&str> = output
        .lines()
        .filter(|line| line.starts_with("CUDA="))
        .collect();
    assert_eq!(printed.len(), lines, "{output}");
    let start = format!("CUDA={cuda}");
    for line in printed {
        assert!(
            line.starts_with(&start) && line.contains(" NVIDIA=MIG-"),
            "{output}"
        );
    }
}

/// Promise (users): `CUDA_VISIBLE_DEVICES` has CUDA's numbers where the job asks for them and they are certain, and
/// otherwise UUIDs, with the reason; other values are refused or ignored.
/// With `numbers_are_those_of_what_the_fence_leaves`, `a_client_of_mps_sees_its_daemons_device_alone`,
/// `exactly_two_words_name_devices`.
#[test]
fn numbers_instead_of_uuids_where_they_are_certain() -> Result<(), LabError> {
    let lab = Lab::builder().cores_per_node(16).start()?;
    let user = &lab.users()[0];
    let script = format!("{SEE}; srun sh -c '{SEE}'");
    let job = lab.sbatch(user, &[QUARTER, OPTION, "--wrap", &script])?;
    assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    expect(&lab.output(job)?, 2, "0 ");

    let srun = |value: &str, args: &[&str]| {
        let mut command = lab.command("srun").user(user).env("GPUFRAC_VISIBLE", value);
        command = command.args([QUARTER]).args(args);
        command.args(["sh", "-c", SEE]).run()
    };
    expect(&srun("index", &[])?.success()?.stdout, 1, "0 ");
    let by_option = srun("index", &["--gpufrac-visible=uuid"])?.success()?;
    expect(&by_option.stdout, 1, "MIG-");
    let ignored = srun("$(id)", &[])?.success()?;
    expect(&ignored.stdout, 1, "MIG-");
    let told = "GPUFRAC_VISIBLE is ignored: \"$(id)\" does not name devices; write index or uuid";
    assert!(ignored.stderr.contains(told), "{ignored:?}");
    let refused = lab.try_sbatch(user, &[QUARTER, "--gpufrac-visible=numbers", "--wrap=true"])?;
    assert!(
        !refused.status.success() && refused.stderr.contains("write index or uuid"),
        "{refused:?}"
    );

    if since(23, 11)? {
        let tasks = ["-n2", "--tres-per-task=gres/gpufrac:0.25", OPTION, "sh"];
        let several = lab.command("srun").user(user).args(tasks);
        let several = several.args(["-c", SEE]).run()?.success()?;
        expect(&several.stdout, 2, "MIG-");
        let reason = "CUDA_VISIBLE_DEVICES has UUIDs: the job has further slices";
        assert!(several.stderr.contains(reason), "{several:?}");
    }
    lab.expect_nothing_left()
}
