//! The trusted entry, by which the controller tells the node what a job was granted.
//!
//! `job_submit` writes the entry into `spank_job_env`, after it removed any such variable of the user. Slurm passes
//! it to Prolog and Epilog as [`ENV_NAME`]. A node knows the granted size from the entry alone, so the entry is read
//! strictly: only the exact text that [`Entry`]'s `Display` writes is accepted.

use std::fmt;
use std::str::FromStr;

use crate::fraction::{MAX_GPUS, Units};
use crate::mechanism::Mechanism;
use crate::policy::IdleWish;

/// The variable with the entry in the environment of Prolog and Epilog.
pub const ENV_NAME: &str = "SPANK_GPUFRAC";

/// A variable in the environment of Prolog. job_submit writes it for jobs of partitions without a pool; it tells
/// Prolog that slurmd loads the user's login environment for the job, outside of the job's control groups.
pub const LOGIN_NAME: &str = "SPANK_GPUFRAC_LOGIN";

/// The variable with the [`PoolsSum`](crate::pools_sum::PoolsSum) of the pools by which the entry was written. It is
/// a separate variable, because older builds read the entry strictly and know no sum. An entry without the variable
/// comes from such a build.
pub const POOLS_NAME: &str = "SPANK_GPUFRAC_POOLS";

/// The word in the entry if the request leaves the mechanism open.
const ANY: &str = "any";

/// The part after the mechanism for a slice per task.
const PER_TASK: &str = ":per=task";

/// The part with the value of `--gpufrac-idle`, left out for the default.
const IDLE: &str = ":idle=";

/// Before the ceiling of `--gpufrac-burst`, in hundredths of a GPU.
const BURST: &str = ":burst=";

/// The grant of a job on each of its nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Units of one device, 1 to 100, or those of several whole GPUs: 200, 300, ...
    pub units: Units,
    /// The mechanism; None if the partitions have several, so that the device decides.
    pub mechanism: Option<Mechanism>,
    /// Whether the units are for each task; otherwise for the job on a node. Slurm alone knows the number of tasks on
    /// a node.
    pub per_task: bool,
    /// The granted value of `--gpufrac-idle`.
    pub wish: IdleWish,
    /// How much of a GPU's compute it may have while its neighbours are idle, if the user said so; None leaves it to
    /// the pool.
    pub burst: Option<Units>,
}

/// The reasons why a text is not an entry of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// slurmctld and the node have different builds of gpufrac.
    /// Cure: Install the same packages on both; then release the job.
    #[error(
        "entry {text:?} is of an unknown version; controller and nodes must run the same gpufrac"
    )]
    Version { text: String },
    /// The entry that job_submit wrote was damaged, or written by another build.
    /// Cure: Install the same packages on both; then release the job.
    #[error(
        "entry {text:?} is not of the form v1:units=25:mech=mig, optionally with :per=task, :idle=long and :burst=75"
    )]
    Form { text: String },
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mechanism = self.mechanism.map_or(ANY, Mechanism::name);
        write!(f, "v1:units={}:mech={mechanism}", self.units)?;
        if self.per_task {
            f.write_str(PER_TASK)?;
        }
        if self.wish != IdleWish::Default {
            write!(f, "{IDLE}{}", self.wish)?;
        }
        match self.burst {
            None => Ok(()),
            Some(burst) => write!(f, "{BURST}{burst}"),
        }
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
        let (units, rest) = fields
            .strip_prefix("units=")
            .and_then(|rest| rest.split_once(":mech="))
            .ok_or_else(form)?;
        let number = |text: &str| text.parse().map(Units).map_err(|_| form());
        let (rest, burst) = match rest.split_once(BURST) {
            Some((rest, burst)) => (rest, Some(number(burst)?)),
            None => (rest, None),
        };
        let (rest, wish) = match rest.split_once(IDLE) {
            Some((rest, wish)) => (rest, wish.parse().map_err(|_| form())?),
            None => (rest, IdleWish::Default),
        };
        let (mechanism, per_task) = match rest.strip_suffix(PER_TASK) {
            Some(mechanism) => (mechanism, true),
            None => (rest, false),
        };
        let entry = Entry {
            units: number(units)?,
            mechanism: match mechanism {
                ANY => None,
                word => Some(word.parse().map_err(|_| form())?),
            },
            per_task,
            wish,
            burst,
        };
        // Only one spelling is accepted: no `+25`, no `025`, no `:idle=default`.
        if entry.to_string() == text && entry.is_possible() {
            Ok(entry)
        } else {
            Err(form())
        }
    }
}

