//! Programs in a container that hides what limits them, which a script of the job started. The SPANK plugin stops tasks
//! that Slurm starts there.

use std::collections::BTreeSet;

use gpufrac_core::ids::JobId;
use gpufrac_core::policy::Mode;
use gpufrac_node::clock::BootTime;

use super::Decisions;
use super::steps::told;
use crate::measure::sample::Excess;
use crate::report::errors::topic;
use crate::round::Round;

/// Processes without limits in the last look.
#[derive(Default)]
pub(super) struct Unlimited {
    processes: BTreeSet<(JobId, u32)>,
    /// Of each job: whether a process was killed, if that was told.
    told: BTreeSet<(JobId, bool)>,
}

impl Decisions {
    /// Ends the processes that this look and the one before found, where the job's policy acts; else logs them.
    pub(crate) fn end_unlimited(&mut self, round: &mut Round, at: BootTime) {
        let before = std::mem::take(&mut self.unlimited.processes);
        self.unlimited
            .told
            .retain(|(job, _)| self.watched.contains_key(job));
        for (job, watched) in &mut self.watched {
            let mode = watched.policy(round.settings()).mode;
            if mode == Mode::Off || watched.watch.sampled != at {
                continue;
            }
            let found = watched
                .last_samples()
                .find_map(|(lease, sample)| match &sample.excess {
                    Some(excess @ Excess::Hidden { pids, .. }) => {
                        Some((lease.clone(), pids.clone(), excess.to_string()))
                    }
                    _ => None,
                });
            let Some((lease, pids, excess)) = found else {
                continue;
            };
            let again = pids.iter().filter(|pid| before.contains(&(*job, **pid)));
            let again: Vec<u32> = again.copied().collect();
            self.unlimited
                .processes
                .extend(pids.into_iter().map(|pid| (*job, pid)));
            if again.is_empty() {
                continue;
            }
            let ended = if mode == Mode::On {
                let ends = |pid| round.outside.slices.end_unlimited(&lease, pid);
                let ended: Result<Vec<bool>, _> = again.into_iter().map(ends).collect();
                round.report(topic::UNLIMITED, ended.as_ref());
                ended.is_ok_and(|ended| ended.contains(&true))
            } else {
                false
            };
            let is_first = self.unlimited.told.insert((*job, ended));
            let name = lease.name();
            if ended {
                // A program in a container did not reach its MPS daemon or HAMi-core, and was killed. Cure: Mount what
                // the line names in the container.
                round
                    .outside
                    .log
                    .info(format!("job {name}: killed: {excess}"));
            } else if is_first {
                // The same in dry-run, or the process could not be killed. Cure: As above.
                round
                    .outside
                    .log
                    .info(format!("job {name}: not killed: {excess}"));
            }
            if ended
                && is_first
                && let Some(info) = watched.ask(round)
            {
                let said = told(&info, format!("gpufrac: job {job}: killed: {excess}"));
                let done = watched.act(round, said);
                round.answer(done);
            }
        }
    }
}
