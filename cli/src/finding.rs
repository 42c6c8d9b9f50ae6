//! How findings are printed.

use gpufrac_core::finding::{Finding, Severity};

/// Prints a finding: a note to stdout, what must be changed to stderr with its `hint:` line.
pub fn print(finding: &Finding) {
    let Finding {
        severity,
        place,
        what,
        fix,
    } = finding;
    let place = place.as_ref().map(|place| format!("{place}: "));
    let place = place.unwrap_or_default();
    match severity {
        Severity::Error => eprintln!("gpufrac: {place}{what}\nhint: {fix}"),
        Severity::Warning => eprintln!("gpufrac: warning: {place}{what}\nhint: {fix}"),
        Severity::Note => println!("note: {place}{what}; {fix}"),
    }
}
