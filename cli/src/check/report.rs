//! The report of `gpufrac check`, for people and for programs.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use gpufrac_core::finding::{Finding, Severity};
use serde_json::{Value, json};

use crate::args::CheckArgs;
use crate::error::CliError;
use crate::finding;

/// The exit code of a check. Monitoring uses the numbers, so they are an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Verdict {
    /// No error and no warning.
    Good = 0,
    /// A function is lost, or does not work in all cases.
    Warnings = 1,
    /// Fractions do not work, or jobs are not isolated. clap uses the same code for wrong arguments.
    Errors = 2,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        ExitCode::from(verdict as u8)
    }
}

/// The form of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people: notes on stdout; errors and warnings, each with its hint, on stderr.
    Text,
    /// For programs: one JSON object.
    Json,
    /// For health checks: only errors, one line each.
    Quiet,
}

impl Form {
    pub fn of(args: &CheckArgs) -> Form {
        match (args.json, args.quiet) {
            (true, _) => Form::Json,
            (false, true) => Form::Quiet,
            (false, false) => Form::Text,
        }
    }
}

/// The result of all checks.
#[derive(Debug)]
pub struct Report {
    config: PathBuf,
    /// The node, if this host is one with pools and was checked.
    pub node: Option<String>,
    /// The pools, and notes.
    pub lines: Vec<String>,
    /// Findings about the configuration and the machine.
    pub findings: Vec<Finding>,
    /// Findings about Slurm's settings.
    pub of_slurm: Vec<Finding>,
    /// Whether there were settings of Slurm to judge.
    pub slurm_is_known: bool,
}

impl Report {
    pub fn of(config: &Path) -> Report {
        Report {
            config: config.to_owned(),
            node: None,
            lines: Vec::new(),
            findings: Vec::new(),
            of_slurm: Vec::new(),
            slurm_is_known: false,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().chain(&self.of_slurm)
    }

    pub fn verdict(&self, form: Form) -> Verdict {
        match self.all().map(|finding| finding.severity).min() {
            Some(Severity::Error) => Verdict::Errors,
            Some(Severity::Warning) if form != Form::Quiet => Verdict::Warnings,
            _ => Verdict::Good,
        }
    }

    pub fn print(&self, form: Form) {
        match form {
            Form::Text => self.print_text(),
            Form::Json => println!("{}", self.json()),
            Form::Quiet => {
                let errors = self.all().filter(|it| it.severity == Severity::Error);
                errors.for_each(|error| eprintln!("gpufrac: {}", finding::line(error)));
            }
        }
    }

    fn print_text(&self) {
        self.lines.iter().for_each(|line| println!("{line}"));
        self.all().for_each(finding::print);
        let is_error = |finding: &Finding| finding.severity == Severity::Error;
        if self.of_slurm.iter().any(is_error) {
            // `gpufrac check` found mistakes in Slurm's files; Slurm reads some of them only at its start. Cure:
            // Correct the files, restart slurmctld, then slurmd on every node.
            eprintln!(
                "hint: after a change of Slurm's files: restart slurmctld, then slurmd on every node"
            );
        }
        if self.all().any(is_error) {
            return;
        }
        let mut ok = format!("{}: ok", self.config.display());
        if let Some(node) = &self.node {
            ok.push_str(&format!("; node {node}: ok"));
        }
        if self.slurm_is_known {
            ok.push_str("; Slurm: ok");
        }
        println!("{ok}");
    }

    fn json(&self) -> Value {
        let mut object = object(&self.config, self.verdict(Form::Json), self.all());
        object["node"] = json!(self.node);
        object["slurm_is_known"] = json!(self.slurm_is_known);
        object
    }
}

fn object<'a>(
    config: &Path,
    verdict: Verdict,
    findings: impl Iterator<Item = &'a Finding>,
) -> Value {
    let status = match verdict {
        Verdict::Good => "ok",
        Verdict::Warnings => "warning",
        Verdict::Errors => "error",
    };
    let findings: Vec<Value> = findings
        .map(|finding| {
            let severity = match finding.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
                Severity::Note => "note",
            };
            json!({"severity": severity, "place": finding.place, "what": finding.what, "fix": finding.fix})
        })
        .collect();
    json!({"config": config, "status": status, "findings": findings})
}

/// Reports that the configuration cannot be used.
pub fn refused(config: &Path, error: &CliError, form: Form) {
    match (error, form) {
        (CliError::Config(errors), Form::Json) => {
            let findings: Vec<Finding> = errors
                .0
                .iter()
                .map(|error| {
                    let text = error.to_string();
                    let place = format!("{}:{}", error.path, error.line);
                    let what = text.strip_prefix(&format!("{place}: ")).unwrap_or(&text);
                    Finding {
                        severity: Severity::Error,
                        what: what.to_owned(),
                        place: Some(place),
                        fix: "correct this line".into(),
                    }
                })
                .collect();
            println!("{}", object(config, Verdict::Errors, findings.iter()));
        }
        // Mistakes in the file are printed unchanged, one line each, for editors.
        (CliError::Config(errors), Form::Text | Form::Quiet) => eprintln!("{errors}"),
        (error, Form::Json) => {
            let finding = Finding::of_machine(error, error.hint().unwrap_or_default());
            println!(
                "{}",
                object(config, Verdict::Errors, [&finding].into_iter())
            );
        }
        (error, Form::Text) => error.print(),
        (error, Form::Quiet) => eprintln!("gpufrac: {error}"),
    }
}
