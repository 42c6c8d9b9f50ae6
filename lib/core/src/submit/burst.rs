//! Reads `--gpufrac-burst` of a job, and checks that the pools of the job lend so much.
//!
//! A burst is a ceiling of compute above the job's share. Slurm knows nothing of it: it counts, bills and limits the
//! share.

use super::option;
use crate::fraction::{Fraction, FractionError, Units};
use crate::mechanism::Mechanism;
use crate::pool::{Pool, Tenancy};

/// The option, as the plugin registers it, with `_`.
const OPTION: &str = "gpufrac_burst";

/// The message for a job that has the option and no share.
pub const NO_EFFECT: &str =
    "gpufrac: --gpufrac-burst has no effect here: this job asks for no fraction of a GPU";

/// The value is no decimal between 0 and 1.
/// Cure: Write for example `--gpufrac-burst=0.5`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "gpufrac: --gpufrac-burst={text} is not a part of a GPU: {source}; write for example --gpufrac-burst=0.5"
)]
pub struct UnknownBurst {
    text: String,
    source: FractionError,
}

/// Why a burst is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BurstRefusal {
    /// A burst raises a ceiling, and cannot lower it.
    /// Cure: Write a value of the message, or leave the option out.
    #[error(
        "gpufrac: --gpufrac-burst={burst} is less than the job's share of {share}; write {}",
        ways(*share, *max)
    )]
    BelowShare {
        /// The requested ceiling.
        burst: Fraction,
        share: Fraction,
        /// The most that the pool lends.
        max: Fraction,
    },
    /// The admin lends less (`burst_max`).
    /// Cure: Write a value of the message.
    #[error(
        "gpufrac: --gpufrac-burst={burst} is more than pool {pool} lends, at most {max}; write {}",
        ways(*share, *max)
    )]
    AboveMax {
        /// The requested ceiling.
        burst: Fraction,
        pool: String,
        share: Fraction,
        /// The most that the pool lends.
        max: Fraction,
    },
    /// The limit of HAMi-core holds or does not.
    /// Cure: Write `--gpufrac-burst=1`.
    #[error(
        "gpufrac: --gpufrac-burst={burst} cannot be set in pool {pool}: HAMi-core can only lift its limit of compute; write --gpufrac-burst=1, or leave it out"
    )]
    OnlyWhole {
        /// The requested ceiling.
        burst: Fraction,
        pool: String,
    },
    /// The mechanism has nothing to lend, or the admin lends nothing. One pool that the job may go to is enough.
    /// Cure: Leave the option out, or name another mechanism or partition.
    #[error("gpufrac: pool {pool} takes no --gpufrac-burst: {why}; leave the option out")]
    None {
        pool: String,
        /// The reason why the pool lends nothing.
        why: NoBurst,
    },
}

/// Why a pool lends no idle compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBurst {
    /// Part of the message above.
    /// Cure: Leave the option out.
    #[error("the job has a whole GPU")]
    Whole,
    /// Part of the message above.
    /// Cure: As above.
    #[error(
        "each of its jobs has a MIG instance of its own, and no job can use the multiprocessors of another's"
    )]
    Mig,
    /// Part of the message above.
    /// Cure: As above.
    #[error(
        "its jobs take turns on the GPU without a limit of compute, and have all of it while the others are idle"
    )]
    Timeslice,
    /// Part of the message above.
    /// Cure: As above.
    #[error(
        "with tenancy \"private\" its jobs take turns on the GPU, and an idle neighbour takes none"
    )]
    Private,
    /// Part of the message above.
    /// Cure: Admins: set `burst_max` to lend idle compute.
    #[error("gpufrac.toml sets no burst_max for it")]
    NotSet,
}

/// `--gpufrac-burst=F with F from 0.25 to 0.75`.
fn ways(share: Fraction, max: Fraction) -> String {
    if share < max {
        format!("--gpufrac-burst=F with F from {share} to {max}, or leave it out")
    } else {
        "no --gpufrac-burst: the share is as much".to_owned()
    }
}

/// Reads the value of the option: the ceiling in hundredths of a GPU. Errors: a text that is no part of a GPU.
pub fn parse(text: &str) -> Result<Units, UnknownBurst> {
    let fraction = Fraction::parse_decimal(text).map_err(|source| UnknownBurst {
        text: text.to_owned(),
        source,
    })?;
    Ok(fraction.units())
}

/// The option's value in a job's `spank_job_env`, if it has one. Clients put one there.
/// Errors: as [`parse`]. Clients refuse such values themselves, but not all clients have the plugin.
pub fn asked(environment: &[String]) -> Result<Option<Units>, UnknownBurst> {
    option::value(environment, OPTION).map(parse).transpose()
}

/// Whether a job with a share of `share` may have the ceiling `burst`, whichever of the pools serves it.
/// Errors: when one of them does not lend so much.
pub(super) fn allow(pools: &[&Pool], share: Units, burst: Units) -> Result<(), BurstRefusal> {
    for pool in pools {
        let none = |why| BurstRefusal::None {
            pool: pool.name.clone(),
            why,
        };
        if let Some(why) = reason(pool, share) {
            return Err(none(why));
        }
        let max = pool.options.burst.ok_or_else(|| none(NoBurst::NotSet))?.max;
        let [burst_of, share_of, max_of] = [burst, share, max].map(Units::fraction);
        if burst > max {
            return Err(BurstRefusal::AboveMax {
                burst: burst_of,
                pool: pool.name.clone(),
                share: share_of,
                max: max_of,
            });
        }
        if burst < share {
            return Err(BurstRefusal::BelowShare {
                burst: burst_of,
                share: share_of,
                max: max_of,
            });
        }
        if pool.mechanism == Mechanism::Hami && burst < Units::WHOLE {
            return Err(BurstRefusal::OnlyWhole {
                burst: burst_of,
                pool: pool.name.clone(),
            });
        }
    }
    Ok(())
}

/// Why a pool cannot lend idle compute, whatever its admin writes.
fn reason(pool: &Pool, share: Units) -> Option<NoBurst> {
    if share >= Units::WHOLE {
        return Some(NoBurst::Whole);
    }
    match pool.mechanism {
        Mechanism::Mig => Some(NoBurst::Mig),
        Mechanism::Timeslice => Some(NoBurst::Timeslice),
        Mechanism::Mps if pool.options.tenancy == Tenancy::Private => Some(NoBurst::Private),
        Mechanism::Mps | Mechanism::MigMps | Mechanism::Hami => None,
    }
}
