//! `--gpufrac-burst` from the command to the control daemon, the job's environment and HAMi-core's file.

use std::fs;
use std::path::Path;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError, Outcome, User};
use nix::sys::signal::Signal;

use crate::go;
use crate::idle_option::{only_lease, run};
use crate::shared_devices::{
    control, finish, limits, pipe, ready, release, run as see, start_with_control, submit,
};
use crate::submission::{build_submitter, job_of, submit_by_api};
use crate::timeslice_and_hami::{build, folder};

/// One L40S, whose idle compute is lent, and one whose is not.
const POOLS: &str = r#"
[pool.lends]
mechanism = "mps"
tenancy = "shared"
burst_max = 0.75
gpu = "L40S-48"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [0]
"#;

const SHARE: &str = "--gres=gpufrac:0.3";
const BURST: &str = "--gpufrac-burst=0.75";
/// 30 % of an L40S.
const MEMORY_MIB: u64 = 46_068 * 30 / 100;

fn lab(control: &Path) -> Result<Lab, LabError> {
    let builder = Lab::builder().gpu_list(&["L40S-48"]).partition("cpu", "");
    start_with_control(builder.pools(POOLS), control)
}

fn burst_of(lab: &Lab, job: JobId) -> Result<Option<u32>, LabError> {
    let lease = lab.lease(&lab.nodes()[0], job)?.expect("a lease");
    Ok(lease.burst().map(|units| units.0))
}

#[test]
fn a_burst_raises_the_ceiling_and_is_counted_nowhere() -> Result<(), LabError> {
    let control = control();
    let lab = lab(&control)?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);
    let pipe = pipe(&lab, node, "gpu0");
    let (bursts, seen) = see(&lab, &users[0], &[SHARE, BURST])?;
    for (name, value) in [
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "75".to_owned()),
        (
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            format!("0={MEMORY_MIB}M"),
        ),
        ("GPUFRAC_BURST", "0.75".to_owned()),
        ("GPUFRAC_FRACTION", "0.3".to_owned()),
        ("GPUFRAC_MEMORY_MIB", MEMORY_MIB.to_string()),
    ] {
        assert_eq!(seen.get(name), value, "{name}");
    }
    let shown = lab.job(bursts)?;
    assert!(shown.field("TresPerNode").contains("shard:30"), "{shown:?}");
    // A client that unsets its limit has the ceiling, and the memory of the share.
    assert_eq!(limits(&lab, &pipe)?, ("75.0".into(), "13G".into()));

    let (plain, seen) = see(&lab, &users[1], &["--gres=gpufrac:0.5"])?;
    assert_eq!(seen.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "50");
    assert_eq!(seen.get("GPUFRAC_BURST"), "");
    assert_eq!(limits(&lab, &pipe)?, ("75.0".into(), "22G".into()));
    // The shares are full, however much more the first job may use.
    let waits = submit(&lab, &users[2], &["--gres=gpufrac:0.25", BURST])?;
    lab.wait_for_state(waits, &["PENDING"])?;
    finish(&lab, bursts)?;
    ready(&lab, waits)?;
    assert_eq!(burst_of(&lab, waits)?, Some(75));
    finish(&lab, waits)?;
    lab.wait(
        "the ceiling goes with its job",
        Duration::from_secs(20),
        || Ok((limits(&lab, &pipe)?.0 == "50.0").then_some(())),
    )?;
    finish(&lab, plain)?;
    lab.expect_nothing_left()
}

