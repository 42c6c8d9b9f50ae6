//! The size of a job: the smallest that holds its memory; of shares, whose size is also their compute, the mean
//! activity too.

use std::fmt;

use gpufrac_core::fraction::MemoryMib;

use crate::job::{Job, Need};
use crate::place::Size;

/// How sizes are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// The greatest memory in use is multiplied by it.
    pub margin: f64,
}

impl Default for Rule {
    fn default() -> Rule {
        Rule { margin: 1.1 }
    }
}

/// Why a job has its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reason {
    /// It needs several GPUs.
    Several,
    /// Nothing is known of its memory.
    Unmeasured,
    /// No piece has its memory in MiB.
    TooLarge(f64),
    /// The smallest size with its memory in MiB.
    Fits(f64),
    /// It ran on this part of a GPU.
    Ran(f64),
}

/// The units of a job, and why.
pub fn choose(job: &Job, need: &Need, sizes: &[Size], rule: Rule) -> (u32, Reason) {
    const WHOLE: u32 = 100;
    // Percents of a file are rounded to 32 bits: 0.4 is a little more than 40 percent.
    const ROUNDED: f64 = 1e-3;
    if !job.can_share() {
        return (WHOLE, Reason::Several);
    }
    if let Some(peak) = need.memory_mib {
        let needed = f64::from(peak) * rule.margin;
        let activity = 100.0 * f64::from(need.activity.unwrap_or(0.0)) - ROUNDED;
        let enough = |size: &&Size| {
            let has_compute = !size.is_share || f64::from(size.units) >= activity;
            size.memory.0 as f64 >= needed && has_compute
        };
        return match sizes.iter().find(enough) {
            Some(size) => (size.units, Reason::Fits(needed)),
            None => (WHOLE, Reason::TooLarge(needed)),
        };
    }
    match need.share {
        Some(share) => {
            let needed = f64::from(share) * 100.0 - ROUNDED;
            let enough = |size: &&Size| f64::from(size.units) >= needed;
            let units = sizes.iter().find(enough).map_or(WHOLE, |size| size.units);
            (units, Reason::Ran(f64::from(share)))
        }
        None => (WHOLE, Reason::Unmeasured),
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = |mib: &f64| MemoryMib(*mib as u64);
        match self {
            Reason::Several => f.write_str("a whole GPU each: the job has several GPUs"),
            Reason::Unmeasured => f.write_str("a whole GPU: nothing is known of its memory"),
            Reason::TooLarge(mib) => write!(f, "a whole GPU: no piece has {}", memory(mib)),
            Reason::Fits(mib) => write!(f, "the smallest size with {}", memory(mib)),
            Reason::Ran(share) => write!(f, "it had {:.0} % of a GPU", 100.0 * share),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::{Candidate, Model};
    use crate::job::Charge;

    fn units(candidate: &str, need: Need) -> u32 {
        let model = Model::named("H100-80").unwrap();
        let lendings = Candidate::parse(candidate)
            .unwrap()
            .lendings(&model)
            .unwrap();
        let job = Job {
            id: "1".into(),
            user: 0,
            charge: Charge::default(),
            partition: 0,
            submit: 0,
            waited: 0,
            ran: 1,
            limit: None,
            nodes: 1,
            gpus: 1,
            cpus: 0,
            memory: 0,
            priority: 0,
            need,
            idle: Vec::new(),
        };
        choose(&job, &need, &lendings[1].sizes(), Rule::default()).0
    }

    #[test]
    fn memory_picks_the_size_and_for_shares_the_activity_too() {
        let need = |mib, activity| Need {
            memory_mib: Some(mib),
            activity: Some(activity),
            share: None,
        };
        // An eighth of an H100-80 has 9.7 GiB.
        assert_eq!(units("halves", need(9_000.0, 1.0)), 13);
        assert_eq!(units("halves", need(9_500.0, 1.0)), 25);
        assert_eq!(units("halves", need(60_000.0, 0.0)), 100);
        assert_eq!(units("mps", need(2_000.0, 0.0)), 3);
        assert_eq!(units("mps", need(2_000.0, 0.4)), 40);
        assert_eq!(units("uniform:1/2", need(2_000.0, 0.9)), 50);
    }

    #[test]
    fn a_job_that_ran_on_a_part_keeps_it() {
        let need = Need {
            share: Some(0.46),
            ..Need::default()
        };
        assert_eq!(
            (
                units("halves", need),
                units("mps", need),
                units("uniform:1/4", need)
            ),
            (50, 46, 100)
        );
        assert_eq!(units("halves", Need::default()), 100, "nothing is known");
    }
}
