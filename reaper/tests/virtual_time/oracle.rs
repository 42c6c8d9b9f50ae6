//! Checks each run of a job against its plan and its end. The oracle knows plans, ends and warnings, but not samples,
//! starts of windows and escalations.
//!
//! [`Site::pauses`] defines how short an activity may be and must still be seen.

use std::time::Duration;

use gpufrac_reaper::measure::telemetry::SHORTEST_LOOK;

use crate::plans::Timeline;
use crate::site::{Promise, Site};
use crate::world::{How, Job, Run};

/// Activity shorter than this at the end of a measurement does not show in the counters.
const GLIMPSE: Duration = Duration::from_millis(5);

/// The known facts of one run.
pub struct Oracle<'a> {
    site: &'a Site,
    run: &'a Run,
    /// The activity on all of its slices together: using one slice counts for the job.
    timeline: Timeline,
    promise: Promise,
    is_exempt: bool,
}

/// A time of activity.
#[derive(Clone, Copy)]
struct Span {
    from: Duration,
    to: Duration,
}

/// The errors in the runs of a job.
pub fn judge(site: &Site, job: &Job) -> Vec<String> {
    judge_all(site, job, site.is_quiet())
}

/// The errors in the ends of a job's runs, which may be later than in a world without disturbances.
pub fn judge_ends(site: &Site, job: &Job) -> Vec<String> {
    judge_all(site, job, false)
}

fn judge_all(site: &Site, job: &Job, is_prompt: bool) -> Vec<String> {
    let submission = &job.submission;
    let is_exempt = submission.class == crate::site::Class::Exempt;
    let runs = job.runs.iter().enumerate();
    runs.filter_map(|(number, run)| {
        let oracle = Oracle {
            site,
            run,
            timeline: Timeline::of_all([&run.timeline].into_iter().chain(&run.beside)),
            promise: site.promise(submission.class, submission.wish),
            is_exempt: is_exempt || submission.deaf,
        };
        let wrong = oracle.judge(is_prompt).err()?;
        Some(format!(
            "job {} run {number} ({:?}): {wrong}",
            job.id, submission.class
        ))
    })
    .collect()
}

fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

