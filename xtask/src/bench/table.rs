//! The table of results.

use std::fmt;
use std::time::Duration;

use super::Pair;

/// The goal of a comparison.
pub(crate) enum Goal {
    /// gpufrac may take at most this many times as long.
    AtMostTimes(f64),
    /// gpufrac must be at least this many times as fast.
    FasterBy(f64),
    /// gpufrac may take at most this much longer.
    Within(Duration),
    /// There is no goal.
    None,
}

struct Row {
    what: String,
    ours: Duration,
    against: String,
    theirs: Duration,
    goal: Goal,
}

/// The comparisons, in order.
pub(crate) struct Table {
    rows: Vec<Row>,
    notes: Vec<String>,
}

impl Table {
    pub fn new() -> Self {
        Self {
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub fn add(&mut self, what: &str, against: &str, pair: &Pair, goal: Goal) {
        let (ours, theirs) = pair.medians();
        self.rows.push(Row {
            what: what.into(),
            ours,
            against: against.into(),
            theirs,
            goal,
        });
    }

    /// Notes what could not be measured.
    pub fn note(&mut self, words: impl Into<String>) {
        self.notes.push(words.into());
    }
}

impl Row {
    fn verdict(&self) -> String {
        let (ours, theirs) = (self.ours.as_secs_f64(), self.theirs.as_secs_f64());
        let word = |met: bool| if met { "met" } else { "MISSED" };
        match self.goal {
            Goal::AtMostTimes(limit) => {
                format!("at most {limit:.2}: {}", word(ours <= limit * theirs))
            }
            Goal::FasterBy(factor) => {
                format!(
                    "at most {:.2}: {}",
                    1.0 / factor,
                    word(ours * factor <= theirs)
                )
            }
            Goal::Within(limit) => {
                format!(
                    "at most {} ms more: {}",
                    limit.as_millis(),
                    word(self.ours <= self.theirs + limit)
                )
            }
            Goal::None => "-".into(),
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let milliseconds = |time: Duration| format!("{:.2} ms", time.as_secs_f64() * 1e3);
        writeln!(
            f,
            "\nmedians of runs in turns; ratio = gpufrac / the other\n"
        )?;
        writeln!(
            f,
            "{:<44} {:>11}   {:<38} {:>11} {:>7}  goal",
            "gpufrac", "", "against", "", "ratio"
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<44} {:>11}   {:<38} {:>11} {:>7.2}  {}",
                row.what,
                milliseconds(row.ours),
                row.against,
                milliseconds(row.theirs),
                row.ours.as_secs_f64() / row.theirs.as_secs_f64(),
                row.verdict()
            )?;
        }
        for note in &self.notes {
            writeln!(f, "\nnote: {note}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_goal_is_named() {
        let milliseconds = Duration::from_millis;
        let row = |ours, theirs, goal| Row {
            what: String::new(),
            ours: milliseconds(ours),
            against: String::new(),
            theirs: milliseconds(theirs),
            goal,
        };
        assert!(
            row(14, 10, Goal::AtMostTimes(1.5))
                .verdict()
                .ends_with(": met")
        );
        assert!(
            row(16, 10, Goal::AtMostTimes(1.5))
                .verdict()
                .ends_with("MISSED")
        );
        assert!(
            row(1, 10, Goal::FasterBy(10.0))
                .verdict()
                .ends_with(": met")
        );
        assert!(
            row(2, 10, Goal::FasterBy(10.0))
                .verdict()
                .ends_with("MISSED")
        );
        assert!(
            row(21, 10, Goal::Within(milliseconds(10)))
                .verdict()
                .ends_with("MISSED")
        );
    }
}
