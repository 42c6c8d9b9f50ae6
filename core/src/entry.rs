//! The trusted word from the controller to the node.
//!
//! `job_submit` writes it into `spank_job_env`, after it removed whatever the user put there;
//! Slurm hands it to Prolog and Epilog as [`ENV_NAME`]. It is the only thing that tells a node
//! how much of a GPU a job was granted, so it is read strictly: exactly what
//! [`Entry`]'s `Display` writes, nothing else.

use std::fmt;
use std::str::FromStr;

use crate::fraction::Units;
use crate::mechanism::Mechanism;

/// The variable in which Prolog and Epilog find the entry.
pub const ENV_NAME: &str = "SPANK_GPUFRAC";

/// The word for no mechanism in particular.
const ANY: &str = "any";

/// What a job was granted on each of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Units of one device, 1 to 100.
    pub units: Units,
    /// How they are made; None where the partitions have several ways, and the device decides.
    pub mechanism: Option<Mechanism>,
}

/// A text that is not an entry of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// Another version wrote it.
    #[error(
        "entry {text:?} is of an unknown version; controller and nodes must run the same gpufrac"
    )]
    Version {
        /// The text as found.
        text: String,
    },
    /// Not the exact form `v1:units=N:mech=WORD`.
    #[error("entry {text:?} is not of the form v1:units=25:mech=mig")]
    Form {
        /// The text as found.
        text: String,
    },
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mechanism = self.mechanism.map_or(ANY, Mechanism::name);
        write!(f, "v1:units={}:mech={mechanism}", self.units)
    }
}

impl FromStr for Entry {
    type Err = EntryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || EntryError::Form {
            text: text.to_owned(),
        };
        let Some(fields) = text.strip_prefix("v1:") else {
            let versioned = text
                .strip_prefix('v')
                .and_then(|rest| rest.split_once(':'))
                .is_some_and(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
            return Err(if versioned {
                EntryError::Version {
                    text: text.to_owned(),
                }
            } else {
                form()
            });
        };
        let (units, mechanism) = fields
            .strip_prefix("units=")
            .and_then(|rest| rest.split_once(":mech="))
            .ok_or_else(form)?;
        let entry = Entry {
            units: Units(units.parse().map_err(|_| form())?),
            mechanism: match mechanism {
                ANY => None,
                word => Some(word.parse().map_err(|_| form())?),
            },
        };
        // Only the one spelling: no `+25`, no `025`.
        if entry.to_string() != text || entry.units.0 == 0 || entry.units.0 > 100 {
            return Err(form());
        }
        Ok(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        let any = std::iter::once(None);
        for mechanism in Mechanism::ALL.into_iter().map(Some).chain(any) {
            for units in 1..=100 {
                let entry = Entry {
                    units: Units(units),
                    mechanism,
                };
                assert_eq!(entry.to_string().parse(), Ok(entry));
            }
        }
        let entry = Entry {
            units: Units(25),
            mechanism: Some(Mechanism::Mig),
        };
        assert_eq!(entry.to_string(), "v1:units=25:mech=mig");
        assert_eq!(
            Entry {
                mechanism: None,
                ..entry
            }
            .to_string(),
            "v1:units=25:mech=any"
        );
    }

    #[test]
    fn refuses_anything_else() {
        for text in [
            "",
            "v1",
            "v1:",
            "v1:units=:mech=mig",
            "v1:units=25",
            "v1:units=025:mech=mig",
            "v1:units=+25:mech=mig",
            "v1:units=0:mech=mig",
            "v1:units=101:mech=mig",
            "v1:units=25:mech=MIG",
            "v1:units=25:mech=mig ",
            "v1:units=25:mech=mig:units=50",
            "v1:mech=mig:units=25",
            "units=25:mech=mig",
        ] {
            assert!(
                matches!(text.parse::<Entry>(), Err(EntryError::Form { .. })),
                "{text:?}"
            );
        }
        assert!(matches!(
            "v2:units=25:mech=mig".parse::<Entry>(),
            Err(EntryError::Version { .. })
        ));
    }
}
