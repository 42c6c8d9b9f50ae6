//! What was measured of MPS. No measurement has a pid, a UUID, or the name of a user or host.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::order::{Computed, Failure, Largest};

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome<T> {
    /// It was measured.
    Measured(T),
    /// It was not measured, with the reason.
    NotMeasured(String),
}

impl<T> Outcome<T> {
    /// The measurement, if there is one.
    pub fn measured(&self) -> Option<&T> {
        match self {
            Outcome::Measured(it) => Some(it),
            Outcome::NotMeasured(_) => None,
        }
    }
}

/// All measurements of MPS on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The device without MPS.
    pub without: Outcome<Without>,
    /// With `-multiuser-server`: one server for all users (drivers from 555 on).
    pub one_server: Servers,
    pub server_per_user: Servers,
}

/// The device without MPS.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Without {
    /// A process alone.
    pub alone: Part,
    /// Two processes that compute at once, one after the other by the driver's time slices.
    pub beside: [Result<Computed, Failure>; 2],
}

/// What a process has of the device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Multiprocessors by attribute.
    pub multiprocessors: u32,
    /// Multiprocessors of the context, as it says; None without an answer.
    pub affinity: Option<u32>,
    /// Multiprocessors on which blocks ran.
    pub blocks_on: u32,
    /// The device's memory in MiB, as the process sees it.
    pub memory_mib: u64,
    /// Free memory in MiB, as the process sees it.
    pub free_mib: u64,
    /// The memory that it gets.
    pub largest: Largest,
    /// Its computation alone on the device; None where the step does not measure it.
    pub computed: Option<Computed>,
}

/// A client's part, or the error with which it started.
pub type Got = Result<Part, Failure>;

/// Measurements with one kind of servers. Limits of the daemon are 50 % unless said otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Servers {
    /// Two clients within their shares.
    pub shares: Outcome<Shares>,
    /// Clients whose own limits are missing, too high, or of another device; by name.
    pub limits: Outcome<BTreeMap<String, Limited>>,
    /// Limits that are raised while a server runs.
    pub raised: Outcome<Raised>,
    /// A second user's client.
    pub second_user: Outcome<SecondUser>,
    /// An illegal address in one client.
    pub fault: Outcome<After>,
    /// `terminate_client` of a client at work.
    pub terminated: Outcome<After>,
    /// SIGKILL of a client at work.
    pub killed: Outcome<After>,
    /// `shutdown_server -f` with clients at work.
    pub shut_down: Outcome<After>,
    /// SIGKILL of the control daemon with clients at work.
    pub killed_daemon: Outcome<After>,
    /// `quit -t 1` with clients at work.
    pub quit_in_time: Outcome<After>,
    /// `quit` with clients at work.
    pub quit: Outcome<After>,
}

/// Two clients within their shares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shares {
    /// The memory limit of a quarter, in MiB.
    pub quarter_limit_mib: u64,
    /// A client with 25 %.
    pub quarter: Got,
    /// A client with 50 %.
    pub half: Got,
    /// Both compute at once: the quarter, the half.
    pub at_once: [Result<Computed, Failure>; 2],
}

/// A client with unusual limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limited {
    pub got: Got,
    /// Whether a server has it as client.
    pub is_client: bool,
}

/// Limits that are raised from 25 % to 50 % while a server runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Raised {
    /// The client that started before.
    pub before: Got,
    /// A client after the defaults were raised.
    pub defaults: Got,
    /// A client after the server's limits were raised too.
    pub server: Got,
    /// The multiprocessors and memory of the first client afterwards.
    pub before_again: Result<(u32, Largest), Failure>,
}

/// A client of a second user, while one of the first user runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SecondUser {
    /// The start of its context; silent if it waits for the first user.
    pub beside: Result<(), Failure>,
    /// The same after the first client ended; None if it had started before.
    pub after: Option<Result<(), Failure>>,
}

/// What an event does to a victim, its neighbour, and clients that start later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct After {
    /// Whether the control daemon took the command and ended it in time; None for an event without a command.
    pub answered: Option<bool>,
    /// The victim's computation and a kernel after it, or its fault.
    pub victim: Result<(), Failure>,
    /// The neighbour's computation and a kernel after it.
    pub neighbour: Result<(), Failure>,
    /// A client that starts while both still run.
    pub newcomer: Result<(), Failure>,
    /// A client that starts after both ended.
    pub newcomer_alone: Result<(), Failure>,
    /// Whether the newcomers are clients of a server, or work without MPS.
    pub newcomers_are_clients: [bool; 2],
    /// The control daemon after the event, and after all clients ended.
    pub daemon: [State; 2],
}

/// The state of a control daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It answers: the status and number of clients of each server.
    Answers(Vec<(String, usize)>),
    /// It has ended; whether a server of it runs.
    Ended {
        /// Whether a server runs without it.
        servers: bool,
    },
    /// It runs and does not answer.
    Silent,
}
