//! dcgm-exporter's text endpoint: the only one that knows the activity of instances before Hopper.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::time::Duration;

use crate::clock::BootTime;
use gpufrac_core::ids::UserId;

/// Part of the time in which the graphics or compute engine was active, 0 to 1 (field 1001).
const ACTIVITY: &str = "DCGM_FI_PROF_GR_ENGINE_ACTIVE";
/// The exporter is on this node: what takes longer hangs.
const LONGEST_ANSWER_S: u64 = 2;
/// No node has so many metrics.
const MOST_ANSWER_BYTES: u64 = 4 << 20;
/// The exporter reads the driver every 30 s unless told otherwise, and something always changes: energy,
/// power, temperature.
const LONGEST_STANDSTILL: Duration = Duration::from_secs(120);

/// The first number of a person's account (login.defs(5), `UID_MIN`).
const FIRST_PERSON_UID: UserId = UserId(1000);

/// Why the endpoint gave no metrics.
#[derive(Debug, thiserror::Error)]
pub enum DcgmError {
    /// The connection or the answer failed.
    #[error("`{url}`: {source}")]
    Request {
        /// The endpoint.
        url: String,
        /// The client's reason.
        source: minreq::Error,
    },
    /// The body ended too early.
    #[error("`{url}`: {source}")]
    Read {
        /// The endpoint.
        url: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The answer is an HTTP error.
    #[error("`{url}` answered {status}")]
    Status {
        /// The endpoint.
        url: String,
        /// The status of HTTP.
        status: u16,
    },
    /// The body is longer than any node's metrics.
    #[error("`{url}` does not end")]
    TooLong {
        /// The endpoint.
        url: String,
    },
    /// The body is not UTF-8.
    #[error("`{url}` is no text")]
    NoText {
        /// The endpoint.
        url: String,
    },
    /// The port belongs to a person, who may lie about the jobs of others.
    #[error("`{url}`: user {owner} listens there, and not a service of the system")]
    Listener {
        /// The endpoint.
        url: String,
        /// The user id of the socket.
        owner: UserId,
    },
}

/// A GPU instance: UUID of the GPU, id of the instance.
pub type InstanceId = (String, u32);

/// What was read, and when it last changed.
pub struct Dcgm {
    url: String,
    last: HashMap<String, (u64, BootTime)>,
}

/// A metric of a GPU.
#[derive(Debug, PartialEq)]
struct Line<'a> {
    name: &'a str,
    labels: HashMap<&'a str, &'a str>,
    value: f64,
}

impl Dcgm {
    /// Of the endpoint at `url`.
    pub fn new(url: &str) -> Dcgm {
        Dcgm {
            url: url.to_owned(),
            last: HashMap::new(),
        }
    }

    /// The activity of every instance whose GPU has fresh values.
    pub fn read(&mut self, now: BootTime) -> Result<HashMap<InstanceId, f64>, DcgmError> {
        let text = self.fetch()?;
        Ok(self.take(&text, now))
    }

    fn fetch(&self) -> Result<String, DcgmError> {
        let url = || self.url.clone();
        let failed = |source| DcgmError::Request { url: url(), source };
        self.check_listener()?;
        let request = minreq::get(&self.url)
            .with_timeout(LONGEST_ANSWER_S)
            .with_follow_redirects(false);
        let response = request.send_lazy().map_err(failed)?;
        if response.status_code != 200 {
            return Err(DcgmError::Status {
                url: url(),
                status: response.status_code,
            });
        }
        let mut text = Vec::new();
        let whole = response.take(MOST_ANSWER_BYTES).read_to_end(&mut text);
        let length = whole.map_err(|source| DcgmError::Read { url: url(), source })?;
        if length as u64 == MOST_ANSWER_BYTES {
            return Err(DcgmError::TooLong { url: url() });
        }
        String::from_utf8(text).map_err(|_| DcgmError::NoText { url: url() })
    }

    /// Any user may take a port while the exporter is down, and say that the jobs of others are idle.
    fn check_listener(&self) -> Result<(), DcgmError> {
        let host = self.url.trim_start_matches("http://");
        let host = host.split('/').next().unwrap_or_default();
        let (name, port) = host.rsplit_once(':').unwrap_or((host, "80"));
        if !["localhost", "127.0.0.1", "[::1]"].contains(&name) {
            // Not this node: its admin's.
            return Ok(());
        }
        let owner = port.parse().ok().and_then(listener);
        match owner {
            Some(owner) if owner >= FIRST_PERSON_UID => Err(DcgmError::Listener {
                url: self.url.clone(),
                owner,
            }),
            // Nobody, or in a namespace of its own: the connection will tell.
            _ => Ok(()),
        }
    }

