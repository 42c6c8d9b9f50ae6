//! Collects the answers, durations and calls of a run.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Display;

use crate::aliases::Aliases;
use crate::document::{Answer, CallRow, Outcome, PlaceRow, TimesRow};
use crate::statistics::Times;

/// How many calls are written down; all are measured.
const MOST_CALLS: usize = 600;
/// The step of questions that each instance answers, in whatever step it is made.
const INSTANCES: &str = "instances";
/// How many differing cases of a question are named.
const MOST_NAMED: usize = 4;

/// What a run has collected so far.
#[derive(Default)]
pub struct Record {
    /// Aliases of devices.
    pub aliases: Aliases,
    /// Places with the instance that was made there alone.
    pub places: RefCell<Vec<PlaceRow>>,
    step: Cell<&'static str>,
    questions: RefCell<Vec<Question>>,
    durations: RefCell<BTreeMap<(String, String), Vec<f64>>>,
    calls: RefCell<Vec<CallRow>>,
}

struct Question {
    step: &'static str,
    text: String,
    agreed: Vec<String>,
    differing: Vec<Case>,
    noted: Vec<String>,
    not_measured: Option<String>,
}

struct Case {
    subject: String,
    expected: String,
    found: String,
}

impl Record {
    pub fn begin(&self, step: &'static str) {
        self.step.set(step);
    }

    pub fn step(&self) -> &'static str {
        self.step.get()
    }

    fn question(&self, step: &'static str, text: &str, add: impl FnOnce(&mut Question)) {
        let mut questions = self.questions.borrow_mut();
        let at = questions
            .iter()
            .position(|known| known.step == step && known.text == text);
        let at = at.unwrap_or_else(|| {
            questions.push(Question {
                step,
                text: text.to_owned(),
                agreed: Vec::new(),
                differing: Vec::new(),
                noted: Vec::new(),
                not_measured: None,
            });
            questions.len() - 1
        });
        add(&mut questions[at]);
    }

    /// One case of a question: what gpufrac takes for true, and the driver's answer.
    pub fn check(
        &self,
        question: &str,
        subject: impl Display,
        expected: impl Display,
        found: impl Display,
    ) {
        self.check_in(self.step.get(), question, subject, expected, found);
    }

    /// As [`Record::check`], of a question that is the same in all steps.
    pub fn check_instance(
        &self,
        question: &str,
        subject: impl Display,
        expected: impl Display,
        found: impl Display,
    ) {
        self.check_in(INSTANCES, question, subject, expected, found);
    }

    fn check_in(
        &self,
        step: &'static str,
        question: &str,
        subject: impl Display,
        expected: impl Display,
        found: impl Display,
    ) {
        let (expected, found) = (expected.to_string(), found.to_string());
        self.question(step, question, |to| {
            if expected == found {
                to.agreed.push(found)
            } else {
                to.differing.push(Case {
                    subject: subject.to_string(),
                    expected,
                    found,
                })
            }
        });
    }

    /// A value of which gpufrac assumes nothing.
    pub fn note(&self, question: &str, value: impl Display) {
        let value = value.to_string();
        self.question(self.step.get(), question, |to| {
            if !to.noted.contains(&value) {
                to.noted.push(value);
            }
        });
    }

    /// A question without an answer.
    pub fn not_measured(&self, question: &str, reason: impl Display) {
        self.question(self.step.get(), question, |to| {
            to.not_measured = Some(reason.to_string());
        });
    }

    /// The duration of a call in milliseconds.
    pub fn took(&self, call: &str, when: &str, ms: f64) {
        let mut durations = self.durations.borrow_mut();
        let of_call = durations.entry((call.to_owned(), when.to_owned()));
        of_call.or_default().push(ms);
    }

    /// Writes a call down.
    pub fn called(&self, row: CallRow) {
        let mut calls = self.calls.borrow_mut();
        if calls.len() < MOST_CALLS {
            calls.push(row);
        }
    }

    /// The durations, by function and case.
    pub fn times(&self) -> Vec<TimesRow> {
        let durations = self.durations.borrow();
        let rows = durations.iter().filter_map(|((call, when), all)| {
            Some(TimesRow {
                call: call.clone(),
                when: when.clone(),
                times: Times::of(all)?,
            })
        });
        rows.collect()
    }

    /// The calls that were written down.
    pub fn calls(&self) -> Vec<CallRow> {
        let calls = self.calls.borrow().clone().into_iter();
        let scrubbed = calls.map(|row| CallRow {
            args: self.aliases.scrub(&row.args),
            ..row
        });
        scrubbed.collect()
    }

    pub fn answers(&self) -> Vec<Answer> {
        let questions = self.questions.borrow();
        let answers = questions.iter().map(|question| Answer {
            step: question.step.to_owned(),
            question: question.text.clone(),
            outcome: self.outcome(question),
        });
        answers.collect()
    }

    fn outcome(&self, question: &Question) -> Outcome {
        let scrub = |text: &str| self.aliases.scrub(text);
        if !question.differing.is_empty() {
            let cases = &question.differing;
            let text = |of: fn(&Case) -> &str| in_words(cases, of, question.agreed.len());
            return Outcome::Differs {
                expected: scrub(&text(|case| &case.expected)),
                found: scrub(&text(|case| &case.found)),
            };
        }
        if !question.noted.is_empty() {
            return Outcome::Noted {
                value: scrub(&question.noted.join("; ")),
            };
        }
        match (question.agreed.first(), &question.not_measured) {
            (Some(first), _) => {
                let all_same = question.agreed.iter().all(|value| value == first);
                let value = match (question.agreed.len(), all_same) {
                    (1, _) => first.clone(),
                    (count, true) => format!("{first} ({count} times)"),
                    (count, false) => format!("as expected in all {count} cases"),
                };
                Outcome::Agrees {
                    value: scrub(&value),
                }
            }
            (None, reason) => Outcome::NotMeasured {
                reason: scrub(reason.as_deref().unwrap_or("nothing was asked")),
            },
        }
    }
}

