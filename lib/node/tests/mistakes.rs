//! Common mistakes of admins: another gpufrac.toml than slurmctld's, a node without a pool, no SPANK plugin, leases
//! of another build.
#![allow(clippy::unwrap_used, reason = "a test stops where it fails")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use common::program::Program;
use common::{Ended, Job, World, job, ready};
use gpufrac_core::lease::{LeaseState, VERSION};
use gpufrac_node::state::stuck;
use nvidia_ml::disturb::What;
use nvidia_ml::pattern::Pattern;
use nvidia_ml::processes::{Process, now_us, start_ticks};

#[test]
fn child() {
    common::child();
}

/// Runs a prolog for a job that was counted by pools with this checksum.
fn prolog_of(world: &World, job: Job, pools: Option<&str>) -> Ended {
    let mut command = world.job_command("prolog", job);
    command.envs(pools.map(|pools| ("SPANK_GPUFRAC_POOLS", pools)));
    Ended::of(command.output().unwrap())
}

fn explained(world: &World, job: Job) -> String {
    let path = world.root().join(format!("slurm/{}.explained", job.id));
    fs::read_to_string(path).unwrap_or_default()
}

fn reason(world: &World) -> Option<String> {
    fs::read_to_string(world.root().join("slurm/reason")).ok()
}

fn lease_file(world: &World, name: &str) -> PathBuf {
    world.root().join("run/leases").join(name)
}

/// The CRC of ECMA-182, computed bit by bit.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(u64::MAX, |crc, byte| {
        (0..8).fold(crc ^ (u64::from(*byte) << 56), |crc, _| {
            let carry = crc >> 63 == 1;
            (crc << 1) ^ (if carry { 0x42f0_e1eb_a9ea_3693 } else { 0 })
        })
    })
}

/// Replaces the body of a lease, as another build would write it.
fn rewrite(world: &World, name: &str, change: impl Fn(&str) -> String) {
    let path = lease_file(world, name);
    let text = fs::read_to_string(&path).unwrap();
    let body = change(&text[..text.rfind("# crc64 ").unwrap()]);
    fs::write(
        &path,
        format!("{body}# crc64 {:016x}\n", crc64(body.as_bytes())),
    )
    .unwrap();
}

#[test]
fn a_size_that_only_slurmctlds_file_has_is_given_back() {
    let world = ready();
    let own = world.node().config.pools_sum().to_string();
    let other = "0123456789abcdef";
    world.configure("halves", "H100-80", "menu = [\"1/2\", \"1/8\"]");
    // Between two sizes, and smaller than all.
    for (id, pools) in [(1, None), (2, Some(own.as_str())), (3, Some("no sum"))] {
        let one = job(id, 0, 25);
        world.slurm_knows(one);
        let ended = prolog_of(&world, one, pools).ok();
        let ended = ended.says("Slurm counted 25 units for job");
        assert_eq!(
            ended
                .stderr
                .contains(&format!("checksum of the pools: {own} where")),
            id == 2,
            "{}",
            ended.stderr
        );
        assert!(explained(&world, one).contains("copy gpufrac.toml from slurmctld's host to n1"));
    }
    world.configure("halves", "H100-80", "menu = [\"1/2\"]");
    let small = job(4, 0, 13);
    world.slurm_knows(small);
    prolog_of(&world, small, Some(other))
        .ok()
        .says("gives 50 (checksum of the pools: 0123456789abcdef");
    assert_eq!(
        world.slurm_was_told(),
        [1, 2, 3, 4].map(|id| format!("requeuehold {id}"))
    );
    assert!(world.leases().is_empty() && reason(&world).is_none());
    // Slurm does not answer: the entry alone has the size.
    let silent = job(5, 0, 25);
    prolog_of(&world, silent, Some(other))
        .ok()
        .says("Slurm counted 25 units");
    assert!(world.leases().is_empty());
}

