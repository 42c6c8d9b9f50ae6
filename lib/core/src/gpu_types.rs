//! The Types of GPUs in slurm.conf.
//!
//! For an unknown Type Slurm says only that the node configuration is not available; with the list of Types gpufrac
//! can say more. slurmctld's own records of nodes are no interface, so gpufrac reads slurm.conf; if the file does not
//! give all Types, the list is unknown.

/// The greatest depth of Include lines that are followed.
const MAX_DEPTH: usize = 4;

/// The Types in the text of a slurm.conf and of the files that it includes; `include` reads a file by the name in the
/// text.
///
/// Returns None if a node can have other Types: GPUs without a Type in slurm.conf (gres.conf gives them one), dynamic
/// nodes, or a file that cannot be read.
pub fn of_slurm_conf(text: &str, include: &dyn Fn(&str) -> Option<String>) -> Option<Vec<String>> {
    let mut found = Vec::new();
    collect(text, include, MAX_DEPTH, &mut found)?;
    Some(found)
}

fn collect(
    text: &str,
    include: &dyn Fn(&str) -> Option<String>,
    depth: usize,
    found: &mut Vec<String>,
) -> Option<()> {
    // A line that ends with a backslash goes on in the next one.
    for line in text.replace("\\\n", " ").lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let is_include = |word: &str| word.eq_ignore_ascii_case("include");
        if words.clone().next().is_some_and(is_include) {
            // A name with `%c` or `*` is a pattern, not a file.
            let name = words.nth(1).filter(|name| !name.contains(['%', '*']))?;
            collect(&include(name)?, include, depth.checked_sub(1)?, found)?;
            continue;
        }
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            if key.eq_ignore_ascii_case("MaxNodeCount") {
                return None;
            }
            if key.eq_ignore_ascii_case("Gres") {
                types_of(value, found)?;
            }
        }
    }
    Some(())
}

/// Adds the Types of one list such as `gpu:h100:8,shard:25`; None if a GPU has no Type.
fn types_of(list: &str, found: &mut Vec<String>) -> Option<()> {
    for item in list.trim_matches('"').split(',') {
        let mut words = item.split([':', '(']);
        if words
            .next()
            .is_none_or(|name| !name.eq_ignore_ascii_case("gpu"))
        {
            continue;
        }
        let is_type = |word: &&str| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
            word.starts_with(|first: char| first.is_ascii_alphabetic()) && word.bytes().all(plain)
        };
        found.push(words.next().filter(is_type)?.to_owned());
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn types(text: &str) -> Option<Vec<String>> {
        of_slurm_conf(text, &|name| match name {
            "more.conf" => Some("NodeName=b GRES=gpu:t4\nGresTypes=gpu,shard\n".to_owned()),
            "round.conf" => Some("include round.conf\n".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn types_are_read_from_the_lines_of_nodes() {
        let text = "# Gres=gpu:v100:1\nNodeName=DEFAULT gres=\"gpu:h100:8,tmpdisk:5\"\n\
             NodeName=a CPUs=1 \\\n  Gres=gpu:half:16,shard:half:800\nInclude more.conf # here\n";
        let expected = ["h100", "half", "t4"].map(str::to_owned).to_vec();
        assert_eq!(types(text), Some(expected));
        assert_eq!(types("NodeName=a CPUs=1\n"), Some(Vec::new()));
    }

    #[test]
    fn missing_types_are_not_guessed() {
        for text in [
            "NodeName=a Gres=gpu:8",
            "NodeName=a Gres=gpu",
            "NodeName=a Gres=gpu(S0):2",
            "NodeName=a Gres=gpu:half:2\nMaxNodeCount=20",
            "Include missing.conf",
            "include nodes-%c.conf",
            "include round.conf",
            "include",
        ] {
            assert_eq!(types(text), None, "{text}");
        }
    }
}
