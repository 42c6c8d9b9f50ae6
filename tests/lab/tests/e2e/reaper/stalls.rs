//! Each kind of stall is found, by each source that can report it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use gpufrac_lab::{JobId, Lab, LabError};

use super::{expect_reclaimed, expect_spared, expect_unnoticed, lab, submit};

/// The start of a job uses CPU time in an interval.
const CPU: (&str, &str) = ("cpu_busy_above", "5");
const QUARTER: &str = "--gres=gpufrac:0.25";

/// Promise (reaper): each stall is found, by each source.
/// With `instances_of_ampere_without_dcgm`, `instances_of_ampere_by_dcgm`, `stalls.rs::time_slices`, `tenants_of_mps`,
/// `processes_outside_of_mps`.
#[test]
fn instances_of_hopper() -> Result<(), LabError> {
    let changes = [("finished", "\"5s\""), ("idle", "\"7s\"")];
    let lab = lab(&changes, "").start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let run = |script| submit(&lab, user, &[QUARTER], script);
    let unused = run("sleep 1000")?;
    let holds = run("gpu busy 1; gpu idle")?;
    let after = run("while [ ! -e leaked ]; do sleep 0.1; done; gpu busy 2; sleep 1000")?;
    let gone = run("gpu busy 1; sleep 1000")?;
    lab.wait_for_state(after, &["RUNNING"])?;
    let uuid = lab.slice(node, after)?.instance.uuids.remove(0);
    lab.gpusim(node, &["leak", &uuid, "--memory", "2G"])?;
    lab.write_work("leaked", "")?;
    expect_reclaimed(&lab, node, unused, "never-used gpm")?;
    expect_reclaimed(&lab, node, holds, "idle gpm")?;
    expect_reclaimed(&lab, node, after, "finished gpm")?;
    expect_reclaimed(&lab, node, gone, "idle gpm")?;
    lab.expect_nothing_left()
}

#[test]
fn instances_of_ampere_without_dcgm() -> Result<(), LabError> {
    let lab = lab(&[CPU], "").gpus("A100-40", 2).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let run = |script| submit(&lab, user, &[QUARTER], script);
    let unused = run("sleep 1000")?;
    let holds = run("gpu busy 1; gpu idle")?;
    let computes = run("gpu busy & while :; do :; done")?;
    expect_reclaimed(&lab, node, unused, "never-used processes")?;
    expect_reclaimed(&lab, node, holds, "idle processes")?;
    expect_unnoticed(&lab, node, computes, "its CPU is busy")?;
    expect_spared(&lab, node, computes)?;
    lab.expect_nothing_left()
}

const TIMESLICE: &str = r#"
[pool.l40s]
mechanism = "timeslice"
gpu = "L40S-48"
partitions = ["gpu"]
nodes = "@NODE1@"
gpus = [0]

[pool.t4]
mechanism = "timeslice"
gpu = "T4-16"
partitions = ["t4"]
nodes = "@NODE2@"
gpus = [1]
"#;

#[test]
fn time_slices() -> Result<(), LabError> {
    // A second node, because pools of different partitions cannot share one.
    let builder = lab(&[], "").nodes(2).gpu_list(&["L40S-48", "T4-16"]);
    let builder = builder.partition("t4", "Nodes=@NODE2@");
    let lab = builder.pools(TIMESLICE).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    let of_t4 = &lab.nodes()[1];
    let run = |args: &[&str], script| submit(&lab, user, args, script);
    let tenth = "--gres=gpufrac:0.1";
    let unused = run(&[tenth], "sleep 1000")?;
    let holds = run(&[tenth], "gpu busy 1; gpu idle")?;
    // A tenth of 46068 MiB.
    let greedy = run(&[tenth], "gpu busy '' 8G")?;
    // Its processes start and end, and are recognised as its own.
    let fits = run(&[tenth], "while :; do gpu busy 2 4500M; done")?;
    let t4 = ["-p", "t4", "--gres=gpufrac:1"];
    let whole = run(&t4, "gpu busy 1; gpu idle")?;
    expect_reclaimed(&lab, node, unused, "never-used process-utilization")?;
    expect_reclaimed(&lab, node, holds, "idle process-utilization")?;
    expect_reclaimed(&lab, node, greedy, "over-share process-utilization")?;
    expect_reclaimed(&lab, of_t4, whole, "idle process-utilization")?;
    expect_told(&lab, greedy, "the job holds 8.0 GiB of GPU memory")?;
    expect_unnoticed(&lab, node, fits, "it keeps to its share")?;
    expect_spared(&lab, node, fits)?;
    lab.expect_nothing_left()
}