#[test]
fn a_size_that_both_files_have_is_given_and_the_difference_is_logged() {
    let world = ready();
    let (one, two, three) = (job(1, 0, 25), job(2, 0, 25), job(3, 1, 50));
    for job in [one, two, three] {
        world.slurm_knows(job);
    }
    let warning = "differs from the one by which slurmctld counted the job";
    prolog_of(&world, one, Some("0123456789abcdef"))
        .ok()
        .says(warning);
    // The same pools, and a build that sends no checksum.
    let own = world.node().config.pools_sum().to_string();
    for (job, pools) in [(two, Some(own.as_str())), (three, None)] {
        let ended = prolog_of(&world, job, pools).ok();
        assert!(!ended.stderr.contains(warning), "{}", ended.stderr);
    }
    assert_eq!(world.leases().len(), 3);
    world.check(&[]);
}

#[test]
fn a_fraction_on_a_node_of_no_pool_is_given_back() {
    let world = ready();
    let text = fs::read_to_string(world.config()).unwrap();
    fs::write(
        world.config(),
        text.replace("nodes = \"n1\"", "nodes = \"n2\""),
    )
    .unwrap();
    let one = job(1, 0, 25);
    world.slurm_knows(one);
    world
        .prolog(one)
        .ok()
        .says("gpufrac.toml of that node has no pool there");
    assert_eq!(world.slurm_was_told(), ["requeuehold 1"]);
    assert!(explained(&world, one).contains("add the node to `nodes` of its pool"));
    // A whole GPU of a pool that has another node: by its device, and before Slurm 23.11.5 by all of its shares.
    for (id, held) in [
        (6, "gpu:whole:1(IDX:0),gpufrac(CNT:100)"),
        (7, "gpufrac(CNT:100),shard:mps:100(100/100)"),
    ] {
        world.slurm_says(id, &format!("running gres/gpufrac:100 0 - {held}"));
        world
            .prolog(job(id, 0, 100))
            .ok()
            .says("gpufrac.toml of that node has no pool there");
    }
    let told = ["requeuehold 1", "requeuehold 6", "requeuehold 7"];
    assert_eq!(world.slurm_was_told(), told);
    // Moved there with an earlier entry: it has ordinary GPUs, or the site's own shares.
    for (id, held) in [(2, "gpu:a100:1(IDX:0)"), (3, "shard:a100:5(5/10)")] {
        world.slurm_says(id, &format!("running gres/gpu:a100:1 0 - {held}"));
        let ended = world.prolog(job(id, 0, 25)).ok();
        assert_eq!(ended.stderr, "");
    }
    // Ended already, or unknown.
    for (id, says) in [
        (4, "finished gres/gpufrac:25,gres/shard:25 0"),
        (5, "unknown"),
    ] {
        world.slurm_says(id, says);
        world.prolog(job(id, 0, 25)).ok();
    }
    assert_eq!(world.slurm_was_told(), told);
    assert!(world.leases().is_empty() && reason(&world).is_none());
}

#[test]
fn a_file_that_was_changed_since_node_setup_drains_nothing() {
    let world = ready();
    let text = fs::read_to_string(world.config()).unwrap();
    for (id, from, to, words) in [
        (
            1,
            "H100-80",
            "H200-141",
            "set `gpu` of the pool to this model",
        ),
        (
            2,
            "nodes = \"n1\"",
            "nodes = \"n1\"\ngpus = [3]",
            "not by the record of node-setup",
        ),
        (3, "pool.p", "pool.q", "not by the record of node-setup"),
    ] {
        fs::write(world.config(), text.replace(from, to)).unwrap();
        let one = job(id, 0, 25);
        world.slurm_knows(one);
        world.prolog(one).ok().says(words).says("requeued and held");
        assert!(explained(&world, one).contains(words));
    }
    assert!(world.leases().is_empty() && reason(&world).is_none());
    fs::write(world.config(), text).unwrap();
    world.prolog(job(1, 0, 25)).ok();
    world.check(&[]);
}

