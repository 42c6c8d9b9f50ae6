//! MIG mode off and on again, where the model does it without a reset.

use std::time::{Duration, Instant};

use gpufrac_nvml::codes;

use crate::driver::{Stop, named, said};
use crate::work::Work;

/// The longest wait for the fabric of the NVSwitches.
const FABRIC: Duration = Duration::from_secs(30);
/// The pause between two looks at it.
const PAUSE: Duration = Duration::from_millis(100);
/// `NVML_GPU_FABRIC_STATE_IN_PROGRESS` of nvml.h.
const IN_PROGRESS: u32 = 2;

/// Switches the mode; whether it is as wanted then.
pub fn switch(work: &Work<'_, '_>, on: bool) -> Result<bool, Stop> {
    let word = if on { "on" } else { "off" };
    let status = work.change("nvmlDeviceSetMigMode", "alone", word, |calls| {
        calls.set_mig_mode(on)
    })?;
    work.check(
        "the code of a change of MIG mode",
        word,
        named(codes::SUCCESS),
        said(&status),
    );
    let status = status.unwrap_or(codes::SUCCESS);
    work.check(
        "the activation status",
        word,
        named(codes::SUCCESS),
        named(status),
    );
    let mode = work.ask("nvmlDeviceGetMigMode", "", |calls| calls.mig_mode())?;
    let found = mode.map_or_else(named, |(now, then)| format!("{now}, after a reset {then}"));
    work.check(
        "MIG mode after a change",
        word,
        format!("{on}, after a reset {on}"),
        found,
    );
    Ok(mode.is_ok_and(|(now, _)| now == on))
}

/// Off and on, with minors, fabric and profiles in each mode.
pub fn mode(work: &Work<'_, '_>) -> Result<(), Stop> {
    work.note("the fabric with MIG on", fabric(work)?);
    let off = switch(work, false)?;
    if off {
        let begin = Instant::now();
        let mut now = fabric(work)?;
        work.note("the fabric directly after MIG mode ended", &now);
        while now.starts_with(&format!("state {IN_PROGRESS}")) && begin.elapsed() < FABRIC {
            work.go_on()?;
            std::thread::sleep(PAUSE);
            now = fabric(work)?;
        }
        let ms = begin.elapsed().as_millis();
        work.note("the fabric later", format!("{now} after {ms} ms"));
        let same = work.gpu.geometry()? == work.geometry;
        work.check(
            "profiles and positions do not depend on the mode",
            "",
            true,
            same,
        );
        minor(work, "off")?;
    }
    if !switch(work, true)? {
        return Err(Stop::ModeLost);
    }
    minor(work, "on")?;
    work.only_own()
}

fn minor(work: &Work<'_, '_>, word: &str) -> Result<(), Stop> {
    let now = work.gpu.minor_now()?;
    let question = "the GPU's device number stays when MIG mode changes";
    work.check(question, word, work.gpu.minor, now);
    Ok(())
}

fn fabric(work: &Work<'_, '_>) -> Result<String, Stop> {
    let answer = work.ask("nvmlDeviceGetGpuFabricInfo", "", |calls| calls.fabric())?;
    Ok(match answer {
        Ok(fabric) => format!("state {}, status {}", fabric.state, named(fabric.status)),
        Err(code) => named(code),
    })
}