    fn take(&mut self, text: &str, now: BootTime) -> HashMap<InstanceId, f64> {
        let lines: Vec<Line<'_>> = text.lines().filter_map(line).collect();
        let mut digests: HashMap<&str, u64> = HashMap::new();
        for line in &lines {
            if let Some(uuid) = line.labels.get("UUID") {
                let digest = digests.entry(uuid).or_default();
                *digest = digest.rotate_left(7) ^ line.value.to_bits();
            }
        }
        for (uuid, digest) in &digests {
            match self.last.get_mut(*uuid) {
                Some((known, _)) if known == digest => {}
                _ => drop(self.last.insert((*uuid).to_owned(), (*digest, now))),
            }
        }
        let fresh = |uuid: &str| {
            let changed = self.last.get(uuid);
            changed.is_some_and(|(_, at)| now.since(*at) < LONGEST_STANDSTILL)
        };
        let activities = lines.iter().filter(|line| line.name == ACTIVITY);
        activities
            .filter_map(|line| {
                let uuid = *line.labels.get("UUID")?;
                let id = line.labels.get("GPU_I_ID")?.parse().ok()?;
                let known = fresh(uuid) && line.value.is_finite() && line.value >= 0.0;
                // Values a little over 1 are seen (rounding of the counters).
                known.then(|| ((uuid.to_owned(), id), line.value.min(1.0)))
            })
            .fold(HashMap::new(), |mut all, (instance, value)| {
                // Compute instances have a line each.
                let greatest = all.entry(instance).or_insert(value);
                *greatest = value.max(*greatest);
                all
            })
    }
}

/// The user whose socket listens at a port of this node (proc(5), `/proc/net/tcp`).
fn listener(port: u16) -> Option<UserId> {
    const LISTENS: &str = "0A";
    let wanted = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .find_map(|table| {
            let text = fs::read_to_string(table).ok()?;
            text.lines().skip(1).find_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                let is_it = words.get(1)?.ends_with(&wanted) && *words.get(3)? == LISTENS;
                is_it.then(|| words.get(7)?.parse().ok()).flatten()
            })
        })
}

/// A line of the text format; None for comments and what is no such line. There are parsers on
/// crates.io, with licences that do not go with version 2 of the GPL.
fn line(text: &str) -> Option<Line<'_>> {
    if text.starts_with('#') {
        return None;
    }
    let (name, rest) = text.split_once('{')?;
    let (labels, rest) = rest.rsplit_once('}')?;
    let mut found = HashMap::new();
    let mut left = labels;
    while let Some((label, after)) = left.split_once("=\"") {
        let (value, after) = after.split_once('"')?;
        found.insert(label.trim_start_matches([',', ' ']), value);
        left = after;
    }
    Some(Line {
        name: name.trim(),
        labels: found,
        value: rest.split_whitespace().next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As dcgm-exporter 4 writes it for a GPU with two instances.
    const TEXT: &str = r#"# HELP DCGM_FI_PROF_GR_ENGINE_ACTIVE Ratio of time the graphics engine is active.
# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-aa",pci_bus_id="00000000:07:00.0",device="nvidia0",modelName="NVIDIA A100-SXM4-40GB",GPU_I_PROFILE="1g.5gb",GPU_I_ID="7",Hostname="gn01"} 0.250000
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="0",UUID="GPU-aa",device="nvidia0",GPU_I_PROFILE="3g.20gb",GPU_I_ID="2",Hostname="gn01"} 0.000000
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-aa",device="nvidia0",Hostname="gn01"} ENERGY
DCGM_FI_PROF_GR_ENGINE_ACTIVE{gpu="1",UUID="GPU-bb",device="nvidia1",GPU_I_ID="1"} NaN
"#;

    fn at(seconds: u64) -> BootTime {
        BootTime::after_boot(Duration::from_secs(seconds))
    }

    fn key(uuid: &str, id: u32) -> InstanceId {
        (uuid.to_owned(), id)
    }

    #[test]
    fn instances_are_read_and_what_is_no_number_is_not() {
        let read = Dcgm::new("").take(&TEXT.replace("ENERGY", "1"), at(0));
        let expected = [(key("GPU-aa", 7), 0.25), (key("GPU-aa", 2), 0.0)];
        assert_eq!(read, HashMap::from(expected));
    }

    #[test]
    fn values_that_stand_still_are_stale() {
        let mut dcgm = Dcgm::new("");
        let mut count = |energy: &str, second| {
            let text = TEXT.replace("ENERGY", energy);
            dcgm.take(&text, at(second)).len()
        };
        assert_eq!(count("1", 0), 2);
        assert_eq!(count("1", 119), 2);
        assert_eq!(count("1", 120), 0);
        assert_eq!(count("2", 130), 2);
        assert_eq!(count("2", 249), 2);
        assert_eq!(count("2", 250), 0);
    }

    #[test]
    fn whoever_listens_is_known() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let own = nix::unistd::getuid().as_raw();
        assert_eq!(listener(port), Some(UserId(own)));
        drop(socket);
        assert_eq!(listener(port), None);
    }

    #[test]
    fn what_is_no_line_is_none() {
        for text in [
            "",
            "# TYPE a gauge",
            "a 1",
            "a{b=\"c} 1",
            "a{} x",
            "}{",
            "a{b=\"c\"}",
        ] {
            assert_eq!(line(text), None, "{text}");
        }
    }
}