#[test]
fn a_job_that_began_when_the_node_was_in_a_pool_ends_without_one() {
    let world = ready();
    let one = job(1, 0, 25);
    world.slurm_knows(one);
    world.prolog(one).ok();
    let text = fs::read_to_string(world.config()).unwrap();
    fs::write(
        world.config(),
        text.replace("nodes = \"n1\"", "nodes = \"n2\""),
    )
    .unwrap();
    world.epilog(one).ok().says("released");
    assert!(!lease_file(&world, "1").exists());
    assert!(world.instances(0).is_empty());
    // A job without a lease needs no further work.
    assert_eq!(world.epilog(job(2, 0, 25)).ok().stderr, "");
}

#[test]
fn without_the_spank_plugin_no_job_starts() {
    let world = ready();
    let plugstack = world.root().join("slurm/plugstack.conf");
    fs::write(&plugstack, "optional lua.so\n").unwrap();
    let one = job(1, 0, 25);
    world.slurm_knows(one);
    world
        .prolog(one)
        .ok()
        .says("does not name spank_gpufrac.so");
    assert_eq!(world.slurm_was_told(), ["requeuehold 1"]);
    assert!(explained(&world, one).contains("add the line `required spank_gpufrac.so`"));
    assert!(world.leases().is_empty() && reason(&world).is_none());
    fs::write(&plugstack, "required spank_gpufrac.so\n").unwrap();
    fs::write(world.root().join("slurm/spank_gpufrac.so"), "").unwrap();
    world.prolog(one).ok();
    world.check(&[]);
}

#[test]
fn a_lease_of_the_build_before_is_released() {
    let world = ready();
    let (one, two) = (job(1, 0, 25), job(2, 0, 25));
    for job in [one, two] {
        world.slurm_knows(job);
        world.prolog(job).ok();
        let ours = format!("version = {VERSION}\n");
        let before = format!("version = {}\n", VERSION - 1);
        rewrite(&world, &job.id.to_string(), |body| {
            body.replace(&ours, &before)
        });
    }
    // A prolog on the same half, and node-setup, know its place.
    let three = job(3, 1, 25);
    world.slurm_knows(three);
    world.prolog(three).ok();
    world.setup().ok();
    assert_eq!(world.leases().len(), 3);
    for job in [one, two, three] {
        world.epilog(job).ok().says("released");
    }
    assert!(world.leases().is_empty() && world.instances(0).is_empty());
}

#[test]
fn a_lease_of_a_newer_build_drains_nothing() {
    let world = ready();
    let (one, two) = (job(1, 0, 25), job(2, 0, 25));
    world.slurm_knows(one);
    world.prolog(one).ok();
    let kept = fs::read_to_string(lease_file(&world, "1")).unwrap();
    let ours = format!("version = {VERSION}\n");
    for newer in [
        format!("version = {}\nof_tomorrow = 1\n", VERSION + 1),
        format!("version = {VERSION}\nof_tomorrow = 1\n"),
    ] {
        rewrite(&world, "1", |body| body.replace(&ours, &newer));
        // Its place is not known: another job waits elsewhere.
        world.slurm_knows(two);
        world.prolog(two).ok().says("requeued");
        // The daemon would drain a node that is lost for long.
        assert_eq!(stuck::list(&world.node()).unwrap(), []);
        // Its own epilog leaves it to the build that can read it.
        world
            .epilog(one)
            .ok()
            .says("a newer gpufrac wrote this lease")
            .says("the slice cannot be released yet");
        assert!(lease_file(&world, "1").exists());
        assert!(reason(&world).is_none());
        fs::write(lease_file(&world, "1"), &kept).unwrap();
    }
    assert_eq!(world.instances(0).len(), 1);
    // That build is installed again.
    world.epilog(one).ok().says("released");
    assert!(world.leases().is_empty() && world.instances(0).is_empty());
}

/// Otherwise the fence would deny other devices than those of the neighbours.
#[test]
fn a_driver_that_was_loaded_again_with_other_numbers_is_named() {
    let world = ready();
    let one = job(1, 0, 25);
    world.slurm_knows(one);
    let path = world.root().join("gpus/proc/devices");
    let devices = fs::read_to_string(&path).unwrap();
    let other = |line: &str| match line.strip_suffix(" nvidia-caps") {
        Some(_) => "199 nvidia-caps\n".to_owned(),
        None => format!("{line}\n"),
    };
    fs::write(&path, devices.lines().map(other).collect::<String>()).unwrap();
    world.prolog(one);
    assert!(reason(&world).unwrap().contains("loaded again"));
    assert!(world.leases().is_empty());
}

