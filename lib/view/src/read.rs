//! Reads the file of a node.

use crate::{NodeStatus, VERSION};

/// A file that is older than this many of its intervals is stale.
const MOST_INTERVALS: u64 = 3;

/// The reasons why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// A file `status.json`, or one in the folder `status` of `shared`, is damaged or of another program.
    /// Cure: Look at the file that the message names; gpufrac-reaperd of the node writes it again in each round.
    #[error("it does not describe a node: {0}")]
    Text(#[from] serde_json::Error),
    /// A later gpufrac wrote the file.
    /// Cure: Install the same gpufrac on this host.
    #[error("it is of version {0}, and this gpufrac reads version {VERSION}")]
    Version(u32),
}

/// The key that each version has.
#[derive(serde::Deserialize)]
struct Header {
    version: u32,
}

impl NodeStatus {
    /// Reads the text of a node's file. Errors: it is not such a file, or one of a later version.
    pub fn parse(text: &str) -> Result<NodeStatus, ViewError> {
        // The version is read first, because another version may give the other keys another meaning.
        let Header { version } = serde_json::from_str(text)?;
        if version != VERSION {
            return Err(ViewError::Version(version));
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Whether the file is so old that the node or its daemon must have stopped. `now`: seconds since 1970.
    pub fn is_stale(&self, now: u64) -> bool {
        // The clock of another host may be ahead.
        let age = now.saturating_sub(self.written);
        age > MOST_INTERVALS * u64::from(self.interval)
    }
}
