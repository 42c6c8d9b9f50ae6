//! gpufrac's mark on an instance (instance_files.rs): the time at which it was claimed.

use crate::node::now_boot_ms;

/// The smallest mark: the driver itself writes 0 and 1.
const FIRST_MARK: u32 = 2;
/// How many marks there are; the driver keeps them as a signed number of 32 bits. A mark returns after 12 days.
const MARKS: u64 = 1 << 30;

/// The mark of an instance that is claimed now. Two instances at the same place are never claimed in the same
/// millisecond.
pub(super) fn now() -> u32 {
    FIRST_MARK + (now_boot_ms() % MARKS) as u32
}

/// The milliseconds since an instance was claimed with this mark, or fewer if that was more than 12 days ago.
pub(super) fn age_ms(mark: u32) -> u64 {
    let claimed = u64::from(mark.saturating_sub(FIRST_MARK));
    (now_boot_ms() % MARKS + MARKS - claimed) % MARKS
}