/// As on a file system that became read-only.
#[test]
fn a_state_folder_that_cannot_be_changed_drains_nothing() {
    let world = ready();
    let one = job(1, 0, 25);
    world.slurm_knows(one);
    world.prolog(one).ok();
    fs::create_dir_all(world.node().state.join("stuck/lease-1")).unwrap();
    world
        .epilog(one)
        .ok()
        .says("forgetting earlier failures failed")
        .says("released");
    assert!(world.leases().is_empty() && reason(&world).is_none());
}

#[test]
fn a_node_that_prolog_or_epilog_drains_says_why() {
    let world = ready();
    let one = job(1, 0, 25);
    world.slurm_knows(one);
    world.prolog(one).ok();
    assert_eq!(world.leases()[0].state, LeaseState::Active);
    fs::write(lease_file(&world, "1"), "half of a lease").unwrap();
    assert_eq!(world.epilog(one).code, Some(1));
    let said = reason(&world).unwrap();
    assert!(
        said.starts_with("n1: the slice of job 1 cannot be released: "),
        "{said}"
    );
    // Its instance stays, although gpufrac did not create it.
    let two = job(2, 1, 25);
    world.slurm_knows(two);
    let ended = world.prolog(two).says("Slurm keeps the first reason");
    assert_eq!(ended.code, Some(1));
    assert_eq!(reason(&world).unwrap(), said);
    assert!(explained(&world, two).contains("the job did not start on n1: "));
    // slurmctld does not answer: the prolog ends nevertheless, and soon.
    fs::remove_file(world.root().join("slurm/reason")).unwrap();
    world.slurm_is_silent_for(1000);
    let ended = world
        .epilog(one)
        .says("setting the node's drain reason failed");
    assert_eq!(ended.code, Some(1));
}

/// Registers a program that computes on the first GPU.
fn busy(world: &World) -> Program {
    let program = Program::of(0);
    let pid = u32::try_from(program.pid()).unwrap();
    let process = Process {
        pid,
        start_ticks: start_ticks(pid).unwrap(),
        name: "agent".into(),
        gpu_uuid: world.sim.node().unwrap().gpus[0].uuid.clone(),
        instance: None,
        memory_mib: 100,
        pattern: Pattern::Busy,
        began_us: now_us(),
    };
    process.register(world.sim.root()).unwrap();
    program
}

#[test]
fn mig_that_was_pending_at_node_setup_comes_with_the_next_job() {
    let world = World::with(&["H100-80"], "halves", false);
    world.on_node(|node| node.gpus[0].persistence = false);
    let mut agent = busy(&world);
    let uses = format!(
        "is not in MIG mode yet: process {} (`sleep`) uses it",
        agent.pid()
    );
    let ended = world.setup().says(&uses).says("the next job on this GPU");
    assert_eq!(ended.code, Some(1));
    let gpu = || world.sim.node().unwrap().gpus[0].clone();
    assert!(!gpu().mig && !gpu().mig_pending, "the driver is not asked");
    assert!(gpu().persistence, "MIG mode will last");
    // While the process runs, the job is requeued with the reason in its comment, and the node is not drained.
    let one = job(1, 0, 25);
    world.slurm_knows(one);
    world.prolog(one).ok().says(&uses).says("requeued");
    assert_eq!(world.slurm_was_told(), ["requeue 1"]);
    assert!(explained(&world, one).contains(&uses));
    assert!(world.leases().is_empty() && reason(&world).is_none());
    // After the end of the process the next job finds the GPU idle.
    agent.end();
    world.prolog(one).ok().says("switched MIG on for GPU 0");
    world.check(&[]);
    let ended = world.epilog(one).ok().says("released");
    assert!(!ended.stderr.contains("MIG on"), "{}", ended.stderr);
    world.setup().ok();
}

