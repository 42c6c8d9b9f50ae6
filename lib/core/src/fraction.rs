//! Fractions of a GPU, the units that Slurm counts, and amounts of memory.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Decimals that a fraction may have. One unit is 0.01, so six decimals are enough.
pub const MAX_DECIMALS: usize = 6;

/// The most GPUs of a node, if gpufrac.toml does not name them.
pub const MAX_GPUS: u32 = 16;

/// An exact part of one GPU, 0 < f <= 1, kept as a reduced ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fraction {
    numerator: u32,
    denominator: u32,
}

/// The reasons why a text or a ratio is not a fraction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FractionError {
    /// Part of a message: the amount is 0.
    /// Cure: Write a decimal from 0.01 to 1.
    #[error("zero is not a fraction of a GPU")]
    Zero,
    /// Part of a message: the amount is below 0.
    /// Cure: Write a decimal from 0.01 to 1.
    #[error("a fraction of a GPU cannot be negative")]
    Negative,
    /// Part of a message: the amount is above 1.
    /// Cure: Write a decimal from 0.01 to 1.
    #[error("a fraction is at most 1 GPU")]
    OverOne,
    /// Part of a message: Slurm counts whole percents.
    /// Cure: Write a decimal from 0.01 to 1.
    #[error("more than {MAX_DECIMALS} digits after the point; 0.01 is the finest that counts")]
    TooFine,
    /// Part of a message: a number in the notation of programs (`1e-1`, `inf`, `nan`, `0x1`).
    /// Cure: Write a decimal from 0.01 to 1.
    #[error("not a plain decimal")]
    NotPlain,
    /// Part of a message: the amount is another text.
    /// Cure: Write a decimal from 0.01 to 1.
    #[error("not a number")]
    NotANumber,
    /// Part of a message: the amount is empty.
    /// Cure: Write a decimal from 0.01 to 1.
    #[error("a fraction is missing")]
    Empty,
}

impl Fraction {
    pub const ONE: Fraction = Fraction {
        numerator: 1,
        denominator: 1,
    };

    /// The ratio `numerator/denominator`, reduced.
    pub fn new(numerator: u32, denominator: u32) -> Result<Fraction, FractionError> {
        if denominator == 0 {
            return Err(FractionError::NotANumber);
        }
        if numerator == 0 {
            return Err(FractionError::Zero);
        }
        if numerator > denominator {
            return Err(FractionError::OverOne);
        }
        let divisor = gcd(numerator, denominator);
        Ok(Fraction {
            numerator: numerator / divisor,
            denominator: denominator / divisor,
        })
    }

    /// Reads a decimal, the form that users write: `0.25`, `.25`, `1`, `1.0`.
    pub fn parse_decimal(text: &str) -> Result<Fraction, FractionError> {
        if text.is_empty() {
            return Err(FractionError::Empty);
        }
        if let Some(rest) = text.strip_prefix('-') {
            return Err(match rest.chars().next() {
                Some(c) if c.is_ascii_digit() || c == '.' => FractionError::Negative,
                _ => FractionError::NotANumber,
            });
        }
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(decimals) {
            let lower = text.to_ascii_lowercase();
            let exponent = lower.starts_with(|c: char| c.is_ascii_digit() || c == '.' || c == '+')
                && lower
                    .bytes()
                    .all(|b| b.is_ascii_hexdigit() || b"+-.ex_".contains(&b));
            let word = matches!(lower.as_str(), "nan" | "inf" | "infinity");
            return Err(if exponent || word {
                FractionError::NotPlain
            } else {
                FractionError::NotANumber
            });
        }
        if whole.is_empty() && decimals.is_empty() {
            return Err(FractionError::NotANumber);
        }
        if decimals.len() > MAX_DECIMALS {
            return Err(FractionError::TooFine);
        }
        let whole = match whole.trim_start_matches('0') {
            "" => 0,
            "1" => 1,
            _ => return Err(FractionError::OverOne),
        };
        let scale = 10_u32.pow(u32::try_from(decimals.len()).unwrap_or(0));
        let part = if decimals.is_empty() {
            0
        } else {
            decimals.parse().map_err(|_| FractionError::NotANumber)?
        };
        Fraction::new(whole * scale + part, scale)
    }

    /// Reads the forms that an admin writes in the configuration: a decimal as in [`Fraction::parse_decimal`], or a
    /// ratio such as `1/8`.
    pub fn parse(text: &str) -> Result<Fraction, FractionError> {
        let Some((numerator, denominator)) = text.split_once('/') else {
            return Fraction::parse_decimal(text);
        };
        let number = |s: &str| -> Result<u32, FractionError> {
            if s.is_empty() || s.len() > 6 || !s.bytes().all(|b| b.is_ascii_digit()) {
                return Err(FractionError::NotANumber);
            }
            s.parse().map_err(|_| FractionError::NotANumber)
        };
        Fraction::new(number(numerator)?, number(denominator)?)
    }

