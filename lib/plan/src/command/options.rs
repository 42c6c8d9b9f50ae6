//! From the command line to the options of a plan.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use super::{PlanArgs, PlanError};
use crate::candidate::{Candidate, Model};
use crate::limits::Assigned;
use crate::queue;
use crate::read::{self, ReadError};
use crate::search::{Options, Windows};
use crate::size::Rule;
use crate::speed::Curve;

pub(super) fn options(args: &PlanArgs) -> Result<Options, PlanError> {
    let model = Model::named(&args.gpu).ok_or_else(|| PlanError::Model(args.gpu.clone()))?;
    let candidates = args.layouts.iter().map(|text| Candidate::parse(text));
    let mut options = Options {
        model,
        rule: Rule {
            margin: args.margin,
        },
        curve: curve(args)?,
        queue: queue::Settings::default(),
        limits: Assigned::default(),
        slow: 1.0 + args.slow / 100.0,
        samples: args.samples,
        seed: args.seed,
        windows: Windows::default(),
        counts_cpus: true,
        candidates: candidates.collect::<Result<_, _>>()?,
        best: args.best,
    };
    for change in &args.what_if {
        apply(&mut options, change)?;
    }
    let is_range = options.rule.margin > 0.0
        && options.rule.margin.is_finite()
        && args.slow >= 0.0
        && args.best > 0;
    if is_range { Ok(options) } else { Err(PlanError::Range) }
}

fn curve(args: &PlanArgs) -> Result<Curve, PlanError> {
    let Some(path) = &args.speeds else {
        return Ok(Curve::default());
    };
    let failed = |error| ReadError::io(path, error);
    let speeds = read::speeds::read(read::open(path)?).map_err(failed)?;
    let source = format!("{} measurements of {}", speeds.len(), path.display());
    let measured = Curve::measured(&speeds, &source).ok_or_else(|| {
        let none = "it has no speed of a slice";
        failed(Error::new(ErrorKind::InvalidData, none))
    });
    Ok(measured?)
}

fn apply(options: &mut Options, change: &str) -> Result<(), PlanError> {
    let wrong = || PlanError::Change(change.to_owned());
    let (key, value) = change.split_once('=').ok_or_else(wrong)?;
    let window = || match value {
        "off" => Ok(None),
        value => humantime::parse_duration(value)
            .map(|span: Duration| Some(span.as_secs()))
            .map_err(|_| wrong()),
    };
    match key.trim() {
        "reaper.idle" => options.windows.idle = window()?,
        "reaper.never_used" => options.windows.never_used = window()?,
        "layout" => options.candidates = vec![Candidate::parse(value)?],
        "cpus" if value == "off" => options.counts_cpus = false,
        "margin" => options.rule.margin = value.parse().map_err(|_| wrong())?,
        _ => return Err(wrong()),
    }
    Ok(())
}
