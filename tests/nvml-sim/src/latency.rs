//! The durations of driver calls: a model, off by default. [`TABLE`] has its values and their sources.
//!
//! Sources named `nvlib.go` are comments in `cmd/gpu-kubelet-plugin/nvlib.go` of NVIDIA's driver for Kubernetes
//! (dra-driver-nvidia-gpu, 95932046), with observations of its authors on real GPUs. Values marked as assumed were
//! not measured.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A step that takes time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// The start of a session.
    Start,
    /// A GPU's handle by its index.
    HandleByIndex,
    /// A handle by UUID, of a GPU or a MIG device.
    HandleByUuid,
    /// One slot of an enumeration of MIG devices.
    WalkMigDevice,
    /// Creation of a GPU instance.
    CreateGpuInstance,
    /// Destruction of a GPU instance.
    DestroyGpuInstance,
    /// Creation of the first GPU instance of a GPU.
    CreateFirst,
    /// Destruction of its last one.
    DestroyLast,
    /// Creation of a compute instance.
    CreateComputeInstance,
    /// Destruction of a compute instance.
    DestroyComputeInstance,
    /// A switch of MIG mode.
    MigMode,
    /// A switch of the compute mode.
    ComputeMode,
    /// A switch of persistence mode.
    PersistenceMode,
}

/// The duration of a step.
#[derive(Debug)]
pub struct Latency {
    pub step: Step,
    /// The name in `gpusim latency`.
    pub name: &'static str,
    /// The functions of this step.
    pub calls: &'static [&'static str],
    /// Milliseconds without other sessions.
    pub alone_ms: u64,
    /// Further milliseconds for each other open session on the node.
    pub session_ms: u64,
    /// The upper limit in milliseconds.
    pub most_ms: u64,
    /// The source of the figures.
    pub source: &'static str,
    /// Whether the step changes the GPU: such steps on one GPU take turns, those on different GPUs do not.
    pub changes: bool,
}

const QUIET: Latency = Latency {
    step: Step::Start,
    name: "start",
    calls: &[],
    alone_ms: 0,
    session_ms: 0,
    most_ms: 60_000,
    source: "",
    changes: false,
};

const CHANGE: Latency = Latency {
    changes: true,
    ..QUIET
};

/// The model. docs/design/tests.md has the same table; a test compares them.
pub static TABLE: [Latency; 13] = [
    Latency {
        step: Step::Start,
        name: "start",
        calls: &["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags"],
        alone_ms: 300,
        source: "assumed",
        ..QUIET
    },
    Latency {
        step: Step::HandleByIndex,
        name: "handle-by-index",
        calls: &[
            "nvmlDeviceGetHandleByIndex_v2",
            "nvmlDeviceGetHandleByPciBusId_v2",
        ],
        alone_ms: 5,
        session_ms: 5,
        most_ms: 100,
        source: "assumed",
        ..QUIET
    },
    Latency {
        step: Step::HandleByUuid,
        name: "handle-by-uuid",
        calls: &["nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByUUIDV"],
        alone_ms: 10,
        session_ms: 1_400,
        most_ms: 10_000,
        source: "nvlib.go: \"O(10 s) when done concurrently\"; assumed: reached with seven others, linear up to there",
        ..QUIET
    },
    Latency {
        step: Step::WalkMigDevice,
        name: "walk-mig-device",
        calls: &["nvmlDeviceGetMigDeviceHandleByIndex"],
        alone_ms: 5,
        session_ms: 200,
        most_ms: 1_430,
        source: "nvlib.go: 'walking all MIG devices' \"O(10 s)\" under load; assumed: seven slots, else as by UUID",
        ..QUIET
    },
    Latency {
        step: Step::CreateGpuInstance,
        name: "create-gpu-instance",
        calls: &[
            "nvmlDeviceCreateGpuInstance",
            "nvmlDeviceCreateGpuInstanceWithPlacement",
        ],
        alone_ms: 1_000,
        source: "assumed: as long as to destroy it, for all profiles",
        ..CHANGE
    },
    Latency {
        step: Step::DestroyGpuInstance,
        name: "destroy-gpu-instance",
        calls: &["nvmlGpuInstanceDestroy"],
        alone_ms: 1_000,
        source: "nvlib.go: \"O(1 s)\"; assumed: for all profiles",
        ..CHANGE
    },
    Latency {
        step: Step::CreateFirst,
        name: "create-first",
        calls: &[
            "nvmlDeviceCreateGpuInstance",
            "nvmlDeviceCreateGpuInstanceWithPlacement",
        ],
        alone_ms: 2_000,
        source: "assumed: the driver switches MIG on in the hardware (kernel_mig_manager.c)",
        ..CHANGE
    },
    Latency {
        step: Step::DestroyLast,
        name: "destroy-last",
        calls: &["nvmlGpuInstanceDestroy"],
        alone_ms: 2_000,
        source: "assumed: the driver switches MIG off in the hardware (kernel_mig_manager.c)",
        ..CHANGE
    },
    Latency {
        step: Step::CreateComputeInstance,
        name: "create-compute-instance",
        calls: &[
            "nvmlGpuInstanceCreateComputeInstance",
            "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
        ],
        alone_ms: 500,
        source: "assumed, for all profiles",
        ..CHANGE
    },
    Latency {
        step: Step::DestroyComputeInstance,
        name: "destroy-compute-instance",
        calls: &["nvmlComputeInstanceDestroy"],
        alone_ms: 300,
        source: "assumed, for all profiles",
        ..CHANGE
    },
    Latency {
        step: Step::MigMode,
        name: "mig-mode",
        calls: &["nvmlDeviceSetMigMode"],
        alone_ms: 1_000,
        source: "assumed: the driver notes the mode (kernel_mig_manager.c); the first instance switches",
        ..CHANGE
    },
    Latency {
        step: Step::ComputeMode,
        name: "compute-mode",
        calls: &["nvmlDeviceSetComputeMode"],
        alone_ms: 50,
        source: "assumed",
        ..CHANGE
    },
    Latency {
        step: Step::PersistenceMode,
        name: "persistence-mode",
        calls: &["nvmlDeviceSetPersistenceMode"],
        alone_ms: 500,
        source: "assumed",
        ..CHANGE
    },
];

