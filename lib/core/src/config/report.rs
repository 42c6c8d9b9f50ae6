//! `[report]`: prices.

use toml::de::DeValue;

use super::error::Problem;
use super::keys;
use super::read::{Field, Section};
use crate::rates::{Millionths, Rate, Rates};

pub(super) fn read(section: &Section<'_>) -> Rates {
    section.only(&[keys::REPORT, keys::PRICES]);
    let general = rate(section, Rate::default());
    let mut rates = Rates {
        currency: section.read("currency", Field::string).unwrap_or_default(),
        general,
        ..Rates::default()
    };
    for pool in section.children("pool") {
        pool.only(&[keys::PRICES]);
        let own = rate(&pool, general);
        rates.pools.push((pool.own_name("report.pool"), own));
    }
    for qos in section.children("qos") {
        qos.only(&[keys::QOS]);
        let factor = qos.need("factor", "factor = 0.5");
        if let Some(factor) = factor.as_ref().and_then(price) {
            rates.qos.push((qos.own_name("report.qos"), factor));
        }
    }
    rates
}

/// The prices of a section; those that it does not name are those of `base`.
fn rate(section: &Section<'_>, base: Rate) -> Rate {
    let mut rate = base;
    section.set("gpu_hour", &mut rate.gpu_hour, price);
    section.set("idle_hour", &mut rate.idle_hour, price);
    rate
}

fn price(item: &Field<'_>) -> Option<Millionths> {
    let value = match item.value.get_ref() {
        DeValue::Integer(number) => number.as_str(),
        DeValue::Float(number) => number.as_str(),
        other => other.type_str(),
    };
    let number = Millionths::parse(value);
    if number.is_none() {
        let value = value.to_owned();
        item.wrong(Problem::Price { value });
    }
    number
}
