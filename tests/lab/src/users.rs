//! Unprivileged users that every Debian has.

use std::fs;

use crate::LabError;

/// A user of the machine, to run client commands as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl User {
    pub fn root() -> Self {
        Self {
            name: "root".into(),
            uid: 0,
            gid: 0,
        }
    }
}

/// System accounts of base-passwd, of which a job can be submitted by name.
const CANDIDATES: [&str; 6] = ["games", "news", "mail", "lp", "uucp", "backup"];

/// At least two users of the machine that are not root.
pub(crate) fn unprivileged() -> Result<Vec<User>, LabError> {
    let passwd =
        fs::read_to_string("/etc/passwd").map_err(LabError::file("reading", "/etc/passwd"))?;
    let entry = |wanted: &str| {
        passwd.lines().find_map(|line| {
            let fields: Vec<_> = line.split(':').collect();
            let [name, _, uid, gid, ..] = fields[..] else {
                return None;
            };
            (name == wanted)
                .then(|| {
                    Some(User {
                        name: name.into(),
                        uid: uid.parse().ok()?,
                        gid: gid.parse().ok()?,
                    })
                })
                .flatten()
        })
    };
    let users: Vec<_> = CANDIDATES
        .into_iter()
        .filter_map(entry)
        .filter(|u| u.uid != 0)
        .collect();
    if users.len() < 2 {
        return Err(LabError::Machine {
            what: format!(
                "/etc/passwd has fewer than two of the users {}",
                CANDIDATES.join(", ")
            ),
            hint: "the lab needs two unprivileged users: add them with `adduser --system`".into(),
        });
    }
    Ok(users)
}
