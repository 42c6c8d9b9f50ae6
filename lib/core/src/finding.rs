//! What `gpufrac check` and `gpufrac node-setup` find to be wrong.

/// How bad a finding is, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A fraction does not work, or is not fenced.
    Error,
    /// Something is lost, or works only sometimes.
    Warning,
    /// Worth knowing.
    Note,
}

/// One thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// File and line, or where the setting was seen; None for a fact of the machine.
    pub place: Option<String>,
    /// What is wrong, and what comes of it.
    pub what: String,
    /// What to do, with the exact text to write.
    pub fix: String,
}

impl Finding {
    /// A fact of the machine that keeps a node from carving.
    pub fn of_machine(what: impl ToString, fix: impl Into<String>) -> Finding {
        Finding {
            severity: Severity::Error,
            place: None,
            what: what.to_string(),
            fix: fix.into(),
        }
    }
}