    pub fn numerator(self) -> u32 {
        self.numerator
    }

    pub fn denominator(self) -> u32 {
        self.denominator
    }

    /// The number that Slurm counts: hundredths of a GPU, rounded up.
    pub fn units(self) -> Units {
        Units(self.ceil_of(100))
    }

    /// `total` times this fraction, rounded up. Used for the number of memory slices.
    pub fn ceil_of(self, total: u32) -> u32 {
        let share =
            (u64::from(self.numerator) * u64::from(total)).div_ceil(u64::from(self.denominator));
        // The result is at most `total`, because the fraction is at most one.
        u32::try_from(share).unwrap_or(total)
    }

    /// Whether a slice of this size answers a request for `asked`: if it is at least as large, or if both print
    /// alike. 1/7 prints as 0.143, and a user who copies this number must get 1/7.
    pub fn covers(self, asked: Fraction) -> bool {
        asked <= self
            || asked
                <= Fraction {
                    numerator: self.ceil_of(1000),
                    denominator: 1000,
                }
    }

    /// The exact ratio, in the notation of the configuration: `1/8`.
    pub fn ratio(self) -> String {
        if self.denominator == 1 {
            self.numerator.to_string()
        } else {
            format!("{}/{}", self.numerator, self.denominator)
        }
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl PartialOrd for Fraction {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Fraction {
    fn cmp(&self, other: &Self) -> Ordering {
        let left = u64::from(self.numerator) * u64::from(other.denominator);
        let right = u64::from(other.numerator) * u64::from(self.denominator);
        left.cmp(&right)
    }
}

/// The decimal: exact if [`MAX_DECIMALS`] decimals are enough, otherwise rounded up to three (1/7 is `0.143`), so
/// that a request for the printed number is never smaller than the fraction.
impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = 10_u32.pow(MAX_DECIMALS as u32);
        let (value, width) = if exact.is_multiple_of(self.denominator) {
            (self.ceil_of(exact), MAX_DECIMALS)
        } else {
            (self.ceil_of(1000), 3)
        };
        let scale = 10_u32.pow(width as u32);
        let decimals = format!("{:0width$}", value % scale);
        let decimals = decimals.trim_end_matches('0');
        if decimals.is_empty() {
            write!(f, "{}", value / scale)
        } else {
            write!(f, "{}.{decimals}", value / scale)
        }
    }
}

impl FromStr for Fraction {
    type Err = FractionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Fraction::parse(text)
    }
}

impl TryFrom<String> for Fraction {
    type Error = FractionError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Fraction::parse(&text)
    }
}

/// The exact ratio, so that a lease that is read again has the same fraction.
impl From<Fraction> for String {
    fn from(fraction: Fraction) -> String {
        fraction.ratio()
    }
}

/// Hundredths of a GPU, the unit of Slurm's counts. One unit is one `shard`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Units(pub u32);

impl Units {
    pub const WHOLE: Units = Units(100);

    /// As part of a GPU; of none, and of more than a GPU, the whole.
    pub fn fraction(self) -> Fraction {
        Fraction::new(self.0, 100).unwrap_or(Fraction::ONE)
    }

    pub fn of_gpus(gpus: u32) -> Units {
        Units(gpus.saturating_mul(Units::WHOLE.0))
    }

    /// The number of whole GPUs; None for a part of a GPU, and for whole GPUs and a part.
    pub fn gpus(self) -> Option<u32> {
        let is_whole = self.0 > 0 && self.0.is_multiple_of(Units::WHOLE.0);
        is_whole.then_some(self.0 / Units::WHOLE.0)
    }

    /// The units on each GPU of a job with these units.
    pub fn of_each_gpu(self) -> Units {
        self.min(Units::WHOLE)
    }
}

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Memory in MiB. `Display` prints GiB with one decimal, rounded down.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct MemoryMib(pub u64);

impl MemoryMib {
    /// The memory of `units` out of `all` units, rounded down.
    pub fn part(self, units: Units, all: Units) -> MemoryMib {
        let (units, all) = (u64::from(units.0), u64::from(all.0.max(1)));
        // The division comes first, so that no amount of memory in a file makes the product overflow.
        MemoryMib(self.0 / all * units + self.0 % all * units / all)
    }

    /// Whether the memory is within 10 % of `expected`; drivers and ECC change the memory of a GPU by less.
    pub fn is_about(self, expected: MemoryMib) -> bool {
        self.0.abs_diff(expected.0) <= expected.0 / 10
    }
}

impl fmt::Display for MemoryMib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded down: a message must not promise more memory than the slice has.
        let tenths = u128::from(self.0) * 10 / 1024;
        write!(f, "{}.{} GiB", tenths / 10, tenths % 10)
    }
}
