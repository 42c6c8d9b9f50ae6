//! A [`Snapshot`] in the text format of OpenMetrics.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::Stall;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::{PoolMetrics, SliceMetrics, Snapshot};
use crate::keep::hooks::{BOUNDS, HookTotals, Times};
use crate::keep::totals::Totals;

pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PREFIX: &str = "gpufrac";
/// The value of labels that `PrivateData` hides.
const HIDDEN: &str = "hidden";
/// The labels of a metric without labels.
const NO_LABELS: [(&str, &str); 0] = [];

/// The metrics of a node, each with the label `node`. Slurm's job id has the label `jobid`, because Prometheus itself
/// uses `job` for the target of a series.
pub fn render(snapshot: &Snapshot, node: &str) -> String {
    let labels = [(Cow::from("node"), Cow::from(node.to_owned()))];
    let mut registry = Registry::with_prefix_and_labels(PREFIX, labels.into_iter());
    registry.register_collector(Box::new(SnapshotCollector(snapshot.clone())));
    let mut written = String::new();
    match text::encode(&mut written, &registry) {
        Ok(()) => written,
        // Prometheus rejects a text without its end, too.
        Err(fmt::Error) => String::new(),
    }
}

#[derive(Debug)]
struct SnapshotCollector(Snapshot);

impl Collector for SnapshotCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut metrics = Metrics(&mut encoder);
        metrics.slices(&self.0)?;
        metrics.pools(&self.0.pools)?;
        metrics.node(&self.0)?;
        metrics.totals(&self.0.totals)
    }
}

/// Prometheus's unit for a ratio is "ratio"; `Unit::Ratios` would write "ratios".
fn ratio() -> Unit {
    Unit::Other("ratio".to_owned())
}

/// Writes metrics, each by its name without prefix, unit and the suffix of its type.
struct Metrics<'e, 'w>(&'e mut DescriptorEncoder<'w>);

impl Metrics<'_, '_> {
    fn slices(&mut self, snapshot: &Snapshot) -> fmt::Result {
        let slices = labelled(&snapshot.slices, snapshot.hides_jobs);
        self.info(&slices, snapshot.hides_jobs)?;
        let help = "Part of the GPU that the job holds";
        self.of_slices("slice_fraction", ratio(), help, &slices, |slice| {
            Some(slice.fraction)
        })?;
        let help =
            "Busy part of the time of the last sample; absent where the source has no figure";
        self.of_slices("slice_activity", ratio(), help, &slices, |slice| {
            slice.busy_share
        })?;
        let help = "GPU memory that the job holds";
        self.of_slices("slice_memory", Unit::Bytes, help, &slices, |slice| {
            slice.memory_bytes
        })?;
        let help = "GPU memory that the job may hold";
        self.of_slices("slice_memory_limit", Unit::Bytes, help, &slices, |slice| {
            Some(slice.memory_limit_bytes)
        })?;
        let help = "Time since the slice was last used, or may have been";
        self.of_slices("slice_idle", Unit::Seconds, help, &slices, |slice| {
            Some(slice.idle_seconds)
        })
    }

