//! The connection of a fake CUDA program to `mps-standin`.
//!
//! The program connects to the socket `control` of the pipe directory, as CUDA does, and sends its pid. The daemon
//! answers with a server, and adds the program to this server's clients. The connection stays open: a line from the
//! daemon ends the client.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nvidia_ml::processes::start_ticks;
use serde::{Deserialize, Serialize};

/// The server's program.
pub const SERVER: &str = "nvidia-cuda-mps-server";
/// The word by which a client requests a server; its pid follows.
pub const CONNECT: &str = "connect";

/// The line to the clients of a server whose client had a fault.
pub const FAULT: &str = "fault";

const LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const PERCENTAGE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";

#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// CUDA error 807.
    #[error("the MPS server is not ready ({0})")]
    NotReady(String),
    /// CUDA error 806.
    #[error("the MPS server {0} has ended")]
    Ended(u32),
    /// CUDA error 810.
    #[error("the MPS client has been terminated")]
    Terminated,
    /// CUDA error 719: a neighbour's fault.
    #[error("another client of the MPS server had a fault")]
    Fault,
    /// The variable has an invalid value.
    #[error("{LIMIT}=`{0}`: write NUMBER=MEMORY, such as 0=4G, and more of them behind commas")]
    Limit(String),
}

impl MpsError {
    /// CUDA's error number; a program's exit status is its last eight bits.
    pub fn number(&self) -> u16 {
        match self {
            MpsError::Ended(_) => 806,
            MpsError::NotReady(_) => 807,
            MpsError::Terminated => 810,
            MpsError::Fault => 719,
            MpsError::Limit(_) => 1,
        }
    }
}

/// Memory in MPS's notation, in MiB: `2G`, `512M` or `512`.
pub fn parse_limit(text: &str) -> Option<u64> {
    match text.strip_suffix('G') {
        Some(number) => number.parse::<u64>().ok()?.checked_mul(1024),
        None => text.strip_suffix('M').unwrap_or(text).parse().ok(),
    }
}

/// The variables of MPS in the environment of a program.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The pipe directory.
    pub pipe: Option<PathBuf>,
    /// The program's own memory limits in MiB, by number or name of the device.
    pub own_limits: BTreeMap<String, u64>,
    /// The program's own limit of multiprocessors, in percent.
    pub own_percentage: Option<f64>,
}

impl Settings {
    /// Reads `CUDA_MPS_PIPE_DIRECTORY`, `CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` and `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`;
    /// what is no percentage limits nothing. Errors: the limit is not valid.
    pub fn from_environment() -> Result<Settings, MpsError> {
        let Some(pipe) = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY") else {
            return Ok(Settings::default());
        };
        let limits = std::env::var(LIMIT).unwrap_or_default();
        Ok(Settings {
            pipe: Some(pipe.into()),
            own_limits: parse_limits(&limits).ok_or(MpsError::Limit(limits))?,
            own_percentage: std::env::var(PERCENTAGE)
                .ok()
                .and_then(|text| text.parse().ok())
                .filter(|percentage| *percentage > 0.0),
        })
    }

    /// How many of the device's multiprocessors the program sees: the lesser limit holds, rounded down (MPS guide).
    pub fn multiprocessors(&self, server: &Server, all: u32) -> u32 {
        let percentage = self.own_percentage.unwrap_or(100.0).min(server.percentage);
        ((f64::from(all) * percentage / 100.0) as u32).max(1)
    }

    /// The smallest limit for the device with the server's number `number`, in MiB.
    pub fn limit_mib(&self, server: &Server, number: usize) -> Option<u64> {
        let name = server.devices.get(number);
        let by_name = |limits: &BTreeMap<String, u64>| limits.get(name?).copied();
        let all = [
            server.limits.get(&number.to_string()).copied(),
            by_name(&server.limits),
            // The program uses its device 0 alone.
            self.own_limits.get("0").copied(),
            by_name(&self.own_limits),
        ];
        all.into_iter().flatten().min()
    }
}

/// The limits by number or UUID of the device; None if the text is not a list of limits.
fn parse_limits(text: &str) -> Option<BTreeMap<String, u64>> {
    let parts = text.split(',').filter(|part| !part.is_empty());
    let limits = parts.map(|part| {
        let (device, limit) = part.split_once('=')?;
        let device = device.trim();
        let is_uuid = device.starts_with("GPU-") || device.starts_with("MIG-");
        let is_device = is_uuid || device.parse::<u32>().is_ok();
        is_device.then_some((device.to_owned(), parse_limit(limit.trim())?))
    });
    limits.collect()
}

/// A server, as the daemon describes it to a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Server {
    pub pid: u32,
    /// When it started, in ticks.
    pub started: u64,
    /// The devices in the daemon's `CUDA_VISIBLE_DEVICES`; empty for all.
    pub devices: Vec<String>,
    /// Its limit of multiprocessors for new clients, in percent.
    pub percentage: f64,
    /// Memory limits in MiB, by number or name of the device.
    pub limits: BTreeMap<String, u64>,
}

/// The daemon's answer to [`CONNECT`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The client is served.
    Server(Server),
    /// The client is refused.
    NotReady(String),
}

/// A client's connection.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    server: Server,
}

impl Connection {
    /// Connects to the daemon. None if there is no daemon; CUDA then works without MPS.
    /// Errors: the daemon has no server for this program.
    pub fn open(settings: &Settings) -> Result<Option<Connection>, MpsError> {
        let Some(pipe) = &settings.pipe else {
            return Ok(None);
        };
        let Ok(stream) = UnixStream::connect(pipe.join("control")) else {
            return Ok(None);
        };
        let broken = |error: &dyn std::fmt::Display| MpsError::NotReady(error.to_string());
        let answer = ask(&stream).map_err(|error| broken(&error))?;
        stream
            .set_nonblocking(true)
            .map_err(|error| broken(&error))?;
        match serde_json::from_str(&answer).map_err(|error| broken(&error))? {
            Answer::Server(server) => Ok(Some(Connection { stream, server })),
            Answer::NotReady(reason) => Err(MpsError::NotReady(reason)),
        }
    }

    /// The server that serves this connection.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Checks that the server still serves this program. It also does so after its daemon has ended.
    /// Errors: it does not.
    pub fn check(&self) -> Result<(), MpsError> {
        let mut said = [0; 16];
        if let Ok(length @ 1..) = (&self.stream).read(&mut said) {
            return Err(if said[..length].starts_with(FAULT.as_bytes()) {
                MpsError::Fault
            } else {
                MpsError::Terminated
            });
        }
        if start_ticks(self.server.pid) != Some(self.server.started) {
            return Err(MpsError::Ended(self.server.pid));
        }
        Ok(())
    }
}

fn ask(mut stream: &UnixStream) -> std::io::Result<String> {
    writeln!(stream, "{CONNECT} {}", std::process::id())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        let read = |text| {
            let limits: Vec<_> = parse_limits(text)?.into_iter().collect();
            Some(limits)
        };
        let limit = |device: &str, mib| (device.to_owned(), mib);
        assert_eq!(read(""), Some(Vec::new()));
        assert_eq!(read("0=2G"), Some(vec![limit("0", 2048)]));
        assert_eq!(
            read("1=1G,GPU-2=500M"),
            Some(vec![limit("1", 1024), limit("GPU-2", 500)])
        );
        for wrong in ["2G", "0=", "0=x", "x=1G", "0=1T"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
