//! Attacks by requests with two readings.

use gpufrac_lab::{Lab, LabError};

use super::Attack;
use crate::HOLD;

/// Texts that could give more than Slurm counts; `@` stands for the mark of the series.
const TEXTS: [&str; 15] = [
    "@gpufrac:50,@shard:50,x@shard:1,x@gpufrac:1",
    "@gpufrac:50,@shard:50,@shard:1,@gpufrac:1",
    "@gpufrac:50,@shard:50,@shard:1",
    "@gpu:whole:1,@gpufrac:100,x@gpu:whole:1,x@shard:1",
    "x@shard:1,zgpufrac:1",
    "@shard:1,@gpufrac:50,@gpufrac:1",
    "@gpufrac:50,@shard:50,cpu@shard:1",
    "@gpufrac:50,@shard:50,license/@shard:1,license/@gpufrac:1",
    "@gpufrac:50,@shard:50,,@shard:1,@gpufrac:1",
    "@gpufrac:0x32,@shard:50",
    "@gpufrac:+50,@shard:+50,@shard:1",
    "@shard:1",
    // Slurm compares Types by a number, and this Type has that of `half`.
    "@gpufrac:25,@shard:x063x063x:25",
    // One of the items ends Slurm's list.
    "@gpufrac:50,@shard:50,@5,@shard:1",
    "@shard:3,@5,@gpufrac:50",
];

#[test]
fn texts_that_slurm_reads_otherwise() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let mut attack = Attack::begin(&lab, "requests that Slurm reads otherwise")?;
    let user = &lab.users()[0];
    let mark = if lab.slurm().since(23, 11) { "gres/" } else { "gres:" };
    let script = format!("--wrap={HOLD}");
    for text in TEXTS {
        let text = text.replace('@', mark);
        for first in [&["--gres=gpufrac:0.5"][..], &[]] {
            let args = [first, &["--hold", "--partition=gpu", &script]].concat();
            let job = lab.sbatch(user, &args)?;
            let id = format!("JobId={job}");
            let change = format!("TresPerNode={text}");
            let changed = lab.try_update(user, &[&id, "Partition=gpu", &change])?;
            let plain = lab.try_update(user, &[&id, &change])?;
            if changed.status.success() || plain.status.success() {
                lab.command("scontrol")
                    .user(user)
                    .args(["release", &job.to_string()])
                    .stdout()?;
                lab.wait_for_state(job, &["RUNNING", "PENDING", "COMPLETED", "FAILED"])?;
                attack.compare(job)?;
            }
            lab.command("scancel").args([job.to_string()]).stdout()?;
            lab.wait_for_end(job)?;
        }
    }
    attack.end()
}

/// Promise (users): an update that would remove counts which Slurm still charges is refused.
/// With `an_update_cannot_take_all_counts_away`.
// 22.05 divides by zero if the counts of shares are removed, again at each start from its saved state.
#[test]
fn counts_that_are_taken_away() -> Result<(), LabError> {
    let lab = Lab::builder().start()?;
    let mut attack = Attack::begin(&lab, "counts taken away by scontrol")?;
    let user = &lab.users()[0];
    let script = format!("--wrap={HOLD}");
    for text in [
        "",
        ",",
        "none",
        "gres:shard:0",
        "gres/shard:0",
        "gres:gpu:0",
    ] {
        let job = lab.sbatch(user, &["--hold", "--gres=gpufrac:0.5", &script])?;
        let id = format!("JobId={job}");
        let changed = lab.try_update(user, &[&id, &format!("TresPerNode={text}")])?;
        if !lab.slurm().since(26, 5) {
            assert!(!changed.status.success(), "{text:?}: {changed:?}");
        }
        lab.command("scontrol")
            .user(user)
            .args(["release", &job.to_string()])
            .stdout()?;
        lab.wait_for_state(job, &["RUNNING", "COMPLETED", "FAILED"])?;
        attack.compare(job)?;
        lab.command("scancel").args([job.to_string()]).stdout()?;
        lab.wait_for_end(job)?;
    }
    attack.end()
}
