//! The GRES of nodes in slurm.conf.
//!
//! For an unknown Type Slurm says only that the node configuration is not available; with the list of Types gpufrac
//! can say more. With the counts gpufrac knows which numbers of whole GPUs a node can give. slurmctld's own records of
//! nodes are no interface, so gpufrac reads slurm.conf; if the file does not give all GRES, they are unknown.

use crate::count_name::CountName;
use crate::fraction::Units;
use crate::request::is_type;
use crate::slurm_text::{counts, each_line};

/// The GRES in the text of a slurm.conf and of the files that it includes: each list once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodesGres(Vec<List>);

/// One list such as `gpu:uniform:8,shard:uniform:800,gpufrac:800`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct List {
    /// The Types of its GPUs, each with the number of GPUs.
    gpus: Vec<(String, u64)>,
    /// The units that jobs can have together, or more where the text does not say how many.
    units: u64,
}

impl NodesGres {
    /// Reads the text of slurm.conf; `include` reads a file by the name in the text. `name` is the name of gpufrac's
    /// own GRES.
    ///
    /// Returns None if a node can have other GRES: GPUs without a Type in slurm.conf (gres.conf gives them one),
    /// dynamic nodes, or a file that cannot be read.
    pub fn of_slurm_conf(
        text: &str,
        name: &CountName,
        include: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let mut found = Self::default();
        each_line(text, include, &mut |line| found.read(line, name))?;
        Some(found)
    }

    /// Whether a node has GPUs of this Type; Slurm ignores the case.
    pub fn has_type(&self, type_name: &str) -> bool {
        self.numbers(type_name).next().is_some()
    }

    /// The most GPUs of this Type on a node.
    pub fn most(&self, type_name: &str) -> u32 {
        let most = self.numbers(type_name).map(|(gpus, _)| gpus).max();
        most.map_or(0, |gpus| u32::try_from(gpus).unwrap_or(u32::MAX))
    }

    /// Whether this number of GPUs of a Type are all units of each node that has as many, so that no other job can have
    /// a unit there at the same time.
    pub fn are_all_of_a_node(&self, type_name: &str, gpus: u32) -> bool {
        let enough = |(number, _): &(u64, u64)| *number >= gpus.into();
        let units = u64::from(Units::of_gpus(gpus).0);
        let mut nodes = self.numbers(type_name).filter(enough);
        nodes.all(|(_, all)| all <= units)
    }

    /// The number of GPUs of this Type, and the number of all units, of each list with this Type.
    fn numbers(&self, type_name: &str) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().filter_map(move |list| {
            let own = |(name, _): &&(String, u64)| name.eq_ignore_ascii_case(type_name);
            let counts = list.gpus.iter().filter(own).map(|(_, count)| *count);
            let count = counts.reduce(u64::saturating_add)?;
            Some((count, list.units))
        })
    }

    /// Reads a line; None if a node can have GRES that the text does not tell.
    fn read(&mut self, line: &str, name: &CountName) -> Option<()> {
        for (key, value) in line
            .split_whitespace()
            .filter_map(|word| word.split_once('='))
        {
            if key.eq_ignore_ascii_case("MaxNodeCount") {
                return None;
            }
            if key.eq_ignore_ascii_case("Gres") {
                let list = List::read(value, name)?;
                // A thousand nodes have few lists, and each submission goes through them.
                if !self.0.contains(&list) {
                    self.0.push(list);
                }
            }
        }
        Some(())
    }
}

impl List {
    /// Reads one list; None if a GPU has no Type.
    fn read(text: &str, name: &CountName) -> Option<Self> {
        let mut list = Self::default();
        for ((kind, type_name), count) in counts(text.trim_matches('"')) {
            if kind == "gpu" {
                if !is_type(&type_name) {
                    return None;
                }
                list.gpus.push((type_name, count));
            } else if kind == name.as_str() {
                list.units = list.units.saturating_add(count);
            }
        }
        Some(list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<NodesGres> {
        NodesGres::of_slurm_conf(text, &CountName::default(), &|name| match name {
            "more.conf" => Some("NodeName=b GRES=gpu:t4\nGresTypes=gpu,shard\n".to_owned()),
            "round.conf" => Some("include round.conf\n".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn types_are_read_from_the_lines_of_nodes() {
        let text = "# Gres=gpu:v100:1\nNodeName=DEFAULT gres=\"gpu:h100:8,tmpdisk:5\"\n\
             NodeName=a CPUs=1 \\\n  Gres=gpu:half:16,shard:half:800\nInclude more.conf # here\n";
        let known = read(text).unwrap();
        for (type_name, most) in [("h100", 8), ("HALF", 16), ("t4", 1), ("v100", 0)] {
            assert_eq!(known.has_type(type_name), most > 0, "{type_name}");
            assert_eq!(known.most(type_name), most, "{type_name}");
        }
        assert_eq!(read("NodeName=a CPUs=1\n"), Some(NodesGres::default()));
        let alike = "NodeName=a Gres=gpu:t4:1\nNodeName=b Gres=gpu:t4:1\n";
        assert_eq!(read(alike).unwrap().0.len(), 1);
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
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn all_gpus_of_a_node_leave_no_unit_to_others() {
        let known = read(
            "NodeName=a Gres=gpu:uniform:4(S:0-1),shard:uniform:400,gpufrac:400\n\
             NodeName=b Gres=gpu:uniform:8,gpu:half:4,shard:uniform:800,shard:half:200,gpufrac:1000\n\
             NodeName=c gres=gpu:mps:2,shard:mps:200,gpufrac:200\n\
             NodeName=d gres=gpu:hami:2,shard:hami:200,gpufrac:1K\n",
        )
        .unwrap();
        let all = |type_name, gpus| known.are_all_of_a_node(type_name, gpus);
        // Node b has more units.
        assert!(!all("uniform", 4) && !all("uniform", 8));
        assert!(!all("mps", 1) && all("mps", 2) && !all("hami", 2));
        // No node has as many.
        assert!(all("mps", 3) && known.most("mps") == 2);
        let known = read("NodeName=a Gres=gpu:uniform:4,shard:uniform:400,gpufrac:400").unwrap();
        assert!(known.are_all_of_a_node("uniform", 4) && !known.are_all_of_a_node("uniform", 3));
    }
}
