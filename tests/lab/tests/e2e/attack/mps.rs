//! Attacks on MPS control daemons, and on files of root for other jobs, by users' processes, log lines and files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError};

use super::Attack;
use crate::shared_devices::{control, daemons, pipe, start_with_control};

/// The most space for the log of a daemon and the file of a job, in bytes.
const SPACE: u64 = 8 << 20;

/// Starts programs with the name of the job's server, each in a new session, and writes to the daemon's log without
/// end.
const SERVERS: &str = "\
mkdir attack && cp /bin/sleep attack/nvidia-cuda-mps-server && cd attack
for i in $(seq 200); do setsid ./nvidia-cuda-mps-server 60 & done
for i in 1 2; do setsid sh -c 'while :; do ./nvidia-cuda-mps-server 0.01 & sleep 0.01; done' & done
perl -e 'my $line = pack(\"L12\", 0xabcde000, 1, 2026, 1, 1, 0, 0, 0, 0, 0, 2000, 0) . \"x\" x 2000;
    print $line for 1..8000' >$CUDA_MPS_PIPE_DIRECTORY/log
cd .. && touch attacked; while :; do sleep 1; done";

/// Fills the file of HAMi-core, and prints its size before it is removed.
const FILE: &str = "\
head -c 64M /dev/zero >$CUDA_DEVICE_MEMORY_SHARED_CACHE
touch attacked; while :; do sleep 1; done";

fn pool(mechanism: &str, more: &str) -> String {
    format!(
        "[pool.p]\nmechanism = \"{mechanism}\"\n{more}\ngpu = \"L40S-48\"\n\
         partitions = [\"gpu\"]\nnodes = \"@NODES@\"\n"
    )
}

/// Starts the attacker's job, and waits until the attack was carried out.
fn attacked(lab: &Lab, script: &str) -> Result<JobId, LabError> {
    let wrap = format!("--wrap={script}");
    let job = lab.sbatch(&lab.users()[0], &["--gres=gpufrac:0.25", &wrap])?;
    let sign = lab.folder().work().join("attacked");
    lab.wait("the attack", Duration::from_secs(60), || {
        Ok(sign.exists().then_some(()))
    })?;
    Ok(job)
}

/// The length of a file in the lab's namespace.
fn length(lab: &Lab, path: &Path) -> Result<u64, LabError> {
    let text = lab
        .command("stat")
        .args(["-c", "%s"])
        .args([path])
        .stdout()?;
    Ok(text.trim().parse().expect("a length"))
}

/// Ends the attacker's job. Its slice is removed, and a job of a third user gets as much.
fn over(lab: &Lab, job: JobId) -> Result<(), LabError> {
    let node = &lab.nodes()[0];
    lab.command("scancel").args([job.to_string()]).stdout()?;
    lab.wait_for_end(job)?;
    lab.wait("the slice is gone", Duration::from_secs(30), || {
        Ok(lab.lease(node, job)?.is_none().then_some(()))
    })?;
    let next = lab.sbatch(&lab.users()[2], &["--gres=gpufrac:0.75", "--wrap=true"])?;
    assert_eq!(lab.wait_for_end(next)?.state(), "COMPLETED");
    Ok(())
}

#[test]
fn servers_and_logs_of_a_private_daemon() -> Result<(), LabError> {
    let control = control();
    let pool = pool("mps", "tenancy = \"private\"");
    let builder = Lab::builder().gpu_list(&["L40S-48"]).pools(&pool);
    let lab = start_with_control(builder, &control)?;
    let mut attack = Attack::begin(&lab, "fake MPS servers, endless logs")?;
    let node = &lab.nodes()[0];
    let job = attacked(&lab, SERVERS)?;
    let log = pipe(&lab, node, &format!("job{job}")).with_file_name("log/control.log");
    let taken = length(&lab, &log)?;
    assert!(taken > 1 << 20, "the log was not written: {taken}");
    if taken > SPACE {
        attack.reached(format!("{taken} bytes of /run by the log"));
    }
    over(&lab, job)?;
    assert_eq!(daemons(&lab, node).len(), 1, "the other user's");
    attack.end()
}

#[test]
fn a_file_of_hami_core() -> Result<(), LabError> {
    // An empty preload does no harm.
    let place = tempfile::tempdir().expect("a folder");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
    let library = place.path().join("libvgpu.so");
    fs::write(&library, "").expect("a library");
    let more = format!("library = \"{}\"", library.display());
    let pool = pool("hami", &more);
    let lab = Lab::builder().gpu_list(&["L40S-48"]).pools(&pool).start()?;
    let mut attack = Attack::begin(&lab, "/run full by HAMi-core's file")?;
    let job = attacked(&lab, FILE)?;
    let lease = lab.lease(&lab.nodes()[0], job)?.expect("a lease");
    let cache = &lease.slice.hami().expect("a slice of HAMi-core").cache;
    let taken = length(&lab, Path::new(cache))?;
    if taken == 0 || taken > SPACE {
        attack.reached(format!("{taken} bytes of /run by the file"));
    }
    over(&lab, job)?;
    attack.end()
}
