//! A request that names a mechanism must not get a slice by another one, which isolates less.

use std::time::Duration;

use gpufrac_core::mechanism::Mechanism;
use gpufrac_lab::{JobId, Lab, LabError};

use super::Attack;
use crate::HOLD;

/// Instances of one job each, and instances that jobs share, on one node.
const POOLS: &str = r#"
[pool.own]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["gpu", "both"]
nodes = "@NODES@"
gpus = [0]

[pool.shared]
mechanism = "mig+mps"
gpu = "H100-80"
partitions = ["shared", "both"]
nodes = "@NODES@"
gpus = [1]
"#;

/// Promise (users): a mechanism that a request names is kept, also where a reservation chooses the partition, or the
/// request is refused.
/// With `a_mechanism_is_kept_where_a_reservation_chooses_the_partition`.
#[test]
fn a_mechanism_that_is_lost_on_the_way() -> Result<(), LabError> {
    let lab = Lab::builder()
        .gpus("H100-80", 2)
        .partition("shared", "")
        .partition("both", "")
        .pools(POOLS)
        .mps_standin()
        .start()?;
    let mut attack = Attack::begin(&lab, "a mechanism that is lost on the way")?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let reservation = format!(
        "create reservation reservationname=own starttime=now duration=60 nodes={node} users={} \
         partitionname=shared flags=ignore_jobs,overlap",
        user.name
    );
    let words = reservation.split_whitespace();
    lab.command("scontrol").args(words).stdout()?;
    let script = format!("--wrap={HOLD}");
    for place in [
        &["--reservation=own"][..],
        &["--reservation=own", "--partition=gpu"],
        &["--partition=shared"],
        &["--partition=gpu,shared"],
        &["--partition=both"],
        &[],
    ] {
        // With the client's plugin, and with the controller's only.
        for config in [None, Some("/nonexistent")] {
            let mut sbatch = lab.command("sbatch").user(user);
            if let Some(path) = config {
                sbatch = sbatch.env("GPUFRAC_CONFIG", path);
            }
            let sent = sbatch
                .current_dir(lab.folder().work())
                .args(["--parsable", "--gres=gpufrac:mig:0.125", &script])
                .args(place)
                .run()?;
            let Ok(job) = sent.stdout.trim().parse::<u32>().map(JobId) else {
                assert!(!sent.status.success(), "{sent:?}");
                continue;
            };
            lab.wait("the job is settled", Duration::from_secs(60), || {
                let seen = lab.job(job)?;
                let reason = seen.field("Reason").to_owned();
                let waits = seen.state() == "PENDING"
                    && !["None", "Priority", "BeginTime"].contains(&reason.as_str());
                Ok((waits || seen.state() == "RUNNING").then_some(()))
            })?;
            if let Some(lease) = lab.lease(node, job)?
                && lease.mechanism() != Mechanism::Mig
            {
                attack.reached(format!("{place:?}: a slice by {}", lease.mechanism()));
            }
            lab.command("scancel").args([job.to_string()]).stdout()?;
            lab.wait_for_end(job)?;
        }
    }
    lab.command("scontrol")
        .args(["delete", "reservation=own"])
        .stdout()?;
    attack.end()
}
