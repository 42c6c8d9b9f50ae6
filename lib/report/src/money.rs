//! Prices of allocations. Everything is exact until it is printed, so that each grouping has the same total to the
//! cent.

use gpufrac_core::rates::Rates;

/// An amount, exact: millionths of the currency, times unit-seconds in an hour of a GPU, times millionths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Money(i128);

/// Unit-seconds in an hour of a GPU.
pub const GPU_HOUR: u64 = 100 * 3600;
/// Units of [`Money`] in a cent.
const CENT: i128 = 10_000 * GPU_HOUR as i128 * 1_000_000;

impl Money {
    /// The price of an allocation, and of its idle part, both in unit-seconds.
    pub fn of(rates: &Rates, pool: &str, qos: &str, allocated: u64, idle: u64) -> Money {
        let rate = rates.of_pool(pool);
        let by_time = i128::from(rate.gpu_hour.0) * i128::from(allocated)
            + i128::from(rate.idle_hour.0) * i128::from(idle);
        Money(by_time * i128::from(rates.factor(qos).0))
    }

    /// Adds another amount.
    pub fn add(&mut self, other: Money) {
        self.0 += other.0;
    }

    /// Cents, rounded to the nearest, half a cent up.
    pub fn cents(self) -> i128 {
        (self.0 + CENT / 2).div_euclid(CENT)
    }
}

/// Amounts as cents that add up to the cents of their sum: by the largest remainder.
pub fn cents(amounts: &[Money]) -> Vec<i128> {
    let total = Money(amounts.iter().map(|amount| amount.0).sum()).cents();
    let mut cents: Vec<i128> = amounts
        .iter()
        .map(|amount| amount.0.div_euclid(CENT))
        .collect();
    let mut order: Vec<usize> = (0..amounts.len()).collect();
    // Stable: of equal remainders the first.
    order.sort_by_key(|&place| std::cmp::Reverse(amounts[place].0.rem_euclid(CENT)));
    let left = total - cents.iter().sum::<i128>();
    let left = usize::try_from(left).unwrap_or(0);
    for place in order.into_iter().take(left) {
        cents[place] += 1;
    }
    cents
}

/// `12.34`.
pub fn text(cents: i128) -> String {
    format!("{}.{:02}", cents.div_euclid(100), cents.rem_euclid(100))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpufrac_core::rates::{Millionths, Rate};
    use proptest::prelude::*;

    fn rates() -> Rates {
        Rates {
            currency: "EUR".to_owned(),
            general: Rate {
                gpu_hour: Millionths(1_200_000),
                idle_hour: Millionths(300_000),
            },
            pools: vec![(
                "big".to_owned(),
                Rate {
                    gpu_hour: Millionths(2_500_000),
                    idle_hour: Millionths(0),
                },
            )],
            qos: vec![("low".to_owned(), Millionths(500_000))],
        }
    }

    #[test]
    fn idle_hours_have_a_price_beside_that_of_the_allocation() {
        let price =
            |pool, qos, allocated, idle| Money::of(&rates(), pool, qos, allocated, idle).cents();
        // A quarter for four hours, one hour of it idle.
        assert_eq!(price("p", "", GPU_HOUR, GPU_HOUR / 4), 128);
        assert_eq!(price("p", "low", GPU_HOUR, GPU_HOUR / 4), 64);
        assert_eq!(price("big", "", GPU_HOUR, GPU_HOUR), 250);
    }

    proptest! {
        /// Promise (admins): by every grouping the rows of a report add up to the same total, to the cent.
        #[test]
        fn rows_add_up_to_the_total_by_every_grouping(
            parts in proptest::collection::vec((0_u64..10_000_000, 0_usize..4, 0_usize..3), 1..60),
        ) {
            let one = |time: u64, qos: usize| Money::of(&rates(), "p", ["", "low", "high", "x"][qos], time, time / 3);
            let mut totals = Vec::new();
            for by in 0..3 {
                let mut rows = vec![Money::default(); 5];
                for &(time, qos, other) in &parts {
                    let row = match by { 0 => 0, 1 => qos, _ => other };
                    rows[row].add(one(time, qos));
                }
                totals.push(cents(&rows).iter().sum::<i128>());
            }
            prop_assert_eq!(totals[0], totals[1]);
            prop_assert_eq!(totals[0], totals[2]);
        }
    }

    #[test]
    fn cents_have_two_digits() {
        assert_eq!(text(5), "0.05");
        assert_eq!(text(123_450), "1234.50");
    }
}
