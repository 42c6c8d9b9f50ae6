//! A checksum of the pools of a configuration, which hosts compare.
//!
//! slurmctld counts by the gpufrac.toml of its host, and a node makes slices by its own. If the files had different
//! pools, a job could get another size than Slurm counted; therefore job_submit sends the checksum of its pools with
//! the entry. The checksum covers what decides about sizes and places, not the text of the file: comments, the order of
//! keys, paths, rules of partitions, `[reaper]` and additions of a pool (`reuse`, `framework_hints`) do not change it.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use crate::count_name::CountName;
use crate::crc64::crc64;
use crate::pool::Pool;

/// The checksum of a configuration's pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PoolsSum(u64);

/// The GRES that `gpufrac check` requests to learn the checksum of slurmctld's pools; job_submit refuses it with the
/// answer. Slurm's commands accept the text, no node has such a Type, so it never becomes a job; no mechanism may
/// have the name `pools`.
pub const QUESTION: &str = "gpufrac:pools:1";

/// The text before the checksum in job_submit's answer.
const ANSWER: &str = "gpufrac: the pools of slurmctld have the sum ";
/// The text before the build in this answer.
const OF_BUILD: &str = "of build ";

/// Whether the text of a request asks for the checksum; Slurm may have added its prefix.
pub fn is_question(tres: &str) -> bool {
    let plain = tres
        .strip_prefix("gres:")
        .or_else(|| tres.strip_prefix("gres/"));
    plain.unwrap_or(tres) == QUESTION
}

/// The same for the checksum of the pools.
/// Cure: Install the same packages on both; submit the job again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a checksum of pools: write 16 hexadecimal digits in small letters")]
pub struct NoPoolsSum;

impl PoolsSum {
    /// The checksum of the pools and of the name that counts them; the order of pools matters, because it numbers the
    /// devices.
    pub fn of(pools: &[Pool], count_name: &CountName) -> PoolsSum {
        // Builds that know no other name have no such line.
        let mut text =
            if count_name.is_default() { String::new() } else { format!("{count_name}\n") };
        for pool in pools {
            // Writing to a string does not fail.
            let _ = describe(pool, &mut text);
        }
        PoolsSum(crc64(text.as_bytes()))
    }

    /// The answer to the [`QUESTION`] of a plugin of this build.
    pub fn answer(self, build: &str) -> String {
        format!("{ANSWER}{self} {OF_BUILD}{build}")
    }

    /// The checksum in the output of a Slurm command, and the build of the plugin, which earlier builds do not tell.
    pub fn answered(printed: &str) -> Option<(PoolsSum, Option<&str>)> {
        let (_, rest) = printed.split_once(ANSWER)?;
        let line = rest.lines().next()?;
        let sum = line.split_whitespace().next()?.parse().ok()?;
        let build = line.split_once(OF_BUILD).map(|(_, build)| build.trim());
        Some((sum, build))
    }
}

/// Writes the values that are summed. It does not use `Debug`, so that a renamed field leaves the checksum the same.
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
        // Only one spelling is accepted: no `+1`, no capital letters.
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
        Config::parse(text, "test").unwrap().pools_sum()
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
            pools.answer("0.1.0~dev7")
        );
        let told = Some((pools, Some("0.1.0~dev7")));
        assert_eq!(PoolsSum::answered(&printed), told);
        // The answer of an earlier build.
        let printed = printed.replace(" of build 0.1.0~dev7", "");
        assert_eq!(PoolsSum::answered(&printed), Some((pools, None)));
        assert_eq!(PoolsSum::answered("allocation failure"), None);
        assert_eq!(PoolsSum::answered(&format!("{ANSWER}12")), None);
    }

    #[test]
    fn settings_that_do_not_affect_slices_do_not_change_the_checksum() {
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
    fn settings_that_affect_slices_change_the_checksum() {
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
