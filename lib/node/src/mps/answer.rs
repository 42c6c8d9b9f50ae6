//! Reads the output of a control daemon. Users cannot write it, but its text differs between versions.

/// The pids in an answer, one on each line; other lines are ignored.
pub fn pids(said: &str) -> impl Iterator<Item = i32> {
    said.lines().filter_map(|line| line.trim().parse().ok())
}

/// An amount of memory in a daemon's answer, in MiB.
pub fn memory(text: &str) -> Option<u64> {
    let (number, scale) = match text.strip_suffix('G') {
        Some(number) => (number, 1024),
        None => (text.strip_suffix('M')?, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_said_in_two_units() {
        assert_eq!(memory("500M"), Some(500));
        assert_eq!(memory("19G"), Some(19 * 1024));
        for text in ["", "No default", "18446744073709551615G", "-1M", "ü"] {
            assert_eq!(memory(text), None, "{text}");
        }
    }

    #[test]
    fn pids_are_lines_of_their_own() {
        assert_eq!(
            pids("12\n 34 \nserver 5\n\n99999999999\n").collect::<Vec<_>>(),
            [12, 34]
        );
    }
}