/// One value where all cases have it, else the values with their subjects.
fn in_words(cases: &[Case], of: fn(&Case) -> &str, agreed: usize) -> String {
    let first = of(&cases[0]);
    let same = cases.iter().all(|case| of(case) == first);
    if same && (cases.len() == 1 || of(&cases[0]) == cases[0].expected) {
        let subject = &cases[0].subject;
        return match (
            cases.len(),
            subject.is_empty() || first == cases[0].expected,
        ) {
            (1, false) => format!("{subject}: {first}"),
            _ => first.to_owned(),
        };
    }
    let named = cases.iter().take(MOST_NAMED);
    let named: Vec<String> = named
        .map(|case| {
            if case.subject.is_empty() {
                of(case).to_owned()
            } else {
                format!("{}: {}", case.subject, of(case))
            }
        })
        .collect();
    let mut text = named.join("; ");
    if cases.len() > MOST_NAMED {
        text += &format!("; in {} of {} cases", cases.len(), cases.len() + agreed);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(record: &Record) -> Outcome {
        record.answers()[0].outcome.clone()
    }

    #[test]
    fn one_differing_case_makes_the_answer_differ() {
        let record = Record::default();
        record.begin("places");
        record.check("the memory", "1g at 0", 10, 10);
        assert_eq!(outcome(&record), Outcome::Agrees { value: "10".into() });
        record.check("the memory", "1g at 1", 10, 10);
        let value = "10 (2 times)".into();
        assert_eq!(outcome(&record), Outcome::Agrees { value });
        record.check("the memory", "1g at 2", 10, 12);
        assert_eq!(
            outcome(&record),
            Outcome::Differs {
                expected: "10".into(),
                found: "1g at 2: 12".into()
            }
        );
        record.check("the memory", "2g at 0", 20, 12);
        assert_eq!(
            outcome(&record),
            Outcome::Differs {
                expected: "1g at 2: 10; 2g at 0: 20".into(),
                found: "1g at 2: 12; 2g at 0: 12".into()
            }
        );
        assert_eq!(record.answers().len(), 1);
    }

    #[test]
    fn an_answer_without_a_value_has_its_reason() {
        let record = Record::default();
        record.begin("load");
        record.not_measured("the load", "no libcuda");
        let reason = "no libcuda".into();
        assert_eq!(outcome(&record), Outcome::NotMeasured { reason });
        record.aliases.of("MIG", "MIG-aa");
        record.note("the load", "80 % on MIG-aa");
        let value = "80 % on MIG-1".into();
        assert_eq!(outcome(&record), Outcome::Noted { value });
    }
}