/// `create-gpu-instance: 1000 ms; assumed`.
impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ms", self.name, self.alone_ms)?;
        if self.session_ms > 0 {
            let (more, most) = (self.session_ms, self.most_ms);
            write!(
                f,
                " and {more} ms for each other session, at most {most} ms"
            )?;
        }
        write!(f, "; {}", self.source)
    }
}

impl Latency {
    /// The step of this name.
    pub fn named(name: &str) -> Option<&'static Latency> {
        TABLE.iter().find(|latency| latency.name == name)
    }

    /// The step of a function, on a GPU with other instances.
    pub fn of(call: &str) -> Option<&'static Latency> {
        TABLE.iter().find(|latency| latency.calls.contains(&call))
    }

    /// The step that this one is at a place: the first creation on a GPU and the last destruction are steps of their
    /// own.
    pub fn at(&'static self, place: Option<Place>) -> &'static Latency {
        let instances = place.map(|place| place.instances);
        let step = match (self.step, instances) {
            (Step::CreateGpuInstance, Some(0)) => Step::CreateFirst,
            (Step::DestroyGpuInstance, Some(1)) => Step::DestroyLast,
            _ => return self,
        };
        TABLE
            .iter()
            .find(|other| other.step == step)
            .unwrap_or(self)
    }

    fn ms(&self, others: u64) -> u64 {
        let ms = self.alone_ms + self.session_ms.saturating_mul(others);
        ms.min(self.most_ms)
    }
}

/// The place of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the GPU.
    pub gpu: usize,
    /// The profile of the GPU instance that the call creates or uses.
    pub profile: Option<&'static str>,
    /// The number of GPU instances on the GPU before the call.
    pub instances: usize,
}

/// A changed duration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    pub step: Step,
    /// Only on this GPU; None for all.
    pub gpu: Option<usize>,
    /// Only for GPU instances of this profile, such as `1g.10gb`; None for all.
    pub profile: Option<String>,
    /// Milliseconds without other sessions.
    pub alone_ms: u64,
    /// Further milliseconds for each other session.
    pub session_ms: u64,
}

/// `create-gpu-instance on GPU 1 of 1g.10gb: 3000 ms`.
impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut steps = TABLE.iter().filter(|latency| latency.step == self.step);
        f.write_str(steps.next().map_or("?", |latency| latency.name))?;
        if let Some(gpu) = self.gpu {
            write!(f, " on GPU {gpu}")?;
        }
        if let Some(profile) = &self.profile {
            write!(f, " of {profile}")?;
        }
        write!(f, ": {} ms", self.alone_ms)?;
        match self.session_ms {
            0 => Ok(()),
            more => write!(f, " and {more} ms for each other session"),
        }
    }
}

