//! The state of a node.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;

use super::{Client, ClientError, c_text};
use crate::{raw, text};

/// The first words of a reason that gpufrac set.
const OURS: &str = "gpufrac: ";

/// Reasons that Slurm itself sets and that explain nothing; gpufrac's reason may replace them.
const SLURMS: [&str; 4] = [
    "Not responding",
    "Prolog error",
    "Epilog error",
    "Job env setup error",
];

/// The outcome of a request to drain a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drained {
    /// The node is drained for this reason.
    Done,
    /// The node already has a reason of an admin, which stays, and its state, too.
    Reasoned(String),
}

impl Client {
    /// Drains a node. The reason gets the prefix `gpufrac: `. A reason of an admin stays.
    ///
    /// # Errors
    /// slurmctld refused or did not answer.
    pub fn drain(&self, node: &str, reason: &str) -> Result<Drained, ClientError> {
        let name = c_text(node);
        let standing = self.reason_of(&name)?;
        if !may_replace(&standing) {
            return Ok(Drained::Reasoned(standing));
        }
        let reason = c_text(&format!("{OURS}{reason}"));
        self.update_node(&name, |change| {
            change.reason = reason.as_ptr().cast_mut();
            change.node_state = raw::GPUFRAC_NODE_DRAIN;
        })?;
        Ok(Drained::Done)
    }

    /// Takes a drain of gpufrac back, unless another reason stands there now. Returns whether the node was drained for
    /// this reason.
    ///
    /// # Errors
    /// slurmctld refused or did not answer.
    pub fn undrain(&self, node: &str, reason: &str) -> Result<bool, ClientError> {
        let name = c_text(node);
        if self.reason_of(&name)? != format!("{OURS}{reason}") {
            return Ok(false);
        }
        self.update_node(&name, |change| {
            change.node_state = raw::GPUFRAC_NODE_UNDRAIN;
        })?;
        Ok(true)
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

    /// The reason why a node is down or drained; empty if it is neither.
    fn reason_of(&self, name: &CStr) -> Result<String, ClientError> {
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
            let reason = if message.node_array.is_null() || message.record_count == 0 {
                None
            } else {
                text::read((*message.node_array).reason)
            };
            self.library.slurm_free_node_info_msg(answer);
            Ok(reason.unwrap_or_default())
        }
    }
}

/// Whether gpufrac or Slurm itself set the reason, and not an admin.
fn may_replace(reason: &str) -> bool {
    let is_slurms = SLURMS.iter().any(|start| reason.starts_with(start));
    reason.is_empty() || reason.starts_with(OURS) || is_slurms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admins_reason_stays() {
        for reason in ["", "gpufrac: GPU 0 is not in MIG mode", "Prolog error"] {
            assert!(may_replace(reason), "{reason:?}");
        }
        for reason in ["ticket 7", "see gpufrac: 7", "prolog error, ask Ada"] {
            assert!(!may_replace(reason), "{reason:?}");
        }
    }
}