impl Oracle<'_> {
    /// `is_prompt`: nothing may delay an end.
    fn judge(&self, is_prompt: bool) -> Result<(), String> {
        let Some((end, how)) = self.run.end else {
            return Err("it never ended".to_owned());
        };
        match self.run.decided {
            Some(decided) if how != How::ByItself => self.judge_end(decided)?,
            _ => {}
        }
        if is_prompt {
            self.judge_delay(self.run.decided.unwrap_or(end))
        } else {
            Ok(())
        }
    }

    /// Checks that an ended job had the promised time.
    fn judge_end(&self, decided: Duration) -> Result<(), String> {
        if self.is_exempt {
            return Err("it was not to be ended".to_owned());
        }
        let pauses = self.site.pauses();
        let Promise {
            grace,
            never_used,
            idle,
            ..
        } = self.promise;
        let allowed = self.run.begin + grace;
        // The whole window is over, whichever it was.
        let last_active = self.last_active(decided, pauses.usual);
        let earliest = match last_active {
            Some(last_active) => last_active.max(allowed) + idle,
            None => allowed + never_used.min(idle),
        };
        if decided < earliest {
            let last = last_active.map_or("never used".to_owned(), |last| {
                format!("last used {} before", seconds(decided - last))
            });
            return Err(format!(
                "ended {} too early, {last}",
                seconds(earliest - decided)
            ));
        }
        // In the second half of the window the slice is observed without gaps.
        let window = if last_active.is_some() { idle } else { never_used.min(idle) };
        let suspect_from = (decided - window / 2 + pauses.until_suspect).max(allowed + window / 2);
        let seen = self.timeline.busy.iter().find(|busy| {
            let (from, to) = (busy.from.max(suspect_from), busy.to.min(decided));
            to > from + pauses.suspect
        });
        if let Some(busy) = seen {
            return Err(format!(
                "ended though it computed from {} to {} before",
                seconds(decided - busy.from),
                seconds(decided.saturating_sub(busy.to))
            ));
        }
        // There is one more sample directly before the end.
        let glimpse = decided.saturating_sub(SHORTEST_LOOK);
        let computes = self.timeline.busy.iter().any(|busy| {
            busy.to.min(decided)
                > busy.from.max(glimpse) + GLIMPSE.div_f64(busy.level.min(0.5) * 2.0)
        });
        if computes {
            return Err("ended while it computed".to_owned());
        }
        self.judge_warnings(decided, last_active)?;
        match self.run.breaker {
            Some(open) if decided < open + window => Err(format!(
                "ended {} after a breaker was open",
                seconds(decided - open)
            )),
            _ => Ok(()),
        }
    }

    /// Checks that each warning of the policy was its time before the end, and after the last use.
    fn judge_warnings(
        &self,
        decided: Duration,
        last_active: Option<Duration>,
    ) -> Result<(), String> {
        let all = &self.run.warnings;
        let valid: Vec<Duration> = all
            .iter()
            .filter(|at| last_active.is_none_or(|last| **at > last))
            .copied()
            .collect();
        let Some(first) = valid.len().checked_sub(self.promise.warn.len()) else {
            return Err(format!("warned {} times after its last use", valid.len()));
        };
        for (at, before) in valid[first..].iter().zip(&self.promise.warn) {
            if decided < *at + *before {
                return Err(format!(
                    "warned {} before the end, not {}",
                    seconds(decided.saturating_sub(*at)),
                    seconds(*before)
                ));
            }
        }
        let Some(checkpoint) = self.promise.checkpoint else {
            return Ok(());
        };
        match self.run.signals.last() {
            Some(at) if decided >= *at + checkpoint => Ok(()),
            Some(at) => Err(format!(
                "it had {} for its checkpoint",
                seconds(decided - *at)
            )),
            None => Err("it got no signal".to_owned()),
        }
    }

    /// The last activity before `decided` that must have been seen: activity longer than a gap between two samples,
    /// except for its last moments, which may be in such a gap; also a program that starts after a longer pause.
    fn last_active(&self, decided: Duration, pause: Duration) -> Option<Duration> {
        let timeline = &self.timeline;
        let busy = timeline.busy.iter().map(|busy| Span {
            from: busy.from,
            to: busy.to.min(decided),
        });
        let busy = joined(busy).into_iter();
        let computed = busy.filter(|span| span.to > span.from + pause);
        // Programs are counted at the end of a measurement, which may take nearly an interval.
        let to_end = pause + self.site.interval;
        let mut before = Duration::ZERO;
        let starts = timeline.programs.iter().filter_map(|program| {
            let is_new = program.from > before + to_end;
            before = before.max(program.to);
            (is_new && program.to.min(decided) > program.from + to_end).then_some(program.from)
        });
        computed.map(|span| span.to - pause).chain(starts).max()
    }

    /// Checks that a job without disturbances was ended as soon as it was due.
    fn judge_delay(&self, end: Duration) -> Result<(), String> {
        if self.is_exempt {
            return Ok(());
        }
        let Promise {
            grace,
            never_used,
            idle,
            ref warn,
            checkpoint,
        } = self.promise;
        // The next sample sees the last activity. Each step may be late by a round, and delays the later ones.
        let steps = 1 + warn.len() as u32 + u32::from(checkpoint.is_some());
        let late = self.site.pauses().usual * (1 + steps);
        let limit = never_used.max(idle) + checkpoint.unwrap_or_default() + late;
        let mut last = self.run.begin + grace;
        for sign in self.signs() {
            if sign.from.min(end) > last + limit {
                break;
            }
            last = last.max(sign.to);
        }
        if end > last + limit {
            Err(format!(
                "idle for {}, which is {} too long",
                seconds(end - last),
                seconds(end - last - limit)
            ))
        } else {
            Ok(())
        }
    }

    /// Everything that may count as activity: work, and programs that start and end, in order.
    fn signs(&self) -> Vec<Span> {
        let timeline = &self.timeline;
        let busy = timeline.busy.iter().map(|busy| Span {
            from: busy.from,
            to: busy.to,
        });
        let moments = timeline.programs.iter().flat_map(|p| [p.from, p.to]);
        let moments = moments.map(|at| Span { from: at, to: at });
        let mut signs: Vec<Span> = busy.chain(moments).collect();
        signs.sort_by_key(|span| span.from);
        signs
    }
}

/// Joins spans that touch.
fn joined(spans: impl Iterator<Item = Span>) -> Vec<Span> {
    let mut joined: Vec<Span> = Vec::new();
    for span in spans {
        match joined.last_mut() {
            Some(last) if span.from <= last.to => last.to = last.to.max(span.to),
            _ => joined.push(span),
        }
    }
    joined
}
