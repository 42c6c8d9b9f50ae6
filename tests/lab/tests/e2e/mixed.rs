//! A node with GPUs of several kinds, each shared by another mechanism, and one GPU without a pool.

use std::collections::BTreeSet;
use std::time::Duration;

use gpufrac_lab::{ComputeMode, JobId, Lab, LabError};
use nix::sys::signal::Signal;

use crate::shared_devices::{
    SEE, control, daemons, finish, ready, run, start_with_control, submit,
};

const POOLS: &str = r#"
[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["mig", "both"]
nodes = "@NODES@"
gpus = [0]

[pool.shared]
mechanism = "mps"
tenancy = "shared"
gpu = "L40S-48"
partitions = ["mps", "both"]
nodes = "@NODES@"
gpus = [1]
"#;

fn lab() -> Result<Lab, LabError> {
    let builder = Lab::builder()
        .gpu_list(&["H100-80:mig", "L40S-48", "T4-16"])
        .plain_gpu("t4", 2)
        .partition("mig", "")
        .partition("mps", "")
        .partition("both", "")
        .pools(POOLS);
    start_with_control(builder, &control())
}

#[test]
fn each_partition_of_a_mixed_node_gives_its_own_kind() -> Result<(), LabError> {
    let lab = lab()?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);
    let l40s = lab.gpu_uuids(node)?.remove(1);

    let (mig, of_mig) = run(&lab, &users[0], &["-p", "mig", "--gres=gpufrac:0.25"])?;
    let (mps, of_mps) = run(&lab, &users[1], &["-p", "mps", "--gres=gpufrac:0.25"])?;
    let slice = lab.slice(node, mig)?;
    assert_eq!(of_mig.get("CUDA_VISIBLE_DEVICES"), slice.instance.uuids[0]);
    assert_eq!(of_mig.get("GPUFRAC_MECHANISM"), "mig");
    assert_eq!(of_mig.starting("CUDA_MPS_"), Vec::<String>::new());
    assert_eq!(of_mps.get("CUDA_VISIBLE_DEVICES"), l40s);
    assert_eq!(of_mps.get("GPUFRAC_MECHANISM"), "mps");
    // Each job has its own device, and neither has the GPU without a pool.
    let made = slice.lease.slice.instance().expect("an active lease");
    let cap = |minor| format!("nvidia-cap{minor}");
    let own = BTreeSet::from([
        "nvidia0".into(),
        cap(made.gi_cap_minor),
        cap(made.ci_cap_minor),
    ]);
    assert_eq!(of_mig.devices.iter().cloned().collect::<BTreeSet<_>>(), own);
    assert_eq!(of_mps.devices, ["nvidia1"]);
    use ComputeMode::{Default, ExclusiveProcess};
    assert_eq!(
        lab.compute_modes(node)?,
        [Default, ExclusiveProcess, Default]
    );

    // If both kinds are possible, the size is the larger one, and the user is told.
    let wrap = format!("--wrap={SEE}");
    let submit_to =
        |partitions| lab.try_sbatch(&users[2], &["-p", partitions, "--gres=gpufrac:0.3", &wrap]);
    let outcome = submit_to("both")?.success()?;
    assert!(
        outcome.stderr.contains("rounded up from 0.3 to 0.5")
            && outcome.stderr.contains("(halves, shared)"),
        "{outcome:?}"
    );
    let either = JobId(outcome.stdout.trim().parse().expect("a job's number"));
    assert_eq!(ready(&lab, either)?.get("GPUFRAC_FRACTION"), "0.5");
    finish(&lab, either)?;
    // The same holds for a job that names both partitions.
    let outcome = submit_to("mig,mps")?.success()?;
    assert!(
        outcome.stderr.contains("rounded up from 0.3 to 0.5")
            && outcome
                .stderr
                .contains("partitions mig, mps have (halves, shared)"),
        "{outcome:?}"
    );
    let either = JobId(outcome.stdout.trim().parse().expect("a job's number"));
    assert_eq!(ready(&lab, either)?.get("GPUFRAC_FRACTION"), "0.5");
    finish(&lab, either)?;
    finish(&lab, mps)?;

    // One partition with both: the mechanism selects the kind.
    let (named, seen) = run(&lab, &users[2], &["-p", "both", "--gres=gpufrac:mps:0.3"])?;
    assert_eq!(seen.get("CUDA_VISIBLE_DEVICES"), l40s);
    assert_eq!(seen.get("GPUFRAC_FRACTION"), "0.3");
    let shown = lab.job(named)?;
    assert!(
        shown.field("TresPerNode").contains("shard:mps:30"),
        "{shown:?}"
    );
    let (other, seen) = run(&lab, &users[1], &["-p", "both", "--gres=gpufrac:mig:0.3"])?;
    assert_eq!(seen.get("GPUFRAC_MECHANISM"), "mig");
    // The shares of one kind are used up; those of the other kind are not given.
    let full = submit(&lab, &users[1], &["-p", "mps", "--gres=gpufrac:0.8"])?;
    finish(&lab, named)?;
    assert_eq!(ready(&lab, full)?.get("CUDA_VISIBLE_DEVICES"), l40s);
    for job in [full, other, mig] {
        finish(&lab, job)?;
    }
    // A user's own MPS daemon in an instance or on a whole GPU serves the steps of the job, too.
    let own = "--wrap=export CUDA_MPS_PIPE_DIRECTORY=/own; srun env | grep CUDA_MPS_";
    for (partition, size) in [("mig", "--gres=gpufrac:0.25"), ("mps", "--gres=gpufrac:1")] {
        let job = lab.sbatch(&users[1], &["-p", partition, size, own])?;
        lab.wait_for_end(job)?;
        assert_eq!(lab.output(job)?, "CUDA_MPS_PIPE_DIRECTORY=/own\n");
    }
    lab.expect_nothing_left()
}

