//! The document as a page of text: what differs comes first.

use std::fmt::Write;

use crate::document::{Answer, Document, Outcome};

pub fn of(document: &Document) -> String {
    let mut page = String::new();
    // Writing to a String does not fail.
    let _ = write(document, &mut page);
    page
}

fn write(document: &Document, page: &mut String) -> std::fmt::Result {
    writeln!(page, "{}", document.head)?;
    if document.made_up {
        writeln!(page, "MADE UP: a simulator gave these answers, no GPU did.")?;
    }
    let (date, version) = (&document.date, &document.gpufrac);
    writeln!(page, "{date}, gpufrac {version}")?;
    for (name, value) in &document.head.facts {
        writeln!(page, "{name}: {value}")?;
    }
    if let Some(stopped) = &document.stopped {
        let (step, reason) = (&stopped.step, &stopped.reason);
        writeln!(page, "\nSTOPPED in step `{step}`: {reason}")?;
    }
    let differing = |outcome: &Outcome| match outcome {
        Outcome::Differs { expected, found } => Some(format!(
            "\n      expected {expected}\n      found    {found}"
        )),
        _ => None,
    };
    section(
        page,
        "DIFFERS from what gpufrac takes for true",
        document,
        differing,
    )?;
    section(page, "not measured", document, |outcome| match outcome {
        Outcome::NotMeasured { reason } => Some(format!(" {reason}")),
        _ => None,
    })?;
    section(
        page,
        "noted, without an assumption of gpufrac's",
        document,
        |outcome| match outcome {
            Outcome::Noted { value } => Some(format!(" {value}")),
            _ => None,
        },
    )?;
    section(page, "agrees", document, |outcome| match outcome {
        Outcome::Agrees { value } => Some(format!(" {value}")),
        _ => None,
    })?;
    places(document, page)?;
    times(document, page)
}

fn section(
    page: &mut String,
    title: &str,
    document: &Document,
    text: impl Fn(&Outcome) -> Option<String>,
) -> std::fmt::Result {
    let of = |answer: &Answer| Some((answer.clone(), text(&answer.outcome)?));
    let found: Vec<(Answer, String)> = document.answers.iter().filter_map(of).collect();
    writeln!(page, "\n{title}: {}", found.len())?;
    for (answer, text) in found {
        writeln!(page, "  [{}] {}:{text}", answer.step, answer.question)?;
    }
    Ok(())
}

fn places(document: &Document, page: &mut String) -> std::fmt::Result {
    if document.places.is_empty() {
        return Ok(());
    }
    writeln!(page, "\nEach size at each place alone")?;
    writeln!(
        page,
        "  {:<14} {:>5} {:>3} {:>3} {:>7} {:>11} {:>9} {:>9}",
        "profile", "start", "gi", "ci", "uuid", "minors", "MiB", "idle MiB"
    )?;
    for row in &document.places {
        let minors = row
            .minors
            .map_or_else(String::new, |[gi, ci]| format!("{gi},{ci}"));
        let memory = row.memory_mib.map_or([String::new(), String::new()], |it| {
            it.map(|mib| mib.to_string())
        });
        writeln!(
            page,
            "  {:<14} {:>5} {:>3} {:>3} {:>7} {minors:>11} {:>9} {:>9}",
            row.profile, row.start, row.gi, row.ci, row.uuid, memory[0], memory[1]
        )?;
    }
    Ok(())
}

fn times(document: &Document, page: &mut String) -> std::fmt::Result {
    writeln!(page, "\nDurations in milliseconds")?;
    writeln!(
        page,
        "  {:<50} {:>8} {:>6} {:>10} {:>10} {:>10}",
        "call", "when", "n", "min", "median", "p99"
    )?;
    for row in &document.times {
        let times = row.times;
        writeln!(
            page,
            "  {:<50} {:>8} {:>6} {:>10.3} {:>10.3} {:>10.3}",
            row.call, row.when, times.n, times.min, times.median, times.p99
        )?;
    }
    Ok(())
}
