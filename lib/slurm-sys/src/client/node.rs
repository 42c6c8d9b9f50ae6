//! The state of a node.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;

use serde::{Deserialize, Serialize};

use super::{Client, ClientError, c_text};
use crate::{raw, text};

/// The first words of a reason that gpufrac set.
const OURS: &str = "gpufrac: ";
/// The first words of a reason that gpufrac-reaperd set.
const REAPERS: &str = "gpufrac: stuck: ";

/// Reasons that Slurm itself sets and that explain nothing; gpufrac's reason may replace them.
const SLURMS: [&str; 4] = [
    "Not responding",
    "Prolog error",
    "Epilog error",
    "Job env setup error",
];

/// The program that drains a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drainer {
    /// A Prolog or Epilog, after an error that an admin corrects.
    Hook,
    /// gpufrac-reaperd, which takes its drain back: a node that is drained for another reason stays as it is.
    Reaper,
}

/// Why a node is down or drained.
struct Standing {
    /// Empty if there is none.
    reason: String,
    is_drained: bool,
    /// Whether the node is to be rebooted when no job runs on it.
    is_rebooted: bool,
}

/// The outcome of a request to drain a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Drained {
    /// The node is drained for this reason.
    Done,
    /// The node already has a reason of an admin, which stays, and its state, too.
    Reasoned(String),
}

impl Client {
    /// Drains a node. The reason gets the prefix `gpufrac: `; one of gpufrac-reaperd begins with `stuck: `. A reason of
    /// an admin stays. Errors: slurmctld refused or did not answer.
    pub fn drain(&self, node: &str, reason: &str, by: Drainer) -> Result<Drained, ClientError> {
        let name = c_text(node);
        let standing = self.standing(&name)?;
        if !by.may_replace(&standing) {
            return Ok(Drained::Reasoned(standing.reason));
        }
        let reason = c_text(&format!("{OURS}{reason}"));
        self.update_node(&name, |change| {
            change.reason = reason.as_ptr().cast_mut();
            change.node_state = raw::GPUFRAC_NODE_DRAIN;
        })?;
        Ok(Drained::Done)
    }

    /// Takes a drain of gpufrac back, unless another reason stands there now. Returns whether the node was drained for
    /// this reason. Errors: slurmctld refused or did not answer.
    pub fn undrain(&self, node: &str, reason: &str) -> Result<bool, ClientError> {
        let name = c_text(node);
        if self.standing(&name)?.reason != format!("{OURS}{reason}") {
            return Ok(false);
        }
        self.update_node(&name, |change| {
            change.node_state = raw::GPUFRAC_NODE_UNDRAIN;
        })?;
        Ok(true)
    }

    /// Whether a node is to have no more jobs: it is drained, or is rebooted when its jobs have ended.
    /// Errors: slurmctld did not answer.
    pub fn is_emptied(&self, node: &str) -> Result<bool, ClientError> {
        let standing = self.standing(&c_text(node))?;
        Ok(standing.is_drained || standing.is_rebooted)
    }

    /// Changes a node. `set` fills the fields; a text must outlive this call.
    fn update_node(
        &self,
        name: &CStr,
        set: impl FnOnce(&mut raw::update_node_msg_t),
    ) -> Result<(), ClientError> {
        let mut change = MaybeUninit::<raw::update_node_msg_t>::zeroed();
        // SAFETY: all zeros are such a message, and libslurm then sets every field to "no change". The texts outlive
        // the call, which reads them; nothing of the message is freed by it.
        let code = unsafe {
            self.library.slurm_init_update_node_msg(change.as_mut_ptr());
            let change = change.assume_init_mut();
            change.node_names = name.as_ptr().cast_mut();
            set(change);
            self.library.slurm_update_node(&raw mut *change)
        };
        self.check("slurm_update_node", code)
    }

    fn standing(&self, name: &CStr) -> Result<Standing, ClientError> {
        let mut answer: *mut raw::node_info_msg_t = ptr::null_mut();
        // SAFETY: the name is only read; `answer` receives a message that is freed below.
        let code = unsafe {
            self.library.slurm_load_node_single(
                &raw mut answer,
                name.as_ptr().cast_mut(),
                raw::GPUFRAC_SHOW_ALL as u16,
            )
        };
        self.check("slurm_load_node_single", code)?;
        // SAFETY: on success the message holds `record_count` records, whose texts are NULL or NUL-terminated; it is
        // not used after it was freed.
        unsafe {
            let message = &*answer;
            let node = message
                .node_array
                .as_ref()
                .filter(|_| message.record_count > 0);
            let reason = node.and_then(|node| text::read(node.reason));
            let has = |flag: u32| node.is_some_and(|node| node.node_state & flag != 0);
            let is_drained = has(raw::GPUFRAC_NODE_DRAIN);
            let is_rebooted = has(raw::GPUFRAC_NODE_REBOOT);
            self.library.slurm_free_node_info_msg(answer);
            Ok(Standing {
                reason: reason.unwrap_or_default(),
                is_drained,
                is_rebooted,
            })
        }
    }
}

impl Drainer {
    /// Whether the reason is gpufrac's or explains nothing, and, for gpufrac-reaperd, whether no other drain would end
    /// with its own.
    fn may_replace(self, standing: &Standing) -> bool {
        let Standing {
            reason, is_drained, ..
        } = standing;
        let is_slurms = || SLURMS.iter().any(|start| reason.starts_with(start));
        match self {
            _ if reason.is_empty() => true,
            Drainer::Hook => reason.starts_with(OURS) || is_slurms(),
            Drainer::Reaper if *is_drained => reason.starts_with(REAPERS),
            Drainer::Reaper => reason.starts_with(OURS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may_replace(by: Drainer, reason: &str, is_drained: bool) -> bool {
        let reason = reason.to_owned();
        by.may_replace(&Standing {
            reason,
            is_drained,
            is_rebooted: false,
        })
    }

    #[test]
    fn an_admins_reason_stays() {
        for reason in ["", "gpufrac: GPU 0 is not in MIG mode", "Prolog error"] {
            assert!(may_replace(Drainer::Hook, reason, true), "{reason:?}");
        }
        for reason in ["ticket 7", "see gpufrac: 7", "prolog error, ask Ada"] {
            for is_drained in [false, true] {
                assert!(
                    !may_replace(Drainer::Hook, reason, is_drained),
                    "{reason:?}"
                );
                assert!(
                    !may_replace(Drainer::Reaper, reason, is_drained),
                    "{reason:?}"
                );
            }
        }
    }

    /// Such a drain would end with the daemon's own.
    #[test]
    fn the_reaper_takes_over_no_drain_of_a_hook_or_of_slurm() {
        let other = ["gpufrac: GPU 0 is not in MIG mode", "Prolog error"];
        for reason in other {
            assert!(!may_replace(Drainer::Reaper, reason, true), "{reason:?}");
        }
        for (reason, is_drained) in [
            ("gpufrac: stuck: GPU 0", true),
            ("", true),
            (other[0], false),
        ] {
            assert!(
                may_replace(Drainer::Reaper, reason, is_drained),
                "{reason:?}"
            );
        }
    }
}
