//! Prints findings.

use gpufrac_core::finding::{Finding, Severity};

/// A finding without its cure, on one line.
pub fn line(finding: &Finding) -> String {
    let Finding { place, what, .. } = finding;
    match place {
        Some(place) => format!("{place}: {what}"),
        None => what.clone(),
    }
}

/// Prints a finding: a note to stdout; an error or warning to stderr with a `hint:` line.
pub fn print(finding: &Finding) {
    let (line, fix) = (line(finding), &finding.fix);
    match finding.severity {
        Severity::Error => eprintln!("gpufrac: {line}\nhint: {fix}"),
        // What follows works, but it should be changed. Cure: Follow the `hint:` line.
        Severity::Warning => eprintln!("gpufrac: warning: {line}\nhint: {fix}"),
        Severity::Note => println!("note: {line}; {fix}"),
    }
}
