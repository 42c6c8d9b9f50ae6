//! dcgm-exporter's text endpoint, the only source for the activity of instances before Hopper.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use gpufrac_core::ids::UserId;
use gpufrac_core::policy::ExporterUrl;

use crate::clock::BootTime;

mod http;
mod peer;

pub use http::PageError;

/// The names of the part of the time in which the graphics or compute engine was active, 0 to 1 (field 1001): up to
/// dcgm-exporter 4.8, and from 4.9 on, which has the names of DCGM 4.6 (`dcgm_fields.h` there has both).
const ACTIVITY: [&str; 2] = [
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO",
];
/// The beginning of the names of fields 1001 and above.
const PROFILING: &str = "DCGM_FI_PROF_";
/// How many names of other metrics a message has.
const MOST_NAMED: usize = 4;
/// The length of a name in a message.
const MOST_NAME_CHARACTERS: usize = 64;
/// The time limit for an answer; the exporter is on the same node.
const LONGEST_ANSWER: Duration = Duration::from_secs(2);
/// The age at which values count as outdated. The exporter reads the driver every 30 s by default, and some value
/// always changes: energy, power, temperature.
const LONGEST_STANDSTILL: Duration = Duration::from_secs(120);

/// The first user id of people (login.defs(5), `UID_MIN`).
const FIRST_PERSON_UID: UserId = UserId(1000);

/// The reasons why the endpoint gave no metrics.
#[derive(Debug, thiserror::Error)]
pub enum DcgmError {
    /// The connection failed.
    #[error("`{url}`: {source}")]
    Connection { url: ExporterUrl, source: io::Error },
    /// The exporter's answer is not the expected text.
    /// Cure: Compare it with `curl http://127.0.0.1:9400/metrics`; samples are unknown until then.
    #[error("the answer of `{url}` is not used: {source}")]
    Page { url: ExporterUrl, source: PageError },
    // A process of a user accepted the connection; it could report false values for other jobs.
    /// A user's program answers at the exporter's port.
    /// Cure: End that program, and start the exporter as a service.
    #[error(
        "`{url}`: user {owner} runs the program that answers there; run the exporter as a system user"
    )]
    User { url: ExporterUrl, owner: UserId },
    /// The exporter's list lacks the field, the exporter does not run as root, or a later version has another name for
    /// it.
    /// Cure: [dcgm.md](../dcgm.md); samples are unknown until then, and no slice is ended.
    #[error(
        "`{url}` has neither DCGM_FI_PROF_GR_ENGINE_ACTIVE nor DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO, but {}; add field 1001 to the exporter's list of fields, and give the exporter the rights of root",
        others(.found)
    )]
    NoActivity {
        url: ExporterUrl,
        /// Metrics of profiling that the answer has instead.
        found: Vec<String>,
    },
    /// The exporter runs in another network namespace.
    /// Cure: Run it in the namespace of the node.
    #[error(
        "`{url}`: cannot tell whose process answers there; run the exporter in the network namespace of the node"
    )]
    UnknownOwner { url: ExporterUrl },
}

/// What an answer without the activity has instead.
fn others(found: &[String]) -> String {
    match found {
        [] => "no other metric of profiling".to_owned(),
        found => found.join(", "),
    }
}

/// A GPU instance: UUID of the GPU, id of the instance.
pub type InstanceId = (String, u32);

/// The last values, and the time of their last change.
pub struct Dcgm {
    url: ExporterUrl,
    last: HashMap<String, (u64, BootTime)>,
}

/// A metric of a GPU.
#[derive(Debug, PartialEq)]
struct Line<'a> {
    name: &'a str,
    labels: HashMap<&'a str, &'a str>,
    value: f64,
}

impl Line<'_> {
    fn label(&self, name: &str) -> Option<&str> {
        // The exporter has the label UUID, or uuid with its option for old names.
        let mut labels = self.labels.iter();
        labels
            .find(|(label, _)| label.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }

    fn gpu(&self) -> Option<&str> {
        self.label("UUID")
    }

    fn instance(&self) -> Option<u32> {
        self.label("GPU_I_ID")?.parse().ok()
    }

    fn is_activity(&self) -> bool {
        ACTIVITY.contains(&self.name)
    }
}

impl Dcgm {
    /// A reader of the endpoint at `url`.
    pub fn new(url: ExporterUrl) -> Dcgm {
        Dcgm {
            url,
            last: HashMap::new(),
        }
    }

    /// The activity of every instance whose GPU has current values. `tenants`: users with slices on the node, whose
    /// processes are not trusted.
    /// Errors: no process answers, or one that is not trusted, or the answer has no metrics, or not the activity.
    pub fn read(
        &mut self,
        now: BootTime,
        tenants: &BTreeSet<UserId>,
    ) -> Result<HashMap<InstanceId, f64>, DcgmError> {
        let answer = self.fetch(tenants, LONGEST_ANSWER)?;
        self.take(&answer, now)
    }

