//! End-to-end tests on real Slurm. All are in one program, so that a test that waits (for a time limit of a minute)
//! does so beside the others.

mod accounting;
mod attack;
mod bare;
mod books;
mod burst;
mod burst_option;
mod calls;
mod check_host;
mod check_slurm;
mod clock;
mod containers;
mod cores;
mod counted;
mod demo;
mod exclusive_and_partitions;
mod export;
mod fence;
mod frameworks;
mod gres_texts;
mod hidden;
mod idle_option;
mod interactive;
mod job_types;
mod killed_program;
mod login_shell;
mod memory;
mod mig_mps;
mod mistakes;
mod mixed;
mod mpi;
mod mps;
mod neighbours;
mod nodes_come_and_go;
mod panics;
mod per_task;
mod plain;
mod plugin_builds;
mod preemption;
mod proposals;
mod reaper;
mod release;
mod requests;
mod requeue_and_cancel;
mod restarts;
mod runtimes;
mod settings;
mod several_gpus;
mod share;
mod shared_devices;
mod site_scripts;
mod site_setups;
mod sites;
mod soak;
mod soak_tenants;
mod status;
mod stuck;
mod submission;
mod timeslice_and_hami;
mod uniform;
mod upgrade;
mod visible;
mod without_slice;

use std::time::Duration;

use gpufrac_lab::{CgroupVersion, JobId, Lab, LabError, Slurm};

/// The reaper measures, and ends no job.
const MEASURES_ONLY: &str = "\
[reaper]
mode = \"dry-run\"
interval = \"1s\"
metrics = \"off\"
never_used = \"1h\"
idle = \"1h\"
finished = \"off\"
over_share = \"off\"
";

/// For a job's script: waits until the test calls [`go`].
const HOLD: &str = "while [ ! -e go ]; do sleep 0.05; done";

/// Whether the Slurm of the tests is of this series or a later one. Read from its headers, without a lab.
fn since(year: u32, month: u32) -> Result<bool, LabError> {
    Ok(Slurm::of_environment()?.since(year, month))
}

/// Ends a test that needs this series of Slurm or a later one.
fn needs_slurm(year: u32, month: u32) -> Result<(), LabError> {
    if !since(year, month)? {
        test_seed::not_run(format!("Slurm is older than {year:02}.{month:02}"));
    }
    Ok(())
}

/// Ends a test that needs control groups of this version.
fn needs_groups(version: CgroupVersion) {
    if !version.is_mounted() {
        test_seed::not_run(format!("the machine has no control groups {version:?}"));
    }
}

/// Lets jobs continue that wait with [`HOLD`].
fn go(lab: &Lab) -> Result<(), LabError> {
    lab.write_work("go", "").map(drop)
}

/// Waits until a prolog has requeued a job.
fn wait_until_put_back(lab: &Lab, job: JobId) -> Result<(), LabError> {
    lab.wait(
        "the job is back in the queue",
        Duration::from_secs(60),
        || {
            let seen = lab.job(job)?;
            let back = seen.state() == "PENDING" && seen.field("Restarts") != "0";
            Ok(back.then_some(()))
        },
    )
}
