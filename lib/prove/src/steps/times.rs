//! How long calls take: in one session alone, and in seven at once while an eighth makes and removes instances.

use std::path::PathBuf;
use std::time::Instant;

use crate::driver::Stop;
use crate::session::{Session, Target};
use crate::work::{Made, Work};

/// The sessions that work at once: a GPU has seven instances at most.
const SESSIONS: usize = 7;
/// A prolog makes at most 20 calls, and keeps 15 s of its time in reserve (docs/design/leases.md).
const QUESTION_MS: f64 = 750.0;
/// A step of two changes must be shorter than the 20 s after which waiting programs give up
/// (`LOCK_PATIENCE`, lib/node/src/node.rs).
const CHANGE_MS: f64 = 10_000.0;

/// An instance in another session.
pub fn target(work: &Work<'_, '_>, made: &Made<'_>) -> Target {
    let compute = made.compute.as_ref();
    Target {
        profile_id: made.profile_id,
        gi_id: made.gi_id,
        ci_id: compute.map_or(0, |compute| compute.ci_id),
        uuid: compute.map_or_else(String::new, |compute| compute.uuid.clone()),
        pci: work.caps.pci_of(&work.gpu.uuid),
    }
}

/// A further session.
pub fn session(work: &Work<'_, '_>) -> Result<Session, Stop> {
    let library: PathBuf = work.gpu.session().library().to_owned();
    Session::start(work.program, &library, work.gpu.index)
}

pub fn times(work: &Work<'_, '_>) -> Result<(), Stop> {
    let Some((smallest, place, other)) = work.smallest_places() else {
        return Ok(());
    };
    let Some(made) = work.make(smallest, place)? else {
        return Ok(());
    };
    let on = target(work, &made);
    let measured = measure(work, &on, || {
        let begin = Instant::now();
        let has_time = || begin.elapsed() < work.pace.sample && !work.out_of_time();
        while other != place && has_time() {
            let Some(made) = work.make(smallest, other)? else {
                break;
            };
            work.remove(&made)?;
        }
        Ok(())
    });
    work.when.set("alone");
    measured?;
    work.remove(&made)?;
    judge(work);
    work.only_own()
}

/// A GPU without MIG mode: the calls that need none.
pub fn without_mig(work: &Work<'_, '_>) -> Result<(), Stop> {
    let on = Target {
        profile_id: 0,
        gi_id: 0,
        ci_id: 0,
        uuid: String::new(),
        pci: work.caps.pci_of(&work.gpu.uuid),
    };
    let measured = measure(work, &on, || Ok(()));
    work.when.set("alone");
    measured?;
    judge(work);
    Ok(())
}

fn measure(
    work: &Work<'_, '_>,
    on: &Target,
    meanwhile: impl FnOnce() -> Result<(), Stop>,
) -> Result<(), Stop> {
    let mut sessions = vec![session(work)?];
    sessions[0].begin_to_measure(on, work.pace.sample)?;
    note(work, "alone", sessions[0].measured()?);
    for _ in 1..SESSIONS {
        sessions.push(session(work)?);
    }
    for session in &mut sessions {
        session.begin_to_measure(on, work.pace.sample)?;
    }
    work.when.set("seven");
    meanwhile()?;
    for session in &mut sessions {
        note(work, "seven", session.measured()?);
    }
    Ok(())
}

fn note(work: &Work<'_, '_>, when: &str, durations: crate::session::Durations) {
    for (call, all) in durations {
        for ms in all {
            work.took(&call, when, ms);
        }
    }
}

/// Compares the durations with what gpufrac allows for.
fn judge(work: &Work<'_, '_>) {
    for row in work.times() {
        let changes = row.call.contains("Create") || row.call.contains("Destroy");
        let (question, limit, ms) = match changes {
            true => ("a change takes less than 10 s", CHANGE_MS, row.times.max),
            false if row.when == "alone" => (
                "the median of a question alone is less than 750 ms",
                QUESTION_MS,
                row.times.median,
            ),
            false => continue,
        };
        let expected = format!("less than {limit} ms");
        let found = if ms < limit { expected.clone() } else { format!("{ms:.0} ms") };
        work.check(question, &row.call, expected, found);
    }
}
