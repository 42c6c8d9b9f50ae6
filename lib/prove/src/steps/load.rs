//! Programs on an instance: what lists and counters show of them, and what keeps the instance from its end.

use std::thread::sleep;
use std::time::Duration;

use gpufrac_compute::client::{Client, Setting};
use gpufrac_compute::order::Failure;
use gpufrac_nvml::codes;
use gpufrac_nvml::single::DeviceHandle;
use gpufrac_nvml::telemetry::Counters;

use crate::driver::{Stop, named, said};
use crate::steps::fence;
use crate::work::{Compute, Made, Work};

/// The least time between two samples of GPM (nvml.h, `nvmlGpmMetricsGet`).
const GPM_PAUSE: Duration = Duration::from_millis(110);
/// Below this part of the time an instance counts as idle.
const IDLE: f64 = 0.05;

pub fn load(work: &Work<'_, '_>) -> Result<(), Stop> {
    let Some(made) = work.make_smallest()? else {
        return Ok(());
    };
    let Some(compute) = made.compute.clone() else {
        return work.remove(&made);
    };
    let has_gpm = work.gpu.has_gpm()?;
    if has_gpm {
        counted(work, "activity of an idle instance by GPM", &made, true)?
    } else {
        work.not_measured("activity by GPM", "the GPU has none")
    }
    listed(work, &compute, "no process on an idle instance", None)?;
    let client = match Client::start(&work.program.client, &Setting::on(&compute.uuid)) {
        Ok(mut client) => client.list_devices().map(|seen| (client, seen)),
        Err(failure) => Err(failure),
    };
    match client {
        Err(failure) => work.not_measured("programs on an instance", failure),
        Ok((client, seen)) => {
            let uuids: Vec<&str> = seen.devices.iter().map(|it| it.uuid.as_str()).collect();
            let question = "CUDA shows a program its instance alone";
            work.check(question, "", &compute.uuid, uuids.join(", "));
            used(work, &made, &compute, client, has_gpm)?;
        }
    }
    if has_gpm && !work.standing().is_empty() {
        across(work, &made)?;
    }
    if !work.standing().is_empty() {
        work.remove(&made)?;
    }
    fence::fence(work)?;
    work.only_own()
}

fn sample<'s>(work: &Work<'_, 's>, gi_id: u32) -> Result<Result<Counters<'s>, u32>, Stop> {
    match work.gpu.counters(gi_id) {
        Ok(counters) => Ok(Ok(counters)),
        Err(error) => Ok(Err(error.code().unwrap_or(codes::UNKNOWN))),
    }
}

/// The activity between two samples in words, `idle` or `busy`; or the code.
fn activity(work: &Work<'_, '_>, gi_id: u32) -> Result<String, Stop> {
    let first = match sample(work, gi_id)? {
        Ok(first) => first,
        Err(code) => return Ok(named(code)),
    };
    sleep(GPM_PAUSE);
    let second = match sample(work, gi_id)? {
        Ok(second) => second,
        Err(code) => return Ok(named(code)),
    };
    Ok(match work.gpu.session().activity(&first, &second) {
        Ok(part) if part < IDLE => "idle".to_owned(),
        Ok(_) => "busy".to_owned(),
        Err(error) => named(error.code().unwrap_or(codes::UNKNOWN)),
    })
}

fn counted(work: &Work<'_, '_>, question: &str, made: &Made<'_>, idle: bool) -> Result<(), Stop> {
    let expected = if idle { "idle" } else { "busy" };
    let found = activity(work, made.gi_id)?;
    work.check(question, "", expected, found);
    Ok(())
}

