//! Time limits of the steps of a prolog.

use std::time::Duration;

/// How long what heals by itself is waited for: a predecessor that is dying, a busy driver.
pub(super) const PATIENCE: Duration = Duration::from_secs(6);
/// How long slurmctld may be silent while a job has to be given back, from the start of the prolog. That has 60 s
/// (`PrologEpilogTimeout` where it is set), of which each answer may take some.
pub(super) const SILENCE: Duration = Duration::from_secs(45);
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(320);
/// Without `PrologFlags=DeferBatch` slurmctld needs a moment to take the job back.
pub(super) const AFTER_REQUEUE: Duration = Duration::from_secs(1);
/// How long slurmctld is asked for a job of which nothing can be made without its word: then the job can still be carved in
/// the time of a prolog, or be put back.
pub(super) const QUESTIONS: Duration = Duration::from_secs(36);
