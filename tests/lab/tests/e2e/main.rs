//! End-to-end tests on real Slurm. One program, so that a test that waits (for a time limit of a minute) does
//! so beside the others.

mod corners;
mod fence;
mod idle_option;
mod life;
mod mig_mps;
mod mixed;
mod mps;
mod panics;
mod plain;
mod reaper;
mod shapes;
mod soak;
mod soak_tenants;
mod soft;
mod submission;
mod tenants;

/// For a job's script: waits until the test lets it go on, with [`go`].
const HOLD: &str = "while [ ! -e go ]; do sleep 0.05; done";

/// Lets jobs go on that wait with [`HOLD`].
fn go(lab: &gpufrac_lab::Lab) -> Result<(), gpufrac_lab::LabError> {
    lab.write_work("go", "").map(drop)
}