/// The processes that the driver lists on the GPU and on the instance: none, or the one with this pid.
fn listed(
    work: &Work<'_, '_>,
    compute: &Compute<'_>,
    question: &str,
    pid: Option<u32>,
) -> Result<(), Stop> {
    let call = "nvmlDeviceGetComputeRunningProcesses_v3";
    let whole = work.gpu.calls().itself()?;
    let devices: [(&str, DeviceHandle<'_>); 2] =
        [("of the GPU", whole), ("of the instance", compute.mig)];
    for (subject, device) in devices {
        let found = work.ask(call, subject, |calls| calls.processes(device))?;
        let text = match found {
            Err(code) => named(code),
            Ok(list) => match (list.len(), pid) {
                (0, _) => "none".to_owned(),
                (1, Some(pid)) if list[0].pid == pid => "the program".to_owned(),
                (count, _) => format!("{count} other processes"),
            },
        };
        let expected = pid.map_or("none", |_| "the program");
        work.check(question, format!("the list {subject}"), expected, text);
    }
    Ok(())
}

/// With a program that has a context.
fn used(
    work: &Work<'_, '_>,
    made: &Made<'_>,
    compute: &Compute<'_>,
    mut client: Client,
    has_gpm: bool,
) -> Result<(), Stop> {
    match client.begin() {
        Err(failure) => {
            work.check("a program can work on its instance", "", "success", failure);
            return Ok(());
        }
        Ok(_) => work.check(
            "a program can work on its instance",
            "",
            "success",
            "success",
        ),
    }
    listed(
        work,
        compute,
        "the driver lists the program of an instance",
        Some(client.pid()),
    )?;
    let question = "an instance with a program on it is not destroyed";
    let done = work.destroy_compute(made, compute.ci)?;
    work.check(question, "", named(codes::IN_USE), said(&done));
    if done.is_ok() {
        return Ok(());
    }
    if let Err(failure) = busy(work, made, &mut client, has_gpm)? {
        work.not_measured("an instance under load", failure);
        return Ok(());
    }
    killed(work, made, compute, client)
}

fn busy(
    work: &Work<'_, '_>,
    made: &Made<'_>,
    client: &mut Client,
    has_gpm: bool,
) -> Result<Result<(), Failure>, Stop> {
    if let Err(failure) = client.start_computing(work.pace.load) {
        return Ok(Err(failure));
    }
    if has_gpm {
        let question = "activity of an instance under load by GPM";
        counted(work, question, made, false)?;
    }
    let computed = match client.finish() {
        Ok(computed) => computed,
        Err(failure) => return Ok(Err(failure)),
    };
    let speed = format!(
        "{:.1} of 10^12 operations with 32 bits a second",
        computed.tflops
    );
    work.note("the speed of the smallest instance", speed);
    Ok(Ok(()))
}

/// SIGKILL while a kernel runs: how long the instance stays in use.
fn killed(
    work: &Work<'_, '_>,
    made: &Made<'_>,
    compute: &Compute<'_>,
    mut client: Client,
) -> Result<(), Stop> {
    if client.start_computing(work.pace.patience).is_err() {
        return Ok(());
    }
    let mut failed = None;
    let killed = gpufrac_compute::load::kill(client, work.pace.patience, || {
        match work.destroy_compute(made, compute.ci) {
            Ok(done) => done.is_ok(),
            Err(stop) => {
                failed = Some(stop);
                true
            }
        }
    });
    if let Some(stop) = failed {
        return Err(stop);
    }
    let question =
        "an instance is free within the patience of the run after SIGKILL of its program";
    let free = if killed.free_ms.is_some() { "free" } else { "in use" };
    work.check(question, "", "free", free);
    if let Some(ms) = killed.free_ms {
        work.took("compute instance free after SIGKILL", "alone", ms);
        let done = work.destroy_bare(made)?;
        work.check(
            "its GPU instance is free then",
            "",
            "success (0)",
            said(&done),
        );
    }
    Ok(())
}

/// Two samples with a new instance at the same place between them. No part of gpufrac relies on the value.
fn across(work: &Work<'_, '_>, made: &Made<'_>) -> Result<(), Stop> {
    let first = sample(work, made.gi_id)?;
    work.remove(made)?;
    let Some(again) = work.make(made.profile_id, made.placement)? else {
        return Ok(());
    };
    sleep(GPM_PAUSE);
    let second = sample(work, again.gi_id)?;
    let session = work.gpu.session();
    let value = match (first, second) {
        (Ok(first), Ok(second)) => match session.activity(&first, &second) {
            Ok(part) => format!("{:.0} %", part * 100.0),
            Err(error) => named(error.code().unwrap_or(codes::UNKNOWN)),
        },
        (Err(code), _) | (_, Err(code)) => named(code),
    };
    let question = "activity by GPM across a new instance at the same place";
    work.note(question, value);
    work.remove(&again)
}
