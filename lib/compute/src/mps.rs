//! What MPS does under the limits that gpufrac sets: with a control daemon of its own, started as the prolog starts
//! it, and clients with the variables of jobs.

mod event;
mod limits;
mod record;
mod stage;

use std::path::Path;
use std::time::{Duration, Instant};

pub use record::*;

use crate::client::Program;
use event::{Event, after};
use stage::Stage;

/// The times of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The length of a computation whose speed is measured.
    pub compute: Duration,
    /// The length of a computation that an event interrupts.
    pub interrupted: Duration,
    /// How long a client may take for an answer.
    pub answer: Duration,
    /// How long a client may take to start that is expected to wait.
    pub wait: Duration,
    /// The limit of all steps; those that are left over are not measured.
    pub all: Duration,
}

impl Default for Pace {
    /// For a real GPU.
    fn default() -> Pace {
        Pace {
            compute: Duration::from_secs(2),
            interrupted: Duration::from_secs(3),
            answer: Duration::from_secs(20),
            wait: Duration::from_secs(8),
            all: Duration::from_secs(300),
        }
    }
}

/// The measurement of one device.
pub struct Plan<'a> {
    /// The program of clients, which a second user must be able to run.
    pub program: &'a Program,
    /// `nvidia-cuda-mps-control`.
    pub control: &'a Path,
    /// A folder of root for control daemons; it is made and removed.
    pub folder: &'a Path,
    /// The device: `GPU-...` or `MIG-...`. No other process may use it, and its compute mode must be the default.
    pub device: &'a str,
    pub pace: Pace,
    /// Whether to stop before the next step, such as after a signal.
    pub stop: &'a dyn Fn() -> bool,
}

/// Measures. Each step has its own control daemon and clients, which have ended when the step returns. It provokes
/// faults and kills clients at work.
pub fn measure(plan: &Plan<'_>) -> Record {
    let deadline = Instant::now() + plan.pace.all;
    let stage = |one_server, total_mib| Stage {
        plan,
        one_server,
        total_mib,
        deadline,
    };
    let without = stage(true, Ok(0)).step(limits::without);
    let total = match &without {
        Outcome::Measured(without) => Ok(without.alone.memory_mib),
        Outcome::NotMeasured(reason) => Err(reason.clone()),
    };
    let servers = |one_server| {
        let stage = stage(one_server, total.clone());
        let after = |event| stage.step(|stage| after(stage, event));
        Servers {
            shares: stage.step(limits::shares),
            limits: stage.step(limits::unusual),
            raised: stage.step(limits::raised),
            second_user: stage.step(limits::second_user),
            fault: after(Event::Fault),
            terminated: after(Event::Terminate),
            killed: after(Event::Kill),
            shut_down: after(Event::ShutDown),
            killed_daemon: after(Event::KillDaemon),
            quit_in_time: after(Event::QuitInTime),
            quit: after(Event::Quit),
        }
    };
    Record {
        without,
        one_server: servers(true),
        server_per_user: servers(false),
    }
}
