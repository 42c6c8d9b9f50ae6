//! The answers of a driver that `gpufrac prove` wrote down: its file is all that both programs share.

use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::disturb::{Disturbances, Rule, What};
use crate::geometry::{Geometry, GpuProfile};
use crate::latency::{Change, Latencies, Latency};

/// The parts of the file that the simulator plays.
#[derive(Debug, Clone, Deserialize)]
pub struct File {
    version: u32,
    /// GPU and driver.
    pub head: Head,
    geometry: Tables,
    answers: Vec<Answer>,
    places: Vec<Place>,
    times: Vec<Duration>,
}

/// GPU and driver.
#[derive(Debug, Clone, Deserialize)]
pub struct Head {
    /// The model, where gpufrac knows it.
    pub model: Option<String>,
    /// Version of the driver.
    pub driver: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Answer {
    step: String,
    question: String,
    outcome: String,
    found: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
struct Duration {
    call: String,
    when: String,
    median: f64,
}

/// What a GPU keeps of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recorded {
    tables: Tables,
    places: Vec<Place>,
    /// Whether the same place gave the same MIG UUID again.
    pub same_uuids: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Tables {
    memory_slices: u32,
    compute_slices: u32,
    profiles: Vec<Profile>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Profile {
    id: u32,
    slice_enum: u32,
    name: String,
    compute_slices: u32,
    multiprocessors: u32,
    memory: u64,
    max_instances: u32,
    placements: Vec<Placement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Placement {
    start: u32,
    size: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    profile_id: u32,
    start: u32,
    gi: u32,
}

/// Questions whose code the simulator plays: the question, the function, the simulator's own code.
const CODES: &[(&str, &str, Code)] = &[
    (
        "the code of a create at an occupied place",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        Code::INSUFFICIENT_RESOURCES,
    ),
    (
        "the code for the id of an absent compute instance",
        "nvmlGpuInstanceGetComputeInstanceById",
        Code::NOT_FOUND,
    ),
    (
        "the code for the id of an absent GPU instance",
        "nvmlDeviceGetGpuInstanceById",
        Code::NOT_FOUND,
    ),
];

impl File {
    /// Reads a file; None for another version or another format.
    pub fn parse(text: &str) -> Option<File> {
        let file: File = serde_json::from_str(text).ok()?;
        (file.version == 1).then_some(file)
    }

    /// What each GPU keeps.
    pub fn of_gpu(&self) -> Recorded {
        let changed = self.differing("the same place gives the same MIG UUID");
        Recorded {
            tables: self.geometry.clone(),
            places: self.places.clone(),
            same_uuids: changed.is_none(),
        }
    }

    /// The driver's answer to a question, if it differs from what the simulator does.
    fn differing(&self, question: &str) -> Option<&str> {
        let mut answers = self.answers.iter();
        let found = answers.find(|it| it.question == question && it.outcome == "differs")?;
        found.found.as_deref().filter(|_| found.step != "cleanup")
    }

    /// The codes and durations of the driver.
    pub fn disturb(&self, all: &mut Disturbances) {
        for &(question, call, own) in CODES {
            // `invalid argument (2)`, perhaps with its subject in front.
            let found = self.differing(question).and_then(|text| {
                let (_, behind) = text.split_once('(')?;
                behind.split_once(')')?.0.parse().ok()
            });
            if let Some(code) = found {
                all.rules.push(Rule {
                    call: Some(call.to_owned()),
                    gpu: None,
                    first: 1,
                    count: 0,
                    what: What::Instead(own.0, code),
                });
            }
        }
        let changes = self.times.iter().filter_map(|row| {
            let usual = Latency::of(row.call.split(' ').next()?)?;
            let latency = match row.when.as_str() {
                "alone" | "further" | "other" => usual,
                "first" => Latency::named("create-first")?,
                "last" => Latency::named("destroy-last")?,
                _ => return None,
            };
            Some(Change {
                step: latency.step,
                gpu: None,
                profile: None,
                alone_ms: row.median.round() as u64,
                session_ms: 0,
            })
        });
        all.latencies = Some(Latencies {
            percent: 100,
            changes: changes.collect(),
        });
    }
}

impl Recorded {
    /// The id of a GPU instance at a place.
    pub fn id_at(&self, profile: u32, start: u32) -> Option<u32> {
        let mut places = self.places.iter();
        let found = places.find(|it| (it.profile_id, it.start) == (profile, start))?;
        Some(found.gi)
    }

    /// Gives a model's tables the recorded values; engines stay those of the model.
    pub(crate) fn apply(&self, tables: &mut Geometry) {
        tables.memory_slices = self.tables.memory_slices;
        tables.compute_slices = self.tables.compute_slices;
        let own = std::mem::take(&mut tables.profiles);
        let engines = |id| own.iter().find(|it| it.id == id).map(|it| it.engines);
        let profiles = self.tables.profiles.iter().map(|it| GpuProfile {
            kind: it.slice_enum,
            id: it.id,
            name: it.name.clone().leak(),
            slices: it.compute_slices,
            size: it.placements.first().map_or(0, |place| place.size),
            starts: it
                .placements
                .iter()
                .map(|place| place.start)
                .collect::<Vec<_>>()
                .leak(),
            max: it.max_instances,
            multiprocessors: it.multiprocessors,
            memory_mib: it.memory,
            engines: engines(it.id).unwrap_or_default(),
        });
        tables.profiles = profiles.collect();
    }
}
