//! Copies for the users of jobs, where Slurm's `PrivateData` hides what others may not see
//! ([`gpufrac_node::state::private`]).
//!
//! | file | what |
//! |---|---|
//! | `<run>/own/UID/leases/JOB` | the user's leases on this node |
//! | `<run>/own/UID/jobs/JOB.json` | the records of the user's running jobs |
//! | `<state>/own/UID/records/`, `<shared>/own/UID/records/` | kept records |
//! | `<state>/own/UID/usage/`, `<shared>/own/UID/usage/DAY/` | usage records ([`crate::keep::shipping`]) |

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use gpufrac_core::ids::{JobId, UserId};
use gpufrac_core::lease::Lease;
use gpufrac_host::files::{FileError, RootDir};
use gpufrac_node::node::Node;
use gpufrac_node::state::private::{self, JOBS, RECORDS};
use gpufrac_records::evidence::Record;
use serde::Deserialize;

use crate::keep::records;

/// The folder of leases.
pub const LEASES: &str = "leases";
const FILE_MODE: u32 = 0o644;

/// Writes the leases of each user, and removes those that are over.
pub(crate) fn leases(node: &Node, leases: &[Lease]) -> Result<(), FileError> {
    let mut of_users: BTreeMap<UserId, BTreeMap<String, String>> = BTreeMap::new();
    for user in private::users(&node.run)? {
        of_users.insert(user, BTreeMap::new());
    }
    for lease in leases {
        // A lease that has no text cannot have been read.
        let text = lease.to_text().unwrap_or_default();
        let own = of_users.entry(lease.user_id).or_default();
        own.insert(lease.name(), text);
    }
    for (user, own) in of_users {
        let dir = private::make_own(&node.run, user, LEASES)?;
        for name in dir.names()? {
            if !own.contains_key(&name) {
                dir.remove(&name)?;
            }
        }
        for (name, text) in own {
            if dir.read(&name)?.as_ref() != Some(&text) {
                dir.write(&name, &text, FILE_MODE)?;
            }
        }
    }
    Ok(())
}

/// Writes the record of a running job.
pub(crate) fn running(node: &Node, record: &Record) -> Result<(), FileError> {
    let dir = private::make_own(&node.run, record.uid, JOBS)?;
    let name = records::name(record.job);
    dir.write(&name, &records::text(record), FILE_MODE)
}

/// Removes the records of running jobs for which `is_here` is false.
pub(crate) fn ended(node: &Node, is_here: &dyn Fn(JobId) -> bool) -> Result<(), FileError> {
    for user in private::users(&node.run)? {
        let dir = private::make_own(&node.run, user, JOBS)?;
        records::tidy(&dir, is_here)?;
    }
    Ok(())
}

/// Keeps a record beyond the end of the job.
pub(crate) fn keep(node: &Node, record: &Record) -> Result<(), FileError> {
    let text = records::text(record);
    let dir = private::make_own(&node.state, record.uid, RECORDS)?;
    dir.write(&records::kept_name(record), &text, FILE_MODE)?;
    if let Some(shared) = &node.shared {
        let dir = private::make_own(shared, record.uid, RECORDS)?;
        dir.write(&records::shared_name(record), &text, FILE_MODE)?;
    }
    Ok(())
}

/// Copies the kept records of this node that have no copy yet.
pub(crate) fn kept(node: &Node) -> Result<(), FileError> {
    copy(&node.state.join("reaper"), &node.state, |_| true)?;
    if let Some(shared) = &node.shared {
        let mine = records::is_of(&node.name);
        copy(&shared.join("records"), shared, mine)?;
    }
    Ok(())
}

/// Removes copies of kept records that were last changed before `before`, a time since 1970. In the shared folder each
/// node removes its own.
pub(crate) fn purge(node: &Node, before: Duration) -> Result<(), FileError> {
    purge_below(&node.state, before, |_| true)?;
    match &node.shared {
        Some(shared) => purge_below(shared, before, records::is_of(&node.name)),
        None => Ok(()),
    }
}

/// The user of a record.
#[derive(Deserialize)]
struct Of {
    uid: UserId,
}

fn copy(from: &Path, above: &Path, mine: impl Fn(&str) -> bool) -> Result<(), FileError> {
    let Some(dir) = RootDir::find(from)? else {
        return Ok(());
    };
    for name in dir.names()?.iter().filter(|name| mine(name)) {
        let text = dir.read(name)?.unwrap_or_default();
        // What is no record has no user.
        let Ok(Of { uid }) = serde_json::from_str(&text) else {
            continue;
        };
        let own = private::make_own(above, uid, RECORDS)?;
        if !own.exists(name)? {
            own.write(name, &text, FILE_MODE)?;
        }
    }
    Ok(())
}

fn purge_below(
    above: &Path,
    before: Duration,
    mine: impl Fn(&str) -> bool,
) -> Result<(), FileError> {
    for user in private::users(above)? {
        let dir = private::make_own(above, user, RECORDS)?;
        records::purge(&dir, before, &mine)?;
    }
    Ok(())
}
