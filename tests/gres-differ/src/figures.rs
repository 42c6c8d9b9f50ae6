//! The outcome of the comparison.

use std::fmt;

use crate::judge::Finding;
use crate::texts::Request;

/// As many requests are shown that end Slurm's parser, and that gpufrac refuses.
const CRASHES_SHOWN: usize = 5;

/// Numbers of requests.
#[derive(Debug, Default)]
pub struct Figures {
    /// All of them.
    pub requests: u64,
    /// gpufrac refuses, and Slurm does not.
    pub refused_by_gpufrac: u64,
    /// Both refuse.
    pub refused_by_both: u64,
    /// Slurm alone refuses.
    pub refused_by_slurm: u64,
    /// Both take it, and both count nothing of a GPU.
    pub without_gpu: u64,
    /// Both take it, and count the same of a GPU.
    pub same: u64,
    /// Of these, gpufrac wrote the text that Slurm reads.
    pub rewritten: u64,
    /// Both read an update alike, and Slurm counts what the job had before as well.
    pub left: u64,
    /// Both take it, and count otherwise; or Slurm's parser ends its process.
    pub different: u64,
    /// Slurm's parser ended its process over a request that gpufrac refuses.
    pub crashes_refused: u64,
    /// The first of these.
    pub crashes: Vec<Difference>,
    /// The first of the different ones, each shrunk as far as it stays different.
    pub differences: Vec<Difference>,
}

/// A request that is read in two ways.
#[derive(Debug)]
pub struct Difference {
    /// The request.
    pub request: String,
    /// What each reads.
    pub why: String,
}

impl Figures {
    pub(crate) fn count(&mut self, finding: &Finding) {
        self.requests += 1;
        match finding {
            Finding::RefusedByGpufrac => self.refused_by_gpufrac += 1,
            Finding::RefusedByBoth => self.refused_by_both += 1,
            Finding::RefusedBySlurm => self.refused_by_slurm += 1,
            Finding::Same { counts: false, .. } => self.without_gpu += 1,
            Finding::Same { rewritten, .. } => {
                self.same += 1;
                self.rewritten += u64::from(*rewritten);
            }
            Finding::Left => self.left += 1,
            Finding::Differs(_) => self.different += 1,
            Finding::CrashRefused(_) => self.crashes_refused += 1,
        }
    }

    /// Keeps the first requests over which Slurm's parser ends its process.
    pub(crate) fn show_crash(&mut self, request: &Request, words: String) {
        if self.crashes.len() < CRASHES_SHOWN {
            let request = request.to_string();
            self.crashes.push(Difference {
                request,
                why: format!("Slurm ends: {words}"),
            });
        }
    }

    pub(crate) fn show(&mut self, request: &Request, why: String) {
        let difference = Difference {
            request: request.to_string(),
            why,
        };
        let known = |other: &Difference| other.request == difference.request;
        if !self.differences.iter().any(known) {
            self.differences.push(difference);
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} requests: {} different; the same counts in {} ({} as gpufrac wrote them), no GPU in {}, with what an update \
             leaves in {}; refused by gpufrac {}, by both {}, by Slurm {}; Slurm's parser crashed in {} that gpufrac refuses",
            self.requests,
            self.different,
            self.same,
            self.rewritten,
            self.without_gpu,
            self.left,
            self.refused_by_gpufrac,
            self.refused_by_both,
            self.refused_by_slurm,
            self.crashes_refused
        )?;
        let mut shown = self.crashes.iter().chain(&self.differences);
        shown.try_for_each(|difference| write!(f, "\n{difference}"))
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n    {}", self.request, self.why)
    }
}
