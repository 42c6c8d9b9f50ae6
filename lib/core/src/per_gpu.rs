//! CPUs and memory by GPU, and the part of them that comes with a fraction.

use std::fmt;

use crate::fraction::{Fraction, Units};

/// CPUs and memory for a GPU; None where nothing is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PerGpu {
    pub cpus: Option<u64>,
    /// MiB, which Slurm calls MB.
    pub memory: Option<u64>,
}

impl PerGpu {
    /// These values, and the other ones where nothing is set.
    pub fn or(self, other: PerGpu) -> PerGpu {
        PerGpu {
            cpus: self.cpus.or(other.cpus),
            memory: self.memory.or(other.memory),
        }
    }

    /// The option of the job that has a value here.
    pub(crate) fn option(self) -> Option<&'static str> {
        match self {
            PerGpu { cpus: Some(_), .. } => Some("--cpus-per-gpu"),
            PerGpu {
                memory: Some(_), ..
            } => Some("--mem-per-gpu"),
            _ => None,
        }
    }

    /// These values where `other` has none.
    pub(crate) fn without(self, other: PerGpu) -> PerGpu {
        PerGpu {
            cpus: self.cpus.filter(|_| other.cpus.is_none()),
            memory: self.memory.filter(|_| other.memory.is_none()),
        }
    }

    /// The amounts for a part of a GPU.
    pub fn of(self, part: Part) -> PerGpu {
        PerGpu {
            cpus: self.cpus.map(|cpus| part.cpus(cpus)),
            memory: self.memory.map(|memory| part.memory(memory)),
        }
    }

    /// `2 CPUs and 4000 MB`; None for nothing.
    pub fn words(self) -> Option<String> {
        let cpus = self
            .cpus
            .map(|cpus| if cpus == 1 { "1 CPU".to_owned() } else { format!("{cpus} CPUs") });
        let memory = self.memory.map(|memory| format!("{memory} MB"));
        let parts: Vec<String> = cpus.into_iter().chain(memory).collect();
        (!parts.is_empty()).then(|| parts.join(" and "))
    }

    /// Both; where both have a value, `join` of the two.
    pub fn joined(self, other: PerGpu, join: fn(u64, u64) -> u64) -> PerGpu {
        let both = |one: Option<u64>, two: Option<u64>| match (one, two) {
            (Some(one), Some(two)) => Some(join(one, two)),
            (one, two) => one.or(two),
        };
        PerGpu {
            cpus: both(self.cpus, other.cpus),
            memory: both(self.memory, other.memory),
        }
    }
}

/// A part of a GPU, or as a number of GPUs.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    fraction: Fraction,
    gpus: u32,
}

impl Part {
    /// A size, with the units that Slurm counts for it.
    pub fn of(size: Fraction, units: Units) -> Self {
        let (fraction, gpus) = match units.gpus() {
            Some(gpus) => (Fraction::ONE, gpus),
            None => (size, 1),
        };
        Part { fraction, gpus }
    }

    /// The factor as numerator and denominator.
    fn ratio(&self) -> (u64, u64) {
        let [numerator, gpus, denominator] = [
            self.fraction.numerator(),
            self.gpus,
            self.fraction.denominator(),
        ]
        .map(u64::from);
        (numerator * gpus, denominator)
    }

    /// Whole CPUs, rounded up.
    pub(crate) fn cpus(&self, per_gpu: u64) -> u64 {
        let (numerator, denominator) = self.ratio();
        per_gpu
            .saturating_mul(numerator)
            .div_ceil(denominator)
            .max(1)
    }

    pub(crate) fn memory(&self, per_gpu: u64) -> u64 {
        let (numerator, denominator) = self.ratio();
        (per_gpu.saturating_mul(numerator) / denominator).max(1)
    }

    /// `a quarter of `; nothing for a whole GPU.
    pub(crate) fn words(&self) -> String {
        let word = match (
            self.gpus,
            self.fraction.numerator(),
            self.fraction.denominator(),
        ) {
            (gpus @ 2.., ..) => return format!("{gpus} times "),
            (_, 1, 1) => return String::new(),
            (_, 1, 2) => "half",
            (_, 1, 3) => "a third",
            (_, 2, 3) => "two thirds",
            (_, 1, 4) => "a quarter",
            (_, 3, 4) => "three quarters",
            (_, 1, 5) => "a fifth",
            (_, 1, 6) => "a sixth",
            (_, 1, 7) => "a seventh",
            (_, 1, 8) => "an eighth",
            _ => return format!("{} of ", self.fraction),
        };
        format!("{word} of ")
    }
}

impl fmt::Display for Part {
    /// `a quarter of a GPU`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gpus > 1 {
            return write!(f, "{} GPUs", self.gpus);
        }
        write!(f, "{}a GPU", self.words())
    }
}
