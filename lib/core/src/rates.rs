//! Prices of allocations: `[report]` of gpufrac.toml.

/// A number with six decimals, exact: 1.25 is 1,250,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millionths(pub u64);

impl Millionths {
    pub const ONE: Millionths = Millionths(1_000_000);

    /// Reads a decimal number of at most six decimals, below a billion.
    pub fn parse(text: &str) -> Option<Millionths> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let is_number =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(decimals) || whole.len() > 9 || decimals.len() > 6 {
            return None;
        }
        let whole: u64 = whole.parse().ok()?;
        let decimals: u64 = format!("{decimals:0<6}").parse().ok()?;
        Some(Millionths(whole * Millionths::ONE.0 + decimals))
    }
}

/// Prices of an hour of a GPU; of a fraction the part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    pub gpu_hour: Millionths,
    pub idle_hour: Millionths,
}

/// All prices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    pub currency: String,
    pub general: Rate,
    /// Prices of pools, by name.
    pub pools: Vec<(String, Rate)>,
    /// Factors of QOS, by name; 1 for others.
    pub qos: Vec<(String, Millionths)>,
}

impl Rates {
    /// Whether anything has a price.
    pub fn are_set(&self) -> bool {
        let mut rates = self
            .pools
            .iter()
            .map(|(_, rate)| rate)
            .chain([&self.general]);
        rates.any(|rate| *rate != Rate::default())
    }

    pub fn of_pool(&self, name: &str) -> Rate {
        let mut pools = self.pools.iter();
        let own = pools.find(|(pool, _)| pool == name);
        own.map_or(self.general, |(_, rate)| *rate)
    }

    pub fn factor(&self, qos: &str) -> Millionths {
        let mut factors = self.qos.iter();
        let own = factors.find(|(name, _)| name == qos);
        own.map_or(Millionths::ONE, |(_, factor)| *factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_exact() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1.25", Some(1_250_000)),
            ("0.000001", Some(1)),
            ("999999999.999999", Some(999_999_999_999_999)),
            ("1000000000", None),
            ("1.2345678", None),
            ("-1", None),
            ("1e3", None),
            ("1.", None),
            (".5", None),
            ("", None),
        ] {
            let read = Millionths::parse(text).map(|number| number.0);
            assert_eq!(read, expected, "{text}");
        }
    }
}
