//! End-to-end tests on real Slurm. One program, so that a test that waits (for a time limit of a minute) does
//! so beside the others.

mod accounting;
mod check_slurm;
mod corners;
mod fence;
mod idle_option;
mod life;
mod mig_mps;
mod mixed;
mod mps;
mod nodes_come_and_go;
mod panics;
mod per_task;
mod plain;
mod preemption;
mod reaper;
mod release;
mod settings;
mod shapes;
mod sites;
mod soak;
mod soak_tenants;
mod soft;
mod submission;
mod tenants;
mod variants;
mod ways;

/// For a job's script: waits until the test lets it go on, with [`go`].
const HOLD: &str = "while [ ! -e go ]; do sleep 0.05; done";

/// Lets jobs go on that wait with [`HOLD`].
fn go(lab: &gpufrac_lab::Lab) -> Result<(), gpufrac_lab::LabError> {
    lab.write_work("go", "").map(drop)
}
