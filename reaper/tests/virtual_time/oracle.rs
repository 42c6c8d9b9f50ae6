//! What must be true of each run of a job, by what it did and what became of it. The oracle knows plans, ends and
//! warnings; of samples, windows' beginnings and escalations it knows nothing.
//!
//! How short a use may be and still be seen is for [`Site::pauses`] to say.

use std::time::Duration;

use gpufrac_reaper::measure::telemetry::SHORTEST_LOOK;

use crate::plans::Timeline;
use crate::site::{Promise, Site};
use crate::world::{How, Job, Run};

/// What a job computes in less than this at the end of a look does not show in the counters.
const GLIMPSE: Duration = Duration::from_millis(5);

/// What is known of one run.
pub struct Oracle<'a> {
    site: &'a Site,
    run: &'a Run,
    /// What it did on any of its slices: who uses one uses what the job has.
    timeline: Timeline,
    promise: Promise,
    is_exempt: bool,
}

/// A time in which the slice was used.
#[derive(Clone, Copy)]
struct Span {
    from: Duration,
    to: Duration,
}

/// What is wrong with the runs of a job.
pub fn judge(site: &Site, job: &Job) -> Vec<String> {
    judge_all(site, job, site.is_quiet())
}

/// What is wrong with how runs of a job were ended: they may end later than in a quiet world.
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
        match is_prompt {
            true => self.judge_delay(self.run.decided.unwrap_or(end)),
            false => Ok(()),
        }
    }

    /// Whether a job that was ended had the time that it was promised.
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
        // The window, whichever it was, is over.
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
        // In the second half of the window it is looked at all the time.
        let window = if last_active.is_some() {
            idle
        } else {
            never_used.min(idle)
        };
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
        // It is looked at once more at its end.
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

    /// Each warning of the policy came its time before the end, after the last use.
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

    /// When it was used last before `decided`, as far as that must have been seen: a use that lasts longer than a pause
    /// between two looks is, but for its last moments, which may fall in such a pause. So is a program that begins
    /// after a longer pause.
    fn last_active(&self, decided: Duration, pause: Duration) -> Option<Duration> {
        let timeline = &self.timeline;
        let busy = timeline.busy.iter().map(|busy| Span {
            from: busy.from,
            to: busy.to.min(decided),
        });
        let busy = joined(busy).into_iter();
        let computed = busy.filter(|span| span.to > span.from + pause);
        // Programs are counted at the end of a look, which may take nearly an interval.
        let to_end = pause + self.site.interval;
        let mut before = Duration::ZERO;
        let starts = timeline.programs.iter().filter_map(|program| {
            let is_new = program.from > before + to_end;
            before = before.max(program.to);
            (is_new && program.to.min(decided) > program.from + to_end).then_some(program.from)
        });
        computed.map(|span| span.to - pause).chain(starts).max()
    }

    /// Whether a job that nothing disturbed was ended as soon as it was to be.
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
        // The last use is seen by the next look. Each step is late by a round, and those after it with it.
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
        match end > last + limit {
            true => Err(format!(
                "idle for {}, which is {} too long",
                seconds(end - last),
                seconds(end - last - limit)
            )),
            false => Ok(()),
        }
    }

    /// All that may count as use: work, and programs that come and go, in their order.
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

/// Spans that touch, as one.
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
