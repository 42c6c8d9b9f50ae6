//! The outcome of the comparison.

use std::fmt;

use crate::judge::Finding;
use crate::texts::Request;

/// The most crashes that are shown.
const CRASHES_SHOWN: usize = 5;

/// Numbers of requests.
#[derive(Debug, Default)]
pub struct Figures {
    /// All requests.
    pub requests: u64,
    /// gpufrac refuses, Slurm does not.
    pub refused_by_gpufrac: u64,
    /// Both refuse.
    pub refused_by_both: u64,
    /// Only Slurm refuses.
    pub refused_by_slurm: u64,
    /// Both accept, and both count no GPU.
    pub without_gpu: u64,
    /// Both accept, and count the same.
    pub same: u64,
    /// Of these, gpufrac wrote the text that Slurm reads.
    pub rewritten: u64,
    /// Both read an update in the same way, and Slurm also counts what the job had before.
    pub left: u64,
    /// Both accept, but count differently; or Slurm's parser ends its process.
    pub different: u64,
    /// Slurm's parser ended its process on a request that gpufrac refuses.
    pub crashes_refused: u64,
    /// The first such requests.
    pub crashes: Vec<Difference>,
    /// The first different ones, each shortened as far as it stays different.
    pub differences: Vec<Difference>,
}

/// A request with two readings.
#[derive(Debug)]
pub struct Difference {
    pub request: String,
    /// The two readings.
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

    /// Keeps the first requests on which Slurm's parser ends its process.
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
