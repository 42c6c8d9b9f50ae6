//! A report as JSON: `{"version":1,...}`. Hours are those of a GPU; money is a text with two decimals.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};
use serde_json::Number;

use super::{Report, hours};
use crate::audit::Balance;
use crate::money;
use gpufrac_records::usage::Full;

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
    rows: Vec<HoursOfKey<'a>>,
    total: Numbers,
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

/// Names with numbers, in this order.
struct Numbers(Vec<(String, Number)>);

impl Serialize for Numbers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, number)| (name, number)))
    }
}

#[derive(Serialize)]
struct HoursOfKey<'a> {
    key: &'a [String],
    #[serde(flatten)]
    hours: Numbers,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
}

#[derive(Serialize)]
struct Day<'a> {
    day: &'a str,
    #[serde(flatten)]
    hours: Numbers,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    full: Option<&'a Full>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_smaller: Option<&'a str>,
}

#[derive(Serialize)]
struct Audit<'a> {
    #[serde(flatten)]
    all: Numbers,
    balances: bool,
    gpus: Vec<BalanceOfGpu<'a>>,
}

#[derive(Serialize)]
struct BalanceOfGpu<'a> {
    node: &'a str,
    uuid: &'a str,
    #[serde(flatten)]
    balance: Numbers,
}

/// A number that is finite.
fn number(value: f64) -> Number {
    Number::from_f64(value).unwrap_or_else(|| 0.into())
}

/// Counts, and hours of a GPU.
fn hours_of(sums: &Sums) -> Numbers {
    let parts = sums
        .parts()
        .map(|(name, part)| (name.to_owned(), number(hours(part))));
    let count = |name: &str, count: u64| (name.to_owned(), count.into());
    let first = [count("slices", sums.slices)].into_iter();
    let last = [
        count("reclaims", sums.reclaims),
        count("energy_joules", sums.energy_j),
    ];
    Numbers(first.chain(parts).chain(last).collect())
}

/// Seconds of whole GPUs.
fn seconds_of(balance: &Balance) -> Numbers {
    let seconds =
        |name: &str, unit_seconds: f64| (format!("{name}_s"), number(unit_seconds / 100.0));
    let parts = [("capacity", balance.capacity)]
        .into_iter()
        .chain(balance.parts());
    let parts = parts.map(|(name, part)| seconds(name, part as f64));
    let others = [
        seconds("residual", balance.residual() as f64),
        seconds("beyond", balance.beyond as f64),
        seconds("rounded", balance.rounded as f64),
        seconds("uncovered", balance.uncovered as f64),
        seconds("pending", balance.pending as f64),
        ("records".to_owned(), balance.records.into()),
    ];
    Numbers(parts.chain(others).collect())
}

/// The text of a report. Errors: when a value has no form in JSON.
pub fn text(report: &Report) -> Result<String, serde_json::Error> {
    let rows = report.priced_rows();
    let rows = rows.iter().map(|(key, sums, cents)| HoursOfKey {
        key,
        hours: hours_of(sums),
        cost: cents.map(money::text),
    });
    let document = Document {
        version: VERSION,
        period: &report.period,
        by: report.table.by.iter().map(|by| by.name()).collect(),
        currency: report.currency.as_deref(),
        rows: rows.collect(),
        total: hours_of(&report.table.total),
        total_cost: report
            .currency
            .as_ref()
            .map(|_| money::text(report.table.total.cost.cents())),
        days: report
            .days
            .iter()
            .map(|(day, sums)| Day {
                day,
                hours: hours_of(sums),
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
                full: job.full.as_ref(),
                next_smaller: job.next_smaller.as_deref(),
                saved: match job.enough {
                    Enough::Smaller { saved, .. } => hours(saved),
                    _ => 0.0,
                },
            });
            jobs.collect()
        }),
        audit: report.audit.as_ref().map(|audited| Audit {
            all: seconds_of(&audited.all),
            balances: audited.balances(),
            gpus: audited
                .each
                .iter()
                .map(|((node, uuid), balance)| BalanceOfGpu {
                    node,
                    uuid,
                    balance: seconds_of(balance),
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
