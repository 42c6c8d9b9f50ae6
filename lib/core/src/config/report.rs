//! `[report]`: prices.

use super::keys::{PRICES, QOS, REPORT};
use super::read::Section;
use crate::rates::{Millionths, Rates};

pub(super) fn read(section: &Section<'_>) -> Rates {
    REPORT.check(section, &PRICES.names());
    let mut rates = Rates::default();
    REPORT.fill(section, &mut rates);
    PRICES.fill(section, &mut rates.general);
    for pool in section.children("pool") {
        PRICES.check(&pool, &[]);
        let mut own = rates.general;
        PRICES.fill(&pool, &mut own);
        rates.pools.push((pool.own_name("report.pool"), own));
    }
    for qos in section.children("qos") {
        QOS.check(&qos, &[]);
        let mut factor = Millionths::ONE;
        QOS.fill(&qos, &mut factor);
        rates.qos.push((qos.own_name("report.qos"), factor));
    }
    rates
}
