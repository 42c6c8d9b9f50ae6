//! `Cores=` of gres.conf on a node of two sockets.

use std::fs;
use std::time::Duration;

use gpufrac_lab::{Job, JobId, Lab, LabBuilder, LabError};

use crate::needs_slurm;

/// Cores of each of two sockets, with two threads each.
const CORES: u32 = 8;

/// The topology of the node below the folder of its simulated GPUs, numbered as kernels do: first the first threads of
/// all cores.
fn write_topology(lab: &Lab) {
    for thread in 0..4 * CORES {
        let core = thread % (2 * CORES);
        let folder = lab.folder().gpus(&lab.nodes()[0]);
        let folder = folder.join(format!("sys/devices/system/cpu/cpu{thread}/topology"));
        fs::create_dir_all(&folder).expect("a folder");
        for (file, text) in [
            ("physical_package_id", (core / CORES).to_string()),
            (
                "thread_siblings_list",
                format!("{core},{}", core + 2 * CORES),
            ),
        ] {
            fs::write(folder.join(file), text).expect("a file of the topology");
        }
    }
}

/// A lab of four GPUs on two sockets, with the lines of gres.conf that `gpufrac conf` prints there.
fn start(builder: LabBuilder) -> Result<Lab, LabError> {
    let lab = builder
        .gpus("H100-80", 4)
        .cores_per_node(2 * CORES)
        .start()?;
    write_topology(&lab);
    let node = &lab.nodes()[0];
    let args = ["conf", "--node", node, "--gpus", "4"];
    let text = lab.command("gpufrac").args(args).stdout()?;
    let (lines, _) = text.split_once("\n# slurm.conf").expect("both files");
    fs::write(lab.folder().etc().join("gres.conf"), lines).expect("gres.conf");
    lab.reconfigure()?;
    lab.wait_until_idle(Duration::from_secs(60))?;
    Ok(lab)
}

/// The socket of a job's CPUs, and that of its device, in the words of `scontrol show job --details`.
fn sockets(job: &Job) -> (u32, u32) {
    let first = |text: &str| -> u32 {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    };
    let details = job.field("CPU_IDs");
    // The shares in use on each device: `shard:half:50(0/50,50/50,0/50)`.
    let gres = job.field("GRES");
    let shares = gres.rsplit_once('(').map_or("", |(_, shares)| shares);
    let mut devices = (0..).zip(shares.split(','));
    let own = devices.find(|(_, share)| !share.starts_with("0/"));
    let (device, _) = own.unwrap_or_else(|| panic!("{gres}"));
    // Each GPU has two devices, each core two threads.
    (first(details) / (2 * CORES), device / 4)
}

fn run(lab: &Lab, options: &[&str]) -> Result<JobId, LabError> {
    lab.sbatch(&lab.users()[0], &[options, &["--wrap=sleep 1000"]].concat())
}

fn cancel_all(lab: &Lab) -> Result<(), LabError> {
    lab.command("scancel")
        .args(["-u", &lab.users()[0].name])
        .run()?
        .success()?;
    lab.wait_until_empty(Duration::from_secs(60))
}

fn waits(lab: &Lab, job: JobId) -> Result<(), LabError> {
    lab.wait("it waits", Duration::from_secs(60), || {
        let seen = lab.job(job)?;
        assert_eq!(seen.state(), "PENDING", "{seen:?}");
        Ok((seen.field("Reason") == "Resources").then_some(()))
    })
}

/// A job with all CPUs of the first socket.
fn take_the_first_socket(lab: &Lab) -> Result<(), LabError> {
    let options = [
        "-n1",
        "-c16",
        "--cores-per-socket=8",
        "--sockets-per-node=1",
    ];
    let job = lab.wait_for_state(run(lab, &options)?, &["RUNNING"])?;
    assert_eq!(job.field("CPU_IDs"), "0-15", "{job:?}");
    Ok(())
}

/// Promise (admins): a job's CPUs are of the socket of its slice as far as they are free, and always with
/// `--gres-flags=enforce-binding` or `ENFORCE_BINDING_GRES`.
#[test]
fn a_jobs_cpus_are_near_its_slice() -> Result<(), LabError> {
    let lab = start(Lab::builder())?;
    let gres = fs::read_to_string(lab.folder().etc().join("gres.conf")).expect("gres.conf");
    if !lab.slurm().since(23, 11) {
        // Slurm before 23.11.5 would give a GPU whole beside its fractions.
        let mut lines = gres.lines().filter(|line| !line.starts_with('#'));
        assert!(lines.all(|line| !line.contains(" Cores=")), "{gres}");
        return lab.expect_nothing_left();
    }
    for line in ["half[0-3] Cores=0-7", "half[4-7] Cores=8-15"] {
        assert!(gres.contains(line), "{gres}");
    }
    let mut seen = Vec::new();
    for _ in 0..6 {
        let job = run(&lab, &["--gres=gpufrac:0.5", "-n1"])?;
        let (cpus, device) = sockets(&lab.wait_for_state(job, &["RUNNING"])?);
        assert_eq!(cpus, device, "{gres}");
        seen.push(device);
    }
    assert!(
        seen.contains(&0) && seen.contains(&1),
        "both sockets: {seen:?}"
    );
    cancel_all(&lab)?;

    take_the_first_socket(&lab)?;
    let bound = ["--gres=gpufrac:0.5", "-n1", "--gres-flags=enforce-binding"];
    let mut near = Vec::new();
    for _ in 0..4 {
        near.push(sockets(
            &lab.wait_for_state(run(&lab, &bound)?, &["RUNNING"])?,
        ));
    }
    assert!(near.iter().all(|(cpus, device)| cpus == device), "{near:?}");
    let last = run(&lab, &bound)?;
    waits(&lab, last)?;
    let free = run(&lab, &["--gres=gpufrac:0.5", "-n1"])?;
    let (cpus, device) = sockets(&lab.wait_for_state(free, &["RUNNING"])?);
    assert_ne!(
        cpus, device,
        "a job that is not bound takes CPUs of the other socket"
    );
    cancel_all(&lab)?;
    lab.expect_nothing_left()
}

#[test]
fn cores_hold_jobs_where_slurm_enforces_binding() -> Result<(), LabError> {
    needs_slurm(23, 11)?;
    let words = "SelectTypeParameters=CR_Core_Memory,ENFORCE_BINDING_GRES";
    let lab = start(Lab::builder().slurm_conf_extra(words))?;
    take_the_first_socket(&lab)?;
    let half = ["--gres=gpufrac:0.5", "-n1"];
    for _ in 0..4 {
        let job = lab.wait_for_state(run(&lab, &half)?, &["RUNNING"])?;
        assert_eq!(sockets(&job), (1, 1), "{job:?}");
    }
    waits(&lab, run(&lab, &half)?)?;
    cancel_all(&lab)?;
    lab.expect_nothing_left()
}
