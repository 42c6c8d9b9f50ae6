//! What the pools of a configuration come to, as a number that hosts can compare.
//!
//! slurmctld counts by its host's gpufrac.toml and a node carves by its own. Where the two say different pools, a job could get
//! another size than was counted; so job_submit sends the number of its pools along with its entry. It is a sum of
//! what decides about sizes and places, not of the file's text: comments, the order of keys, paths, rules of partitions,
//! `[reaper]` and what a pool only adds (`reuse`, `framework_hints`) do not matter.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use crate::crc64::crc64;
use crate::pool::Pool;

/// The sum of a configuration's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolsSum(u64);

/// What `gpufrac check` asks slurmctld for, as a request for GRES: whoever submits it learns the sum of the pools that slurmctld has.
/// A text that Slurm's commands take, of a Type that no node has: it is never a job, and no mechanism may be called so.
pub const QUESTION: &str = "gpufrac:pools:1";

/// What job_submit answers, before the sum.
const ANSWER: &str = "gpufrac: the pools of slurmctld have the sum ";

/// Whether the text of a request asks for the sum; Slurm may have put its prefix before it.
pub fn is_question(tres: &str) -> bool {
    let plain = tres
        .strip_prefix("gres:")
        .or_else(|| tres.strip_prefix("gres/"));
    plain.unwrap_or(tres) == QUESTION
}

/// A text that is no such sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the sum of pools: 16 digits of base 16, in small letters")]
pub struct NoPoolsSum;

impl PoolsSum {
    /// The sum of pools in their order, which numbers the devices.
    pub fn of(pools: &[Pool]) -> PoolsSum {
        let mut text = String::new();
        for pool in pools {
            // Writing to a string does not fail.
            let _ = describe(pool, &mut text);
        }
        PoolsSum(crc64(text.as_bytes()))
    }

    /// The answer to the [`QUESTION`].
    pub fn answer(self) -> String {
        format!("{ANSWER}{self}")
    }

    /// The sum in what a command of Slurm's printed of an answer.
    pub fn answered(printed: &str) -> Option<PoolsSum> {
        let (_, rest) = printed.split_once(ANSWER)?;
        rest.split_whitespace().next()?.parse().ok()
    }
}

/// Written out here, and not by `Debug`: builds that call a field otherwise must come to the same sum.
fn describe(pool: &Pool, text: &mut String) -> fmt::Result {
    let layout = &pool.layout;
    write!(
        text,
        "{} {} {} {} {}",
        pool.name,
        pool.mechanism,
        layout.kind.name(),
        layout.capacity,
        pool.geometry.model
    )?;
    write!(text, " {}", pool.gpu_memory.0)?;
    for size in &layout.menu {
        write!(text, " {}={}:{}", size.units, size.fraction, size.memory.0)?;
    }
    let mut partitions: Vec<&str> = pool.partitions.iter().map(String::as_str).collect();
    partitions.sort_unstable();
    let mut nodes: Vec<&str> = pool.nodes.names().iter().map(String::as_str).collect();
    nodes.sort_unstable();
    write!(text, " {} {}", partitions.join(","), nodes.join(","))?;
    for gpu in pool.gpus.iter().flatten() {
        write!(text, " {gpu}")?;
    }
    text.write_char('\n')
}

impl fmt::Display for PoolsSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for PoolsSum {
    type Err = NoPoolsSum;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let sum = u64::from_str_radix(text, 16).map(PoolsSum);
        // Only the one spelling: no `+1`, no capitals.
        sum.ok()
            .filter(|sum| sum.to_string() == text)
            .ok_or(NoPoolsSum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const POOL: &str = r#"version = 1
[pool.h100]
mechanism = "mig"
layout = "halves"
gpu = "H100-80"
menu = ["1/2", "1/4"]
partitions = ["gpu", "small"]
nodes = "gn[01-02]"
gpus = [0, 1]
"#;

    fn sum(text: &str) -> PoolsSum {
        PoolsSum::of(&Config::parse(text, "test").unwrap().pools)
    }

    #[test]
    fn the_answer_to_the_question_is_found_in_what_slurm_prints() {
        for text in [
            QUESTION.to_owned(),
            format!("gres:{QUESTION}"),
            format!("gres/{QUESTION}"),
        ] {
            assert!(is_question(&text), "{text}");
        }
        for text in [
            "",
            "gpufrac:0.25",
            "gres:gpufrac:pools:2",
            "gpufrac:pools:1,gpu:1",
        ] {
            assert!(!is_question(text), "{text}");
        }
        let pools = sum(POOL);
        let printed = format!(
            "sbatch: error: {}\nallocation failure: Invalid generic resource (gres) specification\n",
            pools.answer()
        );
        assert_eq!(PoolsSum::answered(&printed), Some(pools));
        assert_eq!(PoolsSum::answered("allocation failure"), None);
        assert_eq!(PoolsSum::answered(&format!("{ANSWER}12")), None);
    }

    #[test]
    fn what_does_not_decide_about_a_slice_does_not_count() {
        let one = sum(POOL);
        for (from, to) in [
            ("version = 1", "# of the site\nversion = 1"),
            ("gn[01-02]", "gn02,gn01"),
            ("[\"gpu\", \"small\"]", "[\"small\", \"gpu\"]"),
            ("gpus = [0, 1]", "gpus = [0, 1]\nreuse = \"30s\""),
            (
                "gpus = [0, 1]",
                "gpus = [0, 1]\n[partition.small]\nmax = 0.25",
            ),
            (
                "gpus = [0, 1]",
                "gpus = [0, 1]\n[reaper]\nmode = \"on\"\n[paths]\nrun = \"/run/x\"",
            ),
            (
                "menu = [\"1/2\", \"1/4\"]\npartitions = [\"gpu\", \"small\"]",
                "partitions = [\"gpu\", \"small\"]\nmenu = [\"1/4\", 0.5]",
            ),
        ] {
            let text = POOL.replace(from, to);
            assert_ne!(text, POOL, "{from}");
            assert_eq!(sum(&text), one, "{to}");
        }
    }

    #[test]
    fn what_decides_about_a_slice_counts() {
        let one = sum(POOL);
        for (from, to) in [
            ("\"1/4\"]", "\"1/8\"]"),
            ("\"1/4\"]", "\"1/4\", \"1/8\"]"),
            ("H100-80", "H100-94"),
            ("\"halves\"", "\"slices\""),
            ("menu = [\"1/2\", \"1/4\"]\n", "menu = [1]\n"),
            ("gn[01-02]", "gn[01-03]"),
            ("gpus = [0, 1]", "gpus = [0]"),
            ("gpus = [0, 1]", "gpus = [1, 0]"),
            (", \"small\"", ""),
            ("pool.h100", "pool.h200"),
        ] {
            let mut text = POOL.replace(from, to);
            assert_ne!(text, POOL, "{from}");
            if to == "\"slices\"" {
                text = text.replace("menu = [\"1/2\", \"1/4\"]\n", "");
            }
            if to == "menu = [1]\n" {
                text = text.replace("\"halves\"", "\"whole\"");
            }
            assert_ne!(sum(&text), one, "{to}");
        }
    }

    #[test]
    fn a_sum_has_one_spelling() {
        let one = sum(POOL);
        assert_eq!(one.to_string().parse(), Ok(one));
        for text in ["", "1", "+000000000000001", "00000000000000AB", "0x1"] {
            assert_eq!(text.parse::<PoolsSum>(), Err(NoPoolsSum), "{text}");
        }
    }
}