#[test]
fn mig_that_was_switched_off_comes_back_while_nobody_has_the_gpu() {
    let world = ready();
    let switch_off = || {
        world.on_node(|node| {
            node.gpus[0].mig_pending = false;
            node.gpus[0].reset();
        });
    };
    let (one, two) = (job(1, 0, 25), job(2, 1, 25));
    for job in [one, two] {
        world.slurm_knows(job);
    }
    switch_off();
    // The driver is busy for a moment.
    world.next_calls("nvmlDeviceSetMigMode", 2, What::Fail(19));
    world.prolog(one).ok().says("switched MIG on for GPU 0");
    world.check(&[]);
    // While a job has a lease of the GPU, the mode is not switched, even if the job's instance is gone.
    switch_off();
    let words = "is not in MIG mode yet: job 1 has a slice of it";
    world.prolog(two).ok().says(words).says("requeued");
    let ended = world.setup().says(words);
    assert_eq!(ended.code, Some(1));
    assert!(!world.sim.node().unwrap().gpus[0].mig && reason(&world).is_none());
    world.epilog(one).ok();
    world.prolog(two).ok().says("switched MIG on for GPU 0");
    world.check(&[]);
    world.epilog(two).ok();
}

#[test]
fn a_gpu_that_needs_a_reset_is_an_admins() {
    let world = World::with(&["A100-80"], "halves", false);
    assert_eq!(world.setup().says("--gpu-reset").code, Some(1));
    let one = job(1, 0, 25);
    world.slurm_knows(one);
    let ended = world.prolog(one).says("is not in MIG mode (Off)");
    ended.ok().says("requeued, because the node is drained");
    assert!(
        reason(&world)
            .unwrap()
            .contains("`gpufrac node-setup` switches MIG on, or says how")
    );
    assert!(!world.sim.node().unwrap().gpus[0].mig_pending, "untouched");
}

#[test]
fn check_names_locks_and_records_that_others_could_change() {
    let world = ready();
    world.run_check().ok();
    let mode = |path: &str, mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(world.root().join(path), mode).unwrap();
    };
    mode("run/locks", 0o755);
    let said = world.run_check().says("run/locks").says("chmod 700");
    assert_eq!(said.code, Some(1));
    mode("run/locks", 0o700);
    let one = job(1, 0, 25);
    world.slurm_knows(one);
    world.prolog(one).ok();
    world.epilog(one).ok();
    world.run_check().ok();
    mode("state/usage.jsonl", 0o666);
    let said = world
        .run_check()
        .says("state/usage.jsonl")
        .says("chmod go-w");
    assert_eq!(said.code, Some(1));
    mode("state/usage.jsonl", 0o644);
    mode("state", 0o777);
    assert_eq!(
        world.run_check().says("state").says("chmod go-w").code,
        Some(1)
    );
    fs::remove_dir_all(world.root().join("state")).unwrap();
    world.run_check().ok();
}

/// Promise (admins): `gpufrac check` names an instance that was destroyed under its job, and a compute mode in which
/// jobs cannot compute.
/// With `check_names_a_compute_mode_that_was_changed_under_jobs`.
#[test]
fn check_names_an_instance_that_was_destroyed_under_its_job() {
    let world = ready();
    let (one, two) = (job(1, 0, 25), job(2, 1, 50));
    for job in [one, two] {
        world.slurm_knows(job);
        world.prolog(job).ok();
    }
    world.run_check().ok();
    let leases = world.leases();
    let lost = leases
        .iter()
        .find(|lease| lease.job_id.0 == one.id)
        .unwrap();
    let gi_id = lost.slice.mig().unwrap().instance.as_ref().unwrap().gi_id;
    world.on_gpu(|gpu| gpu.instances.retain(|instance| instance.id != gi_id));
    let said = world
        .run_check()
        .says("job 1: its MIG instance on GPU 0 2g.20gb at")
        .says("`scontrol requeue 1`");
    assert_eq!(said.code, Some(1));
    assert!(!said.stderr.contains("job 2"), "{}", said.stderr);
    // The way out.
    world.epilog(one).ok();
    world.run_check().ok();
}
