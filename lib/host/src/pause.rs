//! Pauses between two checks of a condition.

use std::thread::sleep;
use std::time::Duration;

/// Pauses that double each time.
#[derive(Debug, Clone)]
pub struct Pause {
    next: Duration,
    longest: Duration,
}

impl Pause {
    /// The first pause lasts `first`; no pause is longer than `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Pause {
        Pause {
            next: first,
            longest,
        }
    }

    /// Sleeps for the next pause, but not longer than `left`.
    pub fn sleep(&mut self, left: Duration) {
        sleep(self.next.min(left));
        self.next = (self.next * 2).min(self.longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let micros = Duration::from_micros;
        let mut pause = Pause::new(micros(1), micros(3));
        for next in [2, 3, 3] {
            pause.sleep(Duration::ZERO);
            assert_eq!(pause.next, micros(next));
        }
    }
}
