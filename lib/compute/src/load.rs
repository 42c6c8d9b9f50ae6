//! What happens when a client at work is killed, and when CUDA starts after the GPU was changed.

use std::time::{Duration, Instant};

use gpufrac_host::pause::Pause;
use serde::{Deserialize, Serialize};

use crate::client::{Client, Program, Setting};
use crate::order::Failure;

/// The times after SIGKILL of a client.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Killed {
    /// Milliseconds until the process had ended; None if it did not.
    pub ended_ms: Option<f64>,
    /// Milliseconds until its device was free; None if it was not.
    pub free_ms: Option<f64>,
    /// How often it was tried to free the device.
    pub tries: u32,
}

/// Kills a client, and measures how long its device is in use afterwards. `free` tries to free the device, such as by
/// destroying the instance, and returns whether that succeeded.
pub fn kill(mut client: Client, limit: Duration, mut free: impl FnMut() -> bool) -> Killed {
    let begun = Instant::now();
    let ms = || begun.elapsed().as_secs_f64() * 1e3;
    let mut pause = pause();
    let mut killed = Killed {
        ended_ms: None,
        free_ms: None,
        tries: 0,
    };
    client.kill();
    while begun.elapsed() < limit {
        if killed.ended_ms.is_none() && client.has_ended() {
            killed.ended_ms = Some(ms());
        }
        if killed.free_ms.is_none() {
            killed.tries += 1;
            killed.free_ms = free().then(ms);
        }
        if killed.ended_ms.is_some() && killed.free_ms.is_some() {
            break;
        }
        pause.sleep(limit);
    }
    killed
}

/// An answer of CUDA's start, and when it was first given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Milliseconds since the first try began.
    pub ms: f64,
    /// The number of devices, or the failure: 802 (`CUDA_ERROR_SYSTEM_NOT_READY`) while the fabric is not ready.
    pub devices: Result<usize, Failure>,
}

/// Starts CUDA in new processes until it succeeds. Returns the answers that differ from the one before; the last one
/// is a failure if the limit was reached.
pub fn start(program: &Program, setting: &Setting, limit: Duration) -> Vec<Start> {
    let begun = Instant::now();
    let mut pause = pause();
    let mut answers: Vec<Start> = Vec::new();
    loop {
        let seen = Client::start(program, setting).and_then(|mut client| client.list_devices());
        let devices = seen.map(|seen| seen.devices.len());
        let is_ready = devices.is_ok();
        if answers.last().is_none_or(|last| last.devices != devices) {
            let ms = begun.elapsed().as_secs_f64() * 1e3;
            answers.push(Start { ms, devices });
        }
        if is_ready || begun.elapsed() > limit {
            return answers;
        }
        pause.sleep(limit);
    }
}

fn pause() -> Pause {
    Pause::new(Duration::from_millis(1), Duration::from_millis(100))
}