/// Promise (users): a pending job can be moved to a partition with another mechanism.
/// With `a_job_that_was_moved_to_a_pool_of_another_mechanism_has_what_slurm_gave_it`.
#[test]
fn a_pending_job_is_moved_to_a_pool_of_another_mechanism() -> Result<(), LabError> {
    let lab = lab()?;
    let wrap = format!("--wrap={SEE}");
    let quarter = ["--hold", "-p", "mig", "--gres=gpufrac:0.25", &wrap];
    let job = lab.sbatch(&lab.users()[0], &quarter)?;
    let id = job.to_string();
    lab.update(&[&format!("JobId={id}"), "Partition=mps", "Gres=gpufrac:0.3"])?;
    lab.command("scontrol").args(["release", &id]).stdout()?;
    if !lab.slurm().since(23, 2) {
        // Slurm still counts the shares of the old Type as well: more than the request.
        crate::wait_until_put_back(&lab, job)?;
        lab.command("scancel").args([&id]).stdout()?;
        return lab.expect_nothing_left();
    }
    let seen = ready(&lab, job)?;
    assert_eq!(seen.get("GPUFRAC_MECHANISM"), "mps");
    assert_eq!(seen.get("GPUFRAC_FRACTION"), "0.3");
    finish(&lab, job)?;
    lab.expect_nothing_left()
}

/// Promise (users): Slurm allocates a GPU of no pool as without gpufrac.
#[test]
fn a_gpu_of_no_pool_is_lent_by_slurm_itself() -> Result<(), LabError> {
    let lab = lab()?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);
    let (share, _) = run(&lab, &users[1], &["-p", "mps", "--gres=gpufrac:0.5"])?;
    let inherited = "--export=ALL,CUDA_MPS_PIPE_DIRECTORY=/own";
    for (partition, request) in [
        ("mps", "--gres=gpu:t4:1"),
        ("mig", "--gpus=t4:1"),
        ("both", "--gpus-per-node=t4:1"),
        ("gpu", "--gres=gpu:t4"),
    ] {
        let (job, seen) = run(&lab, &users[0], &["-p", partition, request, inherited])?;
        assert_eq!(seen.devices, ["nvidia2"], "{request}");
        assert_eq!(seen.get("CUDA_VISIBLE_DEVICES"), "0", "{request}");
        assert_eq!(seen.starting("GPUFRAC_"), Vec::<String>::new());
        assert_eq!(seen.get("CUDA_MPS_PIPE_DIRECTORY"), "/own");
        assert!(lab.lease(node, job)?.is_none());
        finish(&lab, job)?;
    }
    for request in [
        "--gres=gpu:1",
        "--gres=gpu:mps:1",
        "--gres=gpu:half:1",
        "--gpus=1",
    ] {
        let refused = lab.try_sbatch(&users[0], &["-p", "mps", request, "--wrap=true"])?;
        assert!(!refused.status.success(), "{refused:?}");
        assert!(refused.stderr.contains("gpufrac: "), "{refused:?}");
    }
    finish(&lab, share)?;
    // Slurm gives every GPU to a job with the whole node.
    let (alone, seen) = run(
        &lab,
        &users[0],
        &["-p", "mps", "--exclusive", "--gres=gpu:t4:1"],
    )?;
    assert_eq!(seen.devices, ["nvidia2"]);
    finish(&lab, alone)?;
    lab.expect_nothing_left()
}