/// Waits until a job's user is told the reason: the daemon acts first, and tells afterwards.
fn expect_told(lab: &Lab, job: JobId, why: &str) -> Result<(), LabError> {
    lab.wait("the user is told", Duration::from_secs(10), || {
        Ok(lab.output(job)?.contains(why).then_some(()))
    })
}

const MPS: &str = r#"
[pool.shared]
mechanism = "mps"
tenancy = "shared"
gpu = "L40S-48"
partitions = ["gpu"]
nodes = "@NODE1@,@NODE2@"

[pool.private]
mechanism = "mps"
tenancy = "private"
gpu = "L40S-48"
partitions = ["private"]
nodes = "@NODE3@"
"#;

#[test]
fn tenants_of_mps() -> Result<(), LabError> {
    let builder = lab(&[CPU], "").nodes(3).gpu_list(&["L40S-48"]);
    let builder = builder.partition("private", "Nodes=@NODE3@");
    let lab = builder.mps_standin().pools(MPS).start()?;
    let (users, nodes) = (lab.users(), lab.nodes());
    let run = |node: usize, user: usize, script| {
        let partition = ["gpu", "gpu", "private"][node];
        let args = ["-p", partition, "-w", &nodes[node], QUARTER];
        submit(&lab, &users[user], &args, script)
    };
    // In the end no process computes here.
    let unused = run(0, 0, "sleep 1000")?;
    let holds = run(0, 1, "gpu busy 1; gpu idle")?;
    // Here one computes through the shared server.
    let busy = run(1, 0, "gpu busy")?;
    let beside = run(1, 1, "sleep 1000")?;
    let client = run(1, 0, "gpu idle")?;
    // Each job has its own server here.
    let own = run(2, 0, "gpu busy")?;
    let other = run(2, 1, "until gpu busy 1; do sleep 0.1; done; gpu idle")?;
    expect_reclaimed(&lab, &nodes[0], unused, "never-used mps-clients")?;
    expect_reclaimed(&lab, &nodes[0], holds, "idle mps-clients")?;
    expect_reclaimed(&lab, &nodes[1], beside, "never-used mps-clients")?;
    expect_reclaimed(&lab, &nodes[2], other, "idle mps-clients")?;
    for (node, job, what) in [
        (1, busy, "it is busy"),
        (1, client, "nobody can tell"),
        (2, own, "it is busy"),
    ] {
        expect_unnoticed(&lab, &nodes[node], job, what)?;
        expect_spared(&lab, &nodes[node], job)?;
    }
    lab.expect_nothing_left()
}

const MIG_MPS: &str = r#"
[pool.p]
mechanism = "mig+mps"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

#[test]
fn processes_outside_of_mps() -> Result<(), LabError> {
    let builder = lab(&[], "").gpu_list(&["H100-80:mig"]);
    let lab = builder.mps_standin().pools(MIG_MPS).start()?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);
    let run = |user: usize, script| submit(&lab, &users[user], &[QUARTER], script);
    let outside = run(0, "unset CUDA_MPS_PIPE_DIRECTORY; gpu busy")?;
    let first = run(1, "gpu busy")?;
    let second = run(2, "gpu busy")?;
    super::wait_until_cancelled(&lab, node, outside)?;
    let log = lab.reaper_log(node)?;
    let found = super::findings(&lab, node, outside)?;
    assert_eq!(found.len(), 2, "{found:?}: {log}");
    assert!(found.iter().all(|it| it.contains(" over-share ")), "{log}");
    expect_told(&lab, outside, "are not clients of MPS")?;
    for job in [first, second] {
        expect_unnoticed(&lab, node, job, "a client of MPS")?;
        expect_spared(&lab, node, job)?;
    }
    lab.expect_nothing_left()
}

/// Promise (isolation): a program that a script starts in a container without the folder of its MPS daemon is killed,
/// its user is told what to mount, and the job goes on.
#[test]
fn a_program_in_a_container_without_its_daemon_is_killed() -> Result<(), LabError> {
    // The job itself would be cancelled if the program were found for as long as `over_share` says.
    let builder = lab(&[("over_share", "\"off\"")], "").gpu_list(&["H100-80:mig"]);
    let lab = builder.mps_standin().pools(MIG_MPS).start()?;
    let (users, node) = (lab.users(), &lab.nodes()[0]);
    let run = |user: usize, script: &str| submit(&lab, &users[user], &[QUARTER], script);
    let folder = lab.folder().run(node).join("mps");
    let container = format!(
        "unshare --map-root-user --mount sh -c 'mount -t tmpfs none {} && exec gpusim --root {}/{node} run \
         --pattern busy --memory 500M'; echo program ended",
        folder.display(),
        lab.folder().root().join("gpus").display()
    );
    let hidden = run(0, &format!("{container}; gpu busy"))?;
    let other = run(1, "gpu busy")?;
    let ended = "program ended";
    lab.wait("the program's end", Duration::from_secs(60), || {
        let output = lab.output(hidden).unwrap_or_default();
        Ok(output.contains(ended).then_some(()))
    })?;
    expect_told(&lab, hidden, "is hidden from them; mount")?;
    let log = lab.reaper_log(node)?;
    assert!(log.contains("killed: processes"), "{log}");
    assert!(log.contains(&folder.display().to_string()), "{log}");
    for job in [hidden, other] {
        expect_unnoticed(&lab, node, job, "a client of MPS")?;
        expect_spared(&lab, node, job)?;
    }
    lab.expect_nothing_left()
}

