//! What an older session of another process shows after an instance was destroyed and made again.

use crate::driver::Stop;
use crate::steps::times::{session, target};
use crate::work::Work;

pub fn sessions(work: &Work<'_, '_>) -> Result<(), Stop> {
    let mut older = session(work)?;
    let Some(made) = work.make_smallest()? else {
        return Ok(());
    };
    let on = target(work, &made);
    let all = "seen by its id, by its UUID, in a walk, in the list";
    let question = "another session sees a new instance";
    work.check(question, "an older one", all, older.view(&on)?.seen());
    let mut other = session(work)?;
    work.check(question, "a newer one", all, other.view(&on)?.seen());
    work.remove(&made)?;
    let question = "an older session does not see a destroyed instance";
    work.check(question, "", "not seen", other.view(&on)?.seen());
    if let Some(again) = work.make(made.profile_id, made.placement)? {
        let question = "an older session sees the instance that was made again";
        work.check(question, "", all, other.view(&target(work, &again))?.seen());
        work.remove(&again)?;
    }
    work.only_own()
}
