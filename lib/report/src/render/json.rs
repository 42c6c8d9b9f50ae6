//! A report as JSON: `{"version":1,...}`. Hours are those of a GPU; money is a text with two decimals.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Report, hours};
use crate::audit::Balance;
use crate::money;
use crate::own::Enough;
use crate::sums::Sums;

/// The version of the form. A key more is no new version.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    period: &'a str,
    by: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    currency: Option<&'a str>,
    rows: Vec<Row<'a>>,
    total: Hours,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_cost: Option<String>,
    days: Vec<Day<'a>>,
    idle_holders: Vec<Holder<'a>>,
    sizes: Vec<Size<'a>>,
    ends: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<Vec<Job<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    audit: Option<Audit<'a>>,
    damaged_lines: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    runs_without_records: Option<u64>,
}

#[derive(Serialize)]
struct Hours {
    slices: u64,
    allocated: f64,
    busy: f64,
    idle: f64,
    unknown: f64,
    suspended: f64,
    reclaimed: f64,
    reclaims: u64,
    energy_joules: u64,
}

#[derive(Serialize)]
struct Row<'a> {
    key: &'a [String],
    #[serde(flatten)]
    hours: Hours,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
}

#[derive(Serialize)]
struct Day<'a> {
    day: &'a str,
    #[serde(flatten)]
    hours: Hours,
}

#[derive(Serialize)]
struct Holder<'a> {
    user: &'a str,
    idle: f64,
    allocated: f64,
}

#[derive(Serialize)]
struct Size<'a> {
    size: &'a str,
    measured: u64,
    over_half: u64,
    mean_filling: f64,
}

#[derive(Serialize)]
struct Job<'a> {
    job: u32,
    size: &'a str,
    allocated: f64,
    activity: Option<f64>,
    peak_memory_mib: Option<u64>,
    memory_mib: Option<u64>,
    enough: Option<&'a str>,
    saved: f64,
}

#[derive(Serialize)]
struct Audit<'a> {
    #[serde(flatten)]
    all: Balanced,
    balances: bool,
    gpus: Vec<Gpu<'a>>,
}

#[derive(Serialize)]
struct Gpu<'a> {
    node: &'a str,
    uuid: &'a str,
    #[serde(flatten)]
    balance: Balanced,
}

/// Seconds of whole GPUs.
#[derive(Serialize)]
struct Balanced {
    capacity_s: f64,
    busy_s: f64,
    idle_s: f64,
    unknown_s: f64,
    suspended_s: f64,
    free_s: f64,
    unplaceable_s: f64,
    down_s: f64,
    residual_s: f64,
    beyond_s: f64,
    rounded_s: f64,
    uncovered_s: f64,
    records: u64,
}

impl Balanced {
    fn of(balance: &Balance) -> Balanced {
        let seconds = |unit_seconds: u64| unit_seconds as f64 / 100.0;
        Balanced {
            capacity_s: seconds(balance.capacity),
            busy_s: seconds(balance.busy),
            idle_s: seconds(balance.idle),
            unknown_s: seconds(balance.unknown),
            suspended_s: seconds(balance.suspended),
            free_s: seconds(balance.free),
            unplaceable_s: seconds(balance.unplaceable),
            down_s: seconds(balance.down),
            residual_s: balance.residual() as f64 / 100.0,
            beyond_s: seconds(balance.beyond),
            rounded_s: seconds(balance.rounded),
            uncovered_s: seconds(balance.uncovered),
            records: balance.records,
        }
    }
}

impl Hours {
    fn of(sums: &Sums) -> Hours {
        Hours {
            slices: sums.slices,
            allocated: hours(sums.allocated),
            busy: hours(sums.busy),
            idle: hours(sums.idle),
            unknown: hours(sums.unknown),
            suspended: hours(sums.suspended),
            reclaimed: hours(sums.reclaimed),
            reclaims: sums.reclaims,
            energy_joules: sums.energy_j,
        }
    }
}

/// The text of a report.
///
/// # Errors
/// When a value has no form in JSON.
pub fn text(report: &Report) -> Result<String, serde_json::Error> {
    let rows = report.priced_rows();
    let rows = rows.iter().map(|(key, sums, cents)| Row {
        key,
        hours: Hours::of(sums),
        cost: cents.map(money::text),
    });
    let document = Document {
        version: VERSION,
        period: &report.period,
        by: report.table.by.iter().map(|by| by.name()).collect(),
        currency: report.currency.as_deref(),
        rows: rows.collect(),
        total: Hours::of(&report.table.total),
        total_cost: report
            .currency
            .as_ref()
            .map(|_| money::text(report.table.total.cost.cents())),
        days: report
            .days
            .iter()
            .map(|(day, sums)| Day {
                day,
                hours: Hours::of(sums),
            })
            .collect(),
        idle_holders: report
            .hints
            .holders()
            .into_iter()
            .map(|(user, sums)| Holder {
                user,
                idle: hours(sums.idle),
                allocated: hours(sums.allocated),
            })
            .collect(),
        sizes: report
            .hints
            .sizes()
            .into_iter()
            .map(|(size, filling)| Size {
                size,
                measured: filling.measured,
                over_half: filling.over_half,
                mean_filling: filling.mean(),
            })
            .collect(),
        ends: report.hints.ends().into_iter().collect(),
        own: report.own.as_ref().map(|own| {
            let jobs = own.iter().map(|job| Job {
                job: job.job,
                size: &job.size,
                allocated: hours(job.allocated),
                activity: job.activity,
                peak_memory_mib: job.memory.0,
                memory_mib: job.memory.1,
                enough: match &job.enough {
                    Enough::Unmeasured | Enough::NoSizes => None,
                    Enough::Same => Some(job.size.as_str()),
                    Enough::Smaller { fraction, .. } => Some(fraction),
                },
                saved: match job.enough {
                    Enough::Smaller { saved, .. } => hours(saved),
                    _ => 0.0,
                },
            });
            jobs.collect()
        }),
        audit: report.audit.as_ref().map(|audited| Audit {
            all: Balanced::of(&audited.all),
            balances: audited.balances(),
            gpus: audited
                .each
                .iter()
                .map(|((node, uuid), balance)| Gpu {
                    node,
                    uuid,
                    balance: Balanced::of(balance),
                })
                .collect(),
        }),
        damaged_lines: report.skipped.damaged,
        runs_without_records: report.without_records,
    };
    let mut text = serde_json::to_string_pretty(&document)?;
    text.push('\n');
    Ok(text)
}
