//! Whole GPUs without MIG from a pool of MIG: `whole = "bare"`.

use std::time::Duration;

use gpufrac_lab::{JobId, Lab, LabError, Running};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::shared_devices::{finish, ready, run, start, submit};

/// Halves and whole GPUs.
pub const BARE_HALVES: &str = r#"
[pool.p]
mechanism = "mig"
layout = "uniform"
menu = ["1/2"]
whole = "bare"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
"#;

/// A process that holds a GPU without a context, as monitoring does.
struct Agent(Option<Running>);

impl Agent {
    fn start(lab: &Lab, gpu: usize) -> Result<Agent, LabError> {
        let root = lab.folder().gpus(&lab.nodes()[0]);
        let hold = lab.command("gpusim").args(["hold", &gpu.to_string()]);
        let running = hold.args(["--root"]).args([&root]).spawn()?;
        let agent = Agent(Some(running));
        lab.wait("the agent holds the GPU", Duration::from_secs(30), || {
            let files = std::fs::read_dir(root.join("agents")).into_iter().flatten();
            let mut names = files.flatten().map(|file| file.file_name());
            let pid = format!("{}.", agent.pid());
            Ok(names
                .any(|name| name.to_string_lossy().starts_with(&pid))
                .then_some(()))
        })?;
        Ok(agent)
    }

    fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, Running::pid)
    }

    fn end(&mut self) {
        if let Some(running) = self.0.take() {
            let _ = kill(Pid::from_raw(running.pid() as i32), Signal::SIGKILL);
            let _ = running.wait();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

/// The GPU of a job's lease, by NVML's index.
fn gpu_of(lab: &Lab, job: JobId) -> Result<usize, LabError> {
    let leases = lab.leases_of(&lab.nodes()[0], job)?;
    Ok(leases[0].slice.gpu_index.position())
}

#[test]
fn pieces_and_whole_gpus_without_mig_come_from_the_same_gpus() -> Result<(), LabError> {
    let lab = start(Lab::builder().gpus("H100-80", 2).pools(BARE_HALVES))?;
    let (user, other) = (lab.users()[0].clone(), lab.users()[1].clone());
    let node = lab.nodes()[0].clone();
    let uuids = lab.gpu_uuids(&node)?;
    let (first, _) = run(&lab, &user, &["--gres=gpufrac:0.5"])?;
    let piece_at = gpu_of(&lab, first)?;
    let bare_at = 1 - piece_at;
    let (whole, seen) = run(&lab, &other, &["--gres=gpufrac:1"])?;
    // The whole GPU beside a GPU with a piece: its own device, no capability, and no MIG.
    assert_eq!(gpu_of(&lab, whole)?, bare_at);
    assert_eq!(seen.get("CUDA_VISIBLE_DEVICES"), uuids[bare_at]);
    assert_eq!(seen.get("GPUFRAC_PROFILE"), "bare");
    assert_eq!(seen.devices, [format!("nvidia{bare_at}")]);
    let modes = lab.mig_modes(&node)?;
    assert!(!modes[bare_at] && modes[piece_at], "{modes:?}");
    assert_eq!(lab.instances(&node)?.len(), 1);
    let map = lab
        .command("gpufrac")
        .args(["status", "--node", &node])
        .stdout()?;
    assert!(map.contains("MIG off") && map.contains("MIG on"), "{map}");
    assert!(map.contains("whole GPU"), "{map}");

    // A piece that comes now is beside the first; the next ones wait for the whole GPU, and have it.
    let (second, seen) = run(&lab, &user, &["--gres=gpufrac:0.5"])?;
    assert_eq!(gpu_of(&lab, second)?, piece_at);
    assert!(
        !seen.devices.contains(&format!("nvidia{bare_at}")),
        "{seen:?}"
    );
    let third = submit(&lab, &user, &["--gres=gpufrac:0.5"])?;
    finish(&lab, whole)?;
    assert!(
        ready(&lab, third)?
            .get("CUDA_VISIBLE_DEVICES")
            .starts_with("MIG-")
    );
    assert_eq!(gpu_of(&lab, third)?, bare_at);
    assert_eq!(lab.mig_modes(&node)?, [true, true]);
    for job in [first, second, third] {
        finish(&lab, job)?;
    }

    // Again on the same GPU, after a reboot of the driver, which loses the mode.
    lab.gpusim(&node, &["reboot"])?;
    assert_eq!(lab.mig_modes(&node)?, [false, false]);
    for (request, is_mig) in [("--gres=gpufrac:0.5", true), ("--gres=gpufrac:1", false)] {
        let (job, _) = run(&lab, &user, &[request])?;
        let at = gpu_of(&lab, job)?;
        assert_eq!(lab.mig_modes(&node)?[at], is_mig);
        finish(&lab, job)?;
    }
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    lab.expect_nothing_left()
}

#[test]
fn a_job_whose_gpu_is_held_by_monitoring_goes_back_and_comes_again() -> Result<(), LabError> {
    let lab = start(Lab::builder().gpus("H100-80", 1).pools(BARE_HALVES))?;
    let user = lab.users()[0].clone();
    let node = lab.nodes()[0].clone();
    let mut agent = Agent::start(&lab, 0)?;
    let whole = submit(&lab, &user, &["--gres=gpufrac:1"])?;
    lab.wait("the job is back", Duration::from_secs(60), || {
        let job = lab.job(whole)?;
        // On 22.05 Slurm may start the script before it hears of the requeue, and the step gives the job back again.
        let restarts = job.field("Restarts").parse::<u32>().unwrap_or(0);
        let is_back = job.state() == "PENDING" && restarts >= 1;
        Ok(is_back.then_some(()))
    })?;
    let named = format!("process {} (`gpusim`) holds its device open", agent.pid());
    assert!(lab.folder().log_tails(200).contains(&named), "{named}");
    // The node serves others meanwhile.
    assert_eq!(lab.drained_nodes()?, Vec::<String>::new());
    assert_eq!(lab.mig_modes(&node)?, [true]);
    let (piece, _) = run(&lab, &user, &["--gres=gpufrac:0.5"])?;
    finish(&lab, piece)?;
    agent.end();
    let update = [format!("JobId={whole}"), "StartTime=now".to_owned()];
    lab.command("scontrol")
        .args(["update"])
        .args(update)
        .stdout()?;
    ready(&lab, whole)?;
    assert_eq!(lab.mig_modes(&node)?, [false]);
    finish(&lab, whole)?;
    lab.expect_nothing_left()
}

#[test]
fn a_prolog_that_dies_as_it_switches_the_mode_leaves_nothing() -> Result<(), LabError> {
    let lab = start(Lab::builder().gpus("H100-80", 1).pools(BARE_HALVES))?;
    let user = lab.users()[0].clone();
    let node = lab.nodes()[0].clone();
    let resume = || -> Result<(), LabError> {
        lab.wait("the node is drained", Duration::from_secs(60), || {
            Ok((!lab.drained_nodes()?.is_empty()).then_some(()))
        })?;
        lab.gpusim(&node, &["clear"])?;
        let name = format!("NodeName={node}");
        let update = lab
            .command("scontrol")
            .args(["update", &name, "State=RESUME"]);
        update.stdout().map(drop)
    };
    for (request, after, is_mig) in [
        ("--gres=gpufrac:1", "--after", false),
        ("--gres=gpufrac:0.5", "--after", true),
    ] {
        // The mode has changed, and who changed it is gone.
        let fault = ["fault", "--call", "nvmlDeviceSetMigMode", "--kill", after];
        lab.gpusim(&node, &fault)?;
        let job = submit(&lab, &user, &[request])?;
        resume()?;
        assert_eq!(lab.mig_modes(&node)?, [is_mig]);
        lab.command("scancel").args([job.to_string()]).stdout()?;
        lab.wait_until_empty(Duration::from_secs(60))?;
        // The next jobs find what they need, in either mode.
        for request in ["--gres=gpufrac:1", "--gres=gpufrac:0.5", request] {
            let (job, _) = run(&lab, &user, &[request])?;
            finish(&lab, job)?;
        }
        lab.expect_nothing_left()?;
    }
    Ok(())
}

/// GPU 0 is nobody's, GPU 1 changes, GPU 2 is halves.
const MIXED: &str = r#"
[pool.change]
mechanism = "mig"
layout = "uniform"
menu = ["1/2"]
whole = "bare"
gpu = "H100-80"
partitions = ["gpu"]
nodes = "@NODES@"
gpus = [1]

[pool.halves]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
partitions = ["small"]
nodes = "@NODES@"
gpus = [2]
"#;

#[test]
fn only_the_gpus_of_the_pool_change_their_mode() -> Result<(), LabError> {
    let builder = Lab::builder()
        .gpu_list(&["H100-80", "H100-80:mig", "H100-80:mig"])
        .partition("small", "")
        .plain_gpu("own", 0);
    let lab = start(builder.pools(MIXED))?;
    let user = lab.users()[0].clone();
    let node = lab.nodes()[0].clone();
    let (quarter, _) = run(&lab, &user, &["-p", "small", "--gres=gpufrac:0.25"])?;
    assert_eq!(gpu_of(&lab, quarter)?, 2);
    for (request, modes) in [
        ("--gres=gpufrac:1", [false, false, true]),
        ("--gres=gpufrac:0.5", [false, true, true]),
        ("--gres=gpufrac:1", [false, false, true]),
    ] {
        let (job, seen) = run(&lab, &user, &[request])?;
        assert_eq!(gpu_of(&lab, job)?, 1);
        assert_eq!(lab.mig_modes(&node)?, modes);
        let is_own = |device: &&String| device.starts_with("nvidia") && !device.contains("cap");
        let gpus: Vec<&String> = seen.devices.iter().filter(is_own).collect();
        assert_eq!(gpus, ["nvidia1"], "{seen:?}");
        finish(&lab, job)?;
    }
    finish(&lab, quarter)?;
    lab.expect_nothing_left()
}