    fn info(&mut self, slices: &[Labelled<'_>], is_hidden: bool) -> fmt::Result {
        let of_job = |label| if is_hidden { HIDDEN } else { label };
        let help = "Whose slice it is; source is where its last sample comes from";
        let kind = MetricType::Info;
        let mut lines = self.0.encode_descriptor("slice", help, None, kind)?;
        for Labelled { job, device, slice } in slices {
            lines.encode_info(&[
                ("jobid", job.as_str()),
                ("device", device),
                ("user", of_job(&slice.user)),
                ("account", of_job(&slice.account)),
                ("partition", of_job(&slice.partition)),
                ("pool", &slice.pool),
                ("gpu", &slice.gpu),
                ("source", slice.source.name()),
            ])?;
        }
        Ok(())
    }

    fn pools(&mut self, pools: &[PoolMetrics]) -> fmt::Result {
        let each = |value: fn(&PoolMetrics) -> u32| {
            let values = move |pool: &PoolMetrics| ([("pool", pool.pool.clone())], value(pool));
            pools.iter().map(values)
        };
        let help = "GPUs of the pool on the node";
        self.gauge("gpus", None, help, each(|pool| pool.gpus))?;
        let help = "Of these, GPUs that cannot be used";
        self.gauge("faulty_gpus", None, help, each(|pool| pool.faulty))?;
        let help = "Jobs of one size that have room on the node, if no other job starts";
        let room = pools.iter().flat_map(|pool| {
            let sizes = pool.room.iter();
            sizes.map(|(fraction, jobs)| {
                let labels = [("pool", pool.pool.clone()), ("fraction", fraction.clone())];
                (labels, *jobs)
            })
        });
        self.gauge("room_jobs", None, help, room)
    }

    fn node(&mut self, snapshot: &Snapshot) -> fmt::Result {
        for (name, help, value) in [
            ("leases", "Leases of the node", snapshot.slices.len() as u32),
            (
                "overdue_leases",
                "Leases of jobs that are over, in any state",
                snapshot.overdue_leases,
            ),
            (
                "unleased_instances",
                "MIG instances on GPUs of the pools that no lease names",
                snapshot.unleased_instances,
            ),
            (
                "stuck_places",
                "Places that cannot be freed, or where no slice can be made",
                snapshot.stuck_places,
            ),
            (
                "stuck_units",
                "Units that no job gets because of them",
                snapshot.stuck_units,
            ),
            (
                "strangers",
                "Processes that compute where their jobs have no lease",
                snapshot.strangers,
            ),
        ] {
            self.gauge(name, None, help, [(NO_LABELS, value)])?;
        }
        let help = "1 while so many slices look idle that reclaims are suspended";
        let open = [
            ("node", snapshot.node_breaker),
            ("cluster", snapshot.cluster_breaker),
        ];
        let open = open.map(|(scope, open)| ([("scope", scope)], u32::from(open)));
        self.gauge("reaper_breaker_open", None, help, open)
    }

    fn totals(&mut self, totals: &Totals) -> fmt::Result {
        for (name, help, value) in [
            (
                "jobs_put_back",
                "Jobs that the node could not serve and gave back to the queue",
                totals.jobs_put_back,
            ),
            ("reaper_rounds", "Rounds of samples", totals.rounds),
            (
                "reaper_unknown_samples",
                "Samples that could not tell whether the slice was used",
                totals.unknown_samples,
            ),
            ("reaper_signals", "Signals for a checkpoint", totals.signals),
            (
                "reaper_dry_run_decisions",
                "Warnings, signals and ends that dry-run only logged",
                totals.dry_run,
            ),
        ] {
            self.counter(name, None, help, [(NO_LABELS, value)])?;
        }
        self.hooks(&totals.hooks)?;
        let help = "Time that reaped jobs would have held their slices until their limits";
        let seconds = [(NO_LABELS, totals.reclaimed_slice_seconds)];
        self.counter("reaper_reclaimed_slice", Some(Unit::Seconds), help, seconds)?;
        let warnings = Stall::ALL.into_iter().zip(totals.warnings);
        let warnings = warnings.map(|(stall, count)| ([("stall", stall.name())], count));
        self.counter("reaper_warnings", None, "Warnings to users", warnings)?;
        for (name, help, label, values) in [
            (
                "reaper_reaps",
                "Jobs that were ended",
                "action",
                &[("requeue", totals.requeued), ("cancel", totals.cancelled)][..],
            ),
            (
                "reaper_refused_reaps",
                "Ends of jobs that were due and not done: the limit of an hour, or a breaker",
                "reason",
                &[
                    ("rate", totals.refused_rate),
                    ("breaker", totals.refused_breaker),
                ],
            ),
            (
                "reaper_errors",
                "Questions to the driver, calls to Slurm and mails that failed",
                "kind",
                &[
                    ("driver", totals.driver_errors),
                    ("slurm", totals.slurm_errors),
                    ("mail", totals.mail_errors),
                ],
            ),
        ] {
            let values = values
                .iter()
                .map(|(word, count)| ([(label, *word)], *count));
            self.counter(name, None, help, values)?;
        }
        Ok(())
    }

    fn hooks(&mut self, hooks: &HookTotals) -> fmt::Result {
        for (name, help, times) in [
            (
                "prolog",
                "Prologs that made a slice, with their waits",
                &hooks.prologs,
            ),
            (
                "prolog_wait",
                "Of these prologs, the time in queues at GPUs and from the first failed attempt on",
                &hooks.waits,
            ),
            ("epilog", "Epilogs of jobs with slices", &hooks.epilogs),
        ] {
            self.times(name, help, times)?;
        }
        for (name, help, counts) in [
            (
                "jobs_requeued",
                "Jobs that their prolog gave back to the queue",
                hooks.requeued,
            ),
            (
                "jobs_held",
                "Jobs that their prolog requeued and held",
                hooks.held,
            ),
            (
                "jobs_cancelled",
                "Jobs that their prolog cancelled",
                hooks.cancelled,
            ),
            (
                "jobs_unserved",
                "Jobs without a slice that Slurm had ended or requeued before, or could not requeue",
                hooks.unserved,
            ),
            (
                "failed_releases",
                "Epilogs that left a slice for the next program or for an admin",
                hooks.not_released,
            ),
        ] {
            let counts = counts.each();
            let counts = counts.map(|(cause, count)| ([("cause", cause)], count));
            self.counter(name, None, help, counts)?;
        }
        Ok(())
    }

    fn times(&mut self, name: &str, help: &str, times: &Times) -> fmt::Result {
        let (unit, kind) = (Unit::Seconds, MetricType::Histogram);
        let mut encoder = self.0.encode_descriptor(name, help, Some(&unit), kind)?;
        let bounds = BOUNDS.into_iter().chain([f64::INFINITY]);
        let classes: Vec<_> = bounds.zip(times.counts).collect();
        let count = times.counts.iter().sum();
        encoder.encode_histogram::<[(&str, &str); 0]>(times.seconds, count, &classes, None)
    }

    /// A gauge with the two labels that identify a slice.
    fn of_slices<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        unit: Unit,
        help: &str,
        slices: &[Labelled<'_>],
        value: impl Fn(&SliceMetrics) -> Option<V>,
    ) -> fmt::Result {
        let lines = slices.iter().filter_map(|it| {
            let labels = [("jobid", it.job.as_str()), ("device", it.device.as_str())];
            Some((labels, value(it.slice)?))
        });
        self.gauge(name, Some(unit), help, lines)
    }

    fn gauge<L: EncodeLabelSet, V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        lines: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let kind = MetricType::Gauge;
        let mut encoder = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in lines {
            ConstGauge::new(value).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter<L: EncodeLabelSet, V: EncodeCounterValue>(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        lines: impl IntoIterator<Item = (L, V)>,
    ) -> fmt::Result {
        let kind = MetricType::Counter;
        let mut encoder = self.0.encode_descriptor(name, help, unit.as_ref(), kind)?;
        for (labels, value) in lines {
            ConstCounter::new(value).encode(encoder.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// A slice, with the labels that tell it from others.
struct Labelled<'a> {
    job: String,
    device: String,
    slice: &'a SliceMetrics,
}

/// Prometheus rejects a text in which a line occurs twice. So further slices of a job on one device, one for each task,
/// have a number behind their device; where jobs are hidden, further slices of a device have it behind their job.
fn labelled(slices: &[SliceMetrics], is_hidden: bool) -> Vec<Labelled<'_>> {
    let mut seen: HashMap<(Option<JobId>, &str), u32> = HashMap::new();
    let numbered = |name: &str, number: u32| match number {
        1 => name.to_owned(),
        number => format!("{name}-{number}"),
    };
    let slices = slices.iter().map(|slice| {
        let known = (!is_hidden).then_some(slice.job);
        let number = seen.entry((known, &slice.device)).or_default();
        *number += 1;
        let (job, device) = match known {
            Some(job) => (job.to_string(), numbered(&slice.device, *number)),
            None => (numbered(HIDDEN, *number), slice.device.clone()),
        };
        Labelled { job, device, slice }
    });
    slices.collect()
}
