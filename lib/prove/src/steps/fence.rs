//! A fenced process, in a control group as a job's, tries to open what is not its own: by device nodes, and through
//! CUDA.

use std::path::Path;

use gpufrac_compute::client::{Client, Setting};
use gpufrac_compute::order::{Failure, Opened};
use gpufrac_fence::Closed;
use gpufrac_host::files::{DeviceNumber, DeviceRule};

use crate::driver::Stop;
use crate::remains;
use crate::work::{Made, Work};

/// `CUDA_ERROR_NO_DEVICE` of cuda.h.
const NO_DEVICE: i32 = 100;

pub fn fence(work: &Work<'_, '_>) -> Result<(), Stop> {
    let Some((smallest, own, other)) = work.smallest_places() else {
        return Ok(());
    };
    if own.overlaps(other) {
        return Ok(());
    }
    let Some(own) = work.make(smallest, own)? else {
        return Ok(());
    };
    if let Some(other) = work.make(smallest, other)? {
        let tried = attempts(work, &own, &other)?;
        if let Err(failure) = tried {
            let question = "a fenced process opens its own instance alone";
            work.not_measured(question, failure);
        }
        work.remove(&other)?;
    }
    work.remove(&own)
}

/// The capabilities of an instance.
fn minors(work: &Work<'_, '_>, made: &Made<'_>) -> Vec<u32> {
    let (caps, gpu) = (&work.caps, work.gpu.minor);
    let ci = made.compute.as_ref().map(|compute| compute.ci_id);
    let of = |ci| caps.declared(gpu, made.gi_id, ci).map(|it| it.minor);
    [of(None), of(ci)].into_iter().flatten().collect()
}

fn attempts(
    work: &Work<'_, '_>,
    own: &Made<'_>,
    other: &Made<'_>,
) -> Result<Result<(), Failure>, Stop> {
    let caps = &work.caps;
    let (Some(mine), Some(others)) = (&own.compute, &other.compute) else {
        return Ok(Ok(()));
    };
    // Root's question to NVML makes the device nodes, as nvidia-modprobe does for programs of users.
    for uuid in [&mine.uuid, &others.uuid] {
        let asked = work.ask("nvmlDeviceGetHandleByUUID", "MIG", |calls| {
            calls.by_uuid(uuid)
        })?;
        let _ = asked.map(|mig| work.gpu.calls().memory(mig));
    }
    let Ok(major) = caps.major("nvidia-caps") else {
        return Ok(Err(Failure::Process(
            "/proc/devices has no nvidia-caps".to_owned(),
        )));
    };
    let own_minors = minors(work, own);
    let (general, of_gpus) = caps.minors().unwrap_or_default();
    let all = general.into_iter().chain(of_gpus.iter().map(|it| it.minor));
    let foreign = all.filter(|minor| !own_minors.contains(minor));
    let device = |minor| DeviceRule::Device(DeviceNumber { major, minor });
    let mut rules: Vec<DeviceRule> = foreign.map(device).collect();
    let mut gpus = Vec::new();
    for gpu in work.gpu.session().gpus()? {
        if gpu.minor != work.gpu.minor
            && let Ok(number) = caps.gpu_device(gpu.minor)
        {
            rules.push(DeviceRule::Device(number));
            gpus.push(gpu.minor);
        }
    }
    let setting = Setting {
        closed: Some(Closed::alike(rules)),
        ..Setting::on(&mine.uuid)
    };
    let mut client = match Client::start(&work.program.client, &setting) {
        Ok(client) => client,
        Err(failure) => return Ok(Err(failure)),
    };
    let dev = work.driver_root.join("dev");
    let cap = |minor: u32| dev.join("nvidia-caps").join(remains::name_of(minor));
    let mut paths = Vec::new();
    paths.extend(
        own_minors
            .iter()
            .map(|minor| ("its own capability", cap(*minor), false)),
    );
    let of_other = minors(work, other);
    paths.extend(
        of_other
            .iter()
            .map(|minor| ("another instance's capability", cap(*minor), true)),
    );
    let gpu = |minor: &gpufrac_core::ids::DeviceMinor| dev.join(format!("nvidia{minor}"));
    paths.extend(gpus.iter().map(|minor| ("another GPU", gpu(minor), true)));
    for (what, path, closed) in paths {
        let found = match client.open(&path, false) {
            Ok(opened) => opened,
            Err(failure) => return Ok(Err(failure)),
        };
        judge(work, what, &path, found, closed);
    }
    drop(client);
    Ok(through_cuda(work, &setting, &others.uuid))
}

fn judge(work: &Work<'_, '_>, what: &str, path: &Path, found: Opened, closed: bool) {
    let question = "a fenced process opens its own instance alone";
    if found.is_missing() || !path.exists() {
        work.note("device nodes that do not exist", what);
        return;
    }
    let word = |denied| if denied { "denied" } else { "open" };
    work.check(question, what, word(closed), word(found.is_denied()));
}

/// The fenced process names the other instance.
fn through_cuda(work: &Work<'_, '_>, setting: &Setting, other: &str) -> Result<(), Failure> {
    let setting = setting.clone().with("CUDA_VISIBLE_DEVICES", other);
    let mut client = Client::start(&work.program.client, &setting)?;
    let question = "CUDA gives a fenced process no other instance";
    match client.list_devices() {
        Ok(seen) if seen.devices.is_empty() => work.check(question, "", "none", "none"),
        Ok(seen) => {
            let uuids: Vec<&str> = seen.devices.iter().map(|it| it.uuid.as_str()).collect();
            work.check(question, "", "none", uuids.join(", "));
        }
        Err(failure) if failure.code() == Some(NO_DEVICE) => {
            work.check(question, "", "none", "none");
        }
        Err(failure) => work.not_measured(question, failure),
    }
    Ok(())
}
