//! GPM on a simulated GPU whose counters another program has.
#![expect(clippy::disallowed_methods, reason = "waits for real counters")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;

use gpufrac_core::config::Config;
use gpufrac_core::lease::Lease;
use gpufrac_node::node::Node;
use gpufrac_reaper::key::SliceId;
use gpufrac_reaper::measure::sample::{Activity, NodeSamples, Sample, Sampler};
use gpufrac_reaper::measure::telemetry::Telemetry;
use gpufrac_records::evidence::Source;
use nvidia_ml::model::Model;
use nvidia_ml::processes;
use nvidia_ml::store::Store;

/// A GPU with the instance of a lease, and a node of gpufrac with this GPU.
fn world() -> (tempfile::TempDir, Store, Node, Lease) {
    let keep = tempfile::tempdir().unwrap();
    let root = keep.path().join("gpus");
    let models = [Model::find("H100-80").unwrap()];
    let made = nvidia_ml::node::Node::new("580.95.05", &models, true);
    let sim = Store::create(&root, &made).unwrap();
    let built = std::env::current_exe().unwrap();
    let library = root.join("lib/libnvidia-ml.so.1");
    fs::create_dir_all(library.parent().unwrap()).unwrap();
    fs::copy(built.with_file_name("libnvidia_ml.so"), &library).unwrap();
    let mut lease = test_examples::lease(12);
    let instance = lease.slice.mig_mut().unwrap().instance.as_mut().unwrap();
    (instance.gi_id, instance.mig_uuid) = sim
        .update(|node| {
            let id = node.create_gpu_instance(0, 14, Some((2, 2)))?.id;
            let compute = node.create_compute_instance(0, id, 1, None)?;
            Ok((id, compute.uuid.clone()))
        })
        .unwrap();
    // As the prolog marks the instance of a job.
    let gi_id = instance.gi_id;
    let ci_id = instance.ci_id;
    let gi = root.join(format!(
        "proc/driver/nvidia/capabilities/gpu0/mig/gi{gi_id}"
    ));
    for folder in [gi.clone(), gi.join(format!("ci{ci_id}"))] {
        let access = folder.join("access");
        let text = fs::read_to_string(&access).unwrap();
        fs::write(&access, format!("{text}DeviceFileModify: 2\n")).unwrap();
    }
    lease.slice.gpu_uuid = made.gpus[0].uuid.clone();
    lease.slice.gpu_minor = gpufrac_core::ids::DeviceMinor(made.gpus[0].minor);
    let text = format!(
        "version = 1\n[paths]\ndriver_root = \"{root}\"\nnvml = \"{library}\"\n[pool.h100]\nmechanism = \"mig\"\nlayout = \"halves\"\ngpu = \"H100-80\"\npartitions = [\"gpu\"]\nnodes = \"n1\"\n",
        root = root.display(),
        library = library.display(),
    );
    let node = Node::new(Config::parse(&text, "gpufrac.toml").unwrap(), "n1");
    (keep, sim, node, lease)
}

/// Promise (reaper): counters of GPM that another program has are unknown activity, never idleness, and the daemon
/// names DCGM's profiling.
#[test]
fn counters_that_another_program_has_are_unknown_activity_and_never_idleness() {
    let (_keep, sim, node, lease) = world();
    let mut telemetry = Telemetry::new(&node);
    let mut sample = || -> NodeSamples {
        let mut observe = || {
            std::thread::sleep(gpufrac_reaper::measure::telemetry::SHORTEST_LOOK);
            true
        };
        let policy = |_: &Lease| &node.config.reaper.general;
        telemetry.sample_all(&node, &[&lease], &mut observe, &policy)
    };
    let id = SliceId::of(&lease);
    let free = sample();
    assert_eq!(free.errors, [] as [&str; 0]);
    assert_eq!(free.samples[&id].activity, Activity::Idle);

    let counters = processes::profiling(&lease.slice.gpu_uuid);
    processes::hold(sim.root(), std::process::id(), &counters).unwrap();
    let taken = sample();
    let why = "nvmlGpmMigSampleGet on GPU 0";
    let cause = "invalid state (29): DCGM's profiling, or another profiler, probably has the counters of the GPU";
    let [error] = &taken.errors[..] else {
        panic!("{:?}", taken.errors);
    };
    assert!(error.contains(why) && error.contains(cause), "{error}");
    let sample = &taken.samples[&id];
    assert_eq!(sample.source, Source::Gpm);
    assert_eq!(sample.activity, Activity::Unknown(error.clone()));
    assert_eq!(sample.busy_share, None);
}

/// The counters of two readings are of one instance only if it had the same mark at both.
#[test]
fn an_instance_that_another_one_replaced_during_the_reading_has_no_sample() {
    let (_keep, sim, node, lease) = world();
    let mut telemetry = Telemetry::new(&node);
    let policy = |_: &Lease| &node.config.reaper.general;
    let gi_id = lease.slice.instance().unwrap().gi_id;
    let folder = format!("proc/driver/nvidia/capabilities/gpu0/mig/gi{gi_id}");
    let access = sim.root().join(folder).join("access");
    let mut marks = ["", "DeviceFileModify: 3\n", ""].into_iter();
    let mut sample = || {
        let mut observe = || {
            std::thread::sleep(gpufrac_reaper::measure::telemetry::SHORTEST_LOOK);
            let text = fs::read_to_string(&access).unwrap();
            fs::write(&access, text + marks.next().unwrap()).unwrap();
            true
        };
        let found = telemetry.sample_all(&node, &[&lease], &mut observe, &policy);
        assert_eq!(found.errors, [] as [&str; 0]);
        found.samples[&SliceId::of(&lease)].clone()
    };
    assert_eq!(sample().activity, Activity::Idle);
    assert_eq!(
        sample(),
        Sample::missing("its instance does not stand"),
        "another mark"
    );
    assert_eq!(sample().activity, Activity::Idle, "the new one stands");
}
