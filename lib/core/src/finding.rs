//! The findings of `gpufrac check` and `gpufrac node-setup`.

/// How bad a finding is, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Fractions do not work, or jobs are not isolated.
    Error,
    /// A function is lost, or does not work in all cases.
    Warning,
    /// Information without a fault.
    Note,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// The file and line, or the source of the setting; None for a fact of the machine.
    pub place: Option<String>,
    pub what: String,
    /// The cure, with the exact text to write.
    pub fix: String,
}

impl Finding {
    /// A finding about a line, a file or another source of settings.
    pub fn at(
        place: impl ToString,
        severity: Severity,
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Finding {
        Finding {
            severity,
            place: Some(place.to_string()),
            what: what.into(),
            fix: fix.into(),
        }
    }

    /// An error of the machine that keeps a node from making slices.
    pub fn of_machine(what: impl ToString, fix: impl Into<String>) -> Finding {
        Finding {
            severity: Severity::Error,
            place: None,
            what: what.to_string(),
            fix: fix.into(),
        }
    }

    /// The finding, where it keeps no node from making slices.
    pub fn as_warning(self) -> Finding {
        let severity = Severity::Warning;
        Finding { severity, ..self }
    }
}