impl Entry {
    /// Whether job_submit writes such an entry.
    fn is_possible(&self) -> bool {
        let is_of_gpus = |gpus| gpus <= MAX_GPUS && !self.per_task;
        let is_part = |units: Units| (1..=Units::WHOLE.0).contains(&units.0);
        let is_units = is_part(self.units) || self.units.gpus().is_some_and(is_of_gpus);
        is_units && self.burst.is_none_or(is_part)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries() -> impl Iterator<Item = Entry> {
        let any = std::iter::once(None);
        let mechanisms = Mechanism::ALL.into_iter().map(Some).chain(any);
        mechanisms.flat_map(|mechanism| {
            IdleWish::ALL.into_iter().flat_map(move |wish| {
                let parts = (1..=100).flat_map(|units| [(units, false), (units, true)]);
                let several = (2..=MAX_GPUS).map(|gpus| (gpus * 100, false));
                parts.chain(several).flat_map(move |(units, per_task)| {
                    let bursts = [None, Some(Units(1)), Some(Units(75)), Some(Units(100))];
                    bursts.map(|burst| Entry {
                        units: Units(units),
                        mechanism,
                        per_task,
                        wish,
                        burst,
                    })
                })
            })
        })
    }

    #[test]
    fn reads_what_it_writes() {
        for entry in entries() {
            assert_eq!(entry.to_string().parse(), Ok(entry));
        }
        let entry = Entry {
            units: Units(25),
            mechanism: Some(Mechanism::Mig),
            per_task: false,
            wish: IdleWish::Default,
            burst: None,
        };
        assert_eq!(entry.to_string(), "v1:units=25:mech=mig");
        let any = Entry {
            mechanism: None,
            ..entry
        };
        assert_eq!(any.to_string(), "v1:units=25:mech=any");
        for (wish, text) in [
            (IdleWish::Long, "v1:units=25:mech=mig:idle=long"),
            (IdleWish::Off, "v1:units=25:mech=mig:idle=off"),
        ] {
            assert_eq!(Entry { wish, ..entry }.to_string(), text);
        }
        let tasks = Entry {
            per_task: true,
            ..entry
        };
        assert_eq!(tasks.to_string(), "v1:units=25:mech=mig:per=task");
        let both = Entry {
            wish: IdleWish::Long,
            ..tasks
        };
        assert_eq!(both.to_string(), "v1:units=25:mech=mig:per=task:idle=long");
        let (mechanism, burst) = (Some(Mechanism::Mps), Some(Units(75)));
        let all = Entry {
            mechanism,
            burst,
            ..both
        };
        let text = "v1:units=25:mech=mps:per=task:idle=long:burst=75";
        assert_eq!(all.to_string(), text);
        let alone = Entry {
            mechanism,
            burst,
            ..entry
        };
        assert_eq!(alone.to_string(), "v1:units=25:mech=mps:burst=75");
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
            "v1:units=250:mech=mig",
            "v1:units=1700:mech=mig",
            "v1:units=0200:mech=mig",
            "v1:units=200:mech=mig:per=task",
            "v1:units=25:mech=MIG",
            "v1:units=25:mech=mig ",
            "v1:units=25:mech=mig:units=50",
            "v1:mech=mig:units=25",
            "units=25:mech=mig",
            "v1:units=25:mech=mig:idle=",
            "v1:units=25:mech=mig:idle=default",
            "v1:units=25:mech=mig:idle=LONG",
            "v1:units=25:mech=mig:idle=long ",
            "v1:units=25:mech=mig:idle=long:idle=long",
            "v1:units=25:mech=mig:idle=long:idle=off",
            "v1:units=25:idle=long:mech=mig",
            "v1:idle=long:units=25:mech=mig",
            "v1:units=25:mech=:idle=long",
            "v1:units=25:mech=:per=task",
            "v1:units=25:per=task:mech=mig",
            "v1:units=25:mech=mig:per=",
            "v1:units=25:mech=mig:per=node",
            "v1:units=25:mech=mig:per=TASK",
            "v1:units=25:mech=mig:per=task ",
            "v1:units=25:mech=mig:per=task:per=task",
            "v1:units=25:mech=mig:idle=long:per=task",
            "v1:units=25:mech=mps:burst=",
            "v1:units=25:mech=mps:burst=0",
            "v1:units=25:mech=mps:burst=101",
            "v1:units=25:mech=mps:burst=075",
            "v1:units=25:mech=mps:burst=+75",
            "v1:units=25:mech=mps:burst=75 ",
            "v1:units=25:mech=mps:burst=75:burst=75",
            "v1:units=25:mech=mps:burst=75:idle=long",
            "v1:units=25:mech=mps:burst=75:per=task",
            "v1:burst=75:units=25:mech=mps",
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

    proptest! {
        /// Random combinations of parts of entries: each accepted text is exactly what `Display` writes.
        #[test]
        fn only_texts_in_the_form_that_gpufrac_writes_are_accepted(
            parts in proptest::collection::vec(
                proptest::sample::select(vec![
                    "v1:", "units=", "25", "0", "100", "400", ":mech=", "mig", "mps", "any", ":per=task", ":per=", "task", ":idle=", "long", "off", ":burst=", "75",
                    "default", ":", "=", " ", "+", "v2:",
                ]),
                0..10,
            )
        ) {
            let text = parts.concat();
            if let Ok(entry) = text.parse::<Entry>() {
                prop_assert_eq!(entry.to_string(), text);
            }
        }

        /// One character is changed, added or left out.
        #[test]
        fn a_damaged_entry_is_refused_or_another_one(
            entry in proptest::sample::select(entries().collect::<Vec<_>>()),
            at in any::<proptest::sample::Index>(),
            put in proptest::option::of(any::<char>()),
            keep in any::<bool>(),
        ) {
            let mut text: Vec<char> = entry.to_string().chars().collect();
            let at = at.index(text.len());
            let end = if keep { at } else { at + 1 };
            text.splice(at..end, put);
            let text: String = text.into_iter().collect();
            if let Ok(read) = text.parse::<Entry>() {
                prop_assert_eq!(read.to_string(), text);
            }
        }
    }
}
