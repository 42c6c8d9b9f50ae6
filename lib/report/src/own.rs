//! A user's own jobs: what they asked for, what they used, which size would have been enough, and what that would have
//! saved.

use gpufrac_core::fraction::MemoryMib;

use crate::ledger::LedgerSlice;

/// Memory that is to be free beside the greatest memory in use: a tenth of that.
const MARGIN_PERCENT: u64 = 110;

/// A size that a pool lends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    /// The part of a GPU, as users write it.
    pub fraction: String,
    pub units: u64,
    pub memory: MemoryMib,
}

/// The size that would have been enough for a slice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enough {
    /// The job was not measured, or not long enough.
    Unmeasured,
    /// The sizes of the pool are not known here.
    NoSizes,
    /// The size that it had; no smaller one would have been enough.
    Same,
    Smaller {
        /// The part of a GPU.
        fraction: String,
        /// Unit-seconds that would have been saved.
        saved: u64,
    },
}

/// The smallest size of `menu` that is enough for the memory and the activity of a slice.
///
/// Activity is a part of the slice, so that a half that was busy for 40 % of the time did the work of a fifth of a GPU.
pub fn enough(held: &LedgerSlice, menu: &[Size]) -> Enough {
    let (Some(peak), Some(activity)) = (held.peak_memory_mib, held.activity) else {
        return Enough::Unmeasured;
    };
    if menu.is_empty() {
        return Enough::NoSizes;
    }
    let memory = peak * MARGIN_PERCENT / 100;
    let work = activity * held.units as f64;
    let is_enough = |size: &&Size| size.memory.0 >= memory && size.units as f64 >= work;
    let smallest = menu
        .iter()
        .filter(is_enough)
        .filter(|size| size.units < held.units)
        .min_by_key(|size| size.units);
    match smallest {
        None => Enough::Same,
        Some(size) => Enough::Smaller {
            fraction: size.fraction.clone(),
            saved: held.allocated() / held.units * (held.units - size.units),
        },
    }
}

/// The next smaller size of `menu`, where a slice whose memory was never half in use has one that holds its greatest
/// memory.
pub fn next_smaller(held: &LedgerSlice, menu: &[Size]) -> Option<String> {
    let (peak, all) = (held.peak_memory_mib?, held.memory_mib?);
    let smaller = menu.iter().filter(|size| size.units < held.units);
    let next = smaller.max_by_key(|size| size.units)?;
    (peak * 2 < all && peak <= next.memory.0).then(|| next.fraction.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn menu() -> Vec<Size> {
        let size = |fraction: &str, units, memory| Size {
            fraction: fraction.to_owned(),
            units,
            memory: MemoryMib(memory),
        };
        vec![
            size("0.125", 13, 10_000),
            size("0.25", 25, 20_000),
            size("0.5", 50, 40_000),
        ]
    }

    fn held(peak: Option<u64>, activity: Option<f64>) -> LedgerSlice {
        LedgerSlice {
            job: 7,
            user: "ann".to_owned(),
            pool: "p".to_owned(),
            node: "n1".to_owned(),
            size: "0.5".to_owned(),
            units: 50,
            to: 100,
            busy: 50 * 40,
            idle: 50 * 60,
            memory_mib: Some(40_000),
            peak_memory_mib: peak,
            activity,
            ..LedgerSlice::default()
        }
    }

    /// Promise (admins): the size that would have been enough has the memory and the activity that a job used.
    #[test]
    fn memory_and_activity_decide() {
        let of = |peak, activity| enough(&held(Some(peak), Some(activity)), &menu());
        let smaller = |fraction: &str, units: u64| Enough::Smaller {
            fraction: fraction.to_owned(),
            saved: 100 * (50 - units),
        };
        assert_eq!(of(5_000, 0.1), smaller("0.125", 13));
        // A tenth more than 9,500 does not fit in 10,000.
        assert_eq!(of(9_500, 0.1), smaller("0.25", 25));
        assert_eq!(of(5_000, 0.4), smaller("0.25", 25));
        assert_eq!(of(5_000, 0.6), Enough::Same);
        assert_eq!(of(30_000, 0.1), Enough::Same);
    }

    #[test]
    fn the_next_smaller_size_is_named_where_less_than_half_was_used() {
        let of = |peak| next_smaller(&held(peak, None), &menu());
        assert_eq!(of(Some(20_001)), None);
        assert_eq!(of(Some(20_000)), None);
        assert_eq!(of(Some(19_999)).as_deref(), Some("0.25"));
        assert_eq!(of(Some(0)).as_deref(), Some("0.25"));
        assert_eq!(of(None), None);
        // The next smaller size has less than half.
        let odd = [Size {
            memory: MemoryMib(15_000),
            ..menu().remove(1)
        }];
        assert_eq!(next_smaller(&held(Some(16_000), None), &odd), None);
        assert_eq!(next_smaller(&held(Some(1), None), &[]), None);
    }

    #[test]
    fn a_pool_that_is_not_known_here_has_no_size_that_would_have_been_enough() {
        assert_eq!(enough(&held(Some(1), Some(0.1)), &[]), Enough::NoSizes);
    }

    #[test]
    fn nothing_is_said_of_a_job_that_was_not_measured() {
        assert_eq!(enough(&held(None, Some(0.1)), &menu()), Enough::Unmeasured);
        assert_eq!(enough(&held(Some(1), None), &menu()), Enough::Unmeasured);
    }
}
