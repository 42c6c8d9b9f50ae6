//! Time limits of the steps of a prolog.

use std::time::Duration;

/// How long temporary errors are retried: a predecessor that is ending, a busy driver.
pub(crate) const PATIENCE: Duration = Duration::from_secs(6);
/// How long slurmctld may be silent while a job must be requeued, from the start of the prolog. The prolog has 60 s
/// (or `PrologEpilogTimeout`), of which each answer may use some.
pub(crate) const SILENCE: Duration = Duration::from_secs(45);
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(320);
/// Without `PrologFlags=DeferBatch` slurmctld needs a moment to requeue the job.
pub(crate) const AFTER_REQUEUE: Duration = Duration::from_secs(1);
/// How long slurmctld is asked for a job that needs its answer: the slice can still be made in the time of a prolog,
/// or the job can be requeued.
pub(crate) const QUESTIONS: Duration = Duration::from_secs(36);