impl Change {
    fn meets(&self, step: Step, place: Option<Place>) -> bool {
        let on = |gpu| place.is_some_and(|place| place.gpu == gpu);
        let of = |profile: &str| place.is_some_and(|place| place.profile == Some(profile));
        // A changed time of a step is also that of the first, or of the last.
        let usual = match step {
            Step::CreateFirst => Step::CreateGpuInstance,
            Step::DestroyLast => Step::DestroyGpuInstance,
            other => other,
        };
        (self.step == step || self.step == usual)
            && self.gpu.is_none_or(on)
            && self.profile.as_deref().is_none_or(of)
    }
}

/// The settings of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latencies {
    /// All times in percent of their values: 10 for a tenth.
    pub percent: u64,
    /// Times that differ from [`TABLE`]; the last one that matches a call counts.
    pub changes: Vec<Change>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies {
            percent: 100,
            changes: Vec::new(),
        }
    }
}

impl Latencies {
    /// The duration of a step in microseconds.
    pub fn micros(
        &self,
        latency: &Latency,
        place: Option<Place>,
        others: impl FnOnce() -> u64,
    ) -> u64 {
        let mut changes = self.changes.iter().rev();
        let ms = match changes.find(|change| change.meets(latency.step, place)) {
            Some(change) if change.session_ms == 0 => change.alone_ms,
            Some(change) => change.alone_ms + change.session_ms.saturating_mul(others()),
            None if latency.session_ms == 0 => latency.alone_ms,
            None => latency.ms(others()),
        };
        ms.saturating_mul(10).saturating_mul(self.percent)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::symbols;

    fn ms(model: &Latencies, call: &str, place: Option<Place>, others: u64) -> u64 {
        model.micros(Latency::of(call).unwrap(), place, || others) / 1000
    }

    fn on(gpu: usize, profile: &'static str) -> Option<Place> {
        Some(Place {
            gpu,
            profile: Some(profile),
            instances: 2,
        })
    }

    #[test]
    fn every_function_of_the_table_is_nvmls_and_of_one_step() {
        for latency in &TABLE {
            assert!(!latency.source.is_empty() && !latency.calls.is_empty());
            for call in latency.calls {
                assert!(symbols::position(call).is_some(), "{call}");
                let steps = TABLE.iter().filter(|other| other.calls.contains(call));
                let shared = [Step::CreateFirst, Step::DestroyLast];
                let own = steps.filter(|other| !shared.contains(&other.step));
                assert_eq!(own.count(), 1, "{call}");
            }
        }
    }

    #[test]
    fn handles_by_uuid_take_longer_with_more_sessions() {
        let model = Latencies::default();
        let by_uuid = |others| ms(&model, "nvmlDeviceGetHandleByUUID", None, others);
        assert_eq!(
            [by_uuid(0), by_uuid(1), by_uuid(7), by_uuid(55)],
            [10, 1410, 9810, 10_000]
        );
        let by_index = |others| ms(&model, "nvmlDeviceGetHandleByIndex_v2", None, others);
        assert!(by_index(55) <= 100);
    }

    #[test]
    fn times_are_changed_singly_and_by_gpu_and_profile() {
        let change = |gpu, profile: Option<&str>, alone_ms| Change {
            step: Step::CreateGpuInstance,
            gpu,
            profile: profile.map(str::to_owned),
            alone_ms,
            session_ms: 0,
        };
        let mut model = Latencies {
            changes: vec![
                change(None, None, 200),
                change(None, Some("4g.40gb"), 400),
                change(Some(1), None, 3000),
            ],
            ..Latencies::default()
        };
        let create = |place| ms(&model, "nvmlDeviceCreateGpuInstanceWithPlacement", place, 9);
        assert_eq!(create(on(0, "1g.10gb")), 200);
        assert_eq!(create(on(0, "4g.40gb")), 400);
        assert_eq!(create(on(1, "4g.40gb")), 3000);
        assert_eq!(create(None), 200);
        let first = on(0, "1g.10gb").map(|place| Place {
            instances: 0,
            ..place
        });
        let create_first = Latency::of("nvmlDeviceCreateGpuInstance")
            .unwrap()
            .at(first);
        assert_eq!(create_first.name, "create-first");
        let last = on(0, "1g.10gb").map(|place| Place {
            instances: 1,
            ..place
        });
        assert_eq!(
            Latency::of("nvmlGpuInstanceDestroy").unwrap().at(last).name,
            "destroy-last"
        );
        model.percent = 5;
        assert_eq!(ms(&model, "nvmlGpuInstanceDestroy", None, 0), 50);
    }
}
