//! `[report]`: prices.

use toml::de::DeValue;

use super::error::Problem;
use super::read::{Field, Section, Source};
use crate::rates::{Millionths, Rate, Rates};

/// Keys of a price.
const RATE_KEYS: [&str; 2] = ["gpu_hour", "idle_hour"];
const OWN_KEYS: [&str; 3] = ["currency", "pool", "qos"];

pub(super) fn read(source: &mut Source<'_>, section: &Section<'_, '_>) -> Rates {
    section.only(source, &[OWN_KEYS.as_slice(), &RATE_KEYS].concat());
    let currency = section.get("currency");
    let currency = currency.and_then(|item| item.text(source).map(str::to_owned));
    let general = rate(source, section, Rate::default());
    let mut rates = Rates {
        currency: currency.unwrap_or_default(),
        general,
        ..Rates::default()
    };
    for pool in section.children(source, "pool") {
        pool.only(source, &RATE_KEYS);
        let own = rate(source, &pool, general);
        rates.pools.push((name_of(&pool, "report.pool."), own));
    }
    for qos in section.children(source, "qos") {
        qos.only(source, &["factor"]);
        let factor = qos.need(source, "factor", "factor = 0.5");
        if let Some(factor) = factor.and_then(|item| number(source, &item)) {
            rates.qos.push((name_of(&qos, "report.qos."), factor));
        }
    }
    rates
}

/// NAME of `[report.pool.NAME]` and `[report.qos.NAME]`.
fn name_of(section: &Section<'_, '_>, prefix: &str) -> String {
    let name = section.name.strip_prefix(prefix);
    name.unwrap_or(&section.name).to_owned()
}

/// The prices of a section; those that it does not name are those of `base`.
fn rate(source: &mut Source<'_>, section: &Section<'_, '_>, base: Rate) -> Rate {
    let mut of = |key, base| {
        let item = section.get(key);
        let own = item.and_then(|item| number(source, &item));
        own.unwrap_or(base)
    };
    Rate {
        gpu_hour: of("gpu_hour", base.gpu_hour),
        idle_hour: of("idle_hour", base.idle_hour),
    }
}

fn number(source: &mut Source<'_>, item: &Field<'_, '_>) -> Option<Millionths> {
    let value = match item.value.get_ref() {
        DeValue::Integer(number) => number.as_str(),
        DeValue::Float(number) => number.as_str(),
        other => other.type_str(),
    };
    let number = Millionths::parse(value);
    if number.is_none() {
        let value = value.to_owned();
        item.wrong(source, Problem::Price { value });
    }
    number
}