/// Activity of an instance: UUID of the GPU, id of the instance, 0 to 1.
type Activity = (String, u32, f64);

/// A stand-in for dcgm-exporter.
struct Exporter {
    address: SocketAddr,
    /// The values; None if the exporter does not answer.
    values: Arc<Mutex<Option<Vec<Activity>>>>,
}

impl Exporter {
    /// Answers for as long as the test runs.
    fn start() -> std::io::Result<Exporter> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let values = Arc::new(Mutex::new(Some(Vec::new())));
        let shared = Arc::clone(&values);
        std::thread::spawn(move || {
            let energy = AtomicU64::new(0);
            for stream in listener.incoming().flatten() {
                let values = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let energy = energy.fetch_add(20, Ordering::Relaxed);
                let text = values.as_ref().map(|values| metrics(values, energy));
                drop(values);
                // A client that disconnected needs no answer.
                let _ = text.map(|text| answer(stream, &text));
            }
        });
        Ok(Exporter { address, values })
    }

    fn set(&self, values: Option<Vec<Activity>>) {
        *self.values.lock().unwrap_or_else(PoisonError::into_inner) = values;
    }
}

/// The format of dcgm-exporter. One value changes each time.
fn metrics(values: &[Activity], energy: u64) -> String {
    let mut text = String::from("# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge\n");
    for (uuid, id, value) in values {
        let labels = format!("gpu=\"0\",UUID=\"{uuid}\",device=\"nvidia0\"");
        text.push_str(&format!(
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{labels},GPU_I_PROFILE=\"2g.10gb\",GPU_I_ID=\"{id}\"}} {value:.6}\n\
             DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {energy}\n"
        ));
    }
    text
}

fn answer(mut stream: TcpStream, text: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    let mut request = Vec::new();
    let mut part = [0; 512];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut part)? {
            0 => return Ok(()),
            length => request.extend_from_slice(&part[..length]),
        }
    }
    let length = text.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}

#[test]
fn instances_of_ampere_by_dcgm() -> Result<(), LabError> {
    let exporter = Exporter::start().expect("a port");
    let url = format!("\"http://{}/metrics\"", exporter.address);
    let changes = [("dcgm_exporter", url.as_str())];
    let lab = lab(&changes, "").gpus("A100-40", 2).start()?;
    let (user, node) = (&lab.users()[0], &lab.nodes()[0]);
    // The exporter's answer counts, not the simulator's activity.
    let run = |script| submit(&lab, user, &[QUARTER], script);
    let (idle, busy, unknown) = (run("gpu busy")?, run("gpu idle")?, run("gpu idle")?);
    let mut places = Vec::new();
    for job in [idle, busy, unknown] {
        lab.wait_for_state(job, &["RUNNING"])?;
        let slice = lab.slice(node, job)?;
        places.push((slice.lease.slice.gpu_uuid, slice.instance.id));
    }
    let says = |idle: f64, busy: f64| {
        let [(first, one), (second, two), _] = &places[..] else {
            panic!("three jobs");
        };
        let values = [(first.clone(), *one, idle), (second.clone(), *two, busy)];
        exporter.set(Some(values.to_vec()));
    };
    says(0.0, 0.25);
    expect_reclaimed(&lab, node, idle, "idle dcgm")?;
    expect_unnoticed(&lab, node, busy, "it is busy")?;
    expect_unnoticed(&lab, node, unknown, "the exporter does not know it")?;

    exporter.set(None);
    std::thread::sleep(Duration::from_secs(9));
    expect_unnoticed(&lab, node, busy, "the exporter is gone")?;
    let back = Instant::now();
    says(0.0, 0.0);
    expect_reclaimed(&lab, node, busy, "idle dcgm")?;
    let after = back.elapsed();
    assert!(after > Duration::from_secs(5), "{after:?} after it is back");
    expect_unnoticed(&lab, node, unknown, "the exporter does not know it")?;
    expect_spared(&lab, node, unknown)?;
    lab.expect_nothing_left()
}