/// Promise (users): a job that is submitted from inside another job does not use the other job's MPS daemon.
#[test]
fn jobs_from_inside_a_fraction_do_not_keep_its_daemon() -> Result<(), LabError> {
    let lab = lab()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let see = format!("'{}'", SEE);
    let script = format!(
        "#!/bin/bash\nenv | grep ^CUDA_MPS_ > outer\n\
         sbatch --parsable -p mig --gres=gpufrac:0.25 --wrap={see}\n\
         sbatch --parsable -p gpu --wrap={see}\n\
         CUDA_MPS_PIPE_DIRECTORY=/own sbatch --parsable -p mps --gres=gpufrac:0.2 --wrap={see}\n\
         sleep 0.2\n"
    );
    lab.write_work("outer.sh", &script)?;
    let outer = lab.sbatch(user, &["-p", "mps", "--gres=gpufrac:0.3", "outer.sh"])?;
    assert_eq!(lab.wait_for_end(outer)?.state(), "COMPLETED");
    let inherited = std::fs::read_to_string(lab.folder().work().join("outer"));
    assert!(
        inherited
            .expect("what the outer job saw")
            .contains("CUDA_MPS_PIPE_DIRECTORY=")
    );
    let output = lab.output(outer)?;
    let inner: Vec<_> = output
        .lines()
        .filter_map(|line| line.parse().ok().map(JobId))
        .collect();
    let [mig, none, mps] = inner[..] else {
        panic!("{output}")
    };
    let seen = ready(&lab, mig)?;
    assert_eq!(seen.get("GPUFRAC_MECHANISM"), "mig");
    assert_eq!(seen.starting("CUDA_MPS_"), Vec::<String>::new());
    let seen = ready(&lab, none)?;
    for prefix in ["CUDA_MPS_", "GPUFRAC_", "NVIDIA_VISIBLE"] {
        assert_eq!(seen.starting(prefix), Vec::<String>::new());
    }
    let seen = ready(&lab, mps)?;
    assert_eq!(seen.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "20");
    assert_eq!(
        seen.get("CUDA_MPS_PIPE_DIRECTORY"),
        daemons(&lab, node)[0].pipe.display().to_string()
    );
    // A job without a share may use its own MPS daemon.
    let own = "--export=ALL,CUDA_MPS_PIPE_DIRECTORY=/own,CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=7";
    let (free, seen) = run(&lab, user, &["-p", "gpu", own])?;
    assert_eq!(
        seen.starting("CUDA_MPS_"),
        [
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=7",
            "CUDA_MPS_PIPE_DIRECTORY=/own"
        ]
    );
    for job in [mig, none, mps, free] {
        finish(&lab, job)?;
    }
    lab.expect_nothing_left()
}

#[test]
fn steps_of_jobs_whose_shares_have_a_type() -> Result<(), LabError> {
    let lab = lab()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let l40s = lab.gpu_uuids(node)?.remove(1);
    let note = "'echo $CUDA_VISIBLE_DEVICES $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE'";
    // Up to 23.02 the memory of an ending step still counts.
    let step = "srun --mem=50";
    let plain = format!("{step} sh -c {note}; {step} --overlap --gres=none sh -c {note}");
    let less = format!("{step} --gres=gpufrac:0.1 sh -c {note}");
    let submit = |partition, gres, script: &str| {
        lab.sbatch(user, &["-p", partition, gres, &format!("--wrap={script}")])
    };
    let mps = submit("mps", "--gres=gpufrac:0.3", &format!("{plain}; {less}"))?;
    let whole = submit("mps", "--gres=gpufrac:1", &plain)?;
    // Shares of any Type.
    let either = submit("both", "--gres=gpufrac:0.5", &format!("{plain}; {less}"))?;
    let output = |job| -> Result<String, LabError> {
        lab.wait_for_end(job)?;
        lab.output(job)
    };
    // Every step of the job gets what its daemon was told.
    assert_eq!(output(mps)?, format!("{l40s} 30\n\n{l40s} 30\n"));
    assert_eq!(output(whole)?, format!("{l40s}\n\n"));
    let output = output(either)?;
    let lines: Vec<_> = output.lines().collect();
    assert!(lines.len() == 3 && lines[0].contains('-'), "{output}");
    assert_eq!((lines[1], lines[2]), ("", lines[0]), "{output}");
    lab.expect_nothing_left()
}

#[test]
fn a_controller_that_starts_again_knows_the_shares_of_each_type() -> Result<(), LabError> {
    let mut lab = lab()?;
    let users = lab.users().to_vec();
    let (mps, _) = run(&lab, &users[0], &["-p", "mps", "--gres=gpufrac:0.6"])?;
    let (either, _) = run(&lab, &users[1], &["-p", "both", "--gres=gpufrac:0.5"])?;
    let full = submit(&lab, &users[2], &["-p", "mps", "--gres=gpufrac:0.5"])?;
    lab.stop_daemon("slurmctld", Signal::SIGTERM)?;
    lab.start_slurmctld()?;
    // 0.6 of the L40S and a half of the H100 are in use; 0.4 and the other half are free. Slurm refuses every share
    // until the node has registered again.
    let small = lab.wait("shares are given again", Duration::from_secs(40), || {
        Ok(submit(&lab, &users[2], &["-p", "mps", "--gres=gpufrac:0.4"]).ok())
    })?;
    ready(&lab, small)?;
    let (half, _) = run(&lab, &users[2], &["-p", "mig", "--gres=gpufrac:0.5"])?;
    assert_eq!(lab.job(full)?.state(), "PENDING");
    finish(&lab, mps)?;
    ready(&lab, full)?;
    for job in [full, small, half, either] {
        finish(&lab, job)?;
    }
    lab.expect_nothing_left()
}