    /// As [`Dcgm::read`], from the text of an answer.
    /// Errors: the text is not a page of metrics, or one without the activity.
    pub fn take(
        &mut self,
        answer: &[u8],
        now: BootTime,
    ) -> Result<HashMap<InstanceId, f64>, DcgmError> {
        let page = http::page(answer).map_err(|source| DcgmError::Page {
            url: self.url.clone(),
            source,
        })?;
        let lines: Vec<Line<'_>> = page.lines().filter_map(line).collect();
        if let Some(found) = instead_of_activity(&lines) {
            let url = self.url.clone();
            return Err(DcgmError::NoActivity { url, found });
        }
        Ok(self.take_lines(&lines, now))
    }

    /// Reads the page. Any user may take the port while the exporter does not run, and report that the jobs of others
    /// are idle. Therefore the owner of the connection is looked up before the request is sent.
    fn fetch(&self, tenants: &BTreeSet<UserId>, patience: Duration) -> Result<Vec<u8>, DcgmError> {
        let url = || self.url.clone();
        let failed = |source| DcgmError::Connection { url: url(), source };
        let deadline = Instant::now() + patience;
        let stream = TcpStream::connect_timeout(&self.url.address(), patience);
        let mut stream = stream.map_err(failed)?;
        match peer::owner(&stream, deadline).map_err(failed)? {
            None => return Err(DcgmError::UnknownOwner { url: url() }),
            Some(owner) if is_user(owner, tenants) => {
                return Err(DcgmError::User { url: url(), owner });
            }
            Some(_) => {}
        }
        http::ask(&mut stream, &self.url, deadline).map_err(failed)
    }