/// Promise (users): --gpufrac-burst of sbatch, salloc and srun reaches the node, and a user cannot forge it.
/// With `a_burst_in_the_environment_of_a_prolog_counts_for_nothing`.
#[test]
fn the_burst_reaches_the_lease_by_every_way_and_cannot_be_forged() -> Result<(), LabError> {
    let control = control();
    let lab = lab(&control)?;
    let user = &lab.users()[0];
    let tenth = "--gres=gpufrac:0.1";
    let script =
        format!("#!/bin/sh\n#SBATCH {tenth} {BURST}\nwhile [ ! -e go ]; do sleep 0.05; done\n");
    lab.write_work("burst.sh", &script)?;
    let hold = format!("--wrap={}", crate::HOLD);
    let program = build_submitter(&lab)?;
    let api = |variable: &str| submit_by_api(&lab, &program, user, &["gres:gpufrac:0.1", variable]);
    let option = "_SLURM_SPANK_OPTION_gpufrac_gpufrac_burst";
    let forged = "SLURM_SPANK__SLURM_SPANK_OPTION_gpufrac_gpufrac_burst=1";
    let exported = format!(
        "--export=ALL,SPANK_GPUFRAC=v1:units=10:mech=mps:burst=100,GPUFRAC_BURST=1,CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100,{forged}"
    );
    let jobs = [
        (lab.sbatch(user, &["burst.sh"])?, Some(75)),
        (lab.sbatch(user, &[tenth, &hold])?, None),
        // Variables of the job, and words in the place of job_submit's.
        (lab.sbatch(user, &[tenth, &exported, &hold])?, None),
        (
            job_of(api("SPANK_GPUFRAC=v1:units=10:mech=mps:burst=100")?)?,
            None,
        ),
        (job_of(api("GPUFRAC=v1:units=10:mech=mps:burst=75")?)?, None),
        (job_of(api(&format!("{option}=0.5"))?)?, Some(50)),
    ];
    for (job, burst) in jobs {
        lab.wait_for_state(job, &["RUNNING"])?;
        assert_eq!(burst_of(&lab, job)?, burst, "job {job}");
    }
    // What a client without the plugin sends is judged as well.
    for value in ["1", "0.05", "75", "x"] {
        for prefix in ["", "SPANK_"] {
            let refused = api(&format!("{prefix}{option}={value}"))?;
            assert!(!refused.status.success(), "{value}: {refused:?}");
        }
    }
    go(&lab)?;
    for (job, _) in jobs {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    lab.wait_until_empty(Duration::from_secs(20))?;
    for program in ["srun", "salloc"] {
        let wait = format!("while [ ! -e {program}.go ]; do sleep 0.05; done");
        let args = [tenth, BURST, "sh", "-c", &wait];
        let running = lab.command(program).user(user).args(args).spawn()?;
        let burst = only_lease(&lab)?.burst().map(|units| units.0);
        assert_eq!(burst, Some(75), "{program}");
        lab.write_work(&format!("{program}.go"), "")?;
        running.wait()?.success()?;
        lab.wait_until_empty(Duration::from_secs(20))?;
    }
    lab.expect_nothing_left()
}

fn refused(lab: &Lab, user: &User, program: &str, args: &[&str]) -> Result<String, LabError> {
    let Outcome { status, stderr, .. } = run(lab, user, program, args)?;
    assert!(!status.success(), "{program} {args:?}: {stderr}");
    Ok(stderr)
}

#[test]
fn a_burst_that_the_pool_does_not_lend_is_refused_with_the_limit() -> Result<(), LabError> {
    let control = control();
    let lab = lab(&control)?;
    let user = &lab.users()[0];
    for (program, last) in [
        ("sbatch", "--wrap=true"),
        ("srun", "true"),
        ("salloc", "true"),
    ] {
        let help = run(&lab, user, program, &["--help"])?.success()?.stdout;
        assert!(
            help.contains("--gpufrac-burst=fraction"),
            "{program}: {help}"
        );
        for (value, told) in [
            (
                "0.8",
                "is more than pool lends lends, at most 0.75; write --gpufrac-burst=F with F from 0.3 to 0.75",
            ),
            ("0.2", "is less than the job's share of 0.3"),
            ("75", "is not a part of a GPU"),
            ("", "is not a part of a GPU"),
        ] {
            let option = format!("--gpufrac-burst={value}");
            let said = refused(&lab, user, program, &[SHARE, &option, last])?;
            assert!(said.contains(told), "{program}: {said}");
        }
        let args = ["-p", "cpu", BURST, last];
        let said = run(&lab, user, program, &args)?.success()?.stderr;
        assert!(
            said.contains("--gpufrac-burst has no effect here"),
            "{said}"
        );
    }
    lab.expect_nothing_left()
}

#[test]
fn a_lowered_ceiling_holds_for_jobs_that_wait() -> Result<(), LabError> {
    let control = control();
    let lab = lab(&control)?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let waits = submit(&lab, user, &["--hold", SHARE, BURST])?;
    // An update keeps what was asked for.
    lab.update(&[&format!("JobId={waits}"), "Gres=gpufrac:0.2"])?;
    let file = lab.folder().gpufrac_conf();
    let text = fs::read_to_string(&file).expect("gpufrac.toml");
    let lowered = text.replace("burst_max = 0.75", "burst_max = 0.4");
    assert_ne!(text, lowered);
    fs::write(&file, lowered).expect("gpufrac.toml");
    // slurmctld of 22.05 tells its start from a reconfigure by whole seconds.
    std::thread::sleep(Duration::from_millis(1100));
    lab.reconfigure()?;
    lab.command("scontrol")
        .args(["release", &waits.to_string()])
        .stdout()?;
    let seen = ready(&lab, waits)?;
    assert_eq!(seen.get("GPUFRAC_BURST"), "0.4");
    assert_eq!(seen.get("GPUFRAC_FRACTION"), "0.2");
    assert_eq!(seen.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "40");
    assert_eq!(limits(&lab, &pipe(&lab, node, "gpu0"))?.0, "40.0");
    // slurmctld reads the file again within a few seconds of the reconfigure.
    let limit = Duration::from_secs(30);
    let said = lab.wait("slurmctld refuses the old burst", limit, || {
        let outcome = run(&lab, user, "sbatch", &[SHARE, BURST, "--wrap=true"])?;
        Ok((!outcome.status.success()).then_some(outcome.stderr))
    })?;
    assert!(said.contains("at most 0.4"), "{said}");
    release(&lab, waits)?;
    assert_eq!(lab.wait_for_end(waits)?.state(), "COMPLETED");
    lab.wait_until_empty(limit)?;
    lab.expect_nothing_left()
}

/// The owner of half a GPU and a borrower with a quarter, as their programs see their limits.
#[test]
fn clients_of_an_owner_and_of_a_borrower() -> Result<(), LabError> {
    let builder = Lab::builder().gpu_list(&["L40S-48"]).mps_standin();
    let lab = builder.pools(POOLS).start()?;
    let users = lab.users();
    let gpus = lab.folder().root().join("gpus");
    // Each `.N` that appears has a program print its multiprocessors, of 142.
    let script = |name: &str, steps: &[&str]| {
        let run = format!(
            "gpusim --root {}/$SLURMD_NODENAME run --memory 100M --seconds 0 | sed 's/.* sms=\\([0-9]*\\) .*/\\1/'",
            gpus.display()
        );
        let steps = steps.iter().enumerate().map(|(number, before)| {
            format!("while [ ! -e {name}.{number} ]; do sleep 0.05; done; {before} {run}; touch {name}.{number}.done\n")
        });
        steps.collect::<String>()
    };
    let unset = "env -u CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    let more = "env CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100";
    let owner = script("owner", &["", unset, "", unset, more, unset]);
    let borrower = script("borrower", &["", unset]);
    let step = |name: &str, number: u32| {
        lab.write_work(&format!("{name}.{number}"), "")?;
        let done = lab.folder().work().join(format!("{name}.{number}.done"));
        lab.wait("the program ends", Duration::from_secs(60), || {
            Ok(done.exists().then_some(()))
        })
    };
    let owner = lab.sbatch(&users[0], &["--gres=gpufrac:0.5", "--wrap", &owner])?;
    step("owner", 0)?;
    step("owner", 1)?;
    let args = ["--gres=gpufrac:0.25", BURST, "--wrap", &borrower];
    let borrower = lab.sbatch(&users[1], &args)?;
    step("borrower", 0)?;
    // A program that unsets its limit, or sets a higher one, has the ceiling of the borrower: nobody has more.
    for number in 2..=4 {
        step("owner", number)?;
    }
    step("borrower", 1)?;
    assert_eq!(lab.wait_for_end(borrower)?.state(), "COMPLETED");
    lab.wait(
        "the lease of the borrower goes",
        Duration::from_secs(30),
        || Ok((lab.leases(&lab.nodes()[0])?.len() == 1).then_some(())),
    )?;
    step("owner", 5)?;
    assert_eq!(lab.wait_for_end(owner)?.state(), "COMPLETED");
    assert_eq!(lab.output(borrower)?, "106\n106\n");
    assert_eq!(lab.output(owner)?, "71\n71\n71\n106\n106\n71\n");
    lab.expect_nothing_left()
}

/// HAMi-core's file as the library begins it: magic number, version 1.2, and the switch behind 1024 slots of processes.
const REGION: &str = "perl -e 'print pack(\"l L L\", 19920718, 1, 2), \"\\0\" x 2008888, pack(\"l\", 1), \"\\0\" x 49' \
    > $CUDA_DEVICE_MEMORY_SHARED_CACHE";
const SWITCH_AT: u64 = 1856 + 1024 * 1960 + 4;

#[test]
fn hami_core_limits_a_borrower_only_while_its_neighbour_computes() -> Result<(), LabError> {
    let place = folder();
    let library = build(place.path(), "vgpu");
    let pool = format!(
        "[pool.p]\nmechanism = \"hami\"\nlibrary = \"{library}\"\nburst_max = 1\n\
         gpu = \"L40S-48\"\npartitions = [\"gpu\"]\nnodes = \"@NODES@\"\n"
    );
    let reaper = "[reaper]\nmode = \"dry-run\"\ninterval = \"1s\"\nmetrics = \"off\"\n";
    let builder = Lab::builder().gpu_list(&["L40S-48"]).reaper(reaper);
    let mut lab = builder.pools(&pool).start()?;
    let (users, node) = (lab.users().to_vec(), lab.nodes()[0].clone());
    let gpus = lab.folder().root().join("gpus");
    let half = refused(
        &lab,
        &users[0],
        "sbatch",
        &[SHARE, "--gpufrac-burst=0.5", "--wrap=true"],
    )?;
    assert!(half.contains("HAMi-core can only lift its limit"), "{half}");
    // The owner computes from `busy` on until `idle`, and both end with `go`.
    let program = format!("gpusim --root {}/$SLURMD_NODENAME run", gpus.display());
    let owner = format!(
        "{program} --pattern idle --memory 500M & own=$!; while [ ! -e busy ]; do sleep 0.05; done; \
         {program} --pattern busy --memory 500M & pid=$!; while [ ! -e idle ]; do sleep 0.05; done; \
         kill $pid; {}; kill $own",
        crate::HOLD
    );
    let borrower = format!(
        "echo $CUDA_DEVICE_SM_LIMIT $GPUFRAC_BURST; {REGION}; {program} --pattern busy --memory 500M & own=$!; {}; kill $own",
        crate::HOLD
    );
    let owner = lab.sbatch(&users[0], &["--gres=gpufrac:0.5", "--wrap", &owner])?;
    lab.wait_for_state(owner, &["RUNNING"])?;
    let args = [SHARE, "--gpufrac-burst=1", "--wrap", &borrower];
    let borrower = lab.sbatch(&users[1], &args)?;
    lab.wait_for_state(borrower, &["RUNNING"])?;
    let lease = lab.lease(&node, borrower)?.expect("a lease");
    let cache = lease
        .slice
        .hami()
        .expect("a slice of HAMi-core")
        .cache
        .clone();
    // The file system of the file is mounted where the lab's programs run.
    let switch = |lab: &Lab| -> Result<i32, LabError> {
        let (at, length) = (format!("-j{SWITCH_AT}"), "-N4");
        let read = lab
            .command("od")
            .args(["-An", "-td4", &at, length, &cache])
            .run()?;
        // The job's program makes and writes it when it starts.
        Ok(read.stdout.trim().parse().unwrap_or(-1))
    };
    let becomes = |lab: &Lab, wanted: i32, what: &str| {
        lab.wait(what, Duration::from_secs(60), || {
            Ok((switch(lab)? == wanted).then_some(()))
        })
    };
    becomes(&lab, 0, "the limit is lifted while the neighbour is idle")?;
    lab.write_work("busy", "")?;
    becomes(&lab, 1, "the limit holds while the neighbour computes")?;
    lab.write_work("idle", "")?;
    becomes(&lab, 0, "the limit is lifted again")?;
    // The daemon cannot read all leases: nobody knows the neighbours.
    let damaged = lab.lease_path(&node, borrower).with_file_name("999");
    std::fs::write(&damaged, "damaged").expect("root may");
    becomes(&lab, 1, "the limit holds while a lease is damaged")?;
    std::fs::remove_file(&damaged).expect("the file");
    becomes(&lab, 0, "the limit is lifted with all leases")?;
    // The daemon ends: nobody would see the neighbour.
    lab.stop_reaper(&node, Signal::SIGTERM)?;
    assert_eq!(switch(&lab)?, 1);
    go(&lab)?;
    for job in [owner, borrower] {
        assert_eq!(lab.wait_for_end(job)?.state(), "COMPLETED");
    }
    assert!(lab.output(borrower)?.starts_with("30 1\n"));
    lab.expect_nothing_left()
}