    fn take_lines(&mut self, lines: &[Line<'_>], now: BootTime) -> HashMap<InstanceId, f64> {
        let mut digests: HashMap<&str, u64> = HashMap::new();
        for line in lines {
            if let Some(uuid) = line.gpu() {
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
        let activities = lines.iter().filter(|line| line.is_activity());
        activities
            .filter_map(|line| {
                let (uuid, id) = (line.gpu()?, line.instance()?);
                let known = fresh(uuid) && line.value.is_finite() && line.value >= 0.0;
                // Values slightly above 1 occur (rounding of the counters).
                known.then(|| ((uuid.to_owned(), id), line.value.min(1.0)))
            })
            .fold(HashMap::new(), |mut all, (instance, value)| {
                // Each compute instance has a line.
                let greatest = all.entry(instance).or_insert(value);
                *greatest = value.max(*greatest);
                all
            })
    }
}

/// The metrics of profiling on a page that must have the activity and does not; None if it has it, or need not: while
/// the exporter starts or loads its list again its page is empty, and GPUs in MIG mode without instances have no
/// activity.
fn instead_of_activity(lines: &[Line<'_>]) -> Option<Vec<String>> {
    if lines.iter().any(Line::is_activity) {
        return None;
    }
    let of_profiling = lines.iter().map(|line| line.name);
    let of_profiling: BTreeSet<&str> = of_profiling
        .filter(|name| name.starts_with(PROFILING))
        .collect();
    let has_instances = lines.iter().any(|line| line.instance().is_some());
    (has_instances || !of_profiling.is_empty()).then(|| {
        let named = of_profiling.into_iter().take(MOST_NAMED);
        named.map(printable).collect()
    })
}

/// A name of the answer for one line of a message.
fn printable(name: &str) -> String {
    name.escape_debug().take(MOST_NAME_CHARACTERS).collect()
}

/// Whether the owner is a user, who must not run the exporter.
fn is_user(owner: UserId, tenants: &BTreeSet<UserId>) -> bool {
    owner >= FIRST_PERSON_UID || (owner != UserId::ROOT && tenants.contains(&owner))
}

/// Parses a line of the text format; None for comments and other lines. The licences of the parsers on crates.io are
/// not compatible with version 2 of the GPL.
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

    /// The output of dcgm-exporter up to 4.8 for a GPU with two instances (as in NVIDIA/dcgm-exporter issues 490 and
    /// 512).
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

    fn dcgm() -> Dcgm {
        Dcgm::new("http://127.0.0.1:9400/metrics".parse().unwrap())
    }

    fn key(uuid: &str, id: u32) -> InstanceId {
        (uuid.to_owned(), id)
    }

    /// Promise (reaper): both names of dcgm-exporter's activity are read; `gpufrac check` names an exporter that has
    /// neither, with what it has, and instances that the exporter does not list.
    /// With `an_answer_without_the_activity_says_what_it_has`, `check_names_what_the_daemon_of_a_node_needs`,
    /// `an_instance_that_the_exporter_does_not_list_is_named_after_a_while`.
    #[test]
    fn instances_are_read_and_values_that_are_no_numbers_are_skipped() {
        for text in [TEXT.to_owned(), of_4_9(TEXT)] {
            let read = taken(&mut dcgm(), &text.replace("ENERGY", "1"), 0);
            let expected = [(key("GPU-aa", 7), 0.25), (key("GPU-aa", 2), 0.0)];
            assert_eq!(read.unwrap(), HashMap::from(expected), "{text}");
        }
    }

    /// The names of 4.9: NVIDIA's release notes of dcgm-exporter 4.8.3 (`hostname`) and 4.9.0 (fields, label of the
    /// driver's version), with the fields' names in `dcgm_fields.h` of DCGM 4.6.0.
    fn of_4_9(text: &str) -> String {
        text.replace("GR_ENGINE_ACTIVE", "GR_ENGINE_UTIL_RATIO")
            .replace(
                "Hostname=\"gn01\"",
                "hostname=\"gn01\",DCGM_FI_SYSTEM_DRIVER_VERSION=\"580.95.05\"",
            )
    }

    fn taken(
        exporter: &mut Dcgm,
        text: &str,
        second: u64,
    ) -> Result<HashMap<InstanceId, f64>, DcgmError> {
        let answer = format!("HTTP/1.0 200 OK\r\n\r\n{text}");
        exporter.take(answer.as_bytes(), at(second))
    }

    #[test]
    fn an_answer_without_the_activity_says_what_it_has() {
        let renamed = TEXT.replace("GR_ENGINE_ACTIVE", "COMPUTE_ENGINE_BUSY");
        let error = taken(&mut dcgm(), &renamed, 0).unwrap_err().to_string();
        assert_eq!(
            error,
            "`http://127.0.0.1:9400/metrics` has neither DCGM_FI_PROF_GR_ENGINE_ACTIVE nor \
             DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO, but DCGM_FI_PROF_COMPUTE_ENGINE_BUSY; add field 1001 to the \
             exporter's list of fields, and give the exporter the rights of root"
        );
        // Metrics of instances, and none of profiling.
        let not_root = TEXT.replace("PROF_GR_ENGINE_ACTIVE", "DEV_FB_USED");
        let error = taken(&mut dcgm(), &not_root, 0).unwrap_err().to_string();
        assert!(error.contains("no other metric of profiling"), "{error}");
        // It loads its list again, or no instance exists yet.
        for text in ["", "DCGM_FI_DEV_GPU_TEMP{gpu=\"0\",UUID=\"GPU-aa\"} 31\n"] {
            assert_eq!(taken(&mut dcgm(), text, 0).unwrap(), HashMap::new());
        }
    }

    /// Promise (reaper): values of dcgm-exporter that do not change count as missing.
    #[test]
    fn values_that_stand_still_are_stale() {
        let mut exporter = dcgm();
        let mut count = |energy: &str, second| {
            let text = TEXT.replace("ENERGY", energy);
            taken(&mut exporter, &text, second).unwrap().len()
        };
        assert_eq!(count("1", 0), 2);
        assert_eq!(count("1", 119), 2);
        assert_eq!(count("1", 120), 0);
        assert_eq!(count("2", 130), 2);
        assert_eq!(count("2", 249), 2);
        assert_eq!(count("2", 250), 0);
    }

    #[test]
    fn an_exporter_of_a_user_is_not_accepted() {
        let tenants = BTreeSet::from([UserId::ROOT, UserId(9)]);
        for (owner, is_one) in [
            (0, false),
            (9, true),
            (998, false),
            (1000, true),
            (65534, true),
        ] {
            assert_eq!(is_user(UserId(owner), &tenants), is_one, "{owner}");
        }
    }

    /// Answers one connection as a user. On a busy machine the answering thread may be late.
    fn answers(user: u32) -> Result<HashMap<InstanceId, f64>, DcgmError> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/metrics", listener.local_addr().unwrap());
        let mut dcgm = Dcgm::new(url.parse().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                nix::unistd::setfsuid(nix::unistd::Uid::from_raw(user));
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = [0; 4096];
                let asked = io::Read::read(&mut stream, &mut head).unwrap_or_default();
                if asked > 0 {
                    assert!(head.starts_with(b"GET /metrics HTTP/1.0\r\n"));
                    let answer = format!("HTTP/1.0 200 OK\r\n\r\n{TEXT}");
                    io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
                }
            });
            let answer = dcgm.fetch(&BTreeSet::new(), Duration::from_secs(60))?;
            dcgm.take(&answer, at(0))
        })
    }

    #[test]
    fn a_service_is_asked_and_a_user_is_not() {
        test_seed::needs_root();
        assert_eq!(answers(0).unwrap().len(), 2);
        assert_eq!(answers(998).unwrap().len(), 2);
        let error = answers(4711).unwrap_err();
        assert!(
            matches!(
                error,
                DcgmError::User {
                    owner: UserId(4711),
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn lines_without_a_sample_are_skipped() {
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
